"""What can be asked of the state machine: one value per request.

The first eight are RocketMQ's controller requests (docs/reference/controller.md), with the wire's field names in Python form;
`None`: the broker left the field out. The others are the operator's own.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from controller_core.model import Change, Mark


@dataclass(frozen=True, slots=True, kw_only=True)
class OfNamedGroup:
    """A request that may begin a group. `requester` is the name of the pod that asks, if known."""

    cluster_name: str
    broker_name: str | None
    requester: str | None = None


class GetNextBrokerId(OfNamedGroup):
    """1012. Which id should a broker without one apply for?"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyBrokerId(OfNamedGroup):
    """1013. Take the id, proven later by the check code (`<address>;<millis>`)."""

    applied_broker_id: int | None
    register_check_code: str | None
    # The check code's address in the one spelling that 1003 has too; empty: as the code has it.
    address: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBroker(OfNamedGroup):
    """1003. A process of the replica has started, at this address."""

    broker_id: int | None
    broker_address: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectMaster:
    """1002. By a broker (its own id), by an administrator (`designate_elect`), or by the controller (id None or -1).

    The other fields are the controller's own: `passed_over` must not win now (the present master among them: a switchover);
    `incumbent` acts as master by its 907 where the record has none (safety rule 3); `unclean`: a person accepts lost messages;
    `unfenced`: the present master is silent and its death not confirmed (rule 7); `set_in_doubt`: it was silent before it was
    lost, and `heard_out`: the others had their time to report since (rule 1); `plan` becomes durable with the election.
    """

    broker_id: int | None = None
    designate_elect: bool = False
    passed_over: frozenset[int] = frozenset()
    incumbent: int | None = None
    unclean: bool = False
    unfenced: bool = False
    set_in_doubt: bool = False
    heard_out: bool = False
    plan: Change | None = None

    @property
    def caller(self) -> int | None:
        """The broker that asks, or is designated; None: the controller."""
        return None if self.broker_id == -1 else self.broker_id

    @property
    def designated(self) -> int | None:
        """The broker that wins or none does, if one was designated."""
        return self.caller if self.designate_elect else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterSyncStateSet:
    """1001. The master proposes a new SyncStateSet under the epochs it believes to be current; `said_again`: `sync_state.py`."""

    master_broker_id: int | None
    master_epoch: int | None
    sync_state_set: frozenset[int]
    sync_state_set_epoch: int
    said_again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GetReplicaInfo:
    """1004. The master and the SyncStateSet."""

    broker_name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetSyncStateData:
    """1006, for one broker name of its list."""

    broker_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanBrokerData:
    """1011. Forget these replicas (ids separated by `;`), or all of them."""

    broker_name: str
    broker_controller_ids_to_clean: str | None = None
    is_clean_living_broker: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveMember:
    """Ours. Forget one dead member for good, unless the group still needs it (`membership.remove_member`)."""

    broker_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewMaster:
    """Ours. Let this master go on `epochs` higher, if it is master under this epoch (`change.py`).

    `without`: members of the SyncStateSet that it counts without a link, and waits for at every message.
    """

    broker_id: int
    master_epoch: int
    epochs: int = 1
    without: frozenset[int] = frozenset()
    plan: Change | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginChange:
    """Ours. Write down a change of master before its first effect: a fence, or a `minInSyncReplicas=99`."""

    change: Change
    master_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeOverChange:
    """Ours. Go on with a change of another plane, if the record still has it exactly so."""

    change: Change
    carried_out_by: str


class Ending(StrEnum):
    """How a change ends."""

    GIVEN_UP = "is given up"  # without an election; what it set at a broker is restored after that
    TOLD = "is told"  # it stays in the record, so that another plane can report its incident, which is still open
    OVER = "ends"  # it is taken out of the record


@dataclass(frozen=True, slots=True, kw_only=True)
class EndChange:
    """Ours. End a change that this plane carries out."""

    change_id: int
    carried_out_by: str
    how: Ending


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveBrokerId(OfNamedGroup):
    """Ours. Promise the next id to a pod, or the same as before; with `broker_id` only if it is that one."""

    reserved_for: str
    broker_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreGroup(OfNamedGroup):
    """Ours. Begin the record of a new group whose first disk was copied from the backup of this name (`membership.restore_group`).

    `broker_id` and `master_epoch` are above all that the group of the backup had; `mark` is how far the copied log goes.
    """

    reserved_for: str
    backup: str
    broker_id: int
    master_epoch: int
    mark: Mark


class Demand(NamedTuple):
    """What a record holds a replica to: its mark, and whether it counts as one that lost what it had."""

    epoch: int = -1
    offset: int = -1
    lost: bool = False


class Holding(NamedTuple):
    """What the present process of a replica reports, and what this controller process heard before (`HeartbeatTable.holding`).

    `known` is what an earlier process had at least while it was in the set. `sure` is what the present process proved to hold by
    reports no older than its last truncation. `seen` is what the record was known here to demand before the replica told this.
    """

    broker_id: int
    epoch: int
    max_offset: int
    known: Mark
    sure: Mark
    seen: Demand
    confirm_offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportHoldings:
    """Ours. What the members' heartbeats report, where that is news (`holdings.report_is_news`): safety rules 2 and 3."""

    holdings: tuple[Holding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportAhead:
    """Ours. A replica of the group has repeated epochs that the record has forgotten (`sync_state.believes_in_more`, rule 3)."""

    broker_id: int
    master_epoch: int
    sync_state_set_epoch: int = 0


Request = (
    GetNextBrokerId
    | ApplyBrokerId
    | RegisterBroker
    | ElectMaster
    | AlterSyncStateSet
    | GetReplicaInfo
    | GetSyncStateData
    | CleanBrokerData
    | RemoveMember
    | RenewMaster
    | ReserveBrokerId
    | RestoreGroup
    | ReportHoldings
    | ReportAhead
    | BeginChange
    | TakeOverChange
    | EndChange
)
