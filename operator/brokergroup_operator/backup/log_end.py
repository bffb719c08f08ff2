"""Where a commit log ends, and the last epoch of it, as its files say while no broker runs on them."""

from __future__ import annotations

import mmap
import re
from typing import TYPE_CHECKING, Final

from rocketmq_remoting.message_record import BLANK_HEADER_BYTES, EntryKind, MessageRecordError, inspect_entry

if TYPE_CHECKING:
    from pathlib import Path

EPOCHS: Final = "epochFileCheckpoint"
_NAME: Final = re.compile(r"[0-9]{20}")
_ENTRY: Final = re.compile(r"([0-9]+)-[0-9]+")


class LogError(Exception):
    """A file is not as a broker leaves it."""


def log_end(folder: Path) -> int:
    """Return the offset behind the last whole message: 0 for a log without one.

    A broker prepares files ahead, full of zeros, so the last file with a message decides. A message that came in part is cut off,
    as by a broker's start.
    """
    names = sorted(path.name for path in folder.iterdir() if _NAME.fullmatch(path.name)) if folder.is_dir() else []
    for name in reversed(names):
        if end := _end_in(folder / name):
            return int(name) + end
    return int(names[0]) if names else 0


def _end_in(path: Path) -> int:
    """The position behind the last whole entry of one file."""
    size, start, position = path.stat().st_size, int(path.name), 0
    if size == 0:
        return 0
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as content,
    ):
        while size - position >= BLANK_HEADER_BYTES:
            try:
                entry = inspect_entry(content, position, size, physical_offset=start + position)
            except MessageRecordError:
                break
            if entry.kind is EntryKind.END:
                break
            if entry.kind is EntryKind.BLANK:
                return size
            position += entry.size_bytes
    return position


def last_epoch(store: Path) -> int:
    """Return the last epoch in the store's epoch file, as RocketMQ writes it: count, check sum, then `epoch-offset` a line."""
    path = store / EPOCHS
    if not path.exists():
        return 0
    lines = path.read_text("ascii", "replace").split()
    entries = [_ENTRY.fullmatch(line) for line in lines[2:]]
    if len(lines) < 2 or not lines[0].isdigit() or int(lines[0]) != len(entries) or None in entries:
        raise LogError(f"{EPOCHS} is damaged: expected a count, a check sum and as many lines epoch-offset")
    return max((int(entry[1]) for entry in entries if entry is not None), default=0)
