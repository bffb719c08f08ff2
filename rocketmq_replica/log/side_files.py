"""The small files beside the commit log: checkpoint, epochs, indexes of full log files, deleted topics, queue offsets.

``checkpoint`` and ``epochFileCheckpoint`` have Java's format and place. The others are our own, and Java ignores them.
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
    """The fields in the order of the file; all zero if none was ever saved.

    The confirm offset (A.8, A.13) is a hint: it is limited to the log that a start finds. Behind Java's five numbers stands our
    ``durable_offset``, with a check sum over all six. Messages below it are confirmed and durable, so a start that does not find
    them refuses (``CommitLog.recover``). When Java rewrites its five numbers the check sum no longer matches, and ours counts as 0.
    """

    physical_message_timestamp_ms: int = 0
    logics_message_timestamp_ms: int = 0
    index_message_timestamp_ms: int = 0
    master_flushed_offset: int = 0
    confirm_offset: int = 0
    durable_offset: int = 0
    """The log was confirmed and durable on this disk up to here when this was saved."""


class CheckpointFile:
    """The checkpoint file of one store. Two threads may save at the same time: the content taken later wins."""

    def __init__(self, path: Path) -> None:
        self._file = ReplacedFile(path)
        self.durable_offset = 0
        """The highest ``durable_offset`` that a start could find in the file."""

    def load(self) -> Checkpoint:
        """Return the saved checkpoint, zeros if there is no file. A damaged file has the confirm offset ``UNKNOWN``."""
        path = self._file.path
        sync_names(path.parent)
        checkpoint = decode_checkpoint(path.read_bytes()) if path.exists() else Checkpoint()
        self.durable_offset = checkpoint.durable_offset
        return checkpoint

    def save(self, take: Callable[[], Checkpoint]) -> None:
        """Make what ``take`` returns durable, unless a later content is already."""
        taken: list[Checkpoint] = []

        def content() -> bytes:
            taken.append(take())
            self.durable_offset = max(self.durable_offset, taken[0].durable_offset)
            return encode_checkpoint(taken[0])

        if self._file.write(self._file.take(content)):
            self.durable_offset = taken[0].durable_offset


def decode_checkpoint(content: bytes) -> Checkpoint:
    """Decode the content of the checkpoint file."""
    if len(content) < _LAYOUT.size:
        return Checkpoint(confirm_offset=UNKNOWN)
    javas = Checkpoint(*_LAYOUT.unpack_from(content))
    durable, crc = _OURS.unpack_from(content.ljust(_FILE_BYTES, b"\0"), _LAYOUT.size)
    ours = replace(javas, durable_offset=durable)
    return ours if crc == _crc(ours) else javas


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Encode the content of the checkpoint file."""
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
    """Encode the epoch file: the number of entries, their check sum, then one ``epoch-startOffset`` a line."""
    text = "".join(f"{entry.epoch}-{entry.start_offset}\n" for entry in cache.entries)
    return f"{len(cache.entries)}\n{crc_of(text)}\n{text}".encode()


def crc_of(text: str) -> int:
    """Return the check sum of the entry lines; 0 in a file means unchecked."""
    return zlib.crc32(text.encode()) & 0x7FFFFFFF


def decode_epochs(content: bytes, name: str) -> EpochCache:
    """Decode the epoch file. Raise StoreFileError, which names ``name``, for any contradiction."""
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
    """Load the epochs: none if the file is absent, Java's ``.bak`` if it is torn.

    A torn file without a backup is an error: without its epochs a replica cannot recognise a diverged log.
    """
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
    """Make the epochs durable; without any, the file is removed. An old ``.bak`` of a Java broker is removed, too.

    Java rewrites the file in place and keeps old entries of an empty list; here it is replaced as a whole.
    """
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
    """The indexes of full log files: where their messages are, so that a start reads only the log's last files.

    The consume queues live in memory and are rebuilt at every start. Each full and durable file of the log gets one small file
    ``indexed/<start offset>``, written once and deleted *before* the log is cut into that file. So ``mappedFileSizeCommitLog``
    bounds the time of a start. An index is used only if its check sum is right and the last record that it names is unchanged in
    the log. Java's ``consumequeue`` files are not written: a Java 5.5.0 broker builds them from the log's last ten files only.
    """

    def __init__(self, folder: Path, *, file_size_bytes: int, read: Callable[[int, int], bytes]) -> None:
        """``read(offset, size)`` reads bytes of the log."""
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
        """Whether this file of the log has no index yet."""
        return start_offset not in self._present

    def write(self, start_offset: int, parts: list[QueuePart], generation: int) -> None:
        """Make the index of one file durable, unless the log was cut after ``generation``. May run in a thread.

        The log must be durable up to the end of that file.
        """
        with self._lock:
            if parts and generation == self.generation:
                replace_file(self._path(start_offset), self._encode(start_offset, parts))
                self._present.add(start_offset)

    def load(self, start_offset: int) -> list[QueuePart] | None:
        """Return the index of one file; None if it is missing or invalid."""
        if start_offset not in self._present:
            return None
        try:
            return self._decode(start_offset, self._path(start_offset).read_bytes())
        except (ValueError, RecursionError, KeyError, TypeError, IndexError, OSError) as error:
            logger.warning("%s: invalid, reading the log instead: %s", self._path(start_offset), error)
            return None

    def drop_beyond(self, log_offset: int) -> None:
        """Delete the indexes of files that end above ``log_offset``."""
        self._drop(start for start in self._present if start + self._file_size > log_offset)

    def drop_before(self, log_offset: int) -> None:
        """Delete the indexes of deleted log files, those below ``log_offset``."""
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
"""The limit of deleted topics with messages in the log. Dropping a mark would bring its topic back."""
_KEY = "deletedTopics"


class TooManyDeletionsError(Exception):
    """No further topic can be deleted now. The message says why."""


class Deletion(NamedTuple):
    """A topic's messages below ``end_offset`` are deleted. The mark names the epoch in which the topic was deleted."""

    end_offset: int
    epoch: int
    epoch_start_offset: int

    def hidden_before(self, epochs: EpochCache) -> int:
        """Return where the hidden part ends in a log with this history.

        Only bytes that the deleting master had are hidden. In a log with its epoch, these end with that epoch; a log without it
        shares at most the bytes before the epoch with the deleting master.
        """
        for entry in epochs.entries:
            if (entry.epoch, entry.start_offset) == (self.epoch, self.epoch_start_offset):
                return min(self.end_offset, entry.end_offset)
        others = (entry.start_offset for entry in epochs.entries if entry.epoch >= self.epoch)
        return min(self.end_offset, self.epoch_start_offset, *others)


class DeletedTopics:
    """``config/deletedTopics.json``: topic -> the last deletion of a topic of this name (215).

    A start finds topics and queues in the log again, so the store remembers which messages were deleted with their topic; a later
    topic of that name has the messages from there on. Slaves copy the marks with the topics (21), not with the log: a mark that is
    ahead of the log, or older, stays valid because it names its epoch.
    """

    def __init__(self, path: Path) -> None:
        """Load the file, if there is one. Raise StoreFileError if it is not such a table."""
        self._path = path
        self._marks = load_table(path, lambda table: _marks(table[_KEY]), "table of deleted topics") or {}

    @property
    def marks(self) -> Mapping[str, Deletion]:
        """The deletions by topic."""
        return self._marks

    def add(self, topic: str, mark: Deletion, *, log_begins_at: int) -> None:
        """Add a deletion, durably. After TooManyDeletionsError or OSError nothing has changed."""
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
        """Replace all deletions, durably. Return False if they are the same. After an OSError nothing has changed."""
        if marks == self._marks:
            return False
        replace_file(self._path, compact_json({_KEY: marks}))
        self._marks = dict(marks)
        return True


def deletions_in(answer: Mapping[str, Any]) -> dict[str, Deletion]:
    """Return the deletions in a master's answer to 21. Raise ValueError if they are malformed."""
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


_NEXT_OFFSETS = "nextOffsets"
WITH_QUEUE_OFFSETS = "withQueueOffsets"
"""The field of a request for topics (21) that asks for the queue offsets too. Java and earlier releases ignore it."""


def queue_offset_rows(offsets: Mapping[tuple[str, int], int]) -> dict[str, object]:
    """Return the offsets of queues' next messages as ``config/queueOffsets.json`` has them, and the answer to 21."""
    return {_NEXT_OFFSETS: [[topic, queue_id, offset] for (topic, queue_id), offset in sorted(offsets.items())]}


def queue_offsets_in(answer: Mapping[str, Any]) -> dict[tuple[str, int], int]:
    """Return the offsets of queues' next messages in a master's answer to 21. Raise ValueError if they are malformed."""
    rows = answer.get(_NEXT_OFFSETS, [])
    if not isinstance(rows, list) or not all(_is_queue_offset(row) for row in rows):
        raise ValueError(f"{_NEXT_OFFSETS}: expected a list of topics, queue ids and offsets")
    return {(topic, queue_id): offset for topic, queue_id, offset in rows}


def _is_queue_offset(row: object) -> bool:
    if not isinstance(row, list) or [type(each) for each in row] != [str, int, int]:
        return False
    return bool(row[0]) and 0 <= row[1] < 1 << 31 and 0 <= row[2] < 1 << 63


def save_queue_offsets(path: Path, offsets: Mapping[tuple[str, int], int]) -> None:
    """Save ``config/queueOffsets.json``: the offset of each queue's next message.

    Written before log files are deleted, and by a slave whose log begins after a queue's last messages. Without it a queue without
    messages would start at 0 again, below its consumers' offsets.
    """
    replace_file(path, compact_json(queue_offset_rows(offsets)))


def load_queue_offsets(path: Path) -> dict[tuple[str, int], int]:
    """Load the queue offsets; empty without a file."""

    def read(table: Any) -> dict[tuple[str, int], int]:
        return {(str(topic), int(queue_id)): int(offset) for topic, queue_id, offset in table[_NEXT_OFFSETS]}

    return load_table(path, read, "table of queue offsets") or {}
