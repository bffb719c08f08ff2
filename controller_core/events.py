"""What a decision changes, and the only code that changes a record.

Every change of a record is one of these events applied by `apply_event`; `decision.record` is the old record with
`decision.events` applied in order. They follow Java's events (`controller-protocol.md` §4) except where the safety
rules say better: cleaning never forgets an id, an epoch or a SyncStateSet epoch (rule 4); a lost process of the master
is remembered (rule 6); an address belongs to one replica (rule 8).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import assert_never

from controller_core.model import BrokerGroupRecord, Replica


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
    """A replica is granted the mastership under a new epoch. Java's event 3 with a winner."""

    broker_id: int
    unclean: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterLost:
    """Nobody is master any more. Java's event 3 without a winner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncStateSetAltered:
    """The master's proposal was accepted. Java's event 1."""

    sync_state_set: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokersCleaned:
    """These replicas are forgotten; their ids stay used. Java's event 5."""

    broker_ids: frozenset[int]


Event = (
    BrokerIdReserved
    | BrokerIdApplied
    | BrokerRegistered
    | MasterProcessLost
    | MasterElected
    | MasterLost
    | SyncStateSetAltered
    | BrokersCleaned
)
"""Everything that can change a record."""


class EventWithoutRecordError(ValueError):
    """An event about a group that has no record: the caller lost its state between deciding and applying."""


def apply_events(record: BrokerGroupRecord | None, events: Iterable[Event]) -> BrokerGroupRecord | None:
    """Apply the events in order."""
    for event in events:
        record = apply_event(record, event)
    return record


def apply_event(  # noqa: PLR0911 - one return per kind of event is the plainest table there is
    record: BrokerGroupRecord | None, event: Event
) -> BrokerGroupRecord:
    """Return the record after the event. The record that was passed in is not touched."""
    if isinstance(event, BrokerIdReserved | BrokerIdApplied):
        return _apply_identity(record or BrokerGroupRecord(event.cluster_name, event.broker_name), event)
    if record is None:
        raise EventWithoutRecordError(f"event {event!r} needs a record, there is none")
    match event:
        case BrokerRegistered():
            return _apply_registration(record, event)
        case MasterProcessLost():
            return replace(record, master_process_lost=True)
        case MasterElected():
            return _apply_election(record, event)
        case MasterLost():
            return _without_master(record)
        case SyncStateSetAltered():
            return _with_sync_state_set(record, event.sync_state_set)
        case BrokersCleaned():
            return _apply_clean(record, event.broker_ids)
    assert_never(event)


def _apply_identity(record: BrokerGroupRecord, event: BrokerIdReserved | BrokerIdApplied) -> BrokerGroupRecord:
    if isinstance(event, BrokerIdReserved):
        replica = Replica(event.broker_id, reserved_for=event.reserved_for)
        replicas = dict(record.replicas)
    else:
        replica = Replica(event.broker_id, event.register_check_code, event.address, event.reserved_for)
        replicas = _without_address(record.replicas, event.address, keep=event.broker_id)
    replicas[event.broker_id] = replica
    # A high-water mark, not a count: no later event may ever hand out this id again (safety rule 4).
    return replace(record, replicas=replicas, next_broker_id=max(record.next_broker_id, event.broker_id + 1))


def _apply_registration(record: BrokerGroupRecord, event: BrokerRegistered) -> BrokerGroupRecord:
    replicas = _without_address(record.replicas, event.address, keep=event.broker_id)
    replicas[event.broker_id] = replace(replicas[event.broker_id], address=event.address, registered=True)
    return replace(record, replicas=replicas)


def _apply_election(record: BrokerGroupRecord, event: MasterElected) -> BrokerGroupRecord:
    elected = replace(
        record, master_broker_id=event.broker_id, master_epoch=record.master_epoch + 1, master_process_lost=False
    )
    return _with_sync_state_set(elected, frozenset({event.broker_id}))


def _apply_clean(record: BrokerGroupRecord, broker_ids: frozenset[int]) -> BrokerGroupRecord:
    kept = {broker_id: replica for broker_id, replica in record.replicas.items() if broker_id not in broker_ids}
    cleaned = replace(record, replicas=kept)
    if record.master_broker_id in broker_ids:
        cleaned = _without_master(cleaned)
    if record.sync_state_set & broker_ids:
        # With a new epoch, unlike Java: a master takes a smaller set only from a newer epoch, and would else wait for the
        # cleaned member's acknowledgement for ever.
        cleaned = _with_sync_state_set(cleaned, record.sync_state_set - broker_ids)
    return cleaned


def _without_master(record: BrokerGroupRecord) -> BrokerGroupRecord:
    return replace(record, master_broker_id=None, master_epoch=record.master_epoch + 1, master_process_lost=False)


def _with_sync_state_set(record: BrokerGroupRecord, sync_state_set: frozenset[int]) -> BrokerGroupRecord:
    # Whoever holds data of the group has stored its id, even if its RegisterBroker was never seen.
    replicas = {
        broker_id: replace(replica, registered=True) if broker_id in sync_state_set else replica
        for broker_id, replica in record.replicas.items()
    }
    return replace(
        record,
        replicas=replicas,
        sync_state_set=sync_state_set,
        sync_state_set_epoch=record.sync_state_set_epoch + 1,
    )


def _without_address(replicas: Mapping[int, Replica], address: str, *, keep: int) -> dict[int, Replica]:
    """Clear an address from every replica but its new holder: two replicas at one address is one fact too old (rule 8)."""
    return {
        broker_id: replace(replica, address="") if replica.address == address and broker_id != keep else replica
        for broker_id, replica in replicas.items()
    }
