"""Cuts text files into byte ranges that are read in parallel, whole lines each.

A split owns the lines whose first byte lies in it, so every line is read once, wherever the cuts are. Files must be where every
executor sees them under the same path (a mounted volume, or one machine). A file packed by gzip can't be cut and is one split.
Whether a file is packed is told by its first bytes, not by its name: tools unpack without renaming, and pack without it. A byte
order mark is no text.
"""

import gzip
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Final

from sla_reports.readers.contract import ExportFormatError

SPLIT_BYTES: Final = 64 * 1024 * 1024
# Arrays of a block should stay where the processor and the allocator have them at hand: 8 MB take a fifth more time.
BLOCK_BYTES: Final = 2 * 1024 * 1024
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_GZIP: Final = b"\x1f\x8b"
# First bytes of what is no text and is not unpacked here, and how a person makes text of it.
_NOT_READ: Final = {
    b"\x28\xb5\x2f\xfd": "is packed by zstd; expected text or gzip: unpack it with zstd -d",
    b"\xfd7zXZ\x00": "is packed by xz; expected text or gzip: unpack it with xz -d",
    b"BZh": "is packed by bzip2; expected text or gzip: unpack it with bzip2 -d",
    b"PK\x03\x04": "is a zip archive; expected text or gzip: unpack it",
    b"\xff\xfe": "is UTF-16, as PowerShell's > writes it; expected UTF-8",
    b"\xfe\xff": "is UTF-16; expected UTF-8",
}


class TruncatedFileError(Exception):
    """A compressed file ends too early, or a file shrinks while it is read; what could be read was handed out before."""


@dataclass(frozen=True, slots=True)
class Split:
    """The bytes [begin, end) of a file; of one that is packed, all."""

    path: str
    begin: int
    end: int
    file_bytes: int
    is_packed: bool = False


@dataclass(frozen=True, slots=True)
class Block:
    """Some whole lines of a split. Only the file's last block may end without a line feed."""

    data: bytes
    is_last_of_file: bool


def files_of(paths: Sequence[Path | str], suffixes: tuple[str, ...] = ()) -> list[Path]:
    """The files that are meant: a folder stands for its files (with one of the suffixes, if there are any), in order of name."""
    found: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith((".", "_")))
            found += [p for p in inside if not suffixes or p.name.removesuffix(".gz").endswith(suffixes)]
        elif path.is_file():
            found.append(path)
        else:
            raise ExportFormatError(f"export {path}: no such file or folder")
    if not found:
        raise ExportFormatError(f"export {', '.join(map(str, paths))}: holds no files; expected at least one")
    return found


def content_of(path: Path) -> bytes:
    """A whole file, unpacked if it is packed, without a byte order mark. Raises ExportFormatError."""
    is_packed = _is_packed(path)
    content = path.read_bytes()
    if is_packed:
        try:
            content = gzip.decompress(content)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ExportFormatError(f"{path}: truncated: {error}; expected a whole gzip file") from error
    return content.removeprefix(_BYTE_ORDER_MARK)


def _is_packed(path: Path) -> bool:
    """Whether a file is packed by gzip. Raises ExportFormatError for what is no text otherwise."""
    with path.open("rb") as stream:
        begin = stream.read(6)
    for mark, told in _NOT_READ.items():
        if begin.startswith(mark):
            raise ExportFormatError(f"{path}: {told}")
    return begin.startswith(_GZIP)


def plan(paths: Sequence[Path], *, split_bytes: int = SPLIT_BYTES) -> list[Split]:
    """The splits of the files, at least one a file. Raises ExportFormatError for what is neither text nor gzip."""
    if split_bytes < 1:
        raise ValueError(f"split_bytes: {split_bytes}; expected 1 or more")
    splits: list[Split] = []
    for path in paths:
        size, is_packed = path.stat().st_size, _is_packed(path)
        if is_packed or size == 0:
            splits.append(Split(str(path), 0, size, size, is_packed))
            continue
        begins = range(0, size, split_bytes)
        splits += [Split(str(path), begin, min(size, begin + split_bytes), size) for begin in begins]
    return splits


def blocks_of(split: Split, *, block_bytes: int = BLOCK_BYTES) -> Iterator[Block]:
    """The lines of a split, some megabytes at a time. Raises TruncatedFileError."""
    blocks = _unpacked(split, block_bytes) if split.is_packed else _plain(split, block_bytes)
    for number, block in enumerate(blocks):
        if number == 0 and split.begin == 0 and block.data.startswith(_BYTE_ORDER_MARK):
            yield replace(block, data=block.data.removeprefix(_BYTE_ORDER_MARK))
        else:
            yield block


def _plain(split: Split, block_bytes: int) -> Iterator[Block]:
    with Path(split.path).open("rb") as stream:
        position = _first_own_line(stream, split)
        while position < split.end:
            end = _line_end(stream, min(position + block_bytes, split.end))
            stream.seek(position)
            data = stream.read(end - position)
            if not data:
                raise TruncatedFileError(f"it had {split.file_bytes} bytes before")
            position = end
            yield Block(data, is_last_of_file=end == split.file_bytes)
        if split.file_bytes == 0:
            yield Block(b"", is_last_of_file=True)


def line_number_at(split: Split) -> int:
    """The number of the split's first own line. Reads all that is before it: for the one who has an anomaly to tell."""
    if split.begin == 0:
        return 1
    with Path(split.path).open("rb") as stream:
        left, number = _first_own_line(stream, split), 1
        stream.seek(0)
        while left > 0 and (data := stream.read(min(BLOCK_BYTES, left))):
            number += data.count(b"\n")
            left -= len(data)
    return number


def _first_own_line(stream: IO[bytes], split: Split) -> int:
    return 0 if split.begin == 0 else _line_end(stream, split.begin)


def _line_end(stream: IO[bytes], position: int) -> int:
    """The end of the line that the byte before the position belongs to."""
    stream.seek(position - 1)
    stream.readline()
    return stream.tell()


def _whole_lines(data: bytes) -> tuple[bytes, bytes]:
    cut = data.rfind(b"\n") + 1
    return data[:cut], data[cut:]


def _unpacked(split: Split, block_bytes: int) -> Iterator[Block]:
    held = rest = b""
    with gzip.open(split.path, "rb") as stream:
        while True:
            try:
                data = stream.read(block_bytes)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                yield Block(held, is_last_of_file=False)
                raise TruncatedFileError(str(error)) from error
            if not data:
                break
            if held:
                yield Block(held, is_last_of_file=False)
            held, rest = _whole_lines(rest + data)
    yield Block(held, is_last_of_file=not rest)
    if rest:
        yield Block(rest, is_last_of_file=True)
