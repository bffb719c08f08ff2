"""One process, or one demo with its children, has a folder at a time; a refusal names the process that has it.

The lock is the kernel's (flock on a file in the folder), so it ends with its last holder, however that died: no lock is ever
stale. Children that work in the folder inherit the descriptor and hold the lock on when their parent is dead.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Self


class FolderInUseError(Exception):
    """Another process has the folder; the message names it. `by_its_taker` is False where only its children are left."""

    def __init__(self, message: str, *, by_its_taker: bool) -> None:
        super().__init__(message)
        self.by_its_taker = by_its_taker


class FolderLock:
    """Held from ``take()`` on until every copy of its descriptor is closed. OSError where the file cannot be made."""

    def __init__(self, descriptor: int, file: Path) -> None:
        self.descriptor = descriptor
        self.file = file

    @classmethod
    def take(cls, file: Path) -> Self:
        """Raises FolderInUseError, at once, while another process holds it."""
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _lock(descriptor, file)
        except (FolderInUseError, OSError):
            os.close(descriptor)
            raise
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return cls(descriptor, file)

    def release(self) -> None:
        """Children that inherited the descriptor hold the lock on."""
        os.close(self.descriptor)


def _lock(descriptor: int, file: Path) -> None:
    """A holder that is not found has ended meanwhile, or is another user's: the second try knows."""
    for tries_left in (1, 0):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            in_use, is_seen = _in_use(file)
            if is_seen or tries_left == 0:
                raise in_use from None
        else:
            return


def _in_use(file: Path) -> tuple[FolderInUseError, bool]:
    """Names the process that took the lock, if it lives, else one that inherited it; and whether one was found at all."""
    status, taker = file.stat(), file.read_text(encoding="ascii", errors="replace").strip()
    pids = [name for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - a hundred paths less
    ordered = sorted(pids, key=lambda pid: (pid != taker, int(pid)))
    holder = next((pid for pid in ordered if _has_open(pid, status)), None)
    named = f"process {taker or '?'} of another user" if holder is None else f"process {holder} ({_command(holder)})"
    error = FolderInUseError(f"folder {file.parent} is in use by {named}", by_its_taker=holder in {None, taker})
    return error, holder is not None


def _has_open(pid: str, file: os.stat_result) -> bool:
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if os.path.samestat(entry.stat(), file):
                    return True
    return False


def _command(pid: str) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
    return "ended meanwhile"
