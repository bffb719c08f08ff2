"""The parts of the demo, each by itself: client, signals, incident log, screen, images."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from brokergroup_operator.demo.client import Ledger, ReadbackError, read_keys
from brokergroup_operator.demo.our_sandbox import our_images
from brokergroup_operator.demo.page import first_acknowledged
from brokergroup_operator.demo.processes import hold
from brokergroup_operator.demo.run import watched_by_clients
from brokergroup_operator.demo.screen import DemoView, Screen
from brokergroup_operator.demo.watched_group import find_incident, steps_since
from kube_sandbox.kubelet.environment import UnknownImageError

if TYPE_CHECKING:
    from pathlib import Path


def test_a_thaw_reaches_only_the_process_that_was_frozen() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    try:
        with hold(process.pid) as held:
            held.freeze()
            assert held.thaw() is True
            held.kill()
            assert process.wait(timeout=10) == -9
            assert held.thaw() is False
    finally:
        process.kill()
        process.wait()


INCIDENT = {
    "kind": "failover", "from": 1, "epochBefore": 4, "startedAt": "2026-11-21T00:10:00.500Z",
    "stepsMilliseconds": {"detected": 0.0, "committed": 6.5, "roleChanged": 97.5},
}  # fmt: skip


def test_only_the_failover_of_that_master_at_that_epoch_is_found(tmp_path: Path) -> None:
    log = tmp_path / "incidents.jsonl"
    assert find_incident(log, from_broker_id=1, epoch_before=4) is None
    others = [INCIDENT | {"epochBefore": 3}, INCIDENT | {"kind": "switchover"}, INCIDENT | {"from": 2}]
    log.write_text("".join(json.dumps(line) + "\n" for line in [*others, INCIDENT]) + '{"kind": "fail')
    assert find_incident(log, from_broker_id=1, epoch_before=4) == INCIDENT


def test_steps_are_counted_from_the_fault_not_from_its_detection() -> None:
    fault_at_seconds = 1795219800.0 + 0.4  # 100 ms before the incident's start
    steps = steps_since(INCIDENT | {"startedAt": "2026-11-21T00:10:00.500Z"}, fault_at_seconds)
    assert steps == {"detected": 100.0, "committed": 106.5, "role_changed": 197.5}


def test_the_panel_shows_the_first_acknowledged_write_that_the_incident_log_has(tmp_path: Path) -> None:
    """The panel has the same figure as the step `firstAck` of all views."""
    log = tmp_path / "incidents.jsonl"
    seen = INCIDENT | {"id": "default/quickstart/5", "stepsMilliseconds": {"detected": 0.0, "firstAck": 131.25}}
    unseen = INCIDENT | {"id": "default/quickstart/6", "stepsMilliseconds": {"detected": 0.0, "committed": 6.5}}
    log.write_text("".join(json.dumps(line) + "\n" for line in (seen, unseen)))
    assert first_acknowledged(log) == {"default/quickstart/5": 131.25}
    assert steps_since(seen, 1795219800.5)["canary_ack"] == 131.2


@pytest.mark.parametrize(
    ("monitoring", "canary"), [(None, True), ({"exporter": "Disabled"}, True), ({"canary": {"enabled": False}}, False)]
)
def test_the_demos_group_has_a_canary_unless_its_manifest_says_otherwise(monitoring: Any, canary: bool) -> None:
    manifest: dict[str, Any] = {
        "spec": {"nameServers": ["nameserver:9876"]} | ({"monitoring": monitoring} if monitoring else {})
    }
    watched_by_clients(manifest, "127.0.0.1:9876")
    assert manifest["spec"]["nameServers"] == ["127.0.0.1:9876"]
    assert manifest["spec"]["monitoring"] == {**(monitoring or {}), "canary": {"enabled": canary}}


def test_what_was_acknowledged_and_is_not_in_the_log_is_missing() -> None:
    ledger = Ledger()
    ledger.acknowledge("a", 1.0)
    ledger.acknowledge("b", 2.0)
    ledger.fail()
    assert ledger.missing_from({"a", "unknown"}) == ["b"]
    assert ledger.missing_from({"a", "b"}) == []


def test_the_first_acknowledgement_after_a_fault_is_found() -> None:
    ledger = Ledger()
    for at_seconds in (1.0, 2.0, 3.0, 4.0):
        ledger.acknowledge(f"m{at_seconds}", at_seconds)
    first = ledger.first_after(2.5)
    assert first is not None
    assert first.key == "m3.0"
    assert ledger.first_after(9.0) is None


def test_the_rate_counts_only_its_window() -> None:
    ledger = Ledger()
    for tenth in range(100):
        ledger.acknowledge(str(tenth), tenth / 10)
    assert ledger.rate_per_second(now_seconds=9.9, window_seconds=2.0) == 10.5


async def test_a_master_that_goes_while_its_log_is_read_is_told_as_that() -> None:
    async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        with pytest.raises(ReadbackError, match=f"{address}: topic demo not read to its end"):
            await read_keys(address, "demo", 1)


HINTS = ["kubectl get brokergroups"]


def shown(renderable: object) -> str:
    text = StringIO()
    Console(file=text, width=100).print(renderable)
    return text.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_the_last_picture_does_not_say_look_yourself(*, terminal: bool) -> None:
    text = StringIO()
    console = Console(file=text, force_terminal=terminal, width=100)
    with Screen(console=console, hints=HINTS) as screen:
        screen.show(DemoView(doing="kills the master"))
        if terminal:
            assert screen._live is not None
            assert HINTS[0] in shown(screen._live.renderable)
        screen.close_with(DemoView(doing="all read back"))
        last = text.getvalue() if screen._live is None else shown(screen._live.renderable)
    assert "all read back" in last
    assert "look yourself" not in last
    assert HINTS[0] not in last


def test_rocketmq_in_the_versions_that_are_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rocketmq-5.5.0" / "lib").mkdir(parents=True)
    monkeypatch.setenv("BROKERGROUP_CACHE", str(tmp_path))
    catalogue = our_images()
    assert catalogue.find("apache/rocketmq:5.5.0").environment == {"ROCKETMQ_HOME": str(tmp_path / "rocketmq-5.5.0")}
    assert catalogue.find("registry.example/brokergroup-operator:0.1.0").path
    with pytest.raises(UnknownImageError, match=r"apache/rocketmq:5\.5\.0"):
        catalogue.find("apache/rocketmq:4.9.0")
