"""The folder of a demo: one demo at a time, made empty at the start, and never a folder that holds anything else."""

from __future__ import annotations

import shutil
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from brokergroup_operator.folder_lock import FolderInUseError, FolderLock
from kube_sandbox.kubelet.process import kill_leftovers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOCK_FILE = "demo.lock"
SANDBOX = "sandbox"
# A demo that died: how long its sandbox and operator may take to end (`cli/signals.py`: 20 s, then they are killed).
_ENDING_SECONDS = 30.0
_POLL_SECONDS = 0.1


class DemoFolderError(Exception):
    """The folder cannot be a demo's; says why, and what would do."""


@contextmanager
def demo_folder(directory: Path) -> Iterator[FolderLock]:
    """The folder, empty but for the lock, for the length of a block. Children that inherit the lock's descriptor hold it on.

    Raises DemoFolderError: at once while another demo runs in it; after 30 s where what a dead demo started has not ended.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if not _is_a_demos(directory):
            raise DemoFolderError(
                f"folder {directory} holds other files; expected an empty folder, or an earlier demo's"
            )
        lock = _take(directory / LOCK_FILE)
    except OSError as error:
        raise DemoFolderError(f"folder {directory}: {error.strerror}; expected a folder that can be written") from error
    try:
        kill_leftovers(directory / SANDBOX)
        for entry in directory.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            elif entry.name != LOCK_FILE:
                entry.unlink()
        yield lock
    finally:
        lock.release()


def _is_a_demos(directory: Path) -> bool:
    names = {entry.name for entry in directory.iterdir()}
    return not names or LOCK_FILE in names or {SANDBOX, "logs"} <= names


def _take(file: Path) -> FolderLock:
    """The lock, at once or when what a dead demo started has ended."""
    deadline = time.monotonic() + _ENDING_SECONDS
    while True:
        try:
            return FolderLock.take(file)
        except FolderInUseError as error:
            if error.by_its_taker or time.monotonic() > deadline:
                raise DemoFolderError(f"{error}; end it, or give this demo another --directory") from error
        time.sleep(_POLL_SECONDS)
