"""``config/deletedTopics.json``: topics that were deleted (215), and up to which offset of the log their messages are.

Our own file. Java forgets a deleted topic's queue files; here queues and topics are found in the log again, at a start and when a
slave becomes master, so the store remembers which of a topic's messages were deleted with it. A later topic of the same name has
the messages from that offset on. Slaves copy the marks with the topics (21).

A mark travels by another way than the log. It names the epoch in which the topic was deleted, so each replica finds in the history
of its own log which bytes the deleting master had: what another master wrote there is never hidden, and a mark that is ahead of the
log, or older than it, is right without being rewritten.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from rocketmq_replica.log.durable_files import StoreFileError, replace_file, sync_names

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rocketmq_replica.log.epoch_cache import EpochCache

MAX_DELETED_TOPICS = 20_000
"""With messages in the log. Beyond these no topic is deleted: a mark that is dropped would bring its topic back."""
_KEY = "deletedTopics"


class TooManyDeletionsError(Exception):
    """No further topic can be deleted now; the message says why."""


class Deletion(NamedTuple):
    """Messages below ``end_offset`` are deleted, in a log that has the epoch in which they were, or had them before it began."""

    end_offset: int
    epoch: int
    epoch_start_offset: int

    def hidden_before(self, epochs: EpochCache) -> int:
        """Where the hidden part of a log with this history ends.

        A log that has the epoch may have left it before the deletion: its later epochs are another master's. A log without that
        epoch shares with the deleting master at most what lies before it.
        """
        for entry in epochs.entries:
            if (entry.epoch, entry.start_offset) == (self.epoch, self.epoch_start_offset):
                return min(self.end_offset, entry.end_offset)
        others = (entry.start_offset for entry in epochs.entries if entry.epoch >= self.epoch)
        return min(self.end_offset, self.epoch_start_offset, *others)


class DeletedTopics:
    """Topic -> the last deletion of a topic of this name."""

    def __init__(self, path: Path) -> None:
        """Load the file, if there is one; StoreFileError if it is no such table."""
        self._path = path
        self._marks: dict[str, Deletion] = {}
        sync_names(path.parent)
        if path.exists():
            try:
                self._marks = _marks(json.loads(path.read_bytes())[_KEY])
            except (ValueError, RecursionError, KeyError, TypeError) as error:
                raise StoreFileError(f"{path}: is no table of deleted topics: {error!r}") from error

    @property
    def marks(self) -> Mapping[str, Deletion]:
        """All of them."""
        return self._marks

    def add(self, topic: str, mark: Deletion, *, log_begins_at: int) -> None:
        """Remember one more, durably. TooManyDeletionsError, OSError: nothing has changed."""
        marks: Mapping[str, Deletion] = {**self._marks, topic: mark}
        if len(marks) > MAX_DELETED_TOPICS:
            marks = {name: mark for name, mark in marks.items() if mark.end_offset > log_begins_at}
        if len(marks) > MAX_DELETED_TOPICS:
            raise TooManyDeletionsError(
                f"{len(self._marks)} deleted topics have messages in the log, expected at most {MAX_DELETED_TOPICS}: "
                "they end when its old files are deleted"
            )
        self.replace(marks)

    def replace(self, marks: Mapping[str, Deletion]) -> bool:
        """Make these the marks, durably; False if they are already. OSError: nothing has changed."""
        if marks == self._marks:
            return False
        replace_file(self._path, json.dumps({_KEY: marks}, separators=(",", ":")).encode())
        self._marks = dict(marks)
        return True


def deletions_in(answer: Mapping[str, Any]) -> dict[str, Deletion]:
    """Return the marks in a master's answer to 21, which has them if there are any. ValueError for others."""
    return _marks(answer.get(_KEY, {}))


def _marks(table: object) -> dict[str, Deletion]:
    if not isinstance(table, dict):
        raise ValueError(f"{_KEY}: expected an object")  # noqa: TRY004 - one error for all that is no such table
    return {topic: _mark(topic, numbers) for topic, numbers in table.items()}


def _mark(topic: str, numbers: object) -> Deletion:
    if isinstance(numbers, list) and len(numbers) == len(Deletion._fields) and all(type(one) is int for one in numbers):
        mark = Deletion(*numbers)
        if 0 <= mark.epoch_start_offset <= mark.end_offset:
            return mark
    raise ValueError(f"{_KEY}: {topic[:50]!r}: expected an end, an epoch and the offset at which that began")
