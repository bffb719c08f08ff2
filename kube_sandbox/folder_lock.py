"""One sandbox has a data folder at a time: two kubelets on one folder kill each other's pods as leftovers."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Self


class FolderInUseError(Exception):
    """Another process has the folder; the message names it."""


class FolderLock:
    """Held from ``take()`` to ``release()``. The lock is the kernel's: it ends with its process, so none is ever stale."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def take(cls, file: Path) -> Self:
        """Raises FolderInUseError, at once, while another process holds it; OSError where the file cannot be made."""
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "?"
            os.close(descriptor)
            raise FolderInUseError(f"folder {file.parent} is in use by process {holder} ({_command(holder)})") from None
        except OSError:
            os.close(descriptor)
            raise
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return cls(descriptor)

    def release(self) -> None:
        os.close(self._descriptor)


def _command(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return "ended meanwhile"
