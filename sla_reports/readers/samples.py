"""What every reader hands out, what it passes over, and the error that names the file, the line and what was expected.

A frame has `series` (canonical text, see `sla_reports.series`), `ts_ms` (UTC, the scrape's own) and `value`. A stale marker ("the
series ended here") is a NaN, so every NaN means "unknown from here". Only VictoriaMetrics separates stale markers from other NaN
(STALE_NAN_BITS), and Spark makes all NaN one. Prometheus's HTTP API leaves stale markers out.

An export of a whole server holds series of other applications, in forms that no metric of ours has: native histograms, names of
any UTF-8, numbers that are none. A `Selection` counts them, and nothing of them is an error.
"""

import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark import Accumulator, SparkContext
from pyspark.accumulators import AccumulatorParam
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from metric_names import PREFIX
from sla_reports.series import SeriesFormatError, metric_column, parse_series, series_text

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
# The metric of a row that says what an answer lacked.
LACKING: Final = "sla_answer_lacks"
_NAME: Final = "__name__"
_CLASSIC_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_BARE_NAME: Final = re.compile(r"[\w:.\-/\\]+")
_ITEM: Final = re.compile(
    r'\s*(?:"((?:[^"\\]|\\.)*)"|([^\s"=,{}]+))\s*(?:=\s*"((?:[^"\\]|\\.)*)")?\s*(,|(?=\}))', re.DOTALL
)
_NUMBER: Final = re.compile(r"[+-]?(?:\d|\.\d|inf|nan)", re.IGNORECASE)
_MOST_LACKS: Final = 20


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


@dataclass(slots=True)
class Selection:
    """What is wanted, and what a task has passed over so far. Each task has its own copy."""

    metrics: frozenset[str] = frozenset()
    accept_partial: bool = False
    foreign: set[str] = field(default_factory=set)
    lacks: set[str] = field(default_factory=set)

    def passes_over(self, metric: str, series: str) -> bool:
        """Whether a series is of no wanted metric. One of another application is counted then; `series` identifies it."""
        if not self.metrics or metric in self.metrics:
            return False
        # The operator exports more than a report reads: that is none of another application.
        if not metric.startswith(PREFIX):
            self.foreign.add(series)
        return True

    def passes_over_labels(self, metric: Mapping[str, Any]) -> bool:
        """As `passes_over`, by the labels of a JSON form."""
        return self.passes_over(str(metric.get(_NAME, "")), str(sorted(metric.items())) if self.metrics else "")

    def passes_over_text(self, text: str) -> bool:
        """As `passes_over`, for a line of a text form that cannot be read: only if the line clearly begins with a metric."""
        parts = parts_of(text)
        if parts is None or not self.metrics:
            return False
        # A sample without labels has a number in it; a message in the middle of an export has none.
        rest = text[parts.end :].split()
        if not rest or (not parts.has_labels and not any(_NUMBER.match(word) or word[0] == "{" for word in rest)):
            return False
        return self.passes_over(parts.metric, text[: parts.end])


@dataclass(frozen=True, slots=True)
class Parts:
    """A series as any tool may write it. `labels` as they stand, escapes not undone; `end` is where the series ends."""

    metric: str
    labels: tuple[tuple[str, str], ...]
    end: int
    has_labels: bool
    # Whether a name is quoted, as Prometheus 3 writes names that are not classic ones.
    has_quoted_name: bool
    is_whole: bool


def parts_of(text: str) -> Parts | None:
    """Parse the series that a line begins with; None if it names no metric."""
    bare = _BARE_NAME.match(text)
    metric, at = (bare[0], bare.end()) if bare else ("", 0)
    if not text.startswith("{", at):
        return Parts(metric, (), at, has_labels=False, has_quoted_name=False, is_whole=True) if metric else None
    labels: list[tuple[str, str]] = []
    quoted = False
    at += 1
    while not text.startswith("}", at):
        item = _ITEM.match(text, at)
        if item is None:
            break
        quoted |= item[1] is not None
        if item[3] is None:
            metric = metric or item[1] or ""
        elif item[1] is None and item[2] == _NAME:
            metric = metric or item[3]
        else:
            labels.append((item[1] if item[2] is None else item[2], item[3]))
        at = item.end()
    is_whole = text.startswith("}", at)
    end = at + 1 if is_whole else at
    return (
        Parts(metric, tuple(labels), end, has_labels=True, has_quoted_name=quoted, is_whole=is_whole)
        if metric
        else None
    )


def name_of(metric: Mapping[str, Any]) -> str:
    """Return the canonical text of labels; names that are not classic are escaped as in Prometheus. Raises SeriesFormatError."""
    labels: dict[str, str] = {}
    for name, value in metric.items():
        if not isinstance(value, str):
            raise SeriesFormatError(f"label {name}: {value!r}; expected a text")
        escaped = _escaped(name)
        if escaped in labels:
            raise SeriesFormatError(f"label {name}: stands twice, also as {escaped}; expected each label once")
        labels[escaped] = value
    return series_text(labels.pop(_NAME, ""), labels)


def _escaped(name: str) -> str:
    """Prometheus's escaping scheme `values`: k8s.pod is U__k8s_2e_pod. No two names become one."""
    if _CLASSIC_LABEL.fullmatch(name) or not name:
        return name
    letters = ["__" if one == "_" else one if one.isascii() and one.isalnum() else f"_{ord(one):x}_" for one in name]
    return f"U__{''.join(letters)}"


def lacking_rows(lacks: Collection[str], ts_ms: int) -> pa.RecordBatch:
    """Return what a server's answers lacked as rows among its samples: a Python source has no other way back to the driver."""
    series = [series_text(LACKING, {"warning": text}) for text in sorted(lacks)]
    columns = [
        pa.array(series, pa.string()),
        pa.array([ts_ms] * len(series), pa.int64()),
        pa.array([1.0] * len(series)),
    ]
    return pa.RecordBatch.from_arrays(columns, names=["series", "ts_ms", "value"])


def lacking_in(frame: DataFrame) -> Noted:
    """Collect the `lacking_rows` of a frame, in one action. A server is asked for wanted metrics only: none is passed over."""
    rows = frame.where(metric_column(sql.col("series")) == LACKING).select("series").distinct().collect()
    lacks = sorted(parse_series(row["series"]).label("warning") for row in rows)
    return Noted(0, tuple(lacks[:_MOST_LACKS]))


class Notes:
    """Gathers on the driver what the tasks have passed over; tasks that run twice report the same."""

    def __init__(self, context: SparkContext) -> None:
        self._told: Accumulator[set[tuple[str, str]]] = context.accumulator(set(), _Union())

    def add(self, selection: Selection) -> None:
        """Hand a task's notes to the driver, at the task's end."""
        self._told.add(
            {
                ("foreign", hashlib.blake2b(one.encode(errors="replace"), digest_size=8).hexdigest())
                for one in selection.foreign
            }
            | {("lacks", one) for one in selection.lacks}
        )

    def told(self) -> Noted:
        """Return how many series were passed over, and what answers lacked. Known after an action."""
        found = self._told.value
        lacks = sorted(text for kind, text in found if kind == "lacks")
        return Noted(sum(kind == "foreign" for kind, _ in found), tuple(lacks[:_MOST_LACKS]))


class _Union(AccumulatorParam[set[tuple[str, str]]]):
    def zero(self, value: set[tuple[str, str]]) -> set[tuple[str, str]]:  # noqa: ARG002 - Spark's signature
        return set()

    def addInPlace(self, value1: set[tuple[str, str]], value2: set[tuple[str, str]]) -> set[tuple[str, str]]:  # noqa: N802
        value1 |= value2
        return value1


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
