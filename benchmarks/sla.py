"""The reports' reduction of samples to runs, beside plain Spark SQL, DuckDB and polars: the same lake, the same answer.

    make bench-sla                                                       # everything: hours on a busy machine
    make bench-sla ARGUMENTS="--sizes 10 --runs 2 --no-days --readers"   # some minutes
    .venv/bin/python benchmarks/sla.py --sizes --readers openmetrics query_range

Each engine runs in a process of its own, first cold, then warm. What counts is processor time (of the process and all below
it): wall time is printed, but says little on a machine that others use as well. Progress on stderr, one line of JSON on stdout. The
exit code is 0 only if no engine failed, all answers are the same and every goal that was measured is met (`--report-only`:
without the goals). An engine that takes longer than `--limit-seconds` is stopped, as is one that leaves less than 1 GiB of disk or
memory. Where the smaller lake says that there is no time for all runs it gets fewer, or is not begun. Its row says so each time.

What is written goes to TMPDIR and is removed at the end: 0.7 GB for a lake of 500 million samples, and what engines and readers
need beside that (benchmarks/README.md has the figures).
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import signal
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "operator")]

from benchmarks.sla_figures import goals_of, linear, pays_from, ratios_of, rows_of, seconds_of_1000_groups  # noqa: E402
from benchmarks.sla_lab import (  # noqa: E402
    expected_seconds,
    make_lake,
    measured,
    row_of,
    runs_that_fit,
)

_ENGINES = ("ours", "spark_sql", "duckdb", "polars")
# The same kernel without Spark, what making the daily table costs, and what a report reads out of it.
_TABLE_ENGINES = ("one_process", "table_of_lake", "table_of_text", "from_table")
_MORE_ENGINES = ("ours_in_rows", "duckdb_window")
# 170 bytes a sample: more text than this does not fit onto a disk.
_MOST_MILLIONS_OF_TEXT = 20.0
# What a day more costs; has no answer to compare.
_BY_DAY = ("ours_first_day", "ours_next_day")
_COMPARED = ("duckdb", "polars")
_READERS = ("lake", "openmetrics", "tsdb_dump", "victoriametrics", "query_range", "prometheus")
_MILLION = 1_000_000


def measure_size(
    millions: float, smaller: list[dict[str, Any]], arguments: argparse.Namespace, folder: Path
) -> dict[str, Any]:
    """All engines over one lake, in turn."""
    say(f"{millions:g} million samples: making the lake")
    lake = make_lake(folder / f"lake-{millions:g}m", samples=round(millions * _MILLION))
    result: dict[str, Any] = {"size": lake.samples, "series": lake.series, "lake_mib": round(lake.bytes / 2**20, 1)}
    engines = [one for one in arguments.engines if one != "table_of_text" or millions <= _MOST_MILLIONS_OF_TEXT]
    for engine in engines:
        runs = runs_that_fit(engine, lake.samples, smaller, arguments.runs, arguments.limit_seconds)
        if runs:
            result[engine] = measure_engine(engine, lake.folder, runs, arguments.limit_seconds)
        else:
            expected_s = round(expected_seconds(engine, lake.samples, smaller))
            result[engine] = {"left_out_because_a_run_would_take_s": expected_s}
            say(f"  {engine}: {json.dumps(result[engine])}")
    compared = [one for one in engines if not one.startswith("table_of_")]
    answers = {json.dumps(result[engine]["answer"]) for engine in compared if "answer" in result[engine]}
    result["answers_equal"] = len(answers) <= 1
    result["ratios"] = ratios_of(result)
    return result


def measure_engine(engine: str, lake: Path, runs: int, limit_seconds: float) -> dict[str, Any]:
    """An engine over a lake."""
    say(f"  {engine}: {runs} run(s) begun, for at most {limit_seconds:g} s")
    row = row_of(measured("sla_engines.py", [engine, str(lake), "--runs", str(runs)], limit_seconds=limit_seconds))
    say(f"  {engine}: {json.dumps({name: value for name, value in row.items() if name != 'answer'})}")
    return row


def measure_days(millions: float, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """What a day costs in a new table of runs, and in one that has most of the month."""
    lake = folder / f"lake-{millions:g}m"
    found: dict[str, Any] = {"size": round(millions * _MILLION)}
    for engine in _BY_DAY:
        row = measure_engine(engine, lake, max(3, arguments.runs), arguments.limit_seconds)
        row.pop("answer", None)
        found[engine] = row
    return found


def measure_reports(arguments: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """A report over a tenth of the groups, and over all: does it grow with their number?"""
    every: int = arguments.report_groups
    return [measure_report(groups, arguments, folder / str(groups)) for groups in sorted({max(1, every // 10), every})]


def measure_report(groups: int, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """A report over many groups and months, out of the daily table."""
    say(f"a report over {groups} groups and {arguments.report_months} months: making the table")
    size = [str(folder), "--months", str(arguments.report_months)]
    limit_seconds = arguments.limit_seconds
    made = measured("sla_year.py", ["write", *size, "--groups", str(groups)], limit_seconds=limit_seconds)
    row = made if "failed" in made or "stopped_for" in made else None
    if row is None:
        told = measured("sla_year.py", ["report", *size, "--runs", str(arguments.runs)], limit_seconds=limit_seconds)
        sums = [line["sums_s"] for line in told["lines"][1:]]
        row = {**row_of(told), "sums_s": min(sums, default=None)}
    told = {"groups": groups, "months": arguments.report_months, "from": "table", **row}
    say(f"  {json.dumps(told)}")
    return told


def measure_readers(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Every reader over the same samples: how many a second of processor time, warm."""
    say(f"readers, {arguments.reader_samples:g} million samples: making their files")
    options = [str(folder), "--samples", str(round(arguments.reader_samples * _MILLION)), "--runs", str(arguments.runs)]
    options += ["--readers", *arguments.readers]
    told = measured("sla_readers.py", options, limit_seconds=arguments.limit_seconds * 4)
    found = {line["reader"]: line for line in told.pop("lines") if "reader" in line}
    missing = {name: told for name in arguments.readers if name not in found}
    for line in (*found.values(), *([missing] if missing else [])):
        say(f"  {json.dumps(line)}")
    return found | missing


def failures(
    rows: list[dict[str, Any]], days: dict[str, Any], readers: dict[str, Any], reports: list[dict[str, Any]]
) -> list[str]:
    """What ended by itself without an answer, as a person names it."""
    parts = [
        *((f"{row['size']} samples", row) for row in rows), ("a day", days), ("readers", readers),
        ("table", {f"report of {one['groups']} groups": one for one in reports}),
    ]  # fmt: skip
    return [
        f"{name} ({where})"
        for where, part in parts
        for name, one in part.items()
        if isinstance(one, dict) and "failed" in one
    ]


def say(text: str) -> None:
    """Progress goes to stderr; stdout has the result."""
    print(text, file=sys.stderr, flush=True)


def options_of(words: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--sizes", type=float, nargs="*", default=[10, 50, 500], help="in millions of samples; none: only the readers"
    )
    parser.add_argument("--runs", type=int, default=3, help="of each engine: the first is cold, the others are warm")
    parser.add_argument(
        "--engines",
        nargs="+",
        default=[*_ENGINES, *_TABLE_ENGINES],
        choices=[*_ENGINES, *_TABLE_ENGINES, *_MORE_ENGINES],
    )
    parser.add_argument(
        "--report-groups", type=int, default=1000, help="of the report out of the table; 0: no such report"
    )
    parser.add_argument("--report-months", type=int, default=12, choices=range(1, 13))
    parser.add_argument("--reader-samples", type=float, default=10, help="in millions, for each reader")
    parser.add_argument("--readers", nargs="*", default=[*_READERS], choices=_READERS, help="none: no readers")
    parser.add_argument("--no-days", action="store_true", help="without the cost of a day more")
    parser.add_argument("--limit-seconds", type=float, default=3600, help="for all runs of one engine over one lake")
    parser.add_argument("--folder", type=Path, help="where lakes are kept for the next time (default: a temporary one)")
    parser.add_argument("--report-only", action="store_true", help="a goal that is not met does not fail")
    arguments = parser.parse_args(words)
    if not arguments.sizes and not arguments.readers and not arguments.report_groups:
        parser.error("neither sizes nor readers nor a report; expected something to measure")
    if arguments.report_groups < 0:
        parser.error(f"--report-groups {arguments.report_groups}; expected 0 or more")
    for name in ("runs", "reader_samples", "limit_seconds"):
        if getattr(arguments, name) <= 0:
            parser.error(f"--{name.replace('_', '-')} {getattr(arguments, name)}; expected more than 0")
    if any(size <= 0 for size in arguments.sizes):
        parser.error(f"--sizes {arguments.sizes}; expected each to be more than 0")
    return arguments


def main(words: list[str] | None = None) -> int:
    """Measure, compare, print."""
    arguments = options_of(words)
    signal.signal(signal.SIGTERM, _stop)
    began = conditions()
    with tempfile.TemporaryDirectory(prefix="bench-sla-") as scratch:
        folder = arguments.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        sizes: list[dict[str, Any]] = []
        for millions in sorted(arguments.sizes):
            sizes.append(measure_size(millions, sizes, arguments, folder))
        without_days = arguments.no_days or not sizes
        days = {} if without_days else measure_days(max(arguments.sizes), arguments, folder)
        readers = measure_readers(arguments, Path(scratch)) if arguments.readers else {}
        with tempfile.TemporaryDirectory(prefix="year-", dir=scratch) as year:
            reports = measure_reports(arguments, Path(year)) if arguments.report_groups else []
    goals = goals_of(sizes, days, readers, reports)
    failed = failures(sizes, days, readers, reports)
    equal = all(size["answers_equal"] for size in sizes)
    for size in sizes:
        for engine in arguments.engines:
            size.get(engine, {}).pop("answer", None)
    rows = rows_of(sizes, arguments.engines)
    told = {
        "rows": rows, "report_1000_groups_s": seconds_of_1000_groups(reports), "linear": linear(goals),
        "spark_pays_from_samples": {what: pays_from(rows, what) for what in ("cpu_s", "wall_s")}, "reports": reports,
        "sizes": sizes, "days": days, "readers": readers, "goals": goals, "answers_equal": equal, "failed": failed,
    }  # fmt: skip
    print(json.dumps({**told, "began": began, "ended": conditions()}))
    met = all(value for value in goals.values() if value is not None)
    return 0 if equal and not failed and (met or arguments.report_only) else 1


def _stop(*_: object) -> None:
    """A stop by `timeout` or a CI job takes the engines and what they wrote along, as Ctrl-C does."""
    # `make` passes on the signal that `timeout` has sent us already: a second one must not end the tidying.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + signal.SIGTERM)


def conditions() -> dict[str, Any]:
    """What a figure means little without."""
    versions = {name: metadata.version(name) for name in ("pyspark", "pyarrow", *_COMPARED) if _installed(name)}
    now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    return {"at": now, "load": [round(one, 1) for one in os.getloadavg()], "cores": os.cpu_count(), **versions}


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
