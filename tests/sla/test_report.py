"""The report equals the planted data exactly, in text and in deterministic files."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from metric_names import GROUP_WRITABLE, REPLICA_LAG_BYTES, UNAVAILABLE_SECONDS_TOTAL
from sla_reports.series import series_text
from sla_reports.sources import Form, Origin
from tests.sla import one_day

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.real("java"), pytest.mark.timeout(900)]
MINUTE_MS = 60_000
LABELS = {"namespace": "default", "cluster": "c", "broker_group": "orders"}


def _series(metric: str, group: str, values: list[tuple[float, float]], **labels: str) -> dict[str, Any]:
    own = {"__name__": metric, "namespace": "default", "cluster": "c", "broker_group": group, **labels}
    return {"metric": own, "values": [[1_763_700_000 + at_seconds, str(value)] for at_seconds, value in values]}


def _export(path: Path, samples: dict[str, list[tuple[float, float]]], *more: dict[str, Any]) -> Path:
    result = [_series(GROUP_WRITABLE, group, values) for group, values in samples.items()] + list(more)
    path.write_text(json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}))
    return path


def _incident(number: int, **changes: Any) -> str:
    document = {
        "schemaVersion": 1, "id": f"default/orders/{number}", "kind": "failover", "namespace": "default", "name": "orders",
        "cluster": "c", "brokerName": "orders", "trigger": "silence", "epoch": number, "epochBefore": number - 1,
        "startedAt": f"2025-11-21T04:40:{number:02}.000Z", "detectionMilliseconds": 300.0, "durationMilliseconds": 100.0,
        "unfenced": False, "outcome": "completed", "stepsMilliseconds": {"detected": 0.0, "roleChanged": 100.0},
    }  # fmt: skip
    return json.dumps({**document, **changes})


def _partition(started_at: str, ended_at: str) -> str:
    document = {
        "schemaVersion": 3, "id": "default/orders/orders-1/NodeReachableAgain", "kind": "circumstance",
        "namespace": "default", "name": "orders", "cluster": "c", "brokerName": "orders", "brokerId": 1,
        "cause": "partition", "what": "NodeReachableAgain", "startedAt": started_at, "endedAt": ended_at,
        "pod": "orders-1",
    }  # fmt: skip
    return json.dumps(document)


def test_planted_outages_come_out_in_text_and_files(spark: Any, tmp_path: Path) -> None:
    from sla_reports.report import Request, as_text, make_report, result_line

    # 04:40:00 UTC is the first sample. orders is down from 20 to 30, more exactly in the log, and once without a sample at 40.
    orders = [(float(second), 0.0 if 20 <= second < 30 else 1.0) for second in range(61)]
    # payments is scraped until 30, then not before 50: 20 s are unknown.
    payments = [(float(second), 1.0) for second in (*range(31), *range(50, 61))]
    rises = [(0.0, 100.0), (30.0, 109.5), (41.0, 109.9)]
    counter = _series(UNAVAILABLE_SECONDS_TOTAL, "orders", rises, cause="silence", instance="a")
    export = _export(tmp_path / "export.json", {"orders": orders, "payments": payments}, counter)
    log = tmp_path / "incidents.jsonl"
    long = {"detected": 0.0, "roleChanged": 100.0, "inSync": 9200.0}
    lines = [
        _incident(20, stepsMilliseconds=long),
        _incident(20, stepsMilliseconds=long),  # the same incident, written by a second operator pod
        _incident(40),
        _incident(45, outcome="cancelled"),
        '{"schemaVersion": 1, "id": "default/ord',
    ]
    log.write_text("\n".join(lines) + "\n")
    beside = tmp_path / "incidents.jsonl.circumstances"
    # The first incident began less than a minute after its end, the second more.
    beside.write_text(_partition("2025-11-21T04:39:00.000Z", "2025-11-21T04:39:30.000Z") + "\n")
    request = Request(Origin(Form.QUERY_RANGE, [export]), [log], interval_ms=1000, objective=0.99)
    report = make_report(spark, request)

    line = result_line(report)
    assert (line["verdict"], line["samples"], line["rto_p95_ms"]) == ("breached", 61 + 42 + 3, 9500.0)
    assert [(group["broker_group"], group["up_ms"], group["down_ms"]) for group in line["groups"]] == [
        ("orders", 50_101, 9_900), ("payments", 40_001, 0),
    ]  # fmt: skip
    assert [(one["trigger"], one["length_ms"]) for one in line["incidents"]] == [("silence", 9500), ("silence", 400)]
    assert [one["cause"] for one in line["incidents"]] == ["partition", "unknown"]
    assert line["unreadable_incidents"] == 1
    text = as_text(report)
    assert "default/c/orders: breached, 83.500 % (between 83.500 % and 83.500 %; down 9.900 s by incident_log" in text
    assert "default/c/payments: undecidable" in text
    assert "left out: 1 unreadable line of" in text

    first, second = (report.write(tmp_path / name) for name in ("first", "second"))
    again = make_report(spark, request).write(tmp_path / "third")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]
    files = {path.name: path for path in first}
    assert sorted(files) == [
        "groups.csv", "incidents.jsonl", "provenance.json", "report.html", "runs.parquet", "summary.json",
    ]  # fmt: skip
    document = json.loads(files["summary.json"].read_text())
    assert (document["schemaVersion"], document["verdict"]) == (2, "breached")
    assert [group["verdict"] for group in document["groups"]] == ["breached", "undecidable"]
    assert document["groups"][0]["recovery"]["dominant"] == "firstSuccess"
    incidents = [json.loads(line) for line in files["incidents.jsonl"].read_text().splitlines()]
    assert [(one["endMs"] - one["startMs"], one["seenByGauge"]) for one in incidents] == [(9500, True), (400, False)]
    rows = list(csv.DictReader(files["groups.csv"].read_text().splitlines()))
    assert [row["write.downMs"] for row in rows] == ["9900", "0"]
    provenance = json.loads(files["provenance.json"].read_text())
    assert [one["name"] for one in provenance["inputs"]] == [
        "export.json", "incidents.jsonl", "incidents.jsonl.circumstances",
    ]  # fmt: skip
    assert provenance["quality"]["unreadable_incidents"] == 1
    assert str(tmp_path) not in "".join(path.read_text() for name, path in files.items() if name != "runs.parquet")


def test_an_export_without_series_of_ours_is_named(spark: Any, tmp_path: Path) -> None:
    from sla_reports.readers.samples import ExportFormatError
    from sla_reports.report import Request, make_report

    (tmp_path / "incidents.jsonl").write_text(_incident(1) + "\n")
    export = _export(tmp_path / "export.json", {})
    with pytest.raises(ExportFormatError, match=r"export\.json: holds no sample"):
        make_report(spark, Request(Origin(Form.QUERY_RANGE, [export]), [tmp_path / "incidents.jsonl"]))


def test_what_is_missing_at_the_end_is_unknown_unless_the_period_still_runs(spark: Any, tmp_path: Path) -> None:
    from sla_reports.measures.periods import PeriodError, instant_of, window_of
    from sla_reports.report import Request, make_report

    # From an hour before the day's begin until noon.
    begin = instant_of("2025-11-20T23:00:00Z") / 1000 - 1_763_700_000
    up = [(begin + 60 * minute, 1.0) for minute in range(13 * 60)]
    export = _export(tmp_path / "export.json", {"orders": up})
    (tmp_path / "incidents.jsonl").write_text("")
    day = window_of("2025-11-21", "UTC")
    request: dict[str, Any] = {
        "origin": Origin(Form.QUERY_RANGE, [export]),
        "incident_logs": [tmp_path / "incidents.jsonl"],
        "window": day,
        "interval_ms": 60_000,
    }
    [whole] = make_report(spark, Request(**request)).summary.groups
    assert (whole.verdict.value, round(whole.availability.coverage, 3)) == ("undecidable", 0.499)
    noon = instant_of("2025-11-21T12:00:00Z")
    [running] = make_report(spark, Request(**request, until_ms=noon)).summary.groups
    assert (running.verdict.value, running.availability.coverage) == ("met", 1.0)
    with pytest.raises(PeriodError, match="until: lies before the period"):
        make_report(spark, Request(**request, until_ms=day.start_ms))


def _samples() -> list[tuple[str, dict[str, str], int, float]]:
    """Return a day scraped every minute: down from 05:00 to 05:10; slaves lag by 100 and 700, at noon by 900 and 4000 bytes."""
    found = []
    for minute in range(24 * 60):
        at_ms = one_day.START_MS + minute * MINUTE_MS
        found.append((GROUP_WRITABLE, LABELS, at_ms, 0.0 if 300 <= minute < 310 else 1.0))
        lags = (0.0, 900.0, 4000.0) if minute == 720 else (0.0, 100.0, 700.0)
        # At one o'clock only the master runs.
        for broker_id, lag in list(enumerate(lags))[: 1 if minute == 60 else 3]:
            found.append((REPLICA_LAG_BYTES, {**LABELS, "broker_id": str(broker_id)}, at_ms, lag))
    return found


def _openmetrics(path: Path) -> Path:
    lines = [f"{series_text(metric, labels)} {value} {at_ms / 1000}" for metric, labels, at_ms, value in _samples()]
    path.write_text("\n".join([*lines, "# EOF\n"]))
    return path


def _query_range(path: Path) -> Path:
    series: dict[str, dict[str, Any]] = {}
    for metric, labels, at_ms, value in _samples():
        whole = {"__name__": metric, **labels}
        series.setdefault(str(whole), {"metric": whole, "values": []})["values"].append([at_ms / 1000, str(value)])
    answer = {"status": "success", "data": {"resultType": "matrix", "result": list(series.values())}}
    path.write_text(json.dumps(answer))
    return path


def _sla(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "brokergroup_operator.cli.main", "sla", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)


def test_a_report_is_the_same_from_every_form_and_tells_the_lag(spark: Any, tmp_path: Path) -> None:
    from sla_reports.report import Request, make_report

    (tmp_path / "log.jsonl").write_text("")
    told = []
    for origin in (
        Origin(Form.OPENMETRICS, [_openmetrics(tmp_path / "day.om")]),
        Origin(Form.QUERY_RANGE, [_query_range(tmp_path / "day.json")]),
    ):
        report = make_report(spark, Request(origin, [tmp_path / "log.jsonl"], window=one_day.DAY))
        [figures] = report.summary.groups
        assert figures.exposure.most_behind_bytes == 900
        assert figures.availability.down_ms == 10 * MINUTE_MS
        assert report.reduced.quality.samples == 24 * 60
        told.append(report.summary)
    assert told[0] == told[1]


def test_days_are_kept_as_runs_and_reported_on(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text("")
    export, store = _openmetrics(tmp_path / "day.om"), tmp_path / "runs"
    # One series of another application, with two samples.
    foreign = "".join(f'up{{job="x"}} 1 {one_day.START_MS // 1000 + second}\n' for second in (0, 60))
    export.write_text(foreign + export.read_text())
    kept = _sla("backfill", "--from", "openmetrics", "--export", str(export), "--store", str(store))
    assert kept.returncode == 0, kept.stderr
    assert json.loads(kept.stdout.splitlines()[-1]) == {
        "days": ["2025-11-01"], "replaced": [], "logged": [], "samples": 24 * 60, "foreign_series": 1, "late": 0, "missing": 0,
    }  # fmt: skip
    told = _sla(
        "report", "--from", "runs", "--export", str(store), "--incidents", str(tmp_path / "log.jsonl"),
        "--period", "2025-11-01", "--objective", "99.9", "--out", str(tmp_path / "{period}"),
    )  # fmt: skip
    assert told.returncode == 2, told.stderr
    result = json.loads(told.stdout.splitlines()[-1])
    assert [one["down_ms"] for one in result["groups"]] == [10 * MINUTE_MS]
    assert "<svg" in (tmp_path / "2025-11-01" / "report.html").read_text()
    explained = _sla("explain", "orders", result["incidents"][0]["group"], "--report", str(tmp_path / "2025-11-01"))
    assert explained.returncode == 1
    assert "default/c/orders@1761973200000" in explained.stderr
