"""What the engines of `sla.py` are measured with: a process of its own for each, its use of memory and processor, and the lake it
reads.

The process prints a line of JSON at its start and one for each run. It writes into a folder that is removed afterwards, also
after a kill: a Spark that is stopped in the middle of a sort leaves gigabytes behind. Its children count: a JVM, Spark's Python
workers.

The lake is a month of gauges in Parquet, a file a day, as `sla_reports.readers.lake` keeps it, scraped every 15 s. A series has
some twelve outages of a minute or so, three silences (some after a stale marker), and now and then a lost scrape. All of it
follows from the seed and the number of samples. Series of one target share their scrape times, targets do not. Written with Arrow
directly: 500 million samples take two minutes, not the half hour of Spark's sort.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

_PROGRAMS: Final = Path(__file__).resolve().parent
_SAMPLED_EVERY_SECONDS: Final = 0.2
# With less than that on the disk or in memory something else on the machine fails first.
_LEAST_FREE_BYTES: Final = 1 << 30


def measured(program: str, arguments: list[str], *, limit_seconds: float) -> dict[str, Any]:
    """Its `lines`, the peak of its memory, and why it has no more lines: `stopped_for` (and what it had used) or `failed`."""
    command = [sys.executable, str(_PROGRAMS / program), *arguments]
    begun, peak_bytes, used_seconds, stopped_for = time.monotonic(), 0, 0.0, None
    with (
        tempfile.TemporaryDirectory(prefix="bench-sla-of-one-", ignore_cleanup_errors=True) as scratch,
        tempfile.TemporaryFile("w+") as told,
        tempfile.TemporaryFile("w+") as said,
    ):
        environment = {**os.environ, "TMPDIR": scratch, "SPARK_LOCAL_DIRS": scratch}
        process = subprocess.Popen(command, stdout=told, stderr=said, env=environment, start_new_session=True)
        try:
            while process.poll() is None and stopped_for is None:
                now_seconds, now_bytes = tree_usage(process.pid)
                used_seconds, peak_bytes = max(used_seconds, now_seconds), max(peak_bytes, now_bytes)
                stopped_for = _reason_to_stop(time.monotonic() - begun, limit_seconds, Path(scratch))
                time.sleep(_SAMPLED_EVERY_SECONDS)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        found: dict[str, Any] = {"peak_mib": round(peak_bytes / 2**20)}
        if stopped_for is not None:
            found |= {"stopped_for": stopped_for, "stopped_after_s": round(time.monotonic() - begun)}
            found["used_cpu_s"] = round(used_seconds, 2)
        elif process.returncode != 0:
            said.seek(0)
            found["failed"] = f"exit code {process.returncode}: {said.read().strip()[-1000:]}"
        told.seek(0)
        # A killed engine may leave half a line.
        found["lines"] = [json.loads(line) for line in told if line.endswith("\n")]
    return found


def _reason_to_stop(passed_seconds: float, limit_seconds: float, scratch: Path) -> str | None:
    if passed_seconds > limit_seconds:
        return "time"
    if shutil.disk_usage(scratch).free < _LEAST_FREE_BYTES:
        return "disk"
    if available_memory_bytes() < _LEAST_FREE_BYTES:
        return "memory"
    return None


def row_of(told: dict[str, Any]) -> dict[str, Any]:
    """An engine's figures. `cpu_s` and `wall_s` are the warm runs' median, or the cold one's where it is alone.

    An engine that was stopped before the end of its first run has `cpu_s_at_least` instead: what that run had used.
    """
    lines = told.pop("lines")
    runs = lines[1:]
    row = {**told, "start_cpu_s": lines[0]["start_cpu_s"] if lines else None, "runs": len(runs)}
    if not runs:
        if lines and "used_cpu_s" in row:
            row["cpu_s_at_least"] = round(row["used_cpu_s"] - row["start_cpu_s"], 2)
        return row
    warm = runs[1:] or runs
    row["cold"] = {"cpu_s": runs[0]["cpu_s"], "wall_s": runs[0]["wall_s"]}
    row["warm"] = len(runs) > 1
    row |= {name: round(statistics.median(run[name] for run in warm), 2) for name in ("cpu_s", "wall_s")}
    answers = {json.dumps(run["answer"], sort_keys=True) for run in runs}
    row["answer"] = runs[0]["answer"] if len(answers) == 1 else {"differ": sorted(answers)}
    return row


def runs_that_fit(engine: str, samples: int, smaller: list[dict[str, Any]], runs: int, limit_seconds: float) -> int:
    """How many runs the next smaller lake says that there is time for: fewer than asked for, or none."""
    each = expected_seconds(engine, samples, smaller)
    return runs if each * runs <= limit_seconds else int(limit_seconds / each)


def expected_seconds(engine: str, samples: int, smaller: list[dict[str, Any]]) -> float:
    """What the next smaller lake says that a run will take, at the least."""
    if not smaller:
        return 0.0
    told = smaller[-1].get(engine, {})
    each: float = told.get("wall_s", told.get("stopped_after_s", told.get("left_out_because_a_run_would_take_s", 0.0)))
    size: int = smaller[-1]["size"]
    return each * samples / size


_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def tree_cpu_seconds(root: int | None = None) -> float:
    """Processor time, user and system, also of children that have ended and were waited for."""
    return sum(ticks for _, ticks in _tree(root)) / _TICKS


def tree_usage(root: int) -> tuple[float, int]:
    """Processor time as above, and memory held now. A page that two processes share counts twice."""
    total, tree = 0, _tree(root)
    for pid, _ in tree:
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
        except (OSError, IndexError):
            continue
    return sum(ticks for _, ticks in tree) / _TICKS, total


def available_memory_bytes() -> int:
    """What the machine could still hand out, as Linux sees it."""
    told = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(told["MemAvailable"].split()[0]) * 1024


def _tree(root: int | None) -> list[tuple[int, int]]:
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - a listing, several times a second
        if not name.isdigit():
            continue
        try:
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(name))
        ticks[int(name)] = sum(map(int, fields[11:15]))
    found, todo = [], [root or os.getpid()]
    while todo:
        pid = todo.pop()
        found += [(pid, ticks[pid])] if pid in ticks else []
        todo += children.get(pid, [])
    return found


DAYS: Final = 30
STEP_MS: Final = 15_000
START_MS: Final = int(dt.datetime(2026, 10, 1, tzinfo=dt.UTC).timestamp() * 1000)
DAY_MS: Final = 86_400_000
_SCRAPES_A_DAY: Final = DAY_MS // STEP_MS
_SCRAPES: Final = DAYS * _SCRAPES_A_DAY
_SERIES_PER_TARGET: Final = 60
_ROWS_PER_GROUP: Final = 1_000_000
# Sample codes below the values 0 to 3.
_LOST, _STALE = -1, -2


@dataclass(frozen=True)
class Lake:
    """Where the samples are and how many there are."""

    folder: Path
    samples: int
    series: int
    bytes: int

    def files(self) -> list[Path]:
        """A file a day, in order."""
        return sorted(self.folder.glob("day=*/*.parquet"))


def make_lake(folder: Path, *, samples: int, seed: int = 1) -> Lake:
    """A lake with about so many samples; one that is there already is used again."""
    told = folder / "_benchmark.json"
    if told.exists():
        known = json.loads(told.read_text())
        if known["asked"] == [samples, seed]:
            return Lake(folder, known["samples"], known["series"], known["bytes"])
        raise ValueError(f"lake {folder}: holds {known['asked']} (samples, seed); expected {[samples, seed]}")
    # An interrupted run leaves half a lake: it gets its name when it is whole.
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    names = series_names(max(1, round(samples / _SCRAPES)))
    events = _events(np.random.default_rng(seed), names)
    written = 0
    for day in range(DAYS):
        date = dt.date(2026, 10, 1) + dt.timedelta(days=day)
        (partial / f"day={date}").mkdir(parents=True)
        written += _write_day(partial / f"day={date}" / "part-0.parquet", names, events, day)
    stored = sum(path.stat().st_size for path in partial.glob("day=*/*.parquet"))
    asked = {"asked": [samples, seed], "samples": written, "series": len(names), "bytes": stored}
    (partial / told.name).write_text(json.dumps(asked))
    partial.rename(folder)
    return Lake(folder, written, len(names), stored)


def series_names(count: int) -> list[str]:
    """Sorted, as the lake has them; of each group two gauges."""
    return sorted(
        f'brokergroup_{"group_writable" if number % 2 else "sync_state_set_size"}{{broker_group="bg-{number // 2:05}",'
        f'cluster="DefaultCluster",instance="10.0.{number // _SERIES_PER_TARGET}.1:8080",job="brokergroup",namespace="default"}}'
        for number in range(count)
    )


def _events(rng: np.random.Generator, names: list[str]) -> dict[str, Any]:
    """Events: the series, from which scrape to which, and the code of the samples then; later ones win."""
    kinds = []
    for per_month, median, shown in ((12, 4, 0), (3, 20, _LOST), (35, 1, _LOST)):
        count = rng.poisson(per_month * len(names))
        length = np.maximum(1, rng.lognormal(np.log(median), 1.0 if median > 1 else 0.0, count)).astype(np.int64)
        begin = rng.integers(0, _SCRAPES, count)
        kinds.append((rng.integers(0, len(names), count), begin, begin + length, np.full(count, shown)))
        if median == 20:
            stale = rng.random(count) < 1 / 3
            kinds.append((kinds[-1][0][stale], begin[stale], begin[stale] + 1, np.full(stale.sum(), _STALE)))
    series, begin, end, code = (np.concatenate(column) for column in zip(*kinds, strict=True))
    calm = np.array([3 if "sync_state_set" in name else 1 for name in names], dtype=np.int8)
    targets = np.array([int(name.partition('instance="10.0.')[2].partition(".")[0]) for name in names])
    offsets = np.random.default_rng(5).integers(0, STEP_MS, targets.max() + 1)[targets]
    return {"series": series, "begin": begin, "end": end, "code": code, "calm": calm, "offsets": offsets}


def _write_day(path: Path, names: list[str], events: dict[str, Any], day: int) -> int:
    first = day * _SCRAPES_A_DAY
    codes = np.repeat(events["calm"][:, None], _SCRAPES_A_DAY, axis=1)
    touched = (events["begin"] < first + _SCRAPES_A_DAY) & (events["end"] > first)
    columns = (events[name][touched] for name in ("series", "begin", "end", "code"))
    for series, begin, end, code in zip(*(column.tolist() for column in columns), strict=True):
        row = codes[series, max(0, begin - first) : end - first]
        # An outage of a replica leaves the SyncStateSet at 2; in one of the master no write succeeds.
        row[:] = 2 if code == 0 and events["calm"][series] == 3 else code
    times = START_MS + day * DAY_MS + np.arange(_SCRAPES_A_DAY, dtype=np.int64) * STEP_MS
    schema = pa.schema([("series", pa.string()), ("ts_ms", pa.int64()), ("value", pa.float64())])
    dictionary, at_a_time, rows = pa.array(names, pa.string()), max(1, _ROWS_PER_GROUP // _SCRAPES_A_DAY), 0
    # Without Arrow's own schema in it the file says what Spark's say.
    with pq.ParquetWriter(path, schema, compression="zstd", store_schema=False) as writer:
        for begin in range(0, len(names), at_a_time):
            some = codes[begin : begin + at_a_time]
            there = some != _LOST
            number = np.repeat(np.arange(begin, begin + len(some), dtype=np.int32), there.sum(axis=1))
            ts_ms = (events["offsets"][begin : begin + at_a_time, None] + times[None, :])[there]
            value = np.where(some == _STALE, np.nan, some)[there]
            series_column = pa.DictionaryArray.from_arrays(pa.array(number), dictionary).cast(pa.string())
            writer.write_table(pa.table([series_column, pa.array(ts_ms), pa.array(value)], schema=schema))
            rows += len(number)
    return rows
