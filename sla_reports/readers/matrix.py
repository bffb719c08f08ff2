"""Takes Prometheus's own answer apart: `{"status": "success", "data": {"resultType": "matrix", "result": [...]}}`.

The answer of a range query and that of an instant query with a range selector have this form. Timestamps are seconds with three
decimals, values are texts. An answer as a server writes it is taken apart as columns (`pairs.py`); one that is anything else,
entry by entry, to say what and where.
"""

from typing import Final, Generic, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from sla_reports.readers.columns import Columns
from sla_reports.readers.contract import EARLIEST_TS_MS, LATEST_TS_MS, Anomaly, AnomalyKind
from sla_reports.readers.pairs import columns_of
from sla_reports.readers.text_lines import shown
from sla_reports.series import SeriesFormatError, series_text

_Result = TypeVar("_Result")
_NO_VALUES: Final = msgspec.Raw(b"[]")


class _Entry(msgspec.Struct):
    metric: dict[str, str]
    values: list[tuple[float, str]] = []
    histograms: list[msgspec.Raw] = []


class _UnreadEntry(msgspec.Struct):
    metric: dict[str, str]
    values: msgspec.Raw = _NO_VALUES
    histograms: list[msgspec.Raw] = []


class _Data(msgspec.Struct, Generic[_Result]):
    resultType: str  # noqa: N815 - Prometheus's name
    result: _Result


class Answer(msgspec.Struct, Generic[_Result]):
    """Any answer of the HTTP API."""

    status: str
    data: _Data[_Result] | None = None
    errorType: str = ""  # noqa: N815 - Prometheus's name
    error: str = ""
    warnings: list[str] = []


_PLAIN_ANSWER: Final = msgspec.json.Decoder(Answer[list[_UnreadEntry]])
_ANSWER: Final = msgspec.json.Decoder(Answer[msgspec.Raw])
_ENTRIES: Final = msgspec.json.Decoder(list[_Entry])


def decode(content: bytes, source: str) -> tuple[list[Columns], list[Anomaly]]:
    """The samples of one answer, and what is none; `source` names the answer in an anomaly."""
    plain = _plain(content)
    return _careful(content, source) if plain is None else ([plain] if len(plain) else [], [])


def _plain(content: bytes) -> Columns | None:
    """The samples of an answer in which nothing is wrong; None where something may be."""
    try:
        answer = _PLAIN_ANSWER.decode(content)
        if answer.warnings or _fault_of(answer) is not None:
            return None
        assert answer.data is not None
        entries = answer.data.result
        if any(entry.histograms for entry in entries):
            return None
        names = [_name_of(entry.metric) for entry in entries]
    except (msgspec.MsgspecError, UnicodeDecodeError, SeriesFormatError):
        return None
    return columns_of(names, [entry.values for entry in entries])


def _careful(content: bytes, source: str) -> tuple[list[Columns], list[Anomaly]]:
    try:
        answer = _ANSWER.decode(content)
        fault = _fault_of(answer)
        if fault is not None:
            return [], [Anomaly(source, 0, *fault)]
        assert answer.data is not None
        entries = _ENTRIES.decode(answer.data.result)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        torn = "truncated" in str(error)
        kind = AnomalyKind.TRUNCATED if torn else AnomalyKind.NOT_AN_ANSWER
        return [], [Anomaly(source, 0, kind, f"{error}; expected a Prometheus answer of type matrix")]
    samples: list[Columns] = []
    anomalies: list[Anomaly] = []
    for index, entry in enumerate(entries):
        columns, found = _samples(entry, f"data.result[{index}]")
        samples += [columns] if columns is not None and len(columns) else []
        anomalies += [Anomaly(source, 0, kind, detail) for kind, detail in found]
    if answer.warnings:
        detail = f"the server warns: {'; '.join(answer.warnings)}; expected all samples"
        return [], [*anomalies, Anomaly(source, 0, AnomalyKind.PARTIAL_ANSWER, detail)]
    return samples, anomalies


def _fault_of(answer: Answer[_Result]) -> tuple[AnomalyKind, str] | None:
    if answer.status != "success":
        return (
            AnomalyKind.NOT_AN_ANSWER,
            f"status is {answer.status!r}: {answer.errorType} {answer.error}; expected 'success'",
        )
    if answer.data is None or answer.data.resultType != "matrix":
        kind = None if answer.data is None else answer.data.resultType
        return AnomalyKind.NOT_AN_ANSWER, f"data.resultType is {kind!r}; expected 'matrix' (a range of samples)"
    return None


def _name_of(metric: dict[str, str]) -> str:
    labels = dict(metric)
    return series_text(labels.pop("__name__", ""), labels)


def _samples(entry: _Entry, where: str) -> tuple[Columns | None, list[tuple[AnomalyKind, str]]]:
    try:
        name = _name_of(entry.metric)
    except SeriesFormatError as error:
        return None, [(AnomalyKind.NOT_A_SAMPLE, f"{where}: {error}")]
    faults: list[tuple[AnomalyKind, str]] = []
    if entry.histograms:
        faults.append((AnomalyKind.NOT_A_SAMPLE, f"{where}: {name} is a native histogram; expected numbers"))
    ts_ms = np.rint(np.array([at for at, _ in entry.values], dtype=np.float64) * 1000)
    values, numbers = _values([value for _, value in entry.values])
    plausible = (ts_ms >= EARLIEST_TS_MS) & (ts_ms < LATEST_TS_MS)
    if not numbers.all():
        wrong = entry.values[int(np.flatnonzero(~numbers)[0])][1]
        faults.append((AnomalyKind.NOT_A_NUMBER, f"{where}: value {shown(wrong)} of {name}; expected a number"))
    if not plausible.all():
        wrong_ts = entry.values[int(np.flatnonzero(~plausible)[0])][0]
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
