"""status, lag, history and explain: what they show of a group and of its operator."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
import yaml

from brokergroup_operator.api.brokergroup_status import Reason
from brokergroup_operator.api.names import ANNOTATION_OPERATOR
from brokergroup_operator.kubectl.cluster import BrokerGroup, BrokerGroupOperation, Cluster, Kind, Lease
from brokergroup_operator.kubectl.command_line import ForbiddenError
from brokergroup_operator.kubectl.explain import STALLED_ADVICE, explanation
from brokergroup_operator.kubectl.its_operator import Heartbeat, Presence
from brokergroup_operator.kubectl.printing import in_units, show
from brokergroup_operator.kubectl.status import page, status_written
from tests.kubectl.bench import DEADLINE_SECONDS, STATUS, TOO_FEW, Bench

SWITCHOVER = {"brokerGroupRef": {"name": "orders"}, "type": "Switchover", "switchover": {}}


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
    assert [line.split()[-2:] for line in bench.must("lag", "orders").splitlines()[1:]] == [
        ["0", "B"],
        ["0", "B"],
        ["3.0", "MiB"],
    ]
    assert [in_units(value) for value in (None, 0, 1023, 1536, 5 * 2**40, 2**60)] == [
        None, "0 B", "1023 B", "1.5 KiB", "5.0 TiB", "1048576.0 TiB",
    ]  # fmt: skip


def test_explain_says_who_is_in_the_way_and_what_helps(bench: Bench) -> None:
    bench.create_group(replicas=4, maintenance={"paused": True})
    said = bench.run("explain", "orders")
    assert said.code == 1
    assert said.out.splitlines()[1] == f"orders is NOT FailoverSafe: NotEnoughCandidates: {TOO_FEW}"
    assert "broker 3 is CatchingUp: it copies what it lacks: kubectl brokergroup lag orders -w" in said.out
    assert "1 of 4 members do not exist yet" in said.out
    assert "Ready=False, MembersOutOfSync" in said.out


def test_explain_of_a_safe_group_and_of_one_that_nobody_has_judged() -> None:
    metadata = {"name": "orders", "generation": 2}
    safe = {"type": "FailoverSafe", "status": "True", "reason": "EnoughCandidates", "message": "2 needed"}
    paused = {"type": "Paused", "status": "True", "reason": "BySpec", "message": "spec.maintenance.paused"}
    master = {"brokerId": 1, "epoch": 1}
    status = {"observedGeneration": 1, "master": master, "conditions": [safe, paused]}
    judged = {"metadata": metadata, "spec": {"replicas": 0}, "status": status}
    assert list(explanation(judged, doubt="its Lease is gone"))[:2] == [
        "orders: its Lease is gone",
        "orders WAS FailoverSafe: 2 needed",
    ]
    assert list(explanation(judged)) == [
        "orders is FailoverSafe: 2 needed",
        "  the status is about generation 1 of the spec, which is at 2: the operator is behind",
        "  Paused=True, BySpec: spec.maintenance.paused",
        "    -> kubectl brokergroup resume orders",
    ]
    unknown = list(explanation({"metadata": metadata, "spec": {"replicas": 1}}))
    assert unknown[0] == "orders is not known to be FailoverSafe: the operator has not judged it yet; does it run?"
    assert unknown[2] == "  1 of 1 members do not exist yet"


RENEWED: dict[str, Any] = {"holderIdentity": "operator-1", "leaseDurationSeconds": 3}


@pytest.mark.parametrize(
    ("lease", "told"),
    [
        (None, "orders: operator {}/its-lease is away (its Lease is gone)"),
        ({"leaseDurationSeconds": 3}, "orders: operator {}/its-lease is away (its Lease has no holder)"),
        (
            RENEWED | {"renewTime": "2026-01-01T00:00:00.000000Z"},
            "orders: operator {}/its-lease is away (its Lease was last renewed",
        ),
        (RENEWED | {"renewTime": "2999-01-01T00:00:00.000000Z"}, "orders is NOT FailoverSafe"),
    ],
    ids=["no Lease", "given back", "long ago", "now"],
)
def test_explain_says_first_that_the_operator_is_away(bench: Bench, lease: dict[str, Any] | None, told: str) -> None:
    """The last status of an operator that is gone stays for ever."""
    bench.create_group()
    annotations = {ANNOTATION_OPERATOR: f"{bench.namespace}/its-lease"}
    bench.api("PATCH", bench.path(BrokerGroup, "orders"), {"metadata": {"annotations": annotations}})
    if lease is not None:
        bench.create(Lease, "its-lease", spec=lease)
    said = bench.run("explain", "orders")
    assert said.code == 1
    assert said.out.splitlines()[0].startswith(told.format(bench.namespace))
    hand_over = f"kubectl annotate -n {bench.namespace} brokergroup orders brokergroup.dev/operator-"
    assert (hand_over in said.out) == ("is away" in told)


SAFE_STATUS: dict[str, Any] = STATUS | {
    "conditions": [
        {
            "type": "FailoverSafe", "status": "True", "reason": "EnoughCandidates", "message": "1 can take over",
            "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1,
        }
    ]
}  # fmt: skip


def take(bench: Bench, holder: str) -> None:
    annotations = {ANNOTATION_OPERATOR: holder}
    bench.api("PATCH", bench.path(BrokerGroup, "orders"), {"metadata": {"annotations": annotations}})


def test_explain_of_a_safe_group_needs_a_heartbeat(bench: Bench) -> None:
    """On a real cluster it said "is FailoverSafe" and exited 0 with no operator running."""
    bench.create_group(status=SAFE_STATUS)
    said = bench.run("explain", "orders")
    assert (said.code, said.out.splitlines()[1]) == (9, "orders WAS FailoverSafe: 1 can take over")
    assert "no Lease is named on this group" in said.out

    take(bench, f"{bench.namespace}/its-lease")
    said = bench.run("explain", "orders")
    assert (said.code, said.out.splitlines()[1]) == (9, "orders WAS FailoverSafe: 1 can take over")
    assert f"! operator {bench.namespace}/its-lease is away (its Lease is gone)" in bench.run("status", "orders").out
    assert f"! operator {bench.namespace}/its-lease is away (its Lease is gone)" in bench.run("status").err

    bench.create(Lease, "its-lease", spec=RENEWED | {"renewTime": "2999-01-01T00:00:00.000000Z"})
    said = bench.run("explain", "orders")
    assert (said.code, said.out.splitlines()[0]) == (0, "orders is FailoverSafe: 1 can take over")
    assert f"  operator {bench.namespace}/its-lease renewed its Lease 0s ago (operator-1)" in bench.must(
        "status", "orders"
    )
    assert bench.run("status").err == ""


def test_explain_of_who_may_not_read_leases_says_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most users with the right to view a group lack it for the Lease, which is in the operator's namespace."""
    bench.create_group(status=SAFE_STATUS)
    take(bench, "elsewhere/its-lease")
    get = Cluster.get

    def refused(self: Cluster, kind: Kind, name: str, *, namespace: str | None = None) -> dict[str, Any]:
        if kind == Lease:
            raise ForbiddenError("leases elsewhere/its-lease: you may not")
        return get(self, kind, name, namespace=namespace)

    monkeypatch.setattr(Cluster, "get", refused)
    said = bench.run("explain", "orders")
    assert said.out.startswith("orders: you may not read the Lease of operator elsewhere/its-lease, so nothing proves")
    assert said.code == 9
    assert "! you may not read the Lease of operator elsewhere/its-lease" in bench.must("status", "orders")


def test_explain_of_a_group_that_nobody_has_taken(bench: Bench) -> None:
    bench.create_group(status={})
    first, second, *_ = bench.run("explain", "orders").out.splitlines()
    serves = f"orders: no operator has taken this group: does one run that serves namespace {bench.namespace}? "
    assert first == serves + "kubectl get pods -A -l brokergroup.dev/component=operator"
    assert second.startswith("orders is not known to be FailoverSafe")


@pytest.mark.parametrize(
    ("reason", "helps"),
    [
        ("ImageUnavailable", "name an image that can be pulled"),
        ("ReferenceMissing", "create what is missing"),
        ("PodStuckTerminating", ""),  # its message says both ways out
    ],
)
def test_explain_names_what_the_group_is_stalled_on_first(bench: Bench, reason: str, helps: str) -> None:
    stalled = {
        "type": "Stalled", "status": "True", "reason": reason, "message": "Pod orders-3: so it is",
        "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1,
    }  # fmt: skip
    bench.create_group(status=STATUS | {"conditions": [*STATUS["conditions"], stalled]})
    _, *lines = bench.run("explain", "orders").out.splitlines()
    assert lines[0] == f"orders is stalled: {reason}: Pod orders-3: so it is"
    assert lines[1].startswith(f"  -> {helps}" if helps else "orders is NOT FailoverSafe")
    assert len([line for line in lines if "so it is" in line]) == 1


def test_every_reason_to_be_stalled_has_advice_or_says_itself_what_helps() -> None:
    everything = list(Reason)
    block = everything[everything.index(Reason.ROLLOUT_STUCK) : everything.index(Reason.BY_SPEC)]
    of_stalled = {
        Reason.INVALID_SPEC.value,
        Reason.NOBODY_MAY_FOLLOW.value,
        Reason.MEMBERS_NOT_HEARD.value,
        *(reason.value for reason in block),
    }
    assert set(STALLED_ADVICE) == of_stalled - {"PodStuckTerminating"}


def group(**annotations: str) -> dict[str, Any]:
    metadata = {"namespace": "shop", "name": "orders", "annotations": annotations}
    return {"metadata": metadata, "spec": {"replicas": 3}, "status": {}}


HERE = Heartbeat(Presence.HERE, "operator old/brokergroup-operator renewed its Lease 1s ago (brokergroup-operator-0)")
AWAY = Heartbeat(Presence.AWAY, "operator old/brokergroup-operator is away (its Lease is gone)")


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
