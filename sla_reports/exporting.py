"""Takes a range of samples out of a Prometheus server, as they were scraped, into a file that `sla report` reads.

The server is asked as `sla report --from http` asks it (`readers/prometheus_api.py`). What its answers lack stands in the file, in
the server's own members, so that a report of the file knows. Without pyarrow and Spark.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from sla_reports.readers.answer_marks import Marks, lacks, one_line, partial_words, refusal
from sla_reports.readers.prometheus_api import Answered, AnswerError, PartialAnswerError, Server

_MOST_WARNINGS: Final = 20


class _Series(msgspec.Struct):
    metric: dict[str, str]
    values: list[tuple[float, str]] = []
    histograms: msgspec.Raw = msgspec.Raw(b"[]")


class _Data(msgspec.Struct):
    resultType: str  # noqa: N815 - Prometheus's name
    result: list[_Series] | None = None


class _Answer(Marks):
    data: _Data | None = None


_DECODER: Final = msgspec.json.Decoder(_Answer)


@dataclass(frozen=True, slots=True)
class Exported:
    """How many samples the file holds, and what the server's answers lacked."""

    samples: int
    lacks: tuple[str, ...] = ()


def export_range(server: Server, metrics: Sequence[str], *, end_ms: int, range_ms: int, target: Path) -> Exported:
    """Write the samples of `metrics` in the `range_ms` up to `end_ms` (wall clock, not within) to `target`, as JSON.

    The file holds Prometheus's own answer form, with the series of all metrics in one list. It is written only if every
    question was answered. Raises ServerError, AnswerError.
    """
    series: dict[str, tuple[dict[str, str], dict[float, str]]] = {}
    warnings: dict[str, None] = {}
    is_partial = False
    for metric in metrics:
        for told in server.answers(metric, end_ms - range_ms, end_ms):
            answer = _checked(told, accept_partial=server.accept_partial)
            warnings.update(dict.fromkeys(one_line(one) for one in answer.warnings or ()))
            is_partial |= bool(answer.isPartial)
            for one in answer.data.result or () if answer.data else ():
                _add(series, one, told.source)
    marks: dict[str, Any] = {"warnings": list(warnings)[:_MOST_WARNINGS]} if warnings else {}
    marks |= {"isPartial": True} if is_partial else {}
    found = [{"metric": metric, "values": sorted(values.items())} for metric, values in series.values() if values]
    _write(target, {"status": "success", **marks, "data": {"resultType": "matrix", "result": found}})
    missing = lacks(Marks(warnings=list(warnings), isPartial=is_partial))
    return Exported(sum(len(one["values"]) for one in found), tuple(missing))


def _checked(told: Answered, *, accept_partial: bool) -> _Answer:
    try:
        answer = _DECODER.decode(told.content)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise AnswerError(f"{told.source}: {error}; expected a Prometheus answer of type matrix") from error
    if fault := refusal(answer):
        raise AnswerError(f"{told.source}: {fault}")
    if answer.data is None or answer.data.resultType != "matrix":
        kind = answer.data.resultType if answer.data else None
        raise AnswerError(f"{told.source}: data.resultType is {kind!r}; expected 'matrix' (a range of samples)")
    if (missing := lacks(answer)) and not accept_partial:
        raise PartialAnswerError(f"{told.source}: partial_answer: {partial_words(missing)}")
    return answer


def _add(series: dict[str, tuple[dict[str, str], dict[float, str]]], one: _Series, source: str) -> None:
    if bytes(one.histograms) not in {b"[]", b"null"}:
        labels = ", ".join(f'{name}="{value}"' for name, value in sorted(one.metric.items()))
        raise AnswerError(f"{source}: {{{labels}}} is a native histogram; expected numbers")
    # Halves of a range have the same series, and a sample at their edge in both.
    _, values = series.setdefault(str(sorted(one.metric.items())), (one.metric, {}))
    values.update(one.values)


def _write(target: Path, document: dict[str, Any]) -> None:
    """Beside its place and moved there when it is whole."""
    partial = target.with_name(f".{target.name}.partial")
    try:
        partial.write_bytes(msgspec.json.encode(document))
        partial.replace(target)
    except OSError as error:
        raise OutputError(f"out: {target}: {error.strerror}; expected a file that can be written") from error


class OutputError(Exception):
    """The file cannot be written."""
