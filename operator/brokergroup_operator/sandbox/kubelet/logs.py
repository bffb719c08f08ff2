"""Reading what containers wrote: the way behind ``kubectl logs``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

CHUNK_BYTES = 64 * 1024
FOLLOW_SECONDS = 0.1


class NoSuchLogError(LookupError):
    """This container has not written a log here."""


def newest_log(logs_folder: Path, container: str) -> Path:
    """The log of a container's latest start."""
    files = sorted((logs_folder / container).glob("*.log"), key=_start_number)
    starts = [file for file in files if file.stem.isdigit()]
    if not starts:
        raise NoSuchLogError(f"container {container!r} has not been started: no log in {logs_folder.name}")
    return starts[-1]


def _start_number(file: Path) -> int:
    return int(file.stem) if file.stem.isdigit() else -1


async def read_log(
    file: Path, *, tail_lines: int | None, follow: bool, still_written: Callable[[], bool]
) -> AsyncIterator[bytes]:
    """The file's content, from its last lines on if asked, and what is added while ``still_written()``."""
    with file.open("rb") as log:
        if tail_lines is not None:
            log.seek(_offset_of_last_lines(file, tail_lines))
        while True:
            written = still_written()  # asked before reading: what came before the end is not lost
            chunk = log.read(CHUNK_BYTES)
            if chunk:
                yield chunk
            elif follow and written:
                await asyncio.sleep(FOLLOW_SECONDS)
            else:
                return


def _offset_of_last_lines(file: Path, lines: int) -> int:
    """Where the last ``lines`` lines begin, searched from the end."""
    with file.open("rb") as log:
        end = position = log.seek(0, 2)
        found = 0
        while position > 0:
            step = min(CHUNK_BYTES, position)
            position -= step
            log.seek(position)
            chunk = log.read(step)
            for index in range(step - 1, -1, -1):
                # The newline that ends the last line does not begin another one.
                if chunk[index] == 0x0A and position + index != end - 1:
                    found += 1
                    if found == lines:
                        return position + index + 1
        return 0 if lines > 0 else end
