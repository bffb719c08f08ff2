"""The two JSON forms of an export: answers of Prometheus's HTTP API, and the lines of VictoriaMetrics's `/api/v1/export`.

`{"status": "success", "data": {"resultType": "matrix", "result": [...]}}` is the answer to a range query, and to an instant query
with a range selector; promtool's `-o json` writes the list of series alone. A file may hold several, as a JSON array or one a line.
Each file is read whole by one task: keep files small (a day each). Samples of a range query are not scrapes: they lie on the
query's grid and may be up to five minutes old, which hides short outages. Prefer `sla export`, or the `prometheus` source.

`{"metric": {"__name__": "up", ...}, "values": [1, 0, null], "timestamps": [1605108000000, ...]}` is a line of VictoriaMetrics.
"""

import json
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from sla_reports.readers.lines import (
    SPLIT_BYTES,
    Block,
    Flaw,
    FlawError,
    Parsed,
    content_of,
    files_of,
    read_lines,
    shown,
)
from sla_reports.readers.prometheus_api import Marks, lacks, no_matrix, partial_words, refusal
from sla_reports.readers.samples import (
    EARLIEST_TS_MS,
    LATEST_TS_MS,
    PACKED_SCHEMA,
    STALE_NAN_BITS,
    Anomaly,
    AnomalyKind,
    Columns,
    Notes,
    Samples,
    Selection,
    name_of,
    numbers,
    pieces,
    unpacked,
)
from sla_reports.series import SeriesFormatError
from sla_reports.session import own, tasks_of

_Result = TypeVar("_Result")
_NONE: Final = msgspec.Raw(b"[]")
_EXPECTED: Final = "expected a Prometheus answer of type matrix"
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError)
# Numbers that JSON does not have, outside of texts. They become texts with this mark, so that only their own series is broken.
_BARE: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|([+-]?(?:Inf(?:inity)?|NaN)\b)', re.IGNORECASE)
_BARE_MARK: Final = b"bare "
_QUOTE, _OPEN, _CLOSE, _COMMA, _SPACE = b'"[], '
_STALE: Final = np.array([STALE_NAN_BITS], dtype=np.uint64).view(np.float64)[0]
# The labels of a line that is no JSON: old versions write +Inf as a bare word.
_LABELS: Final = re.compile(rb'\s*\{"metric"\s*:\s*(\{(?:[^"{}]|"(?:[^"\\]|\\.)*")*\}).*\}\s*', re.DOTALL)


class _UnexpectedError(Exception):
    """An answer, or its samples, are not as a server writes them."""


class _Entry(msgspec.Struct):
    """A series, its samples not yet read: those of a series that is passed over never are."""

    metric: dict[str, Any]
    values: msgspec.Raw = _NONE
    histograms: msgspec.Raw = _NONE
    # Of an instant query.
    value: msgspec.Raw = _NONE


class _Data(msgspec.Struct, Generic[_Result]):
    resultType: str  # noqa: N815 - Prometheus's name
    result: _Result


class _Answer(Marks, Generic[_Result]):
    data: _Data[_Result] | None = None


class _Line(Marks):
    """A series. An error of the server, or an answer of another form, has the marks of an answer instead."""

    metric: dict[str, Any] = msgspec.field(default_factory=dict)
    values: msgspec.Raw = msgspec.Raw(b"")
    timestamps: msgspec.Raw = msgspec.Raw(b"")


_PLAIN_ANSWER: Final = msgspec.json.Decoder(_Answer[list[_Entry] | None])
_ANSWER: Final = msgspec.json.Decoder(_Answer[msgspec.Raw])
_ENTRIES: Final = msgspec.json.Decoder(list[_Entry] | None)
_ITEMS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LINE: Final = msgspec.json.Decoder(msgspec.Raw)
_PAIRS: Final = msgspec.json.Decoder(list[tuple[float, str]])


def read_answers(spark: SparkSession, paths: Sequence[Path | str], *, selection: Selection | None = None) -> Samples:
    """Return the samples of the files; a folder stands for its `.json` and `.json.gz` files. Raises ExportFormatError."""
    wanted, notes = selection or Selection(), Notes(spark.sparkContext)
    files = [path.resolve() for path in files_of(paths, (".json",))]
    frame = tasks_of(spark, len(files)).mapInArrow(partial(_samples_of, files, wanted, notes), PACKED_SCHEMA)
    return Samples(unpacked(frame), notes.told, frame)


def _samples_of(
    files: list[Path], selection: Selection, notes: Notes, tasks: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for path in own(files, tasks):
        for columns in decode(content_of(path), str(path), selection):
            yield columns.packed()
    notes.add(selection)


def decode(content: bytes, source: str, selection: Selection | None = None) -> list[Columns]:
    """Return the samples of one answer or several. Raises ExportFormatError, in which `source` names the file or the question.

    An answer as a server writes it is taken apart as columns; any other one entry by entry, to say what is wrong, and where.
    """
    selection = selection or Selection()
    plain = _plain(content, selection)
    if plain is not None:
        return [plain] if len(plain) else []
    several = _several(content)
    if several is None:
        try:
            return _careful(content, selection)
        except FlawError as error:
            raise Anomaly(source, 0, error.kind, str(error)).as_error() from error
    count = len(several)
    names = [source if count == 1 else f"{source}, answer {number + 1} of {count}" for number in range(count)]
    return [one for name, each in zip(names, several, strict=True) for one in decode(each, name, selection)]


def _several(content: bytes) -> list[bytes] | None:
    """The answers of a file that is not just one: a JSON array of them, one a line, or promtool's list of series."""
    try:
        if content.lstrip()[:1] == b"[":
            items = [bytes(one) for one in _ITEMS.decode(content)]
            if any("status" in _MEMBERS.decode(one) for one in items):
                return items
            return [b'{"status":"success","data":{"resultType":"matrix","result":' + content + b"}}"]
        lines = [bytes(one) for one in _LINE.decode_lines(content)]
    except _UNREADABLE:
        return None
    return lines if len(lines) > 1 else None


def _plain(content: bytes, selection: Selection) -> Columns | None:
    """The samples of an answer in which nothing is wrong; None where something may be."""
    try:
        answer = _PLAIN_ANSWER.decode(content)
        _check(answer)
        if lacks(answer):
            return None
        assert answer.data is not None
        entries = [one for one in answer.data.result or () if not selection.passes_over_labels(one.metric)]
        if any(bytes(entry.histograms) != b"[]" or bytes(entry.value) != b"[]" for entry in entries):
            return None
        return _columns_of([name_of(entry.metric) for entry in entries], [entry.values for entry in entries])
    except (*_UNREADABLE, SeriesFormatError, FlawError, _UnexpectedError, pa.ArrowInvalid):
        return None


def _columns_of(names: Sequence[str], arrays: Sequence[msgspec.Raw]) -> Columns:
    """The samples `[[1790812810.061,"1"],...]` of some series. Raises _UnexpectedError or ArrowInvalid."""
    values = [memoryview(array) for array in arrays]
    there = [(code, one[1:-1]) for code, one in enumerate(values) if len(one) > 2]
    # Servers write no space; Python's json writes one after each comma.
    comma = b", " if there and b", " in bytes(there[0][1][:64]) else b","
    content = comma.join(one for _, one in there)
    if any(one[0] != _OPEN or one[-1] != _CLOSE for one in values) or not content.isascii():
        raise _UnexpectedError
    opens, ts_ms, read = _numbers(content, len(comma))
    lengths = np.array([len(one) + len(comma) for _, one in there], dtype=np.int64)
    counts = np.diff(np.searchsorted(opens, np.append(0, np.cumsum(lengths))))
    codes = np.repeat(np.array([code for code, _ in there], dtype=np.int32), counts)
    return Columns(names, codes, ts_ms, read)


def _numbers(content: bytes, gap: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where values begin, the times in ms, the values; `gap` is the length of a comma with what follows it.

    All quotes are found at once, and each byte between the numbers must be what the form says: `["`, `,"`, `"],[` and `"]`.
    """
    data = np.frombuffer(content, dtype=np.uint8)
    quotes = np.flatnonzero(data == _QUOTE)
    opens, closes = quotes[0::2], quotes[1::2]
    begins = np.append(1, closes[:-1] + 3 + gap)[: len(opens)]
    if len(quotes) % 2 or (closes[-1] + 2 if len(closes) else 0) != len(data) or (begins >= opens - gap).any():
        raise _UnexpectedError
    holds = [data[begins - 1] == _OPEN, data[closes + 1] == _CLOSE, data[opens - gap] == _COMMA]
    holds += [data[closes[:-1] + 2] == _COMMA]
    holds += [data[opens - 1] == _SPACE, data[closes[:-1] + 3] == _SPACE] if gap > 1 else []
    if not all(one.all() for one in holds):
        raise _UnexpectedError
    seconds, read = (numbers(pieces(content, *one)) for one in ((begins, opens - gap), (opens + 1, closes)))
    ts_ms = np.rint(seconds * 1000)
    if not ((ts_ms >= EARLIEST_TS_MS) & (ts_ms < LATEST_TS_MS)).all():
        raise _UnexpectedError
    return opens, ts_ms.astype(np.int64), read


def _careful(content: bytes, selection: Selection) -> list[Columns]:
    """The samples of an answer, entry by entry. Raises FlawError."""
    try:
        answer, entries = _entries(content)
    except _UNREADABLE as error:
        kind = AnomalyKind.TRUNCATED if "truncated" in str(error) else AnomalyKind.NOT_AN_ANSWER
        raise FlawError(kind, f"{error}; {_EXPECTED}") from error
    samples = [
        _samples(entry, f"data.result[{index}]")
        for index, entry in enumerate(entries)
        if not selection.passes_over_labels(entry.metric)
    ]
    _accept_partial(answer, selection)
    return [columns for columns in samples if len(columns)]


def _entries(content: bytes) -> tuple[_Answer[msgspec.Raw], list[_Entry]]:
    """Raises MsgspecError, UnicodeDecodeError, FlawError. A number that JSON does not have is a fault of its series alone."""
    try:
        answer = _ANSWER.decode(content)
    except msgspec.DecodeError:
        marked = _BARE.sub(lambda found: b'"' + _BARE_MARK + found[1] + b'"' if found[1] else found[0], content)
        if marked == content:
            raise
        answer = _ANSWER.decode(marked)
    _check(answer)
    assert answer.data is not None
    return answer, _ENTRIES.decode(answer.data.result) or []


def _check(answer: _Answer[Any]) -> None:
    """Raise FlawError for an answer that is an error, or no matrix."""
    if fault := no_matrix(answer, answer.data.resultType if answer.data else None):
        raise FlawError(AnomalyKind.NOT_AN_ANSWER, fault)


def _accept_partial(marks: Marks, selection: Selection) -> None:
    """Note what an answer lacks. Raise FlawError if the selection wants whole ones."""
    if missing := lacks(marks):
        if not selection.accept_partial:
            raise FlawError(AnomalyKind.PARTIAL_ANSWER, partial_words(missing))
        selection.lacks.update(missing)


def _samples(entry: _Entry, where: str) -> Columns:
    """The samples of one series. Raises FlawError for the first thing that is wrong."""
    try:
        name = name_of(entry.metric)
    except SeriesFormatError as error:
        raise FlawError(AnomalyKind.NOT_A_SAMPLE, f"{where}: {error}") from error
    if bytes(entry.histograms) not in {b"[]", b"null"}:
        raise FlawError(AnomalyKind.NOT_A_SAMPLE, f"{where}: {name} is a native histogram; expected numbers")
    if bytes(entry.value) != b"[]":
        detail = f"{where}: {name} has one value, as of an instant query; expected values, as of {name.partition('{')[0]}[1d]"
        raise FlawError(AnomalyKind.NOT_A_SAMPLE, detail)
    try:
        pairs = _PAIRS.decode(entry.values)
    except _UNREADABLE as error:
        detail = f"{where}: values of {name}: {error}; expected [seconds, text] each"
        raise FlawError(AnomalyKind.NOT_AN_ANSWER, detail) from error
    values = np.array([_number(text, f"{where}: value {shown(text)} of {name}") for _, text in pairs], dtype=np.float64)
    ts_ms = np.rint(np.array([seconds for seconds, _ in pairs], dtype=np.float64) * 1000)
    wrong = np.flatnonzero(~((ts_ms >= EARLIEST_TS_MS) & (ts_ms < LATEST_TS_MS)))
    if len(wrong):
        detail = (
            f"{where}: timestamp {pairs[int(wrong[0])][0]} of {name} is not between 2000 and 2100; expected seconds"
        )
        raise FlawError(AnomalyKind.WRONG_TIME_UNIT, detail)
    return Columns([name], np.zeros(len(pairs), dtype=np.int32), ts_ms.astype(np.int64), values)


def _number(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise FlawError(AnomalyKind.NOT_A_NUMBER, f"{where}; expected a number") from error


def read_victoriametrics(
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
            if entry.status is not None and not entry.metric:
                expected = "expected /api/v1/export, or --from query-range"
                fault = refusal(entry) or f"the line is an answer of the query API; {expected}"
                raise FlawError(AnomalyKind.NOT_AN_ANSWER, fault)
            _accept_partial(entry, self._selection)
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
