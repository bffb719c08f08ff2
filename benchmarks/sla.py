"""The reports' reduction of samples to runs, beside plain Spark SQL, DuckDB and polars: the same lake, the same answer.

    make bench-sla                                                       # everything: hours on a busy machine
    make bench-sla ARGUMENTS="--sizes 10 --runs 2 --no-days --readers"   # some minutes
    .venv/bin/python benchmarks/sla.py --sizes --readers openmetrics query_range

Each engine runs in a process of its own, first cold, then warm. What counts is processor time (of the process and all below
it): wall time is told, but says little on a machine that others use as well. Progress on stderr, one line of JSON on stdout. The
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

from benchmarks.sla_goals import goals_of, ratios_of  # noqa: E402
from benchmarks.sla_process import expected_seconds, measured, row_of, runs_that_fit  # noqa: E402
from benchmarks.sla_samples import make_lake  # noqa: E402

_ENGINES = ("ours", "spark_sql", "duckdb", "polars")
_MORE_ENGINES = ("ours_in_rows", "duckdb_window")
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
    for engine in arguments.engines:
        runs = runs_that_fit(engine, lake.samples, smaller, arguments.runs, arguments.limit_seconds)
        if runs:
            result[engine] = measure_engine(engine, lake.folder, runs, arguments.limit_seconds)
        else:
            expected_s = round(expected_seconds(engine, lake.samples, smaller))
            result[engine] = {"left_out_because_a_run_would_take_s": expected_s}
            say(f"  {engine}: {json.dumps(result[engine])}")
    answers = {json.dumps(result[engine]["answer"]) for engine in arguments.engines if "answer" in result[engine]}
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


def failures(rows: list[dict[str, Any]], days: dict[str, Any], readers: dict[str, Any]) -> list[str]:
    """What ended by itself without an answer, as a person names it."""
    parts = [*((f"{row['size']} samples", row) for row in rows), ("a day", days), ("readers", readers)]
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
    parser.add_argument("--engines", nargs="+", default=[*_ENGINES], choices=[*_ENGINES, *_MORE_ENGINES])
    parser.add_argument("--reader-samples", type=float, default=10, help="in millions, for each reader")
    parser.add_argument("--readers", nargs="*", default=[*_READERS], choices=_READERS, help="none: no readers")
    parser.add_argument("--no-days", action="store_true", help="without the cost of a day more")
    parser.add_argument("--limit-seconds", type=float, default=3600, help="for all runs of one engine over one lake")
    parser.add_argument("--folder", type=Path, help="where lakes are kept for the next time (default: a temporary one)")
    parser.add_argument("--report-only", action="store_true", help="a goal that is not met does not fail")
    arguments = parser.parse_args(words)
    if not arguments.sizes and not arguments.readers:
        parser.error("neither sizes nor readers; expected something to measure")
    for name in ("runs", "reader_samples", "limit_seconds"):
        if getattr(arguments, name) <= 0:
            parser.error(f"--{name.replace('_', '-')} {getattr(arguments, name)}; expected more than 0")
    if any(size <= 0 for size in arguments.sizes):
        parser.error(f"--sizes {arguments.sizes}; expected each to be more than 0")
    return arguments


def main(words: list[str] | None = None) -> int:
    """Measure, compare, tell."""
    arguments = options_of(words)
    signal.signal(signal.SIGTERM, _stop)
    began = conditions()
    with tempfile.TemporaryDirectory(prefix="bench-sla-") as scratch:
        folder = arguments.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        rows: list[dict[str, Any]] = []
        for millions in sorted(arguments.sizes):
            rows.append(measure_size(millions, rows, arguments, folder))
        without_days = arguments.no_days or not rows
        days = {} if without_days else measure_days(max(arguments.sizes), arguments, folder)
        readers = measure_readers(arguments, Path(scratch)) if arguments.readers else {}
    goals = goals_of(rows, days, readers)
    failed = failures(rows, days, readers)
    equal = all(row["answers_equal"] for row in rows)
    for row in rows:
        for engine in arguments.engines:
            row[engine].pop("answer", None)
    told = {"rows": rows, "days": days, "readers": readers, "goals": goals, "answers_equal": equal, "failed": failed}
    print(json.dumps({**told, "began": began, "ended": conditions()}))
    met = all(value for value in goals.values() if value is not None)
    return 0 if equal and not failed and (met or arguments.report_only) else 1


def _stop(*_: object) -> None:
    """A stop by `timeout` or a CI job takes the engines and what they wrote along, as Ctrl-C does."""
    # `make` hands on what `timeout` has told us already: a second one must not end the tidying.
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
