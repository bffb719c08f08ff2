"""What the state machine returns: an answer, the events that must be durable before the answer may leave, and the reason."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from controller_core.events import Event, apply_events
from controller_core.model import BrokerGroupRecord


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
    __slots__ = ()


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
