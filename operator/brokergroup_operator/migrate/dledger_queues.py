"""The consume queues of a DLedger log, which become those of its copy: each entry says where in the log a message lies.

A Java 5.5.0 broker without consume queues makes them anew from the last ten files of its log only (commitLogRecoverMaxNum): earlier
messages would be in the log, and no consumer would get them. So the queues are copied, and each entry gets its message's new place.
The rest of an entry, such as when a delayed message is due, stays.
"""

from __future__ import annotations

import contextlib
import mmap
import resource
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from brokergroup_operator.migrate.stores import LOG_FILE, StoreError
from rocketmq_remoting.message_record import (
    SYS_FLAG_TRANSACTION_MASK,
    SYS_FLAG_TRANSACTION_PREPARED,
    SYS_FLAG_TRANSACTION_ROLLBACK,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rocketmq_remoting.message_record import LogEntry

CONSUME_QUEUES: Final = "consumequeue"
# Place of the message in the log, its size, and a code of its tags.
ENTRY: Final = struct.Struct(">qiq")
_PLACE: Final = struct.Struct(">q")
# What a file takes beside its entries, at most: the rest of its last block, its folder, and its line in the manifest.
AROUND_A_FILE_BYTES: Final = 3 * 4096
_NOT_IN_A_QUEUE: Final = (SYS_FLAG_TRANSACTION_PREPARED, SYS_FLAG_TRANSACTION_ROLLBACK)
# At most so many files are mapped at a time, and no more than half of what the process may open: Linux has 65,530 maps a process.
_MAPPED_FILES: Final = 20_000


@dataclass(slots=True)
class Queues:
    """The folder of the queues, read as the log is read. `writes`: entries get new places, in a copy of the folder.

    `pending_from`: where the first message lies that no queue has yet; -1 if there is none. Queues follow the log, so all later
    ones are missing too. `hidden`: messages whose number in their queue an earlier message has: no consumer has ever got them.
    `deleted`: messages of a topic that is not in `topics` any more and whose queue is gone, with later messages in queues.
    `used_bytes`: how much a copy of the files takes at most, once `check_ends` has seen them: what is empty in them takes nothing.
    """

    folder: Path
    writes: bool = False
    pending_from: int = -1
    hidden: int = 0
    deleted: int = 0
    used_bytes: int = 0
    # None: not known, as where topics are kept in RocksDB.
    topics: frozenset[str] | None = None
    _absent: int = 0
    _absent_from: int = -1
    _next: dict[tuple[str, int], int] = field(default_factory=dict)
    _file_bytes: dict[tuple[str, int], int] = field(default_factory=dict)
    _open: dict[tuple[str, int, int], mmap.mmap] = field(default_factory=dict)
    # A map keeps its file open.
    _most_open: int = field(
        default_factory=lambda: min(_MAPPED_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
    )

    def follow(self, message: LogEntry, place: int, new_place: int) -> None:
        """Take the next message of the log. StoreError if its queue says something else of it."""
        if message.sys_flag & SYS_FLAG_TRANSACTION_MASK in _NOT_IN_A_QUEUE:
            return
        queue = (message.topic, message.queue_id)
        self._next[queue] = max(self._next.get(queue, 0), message.queue_offset + 1)
        content, at = self._slot(queue, message.queue_offset)
        held, size, _ = ENTRY.unpack_from(content, at) if content is not None else (0, 0, 0)
        if size == 0 and self._is_gone(queue):
            self._absent, self._absent_from = self._absent + 1, self._absent_from if self._absent_from >= 0 else place
        elif size == 0:
            self.pending_from = self.pending_from if self.pending_from >= 0 else place
        elif (held, size) == (place, message.size_bytes):
            if self.pending_from >= 0:
                raise StoreError(
                    f"{_shown(queue)} has the message at {place}, and no queue has that at {self.pending_from}"
                )
            # The broker took the messages before this one to their queues: a queue that is gone was deleted after that.
            self.deleted, self._absent, self._absent_from = self.deleted + self._absent, 0, -1
            if self.writes and content is not None:
                _PLACE.pack_into(content, at, new_place)
        elif size > 0 and held < place:
            self.hidden += 1
        else:
            raise StoreError(
                f"{_shown(queue)}: message {message.queue_offset} lies at {held} by its entry, and at {place} in the log;"
                " was the topic deleted and created again?"
            )

    def check_ends(self, begin: int) -> None:
        """StoreError for a queue with an entry that points behind the log's last message of it: the log has lost its end.

        `begin`: where the log of DLedger begins. What lies before is of an earlier log, or deleted.
        """
        if self._absent:
            self.pending_from = (
                self._absent_from if self.pending_from < 0 else min(self.pending_from, self._absent_from)
            )
        for path in queue_folders(self.folder):
            files = files_of(path)
            if not files:
                continue
            has, last = _end_of(files[-1])
            self.used_bytes += sum(one.stat().st_size for one in files[:-1]) + len(files) * AROUND_A_FILE_BYTES
            self.used_bytes += has * ENTRY.size - int(files[-1].name)
            known = self._next.get((path.parent.name, int(path.name)), 0)
            if last >= begin and has > known:
                raise StoreError(
                    f"{CONSUME_QUEUES}/{path.parent.name}/{path.name} has {has} messages, the last one at {last} of the log,"
                    f" and the log has {known}: entries at its end are missing"
                )

    def close(self) -> None:
        """Unmap all files. What was written is in the page cache: the caller syncs each file once."""
        for one in self._open.values():
            one.close()
        self._open.clear()

    def _is_gone(self, queue: tuple[str, int]) -> bool:
        return self.topics is not None and queue[0] not in self.topics and not self._file_bytes[queue]

    def _slot(self, queue: tuple[str, int], number: int) -> tuple[mmap.mmap | None, int]:
        """Return the file with this entry, and the position in it; None if there is no such file."""
        if (size := self._file_bytes.get(queue, -1)) < 0:
            folder = self.folder / queue[0] / str(queue[1])
            files = files_of(folder) if folder.is_dir() else []
            size = self._file_bytes[queue] = files[0].stat().st_size if files else 0
        if size < ENTRY.size:
            return None, 0
        file, at = divmod(number * ENTRY.size, size)
        key = (*queue, file)
        content = self._open.get(key)
        return (self._map(key, file * size) if content is None else content), at

    def _map(self, key: tuple[str, int, int], offset: int) -> mmap.mmap | None:
        """Map a file; the one that was mapped first goes if there are too many."""
        path = self.folder / key[0] / str(key[1]) / f"{offset:020d}"
        if not path.exists():
            return None
        if len(self._open) >= self._most_open:
            self._open.pop(next(iter(self._open))).close()
        with path.open("r+b" if self.writes else "rb") as opened:
            access = mmap.ACCESS_WRITE if self.writes else mmap.ACCESS_READ
            self._open[key] = mmap.mmap(opened.fileno(), 0, access=access)
        return self._open[key]


@contextlib.contextmanager
def following(folder: Path, topics: frozenset[str] | None, *, writes: bool = False) -> Iterator[Queues]:
    """Open the queues for one pass over the log. `topics`: those of the store's settings; None if these are not in a file."""
    queues = Queues(folder, writes=writes, topics=topics)
    try:
        yield queues
    finally:
        queues.close()


def queue_folders(folder: Path) -> Iterator[Path]:
    """Yield `<topic>/<queue>`, in order."""
    yield from (path for path in sorted(folder.glob("*/*")) if path.is_dir() and path.name.isdecimal())


def files_of(queue: Path) -> list[Path]:
    return sorted(path for path in queue.iterdir() if LOG_FILE.fullmatch(path.name))


def _end_of(path: Path) -> tuple[int, int]:
    """Return a queue's next offset by its last file, and where in the log its last message lies; -1 if the file has none.

    A file is filled from its beginning, so the last message is found by halving.
    """
    with path.open("rb") as file:

        def at(number: int) -> tuple[int, int, int]:
            file.seek(number * ENTRY.size)
            place, size, tags = ENTRY.unpack(file.read(ENTRY.size))
            return place, size, tags

        low, high = 0, path.stat().st_size // ENTRY.size
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if at(middle)[1] > 0 else (low, middle)
        return int(path.name) // ENTRY.size + low, at(low - 1)[0] if low else -1


def _shown(queue: tuple[str, int]) -> str:
    return f"{CONSUME_QUEUES}/{queue[0]}/{queue[1]}"
