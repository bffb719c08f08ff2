"""Replace a small file so that a crash leaves either the old content or the new one, never something in between.

Written aside, fsynced, renamed over the old file, folder fsynced. Java writes these files in place (or deletes them
first), which is where its torn and empty identity and epoch files come from. A folder is made the same way: a file in a folder
whose own name was never synced would go with it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rocketmq_replica.log import disk

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class StoreFileError(Exception):
    """A file of the store that must not be guessed around: somebody has to look at it."""


def is_no_space(error: OSError) -> bool:
    """The disk is full: nothing is damaged, the old content stands, and it can be tried again."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def replace_file(path: Path, content: bytes) -> None:
    """Make ``content`` the durable content of ``path``."""
    make_folders(path.parent)
    disk.rename(write_aside(path, content), path)
    disk.sync_folder(path.parent)


def write_aside(path: Path, content: bytes, *, suffix: str = ".writing") -> Path:
    """A durable file beside ``path`` with this content, ready to take its name. Two at once need two suffixes."""
    aside = path.with_name(path.name + suffix)
    descriptor = disk.empty_file(aside)
    try:
        disk.write_at(descriptor, content, 0)
        disk.sync_file(descriptor)
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
                    disk.rename(aside, self.path)
                    self._renamed = replacement.turn
            disk.sync_folder(self.path.parent)
        finally:
            with self._lock:
                self._numbers.discard(replacement.number)
                is_last = replacement.turn == self._taken
        return is_last


def remove_file(path: Path) -> None:
    """Make ``path`` durably absent, also when a process that was killed had deleted it and not synced its folder."""
    if path.exists():
        disk.unlink(path)
    sync_names(path.parent)


def sync_names(folder: Path) -> None:
    """Make what is seen in ``folder`` durable, before anything rests on it; a killed process may have left it to the page cache."""
    if folder.is_dir():
        disk.sync_folder(folder)


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
    disk.make_folder(folder)
    disk.sync_folder(folder.parent)
