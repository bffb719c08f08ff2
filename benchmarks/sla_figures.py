"""The results of `sla.py`: one line for each engine and size, and whether they reach the goals. An unmeasured goal is never met."""

from __future__ import annotations

from typing import Any, Final

_MILLION: Final = 1_000_000
# A "size" is about so many samples: lost scrapes make it less.
_NEAR: Final = 0.1
_MOST_SECONDS: Final = 30.0
_MOST_MIB: Final = 1024


def ratios_of(row: dict[str, Any]) -> dict[str, Any]:
    """How many times the processor time and memory of ours each other engine took, of what was finished."""
    ours = row.get("ours", {})
    found: dict[str, Any] = {}
    for name, other in row.items():
        if name == "ours" or not isinstance(other, dict) or "cpu_s" not in ours:
            continue
        if "cpu_s_at_least" in other:
            found[name] = {"cold_cpu_at_least": round(other["cpu_s_at_least"] / ours["cold"]["cpu_s"], 2)}
        if "cpu_s" not in other:
            continue
        # A run that stands alone is cold: so is the one it is held against.
        alike = (other, ours) if other["warm"] and ours["warm"] else (other["cold"], ours["cold"])
        found[name] = {
            "warm": bool(other["warm"] and ours["warm"]),
            "cpu": round(alike[0]["cpu_s"] / alike[1]["cpu_s"], 2),
            "cold_cpu": round(other["cold"]["cpu_s"] / ours["cold"]["cpu_s"], 2),
            "peak": round(other["peak_mib"] / ours["peak_mib"], 2),
        }
    return found


def goals_of(
    rows: list[dict[str, Any]], days: dict[str, Any], readers: dict[str, Any], reports: list[dict[str, Any]]
) -> dict[str, bool | None]:
    """Each goal: met, not met, or not measured."""
    seconds = seconds_of_1000_groups(reports)
    return {
        "report_of_1000_groups_and_a_year_within_30_s": None if seconds is None else seconds <= _MOST_SECONDS,
        "report_of_1000_groups_and_a_year_within_1_gib": None
        if seconds is None
        else reports[-1]["peak_mib"] <= _MOST_MIB,
        "report_grows_with_its_groups": _linear_reports(reports),
        "spark_sql_takes_2.5_times_our_cpu": _all(_at_least(row, "spark_sql", "cpu", 2.5) for row in rows),
        "within_3_times_duckdb_warm_at_50m": _at_least(_sized(rows, 50), "duckdb", "cpu", 1 / 3, warm=True),
        "less_memory_than_duckdb_at_500m": _at_least(_sized(rows, 500), "duckdb", "peak", 1.0),
        "linear_from_smallest_to_largest": _linear(rows),
        "a_day_more_costs_a_day": _same_day(days),
        # As it was, with what a job costs however little it reads: the default is enough samples for that to be a small part.
        "readers_1m_samples_per_cpu_second": _all(
            one["samples_per_cpu_s"] >= _MILLION for one in readers.values() if "samples_per_cpu_s" in one
        ),
    }


def _all(found: Any) -> bool | None:
    """Of those that were measured."""
    known = [one for one in found if one is not None]
    return all(known) if known else None


def _sized(rows: list[dict[str, Any]], millions: float) -> dict[str, Any]:
    return next((row for row in rows if abs(row["size"] / _MILLION / millions - 1) < _NEAR), {})


def _at_least(row: dict[str, Any], engine: str, what: str, times: float, *, warm: bool = False) -> bool | None:
    ratio = row.get("ratios", {}).get(engine, {})
    if what == "cpu" and not warm and ratio.get("cold_cpu_at_least", 0.0) >= times:
        return True
    return None if what not in ratio or (warm and not ratio["warm"]) else bool(ratio[what] >= times)


def _linear(rows: list[dict[str, Any]]) -> bool | None:
    """No more processor time for a sample of the largest lake than for one of the smallest, but for a tenth."""
    known = [row for row in rows if "cpu_s" in row.get("ours", {})]
    if len(known) < 2:
        return None
    both = (known[0], known[-1])
    warm = all(row["ours"]["warm"] for row in both)
    smallest, largest = ((row["ours"] if warm else row["ours"]["cold"])["cpu_s"] / row["size"] for row in both)
    return bool(largest <= smallest * 1.1)


def _same_day(days: dict[str, Any]) -> bool | None:
    first, following = (days.get(name, {}) for name in ("ours_first_day", "ours_next_day"))
    if not (first.get("warm") and following.get("warm")):
        return None
    return bool(following["cpu_s"] <= first["cpu_s"] * 1.5)


# The others read raw samples: a lake's files or an export's text.
_FROM_TABLE: Final = frozenset({"from_table"})
# Why a row has no figures.
_REASONS: Final = ("failed", "stopped_for", "left_out_because_a_run_would_take_s")


def rows_of(sizes: list[dict[str, Any]], engines: list[str]) -> list[dict[str, Any]]:
    """Of every size, in turn, every engine; figures are null where it did not finish, with the reason beside them."""
    return [_row(size["size"], engine, size[engine]) for size in sizes for engine in engines if engine in size]


def _row(samples: int, engine: str, told: dict[str, Any]) -> dict[str, Any]:
    figures = {name: told.get(name) for name in ("cpu_s", "wall_s", "peak_mib")}
    reasons: dict[str, Any] = {name: told[name] for name in _REASONS if name in told}
    return {
        "samples": samples,
        "engine": engine,
        **figures,
        "from": "table" if engine in _FROM_TABLE else "raw",
        **reasons,
    }


def seconds_of_1000_groups(reports: list[dict[str, Any]]) -> float | None:
    """Wall seconds of the report over a year of a thousand groups; None where another one was made, or none."""
    largest = reports[-1] if reports else {}
    asked = (largest.get("groups"), largest.get("months"))
    seconds: float | None = largest.get("wall_s") if asked == (1000, 12) else None
    return seconds


def linear(goals: dict[str, bool | None]) -> bool | None:
    """Whether cost grows no faster than samples, and than a report's groups; None: neither was measured."""
    return _all(goals[name] for name in ("linear_from_smallest_to_largest", "report_grows_with_its_groups"))


def _linear_reports(reports: list[dict[str, Any]]) -> bool | None:
    """No more processor time for a group of the larger report than for one of the smaller, but for a tenth."""
    known = [one for one in reports if one.get("cpu_s")]
    if len(known) < 2:
        return None
    smaller, larger = (one["cpu_s"] / one["groups"] for one in (known[0], known[-1]))
    return bool(larger <= smaller * 1.1)


def pays_from(rows: list[dict[str, Any]], what: str) -> int | None:
    """The smallest number of samples from which on Spark takes no more than the same kernel in one process; None: not measured.

    `what` is `cpu_s` or `wall_s`. From there on: at every larger size that was measured, too.
    """
    both: dict[int, dict[str, float]] = {}
    for row in rows:
        if row["engine"] in {"ours", "one_process"} and row[what] is not None:
            both.setdefault(row["samples"], {})[row["engine"]] = row[what]
    found = None
    for samples in sorted((one for one, told in both.items() if len(told) == 2), reverse=True):
        if both[samples]["ours"] > both[samples]["one_process"]:
            break
        found = samples
    return found
