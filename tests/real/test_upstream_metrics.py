"""The Java controller's metrics page and ours, after the same requests: same names, labels and counts.

Entries only on Java's page are about its Raft log; other differences are listed below.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

import metric_names
from brokergroup_operator.controller.directory.group_directory import FixedDirectory
from brokergroup_operator.controller.plane import ControllerPlane
from brokergroup_operator.controller.settings import PlaneSettings, SecuritySettings
from brokergroup_operator.observe.metrics import Metrics
from brokergroup_operator.records.memory import MemoryRecordStore
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import ResponseCode
from rocketmq_remoting.command import request
from rocketmq_remoting.controller_protocol import encode_broker_names
from rocketmq_remoting.errors import RemotingError
from tests.real.parts import java
from tests.support.places import free_port

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.real("java", "rocketmq"), pytest.mark.timeout(180)]
# Labels that Java's exporter puts on every series, and the Raft peer's own ones.
OF_THE_EXPORTER = {"otel_scope_name", "otel_scope_version", "otel_scope_schema_url", "aggregation"}
BOTH = {"clusterName": "cl", "brokerName": "bn"}
DEADLINE_SECONDS = 60.0
LIFE: tuple[tuple[int, dict[str, Any]], ...] = (
    (1012, BOTH),
    (1013, BOTH | {"appliedBrokerId": 1, "registerCheckCode": "127.0.0.1:1;100"}),
    (1013, BOTH | {"appliedBrokerId": 1, "registerCheckCode": "127.0.0.2:1;200"}),  # refused, and a success here
    (1003, BOTH | {"brokerId": 1, "brokerAddress": "127.0.0.1:1"}),
    (
        904,
        BOTH
        | {"brokerId": 1, "brokerAddr": "127.0.0.1:1", "epoch": 0, "maxOffset": 0, "heartbeatTimeoutMills": 60_000},
    ),
    (1002, BOTH | {"brokerId": 1, "designateElect": "false"}),
    (1002, BOTH | {"brokerId": 1, "designateElect": "false"}),
    (1004, {"brokerName": "bn"}),
)


async def decides(client: RemotingClient, address: str) -> bool:
    """Whether it answers what only a leader does. Java says that it leads (1005) a moment before it decides anything."""
    try:
        answer = await client.invoke(address, request(1006, body=encode_broker_names(["bn"])), timeout_seconds=3)
    except RemotingError:
        return False
    return answer.code == ResponseCode.SUCCESS


async def live(client: RemotingClient, address: str) -> None:
    """Send one broker's requests to a controller. Java answers late or not at all until it leads."""
    clock = asyncio.get_running_loop().time
    deadline_seconds = clock() + DEADLINE_SECONDS
    while not await decides(client, address):
        assert clock() < deadline_seconds, "no leader"
        await asyncio.sleep(0.1)
    told: set[int] = set()
    for code, fields in LIFE:
        ext_fields = {name: str(value) for name, value in fields.items()}
        answer = await client.invoke(address, request(code, ext_fields=ext_fields), timeout_seconds=5)
        # Of the two that ask for what is there already, each controller says what it likes.
        told_again = code in told
        told.add(code)
        assert told_again or answer.code == ResponseCode.SUCCESS, (code, answer.code, answer.remark)


async def page(port: int) -> dict[str, list[Any]]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/metrics") as answer:
        text = await answer.text()
    families: dict[str, list[Any]] = {}
    for family in text_string_to_metric_families(text):
        families.setdefault(family.name, []).extend(family.samples)
    return families


async def page_with_elections(port: int) -> dict[str, list[Any]]:
    """Java's gauges and counters come with its next collection."""
    clock = asyncio.get_running_loop().time
    deadline_seconds = clock() + DEADLINE_SECONDS
    while True:
        families = await page(port)
        if {"election", "active_broker_num"} <= set(families):
            return families
        assert clock() < deadline_seconds, sorted(families)
        await asyncio.sleep(0.2)


def labels_of(samples: list[Any]) -> set[str]:
    return {name for sample in samples for name in sample.labels} - OF_THE_EXPORTER


def counts(samples: list[Any], *labels: str) -> dict[tuple[str, ...], float]:
    return {
        tuple(sample.labels[name] for name in labels): sample.value
        for sample in samples
        if not sample.name.endswith("_created")
    }


async def test_a_dashboard_made_for_the_java_controller_finds_its_series(tmp_path: Path) -> None:
    port = free_port()
    theirs = java.start_controller(tmp_path, metricsExporterType="PROM", metricsPromExporterPort=port)
    metrics = Metrics(controller_address="127.0.0.1:9878")
    plane = ControllerPlane(
        store=MemoryRecordStore(),
        directory=FixedDirectory(),
        settings=PlaneSettings(listen_host="127.0.0.1", listen_port=0, security=SecuritySettings(open_admin=True)),
        observer=metrics.observer,
    )
    client = RemotingClient()  # open until the pages are read: a broker whose channel closes is no active one
    metrics.attach(plane)
    await metrics.start("127.0.0.1", 0)
    await plane.start()
    try:
        await asyncio.to_thread(theirs.wait_until_listening)
        await live(client, theirs.address)
        await live(client, plane.address)
        java_page, our_page = await page_with_elections(port), await page(metrics.port)
    finally:
        await client.close()
        await plane.stop()
        await metrics.stop()
        theirs.process.kill()
    for name in (each.removesuffix("_total") for each in metric_names.UPSTREAM_METRICS):
        assert name in java_page, (name, sorted(java_page))
        assert labels_of(our_page[name]) == labels_of(java_page[name]), name
    elected = ("cluster", "broker_set", "election_result")
    assert counts(our_page["election"], *elected) == counts(java_page["election"], *elected)
    active = ("cluster", "broker_set")
    assert counts(our_page["active_broker_num"], *active) == counts(java_page["active_broker_num"], *active)
    asked = ("request_type", "request_handle_status")
    ours, java_s = counts(our_page["request"], *asked), counts(java_page["request"], *asked)
    # How often each was asked whether it decides is its own affair.
    for key in set(ours) | set(java_s):
        if key[0] != "CONTROLLER_GET_SYNC_STATE_DATA":
            assert ours.get(key) == java_s.get(key), (ours, java_s)
