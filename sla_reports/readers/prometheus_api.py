"""Asks a Prometheus server over HTTP for raw samples.

An instant query with a range selector (`metric[86400000ms]` at `time=end`) answers the scrapes as they were, without the 11,000
points limit and the five minutes look-back of a range query. The interval is closed at both ends in Prometheus 2 and open at
the left in Prometheus 3, so we ask for a millisecond more and clip to [start, end) ourselves: both then answer the same.

Thanos and VictoriaMetrics are asked for no answer rather than one in part; with `accept_partial` for what they have, and the
answer's marks say what is missing. A server that finds the range too large is asked for its halves.
"""

import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from sla_reports.connection import NO_OPTIONS, Access, address_of, credentials_of
from sla_reports.readers.answer_marks import Marks, lacks, partial_words, refusal
from sla_reports.readers.http_client import HttpClient, ServerError, TooLargeError, TooSlowError

if TYPE_CHECKING:
    import pyarrow as pa

# A range that a server has no time for is halved less often than one that is too large: each try may take the whole time-out.
_MOST_SLOW_HALVINGS: Final = 6
_LEAST_RANGE_MS: Final = 1000


class AnswerError(Exception):
    """The server answered, and its answer can't be used; says why."""


class PartialAnswerError(AnswerError):
    """The server answered with a part of what it should have; the message has its own words."""


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer of the API, as it came, and the range [start, end) whose samples it holds (and a millisecond before)."""

    content: bytes
    source: str
    start_ms: int
    end_ms: int


class _Values(Marks):
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

    def answers(self, selector: str, start_ms: int, end_ms: int) -> Iterator[Answered]:
        """The answers that hold the samples of `selector` in [start, end), unread. Raises ServerError."""
        yield from self._answers(selector, start_ms, end_ms, _MOST_SLOW_HALVINGS)

    def _answers(self, selector: str, start_ms: int, end_ms: int, slow_halvings: int) -> Iterator[Answered]:
        if end_ms <= start_ms:
            return
        query = f"{selector}[{end_ms - start_ms}ms]"
        try:
            content = self._client.ask("api/v1/query", self._form(query, end_ms - 1))
        except TooLargeError as error:
            slow_halvings -= isinstance(error, TooSlowError)
            if end_ms - start_ms < 2 * _LEAST_RANGE_MS or slow_halvings < 0:
                raise ServerError(f"{error}; also asked for {query}: expected fewer series: use more shards") from error
        else:
            yield Answered(content, f"server {self.url}, {query}", start_ms, end_ms)
            return
        middle_ms = (start_ms + end_ms) // 2
        yield from self._answers(selector, start_ms, middle_ms, slow_halvings)
        yield from self._answers(selector, middle_ms, end_ms, slow_halvings)

    def samples(self, selector: str, start_ms: int, end_ms: int) -> "Iterator[pa.RecordBatch]":
        """The samples of `selector` in [start, end). Raises ServerError, or ExportFormatError for an answer in part."""
        # Not above: `sla export` needs no pyarrow.
        from sla_reports.readers.matrix import decode  # noqa: PLC0415
        from sla_reports.readers.selection import Selection, lacking_rows  # noqa: PLC0415

        for told in self.answers(selector, start_ms, end_ms):
            selection = Selection(accept_partial=self.accept_partial)
            samples, anomalies = decode(told.content, told.source, selection)
            if anomalies:
                raise anomalies[0].as_error()
            for columns in samples:
                yield columns.where((columns.ts_ms >= told.start_ms) & (columns.ts_ms < told.end_ms)).rows()
            if selection.lacks:
                yield lacking_rows(selection.lacks, told.start_ms)

    def label_values(self, label: str, selector: str, start_ms: int, end_ms: int) -> list[str]:
        """The values a label has in these series in this time. Raises ServerError, PartialAnswerError."""
        form = {"match[]": selector, "start": _seconds(start_ms), "end": _seconds(end_ms), **self._whole()}
        path = f"api/v1/label/{urllib.parse.quote(label, safe='')}/values"
        where = f"server {self.url}, values of label {label}"
        try:
            answer = msgspec.json.decode(self._client.ask(f"{path}?{urllib.parse.urlencode(form)}", None), type=_Values)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ServerError(f"{where}: {error}; expected a list") from error
        if fault := refusal(answer):
            raise ServerError(f"{where}: {fault}")
        if missing := lacks(answer):
            # Also where answers in part are accepted: a shard that is never asked for would be missing without a word.
            raise PartialAnswerError(f"{where}: {partial_words(missing)}")
        return answer.data or []

    def _form(self, query: str, at_ms: int) -> dict[str, str]:
        return {"query": query, "time": _seconds(at_ms), "timeout": f"{self._timeout_seconds:.0f}s", **self._whole()}

    def _whole(self) -> dict[str, str]:
        """Rather no answer than one in part, as VictoriaMetrics and Thanos call it. Prometheus passes over both."""
        if self.accept_partial:
            return {"partial_response": "true"}
        return {"deny_partial_response": "1", "partial_response": "false"}


def _seconds(ms: int) -> str:
    return f"{ms // 1000}.{ms % 1000:03d}"
