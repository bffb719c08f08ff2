"""The plugin's explain: what keeps a group from being FailoverSafe, and whether its operator is alive."""

from __future__ import annotations

from typing import Any

import pytest

from brokergroup_operator.api.brokergroup_status import Reason
from brokergroup_operator.api.names import ANNOTATION_OPERATOR, API_VERSION
from brokergroup_operator.kubectl.cluster import BrokerGroup, Cluster, Kind, Lease
from brokergroup_operator.kubectl.command_line import ForbiddenError
from brokergroup_operator.kubectl.explain import STALLED_ADVICE, explanation
from tests.kubectl.bench import STATUS, TOO_FEW, Bench

RENEWED: dict[str, Any] = {"holderIdentity": "operator-1", "leaseDurationSeconds": 3}
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


def test_explain_names_the_member_in_the_way_and_what_helps(bench: Bench) -> None:
    bench.create_group(replicas=4, maintenance={"paused": True})
    said = bench.run("explain", "orders")
    assert said.code == 1
    assert said.out.splitlines()[1] == f"orders is NOT FailoverSafe: NotEnoughCandidates: {TOO_FEW}"
    assert "broker 3 is CatchingUp: it copies what it lacks: kubectl brokergroup lag orders -w" in said.out
    assert "1 of 4 members do not exist yet" in said.out
    assert "Ready=False, MembersOutOfSync" in said.out


def test_explain_of_a_safe_group_and_of_one_that_no_operator_has_judged() -> None:
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


def test_explain_says_that_its_user_may_not_read_leases(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_explain_of_a_group_that_no_operator_has_taken(bench: Bench) -> None:
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
