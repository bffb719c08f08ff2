"""The history of masters: which epoch began at which offset of the log, and up to where two logs agree. Pure.

Two replicas compare these lists to find where their logs agree (``consistent_point``), so an entry must identify one writer. One
rule differs from Java (upstream #9942): a new epoch that begins where the last one began *replaces* that empty epoch. Java refuses
it, and then two masters can write different bytes under the same (epoch, start offset).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


NO_END = (1 << 63) - 1
NO_EPOCH = -1


@dataclass(frozen=True)
class EpochEntry:
    """One master's term: the bytes from ``start_offset`` to before ``end_offset``."""

    epoch: int
    start_offset: int
    end_offset: int = NO_END


class EpochCache:
    """The epochs in order; the last one has no end."""

    def __init__(self, entries: list[EpochEntry] | None = None) -> None:
        """Entries may come in any order; each ends where the next one starts."""
        self._entries = _closed(sorted(entries or [], key=lambda entry: entry.epoch))

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        """All entries, oldest first."""
        return tuple(self._entries)

    @property
    def last_epoch(self) -> int:
        """The newest epoch, -1 if there is none."""
        return self._entries[-1].epoch if self._entries else NO_EPOCH

    @property
    def last(self) -> EpochEntry | None:
        """The newest entry."""
        return self._entries[-1] if self._entries else None

    def append(self, epoch: int, start_offset: int) -> bool:
        """Begin an epoch. Return False, without a change, if it is not newer or would start before the last one."""
        last = self.last
        if last is not None and (last.epoch >= epoch or last.start_offset > start_offset):
            return False
        kept = self._entries
        if last is not None and last.start_offset == start_offset:
            kept = self._entries[:-1]
        self._entries = _closed([*kept, EpochEntry(epoch, start_offset)])
        return True

    def drop_beyond_offset(self, offset: int) -> bool:
        """Remove entries that begin after ``offset``, which a crash can leave. Return whether there were any."""
        return self._keep([entry for entry in self._entries if entry.start_offset <= offset])

    def drop_from_epoch(self, epoch: int) -> bool:
        """Remove entries of ``epoch`` and later. Return whether there were any."""
        return self._keep([entry for entry in self._entries if entry.epoch < epoch])

    def drop_before_offset(self, offset: int) -> bool:
        """Remove entries that end at or before ``offset``, after old log files were deleted. Return whether there were any."""
        return self._keep([entry for entry in self._entries if entry.end_offset > offset])

    def find_by_offset(self, offset: int) -> EpochEntry | None:
        """Return the entry that contains ``offset``."""
        for entry in reversed(self._entries):
            if entry.start_offset <= offset:
                return entry if offset < entry.end_offset else None
        return None

    def _keep(self, entries: list[EpochEntry]) -> bool:
        changed = len(entries) != len(self._entries)
        self._entries = _closed(entries)
        return changed


def _closed(entries: list[EpochEntry]) -> list[EpochEntry]:
    """Return the entries with each end set to the next start and the last one open."""
    starts = [entry.start_offset for entry in entries[1:]]
    return [
        replace(entry, end_offset=end) for entry, end in zip(entries, [*starts, NO_END] if entries else [], strict=True)
    ]


class ConsistentPoint(NamedTuple):
    """Where two logs begin to differ, and the last epoch that both contain; no other replica followed the later ones here."""

    offset: int
    last_common_epoch: int


class DivergedLogError(Exception):
    """The logs have no provable common history, so the cut cannot be determined. This replica has to be repaired or rebuilt."""


def consistent_point(
    *,
    local: Sequence[EpochEntry],
    master: Sequence[EpochEntry],
    local_max_offset: int,
    master_max_offset: int,
    never_confirmed: bool,
) -> ConsistentPoint:
    """Return the offset to cut the local log to (its max offset: no cut), and the last epoch to keep.

    An epoch has one writer: two logs with the same epoch from the same start offset agree for as long as both contain it. The
    newest such epoch decides, and the shorter of its two ends is the point. Raise DivergedLogError if the master's log is older
    than this one, or has no epoch in common with it.
    """
    if local_max_offset and not local:
        raise DivergedLogError(f"the log holds {local_max_offset} bytes but no epoch for them")
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
        return ConsistentPoint(0, NO_EPOCH)  # both logs begin at 0, and nothing of ours was ever confirmed
    raise DivergedLogError(
        f"no epoch in common: here {[(entry.epoch, entry.start_offset) for entry in local]}, "
        f"at the master {[(entry.epoch, entry.start_offset) for entry in master]}"
    )


def _ending_at(entries: Sequence[EpochEntry], max_offset: int) -> list[EpochEntry]:
    """Return the entries with the last one closed at the end of its log, unless it begins above that."""
    if not entries:
        return []
    last = entries[-1]
    if last.start_offset <= max_offset:
        last = EpochEntry(last.epoch, last.start_offset, max_offset)
    return [*entries[:-1], last]
