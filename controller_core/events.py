"""What a decision changes, and the only code that changes a record: `decision.record` is the old record with `decision.events`
applied.

The events are Java's (docs/reference/controller.md) except where a safety rule demands more: cleaning keeps ids and epochs
(rule 4), a lost process of the master is remembered (rule 6), an address belongs to one replica (rule 8), seats are lost and
epochs raised by reports of brokers (rules 1 to 3). An event carries all that applying it needs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, assert_never

from controller_core.model import MAX_EPOCH, BrokerGroupRecord, Replica
from controller_core.plan import Change, Phase, Plan


class Mark(NamedTuple):
    """What a later process of this replica must at least report (`holdings.py`). -1 means that nothing is known."""

    broker_id: int
    epoch: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerIdReserved:
    """A pod was promised an id. Creates the record if it is the first thing ever heard of the group."""

    cluster_name: str
    broker_name: str
    broker_id: int
    reserved_for: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerIdApplied:
    """A broker holds an id. Java's event 2; creates the record if need be."""

    cluster_name: str
    broker_name: str
    broker_id: int
    register_check_code: str
    address: str
    reserved_for: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistered:
    """A replica's process announced itself at an address. Java's event 6, and the fact that it ever did."""

    broker_id: int
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterProcessLost:
    """The process that was granted the mastership is gone; the id keeps it until an election (safety rule 6)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterElected:
    """A replica is granted the mastership under a new epoch. Java's event 3 with a winner.

    `eligible` hold every acknowledged message besides (rule 1); `marks` are those of all seats afterwards. `unfenced`: the
    master before was not seen dead.
    """

    broker_id: int
    unclean: bool = False
    eligible: frozenset[int] = frozenset()
    marks: tuple[Mark, ...] = ()
    unfenced: bool = False
    plan: Plan | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterRenewed:
    """The master goes on under the epoch after `epochs` more, with the same set under an epoch that is as much higher."""

    epochs: int = 1
    plan: Plan | None = None
    slave: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterLost:
    """There is no master any more. Java's event 3 without a winner. `unfenced`: the master before was not seen dead."""

    unfenced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncStateSetAltered:
    """The master's proposal was accepted. Java's event 1. `marks` are those of the new members; the others keep theirs."""

    sync_state_set: frozenset[int]
    eligible: frozenset[int] = frozenset()
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EligibleForgotten:
    """The rule that kept these replicas electable does not hold any more: the floor was lowered or lifted (rule 1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldingsMarked:
    """Holders of seats reported more than their marks say (rule 2)."""

    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatsLost:
    """These replicas came back with less than they had (rule 2). `marks` say what they failed to reach."""

    broker_ids: frozenset[int]
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatsRegained:
    """The last losers of a seat have what they had after all, and no master was elected meanwhile (rule 2)."""

    broker_ids: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochFloorRaised:
    """Brokers know more than the record does: it went back in time (rule 3). Both epochs are what the record has afterwards."""

    epoch: int
    sync_state_set_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAdopted:
    """A replica that the record had lost is known again, without a seat. Creates the record if need be."""

    cluster_name: str
    broker_name: str
    broker_id: int
    address: str
    reserved_for: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokersCleaned:
    """These replicas are forgotten; their ids stay used. Java's event 5."""

    broker_ids: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeBegun:
    """A change of master begins whose election is not decided yet: `Fencing` or `Quieting`."""

    change: Change


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeTakenOver:
    """Another plane goes on with the change."""

    carried_out_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeGivenUp:
    """The change ends without an election, as soon as what it set at a broker is restored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeTold:
    """All were told; the change stays in the record for its incident, which is still open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeEnded:
    """Nothing is left to do for the change."""


_EventOfKnownGroup = (
    BrokerRegistered
    | MasterProcessLost
    | MasterElected
    | MasterRenewed
    | MasterLost
    | SyncStateSetAltered
    | EligibleForgotten
    | HoldingsMarked
    | SeatsLost
    | SeatsRegained
    | EpochFloorRaised
    | BrokersCleaned
    | ChangeBegun
    | ChangeTakenOver
    | ChangeGivenUp
    | ChangeTold
    | ChangeEnded
)
Event = BrokerIdReserved | BrokerIdApplied | BrokerAdopted | _EventOfKnownGroup
"""Everything that can change a record."""

ADOPTED = "adopted"
"""The second half of an adopted replica's check code, where a broker has the milliseconds of its application."""


class EventWithoutRecordError(ValueError):
    """An event about a group that has no record."""


def apply_events(record: BrokerGroupRecord | None, events: Iterable[Event]) -> BrokerGroupRecord | None:
    """Apply the events in order."""
    for event in events:
        record = apply_event(record, event)
    return record


def apply_event(record: BrokerGroupRecord | None, event: Event) -> BrokerGroupRecord:
    """Return the record after the event. The record that was passed in is not touched."""
    if isinstance(event, BrokerIdReserved | BrokerIdApplied | BrokerAdopted):
        return _apply_identity(record or BrokerGroupRecord(event.cluster_name, event.broker_name), event)
    if record is None:
        raise EventWithoutRecordError(f"event {event!r} needs a record, there is none")
    return _with_change_id(record, _apply_to_known(record, event))


def _with_change_id(before: BrokerGroupRecord, after: BrokerGroupRecord) -> BrokerGroupRecord:
    """Count a change of epoch that brought no plan.

    A plan for another epoch is void, but what it set at a broker must still be restored.
    """
    if after.master_epoch == before.master_epoch or after.change != before.change:
        return after
    void = after.change
    if void is not None and void.restore is not None:
        return replace(after, change=replace(void, phase=Phase.RESTORING, epoch=0, to_broker_id=None, before=None))
    return replace(after, change=None, change_id=before.change_id + (void is None))


def _apply_to_known(  # noqa: PLR0911, PLR0912, C901 - one return per kind of event is the plainest table there is
    record: BrokerGroupRecord, event: _EventOfKnownGroup
) -> BrokerGroupRecord:
    change = record.change
    match event:
        case BrokerRegistered():
            return _apply_registration(record, event)
        case MasterProcessLost():
            return replace(record, master_process_lost=True)
        case MasterElected():
            return _apply_election(record, event)
        case MasterRenewed():
            return _apply_renewal(record, event)
        case MasterLost():
            return _without_master(replace(record, unfenced=_unfenced_after(record, event)))
        case SyncStateSetAltered():
            return _apply_alteration(record, event)
        case EligibleForgotten():
            return _with_marks_of_seats_only(replace(record, eligible=frozenset()))
        case HoldingsMarked():
            return _with_marks(record, event.marks)
        case SeatsLost():
            return _apply_seats_lost(record, event)
        case SeatsRegained():
            after = replace(record, lost_seats=record.lost_seats - event.broker_ids)
            return _with_sync_state_set(after, record.sync_state_set | event.broker_ids)
        case EpochFloorRaised():
            return _apply_epoch_floor(record, event)
        case BrokersCleaned():
            return _apply_clean(record, event.broker_ids)
        case ChangeBegun():
            return replace(record, change=event.change, change_id=event.change.id)
        case ChangeTakenOver():
            return replace(record, change=change and replace(change, carried_out_by=event.carried_out_by))
        case ChangeGivenUp():
            return replace(record, change=change and replace(change, phase=Phase.RESTORING))
        case ChangeTold():
            return replace(record, change=change and replace(change, phase=Phase.RESTORING, restore=None))
        case ChangeEnded():
            return replace(record, change=None)
    assert_never(event)


def _apply_identity(
    record: BrokerGroupRecord, event: BrokerIdReserved | BrokerIdApplied | BrokerAdopted
) -> BrokerGroupRecord:
    replicas = dict(record.replicas)
    match event:
        case BrokerIdReserved():
            replica = Replica(event.broker_id, reserved_for=event.reserved_for)
        case BrokerIdApplied():
            replica = Replica(event.broker_id, event.register_check_code, event.address, event.reserved_for)
        case BrokerAdopted():
            # It comes with an identity file, so a disk knows this id: what a RegisterBroker would tell.
            check_code = f"{event.address};{ADOPTED}"
            replica = Replica(event.broker_id, check_code, event.address, event.reserved_for, registered=True)
    if replica.address:
        replicas = _without_address(replicas, replica.address, keep=event.broker_id)
    replicas[event.broker_id] = replica
    # A high-water mark, not a count: no later event may ever hand out this id again (safety rule 4).
    return replace(record, replicas=replicas, next_broker_id=max(record.next_broker_id, event.broker_id + 1))


def _apply_registration(record: BrokerGroupRecord, event: BrokerRegistered) -> BrokerGroupRecord:
    replicas = _without_address(record.replicas, event.address, keep=event.broker_id)
    replicas[event.broker_id] = replace(replicas[event.broker_id], address=event.address, registered=True)
    return replace(record, replicas=replicas)


def _apply_election(record: BrokerGroupRecord, event: MasterElected) -> BrokerGroupRecord:
    elected = replace(
        record,
        master_broker_id=event.broker_id,
        master_epoch=_raised(record.master_epoch),
        master_process_lost=False,
        eligible=event.eligible,
        lost_seats=frozenset(),
        unclean_elections=record.unclean_elections + event.unclean,
        # A master of a new epoch is not one of an older epoch any more.
        unfenced=_unfenced_after(record, event) - {event.broker_id},
    )
    elected = _with_marks(_with_sync_state_set(elected, frozenset({event.broker_id})), event.marks)
    return _with_plan(record, elected, event.plan, unfenced=event.unfenced)


def _apply_renewal(record: BrokerGroupRecord, event: MasterRenewed) -> BrokerGroupRecord:
    epoch = min(record.master_epoch + event.epochs, MAX_EPOCH)
    # A Java broker takes a set, also with a mastership, only under a higher set epoch than its own.
    set_epoch = record.sync_state_set_epoch + event.epochs - 1
    raised = replace(record, master_epoch=epoch, sync_state_set_epoch=set_epoch)
    renewed = _with_sync_state_set(raised, record.sync_state_set)
    return _with_plan(record, renewed, event.plan, slave=event.slave)


def _with_plan(
    before: BrokerGroupRecord,
    after: BrokerGroupRecord,
    plan: Plan | None,
    *,
    unfenced: bool = False,
    slave: int | None = None,
) -> BrokerGroupRecord:
    """Return the record with the change by which its new epoch is told: the one under way if it waited for this, else the next
    one.
    """
    if plan is None:
        return after
    under_way = before.change
    waits = under_way is not None and under_way.phase in (Phase.FENCING, Phase.QUIETING)
    own = under_way if under_way is not None and waits and under_way.kind is plan.kind else None
    change = Change(
        id=own.id if own is not None else before.change_id + 1,
        kind=plan.kind,
        phase=Phase.TELLING,
        carried_out_by=plan.carried_out_by,
        from_broker_id=before.master_broker_id,
        to_broker_id=after.master_broker_id,
        epoch=after.master_epoch,
        slave=slave,
        before=plan.before or before.as_before,
        restore=under_way.restore if under_way is not None else None,
        cause=plan.cause,
        unfenced=unfenced,
        started_at=own.started_at if own is not None else plan.started_at,
    )
    return replace(after, change=change, change_id=change.id)


def _apply_alteration(record: BrokerGroupRecord, event: SyncStateSetAltered) -> BrokerGroupRecord:
    # A member of the set follows: it is no master of an older epoch any more.
    altered = replace(record, eligible=event.eligible, unfenced=record.unfenced - event.sync_state_set)
    return _with_marks(_with_sync_state_set(altered, event.sync_state_set), event.marks)


def _apply_seats_lost(record: BrokerGroupRecord, event: SeatsLost) -> BrokerGroupRecord:
    after = _with_marks(record, event.marks)
    if record.master_broker_id in event.broker_ids:
        after = _without_master(after)
    nobody_left = not record.seats - event.broker_ids
    after = replace(
        after,
        eligible=record.eligible - event.broker_ids,
        lost_seats=record.lost_seats | (record.seats & event.broker_ids if nobody_left else frozenset()),
    )
    return _without_members(after, event.broker_ids)


def _apply_epoch_floor(record: BrokerGroupRecord, event: EpochFloorRaised) -> BrokerGroupRecord:
    raised = replace(
        record,
        master_broker_id=None,
        master_process_lost=False,
        master_epoch=event.epoch,
        sync_state_set=frozenset(),
        sync_state_set_epoch=event.sync_state_set_epoch,
        eligible=frozenset(),
        lost_seats=frozenset(),
    )
    return _with_marks_of_seats_only(raised)


def _apply_clean(record: BrokerGroupRecord, broker_ids: frozenset[int]) -> BrokerGroupRecord:
    kept = {broker_id: replica for broker_id, replica in record.replicas.items() if broker_id not in broker_ids}
    cleaned = replace(
        record,
        replicas=kept,
        eligible=record.eligible - broker_ids,
        lost_seats=record.lost_seats - broker_ids,
        unfenced=record.unfenced - broker_ids,
    )
    if record.master_broker_id in broker_ids:
        cleaned = _without_master(cleaned)
    # With a new epoch, unlike Java: a master takes a smaller set only from a newer epoch, and would else wait for the
    # cleaned member's acknowledgement for ever.
    return _without_members(cleaned, broker_ids)


def _unfenced_after(record: BrokerGroupRecord, event: MasterElected | MasterLost) -> frozenset[int]:
    """Return the masters that may still run, the one that the event takes away among them."""
    if not event.unfenced or record.master_broker_id is None:
        return record.unfenced
    return record.unfenced | {record.master_broker_id}


def _without_master(record: BrokerGroupRecord) -> BrokerGroupRecord:
    return replace(record, master_broker_id=None, master_epoch=_raised(record.master_epoch), master_process_lost=False)


def _raised(epoch: int) -> int:
    """Return the next epoch, at most `MAX_EPOCH`; decisions refuse before that."""
    return min(epoch + 1, MAX_EPOCH)


def _with_sync_state_set(record: BrokerGroupRecord, sync_state_set: frozenset[int]) -> BrokerGroupRecord:
    # A member of the set has stored its id, even if its RegisterBroker was never seen.
    replicas = {
        broker_id: replace(replica, registered=True) if broker_id in sync_state_set else replica
        for broker_id, replica in record.replicas.items()
    }
    return _with_marks_of_seats_only(
        replace(
            record,
            replicas=replicas,
            sync_state_set=sync_state_set,
            sync_state_set_epoch=_raised(record.sync_state_set_epoch),
        )
    )


def _without_members(record: BrokerGroupRecord, broker_ids: frozenset[int]) -> BrokerGroupRecord:
    """Take them out of the set, under a new set epoch if any was in it."""
    if not record.sync_state_set & broker_ids:
        return _with_marks_of_seats_only(record)
    return _with_sync_state_set(record, record.sync_state_set - broker_ids)


def _with_marks(record: BrokerGroupRecord, marks: Iterable[Mark]) -> BrokerGroupRecord:
    """Set these marks. A mark that says nothing is written as -1."""
    replicas = dict(record.replicas)
    for mark in marks:
        if mark.broker_id in replicas:
            epoch, offset = (mark.epoch, mark.offset) if mark.epoch > 0 or mark.offset > 0 else (-1, -1)
            replicas[mark.broker_id] = replace(replicas[mark.broker_id], held_epoch=epoch, held_offset=offset)
    return replace(record, replicas=replicas)


def _with_marks_of_seats_only(record: BrokerGroupRecord) -> BrokerGroupRecord:
    """Forget the marks of replicas that have no seat to lose."""
    held = record.seats | record.lost_seats
    return _with_marks(record, [Mark(broker_id, -1, -1) for broker_id in record.replicas if broker_id not in held])


def _without_address(replicas: Mapping[int, Replica], address: str, *, keep: int) -> dict[int, Replica]:
    """Clear an address from every replica but its new holder (rule 8)."""
    return {
        broker_id: replace(replica, address="") if replica.address == address and broker_id != keep else replica
        for broker_id, replica in replicas.items()
    }
