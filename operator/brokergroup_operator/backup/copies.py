"""Copies a stopped broker's store to a backup's folder, and a backup to an empty store. A torn copy is known as torn.

A backup is a folder: the store's files below ``store``, the commit log's below ``commitlog`` wherever its broker had them, and
``manifest.json``, written last, which names every file with its size and SHA-256 and has a check sum of its own bytes. A folder
with the mark of an attempt is no backup, and the next attempt fills it anew. A folder that has neither is another program's.

The files of the broker's identity stay behind: a restored disk is a new replica with a new broker id. What it knows of epochs
stays: by them its slaves find where their logs part.
"""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING, Final

import msgspec

from brokergroup_operator.api.backup_fields import Manifest  # noqa: TC001 (msgspec reads the annotations)
from brokergroup_operator.api.times import rfc3339
from brokergroup_operator.backup import files
from brokergroup_operator.backup.files import LOCK, RESTORED, UNFINISHED, BackupError, CopiedFile, Store
from brokergroup_operator.backup.log_end import LogError, last_epoch, log_end

if TYPE_CHECKING:
    from pathlib import Path

MANIFEST: Final = "manifest.json"
# In the folder of a backup from before its first file until its manifest is there.
ATTEMPT: Final = "backup-unfinished"
FORMAT: Final = 1


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """What a manifest file says."""

    backup: Manifest
    files: list[CopiedFile]


class Sealed(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest file: `sha256` is of the bytes of `contents` as they stand in the file, also of fields of a later version."""

    sha256: str
    contents: msgspec.Raw


class _Format(msgspec.Struct, frozen=True):
    format: int


class _Formatted(msgspec.Struct, frozen=True):
    """What all formats have."""

    backup: _Format


class _Mark(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a folder is being filled for."""

    brokergroup_backup: str


def take(store: Store, folder: Path, known: Manifest) -> Manifest:
    """Copy the store to the folder, and return the manifest; where this very backup is there already, only return it.

    `known`: what the operator knows. The log must reach `known.confirm_offset`, and no file may change meanwhile.
    """
    if any(one.is_symlink() for one in (folder, folder.parent)):
        raise BackupError(f"{known.name} is a symbolic link in the claim, expected a folder")
    if (folder / MANIFEST).exists():
        there = read_manifest(folder).backup
        if there.operation != known.operation:
            raise BackupError(f"{known.name} exists: it was taken by another operation, at {there.taken_at}")
        if there.confirm_offset >= known.confirm_offset:
            (folder / ATTEMPT).unlink(missing_ok=True)
            files.sync(folder)
            return there
        _give_up(folder, known)  # the member has run since, and had to be stopped again
    before = files.state_of(store)
    begin_attempt(folder, known)
    copied = [files.copy(source, folder / name, name) for name, source in sorted(store.files())]
    copy = Store(folder / files.STORE, folder / files.COMMIT_LOG)
    manifest = msgspec.structs.replace(
        known,
        format=FORMAT,
        offset=log_end_of(copy),
        store_epoch=last_epoch_of(copy),
        bytes=sum(one.size for one in copied),
        taken_at=rfc3339(time.time()),
    )
    check_log(manifest)
    if files.state_of(store) != before:
        raise BackupError(f"files of broker {known.broker_id} changed while they were copied: a broker runs on them")
    finish(folder, manifest, copied)
    return manifest


def finish(folder: Path, manifest: Manifest, copied: list[CopiedFile]) -> None:
    """Read the copied files again, and write the manifest: from now on the folder is a backup."""
    for one in copied:
        if files.hashed(folder / one.path, one.path) != one:
            raise BackupError(f"{one.path} is not read back as it was written: the claim loses writes")
    files.sync_folders(folder)
    files.write(folder / MANIFEST, sealed(Contents(backup=manifest, files=copied)))
    (folder / ATTEMPT).unlink()
    files.sync(folder)


def sealed(contents: Contents) -> bytes:
    raw = msgspec.json.encode(contents)
    return msgspec.json.encode(Sealed(sha256=hashlib.sha256(raw).hexdigest(), contents=msgspec.Raw(raw)))


def begin_attempt(folder: Path, known: Manifest) -> None:
    """Make the folder, or empty that of an attempt that was cut off: only a folder with our mark, or nothing in it, is ours."""
    files.make_folder(folder)
    there = sorted(one.name for one in folder.iterdir() if one.name != f"{ATTEMPT}.tmp")
    if there and _mark_of(folder / ATTEMPT) is None:
        raise BackupError(f"{known.name} is in the claim, has {there[0]} and is no backup: take one of another name")
    files.write(folder / ATTEMPT, msgspec.json.encode(_Mark(brokergroup_backup=known.operation)))
    files.empty(folder, {ATTEMPT})


def _give_up(folder: Path, known: Manifest) -> None:
    """Make a backup of this very operation an attempt again."""
    files.write(folder / ATTEMPT, msgspec.json.encode(_Mark(brokergroup_backup=known.operation)))
    (folder / MANIFEST).unlink()
    files.sync(folder)


def _mark_of(path: Path) -> str | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Mark).brokergroup_backup
    except (FileNotFoundError, IsADirectoryError, msgspec.MsgspecError):
        return None


def check_log(manifest: Manifest) -> None:
    """Raise BackupError unless the copy has what its broker had confirmed, and the epochs of it."""
    if manifest.confirm_offset < 0:
        raise BackupError(f"it is not known how far broker {manifest.broker_id} had confirmed its log")
    if manifest.offset < manifest.confirm_offset:
        told = f"the log of broker {manifest.broker_id} ends at {manifest.offset}"
        raise BackupError(f"{told}, though it had confirmed {manifest.confirm_offset}")
    if manifest.offset > 0 and manifest.store_epoch == 0:
        raise BackupError(f"the store of broker {manifest.broker_id} has messages, and no epochs of them")
    if manifest.store_epoch > manifest.master_epoch:
        told = f"the log of broker {manifest.broker_id} has epoch {manifest.store_epoch}"
        raise BackupError(f"{told}, and its group's record only {manifest.master_epoch}")


def restore(folder: Path, store: Store, *, name: str, implementation: str) -> Manifest:
    """Copy the backup to an empty store, check each file, and return the manifest; if the store is that already, only return it."""
    contents = read_manifest(folder)
    manifest = contents.backup
    if manifest.implementation != implementation:
        raise BackupError(f"{name} is of {manifest.implementation} brokers, the group's are {implementation}")
    places = _places(contents, store)
    if (store.root / RESTORED).exists() and not store.is_unfinished:
        _check_unused(contents, store)
        return manifest
    _begin_restore(store, name)
    for listed, place in places:
        source = folder / listed.path
        if any(one.is_symlink() for one in source.parents if one.is_relative_to(folder)):
            raise BackupError(f"{name} is damaged: {listed.path} lies behind a symbolic link")
        if files.copy(source, place, listed.path) != listed or files.hashed(place, listed.path) != listed:
            raise BackupError(f"{name} is damaged: {listed.path} is not as its manifest says")
    if log_end_of(store) != manifest.offset or last_epoch_of(store) != manifest.store_epoch:
        raise BackupError(
            f"{name} is damaged: its log does not end at {manifest.offset} in epoch {manifest.store_epoch}"
        )
    files.sync_folders(*store.volumes)
    files.write(store.root / RESTORED, msgspec.json.encode(manifest))
    end_restore(store)
    return manifest


def _places(contents: Contents, store: Store) -> list[tuple[CopiedFile, Path]]:
    places = [(one, store.place_of(one.path)) for one in contents.files]
    if len({place for _, place in places}) < len(places):
        raise BackupError("the manifest names a file twice")
    return places


def _begin_restore(store: Store, name: str) -> None:
    """Mark the empty folders as ours, or empty those that an attempt of ours has marked. No broker starts on them from now on."""
    for volume in store.volumes:
        files.make_folder(volume)
    # The root's mark is written first and deleted last.
    if _mark_of(store.root / UNFINISHED) is None:
        for volume in store.volumes:
            ours = files.OF_THE_VOLUME | {f"{UNFINISHED}.tmp"}
            if found := next((one.name for one in sorted(volume.iterdir()) if one.name not in ours), None):
                raise BackupError(
                    f"the claim is not empty, it has {found}: delete the claim, or use another group name"
                )
    mark_unfinished(store, name)
    for volume in store.volumes:
        files.empty(volume, files.OF_THE_VOLUME | {UNFINISHED, LOCK})


def mark_unfinished(store: Store, name: str) -> None:
    """From now on no broker starts on the store: ours by the mark, Java's by the folder in place of its lock file."""
    mark = msgspec.json.encode(_Mark(brokergroup_backup=name))
    for volume in store.volumes:
        files.write(volume / UNFINISHED, mark)
    if (lock := store.root / LOCK).is_file():
        lock.unlink()  # of the broker that was stopped for a snapshot
    lock.mkdir(exist_ok=True)
    files.sync(store.root)


def end_restore(store: Store) -> None:
    """Let brokers start on the store: it is whole."""
    for volume in reversed(store.volumes[1:]):
        (volume / UNFINISHED).unlink(missing_ok=True)
        files.sync(volume)
    (store.root / LOCK).rmdir()
    (store.root / UNFINISHED).unlink()
    files.sync(store.root)


def _check_unused(contents: Contents, store: Store) -> None:
    """Raise BackupError if a broker has run on the restored store, or it was restored from another backup."""
    used = BackupError(
        "the claim has the data of another backup, or a broker has run on it since, and is left as it is: use another group name,"
        " or delete the claim, if nothing of what it holds is needed"
    )
    traces = [one for one in (LOCK, "brokerIdentity", "brokerIdentity-temp") if (store.root / one).exists()]
    expected = sorted(contents.files, key=lambda one: one.path)
    if traces or sorted(name for name, _ in store.files()) != [one.path for one in expected]:
        raise used
    if any(files.hashed(store.place_of(one.path), one.path) != one for one in expected):
        raise used


def read_manifest(folder: Path) -> Contents:
    """Return the manifest of a backup. BackupError where there is none, or it is of another format, or damaged."""
    path, named = folder / MANIFEST, f"{folder.parent.name}/{folder.name}"
    if any(one.is_symlink() for one in (folder, folder.parent, path)):
        raise BackupError(f"{named} is a symbolic link in the claim, expected a folder")
    if not folder.is_dir():
        raise BackupError(f"there is no folder {named} in the claim")
    if not path.exists():
        raise BackupError(f"{named} is torn: it has no {MANIFEST}, which is written last")
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Sealed)
        if hashlib.sha256(bytes(found.contents)).hexdigest() != found.sha256:
            raise BackupError(f"{path.name} of {named} is damaged: its check sum is wrong")
        if (number := msgspec.json.decode(found.contents, type=_Formatted).backup.format) != FORMAT:
            raise BackupError(f"{path.name} has format {number}, this operator reads {FORMAT}")
        return msgspec.json.decode(found.contents, type=Contents)
    except msgspec.MsgspecError as error:
        raise BackupError(f"{path.name} of {named} is damaged: {error}") from error


def log_end_of(store: Store) -> int:
    """Where its log ends. BackupError for a log with a hole."""
    try:
        return log_end(store.commit_log)
    except LogError as error:
        raise BackupError(str(error)) from error


def last_epoch_of(store: Store) -> int:
    """The last epoch of its log."""
    try:
        return last_epoch(store.root)
    except LogError as error:
        raise BackupError(str(error)) from error
