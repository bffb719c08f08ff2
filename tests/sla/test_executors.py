"""A report whose tasks run in other processes than its driver, as on a cluster: byte for byte the one of a laptop.

`local-cluster` starts executors with working folders of their own. What only the driver has (its working folder, its modules by an
import of its own, its session) is not there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sla_reports.class_archive import archive_options
from sla_reports.readers import lake
from sla_reports.readers.text import read_openmetrics
from sla_reports.report import Request, make_report
from sla_reports.sources import Form, origin_of
from tests.sla import one_day
from tests.sla.planted import exports, on_executors
from tests.sla.planted.exports import FILES
from tests.sla.planted.month import Month, plant

ROOT = Path(__file__).resolve().parents[2]
PERIOD = "2025-11-01"
DAY = Month(groups=1, start_ms=one_day.DAY.start_ms, end_ms=one_day.DAY.end_ms, step_ms=60_000, incidents_per_group=3)
# For JVMs that are over in seconds: their full compiler would only cost time.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
BREACHED = 2
# What is left out tells which files were read.
SAME = ("summary.json", "groups.csv", "incidents.jsonl", "runs.parquet")


# By day: an executor in a pod makes a report in real/test_spark_rights.py.
@pytest.mark.nightly
@pytest.mark.real("java", "prometheus")
@pytest.mark.timeout(1500)
def test_executors_elsewhere_make_the_report_of_a_laptop(spark: Any, tmp_path: Path) -> None:
    planted = plant(DAY)
    day = exports.write_openmetrics(planted, tmp_path / FILES[Form.OPENMETRICS])
    log = exports.write_incident_log(planted, tmp_path / "incidents.jsonl")
    lake.write(spark, read_openmetrics(spark, [day]).frame, tmp_path / FILES[Form.LAKE])
    request = Request(
        origin_of(Form.OPENMETRICS, [day], None), [log], one_day.DAY, on_executors.OBJECTIVE_PERCENT / 100
    )
    make_report(spark, request).write(tmp_path / "laptop")
    exports.backfill(day, tmp_path / "prometheus" / "data")
    server = exports.serve(tmp_path / "prometheus")
    try:
        submitted = _submit(tmp_path, server.url)
    finally:
        server.process.stop()
    assert submitted.returncode == BREACHED, _without_info(submitted.stderr)
    told = [json.loads(line) for line in submitted.stdout.splitlines() if line.startswith("{")]
    assert told[0]["master"].startswith("local-cluster")
    assert str(tmp_path) not in told[0]["folders"]
    assert told[-1]["verdict"] == "breached"
    for form in on_executors.FORMS:
        for name in SAME:
            ours, theirs = tmp_path / "laptop" / name, tmp_path / "executors" / form.value / name
            assert ours.read_bytes() == theirs.read_bytes(), (form, name)


def _submit(folder: Path, url: str) -> subprocess.CompletedProcess[str]:
    """As the image does it, with executors that are processes of this machine."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME", "TMPDIR") if name in os.environ}
    environment = {**kept, "PYTHONPATH": str(ROOT), "JAVA_TOOL_OPTIONS": SHORT_LIVED, "SPARK_LOCAL_IP": "127.0.0.1"}
    options = archive_options()
    settings = {
        "spark.driver.extraJavaOptions": options,
        "spark.executor.extraJavaOptions": options,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    command = [
        sys.executable, "-m", "sla_reports.pod_entrypoint", "submit", "--master=local-cluster[2,1,1024]",
    ]  # fmt: skip
    command += [word for name, value in settings.items() if value for word in ("--conf", f"{name}={value}")]
    command += [on_executors.__file__, url, PERIOD]
    return subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, check=False, timeout=1400
    )


def _without_info(text: str) -> str:
    """What Spark says before its session has been told to be quiet is not what went wrong."""
    return "\n".join(line for line in text.splitlines() if " INFO " not in line)[-4000:]
