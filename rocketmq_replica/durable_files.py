"""Replace a small file so that a crash leaves either the old content or the new one, never something in between.

Written aside, fsynced, renamed over the old file, folder fsynced. Java writes these files in place (or deletes them
first), which is where its torn and empty identity and epoch files come from.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class StoreFileError(Exception):
    """A file of the store that must not be guessed around: somebody has to look at it."""


def replace_file(path: Path, content: bytes) -> None:
    """Make ``content`` the durable content of ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".writing")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        _write_all(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    aside.replace(path)
    sync_folder(path.parent)


def remove_file(path: Path) -> None:
    """Make ``path`` durably absent."""
    path.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
