"""Takes a range of samples out of a Prometheus server, as they were scraped.

An instant query with a range selector (`metric[600s]` at the end of the range) answers the raw samples with their own
timestamps. `query_range` would resample them on a grid and look back five minutes, which hides short outages and invents
availability.
"""

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_TIMEOUT_SECONDS = 30.0


class ExportError(Exception):
    """The server could not be asked, or did not answer with samples."""


def export_range(server: str, metrics: Sequence[str], *, end_seconds: float, range_seconds: float, target: Path) -> int:
    """Write the samples of `metrics` in the `range_seconds` up to `end_seconds` (wall clock) to `target`, as JSON.

    The file holds Prometheus's own answer form, `{"status": "success", "data": {"resultType": "matrix", "result": [...]}}`, with
    the series of all metrics in one list. Returns how many samples it holds. Raises ExportError.
    """
    series: list[dict[str, Any]] = []
    for metric in metrics:
        series += _query(server, f"{metric}[{round(range_seconds * 1000)}ms]", end_seconds)
    answer = {"status": "success", "data": {"resultType": "matrix", "result": series}}
    target.write_text(json.dumps(answer))
    return sum(len(entry["values"]) for entry in series)


def _query(server: str, expression: str, time_seconds: float) -> list[dict[str, Any]]:
    form = urllib.parse.urlencode({"query": expression, "time": f"{time_seconds:.3f}"}).encode()
    url = f"{server.rstrip('/')}/api/v1/query"
    if not url.startswith(("http://", "https://")):
        raise ExportError(f"server: {server!r} is not an address; expected http://host:port or https://host:port")
    try:
        with urllib.request.urlopen(url, data=form, timeout=_TIMEOUT_SECONDS) as response:  # noqa: S310 - checked above
            answer = json.load(response)
    except (OSError, json.JSONDecodeError) as error:
        raise ExportError(f"server {server}: {error}") from error
    if answer.get("status") != "success" or answer.get("data", {}).get("resultType") != "matrix":
        raise ExportError(f"server {server}: expected a matrix for {expression}, got {str(answer)[:300]}")
    result: list[dict[str, Any]] = answer["data"]["result"]
    return result
