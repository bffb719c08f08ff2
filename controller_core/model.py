"""What the controller remembers of a broker group (`BrokerGroupRecord`, durable) and what it hears (`LiveReplica`, perishable).

Both are values: nothing changes in place, and equal records compare equal. The record has what Java keeps and what the safety
rules add: reservations, registered flags, lost master processes, a next broker id that does not fall. It outlives its replicas:
a wholly cleaned group keeps its next id and its epochs (safety rule 4), and answers as an unknown one (`is_known`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from controller_core.plan import Before, Change

DEFAULT_ELECTION_PRIORITY = 2**31 - 1
"""What a broker without `brokerElectionPriority` has (docs/reference/controller.md). Lower wins."""

MAX_EPOCH = 2**31 - 1
"""Epochs are Java ints: there is none above this one."""

ADOPTED = "adopted"
"""The second half of an adopted replica's check code, where a broker has the milliseconds of its application."""


@dataclass(frozen=True, slots=True)
class Replica:
    """One broker id and its holder.

    *reserved*: promised to a pod, not yet claimed (empty check code). *claimed*: ApplyBrokerId (1013) was granted.
    *registered*: the holder has also sent RegisterBroker (1003), so a disk knows this id. An empty address: unknown (safety
    rule 8). `held_epoch` and `held_offset` are its mark (`holdings.py`); -1: nothing is known.
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
        """Whether the record had lost this id, and has it again from its disk (`membership.py`)."""
        return self.register_check_code.endswith(f";{ADOPTED}")

    @property
    def claimed(self) -> bool:
        """Whether the id is in use by a broker: what Java calls registered."""
        return bool(self.register_check_code)


@dataclass(frozen=True, slots=True)
class BrokerGroupRecord:
    """The durable state of one broker group. Compared and swapped as a whole.

    A member of `sync_state_set` or `eligible` holds a *seat*: it has every acknowledged message. `eligible` are those an
    election left behind while nothing can be acknowledged without them (rule 1). `lost_seats` are the last holders of seats, if
    none is left (rule 2). `unfenced` are replaced masters that were not seen dead, until they follow or are removed (rule 7).
    `change` is the change of master under way (`plan.py`), `change_id` the id of the last one that began.
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

    def __post_init__(self) -> None:
        """Keep a private, sorted, read-only copy of the replicas."""
        ordered = {broker_id: self.replicas[broker_id] for broker_id in sorted(self.replicas)}
        object.__setattr__(self, "replicas", MappingProxyType(ordered))
        for name in ("sync_state_set", "eligible", "lost_seats", "unfenced"):
            object.__setattr__(self, name, frozenset(getattr(self, name)))

    def __hash__(self) -> int:
        """Hash as a value; written out because a read-only mapping has no hash of its own."""
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

    @property
    def is_first_election(self) -> bool:
        """Whether no seat says whose data an election must keep: no master yet, all cleaned, or rule 3 applies."""
        return self.master_broker_id is None and not self.seats and not self.lost_seats

    @property
    def seats(self) -> frozenset[int]:
        """The replicas that hold every acknowledged message."""
        return self.sync_state_set | self.eligible

    @property
    def as_before(self) -> Before:
        """What a change of master keeps of this record, for 1004 to answer until the brokers were told in order."""
        return Before(
            master_broker_id=self.granted_master_id,
            master_epoch=self.master_epoch,
            sync_state_set=self.sync_state_set,
            sync_state_set_epoch=self.sync_state_set_epoch,
        )

    @property
    def as_told_before(self) -> "BrokerGroupRecord":
        """This record with the master and the SyncStateSet of before the change under way, if there is one to be told."""
        before = self.change.before if self.change is not None else None
        if before is None:
            return self
        return replace(self, **asdict(before), master_process_lost=False)

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
        """Draw the record in a few lines, for traces and logs."""
        master = "none" if self.master_broker_id is None else str(self.master_broker_id)
        lost = " (process lost)" if self.master_process_lost else ""
        head = (
            f"{self.broker_name} next={self.next_broker_id} master={master}{lost} epoch={self.master_epoch} "
            f"set={draw_ids(self.sync_state_set)} setEpoch={self.sync_state_set_epoch}"
        )
        for name, ids in (("eligible", self.eligible), ("lostSeats", self.lost_seats), ("unfenced", self.unfenced)):
            head += f" {name}={draw_ids(ids)}" if ids else ""
        head += f" unclean={self.unclean_elections}" if self.unclean_elections else ""
        changing = [f"  {self.change.describe()}"] if self.change is not None else []
        return "\n".join([head, *changing, *(f"  {_describe_replica(replica)}" for replica in self.replicas.values())])


class LiveReplica(NamedTuple):
    """What the heartbeats of one process say, while they are fresh.

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
        """How far its log goes: by epoch, then offset."""
        return self.epoch, self.max_offset

    @property
    def has_data(self) -> bool:
        """Whether the disk behind it holds something an election could lose (safety rule 5)."""
        return self.max_offset > 0 or self.epoch > 0

    @property
    def has_reported(self) -> bool:
        """Whether a heartbeat told what the disk holds. A request of its own does not, nor does a doubted heartbeat."""
        return not self.doubted and (self.max_offset >= 0 or self.epoch >= 0)


Live = Mapping[int, LiveReplica]
"""The replicas of a group whose heartbeats are fresh, by broker id."""


def draw_id(value: int | None) -> str:
    """Draw an id or an epoch as Java does."""
    return "null" if value is None else str(value)


def draw_ids(broker_ids: Iterable[int]) -> str:
    """Draw a set of ids in ascending order."""
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
