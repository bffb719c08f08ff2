"""How far a Java master has delivered its delayed messages: kept for it, in ``config/delayOffset.json`` as Java writes it.

This replica delivers no delayed messages, but while it is master a Java slave overwrites its own file with what request 45 answers.
Without the real offsets the next Java master would deliver every delayed message in the log once more.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rocketmq_replica.durable_files import StoreFileError, replace_file, sync_names

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class DelayOffsets:
    """Java's DelayOffsetSerializeWrapper, word for word."""

    def __init__(self, path: Path) -> None:
        """Load the file, if there is one."""
        self._path = path
        self.document: dict[str, Any] = {"offsetTable": {}}
        sync_names(path.parent)
        if path.exists():
            try:
                self.document = dict(json.loads(path.read_bytes()))
            except (ValueError, TypeError) as error:
                raise StoreFileError(f"{path}: is no table of delay offsets: {error!r}") from error

    def replace(self, document: Mapping[str, Any]) -> None:
        """Take the master's; OSError if it cannot be saved."""
        if document.get("offsetTable") and dict(document) != self.document:
            replace_file(self._path, json.dumps(document, separators=(",", ":")).encode())
            self.document = dict(document)
