"""The numbers a Java controller is taught, for every record that can be handed over."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokergroup_operator.migrate.teach import Lesson, LessonError, make_lesson
from controller_core.model import BrokerGroupRecord, Replica


def record(
    ids: frozenset[int], next_id: int, master: int, epoch: int, members: frozenset[int], at: int
) -> BrokerGroupRecord:
    return BrokerGroupRecord(
        "cl",
        "bn",
        next_broker_id=next_id,
        replicas={one: Replica(one, f"h:{one};1", f"h:{one}", registered=True) for one in ids},
        master_broker_id=master,
        master_epoch=epoch,
        sync_state_set=members,
        sync_state_set_epoch=at,
    )


@st.composite
def records(draw: st.DrawFn) -> BrokerGroupRecord:
    ids = draw(st.frozensets(st.integers(1, 6), min_size=1, max_size=4))
    master = draw(st.sampled_from(sorted(ids)))
    members = draw(st.frozensets(st.sampled_from(sorted(ids)))) | {master}
    next_id = max(ids) + 1 + draw(st.integers(0, 2))
    return record(ids, next_id, master, draw(st.integers(1, 40)), members, draw(st.integers(1, 60)))


@given(records())
def test_elections_add_up_to_the_present_epoch(one: BrokerGroupRecord) -> None:
    lesson = make_lesson(one)
    elections = (1 if lesson.elects_stand_in else 0) + lesson.lost_elections + 1
    assert elections == one.master_epoch
    assert lesson.epoch_while_waiting < one.master_epoch


@given(records())
def test_ids_are_applied_for_without_a_gap_and_only_real_ones_stay(one: BrokerGroupRecord) -> None:
    lesson = make_lesson(one)
    assert [seat.broker_id for seat in lesson.seats] == list(range(1, len(lesson.seats) + 1))
    assert {seat.broker_id for seat in lesson.seats if seat.held} == set(one.replicas)
    assert lesson.stand_in not in one.replicas
    assert lesson.stand_in in lesson.ids_to_clean
    holes = set(range(1, one.next_broker_id)) - set(one.replicas)
    assert len(lesson.seats) + 1 == one.next_broker_id + (0 if holes else 1)


@given(records(), st.integers(0, 60))
def test_the_set_ends_as_it_is_and_not_below_the_brokers_epoch(one: BrokerGroupRecord, now_epoch: int) -> None:
    lesson = make_lesson(one)
    alone = frozenset({lesson.master})
    proposals = lesson.alterations(alone, now_epoch)
    sets = [alone, *proposals]
    assert sets[-1] == one.sync_state_set
    assert all(before != after for before, after in itertools.pairwise(sets)), "Java refuses an equal set"
    assert all(lesson.master in each for each in sets)
    reached = now_epoch + len(proposals)
    assert reached >= one.sync_state_set_epoch
    assert reached <= max(one.sync_state_set_epoch, now_epoch + 1) + 1
    # What brokers could see at an epoch above theirs is the final set alone.
    assert all(
        each == one.sync_state_set
        for number, each in enumerate(sets)
        if now_epoch + number > max(one.sync_state_set_epoch, now_epoch)
    )


def test_a_member_that_is_not_heard_is_left_out_of_the_final_set() -> None:
    lesson = make_lesson(record(frozenset({1, 2, 3}), 4, 1, 3, frozenset({1, 2, 3}), 7))
    assert lesson.alterations({1}, 2, frozenset({1, 3}))[-1] == {1, 3}


@pytest.mark.parametrize(
    "broken",
    [
        BrokerGroupRecord("cl", "bn", next_broker_id=2, replicas={1: Replica(1, "h:1;1", "h:1")}, master_epoch=3),
        BrokerGroupRecord(
            "cl",
            "bn",
            next_broker_id=2,
            replicas={1: Replica(1, "h:1;1", "h:1")},
            master_broker_id=1,
            master_epoch=3,
            master_process_lost=True,
        ),
    ],
)
def test_a_group_without_a_master_has_no_lesson(broken: BrokerGroupRecord) -> None:
    with pytest.raises(LessonError, match="no master"):
        make_lesson(broken)


def test_a_reserved_id_counts_as_a_hole() -> None:
    one = record(frozenset({1, 2}), 4, 1, 2, frozenset({1}), 2)
    reserved = BrokerGroupRecord(
        "cl",
        "bn",
        next_broker_id=4,
        replicas={**one.replicas, 3: Replica(3, reserved_for="pod-3")},
        master_broker_id=1,
        master_epoch=2,
        sync_state_set=frozenset({1}),
        sync_state_set_epoch=2,
    )
    lesson: Lesson = make_lesson(reserved)
    assert lesson.stand_in == 3
