"""What the page saw of one group, and when: the controller plane's snapshot, made safe to read in another thread."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from brokergroup_operator.observe.group_view import GroupSnapshot
    from brokergroup_operator.observe.timeline import FailoverTimeline
    from brokergroup_operator.records.store import GroupKey
    from controller_core.model import BrokerGroupRecord


@dataclass(frozen=True, slots=True)
class Sighting:
    """A snapshot and the wall-clock time at which it was taken."""

    snapshot: GroupSnapshot
    seen_at_unix_seconds: float


@dataclass(frozen=True, slots=True)
class SetChange:
    """A SyncStateSet and a master, since when, and why where this process made it so."""

    key: GroupKey
    at_unix_seconds: float
    sync_state_set: tuple[int, ...]
    sync_state_set_epoch: int
    master: int | None
    epoch: int
    why: str = ""

    @classmethod
    def of(cls, key: GroupKey, record: BrokerGroupRecord, at_unix_seconds: float, why: str = "") -> SetChange:
        """What the record says."""
        members = tuple(sorted(record.sync_state_set))
        master, epoch = record.granted_master_id, record.master_epoch
        return cls(key, at_unix_seconds, members, record.sync_state_set_epoch, master, epoch, why)

    def says_the_same_as(self, other: SetChange) -> bool:
        """Whether only the time and the reason differ."""
        return self.what == other.what

    @property
    def what(self) -> tuple[object, ...]:
        """What it says of the group."""
        return (self.sync_state_set, self.sync_state_set_epoch, self.master, self.epoch)


def sighting_of(snapshot: GroupSnapshot, now_unix_seconds: float) -> Sighting:
    """The snapshot with copies of its timelines: the controller plane goes on stamping steps into its own."""
    still = replace(
        snapshot,
        in_progress=_still(snapshot.in_progress),
        last_failover=_still(snapshot.last_failover),
        last_switchover=_still(snapshot.last_switchover),
    )
    return Sighting(still, now_unix_seconds)


def _still(timeline: FailoverTimeline | None) -> FailoverTimeline | None:
    if timeline is None:
        return None
    copied = copy.copy(timeline)
    copied.steps = dict(timeline.steps)
    copied.evidence = list(timeline.evidence)
    return copied
