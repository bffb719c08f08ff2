"""An hour of the real system with failovers: the SLA report agrees with the operator's own records and with clients.

    python -m tests.sla.real_hour [--minutes 60] [--folder FOLDER] [--again]

The real operator runs three groups of Python replicas on the embedded Kubernetes API (`hour_stage.py`); a real Prometheus
scrapes it; clients send all the time; masters are killed, frozen, moved and restarted. Then `brokergroup sla report` reads the
hour by several readers, and each report is compared with the operator's log, record, status and counters, and the clients' gaps:

- times of a complete entry are the log's, to the millisecond; so is each step;
- each epoch that began in the record is one incident, and each incident has an existing epoch;
- the operator's counters are the sums of its log's entries;
- an incomplete entry (a long outage) has its edges from the gauge: the clients' gap lies within the stated error;
- outside of incidents no client waited for longer than a retry, and within one none got an answer.

The operator's JSON lines are read here, not by the package under test. The last line is one JSON object; the exit code is 1 if
there is a difference. `--folder` keeps all files, `--again` repeats a kept hour's reports. Three minutes have each fault once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime as dt
import json
import logging
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer.testing import CliRunner

from brokergroup_operator.cli.main import app
from sla_reports.sources import READ_METRICS
from tests.real.parts.prometheus import start_prometheus
from tests.sla.hour_stage import GROUPS, Evidence, GroupEvidence, Span, plan_of, play
from tests.sla.planted import exports

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.real.parts.prometheus import Prometheus

_EVIDENCE = "evidence.json"


def run(minutes: float, folder: Path) -> Evidence:
    """Run the hour; its files are in the folder."""

    def at_end(prometheus: Prometheus, evidence: Evidence) -> None:
        take_exports(prometheus, evidence, folder)
        evidence.write(folder / _EVIDENCE)

    return asyncio.run(play(folder, plan_of(minutes), at_end))


def judge(folder: Path, evidence: Evidence) -> dict[str, Any]:
    """Make reports of the folder's files, and return the result line."""
    log = [json.loads(line) for line in (folder / "house" / "operator-incidents.jsonl").read_text().splitlines()]
    with contextlib.ExitStack() as open_server:
        prometheus = open_server.enter_context(_served(folder / "prometheus"))
        reports = make_reports(prometheus, evidence, folder)
    wrong = system_differences(evidence, log)
    for told in reports:
        wrong += differences(told, log, evidence)
    for text in wrong:
        print(f"mismatch: {text}", flush=True)
    return result_of(evidence, log, reports, wrong)


def result_of(
    evidence: Evidence, log: list[dict[str, Any]], reports: list[Told], wrong: list[str]
) -> dict[str, Any]:  # fmt: skip
    """Return the last line."""
    gaps = [gap for group in evidence.groups.values() for gap in gaps_of(group, evidence)]
    caused: dict[str, int] = {}
    for stroke in evidence.strokes:
        caused[stroke.kind] = caused.get(stroke.kind, 0) + 1
    rto = reports[0].summary["recovery"]["rto"]
    return {
        "minutes": round((evidence.ended_ms - evidence.began_ms) / 60_000, 1), "groups": len(GROUPS),
        "failovers_caused": caused, "incidents_recorded": sum(line["outcome"] != "cancelled" for line in log),
        "incidents_reported": len(reports[0].incidents),
        "of_them_by_gauge_only": sum(one["source"] == "gauge" for one in reports[0].incidents),
        "mismatches": len(wrong),
        "readers": [
            {"reader": told.reader, "incidents": len(told.incidents), "wall_s": told.wall_s} for told in reports
        ],
        "client_gaps": len(gaps), "client_gap_ms": sum(gap.end_ms - gap.start_ms for gap in gaps),
        "acknowledged": sum(len(group.acks_ms) for group in evidence.groups.values()),
        "down_ms": {one["brokerGroup"]: one["write"]["downMs"] for one in reports[0].summary["groups"]},
        "rto_ms": {name: rto[name] for name in ("n", "p50Ms", "p95Ms", "maxMs")},
        "client_stalls": len(evidence.stalls),
    }  # fmt: skip


@contextlib.contextmanager
def _served(folder: Path) -> Iterator[Prometheus]:
    """Restart the hour's Prometheus over its data, without scrapes."""
    server = start_prometheus(folder, targets=[], arguments=["--storage.tsdb.retention.time=400d"])
    try:
        yield server
    finally:
        server.process.stop()


# Two clocks of one machine, rounded to milliseconds at both ends.
_LOG_ERROR_MS = 1
# From the last heartbeat to the fault, and from the first acknowledgement to the operator's news of a set in sync.
_HEARD_MS = 2_000
_GAUGE_ONLY = {"slavesFrozen"}
# `query_range` answers on its own grid: each of its times is up to one step later than the scrape.
RESAMPLED = "query_range (15 s grid)"


def gaps_of(group: GroupEvidence, evidence: Evidence) -> list[Span]:
    """Return spans in which a client waited for longer than a retry while its own process ran."""
    return [
        Span(before, after)
        for before, after in pairwise(group.acks_ms)
        if after - before - _stalled_ms(before, after, evidence.stalls) > evidence.retry_ms
    ]


def differences(told: Told, log: Sequence[dict[str, Any]], evidence: Evidence) -> list[str]:
    """Return one report's differences."""
    wrong = []
    for name, group in evidence.groups.items():
        lines = [line for line in log if line["brokerName"] == name and line["outcome"] != "cancelled"]
        incidents = [one for one in told.incidents if one["brokerGroup"] == name]
        [figures] = [one for one in told.summary["groups"] if one["brokerGroup"] == name]
        checks = [
            *_log_differences(lines, incidents),
            *_epoch_differences(group, lines, incidents),
            *_counter_differences(group, lines, incidents, figures, evidence),
            *_gauge_differences(name, incidents, evidence, told.slack_ms),
            *_client_differences(group, incidents, evidence, told.slack_ms),
            *_time_differences(incidents, figures, evidence),
        ]
        wrong += [f"{told.reader}: {name}: {text}" for text in checks]
    return wrong


def system_differences(evidence: Evidence, log: Sequence[dict[str, Any]]) -> list[str]:
    """Return faults of the system itself, and contradictions between its parts: then no report can be right."""
    wrong = []
    for name, group in evidence.groups.items():
        wrong += [f"{name}: {text}" for text in group.violations]
        wrong += [f"{name}: acknowledged and lost: {group.lost}"] if group.lost else []
        lines = [line for line in log if line["brokerName"] == name]
        # The status keeps the last failovers, to the second.
        begun = {line["startedAt"][:19] for line in lines if line["kind"] == "failover"}
        shown = {str(one["startedAt"])[:19] for one in group.failovers}
        wrong += [f"{name}: in status and not in the log: {one}" for one in sorted(shown - begun)]
    return wrong


def _log_differences(lines: Sequence[dict[str, Any]], incidents: Sequence[dict[str, Any]]) -> Iterator[str]:
    told = {one["id"]: one for one in incidents if one["source"] == "incident_log"}
    wholes = attempts_joined(lines)
    for attempts in wholes:
        first, last = attempts[0], attempts[-1]
        one = told.pop(first["id"], None)
        if one is None:
            yield f"logged and not reported: {first['id']}"
            continue
        start_ms = started_ms(first) - first.get("detectionMilliseconds", 0.0)
        if abs(one["startMs"] - start_ms) > _LOG_ERROR_MS:
            yield f"{first['id']}: began {one['startMs']}, in the log {start_ms}"
        if len(attempts) == 1 and one["stepsMs"] != first["stepsMilliseconds"]:
            yield f"{first['id']}: steps {one['stepsMs']}, in the log {first['stepsMilliseconds']}"
        if is_whole(last):
            end_ms = started_ms(last) + last["stepsMilliseconds"]["inSync"]
            if one["endMs"] is None or abs(one["endMs"] - end_ms) > _LOG_ERROR_MS:
                yield f"{first['id']}: ended {one['endMs']}, in the log {end_ms}"
            if one["errorMs"] > _LOG_ERROR_MS and "detectionMilliseconds" in first:
                yield f"{first['id']}: error {one['errorMs']} ms although the log has both edges"
    yield from (f"reported and not logged: {one}" for one in told)


def attempts_joined(lines: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Join attempts at one loss (first without a candidate, then with one, before a master served) to one outage."""
    found: list[list[dict[str, Any]]] = []
    for line in sorted(lines, key=started_ms):
        last = found[-1][-1] if found else None
        if last and not is_ended(last) and line["epochBefore"] - last["epochBefore"] in _epochs_without_master(last):
            found[-1].append(line)
        else:
            found.append([line])
    return found


def _epochs_without_master(line: dict[str, Any]) -> tuple[int, ...]:
    return (0, 1) if line["outcome"] == "noEligibleReplica" else (0,)


def is_ended(line: dict[str, Any]) -> bool:
    """Whether the change of master ended."""
    return bool(line["outcome"] == "completed")


def is_whole(line: dict[str, Any]) -> bool:
    """Whether the log has the time from which writes were acknowledged again."""
    return is_ended(line) and "inSync" in line["stepsMilliseconds"]


def started_ms(line: dict[str, Any]) -> float:
    """Return the time of the detection."""
    return dt.datetime.fromisoformat(line["startedAt"]).timestamp() * 1000


def _epoch_differences(
    group: GroupEvidence, lines: Sequence[dict[str, Any]], incidents: Sequence[dict[str, Any]]
) -> Iterator[str]:  # fmt: skip
    """Check that each epoch of the record belongs to one incident: with an election, or without a candidate."""
    covered: list[int] = []
    reported = {one["id"] for one in incidents}
    for attempts in attempts_joined(lines):
        if attempts[0]["id"] not in reported:
            continue  # reported above
        for line in attempts:
            covered += [line["epoch"]] if "epoch" in line else []
            covered += [line["epochBefore"] + 1] if line["outcome"] == "noEligibleReplica" else []
    begun = set(group.epochs)
    yield from (f"epoch {epoch} has {covered.count(epoch)} incidents" for epoch in begun if covered.count(epoch) > 1)
    yield from (f"epoch {epoch} is reported and never was" for epoch in sorted(set(covered) - begun))
    yield from (f"epoch {epoch} began and is not reported" for epoch in sorted(begun - set(covered)))


def _counter_differences(
    group: GroupEvidence, lines: Sequence[dict[str, Any]], incidents: Sequence[dict[str, Any]],
    figures: dict[str, Any], evidence: Evidence,
) -> Iterator[str]:  # fmt: skip
    by_outcome: dict[str, int] = {}
    for line in lines:
        by_outcome[line["outcome"]] = by_outcome.get(line["outcome"], 0) + 1
    counted = {name: count for name, count in group.failovers_by_outcome.items() if name != "cancelled"}
    if counted != by_outcome:
        yield f"the operator counted {counted}, and its log holds {by_outcome}"
    logged_ms = sum(max(line["stepsMilliseconds"].values()) + line.get("detectionMilliseconds", 0.0) for line in lines)
    if abs(logged_ms - group.unavailable_seconds * 1000) > 1 + len(lines):
        yield f"the operator counted {group.unavailable_seconds * 1000:.0f} ms, its log tells {logged_ms:.0f} ms"
    counter_ms = figures["counterMs"]
    if counter_ms is None or abs(counter_ms - group.unavailable_seconds * 1000) > _LOG_ERROR_MS:
        yield f"counterMs {counter_ms}, the operator's counter {group.unavailable_seconds * 1000:.0f} ms"


def _gauge_differences(
    name: str, incidents: Sequence[dict[str, Any]], evidence: Evidence, slack_ms: int
) -> Iterator[str]:
    """Check that outages seen only by the gauge are exactly the faults without a change of master."""
    only = [one for one in incidents if one["source"] == "gauge"]
    strokes = [one for one in evidence.strokes if one.group == name and one.kind in _GAUGE_ONLY]
    for stroke in strokes:
        near = [one for one in only if one["startMs"] < stroke.whole_ms + evidence.scrape_ms + slack_ms
                and (one["endMs"] or evidence.ended_ms) > stroke.began_ms]  # fmt: skip
        if len(near) != 1:
            yield f"{stroke.kind} at {stroke.began_ms}: {len(near)} outages by the gauge alone"
    for one in only:
        if not any(stroke.began_ms <= one["startMs"] for stroke in strokes):
            yield f"only the gauge saw an outage at {one['startMs']}, and no fault was injected before it"


def _client_differences(
    group: GroupEvidence, incidents: Sequence[dict[str, Any]], evidence: Evidence, slack_ms: int
) -> Iterator[str]:
    outages = [(one["startMs"], one["endMs"] or evidence.ended_ms, one["errorMs"] + slack_ms) for one in incidents]
    for gap in gaps_of(group, evidence):
        if not any(start - error <= gap.end_ms and end + error >= gap.start_ms for start, end, error in outages):
            yield f"a client waited from {gap.start_ms} for {gap.end_ms - gap.start_ms} ms, and no incident says so"
    for start, end, error in outages:
        inner = (start + error + _HEARD_MS, end - error - _HEARD_MS)
        answered = [at_ms for at_ms in group.acks_ms if inner[0] < at_ms < inner[1]]
        if answered:
            yield f"{len(answered)} sends were acknowledged in the outage {start} to {end}, the first at {answered[0]}"


def _time_differences(
    incidents: Sequence[dict[str, Any]], figures: dict[str, Any], evidence: Evidence
) -> Iterator[str]:
    """Check that downtime equals the incidents, and the RTO that of the log's unplanned ones."""
    spans = sorted((one["startMs"], one["endMs"] or evidence.ended_ms) for one in incidents)
    down_ms, until_ms = 0, 0
    for start, end in spans:
        down_ms += max(0, end - max(start, until_ms))
        until_ms = max(until_ms, end)
    told_ms = figures["write"]["downMs"]
    disputed_ms = figures["write"]["disputedMs"]
    if figures["write"]["source"] != "counter" and not down_ms - disputed_ms <= told_ms <= down_ms:
        yield f"down {told_ms} ms, its incidents cover {down_ms} ms"
    unplanned = [one for one in incidents if one["kind"] and not one["planned"]]
    longest = max((one["endMs"] - one["startMs"] for one in unplanned if one["endMs"]), default=None)
    rto = figures["recovery"]["rto"]
    if (rto["n"], rto["maxMs"]) != (len(unplanned), longest):
        yield f"RTO of {rto['n']} incidents, longest {rto['maxMs']} ms; there were {len(unplanned)}, {longest} ms"
    detections = [one["detectionMs"] for one in unplanned if one["detectionMs"] is not None]
    detect = figures["recovery"]["stages"]["detect"]
    if (detect["n"], detect["maxMs"]) != (len(detections), max(detections, default=None)):
        yield f"stage detect: {detect}; in the log {sorted(detections)}"


def _stalled_ms(start_ms: int, end_ms: int, stalls: Sequence[Span]) -> int:
    return sum(max(0, min(end_ms, one.end_ms) - max(start_ms, one.start_ms)) for one in stalls)


@dataclass(frozen=True)
class Told:
    """One report. `slack_ms`: the delay that a sample's time may have in the reader's input."""

    reader: str
    slack_ms: int
    summary: dict[str, Any]
    incidents: list[dict[str, Any]]
    wall_s: float


def take_exports(prometheus: Prometheus, evidence: Evidence, folder: Path) -> None:
    """From the running server: dump a snapshot of its blocks, run the CLI's own export, and a plain `query_range`."""
    # The export ends now, on a busy machine long after the hour; it must still begin before the hour.
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
    """Make a report by each reader, with the operator's incident log."""
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
    """Return the shortest calendar period (UTC) that contains both times: a run may cross midnight."""
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
    """Run the CLI in this process: the first report warms the JVM for the others."""
    done = CliRunner().invoke(app, ["sla", *map(str, words)])
    if done.exit_code != 0:
        raise AssertionError(
            f"sla {' '.join(map(str, words))}: {done.exit_code}\n{done.output[-4000:]}"
        ) from done.exception


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--again", action="store_true", help="Only the reports, of a folder that was kept")
    arguments = parser.parse_args()
    # Timeouts of sends to a frozen broker are intended.
    logging.getLogger("rocketmq_remoting").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        evidence = Evidence.read(folder / _EVIDENCE) if arguments.again else run(arguments.minutes, folder)
        result = judge(folder, evidence)
    print(json.dumps(result), flush=True)
    sys.exit(1 if result["mismatches"] else 0)


if __name__ == "__main__":
    main()
