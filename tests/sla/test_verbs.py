"""The verbs with Spark as a person runs them: every form gives one report, days are kept as runs, and a wrong input is one line."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from metric_names import GROUP_WRITABLE, REPLICA_LAG_BYTES
from sla_reports.series import series_text
from sla_reports.sources import Form, Origin
from tests.sla import one_day

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.real("java"), pytest.mark.timeout(900)]

MINUTE_MS = 60_000
LABELS = {"namespace": "default", "cluster": "c", "broker_group": "orders"}


def _samples() -> list[tuple[str, dict[str, str], int, float]]:
    """A day scraped every minute: down from 05:00 to 05:10; the slaves lag by 100 and 700, at noon by 900 and 4000 bytes."""
    found = []
    for minute in range(24 * 60):
        at_ms = one_day.START_MS + minute * MINUTE_MS
        found.append((GROUP_WRITABLE, LABELS, at_ms, 0.0 if 300 <= minute < 310 else 1.0))
        lags = (0.0, 900.0, 4000.0) if minute == 720 else (0.0, 100.0, 700.0)
        # At one o'clock the master is there alone.
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
        "days": ["2025-11-01"], "replaced": [], "samples": 24 * 60, "foreign_series": 1, "late": 0, "missing": 0,
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
