"""``checkpoint``: what Java keeps in a 4096-byte file next to the log; we need the confirm offset of it (A.8, A.13).

The confirm offset is advice that survives a restart, not truth: it is clamped to the log that was really found. Behind Java's five
numbers stands one of ours, with a check sum over all six: up to where messages were confirmed *and* durable on this disk. No crash
takes those away, so a start that does not find them refuses (``CommitLog.recover``). Java rewrites its five and leaves ours, whose
check sum is wrong then, and it counts as 0.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rocketmq_replica.log.durable_files import ReplacedFile, sync_names

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_LAYOUT = struct.Struct(">qqqqq")
_OURS = struct.Struct(">qI")
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
    durable_offset: int = 0
    """Confirmed, and on this disk when this was saved."""


class CheckpointFile:
    """The file of one store. It may be saved from two threads at once: the content that was taken later stays."""

    def __init__(self, path: Path) -> None:
        """Nothing is read before ``load``."""
        self._file = ReplacedFile(path)
        self.durable_offset = 0
        """The highest that a start could find in the file."""

    def load(self) -> Checkpoint:
        """The saved checkpoint, zeros if there never was one; a damaged one says that something unknown was confirmed."""
        path = self._file.path
        sync_names(path.parent)
        checkpoint = decode_checkpoint(path.read_bytes()) if path.exists() else Checkpoint()
        self.durable_offset = checkpoint.durable_offset
        return checkpoint

    def save(self, take: Callable[[], Checkpoint]) -> None:
        """Make what ``take`` returns durable, unless something that was taken later is."""
        taken: list[Checkpoint] = []

        def content() -> bytes:
            taken.append(take())
            self.durable_offset = max(self.durable_offset, taken[0].durable_offset)
            return encode_checkpoint(taken[0])

        if self._file.write(self._file.take(content)):
            self.durable_offset = taken[0].durable_offset


def decode_checkpoint(content: bytes) -> Checkpoint:
    """Read the file's content."""
    if len(content) < _LAYOUT.size:
        return Checkpoint(confirm_offset=UNKNOWN)
    javas = Checkpoint(*_LAYOUT.unpack_from(content))
    durable, crc = _OURS.unpack_from(content.ljust(_FILE_BYTES, b"\0"), _LAYOUT.size)
    ours = replace(javas, durable_offset=durable)
    return ours if crc == _crc(ours) else javas


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """The file's content."""
    content = _LAYOUT.pack(*_javas_fields(checkpoint)) + _OURS.pack(checkpoint.durable_offset, _crc(checkpoint))
    return content.ljust(_FILE_BYTES, b"\0")


def _javas_fields(checkpoint: Checkpoint) -> tuple[int, int, int, int, int]:
    return (
        checkpoint.physical_message_timestamp_ms,
        checkpoint.logics_message_timestamp_ms,
        checkpoint.index_message_timestamp_ms,
        checkpoint.master_flushed_offset,
        checkpoint.confirm_offset,
    )


def _crc(checkpoint: Checkpoint) -> int:
    return zlib.crc32(struct.pack(">6q", *_javas_fields(checkpoint), checkpoint.durable_offset))
