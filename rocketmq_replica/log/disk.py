"""All changes of a replica's disk: nothing else in this package writes, renames, deletes or syncs.

The first functions promise POSIX's minimum: data is durable after ``sync_file`` or ``sync_data`` of its file, a name after
``sync_folder`` of its folder. ``tests/replica/crashing_disk.py`` replaces them by ones that record what was synced, and rebuilds
the disk as a power cut after any single operation could leave it.

The later functions replace a small file so that a crash leaves either the old or the new content: written aside, fsynced, renamed,
folder fsynced. Java writes these files in place, and a crash can tear them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_Table = TypeVar("_Table")


def create_file(path: Path) -> int:
    """Create a file, which must not exist yet. Return its descriptor."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)


def lock_file(path: Path) -> int:
    """Lock a file for as long as its descriptor is open. Raise BlockingIOError if another process holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def empty_file(path: Path) -> int:
    """Open a file, created or truncated to zero bytes. Return its descriptor."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)


def write_at(descriptor: int, data: bytes | memoryview, position: int) -> None:
    """Write all of ``data``."""
    written = os.pwrite(descriptor, data, position)
    if written < len(data):
        view = memoryview(data)
        while written < len(view):
            written += os.pwrite(descriptor, view[written:], position + written)


def set_size(descriptor: int, size_bytes: int) -> None:
    """Truncate or extend the file; added bytes read as zeros."""
    os.ftruncate(descriptor, size_bytes)


def sync_file(descriptor: int) -> None:
    """Make the file's content and size durable."""
    os.fsync(descriptor)


def sync_data(descriptor: int) -> None:
    """Make the file's content durable, and its size as far as reading needs it."""
    os.fdatasync(descriptor)


def rename(old: Path, new: Path) -> None:
    """Rename a file in its folder, replacing the file of that name."""
    old.replace(new)


def unlink(path: Path) -> None:
    """Delete a file, which must exist."""
    path.unlink()


def make_folder(path: Path) -> None:
    """Make one folder; its parent must exist."""
    path.mkdir()


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class StoreFileError(Exception):
    """A file of the store is damaged or contradicts another. An operator has to repair it: guessing could lose messages."""


def is_no_space(error: OSError) -> bool:
    """Whether the disk is full: then the old content is intact, and the write can be retried."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def replace_file(path: Path, content: bytes) -> None:
    """Make ``content`` the durable content of ``path``."""
    make_folders(path.parent)
    rename(write_aside(path, content), path)
    sync_folder(path.parent)


def write_aside(path: Path, content: bytes, *, suffix: str = ".writing") -> Path:
    """Write a durable file beside ``path``, ready to be renamed. Concurrent writers need different suffixes."""
    aside = path.with_name(path.name + suffix)
    descriptor = empty_file(aside)
    try:
        write_at(descriptor, content, 0)
        sync_file(descriptor)
    finally:
        os.close(descriptor)
    return aside


@dataclass(frozen=True)
class Replacement:
    """New content of a file. ``turn`` counts the replacements in order; ``number`` is the suffix of the file written aside."""

    turn: int
    number: int
    content: bytes


class ReplacedFile:
    """A small file that several threads may replace at the same time: the content of the last ``take`` wins."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()  # held over a rename, never over an fsync
        self._taken = 0
        self._renamed = 0
        self._numbers: set[int] = set()

    def take(self, content: Callable[[], bytes]) -> Replacement:
        """Take the present content. Pass it to ``write`` exactly once, here or in a thread."""
        with self._lock:
            self._taken += 1
            number = next(number for number in range(len(self._numbers) + 1) if number not in self._numbers)
            self._numbers.add(number)
            return Replacement(self._taken, number, content())

    def write(self, replacement: Replacement) -> bool:
        """Make the content durable, unless a later one is already. Return False if there is a later one."""
        try:
            make_folders(self.path.parent)
            aside = write_aside(self.path, replacement.content, suffix=f".writing{replacement.number or ''}")
            with self._lock:
                if replacement.turn > self._renamed:
                    rename(aside, self.path)
                    self._renamed = replacement.turn
            sync_folder(self.path.parent)
        finally:
            with self._lock:
                self._numbers.discard(replacement.number)
                is_last = replacement.turn == self._taken
        return is_last


def load_table(path: Path, read: Callable[[Any], _Table], name: str) -> _Table | None:
    """Return ``read`` of a JSON file, None if there is no file. Raise StoreFileError if it is not a ``name``."""
    sync_names(path.parent)
    if not path.exists():
        return None
    try:
        return read(json.loads(path.read_bytes()))
    except (ValueError, OverflowError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise StoreFileError(f"{path}: is no {name}: {error!r}") from error


def compact_json(document: object) -> bytes:
    """Encode a table as Java writes it."""
    return json.dumps(document, separators=(",", ":")).encode()


def remove_file(path: Path) -> None:
    """Make ``path`` durably absent, also if a killed process deleted it without syncing its folder."""
    if path.exists():
        unlink(path)
    sync_names(path.parent)


def sync_names(folder: Path) -> None:
    """Make the names in ``folder`` durable before relying on them: a killed process may not have synced them."""
    if folder.is_dir():
        sync_folder(folder)


def sync_path(folder: Path) -> None:
    """Make the names of the folder and its parents durable: the process that made them may have died before it synced."""
    for above in folder.absolute().parents:
        # A folder that this process may not read was made by another one, long ago.
        with contextlib.suppress(PermissionError):
            sync_names(above)


def make_folders(folder: Path) -> None:
    """Make ``folder`` and its missing parents, each with a durable name."""
    if folder.is_dir():
        return
    make_folders(folder.parent)
    make_folder(folder)
    sync_folder(folder.parent)
