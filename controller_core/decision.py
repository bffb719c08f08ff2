"""What the state machine returns: an answer, the events that must be durable before the answer may leave, and the reason.

`Decision.record` is the old record with the events applied. They are Java's (docs/reference/controller.md) except where a safety
rule demands more.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

from controller_core.model import MAX_EPOCH, BrokerGroupRecord, Change, Mark, Phase, Replica


class ControllerCode(IntEnum):
    """The response codes that a decision can have, with Java's numbers."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    CONTROLLER_FENCED_MASTER_EPOCH = 2000
    CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH = 2001
    CONTROLLER_INVALID_MASTER = 2002
    CONTROLLER_INVALID_REPLICAS = 2003
    CONTROLLER_MASTER_NOT_AVAILABLE = 2004
    CONTROLLER_INVALID_REQUEST = 2005
    CONTROLLER_BROKER_NOT_ALIVE = 2006
    CONTROLLER_BROKER_METADATA_NOT_EXIST = 2008
    CONTROLLER_INVALID_CLEAN_BROKER_METADATA = 2009
    CONTROLLER_BROKER_NEED_TO_BE_REGISTERED = 2010
    CONTROLLER_MASTER_STILL_EXIST = 2011
    CONTROLLER_ELECT_MASTER_FAILED = 2012
    CONTROLLER_ALTER_SYNC_STATE_SET_FAILED = 2013
    CONTROLLER_BROKER_ID_INVALID = 2014


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncStateSetBody:
    """The body of 1001, 1003 and 1004."""

    sync_state_set: frozenset[int]
    sync_state_set_epoch: int

    @classmethod
    def of(cls, record: BrokerGroupRecord) -> "SyncStateSetBody":
        return cls(sync_state_set=record.sync_state_set, sync_state_set_epoch=record.sync_state_set_epoch)


@dataclass(frozen=True, slots=True)
class Answer:
    """The fields of Java's response header and body; `None`: Java leaves the field out. On errors it has what Java has filled by
    then (docs/reference/controller.md).
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class _NamingTheGroup(Answer):
    cluster_name: str
    broker_name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetNextBrokerIdAnswer(_NamingTheGroup):
    next_broker_id: int | None = None


class ApplyBrokerIdAnswer(_NamingTheGroup):
    """1013."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerAnswer(_NamingTheGroup):
    """1003. The four master fields are all given or all left out."""

    master_broker_id: int | None = None
    master_address: str | None = None
    master_epoch: int | None = None
    sync_state_set_epoch: int | None = None
    body: SyncStateSetBody | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectMasterAnswer(Answer):
    """1002. The set is given with codes 0 and 2011; the members (id to address) with code 0 only."""

    master_broker_id: int | None = None
    master_address: str | None = None
    master_epoch: int | None = None
    sync_state_set_epoch: int | None = None
    sync_state_set: frozenset[int] | None = None
    cluster_name: str | None = None
    broker_name: str | None = None
    broker_addresses: Mapping[int, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterSyncStateSetAnswer(Answer):
    """1001. Java's header has 0 as the new epoch on every error."""

    new_sync_state_set_epoch: int = 0
    body: SyncStateSetBody | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetReplicaInfoAnswer(Answer):
    """1004. Nothing is filled for an unknown group."""

    master_broker_id: int | None = None
    master_address: str | None = None
    master_epoch: int | None = None
    body: SyncStateSetBody | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStanding:
    """One replica in the answer to 1006. An unknown address is empty."""

    broker_id: int
    broker_address: str
    alive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GetSyncStateDataAnswer(Answer):
    """1006, the entry of one group; None: the group is left out of the table, without an error."""

    master_broker_id: int | None
    master_address: str | None
    master_epoch: int
    sync_state_set_epoch: int
    in_sync_replicas: tuple[ReplicaStanding, ...]
    not_in_sync_replicas: tuple[ReplicaStanding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveBrokerIdAnswer(Answer):
    """The promised id; None if refused."""

    broker_id: int | None = None


class Event(ABC):
    """Something that changes a record. It carries all that applying it needs."""

    __slots__ = ()

    @abstractmethod
    def applied(self, record: BrokerGroupRecord) -> BrokerGroupRecord: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The outcome of one step. `record` is the record after `events`; `why` is for people.

    `record` is None if the group has none and gets none. If `changed`, commit it before the answer is sent or a broker is notified.
    """

    code: ControllerCode
    answer: Answer | None
    record: BrokerGroupRecord | None
    why: str
    remark: str | None = None
    events: tuple[Event, ...] = ()

    @property
    def changed(self) -> bool:
        return bool(self.events)


def decided(record: BrokerGroupRecord, answer: Answer | None, why: str, *events: Event) -> Decision:
    after = apply_events(record, events)
    return Decision(code=ControllerCode.SUCCESS, answer=answer, events=events, record=after, why=why)


def refused(
    record: BrokerGroupRecord | None, code: ControllerCode, answer: Answer | None, why: str, remark: str | None = None
) -> Decision:
    return Decision(code=code, remark=remark, answer=answer, record=record, why=why)


def without_a_name(record: BrokerGroupRecord, answer: Answer) -> Decision:
    remark = "brokerName is missing, expected the name of a broker group"
    return refused(record, ControllerCode.SYSTEM_ERROR, answer, "without a broker name no group is named", remark)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerIdHeld(Event):
    """An id was promised to a pod, or taken by a broker (Java's event 2), or its process registered (event 6)."""

    replica: Replica

    def applied(self, record: BrokerGroupRecord) -> BrokerGroupRecord:
        broker_id, address = self.replica.broker_id, self.replica.address
        # An address belongs to its latest holder alone (rule 8).
        others = {one: replace(it, address="") if it.address == address else it for one, it in record.replicas.items()}
        replicas = {**others, broker_id: self.replica}
        # A high-water mark, not a count: no later event may ever hand out this id again (safety rule 4).
        return replace(record, replicas=replicas, next_broker_id=max(record.next_broker_id, broker_id + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRestored(Event):
    """The group begins with a copied disk: its replica alone has a seat, and the epochs go on above those of the backup."""

    replica: Replica
    backup: str
    master_epoch: int

    def applied(self, record: BrokerGroupRecord) -> BrokerGroupRecord:
        broker_id = self.replica.broker_id
        return replace(
            record,
            replicas={broker_id: self.replica},
            next_broker_id=broker_id + 1,
            master_epoch=self.master_epoch,
            sync_state_set=frozenset({broker_id}),
            sync_state_set_epoch=_raised(record.sync_state_set_epoch),
            restored_from=self.backup,
        )


class BrokerAdopted(BrokerIdHeld):
    """A replica that the record had lost is known again, without a seat: a disk knows this id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterProcessLost(Event):
    """The process that was granted the mastership is gone; the id keeps it until an election (safety rule 6)."""

    def applied(self, record: BrokerGroupRecord) -> BrokerGroupRecord:
        return replace(record, master_process_lost=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterElected(Event):
    """A replica is granted the mastership under a new epoch (Java's event 3 with a winner). `marks` are those of all seats then."""

    broker_id: int
    unclean: bool = False
    eligible: frozenset[int] = frozenset()
    marks: tuple[Mark, ...] = ()
    unfenced: bool = False
    plan: Change | None = None

    def applied(self, record: BrokerGroupRecord) -> BrokerGroupRecord:
        elected = replace(
            record,
            master_broker_id=self.broker_id,
            master_epoch=_raised(record.master_epoch),
            master_process_lost=False,
            eligible=self.eligible,
            lost_seats=frozenset(),
            unclean_elections=record.unclean_elections + self.unclean,
            # A master of a new epoch is not one of an older epoch any more.
            unfenced=_unfenced_after(record, self) - {self.broker_id},
        )
        elected = _with_marks(_with_sync_state_set(elected, frozenset({self.broker_id})), self.marks)
        return _with_plan(record, elected, self.plan)


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterRenewed(Event):
    """The master goes on under the epoch after `epochs` more, with the same set under an epoch that is as much higher."""

    epochs: int = 1
    plan: Change | None = None

    def applied(self, record: BrokerGroupRecord) -> BrokerGroupRecord:
        epoch = min(record.master_epoch + self.epochs, MAX_EPOCH)
        # A Java broker takes a set, also with a mastership, only under a higher set epoch than its own.
        set_epoch = record.sync_state_set_epoch + self.epochs - 1
        raised = replace(record, master_epoch=epoch, sync_state_set_epoch=set_epoch)
        return _with_plan(record, _with_sync_state_set(raised, record.sync_state_set), self.plan)


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterLost(Event):
    """There is no master any more. Java's event 3 without a winner. `unfenced`: the master before was not seen dead."""

    unfenced: bool = False

    def applied(self, record: BrokerGroupRecord) -> BrokerGroupRecord:
        return _without_master(replace(record, unfenced=_unfenced_after(record, self)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncStateSetAltered(Event):
    """The master's proposal was accepted. Java's event 1. `marks` are those of the new members; the others keep theirs."""

    sync_state_set: frozenset[int]
    eligible: frozenset[int] = frozenset()
    marks: tuple[Mark, ...] = ()

    def applied(self, record: BrokerGroupRecord) -> BrokerGroupRecord:
        # A member of the set follows: it is no master of an older epoch any more.
        altered = replace(record, eligible=self.eligible, unfenced=record.unfenced - self.sync_state_set)
        return _with_marks(_with_sync_state_set(altered, self.sync_state_set), self.marks)


@dataclass(frozen=True, slots=True, kw_only=True)
class EligibleForgotten(Event):
    """The floor was lowered or lifted, so an eligible replica may lack what is acknowledged from now on (rule 1)."""

    def applied(self, record: BrokerGroupRecord) -> BrokerGroupRecord:
        return replace(record, eligible=frozenset())


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldingsMarked(Event):
    """Holders of seats reported more than their marks say (rule 2)."""

    marks: tuple[Mark, ...]

    def applied(self, record: BrokerGroupRecord) -> BrokerGroupRecord:
        return _with_marks(record, self.marks)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatsLost(Event):
    """These replicas came back with less than they had (rule 2). `marks` say what they failed to reach."""

    broker_ids: frozenset[int]
    marks: tuple[Mark, ...] = ()

    def applied(self, record: BrokerGroupRecord) -> BrokerGroupRecord:
        after = _without_members(_with_marks(record, self.marks), self.broker_ids)
        return after if after.seats else replace(after, lost_seats=record.lost_seats | record.seats)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatsRegained(Event):
    """The last losers of a seat have what they had after all, and no master was elected meanwhile (rule 2)."""

    broker_ids: frozenset[int]

    def applied(self, record: BrokerGroupRecord) -> BrokerGroupRecord:
        after = replace(record, lost_seats=record.lost_seats - self.broker_ids)
        return _with_sync_state_set(after, record.sync_state_set | self.broker_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochFloorRaised(Event):
    """Brokers know more than the record does: it went back in time (rule 3). Both epochs are what the record has afterwards."""

    epoch: int
    sync_state_set_epoch: int

    def applied(self, record: BrokerGroupRecord) -> BrokerGroupRecord:
        return replace(
            record,
            master_broker_id=None,
            master_process_lost=False,
            master_epoch=self.epoch,
            sync_state_set=frozenset(),
            sync_state_set_epoch=self.sync_state_set_epoch,
            eligible=frozenset(),
            lost_seats=frozenset(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokersCleaned(Event):
    """These replicas are forgotten; their ids stay used. Java's event 5."""

    broker_ids: frozenset[int]

    def applied(self, record: BrokerGroupRecord) -> BrokerGroupRecord:
        cleaned = replace(
            record,
            replicas={one: replica for one, replica in record.replicas.items() if one not in self.broker_ids},
            lost_seats=record.lost_seats - self.broker_ids,
            unfenced=record.unfenced - self.broker_ids,
        )
        # With a new epoch, unlike Java: a master takes a smaller set only from a newer epoch, and would else wait for the
        # cleaned member's acknowledgement for ever.
        return _without_members(cleaned, self.broker_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeWritten(Event):
    """The change of master under way is written as it is now: begun, taken over, given up or told; None: it has ended."""

    change: Change | None

    def applied(self, record: BrokerGroupRecord) -> BrokerGroupRecord:
        begun = self.change.id if self.change is not None else record.change_id
        return replace(record, change=self.change, change_id=begun)


def apply_events(record: BrokerGroupRecord, events: Iterable[Event]) -> BrokerGroupRecord:
    """Return the record after these events; after each a replica without a seat to lose has no mark."""
    for event in events:
        after = event.applied(record)
        held = after.seats | after.lost_seats
        after = _with_marks(after, [Mark(broker_id) for broker_id in after.replicas if broker_id not in held])
        record = _with_change_id(record, after)
    return record


def _with_change_id(before: BrokerGroupRecord, after: BrokerGroupRecord) -> BrokerGroupRecord:
    """Return the record without a plan that a new epoch has made void; a new epoch without any plan counts as a change.

    A change that is told stays while its master goes on under the new epoch: its incident is still open.
    """
    if after.master_epoch == before.master_epoch or after.change != before.change:
        return after
    void, goes_on = after.change, after.granted_master_id is not None
    if void is not None and void.is_told and goes_on and after.granted_master_id == before.granted_master_id:
        return after
    if void is not None and void.restore is not None:  # what it set at a broker must still be restored
        return replace(after, change=replace(void, phase=Phase.RESTORING, epoch=0, to_broker_id=None, before=None))
    return replace(after, change=None, change_id=before.change_id + (void is None))


def _with_plan(before: BrokerGroupRecord, after: BrokerGroupRecord, plan: Change | None) -> BrokerGroupRecord:
    """Return the record with the plan as its change: the one under way if it waited for this election, else the next."""
    if plan is None:
        return after
    under_way = before.change
    own = under_way if under_way and under_way.waits_for_election and under_way.kind is plan.kind else None
    change = replace(
        plan,
        id=own.id if own is not None else before.change_id + 1,
        from_broker_id=before.master_broker_id,
        to_broker_id=after.master_broker_id,
        epoch=after.master_epoch,
        before=plan.before or before.as_before,
        restore=under_way.restore if under_way is not None else None,
        started_at=own.started_at if own is not None else plan.started_at,
    )
    return replace(after, change=change, change_id=change.id)


def _unfenced_after(record: BrokerGroupRecord, event: MasterElected | MasterLost) -> frozenset[int]:
    if not event.unfenced or record.master_broker_id is None:
        return record.unfenced
    return record.unfenced | {record.master_broker_id}


def _without_master(record: BrokerGroupRecord) -> BrokerGroupRecord:
    return replace(record, master_broker_id=None, master_epoch=_raised(record.master_epoch), master_process_lost=False)


def _raised(epoch: int) -> int:
    return min(epoch + 1, MAX_EPOCH)  # decisions refuse before that


def _with_sync_state_set(record: BrokerGroupRecord, sync_state_set: frozenset[int]) -> BrokerGroupRecord:
    # A member of the set has stored its id, even if its RegisterBroker was never seen.
    replicas = {
        broker_id: replace(replica, registered=True) if broker_id in sync_state_set else replica
        for broker_id, replica in record.replicas.items()
    }
    set_epoch = _raised(record.sync_state_set_epoch)
    return replace(record, replicas=replicas, sync_state_set=sync_state_set, sync_state_set_epoch=set_epoch)


def _without_members(record: BrokerGroupRecord, broker_ids: frozenset[int]) -> BrokerGroupRecord:
    """Take their seats and the mastership from them; the set gets a new epoch if any was in it."""
    if record.master_broker_id in broker_ids:
        record = _without_master(record)
    record = replace(record, eligible=record.eligible - broker_ids)
    if not record.sync_state_set & broker_ids:
        return record
    return _with_sync_state_set(record, record.sync_state_set - broker_ids)


def _with_marks(record: BrokerGroupRecord, marks: Iterable[Mark]) -> BrokerGroupRecord:
    # A mark that says nothing is written as -1.
    replicas = dict(record.replicas)
    for mark in marks:
        if mark.broker_id in replicas:
            epoch, offset = (mark.epoch, mark.offset) if mark.epoch > 0 or mark.offset > 0 else (-1, -1)
            replicas[mark.broker_id] = replace(replicas[mark.broker_id], held_epoch=epoch, held_offset=offset)
    return replace(record, replicas=replicas)
