"""``config/deletedTopics.json``: topics that were deleted (215), and up to which offset of the log their messages are.

Our own file. Java forgets a deleted topic's queue files; here queues and topics are found in the log again, at a start and when a
slave becomes master, so the store remembers which of a topic's messages were deleted with it. A later topic of the same name has
the messages from that offset on. Slaves copy the marks with the topics (21).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rocketmq_replica.log.durable_files import StoreFileError, replace_file, sync_names

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MAX_DELETED_TOPICS = 20_000
"""Beyond these the marks that lie lowest in the log are dropped: their messages expire first."""


class DeletedTopics:
    """Topic -> offset of the log below which its messages are deleted."""

    def __init__(self, path: Path) -> None:
        """Load the file, if there is one; StoreFileError if it is no such table."""
        self._path = path
        self._ends: dict[str, int] = {}
        sync_names(path.parent)
        if path.exists():
            try:
                self._ends = deletions_from_json(json.loads(path.read_bytes()))
            except (ValueError, RecursionError) as error:
                raise StoreFileError(f"{path}: is no table of deleted topics: {error}") from error

    @property
    def ends(self) -> Mapping[str, int]:
        """All of them."""
        return self._ends

    def replace(self, ends: Mapping[str, int]) -> bool:
        """Make these the marks, durably; False if they are already. OSError: nothing has changed."""
        kept = dict(sorted(ends.items(), key=lambda mark: mark[1])[-MAX_DELETED_TOPICS:])
        if kept == self._ends:
            return False
        replace_file(self._path, json.dumps({"deletedTopics": kept}, separators=(",", ":")).encode())
        self._ends = kept
        return True


def deletions_from_json(document: Any) -> dict[str, int]:
    """Return the marks of the file, or of a master's answer to 21, which has them if there are any. ValueError for others."""
    table = document.get("deletedTopics", {}) if isinstance(document, dict) else None
    if not isinstance(table, dict) or not all(type(end) is int and end >= 0 for end in table.values()):
        raise ValueError("deletedTopics: expected an offset of the log for each topic")
    return dict(table)
