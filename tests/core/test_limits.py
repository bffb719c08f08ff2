"""Limits of numbers, edge cases of rule 1, and addresses that are none, as tables of cases."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import pytest

from controller_core.decision import (
    ControllerCode,
    EligibleForgotten,
    EpochFloorRaised,
    Event,
    MasterElected,
    MasterLost,
    apply_events,
)
from controller_core.election import Electorate, carried_over
from controller_core.holdings import News, demand_of, report_is_news, usable_eligible
from controller_core.model import MAX_EPOCH, BrokerGroupRecord, Change, ChangeKind, LiveReplica, Mark, Phase
from controller_core.requests import (
    AlterSyncStateSet,
    CleanBrokerData,
    ElectMaster,
    Holding,
    RegisterBroker,
    RenewMaster,
    ReportHoldings,
    Request,
)
from controller_core.settings import ControllerSettings
from controller_core.step import step
from tests.core.small_world import record_of_three

STRICT = ControllerSettings(shrink_floor=True, min_in_sync_replicas=2)
ALL = {one: LiveReplica(one, epoch=4, max_offset=100) for one in (1, 2, 3)}


def alter(*members: int, set_epoch: int = 9) -> AlterSyncStateSet:
    """Return the master's 1001 for this set."""
    return AlterSyncStateSet(
        master_broker_id=1, master_epoch=5, sync_state_set=frozenset(members), sync_state_set_epoch=set_epoch
    )


def after(
    record: BrokerGroupRecord, request: Request, settings: ControllerSettings, *, live: Mapping[int, LiveReplica] = ALL
) -> BrokerGroupRecord:
    """Return the record after this request, which must change it."""
    changed = step(record, request, live, settings).record
    assert changed is not None
    return changed


@pytest.mark.parametrize("caller", [None, 2])
def test_nobody_is_elected_under_the_last_epoch(caller: int | None) -> None:
    record = record_of_three(master_epoch=MAX_EPOCH)
    live = {one: replica for one, replica in ALL.items() if one != 1}
    decision = step(record, ElectMaster(broker_id=caller), live, STRICT)
    assert decision.code in (
        ControllerCode.CONTROLLER_MASTER_NOT_AVAILABLE,
        ControllerCode.CONTROLLER_ELECT_MASTER_FAILED,
    )
    assert not decision.changed, "and no epoch is counted beyond it"
    last = after(replace(record, master_epoch=MAX_EPOCH - 1), ElectMaster(), STRICT, live=live)
    assert last.master_epoch == MAX_EPOCH


def test_no_set_is_taken_under_the_last_set_epoch() -> None:
    full = record_of_three(sync_state_set_epoch=MAX_EPOCH)
    decision = step(full, alter(1, 2, 3, set_epoch=MAX_EPOCH), ALL, STRICT)
    assert decision.code == ControllerCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
    assert not decision.changed


@pytest.mark.parametrize(("set_epoch", "is_renewed"), [(MAX_EPOCH - 2, True), (MAX_EPOCH - 1, False)])
def test_a_renewal_without_a_member_takes_two_set_epochs(set_epoch: int, is_renewed: bool) -> None:
    record = record_of_three(sync_state_set=frozenset({1, 2, 3}), sync_state_set_epoch=set_epoch)
    request = RenewMaster(broker_id=1, master_epoch=5, without=frozenset({3}))
    decision = step(record, request, ALL, STRICT)
    assert decision.changed == is_renewed
    assert decision.record is not None
    assert decision.record.sync_state_set_epoch == (MAX_EPOCH if is_renewed else set_epoch)


def test_each_epoch_without_a_member_needs_a_1001_that_took_one_in() -> None:
    """However links flap: a set of three has one to spare, and from then on its master has to take one in first."""
    for flaps in product(product((2, 3), ("comes", "ends")), repeat=6):
        record, taken_in = record_of_three(sync_state_set=frozenset({1, 2, 3})), 0
        for broker_id, what in flaps:
            epoch, request = (
                record.master_epoch,
                alter(*record.sync_state_set, broker_id, set_epoch=record.sync_state_set_epoch),
            )
            ends = RenewMaster(broker_id=1, master_epoch=epoch, without=frozenset({broker_id}))
            decision = step(record, ends if what == "ends" else replace(request, master_epoch=epoch), ALL, STRICT)
            taken_in += decision.changed and what == "comes"
            record = decision.record or record
            assert len(record.sync_state_set) >= STRICT.floor
            assert record.master_epoch - 5 <= 1 + taken_in, flaps


@pytest.mark.parametrize(("phase", "is_renewed"), [(Phase.RESTORING, True), (Phase.TELLING, False)])
def test_a_change_that_waits_only_for_its_incident_does_not_stop_a_renewal(phase: Phase, is_renewed: bool) -> None:
    change = Change(id=1, kind=ChangeKind.FAILOVER, phase=phase, carried_out_by="plane-0", to_broker_id=1, epoch=5)
    record = record_of_three(sync_state_set=frozenset({1, 2, 3}), change=change, change_id=1)
    decision = step(record, RenewMaster(broker_id=1, master_epoch=5, without=frozenset({3})), ALL, STRICT)
    assert decision.changed == is_renewed
    assert decision.record is not None
    assert (decision.record.change, decision.record.change_id) == (change, 1), "its incident is still open"


@pytest.mark.parametrize(
    ("event", "is_lost"),
    [
        (MasterLost(), False),
        (MasterLost(), True),
        (EpochFloorRaised(epoch=9, sync_state_set_epoch=9), False),
        (MasterElected(broker_id=2), False),
        (MasterElected(broker_id=1), True),
    ],
    ids=[
        "it is lost",
        "it is lost after its process",
        "the record was restored",
        "another one is elected",
        "its next process is elected",
    ],
)
def test_a_change_that_waits_only_for_its_incident_ends_with_its_masters_office(event: Event, is_lost: bool) -> None:
    record = record_of_three(sync_state_set=frozenset({1, 2, 3}), master_process_lost=is_lost, change_id=1)
    told = Change(
        id=1, kind=ChangeKind.FAILOVER, phase=Phase.RESTORING, carried_out_by="plane-0", to_broker_id=1, epoch=5
    )
    assert apply_events(replace(record, change=told), [event]).change is None


def test_a_change_whose_brokers_are_being_told_ends_with_the_next_epoch() -> None:
    """The renewed master's brokers are told what the record says, under the next epoch."""
    change = Change(
        id=1, kind=ChangeKind.FAILOVER, phase=Phase.TELLING, carried_out_by="plane-0", to_broker_id=1, epoch=5
    )
    record = record_of_three(change=change, change_id=1)
    assert after(record, RenewMaster(broker_id=1, master_epoch=5), STRICT).change is None


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
    record = record_of_three(sync_state_set=frozenset(members), eligible=frozenset({3}), master_broker_id=None)
    assert bool(usable_eligible(record, settings)) == usable
    holding = Holding(3, 4, 100, known=Mark(3), sure=Mark(3), seen=demand_of(record, 3))
    assert (report_is_news(record, holding, settings) is News.LOSS) == (not usable)
    decision = step(record, ReportHoldings(holdings=(holding,)), {}, settings)
    assert any(isinstance(event, EligibleForgotten) for event in decision.events) == (not usable)


def test_a_floor_that_was_lowered_is_noticed_by_the_next_event_of_any_kind() -> None:
    record = record_of_three(sync_state_set=frozenset({1}), eligible=frozenset({3}))
    lifted = replace(STRICT, shrink_floor=False)
    clean = CleanBrokerData(broker_name="bn", broker_controller_ids_to_clean="2")
    assert after(record, clean, lifted, live={}).eligible == frozenset()
    assert after(record, clean, STRICT, live={}).eligible == {3}


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
    record = record_of_three(sync_state_set=frozenset({1, 2, 3}))
    live = {2: ALL[2]._replace(max_offset=900)}
    elected = step(record, ElectMaster(), live, settings).events
    assert [event.eligible for event in elected if isinstance(event, MasterElected)] == [eligible]


def test_an_unclean_election_leaves_nobody_eligible() -> None:
    """The others will truncate to a log that lacks acknowledged messages."""
    settings = replace(STRICT, unclean_election_allowed=True)
    events = step(record_of_three(), ElectMaster(), {3: ALL[3]}, settings).events
    assert [(event.unclean, event.eligible) for event in events if isinstance(event, MasterElected)] == [
        (True, frozenset())
    ]


def test_an_eligible_replica_loses_its_seat_by_its_mark_alone() -> None:
    """An earlier process's report counts only while the replica is in the set: after an election it may truncate."""
    record = record_of_three(sync_state_set=frozenset({1}), eligible=frozenset({2, 3}))
    replicas = dict(record.replicas)
    replicas[3] = replace(replicas[3], held_epoch=4, held_offset=50)
    record = replace(record, replicas=replicas)
    told = Holding(3, 4, 60, known=Mark(3, 5, 99), sure=Mark(3), seen=demand_of(record, 3))
    assert report_is_news(record, told, STRICT) is not News.LOSS
    less = told._replace(max_offset=49)
    changed = after(record, ReportHoldings(holdings=(less,)), STRICT, live={})
    assert changed.eligible == {2}
    assert changed.sync_state_set == {1}
    assert changed.sync_state_set_epoch == record.sync_state_set_epoch, "the set is as it was"


def test_cleaning_forgets_the_seats_of_the_cleaned() -> None:
    record = record_of_three(sync_state_set=frozenset({1}), eligible=frozenset({2, 3}))
    clean = CleanBrokerData(broker_name="bn", broker_controller_ids_to_clean="3")
    assert after(record, clean, STRICT, live={}).eligible == {2}


@pytest.mark.parametrize(("minimum", "eligible"), [(2, frozenset()), (3, frozenset({3}))])
def test_a_set_below_the_floor_keeps_the_eligible_and_one_at_it_ends_them(
    minimum: int, eligible: frozenset[int]
) -> None:
    record = record_of_three(sync_state_set=frozenset({1}), eligible=frozenset({2, 3}))
    decision = step(record, alter(1, 2), ALL, replace(STRICT, min_in_sync_replicas=minimum))
    assert decision.record is not None
    assert decision.record.eligible == eligible
    assert len(decision.events) == 1


def test_whoever_such_a_master_dropped_ends_the_eligible_too() -> None:
    """A master that shrinks first may acknowledge alone while it drops 2; 3 may lack those messages."""
    settings = replace(STRICT, min_in_sync_replicas=3, masters_shrink_first=True)
    record = record_of_three(sync_state_set=frozenset({1, 2}), eligible=frozenset({3}))
    changed = after(record, alter(1), settings)
    assert (changed.sync_state_set, changed.eligible) == (frozenset({1}), frozenset())


# ---- Who stays eligible after an election below the floor, and which addresses are taken


@pytest.mark.parametrize(
    ("other", "stays"),
    [
        (LiveReplica(3, epoch=1, max_offset=9), True),
        (LiveReplica(3, epoch=1, max_offset=10), True),
        (LiveReplica(3, epoch=1, max_offset=8), False),
        (LiveReplica(3, epoch=0, max_offset=9), False),
        # It may have truncated to a former master's log since that report.
        (LiveReplica(3, epoch=1, max_offset=10, fresh=False), False),
        (None, False),
    ],
)
def test_an_eligible_replica_stays_so_if_a_fresh_report_holds_as_much_as_the_winner(
    other: LiveReplica | None, *, stays: bool
) -> None:
    """Broker 1, alone in the set, was lost; 2 and 3 are eligible, and 2 is about to be elected."""
    record = record_of_three(sync_state_set=frozenset({1}), eligible=frozenset({2, 3}))
    live = {2: LiveReplica(2, epoch=1, max_offset=9)} | ({} if other is None else {3: other})
    assert (3 in carried_over(Electorate(record=record, live=live, settings=STRICT), 2)) is stays


def answer_to(address: str | None) -> tuple[ControllerCode, str]:
    """Register with this address: Java's controller accepts any text, and sends it to every broker."""
    record = record_of_three()
    request = RegisterBroker(cluster_name="cl", broker_name="bn", broker_id=3, broker_address=address)
    decision = step(record, request, {}, STRICT)
    if decision.code != ControllerCode.SUCCESS:
        assert decision.record in (None, record), "a refusal changes nothing"
    return decision.code, decision.remark or ""


@pytest.mark.parametrize(
    "address", ["10.0.0.1:1", "broker-1.orders.default.svc:65535", "[fd00::10]:10911", "fd00::10:10911", "b_1:10911"]
)
def test_an_address_that_can_be_dialled_is_taken(address: str) -> None:
    assert answer_to(address)[0] == ControllerCode.SUCCESS


NO_ADDRESSES = (
    "",
    "x",
    ";",
    ":",
    ":10911",
    "x:",
    "x:0",
    "x:65536",
    "x:-1",
    "x:+1",
    "x:1e3",
    "x:\u0663",
    "x: 1",
    "a b:1",
)


@pytest.mark.parametrize(
    "address", [None, *NO_ADDRESSES, "a;b:1", "a,b:1", "x:" + "9" * 5000, "x:10911\n", "\tx:10911"]
)
def test_any_other_text_is_refused_with_what_was_expected(address: str | None) -> None:
    code, remark = answer_to(address)
    assert code == ControllerCode.SYSTEM_ERROR
    assert remark == f"brokerAddress is {address!r}, expected <host>:<port>"
