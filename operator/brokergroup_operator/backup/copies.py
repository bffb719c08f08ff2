"""Copies a stopped broker's store to a backup's folder, and a backup to an empty store. A torn copy is known as torn.

A backup is a folder: the store's files below ``store``, the commit log's below ``commitlog`` wherever its broker had them, and
``manifest.json``, written last, which names every file with its size and SHA-256 and has a check sum of its own. A folder without
a manifest is no backup, and the next attempt fills it anew.

The files of the broker's identity stay behind: a restored disk is a new replica with a new broker id. What it knows of epochs
stays: by them its slaves find where their logs part.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import msgspec

from brokergroup_operator.api.backup_fields import Manifest  # noqa: TC001 (msgspec reads the annotations)
from brokergroup_operator.api.times import rfc3339
from brokergroup_operator.backup.log_end import LogError, last_epoch, log_end

if TYPE_CHECKING:
    from collections.abc import Iterator

MANIFEST: Final = "manifest.json"
FORMAT: Final = 1
# In a store while a backup is copied to it; of a store that a backup was copied to.
UNFINISHED: Final = "restore-unfinished"
RESTORED: Final = "restored.json"
# Not copied: who the broker is, locks and probes of its process, what a file system puts there, and marks of ours.
LEFT_OUT: Final = frozenset(
    {"brokerIdentity", "brokerIdentity-temp", "lock", ".disk-probe", "lost+found", UNFINISHED, RESTORED}
)
COMMIT_LOG: Final = "commitlog"
CHUNK_BYTES: Final = 1 << 20
_ZEROS: Final = bytes(CHUNK_BYTES)


class BackupError(Exception):
    """There is no whole copy; the message says why."""


@dataclass(frozen=True)
class Store:
    """The folders of one broker's disk. `commit_log` lies in `root` unless it has a volume of its own."""

    root: Path
    commit_log: Path

    @classmethod
    def at(cls, root: Path, commit_log: str | None) -> Self:
        return cls(root, Path(commit_log) if commit_log else root / COMMIT_LOG)

    def files(self) -> Iterator[tuple[str, Path]]:
        """Every file that belongs to the data, by its path in a backup."""
        inside = self.root / COMMIT_LOG
        for path in _files_below(self.root):
            if not path.is_relative_to(inside):
                yield f"store/{path.relative_to(self.root)}", path
        for path in _files_below(self.commit_log):
            yield f"{COMMIT_LOG}/{path.relative_to(self.commit_log)}", path

    def place_of(self, name: str) -> Path:
        """Where the file of this path in a backup lies in the store. BackupError for one that would lie elsewhere."""
        top, _, rest = name.partition("/")
        root = {"store": self.root, COMMIT_LOG: self.commit_log}.get(top)
        if root is None or not rest or ".." in Path(rest).parts:
            raise BackupError(f"the manifest names {name!r}, expected a path below store/ or {COMMIT_LOG}/")
        return root / rest


class CopiedFile(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    size: int
    sha256: str


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest file: `sha256` is of `backup` and `files` in their JSON form."""

    backup: Manifest
    files: list[CopiedFile]
    sha256: str = ""

    def check_sum(self) -> str:
        return hashlib.sha256(msgspec.json.encode([self.backup, self.files])).hexdigest()


def take(store: Store, folder: Path, known: Manifest) -> Manifest:
    """Copy the store to the folder, and return the manifest; where this very backup is there already, only return it.

    `known`: what the operator knows. The log must reach `known.confirm_offset`, and no file may change meanwhile.
    """
    if (folder / MANIFEST).exists():
        there = read_manifest(folder).backup
        if there.operation == known.operation:
            return there
        raise BackupError(f"{known.name} exists: it was taken by another operation, at {there.taken_at}")
    before = _state_of(store)
    if folder.exists():
        shutil.rmtree(folder)  # an attempt that was cut off: it has no manifest
    folder.mkdir(parents=True)
    files = [_copy(source, folder / name, name) for name, source in sorted(store.files())]
    copy = Store(folder / "store", folder / COMMIT_LOG)
    manifest = msgspec.structs.replace(
        known,
        format=FORMAT,
        offset=_log_end(copy),
        store_epoch=_last_epoch(copy),
        bytes=sum(one.size for one in files),
        taken_at=rfc3339(time.time()),
    )
    if manifest.offset < known.confirm_offset:
        raise BackupError(
            f"the log of broker {known.broker_id} ends at {manifest.offset}, though it had confirmed {known.confirm_offset}"
        )
    if _state_of(store) != before:
        raise BackupError(f"files of broker {known.broker_id} changed while they were copied: a broker runs on them")
    _sync_folders(folder)
    contents = Contents(backup=manifest, files=files)
    contents = msgspec.structs.replace(contents, sha256=contents.check_sum())
    _write(folder / MANIFEST, msgspec.json.encode(contents))
    return manifest


def restore(folder: Path, store: Store, *, name: str, implementation: str) -> Manifest:
    """Copy the backup to an empty store, check each file, and return the manifest; if that is done already, only return it."""
    contents = read_manifest(folder)
    manifest = contents.backup
    if manifest.implementation != implementation:
        raise BackupError(f"{name} is of {manifest.implementation} brokers, the group's are {implementation}")
    finished = store.root / RESTORED
    if finished.exists():
        if finished.read_bytes() == msgspec.json.encode(manifest):
            return manifest
        raise BackupError("the claim has the data of another backup: delete the claim, or use another group name")
    if not (store.root / UNFINISHED).exists():
        if found := next((path for _, path in store.files()), None):
            raise BackupError(
                f"the claim is not empty, it has {found.name}: delete the claim, or use another group name"
            )
        store.root.mkdir(parents=True, exist_ok=True)
        _write(store.root / UNFINISHED, name.encode())
    _empty(store)
    for listed in contents.files:
        copied = _copy(folder / listed.path, store.place_of(listed.path), listed.path)
        if copied != listed:
            raise BackupError(f"{name} is damaged: {listed.path} is not as its manifest says")
    if _log_end(store) != manifest.offset:
        raise BackupError(f"{name} is damaged: its log does not end at {manifest.offset}")
    _sync_folders(store.root, store.commit_log)
    _write(finished, msgspec.json.encode(manifest))
    (store.root / UNFINISHED).unlink()
    return manifest


def read_manifest(folder: Path) -> Contents:
    """Return the manifest of a backup. BackupError where there is none, or it is of another format, or damaged."""
    path = folder / MANIFEST
    if not folder.is_dir():
        raise BackupError(f"there is no folder {folder.parent.name}/{folder.name} in the claim")
    if not path.exists():
        raise BackupError(f"{folder.parent.name}/{folder.name} is torn: it has no {MANIFEST}, which is written last")
    try:
        contents = msgspec.json.decode(path.read_bytes(), type=Contents)
    except msgspec.MsgspecError as error:
        raise BackupError(f"{path.name} of {folder.parent.name}/{folder.name} is damaged: {error}") from error
    if contents.backup.format != FORMAT:
        raise BackupError(f"{path.name} has format {contents.backup.format}, this operator reads {FORMAT}")
    if contents.check_sum() != contents.sha256:
        raise BackupError(f"{path.name} of {folder.parent.name}/{folder.name} is damaged: its check sum is wrong")
    return contents


def _files_below(root: Path) -> Iterator[Path]:
    if not root.is_dir():
        return
    for folder, folders, files in os.walk(root, onerror=_raise):
        folders[:] = sorted(set(folders) - LEFT_OUT)
        yield from (Path(folder, name) for name in sorted(files) if name not in LEFT_OUT)


def _raise(error: OSError) -> None:
    raise error


def _state_of(store: Store) -> list[tuple[str, int, int]]:
    found = ((name, path.stat()) for name, path in store.files())
    return sorted((name, entry.st_size, entry.st_mtime_ns) for name, entry in found)


def _copy(source: Path, target: Path, name: str) -> CopiedFile:
    """Copy one file durably. Holes stay holes: a log file has its full length from its beginning, and is mostly empty."""
    digest, size = hashlib.sha256(), 0
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with source.open("rb") as reader, target.open("wb") as writer:
            while chunk := reader.read(CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
                if chunk == _ZEROS[: len(chunk)]:
                    writer.seek(size)
                else:
                    writer.write(chunk)
            writer.truncate(size)
            writer.flush()
            os.fsync(writer.fileno())
    except FileNotFoundError as error:
        raise BackupError(f"{name} is missing") from error
    return CopiedFile(path=name, size=size, sha256=digest.hexdigest())


def _empty(store: Store) -> None:
    """Delete what an attempt that was cut off has copied; its mark stays."""
    for path in [path for _, path in store.files()]:
        path.unlink()


def _log_end(store: Store) -> int:
    try:
        return log_end(store.commit_log)
    except LogError as error:
        raise BackupError(str(error)) from error


def _last_epoch(store: Store) -> int:
    try:
        return last_epoch(store.root)
    except LogError as error:
        raise BackupError(str(error)) from error


def _write(path: Path, content: bytes) -> None:
    """Replace a file as a whole."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as writer:
        writer.write(content)
        writer.flush()
        os.fsync(writer.fileno())
    temporary.replace(path)
    _sync(path.parent)


def _sync_folders(*roots: Path) -> None:
    for root in roots:
        for folder, _, _ in os.walk(root):
            _sync(Path(folder))


def _sync(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
