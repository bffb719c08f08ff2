"""The files of the incident log: appended whole lines, old ones rotated away, and a note of what has begun and not ended.

``incidents.jsonl`` grows by a line when an incident ends. When it would be larger than it may be, it becomes
``incidents.jsonl.1``, that one ``.2``, and so on; the last one is deleted. ``incidents.jsonl.open`` holds what has begun, and
is replaced as a whole at each change. So an operator that dies in the middle of a failover leaves the note, and the next one
makes a line of it.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

MAX_BYTES: Final = 8 * 1024 * 1024
KEPT_FILES: Final = 4


class IncidentFile:
    """Blocking; every write is on the disk when it returns. Raises OSError."""

    def __init__(self, path: Path, *, max_bytes: int = MAX_BYTES, kept_files: int = KEPT_FILES) -> None:
        self._path = path
        self._open = path.with_name(f"{path.name}.open")
        self._max_bytes = max_bytes
        self._kept_files = kept_files

    def append(self, document: dict[str, Any]) -> None:
        """Add one line, on a new line even where the last write was torn."""
        line = to_line(document)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists() and self._path.stat().st_size + len(line) > self._max_bytes:
            self._rotate()
        append_line(self._path, line)

    def note_open(self, documents: list[dict[str, Any]]) -> None:
        """Keep what is open now, instead of what was."""
        if not documents:
            self._open.unlink(missing_ok=True)
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        aside = self._open.with_name(f"{self._open.name}.new")
        with aside.open("wb") as stream:
            stream.writelines(to_line(document) for document in documents)
            stream.flush()
            os.fsync(stream.fileno())
        aside.replace(self._open)
        sync_folder(self._open.parent)

    def left_open(self) -> list[dict[str, Any]]:
        """What a process before this one began and did not end; a line that was written ends it, also while the note stands."""
        if not self._open.exists():
            return []
        noted = _documents(self._open)
        newest = (self._path, self._rotated(1))
        ended = {start_of(line) for path in newest if path.exists() for line in _documents(path)}
        return [document for document in noted if start_of(document) not in ended]

    def _rotate(self) -> None:
        self._rotated(self._kept_files).unlink(missing_ok=True)
        for number in range(self._kept_files - 1, 0, -1):
            if self._rotated(number).exists():
                self._rotated(number).rename(self._rotated(number + 1))
        if self._kept_files > 0:
            self._path.rename(self._rotated(1))
        else:
            self._path.unlink()
        sync_folder(self._path.parent)

    def _rotated(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


def start_of(document: dict[str, Any]) -> tuple[str, str, str]:
    """What an incident is known by from its first moment on; its id may change when somebody is elected."""
    return str(document.get("namespace")), str(document.get("name")), str(document.get("startedAt"))


def to_line(document: dict[str, Any]) -> bytes:
    """One line of JSON."""
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def append_line(path: Path, line: bytes) -> None:
    """Append one line and flush it to the disk, on a new line even where the last write was torn."""
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists()
    with path.open("ab+") as stream:
        size = stream.seek(0, os.SEEK_END)
        if size > 0:
            stream.seek(size - 1)
            if stream.read(1) != b"\n":
                line = b"\n" + line
        stream.write(line)
        stream.flush()
        os.fsync(stream.fileno())
    if is_new:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries: a file that was made or renamed is only then there after a crash of the machine."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _documents(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for line in path.read_bytes().splitlines():
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            continue  # torn: the machine died while it was written
        if isinstance(document, dict):
            found.append(document)
    return found
