"""What the controller remembers of a broker group (`BrokerGroupRecord`, durable) and what it hears (`LiveReplica`, perishable).

Both are values. The record outlives its replicas: a wholly cleaned group keeps its next id and its epochs (safety rule 4), and
answers as an unknown one (`is_known`). A change of master under way is part of it (`Change`), so that any plane can go on with
it; what brokers have answered is not: they are asked again (`change.py`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

# What a broker without `brokerElectionPriority` has (docs/reference/controller.md). Lower wins.
DEFAULT_ELECTION_PRIORITY = 2**31 - 1
# Epochs are Java ints: there is none above this one.
MAX_EPOCH = 2**31 - 1
# The second half of an adopted replica's check code, where a broker has the milliseconds of its application.
ADOPTED = "adopted"


@dataclass(frozen=True, slots=True)
class Replica:
    """One broker id and its holder: *reserved* for a pod, *claimed* (ApplyBrokerId was granted), or *registered*: the holder has
    also sent RegisterBroker, so a disk knows this id. An empty address: unknown (safety rule 8). `held_epoch` and `held_offset`
    are its mark (`holdings.py`); -1: nothing is known.
    """

    broker_id: int
    register_check_code: str = ""
    address: str = ""
    reserved_for: str = ""
    registered: bool = False
    held_epoch: int = -1
    held_offset: int = -1

    @property
    def was_adopted(self) -> bool:
        """Whether the record had lost this id, and has it again from its disk."""
        return self.register_check_code.endswith(f";{ADOPTED}")

    @property
    def claimed(self) -> bool:
        """Whether the id is in use by a broker: what Java calls registered."""
        return bool(self.register_check_code)


class Mark(NamedTuple):
    """What a later process of this replica must at least report (`holdings.py`). -1 means that nothing is known."""

    broker_id: int
    epoch: int = -1
    offset: int = -1


class ChangeKind(StrEnum):
    FAILOVER = "Failover"  # the master is lost, or there was none
    SWITCHOVER = "Switchover"  # a person, a rolling update or the preferred master moves it
    DRAIN = "Drain"  # the master's pod is about to go
    ELECT = "Elect"  # a person chose a member of a group that has no master
    # The master stays, under new epochs: a slave hangs on a wrong link and gives it up for a change of role only.
    CURE = "Cure"
    # The record went back in time, and brokers may act as masters of what it has forgotten.
    RECOVERY = "Recovery"


class Phase(StrEnum):
    """How far a change has come. The first two may be given up; from `TELLING` on the new master is in the record."""

    # A silent master is being killed; the election waits for its confirmed death, or for the end of the fence's time.
    FENCING = "Fencing"
    # The old master is kept from acknowledging (`minInSyncReplicas=99`) until its slaves have all it acknowledged.
    QUIETING = "Quieting"
    # The election is durable, and the brokers are told in order.
    TELLING = "Telling"
    # The change was given up, and what a broker was told for it only is told back; or all are told, and its incident is open.
    RESTORING = "Restoring"


@dataclass(frozen=True, slots=True)
class Before:
    """What 1004 answers until the brokers were told in order: master and SyncStateSet of before the election."""

    master_broker_id: int | None
    master_epoch: int
    sync_state_set: frozenset[int]
    sync_state_set_epoch: int


@dataclass(frozen=True, slots=True)
class Restore:
    """A `minInSyncReplicas` that a broker had before the change, and must have again (25)."""

    broker_id: int
    min_in_sync_replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The change of master under way. `epoch` is the master epoch that is told: 0 until the election.

    A cure keeps its master and names the `slave`. `cause` and `started_at` are for people and reports. A request carries a change
    with the id 0; the decision fills in what the record says.
    """

    id: int
    kind: ChangeKind
    phase: Phase
    carried_out_by: str
    from_broker_id: int | None = None
    to_broker_id: int | None = None
    epoch: int = 0
    slave: int | None = None
    before: Before | None = None
    restore: Restore | None = None
    cause: str = ""
    unfenced: bool = False
    started_at: str = ""

    @property
    def key(self) -> tuple[int, str]:
        """Identifies the change, also among those of a lost record, whose ids began anew."""
        return self.id, self.started_at

    @property
    def waits_for_election(self) -> bool:
        return self.phase in (Phase.FENCING, Phase.QUIETING)

    @property
    def is_decided(self) -> bool:
        return self.phase in (Phase.TELLING, Phase.RESTORING) and self.epoch > 0

    @property
    def is_told(self) -> bool:
        """Whether nothing is left to do but to report its incident when that ends."""
        return self.phase is Phase.RESTORING and self.is_decided and self.restore is None

    @property
    def told(self) -> "Change":
        """The same after all were told: it stays in the record for its incident, which is still open."""
        return replace(self, phase=Phase.RESTORING, restore=None)

    def goes_on_in(self, after: "Change | None") -> bool:
        """Whether that is the same change, and its election still stands."""
        return after is not None and after.key == self.key and after.is_decided >= self.is_decided

    def describe(self) -> str:
        before, restore = self.before, self.restore
        shown = {
            "from": self.from_broker_id,
            "to": self.to_broker_id,
            "slave": self.slave,
            "epoch": self.epoch or None,
            "before": before and f"({before.master_broker_id or 'none'},{before.master_epoch})",
            "restore": restore and f"({restore.broker_id},{restore.min_in_sync_replicas})",
        }
        parts = [f"{name}={value}" for name, value in shown.items() if value is not None]
        head = f"change={self.id} {self.kind} {self.phase} by={self.carried_out_by or '-'}"
        return " ".join([head, *parts, *(["unfenced"] if self.unfenced else [])])


@dataclass(frozen=True, slots=True)
class BrokerGroupRecord:
    """The durable state of one broker group. Compared and swapped as a whole.

    A member of `sync_state_set` or `eligible` holds a *seat*: it has every acknowledged message. `eligible` are those an
    election left behind while nothing can be acknowledged without them (rule 1). `lost_seats` are the last holders of seats, if
    none is left (rule 2). `unfenced` are replaced masters that were not seen dead, until they follow or are removed (rule 7).
    `change` is the change of master under way, `change_id` the id of the last one that began. `restored_from` names the backup that
    the record began with; empty: it began with empty disks.
    """

    cluster_name: str
    broker_name: str
    next_broker_id: int = 1
    replicas: Mapping[int, Replica] = field(default_factory=dict)
    master_broker_id: int | None = None
    master_epoch: int = 0
    sync_state_set: frozenset[int] = frozenset()
    sync_state_set_epoch: int = 0
    master_process_lost: bool = False
    eligible: frozenset[int] = frozenset()
    lost_seats: frozenset[int] = frozenset()
    unclean_elections: int = 0
    unfenced: frozenset[int] = frozenset()
    change_id: int = 0
    change: Change | None = None
    restored_from: str = ""

    def __post_init__(self) -> None:
        ordered = {broker_id: self.replicas[broker_id] for broker_id in sorted(self.replicas)}
        object.__setattr__(self, "replicas", MappingProxyType(ordered))
        for name in ("sync_state_set", "eligible", "lost_seats", "unfenced"):
            object.__setattr__(self, name, frozenset(getattr(self, name)))

    def __hash__(self) -> int:
        # A read-only mapping has no hash of its own.
        seats = self.sync_state_set, self.eligible, self.lost_seats, self.unfenced
        return hash((tuple(self.replicas.values()), self.master_epoch, self.sync_state_set_epoch, seats, self.change))

    @property
    def is_known(self) -> bool:
        """Whether Java would have this broker set in its tables: at least one id is claimed."""
        return any(replica.claimed for replica in self.replicas.values())

    @property
    def has_registered(self) -> bool:
        """Whether a broker with one of the ids has registered: there may be messages."""
        return self.granted_master_id is not None or any(one.registered for one in self.replicas.values())

    @property
    def granted_master_id(self) -> int | None:
        """The master whose present process holds the present epoch, or None (safety rule 6)."""
        return None if self.master_process_lost else self.master_broker_id

    def is_granted(self, broker_id: int | None, master_epoch: int) -> bool:
        """Whether this replica's present process is master under this epoch; None: whether no process is."""
        return (broker_id, master_epoch) == (self.granted_master_id, self.master_epoch)

    @property
    def is_first_election(self) -> bool:
        """Whether no seat says whose data an election must keep: no master yet, all cleaned, or rule 3 applies."""
        return self.master_broker_id is None and not self.seats and not self.lost_seats

    @property
    def awaits_restored_disk(self) -> bool:
        """Whether the group began with a backup and no election is known to have changed its set since.

        The loss of its one seat and the return of that raise the set's epoch by two (rule 2).
        """
        return bool(self.restored_from) and self.master_broker_id is None and self.sync_state_set_epoch <= 3

    @property
    def seats(self) -> frozenset[int]:
        """The replicas that hold every acknowledged message."""
        return self.sync_state_set | self.eligible

    @property
    def as_before(self) -> Before:
        return Before(self.granted_master_id, self.master_epoch, self.sync_state_set, self.sync_state_set_epoch)

    @property
    def as_told_before(self) -> "BrokerGroupRecord":
        """This record with the master and the SyncStateSet of before the change under way, if there is one to be told."""
        if self.change is None or self.change.before is None:
            return self
        return replace(self, **asdict(self.change.before), master_process_lost=False)

    @property
    def superseded(self) -> frozenset[int]:
        """Ids whose pod has registered under a higher one since: it came without the disk of the lower one, which is gone."""
        latest: dict[str, int] = {}
        for broker_id, replica in self.replicas.items():  # in ascending order
            if replica.registered and replica.reserved_for:
                latest[replica.reserved_for] = broker_id
        return frozenset(one for one, it in self.replicas.items() if one < latest.get(it.reserved_for, 0))

    def claimed_replica(self, broker_id: int | None) -> Replica | None:
        """Return the replica with this id if a broker holds it."""
        replica = self.replicas.get(broker_id) if broker_id is not None else None
        return replica if replica is not None and replica.claimed else None

    def address_of(self, broker_id: int | None) -> str | None:
        """Return where the replica is, or None if unknown (safety rule 8)."""
        replica = self.claimed_replica(broker_id)
        return replica.address or None if replica is not None else None

    def describe(self) -> str:
        master = "none" if self.master_broker_id is None else str(self.master_broker_id)
        lost = " (process lost)" if self.master_process_lost else ""
        head = f"{self.broker_name} next={self.next_broker_id} master={master}{lost} epoch={self.master_epoch} "
        head += f"set={draw_ids(self.sync_state_set)} setEpoch={self.sync_state_set_epoch}"
        for name, ids in (("eligible", self.eligible), ("lostSeats", self.lost_seats), ("unfenced", self.unfenced)):
            head += f" {name}={draw_ids(ids)}" if ids else ""
        head += f" unclean={self.unclean_elections}" if self.unclean_elections else ""
        head += f" restoredFrom={self.restored_from}" if self.restored_from else ""
        changing = [f"  {self.change.describe()}"] if self.change is not None else []
        return "\n".join([head, *changing, *(f"  {_describe_replica(replica)}" for replica in self.replicas.values())])


class LiveReplica(NamedTuple):
    """What the heartbeats of one process say.

    `epoch_first_offset` is the offset with which this process first reported its present epoch: only what lies beyond proves
    that it holds bytes of that epoch. `fresh` is False from the loss of a master until a heartbeat or an answer that was
    certainly made afterwards. `doubted`: the last heartbeat said less than these, and the next one decides which is true.
    """

    broker_id: int
    epoch: int = -1
    max_offset: int = -1
    confirm_offset: int = -1
    election_priority: int = DEFAULT_ELECTION_PRIORITY
    address: str = ""
    epoch_first_offset: int = -1
    fresh: bool = True
    doubted: bool = False

    @property
    def end(self) -> tuple[int, int]:
        return self.epoch, self.max_offset

    @property
    def has_data(self) -> bool:
        """Whether its disk holds something an election could lose (safety rule 5)."""
        return self.max_offset > 0 or self.epoch > 0

    @property
    def has_reported(self) -> bool:
        """Whether a heartbeat told what the disk holds. A request of its own does not, nor does a doubted heartbeat."""
        return not self.doubted and (self.max_offset >= 0 or self.epoch >= 0)


# The replicas of a group whose heartbeats are fresh, by broker id.
Live = Mapping[int, LiveReplica]


def draw_id(value: int | None) -> str:
    """Draw an id or an epoch as Java does."""
    return "null" if value is None else str(value)


def draw_ids(broker_ids: Iterable[int]) -> str:
    return "{" + ",".join(str(broker_id) for broker_id in sorted(broker_ids)) + "}"


def _describe_replica(replica: Replica) -> str:
    state = "registered" if replica.registered else "claimed" if replica.claimed else "reserved"
    parts = [str(replica.broker_id), replica.address or "-", state]
    if replica.claimed:
        parts.append(f"check={replica.register_check_code}")
    if replica.reserved_for:
        parts.append(f"for={replica.reserved_for}")
    if (replica.held_epoch, replica.held_offset) != (-1, -1):
        parts.append(f"held=({replica.held_epoch},{replica.held_offset})")
    return " ".join(parts)
