"""What the owner of a group wants of the controller, passed in with every step; and the policies of `spec.failover.electionPolicy`,
which are asked only where every candidate holds every acknowledged message. Where data is at stake `most_data` decides.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from controller_core.model import BrokerGroupRecord, LiveReplica

# In `election_priorities`: this replica never becomes master (`test_every_way_keeps_the_invariants`). On the wire 0 is an
# ordinary, and the best, priority.
NEVER_ELECT_PRIORITY = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """The defaults are the Java controller's behaviour.

    `shrink_floor`, `masters_shrink_first`, `min_in_sync_replicas`: safety rule 1 (`sync_state.py`). `keep_no_floor`: brokers
    not known to keep that minimum; when one of them is elected no replica becomes eligible. `never_elect` are the learners.
    `election_priorities` overrides the heartbeats' priorities among replicas with equal data; lower wins, 0: no election.
    `expected_replicas` must have been heard before a first election on data. An epoch more than `max_epoch_jump` above the
    record's is followed only up to `accepted_epoch`, which a person sets, or follows from the group's beginning (rule 3). A disk's
    id is adopted up to `max_ids_ahead` above the record's next: all ids between are burnt. A record that began with a backup has
    its ids already; one that lost that beginning follows its brokers up to `max_ids_of_restored`.
    """

    unclean_election_allowed: bool = False
    shrink_floor: bool = False
    masters_shrink_first: bool = False
    min_in_sync_replicas: int = 1
    keep_no_floor: frozenset[int] = frozenset()
    never_elect: frozenset[int] = frozenset()
    election_priorities: Mapping[int, int] = field(default_factory=dict)
    election_policy: str = "most-data"
    zones: Mapping[int, str] = field(default_factory=dict)
    preferred_zones: tuple[str, ...] = ()
    zone_lag_bytes: int = 16 * 1024 * 1024
    expected_replicas: int = 0
    accepted_epoch: int = 0
    max_epoch_jump: int = 10_000
    max_ids_ahead: int = 1000
    max_ids_of_restored: int = 0
    held_bucket_bytes: int = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        """Raise `ValueError` for an unknown policy here, not in the middle of a failover."""
        if self.election_policy not in POLICIES:
            expected = ", ".join(POLICIES)
            raise ValueError(f"election policy is {self.election_policy!r}, expected one of {expected}")

    @property
    def floor(self) -> int:
        """The least size of the SyncStateSet (safety rule 1); 0: there is none."""
        return self.min_in_sync_replicas if self.shrink_floor else 0

    def may_be_master(self, broker_id: int) -> bool:
        """Whether this replica may be elected at all."""
        return broker_id not in self.never_elect and self.election_priorities.get(broker_id) != NEVER_ELECT_PRIORITY


# Returns one of the candidates, of which there is at least one. Equal input, equal choice.
Policy = Callable[[Sequence[LiveReplica], BrokerGroupRecord, ControllerSettings], LiveReplica]


def most_data(
    candidates: Sequence[LiveReplica], record: BrokerGroupRecord, settings: ControllerSettings
) -> LiveReplica:
    """Return the candidate with the most data: Java's `DefaultElectPolicy` (docs/reference/controller.md), made exact.

    Epoch, then offset: Java casts the offsets' difference to int and elects the *shorter* log beyond 2 GiB (issue 10578). Among
    equals: the old master, whose clients need not move; the priority; the zone; the lowest id, so that two planes decide alike.
    """
    return min(candidates, key=lambda one: (-one.epoch, -one.max_offset, *_taste(one, record, settings)))


def preferred_zone(
    candidates: Sequence[LiveReplica], record: BrokerGroupRecord, settings: ControllerSettings
) -> LiveReplica:
    """Return a candidate in the most wanted zone, among those of the highest epoch within `zone_lag_bytes` of the longest log.

    A shorter log lacks only what was not acknowledged. Not safe where a number of replicas acknowledges (durability `Fast`): there
    the longest log is all there is. A lower epoch is not traded: it would cost every other replica a truncation.
    """
    epoch, longest = max(one.end for one in candidates)
    near = [one for one in candidates if one.epoch == epoch and one.max_offset >= longest - settings.zone_lag_bytes]
    ranks = {one: _zone_rank(one.broker_id, record, settings) for one in near}
    return min(near, key=lambda one: (ranks[one], -one.max_offset, *_taste(one, record, settings)))


POLICIES: Mapping[str, Policy] = MappingProxyType({"most-data": most_data, "preferred-zone": preferred_zone})


def _taste(replica: LiveReplica, record: BrokerGroupRecord, settings: ControllerSettings) -> tuple[bool, int, int, int]:
    priority = settings.election_priorities.get(replica.broker_id, replica.election_priority)
    zone = _zone_rank(replica.broker_id, record, settings)
    return (replica.broker_id != record.master_broker_id, priority, zone, replica.broker_id)


def _zone_rank(broker_id: int, record: BrokerGroupRecord, settings: ControllerSettings) -> int:
    """Return how wanted the replica's zone is, 0 for most: the preferred in order, or another than the lost master's."""
    zone, preferred = settings.zones.get(broker_id), settings.preferred_zones
    if preferred:
        return preferred.index(zone) if zone in preferred else len(preferred)
    lost = settings.zones.get(record.master_broker_id) if record.master_broker_id is not None else None
    return int(lost is not None and zone in (lost, None))
