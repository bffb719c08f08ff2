"""How far each delay level is delivered: ``config/delayOffset.json``, as Java writes it.

The master delivers what consumers sent back (``clients/delayed_delivery.py``) and says here how far it is; a slave copies the
table (45), so that the next master, Java or Python, goes on from there and delivers nothing twice that it need not.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rocketmq_replica.log.durable_files import StoreFileError, replace_file, sync_names

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class DelayOffsets:
    """Java's DelayOffsetSerializeWrapper: delay level -> queue offset of the next message to deliver."""

    def __init__(self, path: Path) -> None:
        """Load the file, if there is one."""
        self._path = path
        self._changed = False
        self.document: dict[str, Any] = {"offsetTable": {}}
        sync_names(path.parent)
        if path.exists():
            try:
                self.document = dict(json.loads(path.read_bytes()))
            except (ValueError, RecursionError, TypeError) as error:
                raise StoreFileError(f"{path}: is no table of delay offsets: {error!r}") from error

    def get(self, level: int) -> int:
        """The next message of that level's queue."""
        offset = (self.document.get("offsetTable") or {}).get(str(level), 0)
        return offset if isinstance(offset, int) else 0

    def put(self, level: int, offset: int) -> None:
        """Everything before it is delivered, confirmed and on the disk."""
        table = dict(self.document.get("offsetTable") or {})
        self.document = {**self.document, "offsetTable": {**table, str(level): offset}}
        self._changed = True

    def replace(self, document: Mapping[str, Any]) -> None:
        """Take the master's; OSError if it cannot be saved."""
        if document.get("offsetTable") and dict(document) != self.document:
            replace_file(self._path, _content(document))
            self.document = dict(document)

    def take_changes(self) -> bytes | None:
        """The file's new content, if anything changed since it was last asked for."""
        if not self._changed:
            return None
        self._changed = False
        return _content(self.document)

    def write(self, content: bytes) -> None:
        """Make the content durable; may run in a thread. If that fails it is asked for again."""
        try:
            replace_file(self._path, content)
        except OSError:
            self._changed = True
            raise


def _content(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
