"""A report over a year of many groups, out of the daily table: no sample is read, and neither Spark nor Java takes part.

    python benchmarks/sla_year.py write FOLDER --groups 1000 --months 12
    python benchmarks/sla_year.py report FOLDER --months 12

Two processes, so that what the table took is not the report's. A run is what the command does: read the runs and the log's lines
of the table, make the figures, write the report's files. `sums_s` beside it: the daily figures added up by month and cluster, as
`sla days` does. Each group has about an outage a month, a third of them in the incident log.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "operator")]

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402

from benchmarks.sla_lab import STEP_MS, tree_cpu_seconds  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sla_reports.states.spans import Window

_DAY_MS: Final = 86_400_000
_YEAR: Final = 2025
_OUTAGES_A_MONTH: Final = 1.0
_METRICS: Final = (("brokergroup_group_writable", 1.0, 0.0), ("brokergroup_sync_state_set_size", 3.0, 2.0))


def year_of(months: int) -> Window:
    """The first months of the year, UTC."""
    from sla_reports.measures.periods import window_of  # noqa: PLC0415
    from sla_reports.states.spans import Window  # noqa: PLC0415

    first, last = (window_of(f"{_YEAR}-{month:02}", "UTC") for month in (1, months))
    return Window(first.start_ms, last.end_ms)


def write_year(folder: Path, groups: int, months: int, seed: int = 1) -> None:
    """The table, day by day in commits of a month, as backfills of a month make it, with the incident log's lines."""
    from sla_reports.daily import derived  # noqa: PLC0415
    from sla_reports.reduction.daily_table import write_days  # noqa: PLC0415
    from sla_reports.reduction.runs import Quality  # noqa: PLC0415
    from sla_reports.states.logged import lines_of_logs  # noqa: PLC0415

    rng = np.random.default_rng(seed)
    window = year_of(months)
    outages = [_outages(rng, window) for _ in range(groups)]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "incidents.jsonl").open("w") as log:
        log.writelines(_logged(number, *one) for number in range(groups) for one in outages[number][::3])
    lines = lines_of_logs([folder / "incidents.jsonl"])
    days = range(window.start_ms, window.end_ms, _DAY_MS)
    for begin in range(0, len(days), 30):
        rows = [row for number in range(groups) for row in _runs_of(number, outages[number], days[begin : begin + 30])]
        names = ("series", "value", "start_ms", "end_ms", "n")
        columns = {name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
        table = pa.table({**columns, "interval_ms": pa.array([STEP_MS] * len(rows), pa.int64())})
        write_days(folder / "table", table, Quality(sum(columns["n"]), 0, 0, 0, 0), log=lines, derive=derived)


def _outages(rng: np.random.Generator, window: Window) -> list[tuple[int, int]]:
    """Some a month, of two to ten scrapes, none into the next day."""
    scrapes = window.length_ms // STEP_MS
    begins = np.unique(rng.integers(20, scrapes - 20, rng.poisson(_OUTAGES_A_MONTH * window.length_ms / _DAY_MS / 30)))
    found, last_ms = [], 0
    for begin in begins.tolist():
        start_ms = window.start_ms + begin * STEP_MS
        end_ms = start_ms + int(rng.integers(2, 11)) * STEP_MS
        if start_ms > last_ms and start_ms // _DAY_MS == (end_ms + STEP_MS) // _DAY_MS and start_ms % _DAY_MS:
            found.append((start_ms, end_ms))
            last_ms = end_ms + 2 * STEP_MS
    return found


def _runs_of(number: int, outages: Sequence[tuple[int, int]], days: range) -> list[tuple[str, float, int, int, int]]:
    labels = f'broker_group="bg-{number:05}",cluster="DefaultCluster",namespace="default"'
    found = []
    for day_ms in days:
        within = [one for one in outages if day_ms <= one[0] < day_ms + _DAY_MS]
        edges = [day_ms, *(edge for one in within for edge in one), day_ms + _DAY_MS]
        for metric, calm, down in _METRICS:
            for place, (start_ms, end_ms) in enumerate(pairwise(edges)):
                value = down if place % 2 else calm
                found.append(
                    (f"{metric}{{{labels}}}", value, start_ms, end_ms - STEP_MS, (end_ms - start_ms) // STEP_MS)
                )
    return found


def _logged(number: int, start_ms: int, end_ms: int) -> str:
    """As the operator writes it."""
    from brokergroup_operator.observe.incidents import SCHEMA_VERSION  # noqa: PLC0415

    started_at, length_ms = dt.datetime.fromtimestamp(start_ms / 1000, dt.UTC), float(end_ms - start_ms)
    return json.dumps({
        "schemaVersion": SCHEMA_VERSION, "id": f"default/bg-{number:05}/{start_ms}", "kind": "failover", "namespace": "default",
        "name": f"bg-{number:05}", "cluster": "DefaultCluster", "brokerName": f"bg-{number:05}", "trigger": "silence",
        "cause": "crash", "startedAt": started_at.isoformat(), "detectionMilliseconds": 0.0, "durationMilliseconds": length_ms,
        "outcome": "completed", "stepsMilliseconds": {"detected": 0.0, "inSync": length_ms},
    }) + "\n"  # fmt: skip


def report_on(folder: Path, months: int) -> dict[str, Any]:
    """What the command does, and what it found."""
    from sla_reports.report import Request, as_text, make_report  # noqa: PLC0415
    from sla_reports.sources import Form, Origin  # noqa: PLC0415

    origin = Origin(form=Form.RUNS, table=str(folder / "table"))
    made = make_report(None, Request(origin, (), window=year_of(months)))
    with tempfile.TemporaryDirectory() as out:
        made.write(Path(out))
    as_text(made)
    groups = made.summary.groups
    return {"groups": len(groups), "incidents": sum(len(one.incidents) for one in groups)}


def sums_seconds(folder: Path, months: int) -> float:
    """How long the daily figures take to be read and added up."""
    from sla_reports.daily import sums  # noqa: PLC0415

    begun = time.monotonic()
    found = sums(folder / "table", year_of(months), by=["month", "cluster"])
    assert len(found) == months, found
    return round(time.monotonic() - begun, 2)


def main() -> None:
    """Writes the table; or a line of JSON for the start and one for each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("write", "report"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--groups", type=int, default=1000, help="of write")
    parser.add_argument("--months", type=int, default=12, choices=range(1, 13))
    parser.add_argument("--runs", type=int, default=1, help="of report")
    arguments = parser.parse_args()
    if arguments.what == "write":
        write_year(arguments.folder, arguments.groups, arguments.months)
        return
    print(json.dumps({"start_cpu_s": round(tree_cpu_seconds(), 2)}), flush=True)
    for _ in range(arguments.runs):
        before, begun = tree_cpu_seconds(), time.monotonic()
        answer = report_on(arguments.folder, arguments.months)
        cpu_s, wall_s = round(tree_cpu_seconds() - before, 2), round(time.monotonic() - begun, 2)
        sums_s = sums_seconds(arguments.folder, arguments.months)
        print(json.dumps({"cpu_s": cpu_s, "wall_s": wall_s, "answer": answer, "sums_s": sums_s}), flush=True)


if __name__ == "__main__":
    main()
