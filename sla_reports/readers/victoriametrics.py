"""VictoriaMetrics's `/api/v1/export`: JSON lines, each with a series' labels, its values and its timestamps.

`{"metric": {"__name__": "up", ...}, "values": [1, 0, null], "timestamps": [1605108000000, ...]}`, timestamps in ms. A `null` is
a stale marker. One series may stand in many lines; with `max_rows_per_line` the server keeps lines short, so that files can be
cut.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from pyspark.sql import SparkSession

from sla_reports.readers.lines import SPLIT_BYTES, Block, Flaw, FlawError, Parsed, read_lines, shown
from sla_reports.readers.prometheus_api import Marks, lacks, partial_words, refusal
from sla_reports.readers.samples import EARLIEST_TS_MS, LATEST_TS_MS, STALE_NAN_BITS, AnomalyKind, Columns, Samples
from sla_reports.readers.selection import Selection, name_of
from sla_reports.series import SeriesFormatError

_STALE: Final = np.array([STALE_NAN_BITS], dtype=np.uint64).view(np.float64)[0]
# The labels of a line that is no JSON: old versions write +Inf as a bare word.
_LABELS: Final = re.compile(rb'\s*\{"metric"\s*:\s*(\{(?:[^"{}]|"(?:[^"\\]|\\.)*")*\}).*\}\s*', re.DOTALL)


class _Line(Marks):
    """A series. An error of the server, or an answer of another form, has the marks of an answer instead."""

    metric: dict[str, Any] = msgspec.field(default_factory=dict)
    values: msgspec.Raw = msgspec.Raw(b"")
    timestamps: msgspec.Raw = msgspec.Raw(b"")


def read(
    spark: SparkSession, paths: Sequence[Path | str], *, split_bytes: int = SPLIT_BYTES, selection: Selection | None = None
) -> Samples:  # fmt: skip
    """Return the samples of the files; a folder stands for its `.jsonl`, `.ndjson` and `.json` files, also with `.gz`."""
    suffixes = (".jsonl", ".json", ".ndjson")
    return read_lines(spark, paths, VictoriaMetrics, suffixes, split_bytes=split_bytes, selection=selection)


class VictoriaMetrics:
    """A LineForm."""

    def __init__(self, selection: Selection | None = None) -> None:
        self._selection = selection or Selection()
        self._decoder = msgspec.json.Decoder(_Line)
        self._values = msgspec.json.Decoder(list[float | str | None])
        self._timestamps = msgspec.json.Decoder(list[int])

    def parse(self, block: Block) -> Parsed:
        """See LineForm. A last line without line feed is whole if its JSON is."""
        series: list[tuple[str, np.ndarray, np.ndarray]] = []
        flaws: list[Flaw] = []
        lines = block.data.split(b"\n")
        for number, line in enumerate(lines):
            try:
                if line.strip() and (found := self._one(line)) is not None:
                    series.append(found)
            except FlawError as error:
                flaws.append(error.at(number))
        if not series:
            return Parsed([], flaws, len(lines) - 1)
        names, ts_ms, values = zip(*series, strict=True)
        codes = np.repeat(np.arange(len(names), dtype=np.int32), [len(one) for one in ts_ms])
        columns = Columns(names, codes, np.concatenate(ts_ms), np.concatenate(values))
        return Parsed([columns.packed()], flaws, len(lines) - 1)

    def _one(self, line: bytes) -> tuple[str, np.ndarray, np.ndarray] | None:
        """Return the name, times and values of a line; None for a series that is passed over. Raises FlawError."""
        try:
            entry = self._decoder.decode(line)
            if entry.metric and self._selection.passes_over_labels(entry.metric):
                return None
            self._check_marks(entry)
            if not entry.metric and not bytes(entry.values):
                raise msgspec.ValidationError("Object missing required field `metric`")
            values, stamps = self._values.decode(entry.values), self._timestamps.decode(entry.timestamps)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            if self._is_foreign(line):
                return None
            text = shown(line[:200].decode(errors="replace"))
            kind = AnomalyKind.TRUNCATED if "truncated" in str(error) else AnomalyKind.NOT_A_SAMPLE
            raise FlawError(kind, f"{text}: {error}; expected metric, values, timestamps") from error
        if len(values) != len(stamps):
            lengths = f"{len(values)} values and {len(stamps)} timestamps"
            raise FlawError(AnomalyKind.LENGTH_MISMATCH, f"{lengths} of {entry.metric}; expected as many of both")
        try:
            name = name_of(entry.metric)
        except SeriesFormatError as error:
            raise FlawError(AnomalyKind.NOT_A_SAMPLE, str(error)) from error
        return name, _times(stamps, name), _values(values, name)

    def _check_marks(self, entry: _Line) -> None:
        if entry.status is not None and not entry.metric:
            expected = "expected /api/v1/export, or --from query-range"
            fault = refusal(entry) or f"the line is an answer of the query API; {expected}"
            raise FlawError(AnomalyKind.NOT_AN_ANSWER, fault)
        if missing := lacks(entry):
            if not self._selection.accept_partial:
                raise FlawError(AnomalyKind.PARTIAL_ANSWER, partial_words(missing))
            self._selection.lacks.update(missing)

    def _is_foreign(self, line: bytes) -> bool:
        """Whether a line that is no JSON, or whose series has no numbers, is plainly of a series outside the selection."""
        found = _LABELS.fullmatch(line)
        try:
            return found is not None and self._selection.passes_over_labels(json.loads(found[1]))
        except ValueError:
            return False


def _times(stamps: list[int], name: str) -> np.ndarray:
    ts_ms = np.array(stamps, dtype=np.int64)
    wrong = ts_ms[(ts_ms < EARLIEST_TS_MS) | (ts_ms >= LATEST_TS_MS)]
    if len(wrong):
        detail = (
            f"{len(wrong)} timestamps of {shown(name)} such as {wrong[0]}; expected milliseconds between 2000 and 2100"
        )
        raise FlawError(AnomalyKind.WRONG_TIME_UNIT, detail)
    return ts_ms


def _values(values: list[float | str | None], name: str) -> np.ndarray:
    """Return doubles; `null` is the stale marker, and infinities come as texts."""
    try:
        made = np.array(values, dtype=np.float64)
    except ValueError as error:
        raise FlawError(AnomalyKind.NOT_A_NUMBER, f"values of {shown(name)}: {error}; expected numbers") from error
    if np.isnan(made).any():
        made[[value is None for value in values]] = _STALE
    return made
