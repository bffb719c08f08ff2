"""The index files of a DLedger log, which become those of its copy: each item says where in the log a message with a key lies.

A broker indexes what it dispatches. The copied messages are in their consume queues already, so without these files a query by key
or by message id finds none of them. Layout of a file (big-endian)::

    first and last store time 8 + 8 · first and last place 8 + 8 · used slots 4 · next item 4
    slots, 4 each · items: hash of the key 4 · place 8 · seconds 4 · the item before it in its slot 4

Items follow the log, and item 0 is not used. How many slots a file has, it does not say.
"""

from __future__ import annotations

import contextlib
import mmap
import re
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

INDEX: Final = "index"
# Named by the time at which they were begun.
_NAME: Final = re.compile(r"[0-9]{17}")
HEADER: Final = struct.Struct(">qqqqii")
ITEM: Final = struct.Struct(">iqii")
_PLACE: Final = struct.Struct(">q")
_PLACES: Final = struct.Struct(">qq")
_PLACES_AT: Final = 16
_PLACE_IN_ITEM: Final = 4
_NO_ITEM: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class Shape:
    """How many slots and items a file has: maxHashSlotNum and maxIndexNum of its broker."""

    slots: int
    items: int

    @property
    def file_bytes(self) -> int:
        return self.item_at(self.items)

    def item_at(self, number: int) -> int:
        return HEADER.size + 4 * self.slots + ITEM.size * number


# Java's defaults. A broker with others reads these files wrongly, so only files of this shape are copied.
SHAPE: Final = Shape(5_000_000, 20_000_000)


@dataclass(slots=True)
class Index:
    """The index files, read as the log is read. `writes`: items get new places, in a copy of the folder.

    `begin`: where the log of DLedger begins; what lies before is deleted, or stays. `fault`: why the files cannot be copied: with a
    wrong place in them, a broker would hand out bytes from within a message.
    """

    paths: list[Path]
    begin: int
    writes: bool = False
    fault: str = ""
    used_bytes: int = 0
    shape: Shape = field(default_factory=lambda: SHAPE)
    _next: int = _NO_ITEM
    _at: int = 0
    _number: int = 0
    _count: int = 0
    _content: mmap.mmap | None = None
    _file: int = -1

    def __post_init__(self) -> None:
        self._advance()

    def follow(self, place: int, new_place: int) -> None:
        """Take the next message of the log."""
        while self._next <= place:
            if self._next != place:
                self._give_up(f"an item of {self.paths[self._file].name} names {self._next}, where no message lies")
                return
            if self.writes and self._content is not None:
                _PLACE.pack_into(self._content, self._at, new_place)
            self._advance()

    def end(self) -> None:
        """Take note that the log has ended."""
        if self._next != _NO_ITEM:
            self._give_up(f"an item of {self.paths[self._file].name} names {self._next}, behind the end of the log")

    def close(self) -> None:
        if self._content is not None:
            self._content.close()
            self._content = None

    def _advance(self) -> None:
        """Go to the next item that names a place of this log."""
        while True:
            self._number += 1
            if self._content is None or self._number >= self._count:
                self._end_file()
                if not self._open_next():
                    self._next = _NO_ITEM
                    return
                continue
            assert self._content is not None
            self._at = self.shape.item_at(self._number) + _PLACE_IN_ITEM
            [self._next] = _PLACE.unpack_from(self._content, self._at)
            if self._next >= self.begin:
                return

    def _open_next(self) -> bool:
        self._file += 1
        if self._file >= len(self.paths):
            return False
        path = self.paths[self._file]
        if (size := path.stat().st_size) != self.shape.file_bytes:
            self._give_up(f"{path.name} has {size} bytes, expected {self.shape.file_bytes}, by Java's defaults")
            return False
        with path.open("r+b" if self.writes else "rb") as opened:
            access = mmap.ACCESS_WRITE if self.writes else mmap.ACCESS_READ
            self._content = mmap.mmap(opened.fileno(), 0, access=access)
        self._number, self._count = 0, _count_in(self._content)
        self.used_bytes += self.shape.item_at(min(self._count, self.shape.items))
        if self._count > self.shape.items:
            self._give_up(f"{path.name} has {self._count} items, expected at most {self.shape.items}")
        return not self.fault

    def _end_file(self) -> None:
        """Give the header the places of the first and last item: a broker indexes nothing that lies before the last one."""
        if self.writes and self._content is not None:
            first, last = (
                _PLACE.unpack_from(self._content, self.shape.item_at(number) + _PLACE_IN_ITEM)[0]
                for number in (1, self._count - 1)
            )
            _PLACES.pack_into(self._content, _PLACES_AT, first, last)
        self.close()

    def _give_up(self, why: str) -> None:
        self.fault, self._next, self.used_bytes = why, _NO_ITEM, 0
        self.close()


@contextlib.contextmanager
def indexing(paths: list[Path], begin: int, *, writes: bool = False) -> Iterator[Index]:
    """Open the files for one pass over the log."""
    index = Index(paths, begin, writes=writes)
    try:
        yield index
    finally:
        index.close()


def index_files(folder: Path) -> list[Path]:
    """Return the files that have items, in order. A file without any names a place too, and would keep the next ones away."""
    found = sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name)) if folder.is_dir() else []
    return [path for path in found if _head_of(path)]


def _head_of(path: Path) -> bool:
    """Whether there is an item, or the file is no index file, which is found later."""
    with path.open("rb") as file:
        head = file.read(HEADER.size)
    return len(head) < HEADER.size or HEADER.unpack(head)[-1] > 1


def _count_in(content: mmap.mmap) -> int:
    """Return the number of the next item."""
    return int(HEADER.unpack_from(content)[-1])
