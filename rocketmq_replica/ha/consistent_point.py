"""Up to which offset a slave's log is the master's log: the rest must be cut first.

Both sides know which epoch began where. An epoch is one writer's; two logs that hold the same epoch from the same start offset
agree for as long as both hold it. So the newest such epoch decides, and the shorter of its two ends is the point.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rocketmq_replica.log.epoch_cache import NO_EPOCH, EpochEntry

if TYPE_CHECKING:
    from collections.abc import Sequence


class ConsistentPoint(NamedTuple):
    """Where two logs begin to differ, and the last epoch both know: later ones here were terms that no other replica followed."""

    offset: int
    last_common_epoch: int


class DivergedLogError(Exception):
    """No common history can be shown; cutting would be guessing. Needs a human or a rebuild of this replica."""


def consistent_point(
    *,
    local: Sequence[EpochEntry],
    master: Sequence[EpochEntry],
    local_max_offset: int,
    master_max_offset: int,
    never_confirmed: bool,
) -> ConsistentPoint:
    """The offset to cut the local log to (its own max offset: nothing to cut), and the epoch to cut its history after.

    Raises DivergedLogError when the master is older than what this replica has already followed, or shares no epoch with it.
    """
    if local_max_offset and not local:
        raise DivergedLogError(f"the log holds {local_max_offset} bytes but no epoch says who wrote them")
    master_last = master[-1].epoch if master else NO_EPOCH
    written = max((entry.epoch for entry in local if entry.start_offset < local_max_offset), default=NO_EPOCH)
    if master_last < written:
        raise DivergedLogError(f"the master's last epoch is {master_last}, this replica has bytes of epoch {written}")
    theirs = {entry.epoch: entry for entry in _ending_at(master, master_max_offset)}
    for mine in reversed(_ending_at(local, local_max_offset)):
        other = theirs.get(mine.epoch)
        if other is not None and other.start_offset == mine.start_offset:
            return ConsistentPoint(min(mine.end_offset, other.end_offset, local_max_offset), mine.epoch)
    if local_max_offset == 0:
        return ConsistentPoint(0, NO_EPOCH)
    if local[0].start_offset == 0 and master[0].start_offset == 0 and never_confirmed:
        return ConsistentPoint(0, NO_EPOCH)  # both begin with the empty log, and nothing of ours was ever confirmed
    raise DivergedLogError(
        f"no epoch in common: here {[(entry.epoch, entry.start_offset) for entry in local]}, "
        f"at the master {[(entry.epoch, entry.start_offset) for entry in master]}"
    )


def _ending_at(entries: Sequence[EpochEntry], max_offset: int) -> list[EpochEntry]:
    """The entries with the last one ended at the end of its log, unless it begins above that."""
    if not entries:
        return []
    last = entries[-1]
    if last.start_offset <= max_offset:
        last = EpochEntry(last.epoch, last.start_offset, max_offset)
    return [*entries[:-1], last]
