"""The commit log: one sequence of bytes in files of a fixed size.

A file's name is its start offset in 20 digits. Files have ``mappedFileSizeCommitLog`` bytes from the start; zeros mean "no data".
A record never crosses files: a blank fills the rest of a file. All replicas of a group have the same bytes at the same offsets.

Stricter than Java:

* *Truncation removes bytes.* They are zeroed and fsynced, later files are deleted. Java only moves its pointers, and a crash can
  bring the cut bytes back (upstream #10666).
* *Recovery reads every record*, checks CRC, lengths and physical offset, and cuts at the first bad one.
"""

from __future__ import annotations

import errno
import mmap
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rocketmq_remoting.message_record import (
    BLANK_HEADER_BYTES,
    EntryKind,
    LogEntry,
    MessageRecordError,
    encode_blank,
    inspect_entry,
)
from rocketmq_replica.log import disk
from rocketmq_replica.log.disk import StoreFileError, make_folders, sync_names, sync_path
from rocketmq_replica.log.log_flusher import LogFlusher
from rocketmq_replica.log.retention import DiskSpace, LogFileFacts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_ZEROS = bytes(1 << 20)
_TAIL_BYTES = 256 << 10


@dataclass(frozen=True)
class Recovery:
    """The result of recovery: where valid data ends, and why bytes were cut there (empty: none were)."""

    end_offset: int
    reason: str = ""


@dataclass
class _LogFile:
    start_offset: int
    path: Path
    descriptor: int


class CommitLog:
    """Append, read, truncate, recover. Only recovery looks at records."""

    def __init__(self, folder: Path, *, file_size_bytes: int) -> None:
        """Open the existing files; call ``recover`` before anything else."""
        self._folder = folder
        self._file_size = file_size_bytes
        self._files: list[_LogFile] = []
        self.flusher = LogFlusher()
        self.max_offset = 0
        self._tail = bytearray()  # the last appended bytes, up to `max_offset`, which slaves are sent next
        self._keeps_tail = False  # set once a slave reads; a master alone does not need it
        self._write_failed = False  # a failed write may have left bytes after `max_offset`
        make_folders(folder)
        sync_names(folder)
        sync_path(folder)
        try:
            self._open_files()
        except BaseException:
            self.close()
            raise

    @property
    def file_size_bytes(self) -> int:
        """The size of each file."""
        return self._file_size

    @property
    def flushed_offset(self) -> int:
        """The log is durable up to here."""
        return self.flusher.durable_offset

    @property
    def min_offset(self) -> int:
        """The start of the oldest file."""
        return self._files[0].start_offset if self._files else self.max_offset

    def space_left_in_file(self) -> int:
        """Return the bytes from the end of the log to the end of its file; a whole file if the next byte begins one."""
        return self._file_size - self.max_offset % self._file_size

    def append(self, data: bytes) -> None:
        """Write at the end, all or nothing. Replicated bytes may span files."""
        self._drop_failed_write()
        if 0 < len(data) <= self.space_left_in_file():  # always true for a master's record
            file = self._file_for_append()
            self._write(file, data)
            self.max_offset += len(data)
            self.flusher.written(file.descriptor, self.max_offset)
            if self._keeps_tail:
                self._remember(data)
            return
        view = memoryview(data)
        before = self.max_offset
        try:
            while view:
                part = view[: self.space_left_in_file()]
                file = self._file_for_append()
                self._write(file, part)
                self.max_offset += len(part)
                self.flusher.written(file.descriptor, self.max_offset)
                view = view[len(part) :]
        except OSError:
            self.max_offset, self._write_failed = before, True
            raise
        if self._keeps_tail:
            self._remember(data)

    def _write(self, file: _LogFile, data: bytes | memoryview) -> None:
        try:
            disk.write_at(file.descriptor, data, self.max_offset - file.start_offset)
        except OSError:
            self._write_failed = True
            raise

    def _drop_failed_write(self) -> None:
        """Remove, durably, what a failed write left after the end.

        These may be whole records. After a crash, recovery would read them behind the next record, and other replicas have other
        bytes there under the same epoch.
        """
        if not self._write_failed:
            return
        file = self._file_of(self.max_offset)
        if file is not None:  # a full disk may refuse these writes too: the next append tries again
            _zero_from(file.descriptor, self.max_offset - file.start_offset, self._file_size)
        try:
            self._delete_after(self.max_offset)
            if file is not None:
                disk.sync_file(file.descriptor)
        except OSError as error:
            self.flusher.truncation_failed(error)
            raise
        self._write_failed = False

    def _remember(self, data: bytes) -> None:
        if len(data) > _TAIL_BYTES // 4:  # replicated bytes: no slave reads them soon
            self._tail.clear()
            return
        self._tail += data
        if len(self._tail) > 2 * _TAIL_BYTES:
            del self._tail[:-_TAIL_BYTES]

    def fill_file(self) -> None:
        """Fill the rest of this file with a blank. Its zeros are there already, so only the header is written."""
        self._drop_failed_write()
        space = self.space_left_in_file()
        file = self._file_for_append()
        self._write(file, memoryview(encode_blank(space))[:BLANK_HEADER_BYTES])
        self.max_offset += space
        self.flusher.written(file.descriptor, self.max_offset)
        self._tail.clear()

    def start_at(self, offset: int) -> None:
        """Begin an empty log at a file-aligned offset, for a new slave of a master without its oldest files."""
        if self._files or self.max_offset:
            raise StoreFileError(f"{self._folder}: holds data up to {self.max_offset}, cannot begin at {offset}")
        if offset % self._file_size:
            raise StoreFileError(
                f"{self._folder}: cannot begin at {offset}, which is no multiple of mappedFileSizeCommitLog={self._file_size}"
            )
        self.max_offset = offset
        self.flusher.begins_at(offset)

    def read(self, offset: int, limit_bytes: int) -> bytes:
        """Read from ``offset``, at most ``limit_bytes``, up to the end of the log and of the file of ``offset``."""
        file = self._file_of(offset)
        if file is None or offset >= self.max_offset:
            return b""
        position = offset - file.start_offset
        length = min(limit_bytes, self._file_size - position, self.max_offset - offset)
        return os.pread(file.descriptor, length, position)

    def read_to_send(self, offset: int, limit_bytes: int) -> bytes:
        """As ``read``, with the last appended bytes from memory. Not for consumers, which get what the disk holds."""
        self._keeps_tail = True
        in_tail = offset - self.max_offset + len(self._tail)
        if in_tail < 0:
            return self.read(offset, limit_bytes)
        length = min(limit_bytes, self._file_size - offset % self._file_size, self.max_offset - offset)
        with memoryview(self._tail) as tail:
            return bytes(tail[in_tail : in_tail + max(length, 0)])

    def truncate(self, offset: int) -> None:
        """Cut the log durably at ``offset``. After an OSError this log can only be abandoned."""
        if offset >= self.max_offset:
            return
        self.flusher.truncating(offset)
        self._tail.clear()
        try:
            self._cut(offset)
        except OSError as error:
            self.flusher.truncation_failed(error)
            raise
        self.max_offset, self._write_failed = offset, False

    def _delete_after(self, offset: int) -> None:
        while self._files and self._files[-1].start_offset > offset:
            self._delete(self._files.pop())

    def _cut(self, offset: int) -> None:
        self._delete_after(offset)
        if self._files:
            file = self._files[-1]
            _zero_from(file.descriptor, offset - file.start_offset, self._file_size)
            disk.sync_file(file.descriptor)

    def files(self) -> list[LogFileFacts]:
        """Return facts about every file, oldest first."""
        return [
            LogFileFacts(file.start_offset, file.start_offset + self._file_size, os.fstat(file.descriptor).st_mtime)
            for file in self._files
        ]

    def delete_oldest(self, count: int) -> None:
        """Delete the oldest files, durably, but never the last file."""
        for _ in range(min(count, len(self._files) - 1)):
            self._delete(self._files.pop(0))

    def space(self) -> DiskSpace:
        """Return how full the disk is, as ``df`` counts."""
        found = os.statvfs(self._folder)
        used = found.f_blocks - found.f_bfree
        entire = used + found.f_bavail
        return DiskSpace(100 * used / entire if entire else 100.0, found.f_bavail * found.f_frsize)

    def flush(self) -> None:
        """Make all appended bytes durable now. Raise LogFlushError if this or an earlier flush failed."""
        self.flusher.flush(self.max_offset)

    def close(self) -> None:
        """Close the files; flush first if the data matters."""
        for file in self._files:
            self.flusher.closed(file.descriptor)
            os.close(file.descriptor)
        self._files.clear()

    def abandon(self) -> None:
        """Close the files after a failure and drop their page cache: after a failed fsync its pages look clean, and the next start
        would read them instead of the disk."""
        for file in self._files:
            os.posix_fadvise(file.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        self.close()

    def recover(
        self,
        on_record: Callable[[int, LogEntry], object],
        is_known: Callable[[int], bool] = lambda _start: False,
        *,
        confirmed_offset: int = 0,
    ) -> Recovery:
        """Read every record from the oldest file on, and cut at the first bytes that are not a record.

        ``is_known(start)`` decides for every file but the last whether it need not be read. Bytes below ``confirmed_offset`` were
        confirmed and durable, so a crash cannot remove them: damage there raises StoreFileError, and nothing is cut.
        """
        self.max_offset = self._files[-1].start_offset + self._file_size if self._files else 0
        recovery = self._scan(on_record, is_known)
        if self._files and recovery.end_offset < confirmed_offset:
            file = self._file_of(recovery.end_offset) or self._files[-1]
            why = recovery.reason or "there is no record"
            raise StoreFileError(
                f"{file.path}: damaged at offset {recovery.end_offset} ({why}), below {confirmed_offset}, up to where messages"
                " were confirmed and on this disk. Nothing was changed: rebuild this replica from one that holds them, or repair"
                " the file"
            )
        self.max_offset = max(self.max_offset, recovery.end_offset)
        leftover = recovery.end_offset < self.max_offset and self._has_data_from(recovery.end_offset)
        if leftover:
            self.truncate(recovery.end_offset)
        # A killed process may have left bytes in the page cache only, and they are about to be acknowledged.
        for file in self._files:
            disk.sync_file(file.descriptor)
        self.max_offset = recovery.end_offset
        self.flusher.begins_at(recovery.end_offset)
        if leftover and not recovery.reason:
            return Recovery(recovery.end_offset, f"offset {recovery.end_offset}: data after zeros")
        return recovery

    def _scan(self, on_record: Callable[[int, LogEntry], object], is_known: Callable[[int], bool]) -> Recovery:
        for file in self._files:
            if file is not self._files[-1] and is_known(file.start_offset):
                continue
            with mmap.mmap(file.descriptor, self._file_size, prot=mmap.PROT_READ) as mapped:
                view = memoryview(mapped)
                try:
                    end, reason = self._scan_file(view, file.start_offset, on_record)
                finally:
                    view.release()
            if reason or end < file.start_offset + self._file_size:
                return Recovery(end, reason)
        return Recovery(self._files[-1].start_offset + self._file_size if self._files else 0)

    def _scan_file(self, view: memoryview, start: int, on_record: Callable[[int, LogEntry], object]) -> tuple[int, str]:
        position = 0
        while position < self._file_size:
            offset = start + position
            try:
                entry = inspect_entry(view, position, self._file_size, physical_offset=offset)
            except MessageRecordError as error:
                return offset, str(error)
            if entry.kind is EntryKind.END:
                return offset, ""
            if entry.kind is EntryKind.BLANK:
                if entry.size_bytes != self._file_size - position:
                    return offset, f"blank at offset {offset} does not reach the end of its file"
                break
            on_record(offset, entry)
            position += entry.size_bytes
        return start + self._file_size, ""

    def _has_data_from(self, offset: int) -> bool:
        file = self._file_of(offset)
        if file is None or file is not self._files[-1]:
            return True
        return _has_nonzero(file.descriptor, offset - file.start_offset, self._file_size)

    def _open_files(self) -> None:
        paths = sorted(path for path in self._folder.iterdir() if len(path.name) == 20 and path.name.isdigit())
        for path in paths:
            start = int(path.name)
            file = _LogFile(start, path, os.open(path, os.O_RDWR))
            self._files.append(file)
            self._check_file(file, is_last=path is paths[-1])

    def _check_file(self, file: _LogFile, *, is_last: bool) -> None:
        size = os.fstat(file.descriptor).st_size
        if size == 0 and is_last:  # the process died before it set the size of the new file
            self._size_file(file)
            size = self._file_size
        if size != self._file_size:
            raise StoreFileError(f"{file.path}: has {size} bytes, mappedFileSizeCommitLog says {self._file_size}")
        expected = self._files[-2].start_offset + self._file_size if len(self._files) > 1 else file.start_offset
        if file.start_offset != expected or file.start_offset % self._file_size:
            raise StoreFileError(f"{file.path}: a file that starts at {expected} was expected here")

    def _file_of(self, offset: int) -> _LogFile | None:
        if not self._files:
            return None
        index = (offset - self._files[0].start_offset) // self._file_size
        return self._files[index] if 0 <= index < len(self._files) else None

    def _file_for_append(self) -> _LogFile:
        file = self._file_of(self.max_offset)
        if file is not None:
            return file
        start = self.max_offset - self.max_offset % self._file_size
        path = self._folder / f"{start:020d}"
        if path.exists():  # left by a failed try, below, whose removal failed as well
            disk.unlink(path)
        file = _LogFile(start, path, disk.create_file(path))
        try:
            self._size_file(file)
            disk.sync_folder(self._folder)
        except OSError:
            # A file without its size looks damaged at the next start; without a durable name its content is lost.
            os.close(file.descriptor)
            disk.unlink(path)
            raise
        self._files.append(file)
        return file

    def _size_file(self, file: _LogFile) -> None:
        """Set the size durably before any content: only the last file can lack its size."""
        disk.set_size(file.descriptor, self._file_size)
        disk.sync_file(file.descriptor)

    def _delete(self, file: _LogFile) -> None:
        self.flusher.closed(file.descriptor)
        os.close(file.descriptor)
        disk.unlink(file.path)
        disk.sync_folder(self._folder)  # one by one: a hole between files would break the log


def _extents(descriptor: int, start: int, end: int) -> list[tuple[int, int]]:
    """Return the parts of ``start … end`` that are not holes of the file."""
    extents = []
    position = start
    while position < end:
        try:
            data_at = os.lseek(descriptor, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole up to the end of the file
                break
            raise
        if data_at >= end:
            break
        hole_at = min(os.lseek(descriptor, data_at, os.SEEK_HOLE), end)
        extents.append((data_at, hole_at))
        position = hole_at
    return extents


def _zero_from(descriptor: int, start: int, end: int) -> None:
    for data_at, hole_at in _extents(descriptor, start, end):
        for position in range(data_at, hole_at, len(_ZEROS)):
            disk.write_at(descriptor, memoryview(_ZEROS)[: min(len(_ZEROS), hole_at - position)], position)


def _has_nonzero(descriptor: int, start: int, end: int) -> bool:
    for data_at, hole_at in _extents(descriptor, start, end):
        for position in range(data_at, hole_at, len(_ZEROS)):
            chunk = os.pread(descriptor, min(len(_ZEROS), hole_at - position), position)
            if chunk.strip(b"\0"):
                return True
    return False
