"""Which old files of the commit log may be deleted. Pure.

Whole files from the oldest on; never the last one, and never one that reaches above the *barrier*: the confirm offset, or what a
linked slave still has to read. Above ``diskMaxUsedSpaceRatio`` expired files are deleted at any hour, above
``diskSpaceCleanForciblyRatio`` also files that have not expired. Java then also deletes what slaves still need, which leaves no
failover candidate until they are rebuilt. Here the disk fills up instead, and sends are refused (code 14).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_FILES_AT_ONCE = 10
ENOUGH_FREE_BYTES = 4 << 30
"""With more free bytes than this the disk never counts as full: on a large disk a few percent are enough."""


@dataclass
class RetentionPolicy:
    """Keys of ``broker.conf``, some changed live by UPDATE_BROKER_CONFIG; ``max_bytes`` is ours, 0 is no limit."""

    reserved_hours: int = 72
    delete_hours: frozenset[int] = frozenset({4})
    max_bytes: int = 0
    eager_used_percent: int = 75
    forced_used_percent: int = 85
    full_used_percent: int = 90


class LogFileFacts(NamedTuple):
    """One file of the log."""

    start_offset: int
    end_offset: int
    written_at_seconds: float


@dataclass(frozen=True)
class DiskSpace:
    """The file system of the log."""

    used_percent: float
    free_bytes: int


def is_full(policy: RetentionPolicy, space: DiskSpace) -> bool:
    """Whether the disk is too full to store messages."""
    return space.used_percent >= policy.full_used_percent and space.free_bytes < ENOUGH_FREE_BYTES


def files_to_delete(
    files: Sequence[LogFileFacts],
    policy: RetentionPolicy,
    space: DiskSpace,
    *,
    barrier_offset: int,
    now_seconds: float,
    local_hour: int,
) -> int:
    """Return how many of the oldest files to delete now."""
    scarce = space.free_bytes < ENOUGH_FREE_BYTES
    forced = scarce and space.used_percent >= policy.forced_used_percent
    in_time = local_hour in policy.delete_hours or (scarce and space.used_percent >= policy.eager_used_percent)
    size = files[-1].end_offset - files[0].start_offset if files else 0
    count = 0
    for file in files[: -1 if files else 0]:
        expired = now_seconds - file.written_at_seconds > policy.reserved_hours * 3600
        too_much = bool(policy.max_bytes) and size > policy.max_bytes
        if file.end_offset > barrier_offset or not (forced or too_much or (expired and in_time)):
            break
        size -= file.end_offset - file.start_offset
        count += 1
    return min(count, MOST_FILES_AT_ONCE)
