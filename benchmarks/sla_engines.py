"""The engines, each asked the same in its own words: the runs of every series of a lake.

A run is consecutive samples of one series with one value (a stale marker, NaN, is a value of its own) and no gap above 2.5 scrape
intervals. Out come `series, value, start_ms, end_ms, n`, ordered; their hash is what the engines are compared by.

    python benchmarks/sla_engines.py ours LAKE --runs 2

is one engine in a process of its own, as `sla.py` starts it: a line of JSON for the start and one for each run, with the processor
time of the process and everything below it. The first run is the cold one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "operator")]

from benchmarks.sla_lab import DAY_MS, DAYS, START_MS, STEP_MS, available_memory_bytes, tree_cpu_seconds  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import SparkSession

GAP_MS = STEP_MS * 5 // 2
# A cell of the two-level form: 15 min, cut into slots of half a gap limit.
CELL_MS = 900_000
SLOTS = CELL_MS * 2 // GAP_MS
Row = tuple[str, float | None, int, int, int]


class Engine(Protocol):
    """Made once in a process, asked several times."""

    def runs(self, lake: Path) -> Iterable[Row]:
        """Every run, ordered by series and start."""


_WINDOW_SQL = """
with seen as (
  select series, ts_ms, {known} as value, lag(ts_ms) over w as before_ms, lag({known}) over w as before
  from {samples} window w as (partition by series order by ts_ms)
), numbered as (
  select *, sum(case when ts_ms - before_ms <= {gap} and value is not distinct from before then 0 else 1 end)
    over (partition by series order by ts_ms) as run
  from seen
)
select series, {first}(value) as value, min(ts_ms) as start_ms, max(ts_ms) as end_ms, count(*) as n
from numbered group by series, run order by series, start_ms
"""

# Two levels, cells of time and then the samples of those that are mixed: the form in which DuckDB needs least.
_TWO_LEVEL_SQL = """
create or replace temp table cells as
  select series, ts_ms // {cell} as cell, count(*) as n, count(known) as known, min(known) as least, max(known) as greatest,
    min(ts_ms) as start_ms, max(ts_ms) as end_ms, bit_or(1::bigint << ((ts_ms % {cell}) * {slots} // {cell})::int) as filled
  from (select series, ts_ms, {known} as known from {samples}) group by series, cell;
create or replace temp table mixed as select series, cell from cells
  where not ((known = n and least = greatest or known = 0) and filled = (1::bigint << {slots}) - 1 and n <= {cell} // {step});
create or replace temp table pieces as
  select series, least as value, start_ms, end_ms, n from cells anti join mixed using (series, cell)
  union all by name
  select series, any_value(value) as value, min(ts_ms) as start_ms, max(ts_ms) as end_ms, count(*) as n from (
    select *, sum(case when ts_ms - before_ms <= {gap} and value is not distinct from before then 0 else 1 end)
      over (partition by series, cell order by ts_ms) as run
    from (
      select series, cell, ts_ms, value, lag(ts_ms) over w as before_ms, lag(value) over w as before
      from (select series, ts_ms // {cell} as cell, ts_ms, {known} as value from {samples}) semi join mixed using (series, cell)
      window w as (partition by series, cell order by ts_ms)
    )
  ) group by series, cell, run;
select series, any_value(value) as value, min(start_ms) as start_ms, max(end_ms) as end_ms, sum(n)::bigint as n from (
  select *, sum(case when start_ms - before_ms <= {gap} and value is not distinct from before then 0 else 1 end)
    over (partition by series order by start_ms) as run
  from (select *, lag(end_ms) over w as before_ms, lag(value) over w as before from pieces
        window w as (partition by series order by start_ms))
) group by series, run order by series, start_ms
"""


class Ours:
    """The reports' own: `reduce_lake`."""

    memory = ""

    def __init__(self, spark: SparkSession | None = None) -> None:
        from sla_reports.session import start_session  # noqa: PLC0415 - each engine loads what it needs

        self._spark = spark or start_session("benchmark", memory=self.memory)
        self._spark.range(1).count()

    def runs(self, lake: Path) -> Iterable[Row]:
        from sla_reports.reduction.jobs import reduce_lake  # noqa: PLC0415
        from sla_reports.reduction.runs import Intervals, runs_in  # noqa: PLC0415

        found = runs_in(reduce_lake(self._spark, lake, Intervals(other_ms=STEP_MS)).runs)
        return [(run.series, run.value, run.start_ms, run.end_ms, run.n) for run in found]


class OursInRows(Ours):
    """The reports' reduction of samples that are no lake: `reduce_samples`."""

    def runs(self, lake: Path) -> Iterable[Row]:
        from sla_reports.readers.lake import read  # noqa: PLC0415
        from sla_reports.reduction.jobs import reduce_samples  # noqa: PLC0415
        from sla_reports.reduction.runs import runs_in  # noqa: PLC0415

        found = runs_in(reduce_samples(read(self._spark, lake).frame, STEP_MS).runs)
        return [(run.series, run.value, run.start_ms, run.end_ms, run.n) for run in found]


class OneProcess:
    """The same kernel in this process alone, without Spark: from where on does Spark pay?"""

    def runs(self, lake: Path) -> Iterable[Row]:
        from sla_reports.reduction.runs import runs_in  # noqa: PLC0415

        return [(run.series, run.value, run.start_ms, run.end_ms, run.n) for run in runs_in(_kernel(lake))]


class FromTable:
    """The runs out of the daily table, as a report reads them. The table is made before anything is measured."""

    def prepare(self, lake: Path, scratch: Path) -> None:
        """What a run needs, in a folder that is there for as long as the runs."""
        import pyarrow as pa  # noqa: PLC0415

        from sla_reports.reduction.daily_table import write_days  # noqa: PLC0415
        from sla_reports.reduction.runs import Quality  # noqa: PLC0415

        runs = _kernel(lake, by_day=True)
        intervals = pa.array([STEP_MS] * len(runs), pa.int64())
        told = Quality(sum(runs["n"].to_pylist()), 0, 0, 0, 0)
        self._table = scratch / "table"
        write_days(self._table, runs.append_column("interval_ms", intervals), told)

    def runs(self, lake: Path) -> Iterable[Row]:  # noqa: ARG002 - the table is the lake's
        from sla_reports.reduction.daily_table import read_runs  # noqa: PLC0415
        from sla_reports.reduction.runs import runs_in  # noqa: PLC0415
        from sla_reports.states.spans import Window  # noqa: PLC0415

        table = read_runs(self._table, Window(START_MS, START_MS + DAYS * DAY_MS)).runs
        return [(run.series, run.value, run.start_ms, run.end_ms, run.n) for run in runs_in(table)]


class TableOfLake(Ours):
    """The whole daily table, out of the lake. (Its answer is none: the runs are in the table.)"""

    def runs(self, lake: Path) -> Iterable[Row]:
        from sla_reports.daily import append_lake  # noqa: PLC0415

        with tempfile.TemporaryDirectory(prefix="sla-table-") as table:
            append_lake(self._spark, table, lake, interval_ms=STEP_MS)
        return ()


class TableOfText(Ours):
    """The whole daily table, out of a raw export: OpenMetrics' text, reading included. The text is written before."""

    def prepare(self, lake: Path, scratch: Path) -> None:
        """The export, in a folder that is there for as long as the runs."""
        from benchmarks.sla_readers import write_openmetrics  # noqa: PLC0415

        self._export = scratch / "month.om"
        write_openmetrics(sorted(lake.glob("day=*/*.parquet")), self._export)

    def runs(self, lake: Path) -> Iterable[Row]:  # noqa: ARG002 - the text is the lake's
        from sla_reports.daily import append_days  # noqa: PLC0415
        from sla_reports.readers.text import read_openmetrics  # noqa: PLC0415

        with tempfile.TemporaryDirectory(prefix="sla-table-") as table:
            append_days(table, read_openmetrics(self._spark, [self._export]).frame, interval_ms=STEP_MS)
        return ()


class FirstDay(Ours):
    """A day's samples become that day's runs in a new table of runs. (Its answer is none: the runs are in the table.)"""

    days_before = 0

    def __init__(self, spark: SparkSession | None = None) -> None:
        super().__init__(spark)
        self._scratch = tempfile.TemporaryDirectory(prefix="sla-runs-")
        self._store = Path(self._scratch.name)
        self._asked = 0

    def runs(self, lake: Path) -> Iterable[Row]:
        store, days = self._store / str(self._asked if not self.days_before else 0), _days(lake)
        if self._asked < 1 and self.days_before:
            self._append(store, lake, days[: self.days_before])
        elif self.days_before:
            self._append(store, lake, [days[self.days_before + self._asked - 1]])
        else:
            self._append(store, lake, [days[self._asked]])
        self._asked += 1
        return ()

    def _append(self, store: Path, lake: Path, days: list[str]) -> None:
        from sla_reports.daily import append_lake  # noqa: PLC0415

        append_lake(self._spark, store, lake, days=days, interval_ms=STEP_MS)


class NextDay(FirstDay):
    """A day more in a table of runs that has most of the month. Its first run is the month before."""

    days_before = 25


class SparkSql(Ours):
    """A window over all samples, as a person would write it."""

    # A sort of everything: with the reports' own heap of 1 GB it would be slower still.
    memory = "4g"

    def runs(self, lake: Path) -> Iterable[Row]:
        self._spark.read.parquet(str(lake)).createOrReplaceTempView("samples")
        words = {"samples": "samples", "known": "nanvl(value, null)", "gap": GAP_MS, "first": "first"}
        return [
            (row[0], row[1], row[2], row[3], row[4]) for row in self._spark.sql(_WINDOW_SQL.format(**words)).collect()
        ]


class DuckDb:
    """The two-level form."""

    sql = _TWO_LEVEL_SQL

    def __init__(self) -> None:
        import duckdb  # noqa: PLC0415

        self._connection = duckdb.connect()
        # No more than its part of a shared machine; what does not fit goes to the disk.
        self._connection.execute(f"set memory_limit = '{min(8192, available_memory_bytes() // 2**21)}MiB'")
        self._connection.execute(f"set temp_directory = '{Path(tempfile.gettempdir()) / 'duckdb'}'")

    def runs(self, lake: Path) -> Iterable[Row]:
        words = {
            "samples": f"read_parquet('{lake}/*/*.parquet', hive_partitioning = false)",
            "known": "case when isnan(value) then null else value end",
            "gap": GAP_MS, "first": "any_value", "cell": CELL_MS, "slots": SLOTS, "step": STEP_MS,
        }  # fmt: skip
        rows: list[Row] = self._connection.execute(self.sql.format(**words)).fetchall()
        return rows


class DuckDbWindow(DuckDb):
    """A window over all samples."""

    sql = _WINDOW_SQL


class Polars:
    """A day at a time, sorted, then compared with what is before; a month at once would not fit into memory."""

    def runs(self, lake: Path) -> Iterable[Row]:
        import polars as pl  # noqa: PLC0415

        def joined(frame: Any, start: str, end: str, n: Any) -> Any:
            same = (pl.col("value").eq_missing(pl.col("value").shift())) & (
                pl.col("series") == pl.col("series").shift()
            )
            begins = ~(same & (pl.col(start) - pl.col(end).shift() <= GAP_MS)).fill_null(value=False)
            grouped = frame.with_columns(begins.cum_sum().alias("run")).group_by("run", maintain_order=True)
            return grouped.agg(
                pl.col("series").first(), pl.col("value").first(), pl.col(start).first().alias("start_ms"),
                pl.col(end).last().alias("end_ms"), n.alias("n"),
            ).drop("run")  # fmt: skip

        days = []
        for path in sorted(lake.glob("day=*/*.parquet")):
            samples = pl.read_parquet(path, hive_partitioning=False).sort("series", "ts_ms")
            days.append(
                joined(samples.with_columns(pl.col("value").fill_nan(None)), "ts_ms", "ts_ms", pl.len().cast(pl.Int64))
            )
        pieces = pl.concat(days).sort("series", "start_ms")
        runs: list[Row] = joined(pieces, "start_ms", "end_ms", pl.col("n").sum()).sort("series", "start_ms").rows()
        return runs


ENGINES: dict[str, Callable[[], Engine]] = {
    "ours": Ours,
    "ours_in_rows": OursInRows,
    "one_process": OneProcess,
    "from_table": FromTable,
    "table_of_lake": TableOfLake,
    "table_of_text": TableOfText,
    "ours_first_day": FirstDay,
    "ours_next_day": NextDay,
    "spark_sql": SparkSql,
    "duckdb": DuckDb,
    "duckdb_window": DuckDbWindow,
    "polars": Polars,
}


def _kernel(lake: Path, *, by_day: bool = False) -> Any:
    """All runs by the reports' own kernel, a day after the other."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    from sla_reports.reduction.runs import Intervals, day_pieces, stitched  # noqa: PLC0415

    def batches(path: Path) -> Iterable[pa.RecordBatch]:
        with pq.ParquetFile(path, read_dictionary=["series"]) as file:
            yield from file.iter_batches(batch_size=1_000_000, columns=["series", "ts_ms", "value"], use_threads=False)

    intervals = Intervals(other_ms=STEP_MS)
    days = sorted(lake.glob("day=*/*.parquet"))
    pieces = [piece for path in days for piece in day_pieces(partial(batches, path), intervals)]
    return stitched(pa.Table.from_batches(pieces), by_day=by_day)


def _days(lake: Path) -> list[str]:
    return sorted(path.name.removeprefix("day=") for path in lake.glob("day=*"))


def answer_of(rows: Iterable[Row]) -> dict[str, Any]:
    """What is compared: a hash over every run, and figures that say where a difference lies."""
    digest, samples, count, down_ms = hashlib.sha256(), 0, 0, 0
    for series, value, start_ms, end_ms, n in rows:
        told = None if value is None or math.isnan(value) else float(value)
        digest.update(f"{series}\t{told}\t{start_ms}\t{end_ms}\t{n}\n".encode())
        samples, count = samples + n, count + 1
        down_ms += end_ms - start_ms if told == 0 else 0
    return {"runs": count, "samples": samples, "down_ms": down_ms, "sha256": digest.hexdigest()}


def main() -> None:
    """One engine, several runs, a line of JSON for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("lake", type=Path)
    parser.add_argument("--runs", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sla-engine-") as scratch:
        _ask(arguments.engine, arguments.lake, arguments.runs, Path(scratch))


def _ask(name: str, lake: Path, runs: int, scratch: Path) -> None:
    begun = time.monotonic()
    engine = ENGINES[name]()
    if isinstance(engine, FromTable | TableOfText):
        engine.prepare(lake, scratch)
    print(
        json.dumps({"start_cpu_s": round(tree_cpu_seconds(), 2), "wall_s": round(time.monotonic() - begun, 2)}),
        flush=True,
    )
    for _ in range(runs):
        before, begun = tree_cpu_seconds(), time.monotonic()
        rows = engine.runs(lake)
        cpu_s, wall_s = round(tree_cpu_seconds() - before, 2), round(time.monotonic() - begun, 2)
        print(json.dumps({"cpu_s": cpu_s, "wall_s": wall_s, "answer": answer_of(rows)}), flush=True)


if __name__ == "__main__":
    main()
