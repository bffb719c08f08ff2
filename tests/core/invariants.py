"""Invariants of each decision: of the record, of the answer, and between the records before and after it.

With them each safety rule that a single step can show.
"""

from collections.abc import Mapping
from dataclasses import replace

from controller_core.decision import (
    BrokerAdopted,
    BrokersCleaned,
    ControllerCode,
    Decision,
    ElectMasterAnswer,
    EpochFloorRaised,
    GetReplicaInfoAnswer,
    MasterElected,
    MasterLost,
    MasterRenewed,
    RegisterBrokerAnswer,
    SeatsLost,
    SyncStateSetAltered,
    apply_events,
)
from controller_core.holdings import usable_eligible
from controller_core.model import BrokerGroupRecord, LiveReplica, Phase
from controller_core.requests import (
    CleanBrokerData,
    ElectMaster,
    GetNextBrokerId,
    GetReplicaInfo,
    GetSyncStateData,
    RemoveMember,
    RenewMaster,
    ReportHoldings,
    Request,
)
from controller_core.settings import ControllerSettings


def applied(before: BrokerGroupRecord | None, decision: Decision) -> BrokerGroupRecord | None:
    """The record with the decision's events: without one, on an empty record of the same group."""
    after = decision.record
    start = before or (after and BrokerGroupRecord(after.cluster_name, after.broker_name))
    return start and apply_events(start, decision.events)


def check_decision(  # noqa: C901 - a table of events
    before: BrokerGroupRecord | None,
    request: Request,
    heard: Mapping[int, LiveReplica],
    settings: ControllerSettings,
    decision: Decision,
) -> None:
    """Check one decision against every invariant."""
    after = decision.record
    assert applied(before, decision) == after
    assert decision.changed == (before != after), "an event changes something, and nothing else does"
    assert decision.why, "every decision has a reason"
    floor = [event for event in decision.events if isinstance(event, EpochFloorRaised)]
    allowed = {ControllerCode.SUCCESS, ControllerCode.CONTROLLER_MASTER_NOT_AVAILABLE}
    assert not decision.changed or decision.code in allowed or floor, "a refusal changes nothing, but what rule 3 sees"
    if isinstance(request, GetNextBrokerId | GetReplicaInfo | GetSyncStateData):
        assert not decision.changed, "reading changes nothing"
    if after is not None:
        _check_record(after)
        if before is not None:
            _check_progress(before, after, decision)
    else:
        assert before is None, "a group that was ever known is never forgotten (rule 4)"
    for event in decision.events:
        assert after is not None
        if isinstance(event, MasterElected):
            _check_grant(before, event, heard, settings, request)
        if isinstance(event, SyncStateSetAltered):
            _check_alteration(before, event, heard, settings)
        if isinstance(event, MasterLost):
            assert before is not None
            assert before.master_broker_id is not None, "one epoch per lost master (rule 6)"
        if isinstance(event, MasterRenewed):
            assert before is not None
            assert before.granted_master_id in heard, "a dead master's reign is not renewed"
            assert isinstance(request, RenewMaster)
            seats = before.seats - request.without
            assert (after.granted_master_id, after.seats) == (before.granted_master_id, seats)
            assert len(after.sync_state_set) >= settings.floor or not request.without
            assert after.master_epoch == before.master_epoch + event.epochs
            set_epochs = event.epochs + bool(request.without)
            assert after.sync_state_set_epoch == before.sync_state_set_epoch + set_epochs, "earlier requests are fenced"
        if isinstance(event, BrokersCleaned):
            _check_clean(before, event, heard, request, settings)
        if isinstance(event, SeatsLost):
            _check_loss(before, event, after, request)
    _check_answer(before, after, decision)


def _check_record(record: BrokerGroupRecord) -> None:
    claimed = {replica.broker_id for replica in record.replicas.values() if replica.claimed}
    assert record.master_broker_id is None or record.master_broker_id in record.sync_state_set
    assert record.sync_state_set <= claimed
    assert all(record.replicas[broker_id].registered for broker_id in record.sync_state_set), (
        "a replica with data stays known"
    )
    assert record.master_broker_id is not None or not record.master_process_lost
    assert all(1 <= broker_id < record.next_broker_id for broker_id in record.replicas), "next is above all ids (I13)"
    assert record.eligible | record.lost_seats <= claimed
    assert not record.eligible & record.sync_state_set, "a member of the set is not listed as eligible"
    assert record.master_broker_id is None or not record.lost_seats, (
        "an election ends the memory of lost seats (rule 2)"
    )
    assert not record.lost_seats & record.seats
    for replica in record.replicas.values():
        if replica.broker_id not in record.seats | record.lost_seats:
            assert (replica.held_epoch, replica.held_offset) == (-1, -1), "only a seat has a mark"
    addresses = [replica.address for replica in record.replicas.values() if replica.address]
    assert len(addresses) == len(set(addresses)), "an address belongs to one replica (rule 8)"


def _check_unfenced(before: BrokerGroupRecord, after: BrokerGroupRecord, decision: Decision) -> None:
    assert after.unfenced <= after.replicas.keys(), "a removed member is not an unfenced master"
    if after.master_broker_id is not None:
        assert not after.unfenced & after.sync_state_set, "a follower is not an unfenced master"
    assert before.unfenced & after.replicas.keys() <= after.unfenced | after.sync_state_set, "and no other is dropped"
    elections = [event for event in decision.events if isinstance(event, MasterElected | MasterLost)]
    doubted = {before.master_broker_id} if any(event.unfenced for event in elections) else set()
    assert after.unfenced <= before.unfenced | doubted


def _check_progress(before: BrokerGroupRecord, after: BrokerGroupRecord, decision: Decision) -> None:
    floors = [event for event in decision.events if isinstance(event, EpochFloorRaised)]
    start = max([before.master_epoch, *(event.epoch for event in floors)])
    set_start = max([before.sync_state_set_epoch, *(event.sync_state_set_epoch for event in floors)])
    assert 0 <= after.master_epoch - start <= 1, "epochs never fall, and rise one at a time (I2)"
    assert 0 <= after.sync_state_set_epoch - set_start <= 2, (
        "one for each change: a loss and a return may come together"
    )
    assert after.next_broker_id >= before.next_broker_id
    assert after.unclean_elections - before.unclean_elections == sum(
        isinstance(event, MasterElected) and event.unclean for event in decision.events
    )
    _check_unfenced(before, after, decision)
    if after.master_broker_id != before.master_broker_id:
        assert after.master_epoch > before.master_epoch, "every change of master has its own epoch"
    if after.sync_state_set != before.sync_state_set:
        assert after.sync_state_set_epoch > before.sync_state_set_epoch, "every change of the set has its own epoch"
    if before.master_process_lost and after.granted_master_id is not None:
        assert after.master_epoch > before.master_epoch, "a new process needs a new epoch (rule 6)"
    for broker_id, replica in after.replicas.items():
        if broker_id not in before.replicas:
            adopted = any(isinstance(event, BrokerAdopted) for event in decision.events)
            assert broker_id == before.next_broker_id or (adopted and broker_id > before.next_broker_id), (
                "only the next id is assigned, and no assigned id is adopted (rule 4)"
            )
        elif before.replicas[broker_id].registered:
            assert replica.register_check_code == before.replicas[broker_id].register_check_code
            assert replica.registered


def _check_grant(
    before: BrokerGroupRecord | None,
    event: MasterElected,
    heard: Mapping[int, LiveReplica],
    settings: ControllerSettings,
    request: Request,
) -> None:
    assert before is not None
    assert isinstance(request, ElectMaster)
    if request.unclean:
        settings = replace(settings, unclean_election_allowed=True)
    winner = event.broker_id
    assert before.claimed_replica(winner) is not None, "an unregistered id is never elected (rule 5)"
    assert before.address_of(winner), "no member with an unknown address is elected (rule 8)"
    assert winner not in settings.never_elect, "a learner is not elected"
    assert settings.election_priorities.get(winner) != 0, "priority 0 is not elected"
    assert winner not in request.passed_over
    assert event.unclean or not event.eligible or settings.shrink_floor
    lowered = {mark.broker_id: mark for mark in event.marks}
    assert lowered.keys() == {winner} | event.eligible
    told = heard.get(winner, LiveReplica(winner))
    if any(one.epoch > before.master_epoch for key, one in heard.items() if before.claimed_replica(key)):
        return  # rule 3: the recorded values do not count, see the floor's own tests
    assert winner != before.granted_master_id, "a master that holds its epoch is kept, not granted again"
    if before.is_first_election:
        _check_first_grant(before, event, heard, settings, request)
    elif before.seats:
        assert winner in heard
        assert told.has_reported, "a member without a report of its data is no candidate (rule 2)"
        mark = before.replicas[winner]
        if winner in before.seats:
            assert told.epoch >= mark.held_epoch, "no member below its mark is elected (rule 2)"
            assert told.max_offset >= mark.held_offset
        clean = before.sync_state_set | usable_eligible(before, settings)
        assert settings.unclean_election_allowed or not event.unclean
        electable = _electable(before, heard, settings, request)
        in_doubt = _is_in_doubt(before, request) and not event.unclean
        if in_doubt and (winner not in clean or not settings.unclean_election_allowed):
            assert electable & clean, (
                "without a member of the set, or an eligible one, that may lead none is elected (I3)"
            )
            _check_most_of_all(before, winner, heard, settings, request)
        elif not in_doubt:
            assert event.unclean == (winner not in clean), "clean means from the set, or eligible (I3)"
            if not request.designate_elect:
                pool = set(before.replicas) if event.unclean else before.sync_state_set
                pool = pool if winner in pool else usable_eligible(before, settings)
                _check_best(before, winner, electable & pool, heard)
    else:
        empty = not any(one.has_data for key, one in heard.items() if key in before.replicas)
        assert event.unclean or empty, "after all seats are lost: uncleanly, or on empty disks (rule 2)"
        assert settings.unclean_election_allowed or not event.unclean


def _is_in_doubt(before: BrokerGroupRecord, request: ElectMaster) -> bool:
    is_fenced = before.change is not None and before.change.phase is Phase.FENCING
    return request.set_in_doubt or is_fenced or before.master_broker_id is None


def _check_most_of_all(
    before: BrokerGroupRecord,
    winner: int,
    heard: Mapping[int, LiveReplica],
    settings: ControllerSettings,
    request: ElectMaster,
) -> None:
    """Where the set is in doubt, all living voters are heard after the loss, and the most data wins, in the set or not (rule 1)."""
    voters = {one for one, it in before.replicas.items() if it.registered and settings.may_be_master(one)}
    if not request.heard_out:
        late = [one for one in voters & heard.keys() if not (heard[one].has_reported and heard[one].fresh)]
        assert not late, "where the set is in doubt the living are heard first (rule 1)"
    rivals = _electable(before, heard, settings, replace(request, passed_over=frozenset()))
    _check_best(before, winner, rivals & voters, heard)


def _electable(
    before: BrokerGroupRecord, heard: Mapping[int, LiveReplica], settings: ControllerSettings, request: ElectMaster
) -> set[int]:
    return {
        key
        for key, one in heard.items()
        if one.has_reported
        and settings.may_be_master(key)
        and key not in request.passed_over
        and key in before.replicas
        and not (
            key in before.seats
            and (one.epoch < before.replicas[key].held_epoch or one.max_offset < before.replicas[key].held_offset)
        )
    }


def _check_loss(
    before: BrokerGroupRecord | None, event: SeatsLost, after: BrokerGroupRecord | None, request: Request
) -> None:
    assert before is not None
    assert after is not None
    assert not after.seats & event.broker_ids
    if before.master_broker_id in event.broker_ids:
        assert after.master_epoch > before.master_epoch, "mastership goes with the seat, under a new epoch (rule 2)"
    if isinstance(request, ReportHoldings):
        for holding in request.holdings:
            recorded = before.replicas.get(holding.broker_id)
            if holding.broker_id in event.broker_ids and recorded is not None:
                below_offset = holding.max_offset < max(recorded.held_offset, holding.known.offset)
                assert below_offset or holding.epoch < max(recorded.held_epoch, holding.known.epoch)


def _check_best(before: BrokerGroupRecord, winner: int, electable: set[int], heard: Mapping[int, LiveReplica]) -> None:
    for broker_id in electable:
        if before.address_of(broker_id):
            best, other = heard[winner], heard[broker_id]
            assert (best.epoch, best.max_offset) >= (other.epoch, other.max_offset), "the best data wins"


def _check_clean(
    before: BrokerGroupRecord | None,
    event: BrokersCleaned,
    heard: Mapping[int, LiveReplica],
    request: Request,
    settings: ControllerSettings,
) -> None:
    assert before is not None
    if isinstance(request, RemoveMember):
        (gone,) = event.broker_ids
        assert gone == request.broker_id
        assert gone not in heard, "the living are not removed"
        assert gone != before.master_broker_id, "nor is the master"
        assert not before.lost_seats or not before.replicas[gone].registered, "nor one that rule 2 waits for"
        if before.replicas[gone].registered:
            assert not usable_eligible(before, settings), (
                "no member that an election may have to hear is removed (rule 1)"
            )
            assert gone in before.superseded or not before.is_first_election, "nor one that rule 5 waits for"
        if gone in before.sync_state_set:
            assert before.master_broker_id in before.sync_state_set - {gone}
            assert not settings.shrink_floor or len(before.sync_state_set) > settings.min_in_sync_replicas, "rule 1"
        return
    assert isinstance(request, CleanBrokerData)
    if request.broker_controller_ids_to_clean and not request.is_clean_living_broker:
        assert not event.broker_ids & heard.keys(), "the living are not cleaned by name"


def _check_first_grant(
    before: BrokerGroupRecord,
    event: MasterElected,
    heard: Mapping[int, LiveReplica],
    settings: ControllerSettings,
    request: ElectMaster,
) -> None:
    # If a pod registered several ids, only the last one has a disk (a wiped disk takes a new id).
    last = {one.reserved_for: one.broker_id for one in before.replicas.values() if one.registered and one.reserved_for}
    known = {one.broker_id for one in before.replicas.values() if one.broker_id >= last.get(one.reserved_for, 0)}
    everybody = set(before.replicas)
    if not settings.unclean_election_allowed:
        registered = {one for one in known if before.replicas[one].registered}
        assert registered - {event.broker_id} <= heard.keys(), "every disk but the winner's must be heard (rule 5)"
    if (
        any(heard[broker_id].has_data for broker_id in everybody & heard.keys())
        and not settings.unclean_election_allowed
    ):
        assert known <= heard.keys(), "if there is data, all known members must be heard (rule 5)"
        best = max(
            (heard[broker_id].epoch, heard[broker_id].max_offset)
            for broker_id in _electable(before, heard, settings, request)
            if before.address_of(broker_id)
        )
        winner = heard[event.broker_id]
        assert (winner.epoch, winner.max_offset) == best, "the best data wins (rule 5)"


def _check_alteration(
    before: BrokerGroupRecord | None,
    event: SyncStateSetAltered,
    heard: Mapping[int, LiveReplica],
    settings: ControllerSettings,
) -> None:
    assert before is not None
    assert not before.master_process_lost
    assert event.sync_state_set - before.sync_state_set <= heard.keys(), "joining members are alive (I8)"
    # A master that shrinks first has already acknowledged without the members it dropped: dead ones it keeps must not block this.
    follows = settings.masters_shrink_first and event.sync_state_set < before.sync_state_set
    assert follows or event.sync_state_set <= heard.keys(), "members are alive (I8)"
    assert not event.eligible or len(event.sync_state_set) < settings.min_in_sync_replicas
    for mark in event.marks:
        told = heard[mark.broker_id]
        assert mark.epoch <= told.epoch, "a mark is never above what was reported"
        assert mark.offset <= told.max_offset


def _check_answer(before: BrokerGroupRecord | None, after: BrokerGroupRecord | None, decision: Decision) -> None:
    answer = decision.answer
    if not isinstance(answer, ElectMasterAnswer | RegisterBrokerAnswer | GetReplicaInfoAnswer):
        return
    assert (answer.master_broker_id is None) == (answer.master_address is None), "an id with its address, or neither"
    if answer.master_broker_id is None:
        return
    assert after is not None
    assert answer.master_broker_id == after.granted_master_id, "only a granted master is named (rule 6)"
    assert answer.master_epoch == after.master_epoch
    if decision.code == ControllerCode.CONTROLLER_MASTER_STILL_EXIST:
        assert before == after
