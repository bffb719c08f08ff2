"""When the master may be lost, when mastership moves although nothing is broken, and which pods may be evicted."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.api.durability import effective_durability
from brokergroup_operator.observe.group_view import MetadataDifference, MetadataKind
from brokergroup_operator.observe.timeline import Cause, Kind
from brokergroup_operator.reconcile.decide.failover_safe import candidates_needed, failover_safe
from brokergroup_operator.reconcile.plan import SwitchMaster
from brokergroup_operator.reconcile.render.children import build_disruption_budgets
from brokergroup_operator.reconcile.see.observed import is_draining
from controller_core.model import LiveReplica
from tests.reconcile import builders as b
from tests.reconcile import cases as c
from tests.reconcile.cases import lines_of, run

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.see.observed import Observed


LACKING = (MetadataDifference(2, MetadataKind.TOPIC, "payments"),)
WITHOUT_AN_OFFSET = (MetadataDifference(2, MetadataKind.CONSUMER_OFFSET, "payments@billing"),)
OLDER_OFFSETS = tuple(
    MetadataDifference(one, MetadataKind.CONSUMER_OFFSET, "payments@billing", only_older=True) for one in (2, 3)
)
TWO = {"replicas": 2}
CASES: list[tuple[str, Observed, tuple[str, str]]] = [
    ("all in order", c.settled(), ("True", "EnoughCandidates")),
    ("nothing is known", replace(c.settled(), snapshot=None), ("False", "NoMaster")),
    ("no record", replace(c.settled(), record=None), ("False", "NoMaster")),
    ("no master", c.seen_with(c.settled(), b.record(master=None)), ("False", "NoMaster")),
    ("failing over", c.live(c.settled(), 1, 2, 3, in_progress=c.failing_over()), ("False", "FailingOver")),
    ("not confirmed", c.live(c.settled(), 1, 2, 3, writable=False), ("False", "MasterNotReady")),
    ("too few members acknowledge", c.live(c.settled(), 1, writable=False), ("False", "NotEnoughInSyncReplicas")),
    ("an epoch jump", c.live(c.settled(), 1, 2, 3, epoch_jump=99999), ("False", "EpochFarAboveRecord")),
    ("a slave is silent", c.live(c.settled(), 1, 2), ("False", "NotEnoughCandidates")),
    ("a slave lags", c.seen_with(c.settled(), b.record(in_sync=(1, 2))), ("False", "NotEnoughCandidates")),
    ("a slave's pod is not ready", c.not_ready(c.settled(), "orders-3"), ("False", "NotEnoughCandidates")),
    ("a slave's pod is going", c.going(c.settled(), "orders-3"), ("False", "NotEnoughCandidates")),
    ("a slave's pod is missing", c.without_pods(c.settled(), "orders-3"), ("False", "NotEnoughCandidates")),
    ("a slave is not linked", c.live(c.settled(), 1, 2, 3, unlinked=frozenset({3})), ("False", "MembersNotLinked")),
    ("a slave lacks a topic", c.live(c.settled(), 1, 2, 3, metadata_diverged=LACKING), ("False", "MetadataDiverged")),
    (
        "a slave lacks an offset: its consumer may skip messages",
        c.live(c.settled(), 1, 2, 3, metadata_diverged=WITHOUT_AN_OFFSET), ("False", "MetadataDiverged"),
    ),
    (
        "the offsets of all slaves are older: messages come again, and none is lost",
        c.live(c.settled(), 1, 2, 3, metadata_diverged=OLDER_OFFSETS), ("True", "EnoughCandidates"),
    ),
    ("a slave of priority 0 is a copy to acknowledge with", c.barred(3), ("True", "EnoughCandidates")),
    ("no other slave is there", c.live(c.barred(3), 1, 3), ("False", "NotEnoughCandidates")),
    ("it is not there", c.live(c.barred(3), 1, 2), ("False", "NotEnoughCandidates")),
    ("it is not linked", c.live(c.barred(3), 1, 2, 3, unlinked=frozenset({3})), ("False", "MembersNotLinked")),
    ("the other candidate lacks a topic", c.live(c.barred(3), 1, 2, 3, metadata_diverged=LACKING), ("False", "MetadataDiverged")),
    (
        "what it lacks itself does not matter: it is never master", c.live(c.barred(2), 1, 2, 3, metadata_diverged=LACKING),
        ("True", "EnoughCandidates"),
    ),
    ("no slave may be master", c.barred(2, 3), ("False", "NobodyMayFollow")),
    ("no member at all may be", c.barred(1, 2, 3), ("False", "NobodyMayFollow")),
    ("no slave may be master, and one is silent", c.live(c.barred(2, 3), 1, 2), ("False", "NotEnoughCandidates")),
    ("the slave of two may not be master", c.barred(2, **TWO), ("False", "NobodyMayFollow")),
    ("two copies of five and one that may follow", c.barred(2, 3, 4, replicas=5), ("True", "EnoughCandidates")),
    (
        "copies enough, and the candidate is silent", c.live(c.barred(2, 3, 4, replicas=5), 1, 2, 3, 4),
        ("False", "NotEnoughCandidates"),
    ),
    (
        "Available needs one", c.seen_with(c.settled(durability="Available"), b.record(in_sync=(1, 2))),
        ("True", "EnoughCandidates"),
    ),
    ("two replicas, Available", c.settled(**TWO), ("True", "EnoughCandidates")),
    ("two replicas, Strict: nothing more can be had", c.settled(**TWO, durability="Strict"), ("True", "EnoughCandidates")),
    ("two replicas, one silent", c.live(c.settled(**TWO), 1), ("False", "NotEnoughCandidates")),
    ("one replica", c.settled(replicas=1), ("False", "NotEnoughCandidates")),
    ("Strict on five, two are lost", c.live(c.settled(replicas=5), 1, 2, 3), ("True", "EnoughCandidates")),
    ("Strict on five, three are lost", c.live(c.settled(replicas=5), 1, 2), ("False", "NotEnoughCandidates")),
]  # fmt: skip


@pytest.mark.parametrize(("seen", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_failover_safe(seen: Observed, expected: tuple[str, str]) -> None:
    verdict = failover_safe(seen)
    assert (verdict.status.value, verdict.reason.value) == expected


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        (c.barred(3), "Beside master 1, 2 can take over, 3 (priority 0) can acknowledge; 2 needed"),
        (c.live(c.barred(3), 1, 3), "there is 3 (priority 0); broker 2: not heard by any controller"),
        (c.live(c.settled(), 1), "there is none; broker 2: not heard by any controller; broker 3: not heard by any controller"),
        (c.barred(2, 3), "give one of them another priority in spec.failover.priorities"),
    ],
)  # fmt: skip
def test_the_message_distinguishes_candidates_from_members_that_only_acknowledge(seen: Observed, told: str) -> None:
    assert failover_safe(seen).message.endswith(told)


def test_a_broker_from_elsewhere_counts_by_its_heartbeats() -> None:
    """It has no pod of this operator."""
    seen = c.settled(durability="Available")
    record = b.record(in_sync=(1, 4), replicas=4)
    replicas = {**record.replicas, 4: replace(record.replicas[4], reserved_for="")}
    assert failover_safe(c.seen_with(seen, replace(record, replicas=replicas))).status.value == "True"


@pytest.mark.parametrize(
    ("spec", "durability", "needed"),
    [
        ({"replicas": 1}, "Available", 1),
        ({"replicas": 2}, "Available", 1),
        ({"replicas": 3, "durability": "Available"}, "Available", 1),
        ({"replicas": 2, "durability": "Strict"}, "Strict", 1),
        ({"replicas": 3}, "Strict", 2),
        ({"replicas": 5}, "Strict", 2),
        # Only voters count.
        ({"replicas": 3, "replication": {"learners": 1}}, "Available", 1),
        ({"replicas": 3, "durability": "Strict", "replication": {"learners": 1}}, "Strict", 1),
        ({"replicas": 4, "replication": {"learners": 1}}, "Strict", 2),
        ({"replicas": 5, "replication": {"learners": 3}}, "Available", 1),
    ],
)
def test_how_many_are_needed(spec: dict[str, Any], durability: str, needed: int) -> None:
    found = b.group(**spec).spec
    assert (effective_durability(found).value, candidates_needed(found)) == (durability, needed)


@pytest.mark.parametrize(
    ("spec", "draining"),
    [
        ({}, False),
        ({"unschedulable": True}, True),
        ({"taints": [{"key": "dedicated", "value": "mq", "effect": "NoSchedule"}]}, False),
        ({"taints": [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]}, True),
        ({"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]}, True),
    ],
)
def test_which_nodes_are_being_drained(spec: dict[str, Any], draining: bool) -> None:
    assert is_draining(c.node("n", **spec)) is draining


def test_no_pod_is_under_both() -> None:
    """The eviction API refuses a pod under two budgets altogether."""
    budgets = build_disruption_budgets(b.group(), open_for_one=True)
    roles = [one["spec"]["selector"]["matchLabels"][names.LABEL_ROLE] for one in budgets]
    assert sorted(roles) == sorted([names.ROLE_MASTER, names.ROLE_SLAVE])


def test_the_slaves_budget_closes_when_the_group_is_not_safe() -> None:
    [(name, closed)] = c.applied(c.live(c.settled(), 1, 2), "PodDisruptionBudget").items()
    assert (name, closed["spec"]["minAvailable"] > 100) == ("orders", True)


def test_the_spec_bars_members_whatever_their_heartbeats_say() -> None:
    """As in an election: a priority of the spec wins over the broker's own."""
    heard = {broker_id: LiveReplica(broker_id=broker_id, epoch=7, election_priority=0) for broker_id in (1, 2, 3)}

    def verdict(*allowed: int) -> str:
        seen = c.settled(failover={"priorities": [{"brokerId": one, "priority": 1} for one in allowed]})
        return failover_safe(c.seeing(seen, live=heard)).status.value

    assert (verdict(), verdict(2, 3)) == ("False", "True")


CORDONED = c.node("node-1", unschedulable=True)
FINE = {"node_2": c.node("node-2"), "node_3": c.node("node-3")}
PREFER_3 = {"failover": {"preferredMaster": 3}}
ZERO_1 = [{"brokerId": 1, "priority": 0}]
ZERO_2_3 = [{"brokerId": 2, "priority": 0}, {"brokerId": 3, "priority": 0}]
BARRED_MASTER = c.settled(failover={"priorities": ZERO_1})


MOVES: list[tuple[str, Observed, list[str]]] = [
    ("nodes are fine", c.on_nodes(c.settled(), node_1=c.node("node-1"), **FINE), []),
    ("nodes can't be read", c.on_nodes(c.settled()), []),
    ("the master's node is drained", c.on_nodes(c.settled(), node_1=CORDONED, **FINE), ["switch orders-1 to 2"]),
    (
        "not to another node that is drained",
        c.on_nodes(c.settled(), node_1=CORDONED, node_2=c.node("node-2", unschedulable=True), node_3=FINE["node_3"]),
        ["switch orders-1 to 3"],
    ),
    (
        "all nodes are drained",
        c.on_nodes(c.settled(), **{f"node_{n}": c.node(f"node-{n}", unschedulable=True) for n in (1, 2, 3)}), [],
    ),
    (
        "a drain has evicted a slave of the same node first: one member elsewhere is enough",
        c.on_nodes(c.live(c.settled(), 1, 2), node_1=CORDONED, **FINE), ["switch orders-1 to 2"],
    ),
    ("no member on another node is alive", c.on_nodes(c.live(c.settled(), 1), node_1=CORDONED, **FINE), []),
    (
        "only a member of a drained node is left",
        c.on_nodes(c.live(c.settled(), 1, 2), node_1=CORDONED, node_2=c.node("node-2", unschedulable=True)), [],
    ),
    (
        "it is being moved already",
        c.on_nodes(
            c.live(c.settled(), 1, 2, in_progress=replace(c.failing_over(), kind=Kind.SWITCHOVER)),
            node_1=CORDONED,
            **FINE,
        ),
        [],
    ),
    ("a preference needs a whole group", c.live(c.settled(**PREFER_3), 1, 3), []),
    ("a slave's node is drained: it may be evicted", c.on_nodes(c.settled(), node_2=c.node("node-2", unschedulable=True)), []),
    ("another master is preferred", c.settled(**PREFER_3), ["switch orders-1 to 3"]),
    ("the preferred one is master", c.seen_with(c.settled(**PREFER_3), b.record(master=3)), []),
    ("the preferred one is not in sync", c.seen_with(c.settled(**PREFER_3), b.record(in_sync=(1, 2))), []),
    ("the preferred one is on a drained node", c.on_nodes(c.settled(**PREFER_3), node_3=c.node("node-3", unschedulable=True)), []),
    (
        "the preferred one is updated first, as a slave", c.outdated(c.settled(**PREFER_3), "orders-1", "orders-3"),
        ["replace orders-3"],
    ),
    (
        "an update takes it from the preferred one",
        c.seen_with(c.outdated(c.settled(**PREFER_3), "orders-3"), b.record(master=3)), ["switch orders-3"],
    ),
    (
        "and does not give it back before that one is updated",
        c.seen_with(c.outdated(c.settled(**PREFER_3), "orders-3"), b.record(master=2)), ["replace orders-3"],
    ),
    (
        "an update that waits for a person keeps no member from being master",
        c.outdated(c.settled(**PREFER_3, updateStrategy={"type": "OnDelete"})), ["switch orders-1 to 3"],
    ),
    ("the master may not be one any more", BARRED_MASTER, ["switch orders-1 to 2"]),
    ("no other may be either", c.settled(failover={"priorities": [*ZERO_1, *ZERO_2_3]}), []),
    ("it may not be one, and it is not safe", c.live(BARRED_MASTER, 1, 2), []),
    ("it hands over to an updated member", c.outdated(BARRED_MASTER, "orders-1", "orders-2"), ["switch orders-1 to 3"]),
    ("and not to one that the update would stop", c.outdated(BARRED_MASTER), ["replace orders-2"]),
    ("a drain comes before an update", c.on_nodes(c.outdated(c.settled()), node_1=CORDONED, **FINE), ["switch orders-1 to 2"]),
]  # fmt: skip


@pytest.mark.parametrize(("seen", "expected"), [case[1:] for case in MOVES], ids=[case[0] for case in MOVES])
def test_next_step(seen: Observed, expected: list[str]) -> None:
    assert c.steps(seen) == expected


@pytest.mark.parametrize(
    ("seen", "cause"),
    [
        (c.on_nodes(c.settled(), node_1=CORDONED, **FINE), Cause.DRAIN),
        (c.outdated(c.settled(), "orders-1"), Cause.ROLLING_UPGRADE),
        (c.settled(**PREFER_3), Cause.PLANNED_SWITCHOVER),
    ],
)
def test_a_move_of_mastership_has_a_cause_that_the_controller_gets(seen: Observed, cause: Cause) -> None:
    [action] = c.actions(seen, SwitchMaster)
    assert action.cause is cause


def test_a_drain_without_a_candidate_is_reported() -> None:
    moving = c.course(c.on_nodes(c.live(c.settled(), 1), node_1=CORDONED, **FINE)).moving
    assert moving is not None
    assert moving.verb.value == "refuse"
    assert "orders-1 is being drained, and no member elsewhere can take over" in moving.why


def allowed(replicas: int, *, open_for_one: bool, master: bool, healthy: int) -> int:
    """disruptionsAllowed of the budget that selects such a pod, of which `healthy` are ready: minAvailable is a number of pods."""
    role = names.ROLE_MASTER if master else names.ROLE_SLAVE
    both = build_disruption_budgets(b.group(replicas=replicas), open_for_one=open_for_one)
    [budget] = [one for one in both if one["spec"]["selector"]["matchLabels"][names.LABEL_ROLE] == role]
    return max(0, healthy - int(budget["spec"]["minAvailable"]))


@pytest.mark.parametrize(
    ("replicas", "open_for_one", "master", "healthy", "expected"),
    [
        (3, True, False, 2, 1),
        (3, True, False, 1, 0),
        (3, False, False, 2, 0),
        (5, True, False, 4, 1),
        (2, True, False, 1, 1),
        (3, True, True, 1, 0),
        (1, False, True, 1, 0),
    ],
    ids=["one of two", "one is away", "not safe", "one of four", "the only slave", "the master", "a group of one"],
)
def test_which_pods_may_be_evicted(
    replicas: int, open_for_one: bool, master: bool, healthy: int, expected: int
) -> None:
    assert allowed(replicas, open_for_one=open_for_one, master=master, healthy=healthy) == expected


def test_budgets_can_be_switched_off() -> None:
    seen = c.wishing(c.settled(), disruptionBudget={"enabled": False})
    assert lines_of(run(seen)) == ["delete PodDisruptionBudget orders", "delete PodDisruptionBudget orders.master"]
    assert lines_of(run(b.changed(seen, disruption_budgets={}))) == []
    of_a_user = {"ours": seen.disruption_budgets["orders"]}
    assert lines_of(run(b.changed(seen, disruption_budgets=of_a_user))) == []


def test_no_two_groups_share_a_budget() -> None:
    """`a` and `a-master` in one namespace would take each other's budget away, again and again."""
    both = (names.disruption_budget_name, names.master_disruption_budget_name)
    found = [budget(group) for group in ("a", "a-master", "a-slave", "a-1") for budget in both]
    assert len(set(found)) == len(found)
