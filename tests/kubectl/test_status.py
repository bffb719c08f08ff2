"""The plugin's status, explain and top: a group in one look, and all groups, worst first."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from brokergroup_operator.api.brokergroup_status import Reason
from brokergroup_operator.api.names import ANNOTATION_OPERATOR, API_VERSION
from brokergroup_operator.kubectl.cluster import BrokerGroup, BrokerGroupOperation, Cluster, Kind, Lease
from brokergroup_operator.kubectl.command_line import ForbiddenError, PluginError
from brokergroup_operator.kubectl.explain import STALLED_ADVICE, explanation
from brokergroup_operator.kubectl.its_operator import Heartbeat, Presence
from brokergroup_operator.kubectl.printing import in_units, show, show_all
from brokergroup_operator.kubectl.status import ABNORMAL, page, status_written
from brokergroup_operator.kubectl.top import standing_of, top_page
from tests.kubectl.bench import DEADLINE_SECONDS, STATUS, TOO_FEW, Bench

if TYPE_CHECKING:
    from collections.abc import Callable


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
    expected = ["orders: its Lease is gone", "orders WAS FailoverSafe: 2 needed"]
    assert list(explanation(judged, doubt="its Lease is gone"))[:2] == expected
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
    take(bench, f"{bench.namespace}/its-lease")
    if lease is not None:
        bench.create(Lease, "its-lease", spec=lease)
    said = bench.run("explain", "orders")
    assert said.code == 1
    assert said.out.splitlines()[0].startswith(told.format(bench.namespace))
    hand_over = f"kubectl annotate -n {bench.namespace} brokergroup orders brokergroup.dev/operator-"
    assert (hand_over in said.out) == ("is away" in told)


def test_the_command_that_hands_a_group_over_hands_its_cluster_over_too(bench: Bench) -> None:
    """The operator that is gone has the RocketMQCluster too: a new one would leave its NameServers and proxies alone."""
    place = f"/apis/{API_VERSION}/namespaces/{bench.namespace}/rocketmqclusters"
    cluster = bench.api("POST", place, {"metadata": {"name": "shop"}, "spec": {}})
    uid = cluster["metadata"]["uid"]
    owner = {"apiVersion": API_VERSION, "kind": "RocketMQCluster", "name": "shop", "uid": uid, "controller": True}
    bench.create_group()
    bench.api("PATCH", bench.path(BrokerGroup, "orders"), {"metadata": {"ownerReferences": [owner]}})
    take(bench, f"{bench.namespace}/its-lease")
    command = f"kubectl annotate -n {bench.namespace} rocketmqcluster/shop brokergroup/orders brokergroup.dev/operator-"
    assert command in bench.run("explain", "orders").out


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
        Reason.AUTHORITIES_HELD.value,
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


WELL = {"Available": "True", "FailoverSafe": "True", "Ready": "True", "Reconciling": "False", "Stalled": "False"}


def conditions(**changes: str) -> list[dict[str, str]]:
    states = {**WELL, **changes}
    return [
        {"type": kind, "status": status, "reason": f"{kind}Reason", "message": f"why {kind}"}
        for kind, status in states.items()
    ]


def in_shop(name: str, **changes: str) -> dict[str, Any]:
    status = {**STATUS, "conditions": conditions(**changes)}
    return {"metadata": {"namespace": "shop", "name": name}, "spec": {"replicas": 3}, "status": status}


@pytest.mark.parametrize(
    ("changes", "word", "why"),
    [
        ({}, "well", ""),
        ({"Available": "False", "FailoverSafe": "False", "Stalled": "True"}, "no writes", "AvailableReason: why Available"),
        ({"Unfenced": "True", "FailoverSafe": "False"}, "needs a person", "UnfencedReason: why Unfenced"),
        ({"FailoverSafe": "False", "Reconciling": "True"}, "not safe to lose a member", "FailoverSafeReason: why FailoverSafe"),
        ({"FailoverSafe": "Unknown", "Reconciling": "True"}, "under way", "ReconcilingReason: why Reconciling"),
        ({"Hibernated": "True", "Available": "False"}, "hibernated", "HibernatedReason: why Hibernated"),
    ],
)  # fmt: skip
def test_a_group_stands_as_its_conditions_say(changes: dict[str, str], word: str, why: str) -> None:
    standing = standing_of(in_shop("orders", **changes))
    assert (standing.word, standing.why) == (word, why)


@pytest.mark.parametrize("kind", sorted(ABNORMAL))
def test_a_group_with_a_condition_that_is_worth_a_look_is_not_well(kind: str) -> None:
    standing = standing_of(in_shop("orders", **{kind: "True"}))
    assert (standing.word == "well", standing.why) == (False, f"{kind}Reason: why {kind}")


def test_worst_first_and_cut_to_the_terminal() -> None:
    unseen = {"metadata": {"namespace": "shop", "name": "unseen"}, "spec": {"replicas": 3}}
    groups = [
        in_shop("a-well"),
        in_shop("z-down", Available="False"),
        unseen,
        in_shop("b-busy", Paused="True"),
    ]
    summary, header, *lines = top_page(groups, everywhere=True).splitlines()
    assert summary == "4 groups, 1 no writes, 1 not looked at, 1 under way, 1 well"
    assert header.split() == ["GROUP", "STATE", "MASTER", "EPOCH", "IN-SYNC", "LAG", "LAST-FAILOVER", "TOOK", "WHY"]
    assert [line.split()[1] for line in lines] == ["shop/z-down", "shop/unseen", "shop/b-busy", "shop/a-well"]
    assert lines[0].split()[4:10] == ["2", "5", "2/3", "3.0", "MiB", lines[0].split()[9]]
    assert "41 ms   AvailableReason: why Available" in lines[0]
    cut = top_page(groups, everywhere=False, rows=5, width=20).splitlines()
    assert len(cut) == 5
    assert cut[-1] == "… and 2 that stand n"
    assert all(len(line) <= 20 for line in cut)


def test_top_shows_the_groups_of_the_namespace_once(bench: Bench) -> None:
    bench.create_group()
    bench.create_group("second", status={})
    summary, _, first, second = bench.must("top", "--once").splitlines()
    assert summary == "2 groups, 1 not looked at, 1 not safe to lose a member"
    assert first.split()[:4] == ["?", "second", "not", "looked"]
    assert f"NotEnoughCandidates: {TOO_FEW}" in second
    assert f"{bench.namespace}/orders" in bench.must("top", "--once", "-A")
    assert bench.run("top", "--once", "--context", "nowhere").code != 0


def test_quiet_is_told_without_reading_all_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.create_group()
    monkeypatch.setenv("KUBECONFIG", str(bench.kubeconfig))
    lists = 0
    ask = Cluster._ask

    def counted(self: Cluster, method: str, path: str, **others: Any) -> Any:
        nonlocal lists
        lists += 1
        return ask(self, method, path, **others)

    monkeypatch.setattr(Cluster, "_ask", counted)
    told = Cluster().follow_all(everywhere=False, quiet_seconds=1)
    assert [len(next(told)) for _ in range(3)] == [1, 1, 1]
    assert lists == 1
    bench.create_group("second")
    while len(next(told)) < 2:
        pass
    assert lists == 1
    told.close()


class EnoughError(Exception):
    """The expected text is on the screen."""


def drawn(bench: Bench, monkeypatch: pytest.MonkeyPatch, render: Callable[[list[dict[str, Any]]], str]) -> None:
    """Watches the namespace until the renderer has seen enough."""
    monkeypatch.setenv("KUBECONFIG", str(bench.kubeconfig))
    failed: list[Exception] = []

    def watch() -> None:
        try:
            show_all(Cluster(), render, everywhere=False, watch=True)
        except (EnoughError, PluginError) as error:
            failed.append(error)

    thread = threading.Thread(target=watch)
    thread.start()
    thread.join(DEADLINE_SECONDS)
    assert not thread.is_alive()
    assert isinstance(failed[0], EnoughError), failed


def test_what_changes_comes_and_goes_is_drawn(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each change follows once the previous one is on the screen."""
    bench.create_group()
    steps: list[tuple[set[tuple[str, int]], Callable[[], object]]] = [
        ({("orders", 5)}, lambda: bench.set_status(BrokerGroup, "orders", {"master": STATUS["master"] | {"epoch": 6}})),
        ({("orders", 6)}, lambda: bench.create_group("second")),
        ({("orders", 6), ("second", 5)}, lambda: bench.api("DELETE", bench.path(BrokerGroup, "orders"))),
        ({("second", 5)}, lambda: None),
    ]

    def render(groups: list[dict[str, Any]]) -> str:
        seen = {(one["metadata"]["name"], one.get("status", {}).get("master", {}).get("epoch", 0)) for one in groups}
        if seen == steps[0][0]:
            _, change = steps.pop(0)
            if not steps:
                raise EnoughError
            threading.Thread(target=change).start()
        return str(seen)

    drawn(bench, monkeypatch, render)


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


def test_a_top_whose_api_goes_away_ends_with_its_error(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(_: Cluster, *, everywhere: bool, quiet_seconds: int) -> Any:
        assert quiet_seconds > 0
        assert everywhere
        yield [in_shop("orders")]
        raise PluginError("the API went away")

    monkeypatch.setattr(Cluster, "follow_all", gone)
    said = bench.run("top", "-A")
    assert (said.code, "the API went away" in said.err) == (1, True)
