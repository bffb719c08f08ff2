"""Which dead ids are cleaned, and when."""

from __future__ import annotations

from dataclasses import replace

from controller_core.model import BrokerGroupRecord, Replica
from tests.reconcile import builders as b
from tests.reconcile import cases as c
from tests.reconcile.test_conditions import shown


def wiped(*, in_sync: tuple[int, ...], master: int | None = 2) -> BrokerGroupRecord:
    """Pod orders-1 came back on an empty disk: id 4 is its new one."""
    before = b.record(master=master)
    fourth = Replica(4, "code-4", "10.1.0.1:10911", reserved_for="orders-1", registered=True)
    return replace(before, next_broker_id=5, replicas={**before.replicas, 4: fourth}, sync_state_set=frozenset(in_sync))


def test_a_superseded_id_goes_when_its_successor_is_in_sync() -> None:
    assert c.steps(c.seen_with(c.settled(), wiped(in_sync=(2, 3, 4)), live=(2, 3, 4))) == ["forget orders-1"]
    assert c.steps(c.seen_with(c.settled(), wiped(in_sync=(2, 3)), live=(2, 3, 4))) == []


def test_a_superseded_id_that_still_stands_in_the_set_goes_too() -> None:
    assert c.steps(c.seen_with(c.settled(), wiped(in_sync=(1, 2, 3, 4)), live=(2, 3, 4))) == ["forget orders-1"]


def test_never_the_master() -> None:
    assert c.steps(c.seen_with(c.settled(), wiped(in_sync=(1, 2, 3, 4), master=1), live=(2, 3, 4))) == []


def test_a_lost_volume_goes_when_the_group_is_whole_again() -> None:
    seen = c.settled()
    record = b.record(replicas=4)
    lost = replace(
        c.seen_with(seen, replace(record, sync_state_set=frozenset({1, 2, 4})), live=(1, 2, 4)),
        pods={**b.without(seen.pods, "orders-3"), "orders-4": b.running_pod(seen.group, 4, role="slave")},
        claims=b.without(seen.claims, "orders-3"),
    )
    assert c.steps(lost) == ["forget orders-3"]
    assert c.steps(c.not_ready(lost, "orders-4")) == []


def test_an_id_without_a_seat_does_not_keep_an_election_waiting() -> None:
    """Nobody is elected as eligible while an id is unheard; behind this one there is no disk that could be heard."""
    record = replace(wiped(in_sync=(), master=None), eligible=frozenset({2, 3}))
    assert c.steps(c.seen_with(c.settled(), record, live=(2, 3, 4), writable=False)) == ["forget orders-1"]


def test_an_id_with_a_seat_stays_while_it_may_be_needed() -> None:
    record = replace(wiped(in_sync=(), master=None), eligible=frozenset({1, 2}))
    assert c.steps(c.seen_with(c.settled(), record, live=(2, 3, 4), writable=False)) == []


def asked(*, in_sync: tuple[int, ...] = (1, 2, 3), master: int | None = 2) -> BrokerGroupRecord:
    """A sidecar in pod orders-1 took an id (1013); the broker there is still 1."""
    fourth = Replica(4, "code-4", "10.1.0.1:10911", reserved_for="orders-1")
    before = b.record(master=master)
    return replace(before, next_broker_id=5, replicas={**before.replicas, 4: fourth}, sync_state_set=frozenset(in_sync))


def test_an_id_that_was_taken_in_vain_does_not_wedge_the_group() -> None:
    """The pod was believed to be member 4, which is never in sync; and a Decommission of 4 found no member and hung."""
    seen = c.seen_with(c.settled(), asked(master=1))
    assert set(c.course(seen).standings) == {1, 2, 3}
    ready, master = (shown(seen, kind) for kind in ("Ready", "Available"))
    assert (ready, master) == (("True", "AllMembersInSync"), ("True", "MasterServesWrites"))


def test_an_id_that_was_taken_in_vain_goes_when_the_broker_of_its_pod_is_in_sync_again() -> None:
    assert c.steps(c.seen_with(c.settled(), asked(), live=(1, 2, 3))) == ["forget orders-1"]
    assert c.steps(c.seen_with(c.settled(), asked(in_sync=(2, 3)), live=(1, 2, 3))) == []
    assert c.steps(c.seen_with(c.settled(), asked(), live=(2, 3))) == []


def test_an_operation_that_names_it_waits_only_until_the_broker_of_its_pod_is_heard() -> None:
    seen = c.running(c.seen_with(c.settled(), asked(in_sync=(2, 3)), live=(1, 2, 3)), "Decommission", brokerId=4)
    assert c.steps(seen) == ["forget orders-1"]
    assert c.steps(c.seen_with(seen, asked(in_sync=(2, 3)), live=(2, 3))) == []


def test_the_right_id_is_forgotten() -> None:
    seen = c.seen_with(c.settled(), asked(), live=(1, 2, 3))
    assert [step.member.broker_id for step in c.course(seen).steps if step.member is not None] == [4]
