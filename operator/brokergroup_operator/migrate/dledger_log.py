"""Reads the data files of a DLedger commit log, `dledger-<id>/data`, of a broker that is stopped.

A file is a run of entries. An entry of kind NORMAL has one message as its body, in the format of a normal commit log, and the
message says where it lies: behind the entry's header. Layout of the header (big-endian)::

    kind 4 · size 4 · index 8 · term 8 · position 8 · channel 4 · chain CRC 4 · body CRC 4 · body size 4

Channel and both CRCs are 0 in what DLedger writes. A filler (kind -1, size) goes to the file's end, or stands for what was deleted.
"""

from __future__ import annotations

import itertools
import mmap
import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rocketmq_remoting.message_record import EntryKind, LogEntry, MessageRecordError, inspect_entry

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

HEADER: Final = struct.Struct(">iiqqqiiii")
NORMAL: Final = 1
# An entry without a body, which a leader may write when its term begins.
NOOP: Final = 2
FILLER: Final = -1
FILLER_BYTES: Final = 8
_FILLER: Final = struct.Struct(">ii")
_NAME: Final = re.compile(r"[0-9]{20}")


class LedgerError(Exception):
    """The files are not as DLedger leaves them; the message says at which offset."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry. `raw` is the whole of it, valid until the next one is asked for; `message` is None for one without a message."""

    file: int
    position: int
    index: int
    term: int
    raw: memoryview
    message: LogEntry | None

    @property
    def body(self) -> memoryview:
        return self.raw[HEADER.size :]

    @property
    def place(self) -> int:
        """Return where the message lies, as it says itself."""
        return self.position + HEADER.size


@dataclass(slots=True)
class Ledger:
    """The files in order, all of one size. After `entries` has ended, `end` is the offset behind the last entry.

    `stale`: behind the end lie entries of an earlier term, which DLedger has cut off and not yet written over.
    """

    files: Sequence[Path]
    end: int = -1
    stale: bool = False

    @property
    def file_bytes(self) -> int:
        return self.files[0].stat().st_size

    @property
    def begin(self) -> int:
        """Return the offset of the first file."""
        return int(self.files[0].name)

    def files_from(self, offset: int) -> int:
        """Return how many files have something from this offset to the end."""
        return (self.end - 1) // self.file_bytes - offset // self.file_bytes + 1

    def entries(self) -> Iterator[Entry]:
        """Yield all entries in order, each checked. LedgerError for a damaged one, with its offset."""
        self.end, last = self.begin, None
        for number, path in enumerate(self.files):
            for entry in _entries_of(path, last):
                last = (entry.index, entry.term)
                self.end = entry.position + len(entry.raw)
                yield entry
            if _is_full(path, self.end, first=number == 0):
                continue
            self._check_behind(number, last)
            return

    def _check_behind(self, number: int, last: tuple[int, int] | None) -> None:
        """Raise LedgerError if what lies behind the end may belong to the log: then an entry before it is damaged."""
        place = max(self.end, int(self.files[number].name))
        for path in self.files[number:]:
            _check_beginning(path, self.end)
            for position, index, term in _headers_behind(path, self.end):
                if last is None or (index > last[0] and term >= last[1]):
                    raise LedgerError(
                        f"file {path.name}: the entry at {place} is damaged, since entry {index} of term {term} lies behind"
                        f" it, at {position}"
                    )
                self.stale = True


def ledger_of(folder: Path) -> Ledger:
    """Return the files of `dledger-<id>/data`. LedgerError for a gap, or a file of another size."""
    files = sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name)) if folder.is_dir() else []
    for path in (folder.parent, folder, *files):
        # By a link, the log of one member would pass for that of another.
        if path.is_symlink():
            raise LedgerError(f"{path.name} is a symbolic link: put in its place what it leads to")
    if not files:
        raise LedgerError(
            f"{folder.parent.name}/{folder.name} has no file such as {0:020d}: is the log on another disk?"
        )
    size = files[0].stat().st_size
    for path in files:
        if path.stat().st_size != size or size == 0:
            raise LedgerError(f"file {path.name} has {path.stat().st_size} bytes, expected {size} as {files[0].name}")
    for path, after in itertools.pairwise(files):
        if int(after.name) != int(path.name) + size:
            raise LedgerError(f"no file begins at {int(path.name) + size}: behind {path.name} comes {after.name}")
    return Ledger(files)


def _entries_of(path: Path, last: tuple[int, int] | None) -> Iterator[Entry]:
    """Yield the entries of one file, up to a filler that ends it, or to bytes that do not continue the log."""
    start, size, position = int(path.name), path.stat().st_size, 0
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as content,
    ):
        while size - position >= FILLER_BYTES:
            kind, length = _FILLER.unpack_from(content, position)
            if kind == FILLER and FILLER_BYTES <= length <= size - position:
                position += length
                continue
            if size - position < HEADER.size or not _continues(content, position, start, last):
                return
            with content[position : position + length] as raw:
                entry = _entry(raw, start, start + position)
                last = (entry.index, entry.term)
                yield entry
            position += length


def _continues(content: memoryview, position: int, start: int, last: tuple[int, int] | None) -> bool:
    """Whether the header at this position is the next one of the log. DLedger decides by the same at its start."""
    kind, length, index, term, at, _, _, _, body = HEADER.unpack_from(content, position)
    if kind <= 0 or length != HEADER.size + body or at != start + position:
        return False
    if last is not None and (index != last[0] + 1 or term < last[1]):
        return False
    if body < 0 or position + length > len(content):
        raise LedgerError(f"the entry at {at} has {length} bytes, and its file ends before")
    return True


def _entry(raw: memoryview, start: int, position: int) -> Entry:
    kind, _, index, term, *_, body = HEADER.unpack_from(raw)
    if kind == NOOP and body == 0:
        return Entry(start, position, index, term, raw, None)
    if kind != NORMAL:
        raise LedgerError(f"the entry at {position} has kind {kind}, expected {NORMAL} (a message) or {NOOP} (none)")
    try:
        message = inspect_entry(raw, HEADER.size, len(raw), physical_offset=position + HEADER.size)
    except MessageRecordError as error:
        raise LedgerError(f"the entry at {position} is damaged: {error}") from error
    if message.kind is not EntryKind.RECORD or message.size_bytes != body:
        raise LedgerError(f"the entry at {position} has a body of {body} bytes, expected one message of that size")
    return Entry(start, position, index, term, raw, message)


def _is_full(path: Path, end: int, *, first: bool) -> bool:
    """Whether a filler leads from the last entry to the end of the file; in the first file also one that begins it."""
    start, size = int(path.name), path.stat().st_size
    position = max(0, end - start)
    with path.open("rb") as file:
        while size - position >= FILLER_BYTES:
            file.seek(position)
            kind, length = _FILLER.unpack(file.read(FILLER_BYTES))
            if kind != FILLER or not FILLER_BYTES <= length <= size - position:
                return False
            if not first and position == 0:
                # DLedger has such a file only where the log's beginning was deleted.
                raise LedgerError(f"file {path.name} begins with a filler, and is not the first one")
            position += length
    return position == size


def _check_beginning(path: Path, end: int) -> None:
    """Raise LedgerError if a file behind the end begins with what no such file has: then its name or its content is another's."""
    start = int(path.name)
    if start < end:
        return
    with path.open("rb") as file:
        head = file.read(HEADER.size)
    if not any(head[:FILLER_BYTES]) or (len(head) == HEADER.size and HEADER.unpack(head)[4] == start):
        return
    raise LedgerError(
        f"file {path.name} begins with {head[:FILLER_BYTES].hex()}, expected zeros, or an entry that says it lies at {start}"
    )


def _headers_behind(path: Path, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield position, index and term of what looks like an entry behind the end: its header names the place where it lies."""
    start, size = int(path.name), path.stat().st_size
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for kind in (NORMAL, NOOP):
            sign = kind.to_bytes(4)
            at = content.find(sign, max(0, end - start))
            while 0 <= at <= size - HEADER.size:
                _, _, index, term, position, *_ = HEADER.unpack_from(content, at)
                # Its sizes may be what is damaged.
                if position == start + at:
                    yield position, index, term
                at = content.find(sign, at + 1)
