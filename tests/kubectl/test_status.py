"""The plugin's status, history and lag: a group in one look."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import yaml

from brokergroup_operator.api.brokergroup_status import Reason
from brokergroup_operator.kubectl.cluster import BrokerGroup, BrokerGroupOperation, Cluster
from brokergroup_operator.kubectl.command_line import PluginError
from brokergroup_operator.kubectl.its_operator import Heartbeat, Presence
from brokergroup_operator.kubectl.printing import in_units, show
from brokergroup_operator.kubectl.status import page, status_written
from tests.kubectl.bench import DEADLINE_SECONDS, STATUS, Bench

if TYPE_CHECKING:
    import pytest

SWITCHOVER = {"brokerGroupRef": {"name": "orders"}, "type": "Switchover", "switchover": {}}
HERE = Heartbeat(Presence.HERE, "operator old/brokergroup-operator renewed its Lease 1s ago (brokergroup-operator-0)")
AWAY = Heartbeat(Presence.AWAY, "operator old/brokergroup-operator is away (its Lease is gone)")


def group(**annotations: str) -> dict[str, Any]:
    metadata = {"namespace": "shop", "name": "orders", "annotations": annotations}
    return {"metadata": metadata, "spec": {"replicas": 3}, "status": {}}


def test_status_shows_the_group_in_one_look(bench: Bench) -> None:
    """apache/rocketmq-dashboard #233, #361, apache/rocketmq #4443: the master, and members in and outside the SyncStateSet."""
    bench.create_group()
    bench.create(BrokerGroupOperation, "move", spec=SWITCHOVER)
    bench.create(BrokerGroupOperation, "done", spec=SWITCHOVER)
    bench.set_status(BrokerGroupOperation, "done", {"phase": "Succeeded"})
    lines = bench.must("status", "orders").splitlines()
    assert lines[0].startswith(f"{bench.namespace}/orders   MembersOutOfSync   ")
    assert lines[1] == "  brokerName orders   Java 5.5.0   durability Strict"
    assert lines[2] == "  master broker 2 (orders-2), epoch 5"
    assert lines[3] == "  SyncStateSet 1, 2 (epoch 9)   ready 3/3"
    assert lines[4].startswith("! no Lease is named on this group")
    assert lines[5].startswith("  status written ")
    assert lines[7].split() == ["ID", "POD", "ROLE", "STATE", "SEAT", "LAG", "ADDRESS"]
    assert lines[10].split() == ["3", "orders-3", "slave", "CatchingUp", "None", "3145728", "10.0.0.3:10911"]
    text = "\n".join(lines)
    assert "!   FailoverSafe   False" in text
    assert "Last failover: connectionRefused, broker 1 -> 2, epoch 5, 41 ms" in text
    assert "detected 0  committed 12  roleChanged 41" in text
    assert [line.split()[:3] for line in lines if line.startswith("  move")] == [["move", "Switchover", "Pending"]]
    assert "done " not in text


def test_an_update_that_waits_for_its_window_is_shown_with_the_time_and_the_command(bench: Bench) -> None:
    told = (
        "Outdated: orders-1 (PodChanged): outside spec.updateStrategy.windows until 2030-01-05T01:00:00Z (Sat 02:00"
        " Europe/Berlin); kubectl brokergroup restart orders does not wait"
    )
    waits = {
        "type": "UpToDate", "status": "False", "reason": Reason.OUTSIDE_WINDOW.value, "message": told,
        "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1,
    }  # fmt: skip
    bench.create_group(status=STATUS | {"conditions": [*STATUS["conditions"], waits]})
    [line] = [line for line in bench.must("status", "orders").splitlines() if "UpToDate" in line]
    mark, *cells, _, reason, message = line.split(maxsplit=5)
    assert (mark, cells, reason, message) == ("!", ["UpToDate", "False"], "OutsideWindow", told)
    assert f"  UpToDate=False, OutsideWindow: {told}" in bench.run("explain", "orders").out


def test_status_of_a_group_that_the_operator_has_not_seen(bench: Bench) -> None:
    bench.create_group(status={})
    text = bench.must("status", "orders")
    assert "master NONE" in text
    assert "durability unknown" in text


def test_status_wide_and_whole(bench: Bench) -> None:
    bench.create_group()
    assert "node-3" in bench.must("status", "orders", "-o", "wide")
    assert json.loads(bench.must("status", "orders", "-o", "json"))["status"]["master"]["epoch"] == 5
    assert yaml.safe_load(bench.must("status", "orders", "-o", "yaml"))["metadata"]["name"] == "orders"


def test_status_without_a_name_lists(bench: Bench) -> None:
    bench.create_group()
    bench.create_group("second", status={})
    header, first, second = bench.must("status").splitlines()
    assert header.split() == ["NAME", "REPLICAS", "READY", "MASTER", "EPOCH", "IN-SYNC", "SAFE", "STATUS", "AGE"]
    assert first.split()[:8] == ["orders", "3", "3", "2", "5", "2", "False", "MembersOutOfSync"]
    assert second.split()[:3] == ["second", "3", "-"]
    assert f"{bench.namespace}   orders" in bench.must("status", "-A")
    assert "LAST-FAILOVER" in bench.must("status", "-o", "wide")
    assert len(json.loads(bench.must("status", "-o", "json"))["items"]) == 2


def test_the_namespace_is_the_contexts_unless_named(bench: Bench) -> None:
    bench.create_group()
    assert bench.run("status", "orders", "--context", "elsewhere").code == 3
    assert bench.run("status", "orders", "-n", "default").code == 3
    assert bench.run("status", "orders", "--context", "elsewhere", "-n", bench.namespace).code == 0
    assert bench.run("status", "--kubeconfig", str(bench.kubeconfig)).code == 0
    assert bench.run("status", "orders", "-A").code == 2


def test_a_watch_shows_every_change_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.create_group()
    monkeypatch.setenv("KUBECONFIG", str(bench.kubeconfig))
    pages: list[int] = []

    class EnoughError(Exception):
        """The third page is there."""

    def render(group: dict[str, Any]) -> str:
        epoch = int(group["status"]["syncStateSet"]["epoch"])
        if not pages:
            threading.Thread(target=change).start()
        pages.append(epoch)
        if epoch == 11:
            raise EnoughError
        return f"epoch {epoch}"

    def change() -> None:
        for epoch in (10, 11):
            bench.set_status(BrokerGroup, "orders", {"syncStateSet": {"brokerIds": [1, 2], "epoch": epoch}})

    def watch() -> None:
        try:
            show(Cluster(), "orders", render, watch=True)
        except EnoughError:
            return

    thread = threading.Thread(target=watch)
    thread.start()
    thread.join(DEADLINE_SECONDS)
    assert not thread.is_alive()
    assert pages == [9, 10, 11]


def test_history_is_failovers_and_operations_the_latest_first(bench: Bench) -> None:
    bench.create_group()
    bench.create(BrokerGroupOperation, "move", spec=SWITCHOVER)
    result = {"message": "done", "fromBrokerId": 2, "toBrokerId": 1, "epoch": 6, "milliseconds": 80}
    status = {"phase": "Succeeded", "startedAt": "2026-02-01T00:00:00Z", "result": result}
    bench.set_status(BrokerGroupOperation, "move", status)
    header, move, failover = bench.must("history", "orders").splitlines()
    assert header.split() == ["TIME", "WHAT", "OUTCOME", "FROM", "TO", "EPOCH", "MS", "MESSAGE", "INCIDENT"]
    assert move.split()[:7] == ["2026-02-01T00:00:00Z", "Switchover", "Succeeded", "2", "1", "6", "80"]
    assert failover.split()[1:7] == ["Failover", "Completed", "1", "2", "5", "41"]
    assert len(json.loads(bench.must("history", "orders", "-o", "json"))) == 2


def test_lag(bench: Bench) -> None:
    bench.create_group()
    expected = [["0", "B"], ["0", "B"], ["3.0", "MiB"]]
    assert [line.split()[-2:] for line in bench.must("lag", "orders").splitlines()[1:]] == expected
    assert [in_units(value) for value in (None, 0, 1023, 1536, 5 * 2**40, 2**60)] == [
        None, "0 B", "1023 B", "1.5 KiB", "5.0 TiB", "1048576.0 TiB",
    ]  # fmt: skip


def test_how_old_the_page_is_stands_on_it() -> None:
    """An operator that is gone leaves its last status for ever, and the page looked healthy."""
    assert f"\n  {HERE.message}\n" in page(group(), [], heard=HERE) + "\n"
    assert f"\n! {AWAY.message}\n" in page(group(), [], heard=AWAY) + "\n"


def test_the_status_says_when_it_was_written() -> None:
    written = group()
    written["metadata"]["managedFields"] = [
        {"manager": "operator", "subresource": "status", "time": "2026-01-02T00:00:00Z"},
        {"manager": "operator", "subresource": "status", "time": "2026-01-01T00:00:00Z"},
        {"manager": "kubectl", "time": "2999-01-01T00:00:00Z"},
    ]
    assert status_written(written["metadata"]) == "2026-01-02T00:00:00Z"
    assert "d ago, and holds" in page(written, [], heard=HERE)
    assert "d ago, and nothing proves that it still holds" in page(written, [], heard=AWAY)
    assert "status written" not in page(group(), [], heard=HERE)


def test_status_watches_all_groups(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.create_group()
    refused = bench.run("status", "-w", "-o", "json")
    assert refused.code == 2
    assert "expected -o table or -o wide" in refused.err
    asked: list[bool] = []

    def once(self: Cluster, *, everywhere: bool, quiet_seconds: int) -> Any:
        assert quiet_seconds > 60, "no terminal, so no page without news"
        asked.append(everywhere)
        yield self.groups(everywhere=everywhere)
        raise PluginError("the API went away")

    monkeypatch.setattr(Cluster, "follow_all", once)
    said = bench.run("status", "-w")
    assert asked == [False]
    assert (said.code, "the API went away" in said.err) == (1, True)
