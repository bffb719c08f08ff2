"""What every reader hands out: a frame of samples, or an error that names the file, the line and what was expected.

The frame has `series` (canonical text, see `sla_reports.series`), `ts_ms` (UTC, the scrape's own) and `value`. A stale marker
("the series ended here") is a NaN, so every NaN means "unknown from here". VictoriaMetrics tells stale markers from other NaN,
and its reader keeps the bits (STALE_NAN_BITS), but Spark makes all NaN one as soon as it shuffles or stores a row. Text forms
write NaN for both. Prometheus's HTTP API leaves stale markers out.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

SAMPLE_SCHEMA: Final = "series string, ts_ms long, value double"
# A series' text is some hundred bytes, and with every sample it would cost more than all the rest of a reader. So a reader hands a
# row for each series of a block to the JVM, with that series' samples in it; there the text is only pointed at (`unpacked`).
PACKED_SCHEMA: Final = "series string, samples array<struct<ts_ms: long, value: double>>"
# A packed row is held whole in the JVM, at some 40 bytes a sample.
_SAMPLES_A_ROW: Final = 65_536
STALE_NAN_BITS: Final = 0x7FF0000000000002
# A timestamp outside of these is in the wrong unit: seconds taken for milliseconds are in 1970, the other way round after 50000.
EARLIEST_TS_MS: Final = 946_684_800_000  # 2000-01-01
LATEST_TS_MS: Final = 4_102_444_800_000  # 2100-01-01
# Validity bits of four pieces, the lowest first: valid, null, valid, null and so on.
_FOUR_PIECES: Final = 0b01010101
# The last line of an error of a reader, a server or an option.
_OWN_ERROR: Final = re.compile(r"sla_reports\.(?:readers\.\w+|connection)\.\w+Error: (.*?)(?:\n|$)")


class AnomalyKind(StrEnum):
    """What can be wrong with a piece of an export."""

    NOT_A_SAMPLE = "not_a_sample"
    NOT_A_NUMBER = "not_a_number"
    NOT_A_TIMESTAMP = "not_a_timestamp"
    NO_TIMESTAMP = "no_timestamp"
    WRONG_TIME_UNIT = "wrong_time_unit"
    NOT_UTF8 = "not_utf8"
    TRUNCATED = "truncated"
    MISSING_EOF = "missing_eof"
    AFTER_EOF = "after_eof"
    LENGTH_MISMATCH = "length_mismatch"
    NOT_AN_ANSWER = "not_an_answer"
    PARTIAL_ANSWER = "partial_answer"


class ExportFormatError(Exception):
    """An export can't be read as what it should be; the message names the file, the line and what was expected."""


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One thing that is no sample. `line` counts from 1; 0 where the form has no lines."""

    file: str
    line: int
    kind: AnomalyKind
    detail: str

    def as_error(self) -> ExportFormatError:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return ExportFormatError(f"{where}: {self.kind.value}: {self.detail}")


@contextmanager
def readable_errors() -> Iterator[None]:
    """Around an action on a reader's frame: raise a reader's error on a worker as ExportFormatError, any other error as it is.

    Spark wraps an exception of a Python worker into its own, with the worker's whole traceback. A person needs its last line.
    """
    try:
        yield
    except PySparkException as error:
        found = _OWN_ERROR.findall(str(error))
        if not found:
            raise
        raise ExportFormatError(found[-1].strip()) from error


@dataclass(frozen=True, slots=True)
class Noted:
    """What was left out without an error: how many series of other applications (None: not counted), and what answers lacked."""

    foreign_series: int | None
    lacks: tuple[str, ...] = ()


NOT_COUNTED: Final = Noted(None)


@dataclass(frozen=True, slots=True)
class Samples:
    """What a reader hands out: a lazy frame of SAMPLE_SCHEMA, in no order, with the export's duplicates. See `readable_errors`.

    `packed` is the same by PACKED_SCHEMA, if the reader has it. `noted` is known after an action on either.
    """

    frame: DataFrame
    noted: Callable[[], Noted] = lambda: NOT_COUNTED
    packed: DataFrame | None = None


@dataclass(frozen=True, slots=True)
class Columns:
    """Samples as columns: sample i is of the series `names[codes[i]]`."""

    names: Sequence[str | None]
    codes: np.ndarray
    ts_ms: np.ndarray
    values: np.ndarray

    def __len__(self) -> int:
        return len(self.codes)

    def where(self, wanted: np.ndarray) -> "Columns":
        """Return some of the samples."""
        if wanted.all():
            return self
        return Columns(self.names, self.codes[wanted], self.ts_ms[wanted], self.values[wanted])

    def rows(self) -> pa.RecordBatch:
        """Return the samples as rows of SAMPLE_SCHEMA."""
        series = pa.array(self.names, pa.string()).take(pa.array(self.codes))
        return pa.RecordBatch.from_arrays(
            [series, pa.array(self.ts_ms), pa.array(self.values)], names=["series", "ts_ms", "value"]
        )

    def packed(self) -> pa.RecordBatch:
        """Return the samples as rows of PACKED_SCHEMA."""
        codes, ts_ms, values = self.codes, self.ts_ms, self.values
        if (codes[1:] < codes[:-1]).any():
            order = np.argsort(codes.astype(np.uint16) if len(self.names) <= 1 << 16 else codes, kind="stable")
            codes, ts_ms, values = codes[order], ts_ms[order], values[order]
        begins = np.concatenate([[True], codes[1:] != codes[:-1]])[: len(codes)]
        begins[::_SAMPLES_A_ROW] = True
        starts = np.flatnonzero(begins)
        series = pa.array(self.names, pa.string()).take(pa.array(codes[starts]))
        offsets = pa.array(np.append(starts, len(codes)).astype(np.int32))
        samples = pa.StructArray.from_arrays([pa.array(ts_ms), pa.array(values)], names=["ts_ms", "value"])
        return pa.RecordBatch.from_arrays(
            [series, pa.ListArray.from_arrays(offsets, samples)], names=["series", "samples"]
        )


def unpacked(frame: DataFrame) -> DataFrame:
    """Return the rows of SAMPLE_SCHEMA in a frame of PACKED_SCHEMA."""
    return frame.select("series", sql.inline("samples"))


def pieces(content: bytes, begins: np.ndarray, ends: np.ndarray) -> pa.StringArray:
    """Return the pieces [begins[i], ends[i]) of UTF-8, in order, as an Arrow array that points into the text: nothing is copied.

    In an array of texts each one ends where the next begins. So what is between two pieces is an element too, but a null one, and
    Arrow's kernels pass over those: piece i is element 2 i.
    """
    count = len(begins)
    offsets = np.empty(2 * count + 1, dtype=np.int32)
    offsets[0:-1:2] = begins
    offsets[1::2] = ends
    offsets[-1] = ends[-1] if count else 0
    valid = np.full(count // 4 + 1, _FOUR_PIECES, dtype=np.uint8)
    return pa.StringArray.from_buffers(2 * count, pa.py_buffer(offsets), pa.py_buffer(content), pa.py_buffer(valid))


def numbers(texts: pa.StringArray) -> np.ndarray:
    """Return the number that each piece is. Raises ArrowInvalid if one is none."""
    return of_each(texts.cast(pa.float64()))


def of_each(made: pa.Array) -> np.ndarray:
    """Return what a kernel has made of the pieces: a number for each."""
    return np.ascontiguousarray(made.fill_null(0).to_numpy()[::2])
