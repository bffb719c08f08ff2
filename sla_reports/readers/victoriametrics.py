"""Reads VictoriaMetrics's `/api/v1/export`: JSON lines, each with a series' labels, its values and its timestamps.

`{"metric": {"__name__": "up", ...}, "values": [1, 0, null], "timestamps": [1605108000000, ...]}`, timestamps in ms. A `null` is a
stale marker. One series may stand in many lines; with `max_rows_per_line` the server keeps lines short, so that files can be cut.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from pyspark.sql import SparkSession

from sla_reports.readers.answer_marks import Marks, lacks, partial_words, refusal
from sla_reports.readers.columns import Columns
from sla_reports.readers.contract import EARLIEST_TS_MS, LATEST_TS_MS, STALE_NAN_BITS, AnomalyKind, Samples
from sla_reports.readers.lines import Flaw, Parsed, read_lines
from sla_reports.readers.selection import Selection, name_of
from sla_reports.readers.splits import SPLIT_BYTES, Block
from sla_reports.readers.text_lines import shown
from sla_reports.series import SeriesFormatError

_STALE: Final = np.array([STALE_NAN_BITS], dtype=np.uint64).view(np.float64)[0]
_SUFFIXES: Final = (".jsonl", ".json", ".ndjson")


# The labels of a line that is no JSON: old versions write +Inf as a bare word.
_LABELS: Final = re.compile(rb'\s*\{"metric"\s*:\s*(\{(?:[^"{}]|"(?:[^"\\]|\\.)*")*\}).*\}\s*', re.DOTALL)
_EXPECTED: Final = "expected metric, values, timestamps"


class _Line(Marks):
    """A series. An error of the server, or an answer of another form, has the marks of an answer instead."""

    metric: dict[str, Any] = msgspec.field(default_factory=dict)
    values: msgspec.Raw = msgspec.Raw(b"")
    timestamps: msgspec.Raw = msgspec.Raw(b"")


def read(
    spark: SparkSession, paths: Sequence[Path | str], *, skip_broken: bool = False, split_bytes: int = SPLIT_BYTES,
    selection: Selection | None = None,
) -> Samples:  # fmt: skip
    """The samples of the files; a folder stands for its `.jsonl`, `.ndjson` and `.json` files, also with `.gz`."""
    return read_lines(
        spark,
        paths,
        VictoriaMetrics,
        suffixes=_SUFFIXES,
        skip_broken=skip_broken,
        split_bytes=split_bytes,
        selection=selection,
    )


class VictoriaMetrics:
    """A LineForm."""

    def __init__(self, selection: Selection | None = None) -> None:
        self._selection = selection or Selection()
        self._decoder = msgspec.json.Decoder(_Line)
        self._values = msgspec.json.Decoder(list[float | str | None])
        self._timestamps = msgspec.json.Decoder(list[int])

    def parse(self, block: Block) -> Parsed:
        """See LineForm. A last line without line feed is whole if its JSON is."""
        names: list[str] = []
        columns: list[tuple[np.ndarray, np.ndarray]] = []
        flaws: list[Flaw] = []
        lines = block.data.split(b"\n")
        for number, line in enumerate(lines):
            if not line.strip():
                continue
            try:
                found = self._one(line)
            except _FlawError as error:
                flaws.append(Flaw(number, error.kind, str(error)))
                continue
            if found is None:
                continue
            name, ts_ms, values = found
            plausible = (ts_ms >= EARLIEST_TS_MS) & (ts_ms < LATEST_TS_MS)
            if not plausible.all():
                flaws.append(Flaw(number, AnomalyKind.WRONG_TIME_UNIT, _implausible(name, ts_ms[~plausible])))
                ts_ms, values = ts_ms[plausible], values[plausible]
            names.append(name)
            columns.append((ts_ms, values))
        return Parsed([_joined(names, columns).packed()] if names else [], flaws, len(lines) - 1)

    def _one(self, line: bytes) -> tuple[str, np.ndarray, np.ndarray] | None:
        """The samples of a line; None for a series that is passed over."""
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
            raise _FlawError(kind, f"{text}: {error}; {_EXPECTED}") from error
        if len(values) != len(stamps):
            lengths = f"{len(values)} values and {len(stamps)} timestamps"
            raise _FlawError(AnomalyKind.LENGTH_MISMATCH, f"{lengths} of {entry.metric}; expected as many of both")
        try:
            name = name_of(entry.metric)
        except SeriesFormatError as error:
            raise _FlawError(AnomalyKind.NOT_A_SAMPLE, str(error)) from error
        return name, np.array(stamps, dtype=np.int64), _values(values, name)

    def _check_marks(self, entry: _Line) -> None:
        if entry.status is not None and not entry.metric:
            fault = (
                refusal(entry)
                or "the line is an answer of the query API; expected /api/v1/export, or --from query-range"
            )
            raise _FlawError(AnomalyKind.NOT_AN_ANSWER, fault)
        if missing := lacks(entry):
            if not self._selection.accept_partial:
                raise _FlawError(AnomalyKind.PARTIAL_ANSWER, partial_words(missing))
            self._selection.lacks.update(missing)

    def _is_foreign(self, line: bytes) -> bool:
        """Of a line that is no JSON, or whose series has no numbers."""
        found = _LABELS.fullmatch(line)
        try:
            return found is not None and self._selection.passes_over_labels(json.loads(found[1]))
        except ValueError:
            return False


class _FlawError(Exception):
    def __init__(self, kind: AnomalyKind, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


def _implausible(name: str, ts_ms: np.ndarray) -> str:
    return f"{len(ts_ms)} timestamps of {shown(name)} such as {ts_ms[0]}; expected milliseconds between 2000 and 2100"


def _values(values: list[float | str | None], name: str) -> np.ndarray:
    """As doubles; `null` is the stale marker, and infinities come as texts."""
    try:
        made = np.array(values, dtype=np.float64)
    except ValueError as error:
        raise _FlawError(AnomalyKind.NOT_A_NUMBER, f"values of {shown(name)}: {error}; expected numbers") from error
    if np.isnan(made).any():
        made[[value is None for value in values]] = _STALE
    return made


def _joined(names: list[str], columns: list[tuple[np.ndarray, np.ndarray]]) -> Columns:
    codes = np.repeat(np.arange(len(names), dtype=np.int32), [len(ts_ms) for ts_ms, _ in columns])
    ts_ms, values = (np.concatenate([pair[part] for pair in columns]) for part in (0, 1))
    return Columns(names, codes, ts_ms, values)
