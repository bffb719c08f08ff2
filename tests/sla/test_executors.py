"""spark-submit to a real standalone cluster of two workers: byte for byte the report of a laptop, and the same daily table.

Executors are processes of the workers, with their own working folders. They lack the driver's state (its working folder, its
imported modules, its session).
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sla_reports.readers import lake
from sla_reports.readers.text import read_openmetrics
from sla_reports.report import Request, make_report
from sla_reports.sources import Form, Origin, origin_of
from tests.sla import one_day
from tests.sla.planted import exports, on_executors
from tests.sla.planted.exports import FILES
from tests.sla.planted.month import Month, plant
from tests.sla.planted.standalone import WORKERS, StandaloneCluster, process_environment

PERIOD = "2025-11-01"
DAY = Month(groups=1, start_ms=one_day.DAY.start_ms, end_ms=one_day.DAY.end_ms, step_ms=60_000, incidents_per_group=3)
BREACHED = 2
# The removed lines name the files that were read.
SAME = ("summary.json", "groups.csv", "incidents.jsonl", "runs.parquet")


@pytest.mark.real("java", "prometheus")
@pytest.mark.timeout(900)
def test_executors_elsewhere_make_the_report_of_a_laptop(spark: Any, tmp_path: Path) -> None:
    planted = plant(DAY)
    day = exports.write_openmetrics(planted, tmp_path / FILES[Form.OPENMETRICS])
    log = exports.write_incident_log(planted, tmp_path / "incidents.jsonl")
    lake.write(spark, read_openmetrics(spark, [day]).frame, tmp_path / FILES[Form.LAKE])
    request = Request(
        origin_of(Form.OPENMETRICS, [day], None), [log], one_day.DAY, on_executors.OBJECTIVE_PERCENT / 100
    )
    laptop = make_report(spark, request)
    laptop.write(tmp_path / "laptop")
    exports.backfill(day, tmp_path / "prometheus" / "data")
    server = exports.serve(tmp_path / "prometheus")
    try:
        with StandaloneCluster(tmp_path / "cluster") as cluster:
            submitted = _submit(cluster, tmp_path, on_executors.__file__, server.url, PERIOD)
            words = ["backfill", "--from", "openmetrics", "--export", FILES[Form.OPENMETRICS], "--store", "runs"]
            kept = _submit(
                cluster, tmp_path, "{application}", *words, "--incidents", "incidents.jsonl", "--no-progress"
            )
    finally:
        server.process.stop()
    assert submitted.returncode == BREACHED, _without_info(submitted.stderr)
    told = [json.loads(line) for line in submitted.stdout.splitlines() if line.startswith("{")]
    assert told[0]["master"] == cluster.url
    folders = {Path(one).relative_to(tmp_path / "cluster").parts[0] for one in told[0]["folders"]}
    assert folders == {f"work-{number}" for number in range(WORKERS)}
    # spark-submit's or Spark's own settings: none of a session on a single machine.
    assert (told[0]["page"].startswith("http://127.0.0.1"), told[0]["partitions"], told[0]["tasks"]) == (
        True,
        "200",
        WORKERS,
    )
    assert told[-1]["verdict"] == "breached"
    for form in on_executors.FORMS:
        for name in SAME:
            ours, theirs = tmp_path / "laptop" / name, tmp_path / "executors" / form.value / name
            assert ours.read_bytes() == theirs.read_bytes(), (form, name)
    assert kept.returncode == 0, _without_info(kept.stderr)
    assert PERIOD in json.loads(kept.stdout.splitlines()[-1])["days"]
    table = Origin(Form.RUNS, table=str(tmp_path / "runs"))
    from_table = make_report(None, replace(request, origin=table, incident_logs=())).summary
    assert [one.availability for one in from_table.groups] == [one.availability for one in laptop.summary.groups]
    assert from_table.incidents == laptop.summary.incidents


def _submit(cluster: StandaloneCluster, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Submit as the image does."""
    command = [sys.executable, "-m", "sla_reports.pod_entrypoint", "submit", f"--master={cluster.url}"]
    command += [word for name, value in cluster.settings().items() for word in ("--conf", f"{name}={value}")]
    return subprocess.run(
        [*command, *words], env=process_environment(), cwd=folder, capture_output=True, text=True, check=False, timeout=400
    )  # fmt: skip


def _without_info(text: str) -> str:
    """Remove Spark's output from before its session's log level is set: it has no errors."""
    return "\n".join(line for line in text.splitlines() if " INFO " not in line)[-4000:]
