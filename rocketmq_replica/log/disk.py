"""Every way in which a replica changes its disk: nothing else in this package writes, renames, deletes or syncs.

One place, so that tests can stand in for it: ``tests/replica/crashing_disk.py`` replaces these functions by ones that remember what
was synced, and rebuilds the disk as a power cut after any single operation could have left it. What is promised here is POSIX's
minimum: data is durable after ``sync_file`` (or ``sync_data``) of its file, a name after ``sync_folder`` of its folder.
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
    """A new file, which must not exist yet; its descriptor."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)


def lock_file(path: Path) -> int:
    """Hold a file for as long as its descriptor is open; BlockingIOError if another process does. It never has content."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def empty_file(path: Path) -> int:
    """A file without content, whatever it held before; its descriptor."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)


def write_at(descriptor: int, data: bytes | memoryview, position: int) -> None:
    """Write all of ``data``."""
    written = os.pwrite(descriptor, data, position)
    if written < len(data):
        view = memoryview(data)
        while written < len(view):
            written += os.pwrite(descriptor, view[written:], position + written)


def set_size(descriptor: int, size_bytes: int) -> None:
    """Cut or extend the file; what is added reads as zeros."""
    os.ftruncate(descriptor, size_bytes)


def sync_file(descriptor: int) -> None:
    """Make the file's content and size durable."""
    os.fsync(descriptor)


def sync_data(descriptor: int) -> None:
    """Make the file's content durable, and its size if it is needed to read it."""
    os.fdatasync(descriptor)


def rename(old: Path, new: Path) -> None:
    """Give a file another name in its folder, replacing what had it."""
    old.replace(new)


def unlink(path: Path) -> None:
    """Delete a file, which must exist."""
    path.unlink()


def make_folder(path: Path) -> None:
    """One folder, whose parent exists."""
    path.mkdir()


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class StoreFileError(Exception):
    """A file of the store that must not be guessed around: somebody has to look at it."""


def is_no_space(error: OSError) -> bool:
    """The disk is full: nothing is damaged, the old content stands, and it can be tried again."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def replace_file(path: Path, content: bytes) -> None:
    """Make ``content`` the durable content of ``path``."""
    make_folders(path.parent)
    rename(write_aside(path, content), path)
    sync_folder(path.parent)


def write_aside(path: Path, content: bytes, *, suffix: str = ".writing") -> Path:
    """A durable file beside ``path`` with this content, ready to take its name. Two at once need two suffixes."""
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
    """A file's next content, and its turn among all that were taken."""

    turn: int
    number: int
    content: bytes


class ReplacedFile:
    """One small file that several threads may replace at once: the content that was taken last stays."""

    def __init__(self, path: Path) -> None:
        """Nothing is read or written."""
        self.path = path
        self._lock = threading.Lock()  # held over a rename, never over an fsync
        self._taken = 0
        self._renamed = 0
        self._numbers: set[int] = set()

    def take(self, content: Callable[[], bytes]) -> Replacement:
        """The content as it is now, to be given to ``write`` once, here or in a thread."""
        with self._lock:
            self._taken += 1
            number = next(number for number in range(len(self._numbers) + 1) if number not in self._numbers)
            self._numbers.add(number)
            return Replacement(self._taken, number, content())

    def write(self, replacement: Replacement) -> bool:
        """Make the content durable, unless something that was taken later is; False if something was taken later."""
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
    """Return what ``read`` makes of a JSON file, None if there is no file. StoreFileError if it is not a ``name``."""
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
    """Make ``path`` durably absent, also when a process that was killed had deleted it and not synced its folder."""
    if path.exists():
        unlink(path)
    sync_names(path.parent)


def sync_names(folder: Path) -> None:
    """Make what is seen in ``folder`` durable, before anything rests on it; a killed process may have left it to the page cache."""
    if folder.is_dir():
        sync_folder(folder)


def sync_path(folder: Path) -> None:
    """Make the folder's own name durable, and those above it: a process that made them may have ended before it synced them."""
    for above in folder.absolute().parents:
        with contextlib.suppress(PermissionError):  # a folder that may not be read was made by another, long before
            sync_names(above)


def make_folders(folder: Path) -> None:
    """Make ``folder`` and what is missing above it, each durably named in its parent."""
    if folder.is_dir():
        return
    make_folders(folder.parent)
    make_folder(folder)
    sync_folder(folder.parent)
