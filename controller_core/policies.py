"""Which candidate is best: `spec.failover.electionPolicy`, a pure function for each.

`election.py` asks a policy only in a clean election, where every candidate holds every acknowledged message; where data is at
stake `most_data` decides. A new policy is one more function, and its name in `POLICIES` and `settings.ELECTION_POLICIES`.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from controller_core.model import BrokerGroupRecord, LiveReplica
from controller_core.settings import MOST_DATA, PREFERRED_ZONE, ControllerSettings

Policy = Callable[[Sequence[LiveReplica], BrokerGroupRecord, ControllerSettings], LiveReplica]
"""Returns one of the candidates, of which there is at least one. Equal input, equal choice."""


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

    A shorter log lacks only what was not acknowledged, because every candidate holds all that was. Not safe where a number of
    replicas acknowledges (durability `Fast`): there the longest log is all there is. A lower epoch is not traded: it would cost
    every other replica a truncation.
    """
    epoch, longest = max((one.epoch, one.max_offset) for one in candidates)
    near = [one for one in candidates if one.epoch == epoch and one.max_offset >= longest - settings.zone_lag_bytes]
    return min(
        near,
        key=lambda one: (
            _zone_rank(one.broker_id, record, settings),
            -one.max_offset,
            *_taste(one, record, settings),
        ),
    )


POLICIES: Mapping[str, Policy] = MappingProxyType({MOST_DATA: most_data, PREFERRED_ZONE: preferred_zone})


def _taste(replica: LiveReplica, record: BrokerGroupRecord, settings: ControllerSettings) -> tuple[bool, int, int, int]:
    """Return a key that sorts replicas with equal data, best first."""
    priority = settings.election_priorities.get(replica.broker_id, replica.election_priority)
    zone = _zone_rank(replica.broker_id, record, settings)
    return (replica.broker_id != record.master_broker_id, priority, zone, replica.broker_id)


def _zone_rank(broker_id: int, record: BrokerGroupRecord, settings: ControllerSettings) -> int:
    """Return how wanted the replica's zone is, 0 for most: the preferred in order, or another than the lost master's."""
    zone = settings.zones.get(broker_id)
    if settings.preferred_zones:
        return (
            settings.preferred_zones.index(zone) if zone in settings.preferred_zones else len(settings.preferred_zones)
        )
    lost = settings.zones.get(record.master_broker_id) if record.master_broker_id is not None else None
    return int(lost is not None and zone in (lost, None))
