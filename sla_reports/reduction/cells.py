"""The two-level reduction: samples to runs in the JVM, with no Python in any row's way.

First level: each (series, cell) becomes one row: count, smallest and greatest value, first and last time, and which slots hold a
sample. A cell whose samples all say the same, without a gap, *is* a run. Second level: only the other cells are read again,
row by row, with a window over the few rows they have. Then runs that touch are stitched. Nothing is approximate; the first level
only proves for most rows that nobody has to look at them.

Where one series has several samples at one time that are not the same, nobody knows which is right: their value is CONFLICT. A
known value counts more than a stale marker.
"""

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sql
from pyspark.sql.window import WindowSpec

from sla_reports.reduction.intervals import Inferred, with_cells
from sla_reports.reduction.runs import CONFLICT, Run

_DAY_MS = 86_400_000
# More mixed cells than this are not sent to every task: a join by shuffle is cheaper then.
_BROADCAST_CELLS = 500_000
# A cell of four hours may hold an hour of another interval, and with it another gap limit.
_CELL = ("series", "cell", "gap_ms")


@dataclass(frozen=True, slots=True)
class Reduction:
    """`runs` as RUN_SCHEMA, and the two levels they came from, for counting."""

    runs: DataFrame
    cells: DataFrame
    instants: DataFrame

    def unpersist(self) -> None:
        """Give the memory of both levels back."""
        self.cells.unpersist()
        self.instants.unpersist()


@dataclass(frozen=True, slots=True)
class Quality:
    """What was odd about the samples. A duplicate in a cell that is otherwise as full as expected is not noticed (harmless)."""

    samples: int
    series: int
    stale_markers: int
    duplicates: int
    conflicting_duplicates: int
    cells: int
    cells_read_again: int


def reduce_samples(samples: DataFrame, interval: Column | Inferred, *, by_day: bool = False) -> Reduction:
    """Runs of `series, ts_ms, value`. `interval` is `intervals.given(...)` or `intervals.infer(...)`.

    With `by_day` no run crosses midnight UTC (what the store keeps); else runs are stitched over all.
    """
    placed = _placed(samples, interval)
    cells = _cells(placed).cache()
    mixed = cells.where(~_uniform()).select(*_CELL)
    if mixed.limit(_BROADCAST_CELLS + 1).count() <= _BROADCAST_CELLS:
        mixed = sql.broadcast(mixed)
    # Kept, or `quality` would have the whole export read once more.
    instants = _instants(placed.join(mixed, [*_CELL], "left_semi")).cache()
    whole = cells.where(_uniform()).select(
        "series", "gap_ms", "longer_ms", sql.col("least").alias("value"), "start_ms", "end_ms", "n"
    )
    pieces = whole.unionByName(_pieces(instants))
    return Reduction(runs=stitch(pieces, by_day=by_day), cells=cells, instants=instants)


def stitch(pieces: DataFrame, *, by_day: bool = False) -> DataFrame:
    """Join runs of adjacent chunks: the merge of `runs.merge`, for all series at once. `pieces` are runs with `gap_ms`."""
    keys = ["series", *(["day_number"] if by_day else [])]
    if by_day:
        pieces = pieces.withColumn("day_number", sql.floor(sql.col("start_ms") / _DAY_MS))
    in_order = Window.partitionBy(*keys).orderBy("start_ms")
    another = sql.col("longer_ms") != sql.lag("longer_ms").over(in_order)
    begins = sql.when(another, 1).otherwise(_begins(in_order, start="start_ms", end="end_ms"))
    numbered = pieces.withColumn("begins", begins).withColumn("run", sql.sum("begins").over(in_order))
    return (
        numbered.groupBy(*keys, "run")
        .agg(
            sql.first("value").alias("value"),
            sql.min("start_ms").alias("start_ms"),
            sql.max("end_ms").alias("end_ms"),
            sql.sum("n").alias("n"),
            sql.first("longer_ms").alias("longer_ms"),
        )
        .select("series", "value", "start_ms", "end_ms", "n", "longer_ms")
    )


def quality(reduction: Reduction) -> Quality:
    """Count what was odd; two small jobs."""
    seen = reduction.cells.agg(
        sql.sum("n"), sql.count_distinct("series"), sql.sum(sql.col("n") - sql.col("known")), sql.count("*"),
        sql.count_if(~_uniform()),
    ).collect()[0]  # fmt: skip
    odd = reduction.instants.agg(sql.sum(sql.col("n") - 1), sql.count_if(sql.col("least") != sql.col("greatest")))
    duplicates, conflicting = odd.collect()[0]
    samples, series, stale, cells, again = (value or 0 for value in seen)
    return Quality(
        samples=samples, series=series, stale_markers=stale, duplicates=duplicates or 0,
        conflicting_duplicates=conflicting, cells=cells, cells_read_again=again,
    )  # fmt: skip


def collect_runs(runs: DataFrame) -> list[Run]:
    """The runs as plain objects, ordered by series and time: from here on no Spark is needed."""
    rows = (
        runs.orderBy("series", "start_ms").select("series", "value", "start_ms", "end_ms", "n", "longer_ms").collect()
    )
    return [Run(row[0], row[1], row[2], row[3], row[4], row[5]) for row in rows]


def _placed(samples: DataFrame, interval: Column | Inferred) -> DataFrame:
    """Each sample with its cell, its slot in it, and its series' limits. NaN of any kind (a stale marker is one) is no value."""
    # Adding zero makes one zero of 0.0 and -0.0.
    value = sql.when(~sql.isnan("value"), sql.col("value") + sql.lit(0.0))
    rows = samples.select("series", "ts_ms", value.alias("value"))
    if isinstance(interval, Inferred):
        rows = rows.join(sql.broadcast(with_cells(interval.usual)), "series").withColumn(
            "longer_ms", sql.lit(0).cast("long")
        )
        rows = rows if interval.longer is None else _by_longer(rows, interval.longer)
    else:
        rows = with_cells(rows.withColumn("interval_ms", interval)).withColumn("longer_ms", sql.lit(0).cast("long"))
    cell = sql.floor(sql.col("ts_ms") / sql.col("cell_ms"))
    inside = sql.col("ts_ms") - sql.col("cell") * sql.col("cell_ms")
    slot = sql.floor(inside * sql.col("slots") / sql.col("cell_ms"))
    return rows.withColumn("cell", cell).withColumn("slot", slot)


def _by_longer(rows: DataFrame, longer: DataFrame) -> DataFrame:
    """The samples in ranges of a longer interval with the limits of that one."""
    limits = ("interval_ms", "gap_ms", "cell_ms", "slots", "longer_ms")
    own = with_cells(longer.withColumn("interval_ms", sql.col("longer_ms"))).select(
        sql.col("series").alias("own_series"),
        "from_ms",
        "until_ms",
        *(sql.col(name).alias(f"own_{name}") for name in limits),
    )
    at_ms = sql.col("ts_ms")
    inside = (
        (sql.col("series") == sql.col("own_series")) & (at_ms >= sql.col("from_ms")) & (at_ms < sql.col("until_ms"))
    )
    joined = rows.join(sql.broadcast(own), inside, "left")
    chosen = (sql.coalesce(sql.col(f"own_{name}"), sql.col(name)).alias(name) for name in limits)
    return joined.select("series", "ts_ms", "value", *chosen)


def _cells(placed: DataFrame) -> DataFrame:
    bit = sql.call_function("shiftleft", sql.lit(1).cast("long"), sql.col("slot").cast("int"))
    return placed.groupBy(*_CELL).agg(
        sql.count("*").alias("n"),
        sql.count("value").alias("known"),
        sql.min("value").alias("least"),
        sql.max("value").alias("greatest"),
        sql.min("ts_ms").alias("start_ms"),
        sql.max("ts_ms").alias("end_ms"),
        sql.bit_or(bit).alias("filled"),
        sql.first("longer_ms").alias("longer_ms"),
        sql.first("slots").alias("slots"),
        sql.first(sql.floor(sql.col("cell_ms") / sql.col("interval_ms"))).alias("expected"),
    )


def _uniform() -> Column:
    """Whether a cell is a run: one value (or none at all), a sample in every slot, and no more samples than scrapes."""
    one_value = (sql.col("known") == sql.col("n")) & (sql.col("least") == sql.col("greatest"))
    every_slot = sql.col("filled") == sql.call_function(
        "shiftleft", sql.lit(1).cast("long"), sql.col("slots").cast("int")
    ) - sql.lit(1)
    return (one_value | (sql.col("known") == 0)) & every_slot & (sql.col("n") <= sql.col("expected"))


def _instants(rows: DataFrame) -> DataFrame:
    """One row for each time of a series: duplicates and HA copies become one sample."""
    return rows.groupBy(*_CELL, "longer_ms", "ts_ms").agg(
        sql.min("value").alias("least"), sql.max("value").alias("greatest"), sql.count("*").alias("n")
    )


def _pieces(instants: DataFrame) -> DataFrame:
    """The runs within each cell that was read again."""
    in_order = Window.partitionBy(*_CELL).orderBy("ts_ms")
    value = sql.when(sql.col("least") != sql.col("greatest"), sql.lit(CONFLICT)).otherwise(sql.col("least"))
    rows = instants.withColumn("value", value)
    begins = _begins(in_order, start="ts_ms", end="ts_ms")
    numbered = rows.withColumn("begins", begins).withColumn("run", sql.sum("begins").over(in_order))
    return numbered.groupBy(*_CELL, "longer_ms", "run").agg(
        sql.first("value").alias("value"),
        sql.min("ts_ms").alias("start_ms"),
        sql.max("ts_ms").alias("end_ms"),
        sql.sum("n").alias("n"),
    ).select("series", "gap_ms", "longer_ms", "value", "start_ms", "end_ms", "n")  # fmt: skip


def _begins(in_order: WindowSpec, *, start: str, end: str) -> Column:
    """1 where a run begins: another value than before, or too long after it."""
    before = sql.lag(end).over(in_order)
    same = sql.col("value").eqNullSafe(sql.lag("value").over(in_order))
    joins = before.isNotNull() & same & (sql.col(start) - before <= sql.col("gap_ms"))
    return sql.when(joins, 0).otherwise(1)
