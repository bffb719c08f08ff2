"""Where a commit log ends, and the last epoch of it, as its files say while no broker runs on them."""

from __future__ import annotations

import itertools
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
    """Return the offset behind the last whole message: 0 for a log without a file.

    A broker prepares files ahead, full of zeros, so the last file with a message decides. A message that came in part is cut off,
    as by a broker's start. LogError where a file is missing between others, or one before the last ends early.
    """
    names = sorted(path.name for path in folder.iterdir() if _NAME.fullmatch(path.name)) if folder.is_dir() else []
    _check_row([folder / name for name in names])
    ends = [(name, end_in(folder / name)) for name in names]
    used = [index for index, (_, end) in enumerate(ends) if end]
    if not used:
        return int(names[0]) if names else 0
    for name, end in ends[: used[-1]]:
        if end != (size := (folder / name).stat().st_size):
            raise LogError(f"file {name} of the commit log ends at {end} of {size} bytes, and later ones have messages")
    name, end = ends[used[-1]]
    return int(name) + end


def _check_row(paths: list[Path]) -> None:
    """Raise LogError unless each file begins where the one before it ends."""
    for path, after in itertools.pairwise(paths):
        expected = int(path.name) + path.stat().st_size
        if int(after.name) != expected:
            raise LogError(f"the commit log has no file {expected:020d}: behind {path.name} comes {after.name}")


def end_in(path: Path) -> int:
    """Return the position behind the last whole entry of one file of a commit log. A broker's start cuts off what came in part."""
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
        return 0  # of a broker that never was in a role
    lines = path.read_text("ascii", "replace").split()
    entries = [_ENTRY.fullmatch(line) for line in lines[2:]]
    if len(lines) < 2 or not lines[0].isdigit() or int(lines[0]) != len(entries) or None in entries:
        raise LogError(f"{EPOCHS} is damaged: expected a count, a check sum and as many lines epoch-offset")
    return max((int(entry[1]) for entry in entries if entry is not None), default=0)
