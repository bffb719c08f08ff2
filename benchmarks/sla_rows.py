"""The benchmark's answer in a line for each engine and size: what it read, and what that took."""

from __future__ import annotations

from typing import Any, Final

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


def seconds_of_1000_groups(report: dict[str, Any]) -> float | None:
    """Wall seconds of the report over a year of a thousand groups; None where another one was made, or none."""
    asked = (report.get("groups"), report.get("months"))
    seconds: float | None = report.get("wall_s") if asked == (1000, 12) else None
    return seconds


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
