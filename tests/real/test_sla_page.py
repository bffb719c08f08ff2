"""Runs the commands of docs/tasks/sla.md unchanged, on a planted month and a planted last day.

Changed is only the server's address. Files that the commands name are those of the page, or planted.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sla_reports.output.files import write_report
from tests.real.parts.prometheus import start_prometheus
from tests.sla import one_day
from tests.sla.planted import exports
from tests.sla.planted.month import HOUR_MS, OCTOBER_END_MS, OCTOBER_START_MS, Month, Planted, plant
from tests.support.page_blocks import page_blocks

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tasks" / "sla.md"
BLOCKS = page_blocks(PAGE.read_text(encoding="utf-8"))
SECONDS = 600.0
DAY_MS = 24 * HOUR_MS


def run_blocks(folder: Path, what: str, *, url: str = "") -> list[str]:
    """Run the page's blocks of this kind in the folder; what each printed."""
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    (programs / "brokergroup").write_text(f'#!/bin/sh\nexec {sys.executable} -m brokergroup_operator.cli.main "$@"\n')
    (programs / "brokergroup").chmod(0o755)
    said = []
    for block in [one for one in BLOCKS if one.how == "run" and one.what.startswith(what)]:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.commands.replace("http://prometheus:9090", url)],
            cwd=folder,
            env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        codes = {int(code) for code in re.findall(r"\d", block.what)} or {0}
        assert done.returncode in codes, f"{block.commands}\nexit code {done.returncode}\n{done.stdout}{done.stderr}"
        said.append(done.stdout)
    assert said, what
    return said


def files_of_the_page(folder: Path) -> None:
    """The manifests that the page shows, under the names that its commands have for them."""
    shown = {block.text.split(":")[0]: block.text for block in BLOCKS if block.language == "yaml"}
    (folder / "amendments.yaml").write_text(shown["exclusions"], encoding="utf-8")
    (folder / "slo").mkdir()
    (folder / "slo" / "orders.yaml").write_text(shown["apiVersion"], encoding="utf-8")


def test_what_reads_written_reports(tmp_path: Path) -> None:
    files_of_the_page(tmp_path)
    runs = one_day.all_runs()
    for month in ("2026-09", "2026-10"):
        intervals = {run.series: one_day.SCRAPE_MS for run in runs}
        write_report(tmp_path / "reports" / month, one_day.summary(), runs, intervals, {"schemaVersion": 1})
    [said] = run_blocks(tmp_path, "written reports")
    assert "observed: 3 replicas" in said
    assert "orders/3" in said
    assert "BrokerGroupBudgetBurnsFast" in (tmp_path / "burn-alerts.yaml").read_text(encoding="utf-8")


def renamed(path: Path, group: str) -> str:
    """Return the first group's planted data under this group's name."""
    return path.read_text(encoding="utf-8").replace("orders-0", group)


@pytest.mark.real("java", "prometheus")
@pytest.mark.timeout(4 * SECONDS)
def test_what_makes_reports(tmp_path: Path) -> None:
    """October, and a last day that no log of October's groups has."""
    files_of_the_page(tmp_path)
    now_ms = int(time.time() * 1000)
    data = tmp_path / "prometheus" / "data"
    log = ""
    for name, month in (
        ("orders", Month(1, OCTOBER_START_MS - DAY_MS, OCTOBER_END_MS + DAY_MS, step_ms=120_000, groups=1)),
        ("payments", Month(2, now_ms - DAY_MS - HOUR_MS, now_ms, step_ms=15_000, groups=1, incidents_per_group=3)),
    ):
        planted = plant(month)
        samples = exports.write_openmetrics(planted, tmp_path / f"{name}.om")
        samples.write_text(renamed(samples, name), encoding="utf-8")
        exports.backfill(samples, data)
        log += renamed(exports.write_incident_log(planted, tmp_path / f"{name}.jsonl"), name)
        if name == "orders":
            write_one_day(planted, tmp_path / "day.om")
    (tmp_path / "incidents.jsonl").write_text(log, encoding="utf-8")
    for_ever = ["--storage.tsdb.retention.time=100y", "--storage.tsdb.allow-overlapping-blocks"]
    server = start_prometheus(tmp_path / "prometheus", targets=[], arguments=for_ever)
    try:
        said = run_blocks(tmp_path, "prometheus and java", url=server.url)
    finally:
        server.process.stop()
    assert len(said) == 3
    for report, group in (("last-day", "payments"), ("2026-10", "orders"), ("2026-10-of-days", "orders")):
        summary = json.loads((tmp_path / "reports" / report / "summary.json").read_text(encoding="utf-8"))
        assert group in {one["brokerGroup"] for one in summary["groups"]}, report


def write_one_day(planted: Planted, path: Path) -> None:
    """The first whole day (UTC) of October."""
    begin_ms = -(-OCTOBER_START_MS // DAY_MS) * DAY_MS
    series = {}
    for name, (ts_ms, values) in planted.series.items():
        day = (ts_ms >= begin_ms) & (ts_ms < begin_ms + DAY_MS)
        series[name] = (ts_ms[day], values[day])
    exports.write_openmetrics(Planted(planted.month, series=series), path)
    path.write_text(renamed(path, "orders"), encoding="utf-8")
