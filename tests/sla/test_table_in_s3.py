"""The daily table on a real S3 server: a day is replaced as a whole, and jobs that write at once do not tear it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from brokergroup_operator.cli.main import app
from metric_names import GROUP_WRITABLE
from sla_reports.reduction.daily_table import FIGURES, RUNS, read_rows, read_runs
from sla_reports.reduction.runs import DAY_MS
from sla_reports.sources import TableError
from sla_reports.states.spans import Window
from tests.real.parts.s3_server import start_s3_server
from tests.sla.histories import series_of
from tests.sla.test_daily_figures import FIRST, START_MS, STEP_MS, gauge, write

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.real("s3-server"), pytest.mark.timeout(600)]
JOBS, WRITES = 3, 4


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = start_s3_server(tmp_path, "reports")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    yield "s3a://reports/runs"
    server.stop()


def _job(number: int, first: int) -> None:
    """Repeatedly write a day and half of the next in a separate process, with the job's number of groups."""
    samples = [one for group in range(number) for one in gauge(f"orders-{group}", first + 2)]
    begin_ms, half_ms = START_MS + first * DAY_MS, START_MS + first * DAY_MS + DAY_MS * 3 // 2
    for _ in range(WRITES):
        write("s3a://reports/runs", [one for one in samples if begin_ms <= one[1] < half_ms])


def test_jobs_that_write_at_once_tear_no_day(table: str) -> None:
    """Three processes write the same two days while a reader polls: it never sees runs or figures of two jobs."""
    write(table, gauge("orders-0", 2))
    program = "import sys; from tests.sla.test_table_in_s3 import _job; _job(int(sys.argv[1]), 0)"
    jobs = [
        subprocess.Popen([sys.executable, "-c", program, str(number)], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for number in range(2, 2 + JOBS)
    ]
    seen = set()
    while any(job.poll() is None for job in jobs):
        seen.add(_groups(table))
    assert [(job.wait(), job.communicate()[1][-2000:]) for job in jobs] == [(0, "")] * JOBS
    seen.add(_groups(table))
    assert seen <= {1, *range(2, 2 + JOBS)}
    # A job that lost a race leaves no data: each write is one version.
    assert DeltaTable(table).version() == 1 + JOBS * WRITES
    last = _groups(table)
    near = read_runs(table, Window(START_MS, START_MS + DAY_MS)).runs
    counts = {run["series"]: 0 for run in near.to_pylist()}
    for run in near.to_pylist():
        counts[run["series"]] += run["n"]
    assert counts == {series_of(GROUP_WRITABLE, f"orders-{group}"): DAY_MS * 3 // 2 // STEP_MS for group in range(last)}


def _groups(table: str) -> int:
    """Return the number of groups in one version of the table, equal in every kind of row of both days."""
    known = DeltaTable(table).to_pyarrow_table(columns=["day", "kind", "broker_group"])
    found: dict[tuple[str, str], set[str]] = {}
    for row in known.to_pylist():
        found.setdefault((row["day"], row["kind"]), set()).add(row["broker_group"])
    counts = {len(names) for (_, kind), names in found.items() if kind in (RUNS, FIGURES)}
    assert len(counts) == 1, found
    assert len(found) == 4, found
    return counts.pop()


def test_days_side_by_side_and_a_job_that_is_killed(table: str) -> None:
    """Two jobs of neighbouring days update each other's figures; a killed job leaves all of its data or none."""
    program = "import sys; from tests.sla.test_table_in_s3 import _job; _job(1, int(sys.argv[1]))"
    jobs = [
        subprocess.Popen([sys.executable, "-c", program, str(day)], cwd=ROOT, stderr=subprocess.DEVNULL)
        for day in (0, 2, 4)
    ]
    while not read_rows_or_none(table):
        assert any(job.poll() is None for job in jobs)
    jobs[2].kill()
    assert [job.wait() for job in jobs[:2]] == [0, 0]
    jobs[2].wait()
    days = {row["day"] for row in read_rows(table, FIGURES, FIRST, FIRST.replace(year=2026)).to_pylist()}
    assert {"2025-09-29", "2025-09-30", "2025-10-01", "2025-10-02"} <= days
    assert days == {row["day"] for row in read_rows(table, RUNS, FIRST, FIRST.replace(year=2026)).to_pylist()}


def read_rows_or_none(table: str) -> bool:
    try:
        return bool(len(read_rows(table, FIGURES, FIRST, FIRST.replace(year=2026))))
    except TableError:
        return False


def test_the_commands_read_it(table: str, tmp_path: Path) -> None:
    write(table, gauge("orders", 2, down=[(60, 70)]))
    said = CliRunner().invoke(app, ["sla", "days", "--store", table, "--period", "2025-09-29"])
    assert said.exit_code == 0, said.output
    assert json.loads(said.output.splitlines()[-1])[0]["downMs"] == 600_000
    words = [
        "sla",
        "report",
        "--from",
        "runs",
        "--export",
        table,
        "--period",
        "2025-09-29",
        "--out",
        str(tmp_path / "out"),
    ]
    said = CliRunner().invoke(app, words)
    assert said.exit_code == 0, said.output
    assert json.loads(said.output.splitlines()[-1])["groups"][0]["down_ms"] == 600_000
