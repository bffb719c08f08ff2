"""The small files beside the commit log: checkpoint, epochs, indexes of full log files, deleted topics, queue numbers.

``checkpoint`` and ``epochFileCheckpoint`` are Java's, in its format and place; the others are our own, which Java leaves alone.
"""

from __future__ import annotations

import json
import logging
import re
import struct
import sys
import threading
import zlib
from array import array
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from rocketmq_remoting.message_record import EntryKind, MessageRecordError, inspect_entry
from rocketmq_replica.log.consume_queues import QueuePart
from rocketmq_replica.log.disk import (
    ReplacedFile,
    StoreFileError,
    compact_json,
    load_table,
    remove_file,
    replace_file,
    sync_names,
)
from rocketmq_replica.log.epochs import EpochCache, EpochEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
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


_ENTRY = re.compile(r"(\d+)-(\d+)")


def encode_epochs(cache: EpochCache) -> bytes:
    """The file's text."""
    text = "".join(f"{entry.epoch}-{entry.start_offset}\n" for entry in cache.entries)
    return f"{len(cache.entries)}\n{crc_of(text)}\n{text}".encode()


def crc_of(text: str) -> int:
    """The check sum of the entry lines."""
    return zlib.crc32(text.encode()) & 0x7FFFFFFF


def decode_epochs(content: bytes, name: str) -> EpochCache:
    """Read the text; every contradiction is a StoreFileError that names ``name``."""
    lines = content.decode("ascii", "replace").splitlines()
    if len(lines) < 2 or not lines[0].isdigit() or not lines[1].isdigit():
        raise StoreFileError(f"{name}: expected a count and a check sum in the first two lines, found {lines[:2]!r}")
    count, crc, entry_lines = int(lines[0]), int(lines[1]), lines[2:]
    if count != len(entry_lines):
        raise StoreFileError(f"{name}: says {count} entries, holds {len(entry_lines)}")
    if crc not in (0, crc_of("".join(line + "\n" for line in entry_lines))):
        raise StoreFileError(f"{name}: check sum {crc} does not belong to its entries")
    matches = [_ENTRY.fullmatch(line) for line in entry_lines]
    if any(match is None for match in matches):
        raise StoreFileError(f"{name}: expected epoch-startOffset in each line, found {entry_lines!r}")
    return EpochCache([EpochEntry(int(match[1]), int(match[2])) for match in matches if match is not None])


def load_epochs(path: Path) -> EpochCache:
    """The cache as it was saved; an absent file is an empty history, Java's ``.bak`` stands in for a torn one."""
    sync_names(path.parent)
    backup = path.with_name(path.name + ".bak")
    if not path.exists() and not backup.exists():
        return EpochCache()
    try:
        return decode_epochs(path.read_bytes() if path.exists() else b"", str(path))
    except StoreFileError:
        if not backup.exists():
            raise
        return decode_epochs(backup.read_bytes(), str(backup))


def save_epochs(path: Path, cache: EpochCache) -> None:
    """Make the cache durable. A left-over ``.bak`` of a Java broker goes, so that it can never come back to life."""
    if cache.entries:
        replace_file(path, encode_epochs(cache))
    else:
        remove_file(path)
    backup = path.with_name(path.name + ".bak")
    if backup.exists():
        remove_file(backup)


logger = logging.getLogger(__name__)

_VERSION = 1


class IndexFiles:
    """The folder of them."""

    def __init__(self, folder: Path, *, file_size_bytes: int, read: Callable[[int, int], bytes]) -> None:
        """``read(offset, size)`` reads the log."""
        self._folder = folder
        self._file_size = file_size_bytes
        self._read = read
        self._lock = threading.Lock()  # indexes are written in a thread; a truncation waits for it
        self.generation = 0
        sync_names(folder)
        self._present = (
            {int(path.name) for path in folder.iterdir() if path.name.isdigit()} if folder.is_dir() else set()
        )

    def missing(self, start_offset: int) -> bool:
        """This file of the log has no index yet."""
        return start_offset not in self._present

    def write(self, start_offset: int, parts: list[QueuePart], generation: int) -> None:
        """Make the index of one file durable, unless the log was cut since ``generation``; may run in a thread.

        The log must be durable up to the end of that file.
        """
        with self._lock:
            if parts and generation == self.generation:
                replace_file(self._path(start_offset), self._encode(start_offset, parts))
                self._present.add(start_offset)

    def load(self, start_offset: int) -> list[QueuePart] | None:
        """The index of one file; None if there is none that can be believed."""
        if start_offset not in self._present:
            return None
        try:
            return self._decode(start_offset, self._path(start_offset).read_bytes())
        except (ValueError, RecursionError, KeyError, TypeError, IndexError, OSError) as error:
            logger.warning("%s: not used, the log is read instead: %s", self._path(start_offset), error)
            return None

    def drop_beyond(self, log_offset: int) -> None:
        """Delete every index of a file that does not end at or below ``log_offset``."""
        self._drop(start for start in self._present if start + self._file_size > log_offset)

    def drop_before(self, log_offset: int) -> None:
        """Delete the indexes of files that were deleted."""
        self._drop(start for start in self._present if start < log_offset)

    def _drop(self, starts: Iterable[int]) -> None:
        with self._lock:
            self.generation += 1
            for start in list(starts):
                remove_file(self._path(start))
                self._present.discard(start)

    def _path(self, start_offset: int) -> Path:
        return self._folder / f"{start_offset:020d}"

    def _encode(self, start_offset: int, parts: list[QueuePart]) -> bytes:
        columns = b"".join(column.tobytes() for part in parts for column in part[3:])
        offset, size = max((part.offsets[-1], part.sizes[-1]) for part in parts)
        head = {
            "version": _VERSION,
            "byteOrder": sys.byteorder,
            "startOffset": start_offset,
            "fileSize": self._file_size,
            "crc": zlib.crc32(columns),
            "last": [offset, size, zlib.crc32(self._read(offset, size))],
            "queues": [[part.topic, part.queue_id, part.first_queue_offset, len(part.offsets)] for part in parts],
        }
        return compact_json(head) + b"\n" + columns

    def _decode(self, start_offset: int, content: bytes) -> list[QueuePart]:
        line, _, columns = content.partition(b"\n")
        head = json.loads(line)
        expected = (_VERSION, sys.byteorder, start_offset, self._file_size, zlib.crc32(columns))
        if (head["version"], head["byteOrder"], head["startOffset"], head["fileSize"], head["crc"]) != expected:
            raise ValueError("its head or check sum is wrong")
        self._check_last(*head["last"])
        parts, position = [], 0
        for topic, queue_id, first, count in head["queues"]:
            read = []
            for kind in "qiq":
                column = array(kind)
                end = position + count * column.itemsize
                column.frombytes(columns[position:end])
                position = end
                read.append(column)
            parts.append(QueuePart(topic, queue_id, first, *read))
        if position != len(columns):
            raise ValueError(f"{len(columns)} bytes of columns, its queues have {position}")
        return parts

    def _check_last(self, offset: int, size: int, crc: int) -> None:
        record = self._read(offset, size)
        if zlib.crc32(record) != crc:
            raise ValueError(f"the log has another record at offset {offset} than when it was indexed")
        try:
            entry = inspect_entry(record, 0, len(record), physical_offset=offset)
        except MessageRecordError as error:
            raise ValueError(str(error)) from error
        if entry.kind is not EntryKind.RECORD:
            raise ValueError(f"no record stands at offset {offset}")


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
        self._marks = load_table(path, lambda table: _marks(table[_KEY]), "table of deleted topics") or {}

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
        replace_file(self._path, compact_json({_KEY: marks}))
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


def save_queue_offsets(path: Path, offsets: Mapping[tuple[str, int], int]) -> None:
    """Make them durable."""
    rows = [[topic, queue_id, offset] for (topic, queue_id), offset in sorted(offsets.items())]
    replace_file(path, compact_json({"nextOffsets": rows}))


def load_queue_offsets(path: Path) -> dict[tuple[str, int], int]:
    """As they were saved; none if nothing was ever deleted."""

    def read(table: Any) -> dict[tuple[str, int], int]:
        return {(str(topic), int(queue_id)): int(offset) for topic, queue_id, offset in table["nextOffsets"]}

    return load_table(path, read, "table of queue offsets") or {}
