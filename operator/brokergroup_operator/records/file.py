"""A record store in a folder: one file a group, for a controller that runs outside Kubernetes (``--store file:DIR``).

A file is never changed in place: the new content is written beside it, flushed to the disk, renamed over it, and the folder
is flushed too. So after a crash at any moment either the old or the new record is complete. Each file has a checksum: a torn file
(a disk that lies, an incomplete copy) raises an error that names it, and never counts as "no record yet", which would assign
broker ids twice. A lock that ends with its process gives the folder to one process at a time.

Disk work runs in a thread, one at a time for each group. At its deadline the caller gets "unavailable" while the thread goes on:
the next read waits for the thread, and so sees its outcome.
"""

from __future__ import annotations

import asyncio
import json
import os
import urllib.parse
import uuid
import zlib
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

from brokergroup_operator.folder_lock import FolderInUseError, FolderLock
from brokergroup_operator.records.serialize import record_from_json, record_to_json
from brokergroup_operator.records.store import (
    DEFAULT_DEADLINE_SECONDS,
    GroupKey,
    RecordConflictError,
    RecordCorruptError,
    RecordStoreError,
    RecordUnavailableError,
    StoredRecord,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from brokergroup_operator.records.store import RecordMoved
    from controller_core.model import BrokerGroupRecord

_Result = TypeVar("_Result")
_SUFFIX = ".record.json"


class FileRecordStore:
    """Records as files in a folder that this process alone may write."""

    def __init__(self, folder: Path) -> None:
        """Open the folder, creating it where it is absent; RecordStoreError to a second process, and where it cannot be written."""
        self._folder = folder
        self._lock: FolderLock | None = _lock_folder(folder)
        # Each for as long as a read or a commit holds it.
        self._turns: WeakValueDictionary[GroupKey, asyncio.Lock] = WeakValueDictionary()
        self._in_flight: set[asyncio.Task[Any]] = set()

    async def read(self, key: GroupKey, *, deadline_seconds: float = DEFAULT_DEADLINE_SECONDS) -> StoredRecord | None:
        """Return what the file says."""
        return await self._in_turn(key, lambda: read_record_file(self._path(key)), deadline_seconds)

    async def commit(
        self,
        key: GroupKey,
        record: BrokerGroupRecord | None,
        expected: StoredRecord | None,
        deadline_seconds: float = DEFAULT_DEADLINE_SECONDS,
    ) -> StoredRecord | None:
        """Replace the file if it still holds what was read."""
        return await self._in_turn(
            key, lambda: _replace_record_file(self._path(key), record, expected), deadline_seconds
        )

    def subscribe(self, callback: RecordMoved) -> Callable[[], None]:  # noqa: ARG002 - no other process may write here
        """Do nothing: the folder belongs to this process, which knows what it wrote."""
        return lambda: None

    def watched(self, key: GroupKey) -> StoredRecord | None:  # noqa: ARG002 - nothing is watched
        """Return nothing."""
        return None

    async def close(self) -> None:
        """Wait for the disk work under way, then give the folder back."""
        if self._in_flight:
            await asyncio.gather(*self._in_flight, return_exceptions=True)
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _path(self, key: GroupKey) -> Path:
        name = ".".join(urllib.parse.quote(part, safe="").replace(".", "%2E") for part in (key.namespace, key.name))
        return self._folder / (name + _SUFFIX)

    async def _in_turn(self, key: GroupKey, work: Callable[[], _Result], deadline_seconds: float) -> _Result:
        if self._lock is None:
            raise RecordUnavailableError(f"record store {self._folder} is closed")
        task = asyncio.create_task(self._run(self._turns.setdefault(key, asyncio.Lock()), work))
        self._in_flight.add(task)
        task.add_done_callback(self._finished)
        try:
            async with asyncio.timeout(deadline_seconds):
                return await asyncio.shield(task)
        except TimeoutError as error:
            raise RecordUnavailableError(f"record of {key}: the disk took longer than {deadline_seconds} s") from error
        except OSError as error:
            raise RecordUnavailableError(f"record of {key}: {error}") from error

    @staticmethod
    async def _run(turn: asyncio.Lock, work: Callable[[], _Result]) -> _Result:
        async with turn:
            return await asyncio.to_thread(work)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._in_flight.discard(task)
        if not task.cancelled():
            task.exception()  # the caller may have left at its deadline: asyncio would log it as never retrieved


def read_record_file(path: Path) -> StoredRecord | None:
    """Return the record in this file, None where there is no file; anything torn is an error that names the file."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise RecordCorruptError(f"{path}: not a whole record file ({len(content)} bytes): {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("record"), dict):
        raise RecordCorruptError(f"{path}: no record in it")
    checksum = _checksum(document)
    if document.get("checksum") != checksum:
        raise RecordCorruptError(f"{path}: checksum is {document.get('checksum')!r}, expected {checksum!r}")
    return StoredRecord(
        record=record_from_json(document["record"], source=str(path)),
        version=str(document["version"]),
        uid=str(document["uid"]),
    )


def _replace_record_file(
    path: Path, record: BrokerGroupRecord | None, expected: StoredRecord | None
) -> StoredRecord | None:
    current = read_record_file(path)
    current_version = (current.version, current.uid) if current is not None else None
    expected_version = (expected.version, expected.uid) if expected is not None else None
    if current_version != expected_version:
        raise RecordConflictError(f"{path}: expected version {expected_version}, found {current_version}")
    if record is None:
        path.unlink(missing_ok=True)
        _flush_folder(path.parent)
        return None
    stored = StoredRecord(
        record=record,
        version=str(int(current.version) + 1 if current is not None else 1),
        uid=current.uid if current is not None else str(uuid.uuid4()),
    )
    document: dict[str, Any] = {"version": stored.version, "uid": stored.uid, "record": record_to_json(record)}
    document["checksum"] = _checksum(document)
    _write_durably(path, json.dumps(document, indent=1).encode() + b"\n")
    return stored


def _write_durably(path: Path, content: bytes) -> None:
    """Write beside, flush, rename, flush the folder: the order is what survives a crash at any point."""
    aside = path.with_suffix(".aside")
    with aside.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    aside.replace(path)
    _flush_folder(path.parent)


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _checksum(document: dict[str, Any]) -> str:
    content = {name: document.get(name) for name in ("version", "uid", "record")}
    return f"crc32:{zlib.crc32(json.dumps(content, sort_keys=True, separators=(',', ':')).encode()):08x}"


def _lock_folder(folder: Path) -> FolderLock:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return FolderLock.take(folder / ".lock")
    except FolderInUseError as error:
        raise RecordStoreError(f"record store: another process uses this store: {error}") from error
    except OSError as error:
        raise RecordStoreError(f"record store {folder}: {error.strerror}; expected a folder to write in") from error
