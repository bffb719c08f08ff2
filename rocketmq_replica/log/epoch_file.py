"""``epochFileCheckpoint``: the epoch cache on disk, in Java's format and place.

::

    2              number of entries
    773307083      CRC-32 & 0x7fffffff of the entry text; 0 = not checked
    7-7000         epoch-startOffset
    8-8000

Java copies the file to ``.bak`` and rewrites it in place; we replace it whole. An empty list is "the file is absent", and we
make it so durably (Java keeps the old entries on disk then). A file that is there but torn is an error, never "new": without
its epochs a replica cannot tell a diverged log from a good one.
"""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING

from rocketmq_replica.log.durable_files import StoreFileError, remove_file, replace_file, sync_names
from rocketmq_replica.log.epoch_cache import EpochCache, EpochEntry

if TYPE_CHECKING:
    from pathlib import Path

_ENTRY = re.compile(r"(\d+)-(\d+)")


def encode_epochs(cache: EpochCache) -> bytes:
    """The file's text."""
    text = "".join(f"{entry.epoch}-{entry.start_offset}\n" for entry in cache.entries)
    return f"{len(cache.entries)}\n{crc_of(text)}\n{text}".encode()


def crc_of(text: str) -> int:
    """The check sum of the entry lines."""
    return zlib.crc32(text.encode()) & 0x7FFFFFFF


def decode_epochs(content: bytes, name: str) -> EpochCache:
    """Read the text; every contradiction is a StoreFileError that names ``name``."""
    lines = content.decode("ascii", "replace").splitlines()
    if len(lines) < 2 or not lines[0].isdigit() or not lines[1].isdigit():
        raise StoreFileError(f"{name}: expected a count and a check sum in the first two lines, found {lines[:2]!r}")
    count, crc, entry_lines = int(lines[0]), int(lines[1]), lines[2:]
    if count != len(entry_lines):
        raise StoreFileError(f"{name}: says {count} entries, holds {len(entry_lines)}")
    if crc not in (0, crc_of("".join(line + "\n" for line in entry_lines))):
        raise StoreFileError(f"{name}: check sum {crc} does not belong to its entries")
    matches = [_ENTRY.fullmatch(line) for line in entry_lines]
    if any(match is None for match in matches):
        raise StoreFileError(f"{name}: expected epoch-startOffset in each line, found {entry_lines!r}")
    return EpochCache([EpochEntry(int(match[1]), int(match[2])) for match in matches if match is not None])


def load_epochs(path: Path) -> EpochCache:
    """The cache as it was saved; an absent file is an empty history, Java's ``.bak`` stands in for a torn one."""
    sync_names(path.parent)
    backup = path.with_name(path.name + ".bak")
    if not path.exists() and not backup.exists():
        return EpochCache()
    try:
        return decode_epochs(path.read_bytes() if path.exists() else b"", str(path))
    except StoreFileError:
        if not backup.exists():
            raise
        return decode_epochs(backup.read_bytes(), str(backup))


def save_epochs(path: Path, cache: EpochCache) -> None:
    """Make the cache durable. A left-over ``.bak`` of a Java broker goes, so that it can never come back to life."""
    if cache.entries:
        replace_file(path, encode_epochs(cache))
    else:
        remove_file(path)
    backup = path.with_name(path.name + ".bak")
    if backup.exists():
        remove_file(backup)
