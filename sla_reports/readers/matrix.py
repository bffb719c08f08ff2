"""Takes Prometheus's own answer apart: `{"status": "success", "data": {"resultType": "matrix", "result": [...]}}`.

The answer of a range query and that of an instant query with a range selector have this form. Timestamps are seconds with three
decimals, values are texts.
"""

from typing import Final

import msgspec
import numpy as np
import pyarrow as pa

from sla_reports.readers.contract import EARLIEST_TS_MS, LATEST_TS_MS, Anomaly, AnomalyKind
from sla_reports.readers.text_samples import sample_batch, shown
from sla_reports.series import SeriesFormatError, series_text


class _Entry(msgspec.Struct):
    metric: dict[str, str]
    values: list[tuple[float, str]] = []
    histograms: list[msgspec.Raw] = []


class _Data(msgspec.Struct):
    resultType: str  # noqa: N815 - Prometheus's name
    result: msgspec.Raw


class Answer(msgspec.Struct):
    """Any answer of the HTTP API."""

    status: str
    data: _Data | None = None
    errorType: str = ""  # noqa: N815 - Prometheus's name
    error: str = ""
    warnings: list[str] = []


_ANSWER: Final = msgspec.json.Decoder(Answer)
_ENTRIES: Final = msgspec.json.Decoder(list[_Entry])


def decode(content: bytes, source: str) -> tuple[list[pa.RecordBatch], list[Anomaly]]:
    """The samples of one answer, and what is none; `source` names the answer in an anomaly."""
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
    batches: list[pa.RecordBatch] = []
    anomalies: list[Anomaly] = []
    for index, entry in enumerate(entries):
        batch, found = _samples(entry, f"data.result[{index}]")
        batches += [batch] if batch is not None and len(batch) else []
        anomalies += [Anomaly(source, 0, kind, detail) for kind, detail in found]
    if answer.warnings:
        detail = f"the server warns: {'; '.join(answer.warnings)}; expected all samples"
        return [], [*anomalies, Anomaly(source, 0, AnomalyKind.PARTIAL_ANSWER, detail)]
    return batches, anomalies


def _fault_of(answer: Answer) -> tuple[AnomalyKind, str] | None:
    if answer.status != "success":
        return (
            AnomalyKind.NOT_AN_ANSWER,
            f"status is {answer.status!r}: {answer.errorType} {answer.error}; expected 'success'",
        )
    if answer.data is None or answer.data.resultType != "matrix":
        kind = None if answer.data is None else answer.data.resultType
        return AnomalyKind.NOT_AN_ANSWER, f"data.resultType is {kind!r}; expected 'matrix' (a range of samples)"
    return None


def _samples(entry: _Entry, where: str) -> tuple[pa.RecordBatch | None, list[tuple[AnomalyKind, str]]]:
    labels = dict(entry.metric)
    try:
        name = series_text(labels.pop("__name__", ""), labels)
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
    if not good.all():
        ts_ms, values = ts_ms[good], values[good]
    series = pa.array([name], pa.string()).take(pa.array(np.zeros(len(ts_ms), dtype=np.int32)))
    return sample_batch(series, pa.array(ts_ms.astype(np.int64)), pa.array(values)), faults


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
