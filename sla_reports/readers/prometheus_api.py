"""Asks a Prometheus server over HTTP for raw samples.

An instant query with a range selector (`metric[86400000ms]` at `time=end`) answers the scrapes as they were, without the 11,000
points limit and the five minutes look-back of a range query. The interval is closed at both ends in Prometheus 2 and open at
the left in Prometheus 3, so we ask for a millisecond more and clip to [start, end) ourselves: both then answer the same.

A server that answers in part (Thanos, Mimir: `warnings`) is an error. A server that finds the range too large is asked for its
halves.
"""

import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from sla_reports.readers.contract import ExportFormatError
from sla_reports.readers.matrix import decode

_ATTEMPTS: Final = 3
_PAUSE_SECONDS: Final = 0.5
_TOO_LARGE: Final = ("too many samples", "exceeds the limit", "exceeded the limit")
_TRANSIENT: Final = (502, 503, 504, 429)


class ServerError(Exception):
    """The server can't be asked or refuses; the message names the server and the query."""


@dataclass(frozen=True, slots=True)
class Server:
    """Where to ask, and how long to wait for an answer."""

    url: str
    timeout_seconds: float = 120.0
    bearer_token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ServerError(f"url: {self.url!r} is no address; expected http://host:port or https://host:port")

    def samples(self, selector: str, start_ms: int, end_ms: int) -> Iterator[pa.RecordBatch]:
        """The samples of `selector` in [start, end). Raises ServerError, or ExportFormatError for an answer in part."""
        if end_ms <= start_ms:
            return
        query = f"{selector}[{end_ms - start_ms}ms]"
        try:
            content = self._post("query", self._form(query, end_ms - 1))
        except _TooLargeError as error:
            middle_ms = (start_ms + end_ms) // 2
            if middle_ms == start_ms:
                raise ServerError(
                    f"server {self.url}: {query}: {error}; expected fewer series: use more shards"
                ) from error
            yield from self.samples(selector, start_ms, middle_ms)
            yield from self.samples(selector, middle_ms, end_ms)
            return
        samples, anomalies = decode(content, f"server {self.url}, {query}")
        if anomalies:
            raise anomalies[0].as_error()
        for columns in samples:
            yield columns.where((columns.ts_ms >= start_ms) & (columns.ts_ms < end_ms)).rows()

    def label_values(self, label: str, selector: str, start_ms: int, end_ms: int) -> list[str]:
        """The values a label has in these series in this time."""
        form = {"match[]": selector, "start": _seconds(start_ms), "end": _seconds(end_ms)}
        path = f"label/{urllib.parse.quote(label, safe='')}/values?{urllib.parse.urlencode(form)}"
        answer = json.loads(self._post(path, None))
        if answer.get("status") != "success" or not isinstance(answer.get("data"), list) or answer.get("warnings"):
            raise ExportFormatError(f"server {self.url}: values of label {label}: {str(answer)[:300]}; expected a list")
        values: list[str] = answer["data"]
        return values

    def _form(self, query: str, at_ms: int) -> dict[str, str]:
        # The last one is Thanos's: rather no answer than one in part. Prometheus passes over it.
        timeout = f"{self.timeout_seconds:.0f}s"
        return {"query": query, "time": _seconds(at_ms), "timeout": timeout, "partial_response": "false"}

    def _post(self, path: str, form: dict[str, Any] | None) -> bytes:
        """POST, so that long matchers fit; a GET where there is no form. Tries again what may pass."""
        data = None if form is None else urllib.parse.urlencode(form).encode()
        headers = {"Authorization": f"Bearer {self.bearer_token}"} if self.bearer_token else {}
        url = f"{self.url.rstrip('/')}/api/v1/{path}"
        request = urllib.request.Request(url, data=data, headers=headers)  # noqa: S310 - checked in __post_init__
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                with urllib.request.urlopen(request, timeout=self.timeout_seconds) as response:  # noqa: S310
                    content: bytes = response.read()
                    return content
            except urllib.error.HTTPError as error:
                said = error.read(2000).decode(errors="replace")
                if any(mark in said for mark in _TOO_LARGE):
                    raise _TooLargeError(said[:300]) from error
                if error.code not in _TRANSIENT or attempt == _ATTEMPTS:
                    raise ServerError(f"server {url}: HTTP {error.code}: {said[:300]}") from error
            except (OSError, http.client.HTTPException) as error:
                if attempt == _ATTEMPTS:
                    raise ServerError(f"server {url}: {error} ({_ATTEMPTS} attempts)") from error
            time.sleep(_PAUSE_SECONDS * attempt)
        raise AssertionError("unreachable")


class _TooLargeError(Exception):
    """The server would have to load more samples than it may."""


def _seconds(ms: int) -> str:
    return f"{ms // 1000}.{ms % 1000:03d}"
