"""The same hour by several ways into `brokergroup sla report`, each through the command line as a person would do it."""

from __future__ import annotations

import datetime as dt
import json
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer.testing import CliRunner

from brokergroup_operator.cli.main import app
from sla_reports.sources import READ_METRICS
from tests.sla.planted import exports

if TYPE_CHECKING:
    from tests.real.parts.prometheus import Prometheus
    from tests.sla.hour.evidence import Evidence

ROOT = Path(__file__).resolve().parents[3]
# What `query_range` answers stands on its own grid: every time in it is up to a step later than the scrape was.
RESAMPLED = "query_range (15 s grid)"


@dataclass(frozen=True)
class Told:
    """What one report says. `slack_ms`: how much later than scraped a sample may stand in what was read."""

    reader: str
    slack_ms: int
    summary: dict[str, Any]
    incidents: list[dict[str, Any]]
    wall_s: float


def take_exports(prometheus: Prometheus, evidence: Evidence, folder: Path) -> None:
    """While the server runs: a snapshot of its blocks dumped, the CLI's own export, and a plain `query_range`."""
    # The export ends now, which on a busy machine is long after the hour; it must begin before the hour all the same.
    seconds = time.time() - evidence.began_ms / 1000 + 2 * evidence.scrape_ms / 1000
    _cli("export", "--prometheus", prometheus.url, "--range-seconds", f"{seconds:.0f}", "--out", folder / "export.json")
    name = json.loads(_ask(f"{prometheus.url}/api/v1/admin/tsdb/snapshot", {}))["data"]["name"]
    exports.dump(folder / "prometheus" / "data" / "snapshots" / name, folder / "snapshot.dump")
    query = {
        "query": f'{{__name__=~"{"|".join(READ_METRICS)}"}}', "step": f"{evidence.scrape_ms / 1000:g}",
        "start": f"{evidence.began_ms / 1000:.3f}", "end": f"{evidence.ended_ms / 1000:.3f}",
    }  # fmt: skip
    (folder / "query_range.json").write_bytes(_ask(f"{prometheus.url}/api/v1/query_range", query))


def make_reports(prometheus: Prometheus, evidence: Evidence, folder: Path) -> list[Told]:
    """A report by each reader, with the operator's incident log."""
    log = folder / "house" / "operator-incidents.jsonl"
    ways: list[tuple[str, int, list[str | Path]]] = [
        ("http", 0, ["--from", "http", "--url", prometheus.url]),
        ("tsdb-dump", 0, ["--from", "tsdb-dump", "--export", folder / "snapshot.dump"]),
        ("query-range (sla export)", 0, ["--from", "query-range", "--export", folder / "export.json"]),
        (RESAMPLED, evidence.scrape_ms, ["--from", "query-range", "--export", folder / "query_range.json"]),
    ]
    return [_report(reader, slack_ms, way, log, evidence, folder) for reader, slack_ms, way in ways]


def _report(
    reader: str, slack_ms: int, way: list[str | Path], log: Path, evidence: Evidence, folder: Path
) -> Told:  # fmt: skip
    out = folder / "reports" / reader.partition(" (")[0].replace("_", "-resampled-")
    began = time.monotonic()
    _cli(
        "report", *way, "--incidents", log, "--period", period_of(evidence.began_ms, evidence.ended_ms),
        "--until", _iso(evidence.ended_ms), "--out", out, "--no-progress",
    )  # fmt: skip
    incidents = [json.loads(line) for line in (out / "incidents.jsonl").read_text().splitlines()]
    summary = json.loads((out / "summary.json").read_text())
    print(f"report by {reader}: {time.monotonic() - began:.1f} s", flush=True)
    return Told(reader, slack_ms, summary, incidents, round(time.monotonic() - began, 1))


def period_of(began_ms: int, ended_ms: int) -> str:
    """The shortest period of the calendar (UTC) that has both in it: a run may go over midnight."""
    began, ended = (dt.datetime.fromtimestamp(at_ms / 1000, tz=dt.UTC) for at_ms in (began_ms, ended_ms))
    forms = ("%Y-%m-%d", "%G-W%V", "%Y-%m")
    found = next((began.strftime(form) for form in forms if began.strftime(form) == ended.strftime(form)), None)
    if found is None:
        raise AssertionError(f"no calendar period holds both {began} and {ended}; start again")
    return found


def _iso(at_ms: int) -> str:
    moment = dt.datetime.fromtimestamp(at_ms / 1000, tz=dt.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _ask(url: str, form: dict[str, str]) -> bytes:
    with urllib.request.urlopen(url, data=urllib.parse.urlencode(form).encode(), timeout=120) as answer:
        body: bytes = answer.read()
        return body


def _cli(*words: str | Path) -> None:
    """In this process: the JVM of the first report is warm for the others."""
    done = CliRunner().invoke(app, ["sla", *map(str, words)])
    if done.exit_code != 0:
        raise AssertionError(
            f"sla {' '.join(map(str, words))}: {done.exit_code}\n{done.output[-4000:]}"
        ) from done.exception
