"""The default: the most data wins. Java's `DefaultElectPolicy` (docs/controller.md), made exact.

Epoch, then offset, compared exactly: Java casts the offsets' difference to int and elects the *shorter* log beyond 2 GiB
(issue 10578). Equal data is decided by taste, in this order: the old master, whose clients need not move; the priority;
the zone; the lowest broker id, so that two operators that decide at once decide the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from controller_core.model import BrokerGroupRecord, LiveReplica
    from controller_core.settings import ControllerSettings

NAME = "most-data"


def choose(candidates: Sequence[LiveReplica], record: BrokerGroupRecord, settings: ControllerSettings) -> LiveReplica:
    """Return the candidate with the most data."""
    return min(candidates, key=lambda one: (-one.epoch, -one.max_offset, *taste(one, record=record, settings=settings)))


def taste(
    replica: LiveReplica, *, record: BrokerGroupRecord, settings: ControllerSettings
) -> tuple[bool, int, int, int]:
    """Return a key that sorts replicas with equal data, best first."""
    priority = settings.election_priorities.get(replica.broker_id, replica.election_priority)
    zone = zone_rank(replica.broker_id, record=record, settings=settings)
    return (replica.broker_id != record.master_broker_id, priority, zone, replica.broker_id)


def zone_rank(broker_id: int, *, record: BrokerGroupRecord, settings: ControllerSettings) -> int:
    """Return how wanted the replica's zone is, 0 for most: the preferred in order, or another than the lost master's."""
    zone = settings.zones.get(broker_id)
    if settings.preferred_zones:
        return (
            settings.preferred_zones.index(zone) if zone in settings.preferred_zones else len(settings.preferred_zones)
        )
    lost = settings.zones.get(record.master_broker_id) if record.master_broker_id is not None else None
    return int(lost is not None and zone in (lost, None))
