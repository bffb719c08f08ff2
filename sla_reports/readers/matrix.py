"""Takes Prometheus's own answer apart: `{"status": "success", "data": {"resultType": "matrix", "result": [...]}}`.

The answer of a range query and that of an instant query with a range selector have this form; promtool writes the list of series
alone. A file may hold several of them, as a JSON array or one a line. Timestamps are seconds with three decimals, values are
texts. An answer as a server writes it is taken apart as columns (`pairs.py`); one that is anything else, entry by entry, to
say what and where.
"""

import re
from typing import Any, Final, Generic, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from sla_reports.readers.answer_marks import Marks, lacks, partial_words, refusal
from sla_reports.readers.columns import Columns
from sla_reports.readers.contract import EARLIEST_TS_MS, LATEST_TS_MS, Anomaly, AnomalyKind
from sla_reports.readers.pairs import columns_of
from sla_reports.readers.selection import Selection, name_of
from sla_reports.readers.text_lines import shown
from sla_reports.series import SeriesFormatError

_Result = TypeVar("_Result")
_NONE: Final = msgspec.Raw(b"[]")
_EXPECTED: Final = "expected a Prometheus answer of type matrix"
# Numbers that JSON does not have, outside of texts. They become texts with this mark, so that only their own series is broken.
_BARE: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|([+-]?(?:Inf(?:inity)?|NaN)\b)', re.IGNORECASE)
_BARE_MARK: Final = b"bare "


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


class Answer(Marks, Generic[_Result]):
    """Any answer of the HTTP API."""

    data: _Data[_Result] | None = None


_PLAIN_ANSWER: Final = msgspec.json.Decoder(Answer[list[_Entry] | None])
_ANSWER: Final = msgspec.json.Decoder(Answer[msgspec.Raw])
_ENTRIES: Final = msgspec.json.Decoder(list[_Entry] | None)
_ITEMS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LINE: Final = msgspec.json.Decoder(msgspec.Raw)
_PAIRS: Final = msgspec.json.Decoder(list[tuple[float, str]])
_Found = tuple[list[Columns], list[Anomaly]]


def decode(content: bytes, source: str, selection: Selection | None = None) -> _Found:
    """The samples of one answer or several, and what is none; `source` names the file or the question in an anomaly."""
    selection = selection or Selection()
    plain = _plain(content, selection)
    if plain is not None:
        return ([plain] if len(plain) else []), []
    several = _several(content)
    if several is None:
        return _careful(content, source, selection)
    columns: list[Columns] = []
    anomalies: list[Anomaly] = []
    for number, one in enumerate(several, start=1):
        found, more = decode(
            one, source if len(several) == 1 else f"{source}, answer {number} of {len(several)}", selection
        )
        columns += found
        anomalies += more
    return columns, anomalies


def _several(content: bytes) -> list[bytes] | None:
    """The answers of a file that is not just one: a JSON array of them, one a line, or promtool's list of series."""
    try:
        if content.lstrip()[:1] == b"[":
            items = [bytes(one) for one in _ITEMS.decode(content)]
            if any("status" in _MEMBERS.decode(one) for one in items):
                return items
            return [b'{"status":"success","data":{"resultType":"matrix","result":' + content + b"}}"]
        lines = [bytes(one) for one in _LINE.decode_lines(content)]
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return lines if len(lines) > 1 else None


def _plain(content: bytes, selection: Selection) -> Columns | None:
    """The samples of an answer in which nothing is wrong; None where something may be."""
    try:
        answer = _PLAIN_ANSWER.decode(content)
        if lacks(answer) or _fault_of(answer) is not None:
            return None
        assert answer.data is not None
        entries = [one for one in answer.data.result or () if not selection.passes_over_labels(one.metric)]
        if any(bytes(entry.histograms) != b"[]" or bytes(entry.value) != b"[]" for entry in entries):
            return None
        names = [name_of(entry.metric) for entry in entries]
    except (msgspec.MsgspecError, UnicodeDecodeError, SeriesFormatError):
        return None
    return columns_of(names, [entry.values for entry in entries])


def _careful(content: bytes, source: str, selection: Selection) -> _Found:
    try:
        answer, entries = _entries(content)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        torn = "truncated" in str(error)
        kind = AnomalyKind.TRUNCATED if torn else AnomalyKind.NOT_AN_ANSWER
        return [], [Anomaly(source, 0, kind, f"{error}; {_EXPECTED}")]
    fault = _fault_of(answer)
    if fault is not None:
        return [], [Anomaly(source, 0, *fault)]
    samples: list[Columns] = []
    anomalies: list[Anomaly] = []
    for index, entry in enumerate(entries):
        if selection.passes_over_labels(entry.metric):
            continue
        columns, found = _samples(entry, f"data.result[{index}]")
        samples += [columns] if columns is not None and len(columns) else []
        anomalies += [Anomaly(source, 0, kind, detail) for kind, detail in found]
    if missing := lacks(answer):
        if not selection.accept_partial:
            return [], [*anomalies, Anomaly(source, 0, AnomalyKind.PARTIAL_ANSWER, partial_words(missing))]
        selection.lacks.update(missing)
    return samples, anomalies


def _entries(content: bytes) -> tuple[Answer[msgspec.Raw], list[_Entry]]:
    """Raises MsgspecError, UnicodeDecodeError. A number that JSON does not have is a fault of its series alone."""
    try:
        answer = _ANSWER.decode(content)
    except msgspec.DecodeError:
        marked = _BARE.sub(lambda found: b'"' + _BARE_MARK + found[1] + b'"' if found[1] else found[0], content)
        if marked == content:
            raise
        answer = _ANSWER.decode(marked)
    if _fault_of(answer) is not None:
        return answer, []
    assert answer.data is not None
    return answer, _ENTRIES.decode(answer.data.result) or []


def _fault_of(answer: Answer[Any]) -> tuple[AnomalyKind, str] | None:
    if fault := refusal(answer):
        return AnomalyKind.NOT_AN_ANSWER, fault
    if answer.data is None or answer.data.resultType != "matrix":
        kind = None if answer.data is None else answer.data.resultType
        return AnomalyKind.NOT_AN_ANSWER, f"data.resultType is {kind!r}; expected 'matrix' (a range of samples)"
    return None


def _samples(entry: _Entry, where: str) -> tuple[Columns | None, list[tuple[AnomalyKind, str]]]:
    try:
        name = name_of(entry.metric)
    except SeriesFormatError as error:
        return None, [(AnomalyKind.NOT_A_SAMPLE, f"{where}: {error}")]
    faults: list[tuple[AnomalyKind, str]] = []
    if bytes(entry.histograms) not in {b"[]", b"null"}:
        faults.append((AnomalyKind.NOT_A_SAMPLE, f"{where}: {name} is a native histogram; expected numbers"))
    if bytes(entry.value) != b"[]":
        detail = f"{where}: {name} has one value, as of an instant query; expected values, as of {name.partition('{')[0]}[1d]"
        faults.append((AnomalyKind.NOT_A_SAMPLE, detail))
    try:
        pairs = _PAIRS.decode(entry.values)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return None, [
            *faults,
            (AnomalyKind.NOT_AN_ANSWER, f"{where}: values of {name}: {error}; expected [seconds, text] each"),
        ]
    columns, wrong = _columns(name, pairs, where)
    return columns, faults + wrong


def _columns(name: str, pairs: list[tuple[float, str]], where: str) -> tuple[Columns, list[tuple[AnomalyKind, str]]]:
    faults: list[tuple[AnomalyKind, str]] = []
    ts_ms = np.rint(np.array([at for at, _ in pairs], dtype=np.float64) * 1000)
    values, numbers = _values([value for _, value in pairs])
    plausible = (ts_ms >= EARLIEST_TS_MS) & (ts_ms < LATEST_TS_MS)
    if not numbers.all():
        wrong = pairs[int(np.flatnonzero(~numbers)[0])][1]
        faults.append((AnomalyKind.NOT_A_NUMBER, f"{where}: value {shown(wrong)} of {name}; expected a number"))
    if not plausible.all():
        wrong_ts = pairs[int(np.flatnonzero(~plausible)[0])][0]
        detail = f"{where}: timestamp {wrong_ts} of {name} is not between 2000 and 2100; expected seconds"
        faults.append((AnomalyKind.WRONG_TIME_UNIT, detail))
    good = plausible & numbers
    codes = np.zeros(len(good), dtype=np.int32)
    return Columns([name], codes, np.where(good, ts_ms, 0).astype(np.int64), values).where(good), faults


def _values(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    try:
        return pa.array(texts, pa.string()).cast(pa.float64()).to_numpy(), np.ones(len(texts), dtype=bool)
    except pa.ArrowInvalid:
        made = np.zeros(len(texts))
        numbers = np.zeros(len(texts), dtype=bool)
        for i, text in enumerate(texts):
            try:
                made[i], numbers[i] = float(text), True
            except ValueError:
                continue
        return made, numbers
