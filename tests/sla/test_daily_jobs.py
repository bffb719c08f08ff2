"""Jobs that write days of one table at once, also on S3, and one that is killed: no day is torn."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from metric_names import GROUP_WRITABLE
from sla_reports.reduction.daily_table import FIGURES, RUNS, read_rows, read_runs
from sla_reports.reduction.runs import DAY_MS, runs_in
from sla_reports.sources import TableError
from sla_reports.states.spans import Window
from tests.real.parts.s3_server import start_s3_server
from tests.sla.histories import series_of
from tests.sla.test_daily_table import (
    DAYS,
    FIRST,
    FIRST_DAY,
    START_MS,
    STEP_MS,
    append,
    days_of,
    gauge,
    of_day,
    planted_days,
    run_command,
    write,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

JOBS, WRITES = 3, 4
ROOT = Path(__file__).resolve().parents[2]


def test_two_jobs_at_once_do_not_tear_a_day(tmp_path: Path) -> None:
    """Eight writers of two days: afterwards each day is completely one writer's, and no write is lost in part."""
    table = tmp_path / "table"
    whole = [s for s in planted_days() if s[0] == "a"]
    given = {n: [*(of_day(whole, 0)[: 500 + n]), *(of_day(whole, 1)[: 700 + n])] for n in range(8)}
    with ThreadPoolExecutor(4) as pool:
        appended = list(pool.map(lambda n: append(table, given[n]), given))
    assert days_of(table) == DAYS[:2]
    assert sum(len(one.replaced) for one in appended) == 2 * 7
    counts = {sum(run.n for run in runs_in(read_runs(table, Window(FIRST_DAY * DAY_MS, FIRST_DAY * DAY_MS + 1)).runs))}
    assert counts <= {1200 + 2 * n for n in given}


@pytest.fixture
def s3_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
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


@pytest.mark.real("s3-server")
@pytest.mark.timeout(600)
def test_jobs_that_write_at_once_tear_no_day(s3_table: str) -> None:
    """Three processes write the same two days while a reader polls: it never sees runs or figures of two jobs."""
    write(s3_table, gauge("orders-0", 2))
    program = "import sys; from tests.sla.test_daily_jobs import _job; _job(int(sys.argv[1]), 0)"
    jobs = [
        subprocess.Popen([sys.executable, "-c", program, str(number)], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for number in range(2, 2 + JOBS)
    ]
    seen = set()
    while any(job.poll() is None for job in jobs):
        seen.add(_groups(s3_table))
    assert [(job.wait(), job.communicate()[1][-2000:]) for job in jobs] == [(0, "")] * JOBS
    seen.add(_groups(s3_table))
    assert seen <= {1, *range(2, 2 + JOBS)}
    # A job that lost a race leaves no data: each write is one version.
    assert DeltaTable(s3_table).version() == 1 + JOBS * WRITES
    last = _groups(s3_table)
    near = read_runs(s3_table, Window(START_MS, START_MS + DAY_MS)).runs
    counts = {run["series"]: 0 for run in near.to_pylist()}
    for run in near.to_pylist():
        counts[run["series"]] += run["n"]
    assert counts == {series_of(GROUP_WRITABLE, f"orders-{group}"): DAY_MS * 3 // 2 // STEP_MS for group in range(last)}


def _groups(s3_table: str) -> int:
    """Return the number of groups in one version of the s3_table, equal in every kind of row of both days."""
    known = DeltaTable(s3_table).to_pyarrow_table(columns=["day", "kind", "broker_group"])
    found: dict[tuple[str, str], set[str]] = {}
    for row in known.to_pylist():
        found.setdefault((row["day"], row["kind"]), set()).add(row["broker_group"])
    counts = {len(names) for (_, kind), names in found.items() if kind in (RUNS, FIGURES)}
    assert len(counts) == 1, found
    assert len(found) == 4, found
    return counts.pop()


@pytest.mark.real("s3-server")
@pytest.mark.timeout(600)
def test_days_side_by_side_and_a_job_that_is_killed(s3_table: str) -> None:
    """Two jobs of neighbouring days update each other's figures; a killed job leaves all of its data or none."""
    program = "import sys; from tests.sla.test_daily_jobs import _job; _job(1, int(sys.argv[1]))"
    jobs = [
        subprocess.Popen([sys.executable, "-c", program, str(day)], cwd=ROOT, stderr=subprocess.DEVNULL)
        for day in (0, 2, 4)
    ]
    while not read_rows_or_none(s3_table):
        assert any(job.poll() is None for job in jobs)
    jobs[2].kill()
    assert [job.wait() for job in jobs[:2]] == [0, 0]
    jobs[2].wait()
    days = {row["day"] for row in read_rows(s3_table, FIGURES, FIRST, FIRST.replace(year=2026)).to_pylist()}
    assert {"2025-09-29", "2025-09-30", "2025-10-01", "2025-10-02"} <= days
    assert days == {row["day"] for row in read_rows(s3_table, RUNS, FIRST, FIRST.replace(year=2026)).to_pylist()}


def read_rows_or_none(s3_table: str) -> bool:
    try:
        return bool(len(read_rows(s3_table, FIGURES, FIRST, FIRST.replace(year=2026))))
    except TableError:
        return False


@pytest.mark.real("s3-server")
@pytest.mark.timeout(600)
def test_the_commands_read_it(s3_table: str, tmp_path: Path) -> None:
    write(s3_table, gauge("orders", 2, down=[(60, 70)]))
    code, output = run_command("sla", "days", "--store", s3_table, "--period", "2025-09-29")
    assert code == 0, output
    assert json.loads(output.splitlines()[-1])[0]["downMs"] == 600_000
    words = ("--from", "runs", "--export", s3_table, "--period", "2025-09-29", "--out", str(tmp_path / "out"))
    code, output = run_command("sla", "report", *words)
    assert code == 0, output
    assert json.loads(output.splitlines()[-1])["groups"][0]["down_ms"] == 600_000
