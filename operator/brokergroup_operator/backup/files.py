"""The files of a store and of a backup: which belong to the data, where one lies, and how it is copied durably and read again.

Nothing here follows a symbolic link or leaves the folder it was given: an index and a claim may come from elsewhere.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

STORE: Final = "store"
COMMIT_LOG: Final = "commitlog"
# In both folders of a store while a backup is copied to it: no broker starts on them (rocketmq_replica/log/message_store.py).
UNFINISHED: Final = "restore-unfinished"
# In a store that a backup was copied to.
RESTORED: Final = "restored.json"
# Every broker opens this file of its store for writing. It is a folder until a restore is whole, so that no broker can start.
LOCK: Final = "lock"
# What a file system or a probe of ours puts at the top of a volume.
OF_THE_VOLUME: Final = frozenset({".disk-probe", "lost+found"})
# At the top of a store, and no data: the broker's identity, its lock, and marks of ours. Deeper down every name is data.
LEFT_OUT: Final = OF_THE_VOLUME | {
    "brokerIdentity",
    "brokerIdentity-temp",
    LOCK,
    UNFINISHED,
    RESTORED,
    f"{RESTORED}.tmp",
}
CHUNK_BYTES: Final = 1 << 20
_ZEROS: Final = bytes(CHUNK_BYTES)


class BackupError(Exception):
    """There is no whole copy; the message says why."""


class CopiedFile(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Store:
    """The folders of one broker's disk. `commit_log` is the folder of that name in `root`, or in a volume of its own."""

    root: Path
    commit_log: Path

    @classmethod
    def at(cls, root: Path, log_volume: str | None) -> Self:
        """The store in these volumes (`storePathCommitLog`, `render/broker_config.py`)."""
        return cls(root, (Path(log_volume) if log_volume else root) / COMMIT_LOG)

    @property
    def volumes(self) -> tuple[Path, ...]:
        """The roots of its volumes."""
        return (self.root,) if self.commit_log.parent == self.root else (self.root, self.commit_log.parent)

    @property
    def is_unfinished(self) -> bool:
        """Whether a restore to it has begun and not ended."""
        return any((one / UNFINISHED).exists() for one in self.volumes)

    def files(self) -> Iterator[tuple[str, Path]]:
        """Every file that belongs to the data, by its path in a backup. BackupError for a link or a special file."""
        for path in _files_below(self.root, LEFT_OUT | {COMMIT_LOG}):
            yield f"{STORE}/{path.relative_to(self.root).as_posix()}", path
        for path in _files_below(self.commit_log, frozenset()):
            yield f"{COMMIT_LOG}/{path.relative_to(self.commit_log).as_posix()}", path

    def place_of(self, name: str) -> Path:
        """Where the file of this path in a backup lies in the store. BackupError for one that would lie elsewhere."""
        top, *parts = name.split("/")
        root = {STORE: self.root, COMMIT_LOG: self.commit_log}.get(top)
        left_out = LEFT_OUT | {COMMIT_LOG} if top == STORE else OF_THE_VOLUME | {UNFINISHED}
        if root is None or not parts or {"", ".", ".."} & {*parts} or "\0" in name or parts[0] in left_out:
            raise BackupError(f"the manifest names {name!r}, expected a path of data below {STORE}/ or {COMMIT_LOG}/")
        return root.joinpath(*parts)


def state_of(store: Store) -> list[tuple[str, int, int, int, int]]:
    """What differs after a broker has run on the store."""
    found = ((name, path.lstat()) for name, path in store.files())
    return sorted((name, one.st_ino, one.st_size, one.st_mtime_ns, one.st_ctime_ns) for name, one in found)


def _files_below(root: Path, left_out: frozenset[str] | set[str]) -> Iterator[Path]:
    if root.is_symlink():
        raise BackupError(f"{root.name} is a symbolic link, expected a folder")
    if not root.is_dir():
        return
    for folder, folders, files in os.walk(root, onerror=_raise):
        if Path(folder) == root:
            folders[:], files[:] = (sorted(set(names) - left_out) for names in (folders, files))
        folders.sort()
        for name in sorted(files):
            _expect(Path(folder, name), stat.S_ISREG)
            yield Path(folder, name)
        for name in folders:
            _expect(Path(folder, name), stat.S_ISDIR)


def _expect(path: Path, is_kind: object) -> None:
    assert callable(is_kind)
    if not is_kind(path.lstat().st_mode):
        raise BackupError(f"{path} is a symbolic link or a special file: a broker has files and folders only")


def _raise(error: OSError) -> None:
    raise error


def copy(source: Path, target: Path, name: str) -> CopiedFile:
    """Copy one file durably. Holes stay holes: a log file has its full length from its beginning, and is mostly empty."""
    digest, size = hashlib.sha256(), 0
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        reading = os.open(source, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError as error:
        raise BackupError(f"{name} is missing") from error
    writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    with os.fdopen(reading, "rb", buffering=0) as reader, os.fdopen(writing, "wb", buffering=0) as writer:
        while chunk := reader.read(CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
            if chunk != _ZEROS[: len(chunk)]:
                # A consume queue's file is filled from its beginning: with thousands of queues, zeros would be most of a backup.
                _write_all(writer.fileno(), chunk.rstrip(b"\0"))
            writer.seek(size)
        writer.truncate(size)
        os.fsync(writer.fileno())
    return CopiedFile(path=name, size=size, sha256=digest.hexdigest())


def _write_all(descriptor: int, chunk: bytes) -> None:
    rest = memoryview(chunk)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def hashed(path: Path, name: str) -> CopiedFile:
    """Read a file as its disk has it: what lies in memory of it is dropped before, as far as the file system can."""
    digest, size = hashlib.sha256(), 0
    try:
        reading = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError as error:
        raise BackupError(f"{name} is missing") from error
    with os.fdopen(reading, "rb", buffering=0) as reader:
        os.posix_fadvise(reader.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while chunk := reader.read(CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return CopiedFile(path=name, size=size, sha256=digest.hexdigest())


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, each durable in its parent."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(exist_ok=True)
        sync(one.parent)


def empty(folder: Path, left: frozenset[str] | set[str]) -> None:
    """Delete all of a folder but these names at its top. The caller knows that the folder is ours."""
    for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
        if entry.name in left:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    if folder.is_dir():
        sync(folder)


def write(path: Path, content: bytes) -> None:
    """Replace a file as a whole."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as writer:
        writer.write(content)
        writer.flush()
        os.fsync(writer.fileno())
    temporary.replace(path)
    sync(path.parent)


def sync_folders(*roots: Path) -> None:
    for root in roots:
        for folder, _, _ in os.walk(root, onerror=_raise):
            sync(Path(folder))


def sync(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
