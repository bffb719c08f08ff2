"""Every way in which a replica changes its disk: nothing else in this package writes, renames, deletes or syncs.

One place, so that tests can stand in for it: ``tests/replica/crashing_disk.py`` replaces these functions by ones that remember what
was synced, and rebuilds the disk as a power cut after any single operation could have left it. What is promised here is POSIX's
minimum: data is durable after ``sync_file`` (or ``sync_data``) of its file, a name after ``sync_folder`` of its folder.
"""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


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
