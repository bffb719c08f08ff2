"""Limits of numbers and edge cases of rule 1, as tables of cases."""

from dataclasses import replace

import pytest

from controller_core.decision import ControllerCode, EligibleForgotten, MasterElected
from controller_core.holdings import News, demand_of, report_is_news, usable_eligible
from controller_core.model import MAX_EPOCH, BrokerGroupRecord, LiveReplica, Mark, Replica
from controller_core.requests import AlterSyncStateSet, CleanBrokerData, ElectMaster, Holding, ReportHoldings
from controller_core.settings import ControllerSettings
from controller_core.step import step

STRICT = ControllerSettings(shrink_floor=True, min_in_sync_replicas=2)
ALL = {one: LiveReplica(one, epoch=4, max_offset=100) for one in (1, 2, 3)}


def _record(**changes: object) -> BrokerGroupRecord:
    replicas = {one: Replica(one, f"{one}:1;1", f"{one}:1", registered=True) for one in (1, 2, 3)}
    record = BrokerGroupRecord("cl", "bn", 4, replicas, 1, 5, frozenset({1, 2}), 9)
    return replace(record, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("caller", [None, 2])
def test_nobody_is_elected_under_the_last_epoch(caller: int | None) -> None:
    record = _record(master_epoch=MAX_EPOCH)
    live = {one: replica for one, replica in ALL.items() if one != 1}
    decision = step(record, ElectMaster(broker_id=caller), live, STRICT)
    assert decision.code in (
        ControllerCode.CONTROLLER_MASTER_NOT_AVAILABLE,
        ControllerCode.CONTROLLER_ELECT_MASTER_FAILED,
    )
    assert not decision.changed, "and no epoch is counted beyond it"
    before = step(replace(record, master_epoch=MAX_EPOCH - 1), ElectMaster(), live, STRICT)
    assert before.record is not None
    assert before.record.master_epoch == MAX_EPOCH


def test_no_set_is_taken_under_the_last_set_epoch() -> None:
    request = AlterSyncStateSet(
        master_broker_id=1,
        master_epoch=5,
        sync_state_set=frozenset({1, 2, 3}),
        sync_state_set_epoch=MAX_EPOCH,
    )
    decision = step(_record(sync_state_set_epoch=MAX_EPOCH), request, ALL, STRICT)
    assert decision.code == ControllerCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
    assert not decision.changed


@pytest.mark.parametrize(
    ("members", "settings", "usable"),
    [
        ({1}, STRICT, True),
        (set(), STRICT, True),
        ({1, 2}, STRICT, False),
        ({1, 2}, replace(STRICT, min_in_sync_replicas=3), True),
        ({1}, replace(STRICT, min_in_sync_replicas=1), False),
        ({1}, replace(STRICT, shrink_floor=False), False),
    ],
)
def test_who_is_eligible_is_so_only_while_nothing_can_be_acknowledged(
    members: set[int], settings: ControllerSettings, usable: bool
) -> None:
    record = _record(sync_state_set=frozenset(members), eligible=frozenset({3}), master_broker_id=None)
    assert bool(usable_eligible(record, settings)) == usable
    holding = Holding(3, 4, 100, known=Mark(3), sure=Mark(3), seen=demand_of(record, 3))
    assert (report_is_news(record, holding, settings) is News.LOSS) == (not usable)
    decision = step(record, ReportHoldings(holdings=(holding,)), {}, settings)
    assert any(isinstance(event, EligibleForgotten) for event in decision.events) == (not usable)


def test_a_floor_that_was_lowered_is_noticed_by_the_next_event_of_any_kind() -> None:
    record = _record(sync_state_set=frozenset({1}), eligible=frozenset({3}))
    lifted = replace(STRICT, shrink_floor=False)
    clean = CleanBrokerData(broker_name="bn", broker_controller_ids_to_clean="2")
    decision = step(record, clean, {}, lifted)
    assert decision.record is not None
    assert decision.record.eligible == frozenset()
    kept = step(record, clean, {}, STRICT).record
    assert kept is not None
    assert kept.eligible == {3}


@pytest.mark.parametrize(
    ("settings", "eligible"),
    [
        (STRICT, {1, 3}),
        (replace(STRICT, min_in_sync_replicas=1), set()),
        (ControllerSettings(), set()),
        (replace(STRICT, unclean_election_allowed=True), {1, 3}),
    ],
)
def test_whom_an_election_leaves_eligible(settings: ControllerSettings, eligible: set[int]) -> None:
    record = _record(sync_state_set=frozenset({1, 2, 3}))
    live = {2: ALL[2]._replace(max_offset=900)}
    elected = step(record, ElectMaster(), live, settings).events
    assert [event.eligible for event in elected if isinstance(event, MasterElected)] == [eligible]


def test_an_unclean_election_leaves_nobody_eligible() -> None:
    """The others will truncate to a log that lacks acknowledged messages."""
    settings = replace(STRICT, unclean_election_allowed=True)
    events = step(_record(), ElectMaster(), {3: ALL[3]}, settings).events
    assert [(event.unclean, event.eligible) for event in events if isinstance(event, MasterElected)] == [
        (True, frozenset())
    ]


def test_an_eligible_replica_loses_its_seat_by_its_mark_alone() -> None:
    """An earlier process's report counts only while the replica is in the set: after an election it may truncate."""
    record = _record(sync_state_set=frozenset({1}), eligible=frozenset({2, 3}))
    replicas = dict(record.replicas)
    replicas[3] = replace(replicas[3], held_epoch=4, held_offset=50)
    record = replace(record, replicas=replicas)
    told = Holding(3, 4, 60, known=Mark(3, 5, 99), sure=Mark(3), seen=demand_of(record, 3))
    assert report_is_news(record, told, STRICT) is not News.LOSS
    less = told._replace(max_offset=49)
    decision = step(record, ReportHoldings(holdings=(less,)), {}, STRICT)
    assert decision.record is not None
    assert decision.record.eligible == {2}
    assert decision.record.sync_state_set == {1}
    assert decision.record.sync_state_set_epoch == record.sync_state_set_epoch, "the set is as it was"


def test_cleaning_forgets_the_seats_of_the_cleaned() -> None:
    record = _record(sync_state_set=frozenset({1}), eligible=frozenset({2, 3}))
    after = step(record, CleanBrokerData(broker_name="bn", broker_controller_ids_to_clean="3"), {}, STRICT).record
    assert after is not None
    assert after.eligible == {2}


@pytest.mark.parametrize(("minimum", "eligible"), [(2, frozenset()), (3, frozenset({3}))])
def test_a_set_below_the_floor_keeps_the_eligible_and_one_at_it_ends_them(
    minimum: int, eligible: frozenset[int]
) -> None:
    record = _record(sync_state_set=frozenset({1}), eligible=frozenset({2, 3}))
    request = AlterSyncStateSet(
        master_broker_id=1,
        master_epoch=5,
        sync_state_set=frozenset({1, 2}),
        sync_state_set_epoch=9,
    )
    decision = step(record, request, ALL, replace(STRICT, min_in_sync_replicas=minimum))
    assert decision.record is not None
    assert decision.record.eligible == eligible
    assert len(decision.events) == 1


def test_whoever_such_a_master_dropped_ends_the_eligible_too() -> None:
    """A master that shrinks first may acknowledge alone while it drops 2; 3 may lack those messages."""
    settings = replace(STRICT, min_in_sync_replicas=3, masters_shrink_first=True)
    record = _record(sync_state_set=frozenset({1, 2}), eligible=frozenset({3}))
    request = AlterSyncStateSet(
        master_broker_id=1, master_epoch=5, sync_state_set=frozenset({1}), sync_state_set_epoch=9
    )
    decision = step(record, request, ALL, settings)
    assert decision.record is not None
    assert (decision.record.sync_state_set, decision.record.eligible) == (frozenset({1}), frozenset())
