"""The reports' reduction of samples to runs, beside plain Spark SQL, DuckDB and polars: the same lake, the same answer.

    make bench-sla                                       # everything: hours on a busy machine
    make bench-sla ARGUMENTS="--sizes 10 --runs 2"       # millions of samples
    .venv/bin/python benchmarks/sla.py --sizes 1 --engines ours spark_sql --readers
    .venv/bin/python benchmarks/sla.py --sizes --readers openmetrics query_range

Each engine runs in a process of its own, first cold, then warm. What counts is processor time (of the process and all below
it): wall time is told, but says little on a machine that others use as well. Progress on stderr, one line of JSON on stdout. The
exit code is 0 only if all answers are the same and every goal that was measured is met (`--report-only`: answers only). An engine
that takes longer than `--limit-seconds` is stopped, and not begun where the smaller lake says that it would be; its row says so.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "operator")]

from benchmarks.sla_goals import goals_of, ratios_of  # noqa: E402
from benchmarks.sla_meter import tree_resident_bytes  # noqa: E402
from benchmarks.sla_samples import make_lake  # noqa: E402

_ENGINES = ("ours", "spark_sql", "duckdb", "polars")
_MORE_ENGINES = ("ours_in_rows", "duckdb_window")
# What a day more costs; has no answer to compare.
_BY_DAY = ("ours_first_day", "ours_next_day")
_READERS = ("lake", "openmetrics", "tsdb_dump", "victoriametrics", "query_range", "prometheus")
_MILLION = 1_000_000
_SAMPLED_EVERY_SECONDS = 0.2


def measured(program: str, arguments: list[str], *, limit_seconds: float) -> dict[str, Any]:
    """Run a script that tells a line of JSON for its start and for each run; adds the peak of memory."""
    command = [sys.executable, str(ROOT / "benchmarks" / program), *arguments]
    begun, peak_bytes, finished = time.monotonic(), 0, True
    with tempfile.TemporaryFile("w+") as told, tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stdout=told, stderr=said, start_new_session=True)
        try:
            while process.poll() is None:
                peak_bytes = max(peak_bytes, tree_resident_bytes(process.pid))
                if time.monotonic() - begun > limit_seconds:
                    finished = False
                    break
                time.sleep(_SAMPLED_EVERY_SECONDS)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        told.seek(0)
        lines = [json.loads(line) for line in told if line.strip()]
        if finished and process.returncode != 0:
            said.seek(0)
            raise RuntimeError(
                f"{program} {' '.join(arguments)}: exit code {process.returncode}\n{said.read()[-3000:]}"
            )
    known: dict[str, Any] = {
        "peak_mib": round(peak_bytes / 2**20),
        **({} if finished else {"stopped_after_s": limit_seconds}),
    }
    return {**known, "lines": lines}


def row_of(told: dict[str, Any]) -> dict[str, Any]:
    """An engine's figures. `cpu_s` and `wall_s` are the warm runs' median, or the cold one's where it is alone."""
    lines = told.pop("lines")
    runs = lines[1:]
    row = {**told, "start_cpu_s": lines[0]["start_cpu_s"] if lines else None, "runs": len(runs)}
    if not runs:
        return row
    warm = runs[1:] or runs
    row["cold"] = {"cpu_s": runs[0]["cpu_s"], "wall_s": runs[0]["wall_s"]}
    row["warm"] = len(runs) > 1
    row |= {name: round(statistics.median(run[name] for run in warm), 2) for name in ("cpu_s", "wall_s")}
    answers = {json.dumps(run["answer"], sort_keys=True) for run in runs}
    row["answer"] = runs[0]["answer"] if len(answers) == 1 else {"differ": sorted(answers)}
    return row


def measure_size(
    millions: float, smaller: list[dict[str, Any]], arguments: argparse.Namespace, folder: Path
) -> dict[str, Any]:
    """All engines over one lake, in turn."""
    say(f"{millions:g} million samples: making the lake")
    lake = make_lake(folder / f"lake-{millions:g}m", samples=round(millions * _MILLION))
    result: dict[str, Any] = {"size": lake.samples, "series": lake.series, "lake_mib": round(lake.bytes / 2**20, 1)}
    for engine in arguments.engines:
        expected_s = expected_seconds(engine, lake.samples, smaller, arguments.runs)
        if expected_s > arguments.limit_seconds:
            result[engine] = {"left_out_because_it_would_take_s": round(expected_s)}
            continue
        options = [engine, str(lake.folder), "--runs", str(arguments.runs)]
        row = row_of(measured("sla_engines.py", options, limit_seconds=arguments.limit_seconds))
        result[engine] = row
        say(f"  {engine}: {json.dumps({name: value for name, value in row.items() if name != 'answer'})}")
    answers = {json.dumps(result[engine]["answer"]) for engine in arguments.engines if "answer" in result[engine]}
    result["answers_equal"] = len(answers) <= 1
    result["ratios"] = ratios_of(result)
    return result


def expected_seconds(engine: str, samples: int, smaller: list[dict[str, Any]], runs: int) -> float:
    """What the next smaller lake says that all runs will take."""
    if not smaller:
        return 0.0
    told = smaller[-1].get(engine, {})
    each: float = told.get("wall_s", told.get("stopped_after_s", told.get("left_out_because_it_would_take_s", 0.0)))
    return each * samples / smaller[-1]["size"] * (runs if "wall_s" in told else 1)


def measure_days(millions: float, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """What a day costs in a new table of runs, and in one that has most of the month."""
    lake = folder / f"lake-{millions:g}m"
    found: dict[str, Any] = {"size": round(millions * _MILLION)}
    for engine in _BY_DAY:
        options = [engine, str(lake), "--runs", str(max(3, arguments.runs))]
        row = row_of(measured("sla_engines.py", options, limit_seconds=arguments.limit_seconds))
        row.pop("answer", None)
        found[engine] = row
        say(f"  {engine}: {json.dumps(row)}")
    return found


def measure_readers(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Every reader over the same samples: how many a second of processor time, warm."""
    options = [str(folder), "--samples", str(round(arguments.reader_samples * _MILLION)), "--runs", str(arguments.runs)]
    options += ["--readers", *arguments.readers]
    told = measured("sla_readers.py", options, limit_seconds=arguments.limit_seconds * 4)
    found = {line["reader"]: line for line in told["lines"] if "reader" in line}
    for line in found.values():
        say(f"  {json.dumps(line)}")
    return found


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
    return arguments


def main(words: list[str] | None = None) -> int:
    """Measure, compare, tell."""
    arguments = options_of(words)
    with tempfile.TemporaryDirectory(prefix="bench-sla-") as scratch:
        folder = arguments.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        rows: list[dict[str, Any]] = []
        for millions in sorted(arguments.sizes):
            rows.append(measure_size(millions, rows, arguments, folder))
        without_days = arguments.no_days or not rows
        days = {} if without_days else measure_days(max(arguments.sizes), arguments, folder)
        readers = measure_readers(arguments, folder) if arguments.readers else {}
    goals = goals_of(rows, days, readers)
    equal = all(row["answers_equal"] for row in rows)
    for row in rows:
        for engine in arguments.engines:
            row[engine].pop("answer", None)
    load = [round(one, 1) for one in os.getloadavg()]
    print(
        json.dumps(
            {"rows": rows, "days": days, "readers": readers, "goals": goals, "answers_equal": equal, "load": load}
        )
    )
    met = all(value for value in goals.values() if value is not None)
    return 0 if equal and (met or arguments.report_only) else 1


if __name__ == "__main__":
    sys.exit(main())
