"""When the master may be lost: case by case, and "no" to everything that is not known."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.observe.group_view import MetadataDifference, MetadataKind
from brokergroup_operator.reconcile.decide.failover_safe import candidates_needed, failover_safe
from controller_core.model import LiveReplica
from tests.reconcile import builders as b
from tests.reconcile import cases as c

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.see.observed import Observed

LACKING = (MetadataDifference(2, MetadataKind.TOPIC, "payments"),)
TWO = {"replicas": 2}


def barred(*broker_ids: int, **spec: Any) -> Observed:
    """With priority 0."""
    return c.settled(failover={"priorities": [{"brokerId": one, "priority": 0} for one in broker_ids]}, **spec)


CASES: list[tuple[str, Observed, tuple[str, str]]] = [
    ("all in order", c.settled(), ("True", "EnoughCandidates")),
    ("nothing is known", replace(c.settled(), snapshot=None), ("False", "NoMaster")),
    ("no record", replace(c.settled(), record=None), ("False", "NoMaster")),
    ("no master", c.seen_with(c.settled(), b.record(master=None)), ("False", "NoMaster")),
    ("failing over", c.live(c.settled(), 1, 2, 3, in_progress=c.failing_over()), ("False", "FailingOver")),
    ("not confirmed", c.live(c.settled(), 1, 2, 3, writable=False), ("False", "MasterNotReady")),
    ("an epoch jump", c.live(c.settled(), 1, 2, 3, epoch_jump=99999), ("False", "EpochFarAboveRecord")),
    ("a slave is silent", c.live(c.settled(), 1, 2), ("False", "NotEnoughCandidates")),
    ("a slave lags", c.seen_with(c.settled(), b.record(in_sync=(1, 2))), ("False", "NotEnoughCandidates")),
    ("a slave's pod is not ready", c.not_ready(c.settled(), "orders-3"), ("False", "NotEnoughCandidates")),
    ("a slave's pod is going", c.going(c.settled(), "orders-3"), ("False", "NotEnoughCandidates")),
    ("a slave's pod is missing", c.without_pods(c.settled(), "orders-3"), ("False", "NotEnoughCandidates")),
    (
        "a slave is not linked",
        c.live(c.settled(), 1, 2, 3, unlinked=frozenset({3})),
        ("False", "MembersNotLinked"),
    ),
    ("a slave lacks a topic", c.live(c.settled(), 1, 2, 3, metadata_diverged=LACKING), ("False", "MetadataDiverged")),
    ("a slave of priority 0 is a copy to acknowledge with", barred(3), ("True", "EnoughCandidates")),
    ("nobody but it is there", c.live(barred(3), 1, 3), ("False", "NotEnoughCandidates")),
    ("it is not there", c.live(barred(3), 1, 2), ("False", "NotEnoughCandidates")),
    ("it is not linked", c.live(barred(3), 1, 2, 3, unlinked=frozenset({3})), ("False", "MembersNotLinked")),
    (
        "whoever else may follow lacks a topic",
        c.live(barred(3), 1, 2, 3, metadata_diverged=LACKING),
        ("False", "MetadataDiverged"),
    ),
    (
        "what it lacks itself does not matter: it is never master",
        c.live(barred(2), 1, 2, 3, metadata_diverged=LACKING),
        ("True", "EnoughCandidates"),
    ),
    ("no slave may be master", barred(2, 3), ("False", "NobodyMayFollow")),
    ("nobody at all may be", barred(1, 2, 3), ("False", "NobodyMayFollow")),
    ("no slave may be master, and one is silent", c.live(barred(2, 3), 1, 2), ("False", "NotEnoughCandidates")),
    ("the slave of two may not be master", barred(2, **TWO), ("False", "NobodyMayFollow")),
    ("two copies of five and one who may follow", barred(2, 3, 4, replicas=5), ("True", "EnoughCandidates")),
    (
        "copies enough, and who may follow is silent",
        c.live(barred(2, 3, 4, replicas=5), 1, 2, 3, 4),
        ("False", "NotEnoughCandidates"),
    ),
    (
        "Available needs one",
        c.seen_with(c.settled(durability="Available"), b.record(in_sync=(1, 2))),
        ("True", "EnoughCandidates"),
    ),
    ("two replicas, Available", c.settled(**TWO), ("True", "EnoughCandidates")),
    (
        "two replicas, Strict: nothing more can be had",
        c.settled(**TWO, durability="Strict"),
        ("True", "EnoughCandidates"),
    ),
    ("two replicas, one silent", c.live(c.settled(**TWO), 1), ("False", "NotEnoughCandidates")),
    ("one replica", c.settled(replicas=1), ("False", "NotEnoughCandidates")),
    ("Strict on five, two are lost", c.live(c.settled(replicas=5), 1, 2, 3), ("True", "EnoughCandidates")),
    ("Strict on five, three are lost", c.live(c.settled(replicas=5), 1, 2), ("False", "NotEnoughCandidates")),
]


@pytest.mark.parametrize(("seen", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_failover_safe(seen: Observed, expected: tuple[str, str]) -> None:
    verdict = failover_safe(seen)

    assert (verdict.status.value, verdict.reason.value) == expected


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        (barred(3), "Beside master 1, 2 can take over, 3 (priority 0) can acknowledge; 2 needed"),
        (c.live(barred(3), 1, 3), "there is 3 (priority 0); broker 2: not heard by any controller"),
        (
            c.live(c.settled(), 1),
            "there is none; broker 2: not heard by any controller; broker 3: not heard by any controller",
        ),
        (barred(2, 3), "give one of them another priority in spec.failover.priorities"),
    ],
)
def test_the_message_tells_who_may_follow_from_who_may_only_acknowledge(seen: Observed, told: str) -> None:
    assert failover_safe(seen).message.endswith(told)


def test_a_broker_from_elsewhere_counts_by_its_heartbeats() -> None:
    """It has no pod of ours that could be asked."""
    seen = c.settled(durability="Available")
    record = b.record(in_sync=(1, 4), replicas=4)
    replicas = {**record.replicas, 4: replace(record.replicas[4], reserved_for="")}

    assert failover_safe(c.seen_with(seen, replace(record, replicas=replicas))).status.value == "True"


@pytest.mark.parametrize(
    ("replicas", "durability", "needed"),
    [
        (1, "Available", 1),
        (2, "Available", 1),
        (3, "Available", 1),
        (2, "Strict", 1),
        (3, "Strict", 2),
        (5, "Strict", 2),
    ],
)
def test_how_many_are_needed(replicas: int, durability: str, needed: int) -> None:
    assert candidates_needed(b.group(replicas=replicas, durability=durability).spec) == needed


def test_the_spec_says_who_is_barred_whatever_its_heartbeats_say() -> None:
    """As in an election: a priority of the spec wins over the broker's own."""
    heard = {broker_id: LiveReplica(broker_id=broker_id, epoch=7, election_priority=0) for broker_id in (1, 2, 3)}

    def verdict(*allowed: int) -> str:
        seen = c.settled(failover={"priorities": [{"brokerId": one, "priority": 1} for one in allowed]})
        assert seen.snapshot is not None
        return failover_safe(replace(seen, snapshot=replace(seen.snapshot, live=heard))).status.value

    assert (verdict(), verdict(2, 3)) == ("False", "True")
