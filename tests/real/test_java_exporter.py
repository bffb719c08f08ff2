"""A Java broker with the keys of spec.monitoring serves its metrics where the pod's port `metrics` says."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import convert

from brokergroup_operator.api.brokergroup import BrokerGroupSpec
from brokergroup_operator.reconcile.render.broker_config import broker_properties
from brokergroup_operator.reconcile.settings import ReconcileSettings
from tests.real.parts import java
from tests.support.places import free_port

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.real("java", "rocketmq"), pytest.mark.timeout(240)]


def test_the_exporter_answers_on_its_port(tmp_path: Path, java_name_server: java.JavaProgram) -> None:
    port = free_port()
    spec = convert({"implementation": "Java", "monitoring": {"exporter": True, "port": port}}, BrokerGroupSpec)
    rendered = broker_properties("orders", spec, ReconcileSettings(controller_addresses=("127.0.0.1:1",)))
    exporter: dict[str, Any] = {key: value for key, value in rendered.items() if key.startswith("metrics")}
    broker = java.start_broker(
        tmp_path / "broker",
        controller_address="127.0.0.1:1",
        name_server_address=java_name_server.address,
        # Alone, so that it serves without a controller; the exporter begins with any broker.
        **exporter | {"enableControllerMode": "false", "brokerId": "0", "brokerRole": "ASYNC_MASTER"},
    )

    def page() -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                return str(answer.read().decode())
        except (urllib.error.URLError, OSError):
            return ""

    try:
        broker.process.wait_until(
            lambda: "rocketmq_" in page(), what=f"serving metrics on {port}", deadline_seconds=150
        )
    finally:
        broker.process.kill()
