"""Ask a Prometheus server over HTTP for raw samples, for a report or a file; without pyarrow and Spark, which `sla export` lacks.

An instant query with a range selector (`metric[86400000ms]` at `time=end`) answers the scrapes as they were, without the 11,000
points limit and the five minutes look-back of a range query. The interval is closed at both ends in Prometheus 2 and open at the
left in Prometheus 3, so we ask for a millisecond more and clip to [start, end) ourselves: both then answer the same.

Thanos and VictoriaMetrics are asked for no answer rather than one in part; with `accept_partial` for what they have, and the
answer's marks say what is missing. A server that finds the range too large is asked for its halves.
"""

import urllib.parse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from sla_reports.connection import NO_OPTIONS, Access, address_of, credentials_of
from sla_reports.readers.http_client import HttpClient, ServerError, TooLargeError, TooSlowError, one_line

if TYPE_CHECKING:
    import pyarrow as pa

_IS_PARTIAL: Final = "isPartial is true: a storage node did not answer"
# A range that a server has no time for is halved less often than one that is too large: each try may take the whole time-out.
_MOST_SLOW_HALVINGS: Final = 6
_LEAST_RANGE_MS: Final = 1000
_MOST_WARNINGS: Final = 20


class AnswerError(Exception):
    """The server answered, and its answer can't be used; says why."""


class PartialAnswerError(AnswerError):
    """The server answered with a part of what it should have; the message has its own words."""


class OutputError(Exception):
    """The file cannot be written."""


class Marks(msgspec.Struct):
    """The members of an answer beside its data.

    VictoriaMetrics marks an answer that lacks the data of a storage node by `isPartial`, Thanos and Mimir by `warnings`. Prometheus
    3's `infos` are remarks about a query and say nothing of the data.
    """

    status: str | None = None
    errorType: Any = None  # noqa: N815 - Prometheus's name
    error: Any = None
    warnings: list[str] | None = None
    isPartial: bool | None = None  # noqa: N815 - VictoriaMetrics's name


def lacks(marks: Marks) -> list[str]:
    """Return why an answer is not whole, in the server's words; empty for a whole one."""
    return [*(one_line(one) for one in marks.warnings or ()), *([_IS_PARTIAL] if marks.isPartial else [])]


def partial_words(missing: Sequence[str]) -> str:
    """Return what a message says of an answer that is not whole."""
    return f"the server warns: {one_line('; '.join(missing))}; expected all samples"


def refusal(marks: Marks) -> str | None:
    """Return what the server says instead of an answer; None if the status is success."""
    if marks.status == "success":
        return None
    if marks.status is None:
        return 'has no member status; expected an answer of the query API, as {"status": "success", "data": ...}'
    told = " ".join(one_line(str(one)) for one in (marks.errorType, marks.error) if one)
    return f"status is {marks.status!r}: {told or 'no words'}; expected 'success'"


def no_matrix(marks: Marks, result_type: str | None) -> str | None:
    """Return why an answer holds no samples; None if it is a matrix."""
    if fault := refusal(marks):
        return fault
    return (
        None
        if result_type == "matrix"
        else f"data.resultType is {result_type!r}; expected 'matrix' (a range of samples)"
    )


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer of the API, as it came, and the range [start, end) whose samples it holds (and a millisecond before)."""

    content: bytes
    source: str
    start_ms: int
    end_ms: int


class _LabelValues(Marks):
    data: list[str] | None = None


class Server:
    """Where to ask, with which credentials, and how long to wait for an answer."""

    def __init__(
        self, url: str, timeout_seconds: float = 120.0, access: Access = NO_OPTIONS, *, accept_partial: bool = False
    ) -> None:
        """Raises ConnectionOptionError."""
        address = address_of(url)
        self.url = address.url
        self.accept_partial = accept_partial
        self._timeout_seconds = timeout_seconds
        self._client = HttpClient(address, credentials_of(access, address), timeout_seconds)

    def answers(
        self, selector: str, start_ms: int, end_ms: int, *, slow_halvings: int = _MOST_SLOW_HALVINGS
    ) -> Iterator[Answered]:
        """Yield the answers that hold the samples of `selector` in [start, end), unread. Raises ServerError."""
        if end_ms <= start_ms:
            return
        query = f"{selector}[{end_ms - start_ms}ms]"
        form = {
            "query": query, "time": _seconds(end_ms - 1), "timeout": f"{self._timeout_seconds:.0f}s", **self._whole(),
        }  # fmt: skip
        try:
            content = self._client.ask("api/v1/query", form)
        except TooLargeError as error:
            slow_halvings -= isinstance(error, TooSlowError)
            if end_ms - start_ms < 2 * _LEAST_RANGE_MS or slow_halvings < 0:
                raise ServerError(f"{error}; also asked for {query}: expected fewer series: use more shards") from error
        else:
            yield Answered(content, f"server {self.url}, {query}", start_ms, end_ms)
            return
        middle_ms = (start_ms + end_ms) // 2
        yield from self.answers(selector, start_ms, middle_ms, slow_halvings=slow_halvings)
        yield from self.answers(selector, middle_ms, end_ms, slow_halvings=slow_halvings)

    def samples(self, selector: str, start_ms: int, end_ms: int) -> "Iterator[pa.RecordBatch]":
        """Yield the samples of `selector` in [start, end). Raises ServerError, or ExportFormatError for an answer in part."""
        from sla_reports.readers.json_forms import decode  # noqa: PLC0415 - imports pyarrow
        from sla_reports.readers.samples import Selection, lacking_rows  # noqa: PLC0415

        for told in self.answers(selector, start_ms, end_ms):
            selection = Selection(accept_partial=self.accept_partial)
            for columns in decode(told.content, told.source, selection):
                yield columns.where((columns.ts_ms >= told.start_ms) & (columns.ts_ms < told.end_ms)).rows()
            if selection.lacks:
                yield lacking_rows(selection.lacks, told.start_ms)

    def label_values(self, label: str, selector: str, start_ms: int, end_ms: int) -> list[str]:
        """Return the values a label has in these series in this time. Raises ServerError, PartialAnswerError."""
        form = {"match[]": selector, "start": _seconds(start_ms), "end": _seconds(end_ms), **self._whole()}
        path = f"api/v1/label/{urllib.parse.quote(label, safe='')}/values"
        where = f"server {self.url}, values of label {label}"
        content = self._client.ask(f"{path}?{urllib.parse.urlencode(form)}", None)
        try:
            answer = msgspec.json.decode(content, type=_LabelValues)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ServerError(f"{where}: {error}; expected a list") from error
        if fault := refusal(answer):
            raise ServerError(f"{where}: {fault}")
        if missing := lacks(answer):
            # Also where answers in part are accepted: a shard that is never asked for would be missing without a word.
            raise PartialAnswerError(f"{where}: {partial_words(missing)}")
        return answer.data or []

    def _whole(self) -> dict[str, str]:
        """Rather no answer than one in part, as VictoriaMetrics and Thanos call it. Prometheus passes over both."""
        if self.accept_partial:
            return {"partial_response": "true"}
        return {"deny_partial_response": "1", "partial_response": "false"}


def _seconds(ms: int) -> str:
    return f"{ms // 1000}.{ms % 1000:03d}"


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
    """Write the samples of `metrics` in the `range_ms` up to `end_ms` (not within) to `target`, in Prometheus's own answer form.

    What the answers lack stands in the file, in the server's own members, so that a report of the file knows. The file is
    written only if every question was answered. Raises ServerError, AnswerError, OutputError.
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
                if bytes(one.histograms) not in {b"[]", b"null"}:
                    labels = ", ".join(f'{name}="{value}"' for name, value in sorted(one.metric.items()))
                    raise AnswerError(f"{told.source}: {{{labels}}} is a native histogram; expected numbers")
                # Halves of a range have the same series, and a sample at their edge in both.
                _, values = series.setdefault(str(sorted(one.metric.items())), (one.metric, {}))
                values.update(one.values)
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
    if fault := no_matrix(answer, answer.data.resultType if answer.data else None):
        raise AnswerError(f"{told.source}: {fault}")
    if (missing := lacks(answer)) and not accept_partial:
        raise PartialAnswerError(f"{told.source}: partial_answer: {partial_words(missing)}")
    return answer


def _write(target: Path, document: dict[str, Any]) -> None:
    """Write the file beside its place and move it there when it is whole."""
    partial = target.with_name(f".{target.name}.partial")
    try:
        partial.write_bytes(msgspec.json.encode(document))
        partial.replace(target)
    except OSError as error:
        raise OutputError(f"out: {target}: {error.strerror}; expected a file that can be written") from error
