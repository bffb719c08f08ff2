"""A program of the benchmark is stopped where it was said to be, and its row says what it was and what it was not."""

from __future__ import annotations

import os
import tempfile
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import sla_process
from benchmarks.sla_process import measured, row_of, runs_that_fit

if TYPE_CHECKING:
    from pathlib import Path

# A start, a run, then what the test says; what it writes into its folder for scratch is never taken away by itself.
_PROGRAM = """
import os, sys, tempfile, time
open(tempfile.mkstemp()[1], "w").write("left behind")
print('{"start_cpu_s": 0.5}', flush=True)
print('{"cpu_s": 2.0, "wall_s": 4.0, "answer": {"runs": 7}}', flush=True)
"""
_HALF_A_LINE = """
print('{"cpu', end="", flush=True)
open(sys.argv[0] + ".new", "w").write(str(os.getpid()))
os.rename(sys.argv[0] + ".new", sys.argv[0] + ".pid")
time.sleep(600)
"""
_RUN = '{"cpu_s": 1.0, "wall_s": 3.0, "answer": {"runs": 7}}'


def _row(folder: Path, rest: str) -> dict[str, Any]:
    (folder / "program.py").write_text(_PROGRAM + rest)
    return row_of(measured(str(folder / "program.py"), [], limit_seconds=600))


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_figures_are_of_the_warm_run(tmp_path: Path, scratch: Path) -> None:
    row = _row(tmp_path, f"print('{_RUN}')")
    assert row.pop("peak_mib") >= 0
    assert row == {
        "start_cpu_s": 0.5, "runs": 2, "warm": True, "cold": {"cpu_s": 2.0, "wall_s": 4.0}, "cpu_s": 1.0, "wall_s": 3.0,
        "answer": {"runs": 7},
    }  # fmt: skip
    assert list(scratch.iterdir()) == []


def test_who_takes_too_long_is_stopped_and_keeps_what_it_told(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "program.py.pid"
    # The limit passes once the program has said its half line, however busy the machine is.
    clock = SimpleNamespace(monotonic=lambda: 700.0 if told.exists() else 0.0, sleep=time.sleep)
    monkeypatch.setattr(sla_process, "time", clock)
    row = _row(tmp_path, _HALF_A_LINE)
    assert (row["stopped_for"], row["stopped_after_s"]) == ("time", 700)
    assert (row["runs"], row["warm"], row["cpu_s"]) == (1, False, 2.0)
    assert list(scratch.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(int(told.read_text()), 0)


@pytest.mark.parametrize("what", ["disk", "memory"])
def test_who_leaves_nothing_to_others_is_stopped(
    what: str, tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if what == "memory":
        monkeypatch.setattr(sla_process, "available_memory_bytes", lambda: 1 << 29)
    else:
        monkeypatch.setattr(sla_process, "_LEAST_FREE_BYTES", 1 << 60)
    assert _row(tmp_path, "time.sleep(600)")["stopped_for"] == what
    assert list(scratch.iterdir()) == []


def test_who_fails_is_a_row_and_not_the_end(tmp_path: Path, scratch: Path) -> None:
    row = _row(tmp_path, "sys.exit('no memory left')")
    assert row["failed"] == "exit code 1: no memory left"
    assert (row["runs"], row["warm"]) == (1, False)


def test_who_is_stopped_in_the_first_run_took_at_least_that() -> None:
    told = {"peak_mib": 9, "stopped_for": "time", "stopped_after_s": 60, "used_cpu_s": 41.5}
    row = row_of({**told, "lines": [{"start_cpu_s": 1.5}]})
    assert row == {**told, "start_cpu_s": 1.5, "runs": 0, "cpu_s_at_least": 40.0}
    assert "cpu_s_at_least" not in row_of({**told, "lines": []})


def test_runs_are_dropped_before_a_size_is() -> None:
    smaller = [{"size": 10, "spark_sql": {"wall_s": 3.0}, "duckdb": {"stopped_after_s": 30}, "polars": {}}]
    assert [runs_that_fit("spark_sql", 100, smaller, 3, limit) for limit in (90, 89, 59, 29)] == [3, 2, 1, 0]
    assert runs_that_fit("duckdb", 100, smaller, 3, 300) == 1
    assert runs_that_fit("polars", 100, smaller, 3, 1) == runs_that_fit("polars", 100, [], 3, 1) == 3
