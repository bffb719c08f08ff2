"""``checkpoint``: what Java keeps in a 4096-byte file next to the log; we need the confirm offset of it (A.8, A.13).

The confirm offset is advice that survives a restart, not truth: it is clamped to the log that was really found.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rocketmq_replica.durable_files import replace_file, sync_names

if TYPE_CHECKING:
    from pathlib import Path

_LAYOUT = struct.Struct(">qqqqq")
_FILE_BYTES = 4096
UNKNOWN = -1


@dataclass(frozen=True)
class Checkpoint:
    """The fields in the order of the file; a replica that never saved one starts with zeros."""

    physical_message_timestamp_ms: int = 0
    logics_message_timestamp_ms: int = 0
    index_message_timestamp_ms: int = 0
    master_flushed_offset: int = 0
    confirm_offset: int = 0


def load_checkpoint(path: Path) -> Checkpoint:
    """The saved checkpoint, zeros if there never was one; a damaged one says that something unknown was confirmed."""
    sync_names(path.parent)
    if not path.exists():
        return Checkpoint()
    content = path.read_bytes()
    if len(content) < _LAYOUT.size:
        return Checkpoint(confirm_offset=UNKNOWN)
    return Checkpoint(*_LAYOUT.unpack_from(content))


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Make it durable."""
    fields = _LAYOUT.pack(
        checkpoint.physical_message_timestamp_ms,
        checkpoint.logics_message_timestamp_ms,
        checkpoint.index_message_timestamp_ms,
        checkpoint.master_flushed_offset,
        checkpoint.confirm_offset,
    )
    replace_file(path, fields.ljust(_FILE_BYTES, b"\0"))
