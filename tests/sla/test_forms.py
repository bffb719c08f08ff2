"""The same samples in each form of `--from`, by the command line: all reports are equal to the planted month."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sla_reports.sources import Form, Origin, origin_of
from tests.sla import one_day
from tests.sla.planted import exports
from tests.sla.planted.exports import FILES
from tests.sla.planted.month import Month, Planted, plant

ROOT = Path(__file__).resolve().parents[2]
PERIOD = "2025-11-01"
MONTH = Month(groups=2, start_ms=one_day.DAY.start_ms, end_ms=one_day.DAY.end_ms, step_ms=60_000, incidents_per_group=3)


def _written(planted: Planted, folder: Path) -> None:
    exports.write_openmetrics(planted, folder / FILES[Form.OPENMETRICS])
    exports.write_victoriametrics(planted, folder / FILES[Form.VICTORIAMETRICS])
    exports.write_incident_log(planted, folder / "incidents.jsonl")
    exports.backfill(folder / FILES[Form.OPENMETRICS], folder / "prometheus" / "data")
    exports.dump(folder / "prometheus" / "data", folder / FILES[Form.TSDB_DUMP])


def _reported(folder: Path, form: Form) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    report = folder / "reports" / form.value
    incidents = [json.loads(line) for line in (report / "incidents.jsonl").read_text().splitlines()]
    return json.loads((report / "summary.json").read_text()), incidents


@pytest.mark.real("java", "prometheus")
@pytest.mark.timeout(1500)
def test_every_form_by_the_command_line_is_one_report(tmp_path: Path) -> None:
    planted = plant(MONTH)
    _written(planted, tmp_path)
    server = exports.serve(tmp_path / "prometheus")
    try:
        exports.write_answers(server, planted, tmp_path / FILES[Form.QUERY_RANGE])
        command = [sys.executable, "-m", "tests.sla.planted.exports", str(tmp_path), server.url, PERIOD]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1400, cwd=ROOT)
    finally:
        server.process.stop()
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told.keys() == set(Form) - {Form.RUNS}, "runs are what `backfill` keeps, see test_report.py"
    lines = {form: json.loads(line) for form, line in told.items()}
    # The export has only the operator's series. A lake counts no other series.
    foreign = {form: line.pop("foreign_series") for form, line in lines.items()}
    assert foreign == dict.fromkeys(foreign, 0) | {Form.LAKE: None}
    assert all(line == lines[Form.HTTP] for line in lines.values())
    summary, incidents = _reported(tmp_path, Form.HTTP)
    assert sorted((one["brokerGroup"], one["startMs"], one["endMs"]) for one in incidents) == sorted(
        (one.group, one.fault_ms, one.in_sync_ms) for one in planted.incidents
    )
    for form in FILES:
        assert _reported(tmp_path, form) == (summary, incidents), form


@pytest.mark.parametrize("form", [Form.OPENMETRICS, Form.LAKE])
def test_a_task_elsewhere_is_told_whole_paths(form: Form, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor has its own working folder."""
    monkeypatch.chdir(tmp_path)
    assert origin_of(form, [Path("day")], None).paths == (tmp_path / "day",)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://user:secret@[fd00::9]:9090/select", "http://[fd00::9]:9090/select"),
        ("https://[::1]/", "https://[::1]"),
        ("http://user:secret@prometheus:9090", "http://prometheus:9090"),
        ("http://prometheus", "http://prometheus"),
    ],
)
def test_a_server_is_shown_with_the_brackets_of_its_address_and_without_a_password(url: str, shown: str) -> None:
    assert Origin(Form.HTTP, url=url).shown_url == shown
