"""What a start need not read again: for each full file of the commit log, where its messages stand (our own format).

The consume queues live in memory and are rebuilt from the log at every start. Without more that would mean reading the whole log.
So each file of the log that is full, and durable, gets one small file ``indexed/<start offset>``, written once, never changed, and
deleted *before* the log is cut into it. A start then reads these, and record by record only the log's last file or two: its
time is bounded by ``mappedFileSizeCommitLog``, not by what the log holds.

Java's ``consumequeue`` files are not written: they are changed in place all the time, and a Java broker that takes over this
folder builds them from the log. An index is believed only if its check sum is right and the last record it names stands in the
log exactly as it was, which holds only if nobody else wrote that file since.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import zlib
from array import array
from typing import TYPE_CHECKING

from rocketmq_remoting.message_record import EntryKind, MessageRecordError, inspect_entry
from rocketmq_replica.log.consume_queues import QueuePart
from rocketmq_replica.log.durable_files import remove_file, replace_file, sync_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

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
        return json.dumps(head, separators=(",", ":")).encode() + b"\n" + columns

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
