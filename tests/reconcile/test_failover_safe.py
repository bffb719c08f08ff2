"""When the master may be lost: case by case, and "no" to everything that is not known."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.observe.group_view import MetadataDifference, MetadataKind
from brokergroup_operator.reconcile.failover_safe import candidates_needed, failover_safe
from controller_core.model import LiveReplica
from tests.reconcile import builders as b
from tests.reconcile import cases as c
from tests.reconcile.test_evaluate import failing_over

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.observed import Observed

LACKING = (MetadataDifference(2, MetadataKind.TOPIC, "payments"),)
TWO = {"replicas": 2}

CASES: list[tuple[str, Observed, tuple[str, str]]] = [
    ("all in order", c.settled(), ("True", "EnoughCandidates")),
    ("nothing is known", replace(c.settled(), snapshot=None), ("False", "NoMaster")),
    ("no record", replace(c.settled(), record=None), ("False", "NoMaster")),
    ("no master", c.seen_with(c.settled(), b.record(master=None)), ("False", "NoMaster")),
    ("failing over", c.live(c.settled(), 1, 2, 3, in_progress=failing_over()), ("False", "FailingOver")),
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
    (
        "a slave may never be master",
        c.settled(failover={"priorities": [{"brokerId": 3, "priority": 0}]}),
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
