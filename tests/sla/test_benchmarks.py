"""The goals of the reduction's benchmark agree with its figures."""

from __future__ import annotations

import json
import os
import tempfile
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks import sla, sla_engines, sla_lab, sla_year
from benchmarks.sla_figures import goals_of, linear, pays_from, ratios_of, rows_of, seconds_of_1000_groups
from benchmarks.sla_lab import STEP_MS, make_lake, measured, row_of, runs_that_fit
from tests.sla.histories import runs_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

TENTH = {"groups": 100, "months": 12, "cpu_s": 2.0}
YEAR = {"groups": 1000, "months": 12, "cpu_s": 22.1, "wall_s": 29.0, "peak_mib": 1025}
# A start, a run, then the test's code; files in its scratch folder are never removed by the program itself.
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


def _row(**given: Any) -> dict[str, Any]:
    def engine(cpu_s: float, peak_mib: int) -> dict[str, Any]:
        return {"cpu_s": cpu_s, "cold": {"cpu_s": cpu_s * 2}, "warm": True, "peak_mib": peak_mib}

    row = {"size": 10_000_000, "ours": engine(2.0, 400)}
    row |= {name: engine(*value) if isinstance(value, tuple) else value for name, value in given.items()}
    return {**row, "ratios": ratios_of(row)}


def test_goals_say_what_the_figures_say() -> None:
    rows = [_row(spark_sql=(5.0, 900)), _row(size=50_000_000, ours=(11.0, 500), duckdb=(3.7, 300))]
    rows += [_row(size=500_000_000, ours=(111.0, 600), duckdb=(60.0, 500), spark_sql={"stopped_after_s": 60})]
    days = {"ours_first_day": {"cpu_s": 2.0, "warm": True}, "ours_next_day": {"cpu_s": 3.1, "warm": True}}
    goals = goals_of(rows, days, {"lake": {"samples_per_cpu_s": 999_999}}, [TENTH, YEAR])
    assert goals == {
        "report_of_1000_groups_and_a_year_within_30_s": True, "report_of_1000_groups_and_a_year_within_1_gib": False,
        "report_grows_with_its_groups": False, "spark_sql_takes_2.5_times_our_cpu": True,
        "within_3_times_duckdb_warm_at_50m": True, "less_memory_than_duckdb_at_500m": False,
        "linear_from_smallest_to_largest": False, "a_day_more_costs_a_day": False,
        "readers_1m_samples_per_cpu_second": False,
    }  # fmt: skip
    assert set(goals_of([_row()], {}, {}, [{**YEAR, "groups": 100}]).values()) == {None}


def test_who_was_stopped_may_already_have_taken_more_than_the_goal_says() -> None:
    rows = [_row(size=50_000_000, **{name: {"cpu_s_at_least": 10.0} for name in ("spark_sql", "duckdb")})]
    assert rows[0]["ratios"] == {name: {"cold_cpu_at_least": 2.5} for name in ("spark_sql", "duckdb")}
    goals = goals_of(rows, {}, {}, [])
    assert goals["spark_sql_takes_2.5_times_our_cpu"] is True
    assert goals["within_3_times_duckdb_warm_at_50m"] is None
    rows = [_row(spark_sql={"cpu_s_at_least": 9.9})]
    assert goals_of(rows, {}, {}, [])["spark_sql_takes_2.5_times_our_cpu"] is None


def test_a_cold_run_is_held_against_a_cold_run() -> None:
    alone = {"cpu_s": 9.0, "cold": {"cpu_s": 9.0}, "warm": False, "peak_mib": 900}
    row = _row(size=50_000_000, spark_sql=alone, duckdb=alone)
    # 9 to 4, not 9 to the warm 2.
    assert row["ratios"]["spark_sql"] == {"warm": False, "cpu": 2.25, "cold_cpu": 2.25, "peak": 2.25}
    goals = goals_of([row, _row(size=500_000_000, ours=alone)], {}, {"lake": {"failed": "no Java"}}, [])
    assert {name: met for name, met in goals.items() if met is not None} == {
        "spark_sql_takes_2.5_times_our_cpu": False, "linear_from_smallest_to_largest": True,
    }  # fmt: skip


def _measured(folder: Path, rest: str) -> dict[str, Any]:
    (folder / "program.py").write_text(_PROGRAM + rest)
    return row_of(measured(str(folder / "program.py"), [], limit_seconds=600))


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_figures_are_of_the_warm_run(tmp_path: Path, scratch: Path) -> None:
    row = _measured(tmp_path, f"print('{_RUN}')")
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
    # The limit passes once the program has printed its half line, on any machine.
    clock = SimpleNamespace(monotonic=lambda: 700.0 if told.exists() else 0.0, sleep=time.sleep)
    monkeypatch.setattr(sla_lab, "time", clock)
    row = _measured(tmp_path, _HALF_A_LINE)
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
        monkeypatch.setattr(sla_lab, "available_memory_bytes", lambda: 1 << 29)
    else:
        monkeypatch.setattr(sla_lab, "_LEAST_FREE_BYTES", 1 << 60)
    assert _measured(tmp_path, "time.sleep(600)")["stopped_for"] == what
    assert list(scratch.iterdir()) == []


def test_who_fails_is_a_row_and_not_the_end(tmp_path: Path, scratch: Path) -> None:
    row = _measured(tmp_path, "sys.exit('no memory left')")
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


# DuckDB and polars come with `make bench-sla` only; it compares all answers itself.
@pytest.mark.real("java")
@pytest.mark.timeout(600)
def test_all_of_spark_finds_the_runs_of_a_generated_month(spark: SparkSession, tmp_path: Path) -> None:
    made = make_lake(tmp_path / "lake", samples=300_000)
    days = [pq.read_table(path, partitioning=None) for path in made.files()]
    samples = [
        row
        for day in days
        for row in zip(*(day[name].to_pylist() for name in ("series", "ts_ms", "value")), strict=True)
    ]
    truth = [(run.series, run.value, run.start_ms, run.end_ms, run.n) for run in runs_of(samples, STEP_MS * 5 // 2)]
    expected = sla_engines.answer_of(truth)
    assert (made.samples, made.series, expected["samples"]) == (len(samples), 2, len(samples))
    for engine in (sla_engines.Ours, sla_engines.OursInRows, sla_engines.SparkSql):
        assert sla_engines.answer_of(engine(spark).runs(made.folder)) == expected, engine.__name__
    table = sla_engines.FromTable()
    table.prepare(made.folder, tmp_path)
    for alone in (sla_engines.OneProcess(), table):
        assert sla_engines.answer_of(alone.runs(made.folder)) == expected, type(alone).__name__
    assert sla_engines.answer_of(truth[1:]) != expected


def _told(**figures: Any) -> dict[str, Any]:
    return {"cpu_s": 2.0, "wall_s": 1.0, "peak_mib": 400, "runs": 2, **figures}


def test_a_row_for_each_engine_and_size_with_the_reason_where_there_is_no_figure() -> None:
    stopped = {"peak_mib": 9, "runs": 0, "stopped_for": "time"}
    sizes = [
        {"size": 10, "ours": _told(), "from_table": _told(cpu_s=0.1)},
        {"size": 50, "ours": _told(cpu_s=3.0), "from_table": stopped, "answers_equal": True},
    ]
    assert rows_of(sizes, ["ours", "from_table", "table_of_text"]) == [
        {"samples": 10, "engine": "ours", "cpu_s": 2.0, "wall_s": 1.0, "peak_mib": 400, "from": "raw"},
        {"samples": 10, "engine": "from_table", "cpu_s": 0.1, "wall_s": 1.0, "peak_mib": 400, "from": "table"},
        {"samples": 50, "engine": "ours", "cpu_s": 3.0, "wall_s": 1.0, "peak_mib": 400, "from": "raw"},
        {"samples": 50, "engine": "from_table", "cpu_s": None, "wall_s": None, "peak_mib": 9, "from": "table",
         "stopped_for": "time"},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("ours", "alone", "found"),
    [([2.0, 2.0, 2.0], [0.1, 1.0, 9.0], 500), ([1, 1, 1], [2, 0.5, 2], 500), ([1, 1, 1], [2, 2, 2], 10),
     ([3], [1], None)],
)  # fmt: skip
def test_spark_pays_from_the_size_on_from_which_it_always_did(
    ours: list[float], alone: list[float], found: int | None
) -> None:
    sizes = [
        {"size": size, "ours": _told(cpu_s=mine), "one_process": _told(cpu_s=other)}
        for size, mine, other in zip((10, 50, 500), ours, alone, strict=False)
    ]
    assert pays_from(rows_of(sizes, ["ours", "one_process"]), "cpu_s") == found


def test_only_a_thousand_groups_and_a_year_are_what_was_promised() -> None:
    assert seconds_of_1000_groups([TENTH, YEAR]) == 29.0
    assert seconds_of_1000_groups([{**YEAR, "months": 1}]) is None
    assert seconds_of_1000_groups([]) is None


def test_cost_is_linear_only_where_all_that_was_measured_is() -> None:
    names = ("linear_from_smallest_to_largest", "report_grows_with_its_groups")
    for both, told in (((True, True), True), ((True, False), False), ((True, None), True), ((None, None), None)):
        assert linear(dict(zip(names, both, strict=True))) is told
    assert goals_of([], {}, {}, [TENTH, {**YEAR, "cpu_s": 22.0}])["report_grows_with_its_groups"] is True


def test_a_report_is_made_of_the_years_table_and_finds_what_was_written(tmp_path: Path) -> None:
    sla_year.write_year(tmp_path, groups=3, months=2)
    assert len((tmp_path / "incidents.jsonl").read_text().splitlines()) >= 3
    # All figures are in the table.
    (tmp_path / "incidents.jsonl").unlink()
    told = sla_year.report_on(tmp_path, months=2)
    assert told["groups"] == 3
    window = sla_year.year_of(2)
    rng = np.random.default_rng(1)
    assert told["incidents"] == sum(len(sla_year._outages(rng, window)) for _ in range(3)) > 0
    assert sla_year.sums_seconds(tmp_path, months=2) > 0


@pytest.mark.real("java")
@pytest.mark.timeout(900)
def test_a_small_benchmark_has_every_field(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engines = ["ours", "one_process", "table_of_text", "from_table"]
    words = ["--sizes", "0.2", "--runs", "1", "--no-days", "--readers", "--report-groups", "5", "--report-months", "1"]
    code = sla.main([*words, "--engines", *engines, "--report-only"])
    told = json.loads(capsys.readouterr().out)
    assert (code, told["failed"], told["answers_equal"]) == (0, [], True)
    assert [one["engine"] for one in told["rows"]] == engines
    for one in told["rows"]:
        assert set(one) == {"samples", "engine", "cpu_s", "wall_s", "peak_mib", "from"}
        assert one["from"] == ("table" if one["engine"] == "from_table" else "raw")
        assert min(one["samples"], one["wall_s"], one["peak_mib"]) > 0
    assert told["report_1000_groups_s"] is None  # it was of five groups
    assert [(one["groups"], one["from"]) for one in told["reports"]] == [(1, "table"), (5, "table")]
    assert all(one["wall_s"] > 0 < one["sums_s"] for one in told["reports"])
    assert isinstance(told["linear"], bool)
