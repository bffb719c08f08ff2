"""Copies the messages of a DLedger commit log to a log of the normal format, as a backup that a BrokerGroup begins with.

The store is only read. A message keeps everything but its physical offset: the header of its entry, 48 bytes, is left out, so the
log becomes shorter. Its number in its queue is part of it, and consume queues and index files are copied with the new places, so
what consumers have read stays read, and a query by key finds what it found.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

import msgspec

from brokergroup_operator.api.backup_fields import Manifest
from brokergroup_operator.api.brokergroup import Implementation
from brokergroup_operator.api.times import rfc3339
from brokergroup_operator.backup import copies, files
from brokergroup_operator.backup.files import CopiedFile
from brokergroup_operator.backup.log_end import log_end
from brokergroup_operator.migrate.dledger_index import INDEX, Index, index_files, indexing
from brokergroup_operator.migrate.dledger_queues import CONSUME_QUEUES, files_of, following, queue_folders
from brokergroup_operator.migrate.dledger_store import (
    KEPT,
    FileDigest,
    LedgerStore,
    MemberReport,
    entries_of,
    open_store,
)
from brokergroup_operator.migrate.stores import EPOCHS, FIRST_EPOCH, Place, StoreError, no_broker
from rocketmq_remoting.message_record import BLANK_HEADER_BYTES, encode_blank
from rocketmq_replica.log.epochs import EpochCache, EpochEntry
from rocketmq_replica.log.side_files import encode_epochs

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Iterator, Sequence
    from io import FileIO
    from pathlib import Path

# Where a message says where it lies: behind size, magic, body CRC, queue id, flag and queue offset.
_PLACE_AT: Final = 28
_PLACE: Final = struct.Struct(">q")
_BUFFER_BYTES: Final = 1 << 20
# The unit of st_blocks.
_BLOCK_BYTES: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where the copy goes, and whose it becomes. `name`: `<group>/<copy>` below `claim`, as spec.bootstrap.fromBackup names it."""

    claim: Path
    name: str
    cluster_name: str
    broker_name: str
    version: str = ""

    @property
    def folder(self) -> Path:
        return self.claim / self.name


@dataclass(slots=True)
class LogWriter:
    """Writes records one behind the other into files of one size, as a broker does: what does not fit begins the next file."""

    folder: Path
    file_bytes: int
    offset: int
    written: list[CopiedFile] = field(default_factory=list)
    _name: str = ""
    _file: FileIO | None = None
    _pending: bytearray = field(default_factory=bytearray)
    _digest: hashlib._Hash = field(default_factory=hashlib.sha256)

    def add(self, record: bytearray) -> int:
        """Append a record; its physical offset becomes the one where it lies now. Return that."""
        left = self.file_bytes - self.offset % self.file_bytes
        if len(record) + BLANK_HEADER_BYTES > left:
            self._append(encode_blank(left))
            self._end_file()
        place = self.offset
        _PLACE.pack_into(record, _PLACE_AT, place)
        self._append(record)
        return place

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def end(self) -> None:
        """End the last file, with zeros behind the last message."""
        if self._file is None:
            return
        self._flush()
        for zeros in _zeros(self.file_bytes - self.offset % self.file_bytes):
            self._digest.update(zeros)
        self._end_file()

    def _append(self, content: bytes | bytearray) -> None:
        if self._file is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._name = f"{self.offset:020d}"
            self._file = (self.folder / self._name).open("xb", buffering=0)
            self._digest = hashlib.sha256()
        self._pending += content
        self.offset += len(content)
        if len(self._pending) >= _BUFFER_BYTES:
            self._flush()

    def _flush(self) -> None:
        assert self._file is not None
        self._digest.update(self._pending)
        rest = memoryview(bytes(self._pending))
        while rest:
            rest = rest[self._file.write(rest) :]
        self._pending.clear()

    def _end_file(self) -> None:
        assert self._file is not None
        self._flush()
        self._file.truncate(self.file_bytes)
        os.fsync(self._file.fileno())
        path = f"{files.COMMIT_LOG}/{self._name}"
        self._file.close()
        self._file = None
        self.written.append(CopiedFile(path=path, size=self.file_bytes, sha256=self._digest.hexdigest()))


def copy_store(place: Place, known: MemberReport, others: Sequence[MemberReport], target: Target) -> Manifest:
    """Make the copy, and return its manifest; where this very copy is there already, only return it.

    `known`: the report on this store by which it was chosen; `others`: those on the other members. StoreError if the store is not
    as it was, or differs from another member's. A copy that was cut off has no manifest, and the next attempt makes it anew.
    """
    folder, manifest = target.folder, _manifest(known, target)
    if any(one.is_symlink() for one in (folder, folder.parent)):
        raise StoreError(f"{target.name} is a symbolic link in the claim, expected a folder")
    if (folder / copies.MANIFEST).exists():
        there = copies.read_manifest(folder).backup
        if there.operation != manifest.operation:
            raise StoreError(f"{target.name} is another copy, of {there.taken_at}: take another name")
        (folder / copies.ATTEMPT).unlink(missing_ok=True)
        files.sync(folder)
        return there
    store = open_store(place)
    before = store.state()
    with no_broker(place.path("lock")):
        copies.begin_attempt(folder, manifest)
        # Settings first: the report on the store, which has them too, is compared behind both.
        written = [*_copied_settings(store, folder), *_copied_log(store, known, others, folder)]
        if store.state() != before:
            raise StoreError(f"files of dledger-{store.member} changed while they were copied: a broker runs on them")
    manifest = msgspec.structs.replace(
        manifest,
        offset=(end := log_end(folder / files.COMMIT_LOG)),
        confirm_offset=end,
        bytes=sum(one.size for one in written),
        taken_at=rfc3339(time.time()),
    )
    copies.finish(folder, manifest, written)
    return manifest


def missing_bytes(known: MemberReport, target: Target) -> int:
    """Return how many bytes more the target's disk must have free; 0 if there are enough, or the copy is there already."""
    if (target.folder / copies.MANIFEST).exists():
        return 0
    above = next(one for one in (target.folder, *target.folder.parents) if one.exists())
    # An attempt that was cut off is deleted first.
    cut_off = sum(one.lstat().st_blocks * _BLOCK_BYTES for one in target.folder.rglob("*"))
    return max(0, known.room_bytes - shutil.disk_usage(above).free - cut_off)


def _copied_log(
    store: LedgerStore, known: MemberReport, others: Sequence[MemberReport], folder: Path
) -> Iterator[CopiedFile]:
    """Yield the files of the log, of its consume queues, and of its index."""
    for path in store.old_files:
        yield _copy(path, folder, f"{files.COMMIT_LOG}/{path.name}")
    queue_files = [*_copied_queues(store, folder), *([] if known.no_index else _copied_index(store, folder))]
    ends = [one.files[-1] for one in others if one.files]
    tally, marked = store.tally(), {one.last for one in ends}
    with (
        LogWriter(folder / files.COMMIT_LOG, store.ledger.file_bytes, store.ledger.begin) as writer,
        following(folder / files.STORE / CONSUME_QUEUES, store.topics(), writes=True) as queues,
        _indexing(store, known, folder) as index,
    ):
        for entry in entries_of(store):
            tally.add(entry)
            if entry.message is not None:
                new_place = writer.add(bytearray(entry.body))
                queues.follow(entry.message, entry.place, new_place)
                index.follow(entry.place, new_place)
            if entry.index in marked:
                _check_same(tally.digest(), ends)
        tally.end()
        writer.end()
        # The entries have new places now, so the ends of the queues are those of the store.
        queues.folder = store.place.path(CONSUME_QUEUES)
        if store.report(tally, queues, index) != known:
            raise StoreError(
                f"dledger-{store.member} is not as its report says: it has changed, or is another member's"
            )
    yield from writer.written
    for one in queue_files:
        files.sync(folder / one.path)
        yield files.hashed(folder / one.path, one.path)


def _copied_queues(store: LedgerStore, folder: Path) -> Iterator[CopiedFile]:
    top = store.place.path(CONSUME_QUEUES)
    for queue in queue_folders(top):
        for path in files_of(queue):
            yield _copy(path, folder, f"{files.STORE}/{CONSUME_QUEUES}/{path.relative_to(top).as_posix()}")


def _copied_index(store: LedgerStore, folder: Path) -> Iterator[CopiedFile]:
    for path in index_files(store.place.path(INDEX)):
        yield _copy(path, folder, f"{files.STORE}/{INDEX}/{path.name}")


def _indexing(store: LedgerStore, known: MemberReport, folder: Path) -> contextlib.AbstractContextManager[Index]:
    """Open the copied index files; the store's own, to be read only, if they cannot be copied."""
    top = store.place.path(INDEX) if known.no_index else folder / files.STORE / INDEX
    return indexing(index_files(top), store.ledger.begin, writes=not known.no_index)


def _check_same(mine: FileDigest, ends: Sequence[FileDigest]) -> None:
    """Raise StoreError where another member's log ends, and differs before its end."""
    for its in ends:
        if its.last == mine.last and its != mine:
            raise StoreError(
                f"entries {mine.first}..{mine.last} differ from those of another member, in the same terms"
            )


def _copied_settings(store: LedgerStore, folder: Path) -> Iterator[CopiedFile]:
    """Yield topics, groups, offsets, and the first epoch of the log, which has none."""
    for top in KEPT:
        root = store.place.path(top)
        for path in sorted(root.rglob("*")) if root.is_dir() else ():
            if path.is_symlink():
                raise StoreError(
                    f"{top}/{path.relative_to(root)} is a symbolic link: put in its place what it leads to"
                )
            if path.is_file():
                yield _copy(path, folder, f"{files.STORE}/{top}/{path.relative_to(root).as_posix()}")
    content = encode_epochs(EpochCache([EpochEntry(*FIRST_EPOCH)]))
    name = f"{files.STORE}/{EPOCHS}"
    files.make_folder(folder / files.STORE)
    files.write(folder / name, content)
    yield CopiedFile(path=name, size=len(content), sha256=hashlib.sha256(content).hexdigest())


def _copy(source: Path, folder: Path, name: str) -> CopiedFile:
    return files.copy(source, folder / name, name)


def _manifest(known: MemberReport, target: Target) -> Manifest:
    """Return what is known before the copy is made. `operation` is the same for the same log, and for no other."""
    group, _, _ = target.name.partition("/")
    source = hashlib.sha256(msgspec.json.encode(known)).hexdigest()
    return Manifest(
        name=target.name,
        operation=f"dledger-{source[:32]}",
        group=group,
        namespace="",
        cluster_name=target.cluster_name,
        broker_name=target.broker_name,
        broker_id=1,
        next_broker_id=1,
        master_epoch=FIRST_EPOCH[0],
        store_epoch=FIRST_EPOCH[0],
        implementation=Implementation.JAVA.value,
        version=target.version,
    )


def _zeros(count: int) -> Iterator[bytes]:
    whole, rest = divmod(count, _BUFFER_BYTES)
    yield from [bytes(_BUFFER_BYTES)] * whole
    yield bytes(rest)
