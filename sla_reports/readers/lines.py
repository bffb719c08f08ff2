"""From text files to samples: files are cut into splits of whole lines, which Spark's Python workers read in parallel.

A split owns the lines whose first byte lies in it, so every line is read once, wherever the cuts are. Files must be where every
executor sees them under the same path (a mounted volume, or one machine). A file packed by gzip can't be cut and is one split. A
file's first bytes say whether it is packed, not its name: tools unpack without renaming, and pack without it. A form
(`LineForm`) makes samples and flaws of a block of lines.
"""

import gzip
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Final, Protocol

import pyarrow as pa
from pyspark.sql import SparkSession

from sla_reports.readers.samples import (
    PACKED_SCHEMA,
    Anomaly,
    AnomalyKind,
    ExportFormatError,
    Notes,
    Samples,
    Selection,
    unpacked,
)
from sla_reports.session import own, tasks_of

SPLIT_BYTES: Final = 64 * 1024 * 1024
# Arrays of a block should stay where the processor and the allocator have them at hand: 8 MB take a fifth more time.
BLOCK_BYTES: Final = 2 * 1024 * 1024
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_GZIP: Final = b"\x1f\x8b"
_TORN_GZIP: Final = (EOFError, zlib.error, gzip.BadGzipFile)
_SHOWN_CHARACTERS: Final = 120
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
    """A compressed file ends too early, or a file shrinks while it is read. The blocks before were handed out."""


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


@dataclass(frozen=True, slots=True)
class Flaw:
    """Something in a block that is no sample; `line` counts from 0 in the block."""

    line: int
    kind: AnomalyKind
    detail: str


class FlawError(Exception):
    """A line, or a member of it, is no sample."""

    def __init__(self, kind: AnomalyKind, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind

    def at(self, line: int) -> Flaw:
        return Flaw(line, self.kind, str(self))


@dataclass(frozen=True, slots=True)
class Parsed:
    """A block's samples, as batches of PACKED_SCHEMA, its flaws, and how many lines it has."""

    batches: list[pa.RecordBatch]
    flaws: list[Flaw]
    lines: int


class LineForm(Protocol):
    """A form of export that has one thing a line. It lives in a worker for one split, so it may keep what it has seen."""

    def parse(self, block: Block) -> Parsed:
        """Return the samples of a block and its flaws."""


class LineFormType(Protocol):
    """Make a form that hands out the selected series; must be picklable by name."""

    def __call__(self, selection: Selection) -> LineForm: ...


def read_lines(
    spark: SparkSession, paths: Sequence[Path | str], form: LineFormType, suffixes: tuple[str, ...], *,
    split_bytes: int = SPLIT_BYTES, selection: Selection | None = None,
) -> Samples:  # fmt: skip
    """Return the samples of the files in this form. Raises ExportFormatError for a path that is not there."""
    wanted, notes = selection or Selection(), Notes(spark.sparkContext)
    splits = plan(files_of(paths, suffixes), split_bytes=split_bytes)
    tasks = tasks_of(spark, len(splits))
    frame = tasks.mapInArrow(partial(_samples_of, splits, form, wanted, notes), PACKED_SCHEMA)
    return Samples(unpacked(frame), notes.told, frame)


def _samples_of(
    splits: list[Split], form: LineFormType, selection: Selection, notes: Notes, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for split in own(splits, batches):
        for found in parsed(split, form(selection)):
            if isinstance(found, Anomaly):
                raise found.as_error()
            yield found
    notes.add(selection)


def parsed(split: Split, form: LineForm) -> Iterator[pa.RecordBatch | Anomaly]:
    """Yield the samples and anomalies of one split, in the order of the file within a block."""
    first_line: int | None = None
    lines_before = 0
    try:
        for block in blocks_of(split):
            found = form.parse(block)
            if found.flaws and first_line is None:
                first_line = line_number_at(split)
            for flaw in sorted(found.flaws, key=lambda flaw: flaw.line):
                yield Anomaly(split.path, (first_line or 1) + lines_before + flaw.line, flaw.kind, flaw.detail)
            yield from found.batches
            lines_before += found.lines
    except TruncatedFileError as error:
        where = (first_line or line_number_at(split)) + lines_before
        yield Anomaly(split.path, where, AnomalyKind.TRUNCATED, f"the file ends too early: {error}")


def shown(text: str) -> str:
    """Return a line as a message can carry it."""
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "...")


def files_of(paths: Sequence[Path | str], suffixes: tuple[str, ...] = ()) -> list[Path]:
    """Return the files in order of name; a folder stands for its files (with one of the suffixes, if any are given)."""
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
    """Return a whole file, unpacked if it is packed, without a byte order mark. Raises ExportFormatError."""
    is_packed = _is_packed(path)
    content = path.read_bytes()
    if is_packed:
        try:
            content = gzip.decompress(content)
        except _TORN_GZIP as error:
            raise ExportFormatError(f"{path}: truncated: {error}; expected a whole gzip file") from error
    return content.removeprefix(_BYTE_ORDER_MARK)


def _is_packed(path: Path) -> bool:
    """Whether a file is packed by gzip. Raises ExportFormatError for what is no text otherwise."""
    with path.open("rb") as stream:
        begin = stream.read(6)
    for mark, why in _NOT_READ.items():
        if begin.startswith(mark):
            raise ExportFormatError(f"{path}: {why}")
    return begin.startswith(_GZIP)


def plan(paths: Sequence[Path], *, split_bytes: int = SPLIT_BYTES) -> list[Split]:
    """Return the splits of the files, at least one a file. Raises ExportFormatError for what is neither text nor gzip."""
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
    """Yield the lines of a split, some megabytes at a time. Raises TruncatedFileError."""
    blocks = _of_gzip(split, block_bytes) if split.is_packed else _of_text(split, block_bytes)
    for number, block in enumerate(blocks):
        is_first = number == 0 and split.begin == 0
        yield Block(block.data.removeprefix(_BYTE_ORDER_MARK), block.is_last_of_file) if is_first else block


def _of_text(split: Split, block_bytes: int) -> Iterator[Block]:
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


def _of_gzip(split: Split, block_bytes: int) -> Iterator[Block]:
    held = rest = b""
    with gzip.open(split.path, "rb") as stream:
        while True:
            try:
                data = stream.read(block_bytes)
            except _TORN_GZIP as error:
                yield Block(held, is_last_of_file=False)
                raise TruncatedFileError(str(error)) from error
            if not data:
                break
            if held:
                yield Block(held, is_last_of_file=False)
            data = rest + data
            cut = data.rfind(b"\n") + 1
            held, rest = data[:cut], data[cut:]
    yield Block(held, is_last_of_file=not rest)
    if rest:
        yield Block(rest, is_last_of_file=True)


def line_number_at(split: Split) -> int:
    """Return the number of the split's first own line. Reads all that is before it: only an anomaly is worth that."""
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
    """Return the end of the line that the byte before the position belongs to."""
    stream.seek(position - 1)
    stream.readline()
    return stream.tell()
