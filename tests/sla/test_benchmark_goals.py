"""The goals of the reduction's benchmark say what its figures say."""

from __future__ import annotations

from typing import Any

from benchmarks.sla_goals import goals_of, ratios_of

YEAR = {"groups": 1000, "months": 12, "wall_s": 29.0, "peak_mib": 1025}


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
    goals = goals_of(rows, days, {"lake": {"samples_per_cpu_s": 999_999}}, YEAR)
    assert goals == {
        "report_of_1000_groups_and_a_year_within_30_s": True,
        "report_of_1000_groups_and_a_year_within_1_gib": False,
        "spark_sql_takes_2.5_times_our_cpu": True,
        "within_3_times_duckdb_warm_at_50m": True,
        "less_memory_than_duckdb_at_500m": False,
        "linear_from_smallest_to_largest": False,
        "a_day_more_costs_a_day": False,
        "readers_1m_samples_per_cpu_second": False,
    }
    assert set(goals_of([_row()], {}, {}, {**YEAR, "groups": 100}).values()) == {None}


def test_who_was_stopped_may_already_have_taken_more_than_the_goal_says() -> None:
    rows = [_row(size=50_000_000, **{name: {"cpu_s_at_least": 10.0} for name in ("spark_sql", "duckdb")})]
    assert rows[0]["ratios"] == {name: {"cold_cpu_at_least": 2.5} for name in ("spark_sql", "duckdb")}
    goals = goals_of(rows, {}, {}, {})
    assert goals["spark_sql_takes_2.5_times_our_cpu"] is True
    assert goals["within_3_times_duckdb_warm_at_50m"] is None
    rows = [_row(spark_sql={"cpu_s_at_least": 9.9})]
    assert goals_of(rows, {}, {}, {})["spark_sql_takes_2.5_times_our_cpu"] is None


def test_a_cold_run_is_held_against_a_cold_run() -> None:
    alone = {"cpu_s": 9.0, "cold": {"cpu_s": 9.0}, "warm": False, "peak_mib": 900}
    row = _row(size=50_000_000, spark_sql=alone, duckdb=alone)
    # 9 to 4, not 9 to the warm 2.
    assert row["ratios"]["spark_sql"] == {"warm": False, "cpu": 2.25, "cold_cpu": 2.25, "peak": 2.25}
    goals = goals_of([row, _row(size=500_000_000, ours=alone)], {}, {"lake": {"failed": "no Java"}}, {})
    assert goals == {
        "report_of_1000_groups_and_a_year_within_30_s": None,
        "report_of_1000_groups_and_a_year_within_1_gib": None,
        "spark_sql_takes_2.5_times_our_cpu": False,
        "within_3_times_duckdb_warm_at_50m": None,
        "less_memory_than_duckdb_at_500m": None,
        "linear_from_smallest_to_largest": True,
        "a_day_more_costs_a_day": None,
        "readers_1m_samples_per_cpu_second": None,
    }
