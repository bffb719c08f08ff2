"""How often a series is scraped, and what follows from it: the gap limit, and the cells of the first level of reduction.

The interval is given, or inferred per series: the median distance of neighbouring distinct samples in the series' three fullest
hours. So neither an export that was read twice nor a long silence changes it.

A cell is a time slice that is reduced to one row where its samples all say the same. It is cut into slots half a gap limit wide;
where every slot holds a sample no two neighbours are further apart than the limit. Sixty slots fit one `long`, which
the JVM fills by `bit_or`: proof that a cell has no gap, without looking at neighbours. Cells divide the day, so that a day's cells
are the same whether the day is reduced alone or in its month.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sql

DEFAULT_INTERVAL_MS = 15_000
MIN_INTERVAL_MS = 20
_HOUR_MS = 3_600_000
_FULLEST_HOURS = 3
_MAX_SLOTS = 60
_CELLS_MS = (
    1_000, 2_000, 5_000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000, 900_000, 1_800_000, 3_600_000,
    7_200_000, 14_400_000, 43_200_000, 86_400_000,
)  # fmt: skip


class IntervalError(ValueError):
    """A scrape interval nobody can have; says what was expected."""


def given(interval_ms: int) -> DataFrame | Column:
    """One interval for all series. Raises IntervalError."""
    if not MIN_INTERVAL_MS <= interval_ms <= 86_400_000:
        raise IntervalError(f"scrape interval {interval_ms} ms: expected {MIN_INTERVAL_MS} ms to one day")
    return sql.lit(interval_ms).cast("long")


def infer(samples: DataFrame, *, default_ms: int = DEFAULT_INTERVAL_MS) -> DataFrame:
    """`series, interval_ms` of every series; `default_ms` where there are too few samples to tell."""
    hour = sql.floor(samples["ts_ms"] / _HOUR_MS)
    counts = samples.groupBy("series", hour.alias("hour")).agg(sql.count("*").alias("n"))
    return median_distances(samples, fullest(counts), default_ms=default_ms)


def fullest(counts: DataFrame) -> DataFrame:
    """`series, hour` of the three fullest hours of each series, out of `series, hour, n`."""
    fullest_first = Window.partitionBy("series").orderBy(sql.desc("n"), "hour")
    ranked = counts.withColumn("place", sql.row_number().over(fullest_first))
    return ranked.where(sql.col("place") <= _FULLEST_HOURS).select("series", "hour")


def median_distances(samples: DataFrame, chosen: DataFrame, *, default_ms: int) -> DataFrame:
    """`series, interval_ms`: the median distance of distinct neighbouring samples in the chosen hours."""
    hour = sql.floor(samples["ts_ms"] / _HOUR_MS)
    rows = samples.withColumn("hour", hour).join(sql.broadcast(chosen), ["series", "hour"])
    in_order = Window.partitionBy("series", "hour").orderBy("ts_ms")
    distances = (
        rows.select("series", "hour", "ts_ms")
        .distinct()
        .withColumn("distance", sql.col("ts_ms") - sql.lag("ts_ms").over(in_order))
    )
    median = sql.expr("percentile_disc(0.5) within group (order by distance)").cast("long")
    told = sql.greatest(sql.coalesce(median, sql.lit(default_ms)), sql.lit(MIN_INTERVAL_MS))
    return distances.groupBy("series").agg(told.cast("long").alias("interval_ms"))


def with_cells(frame: DataFrame) -> DataFrame:
    """Adds to `interval_ms`: `gap_ms`, `cell_ms`, and `slots`, the number of slots of a cell."""
    gap = sql.floor(sql.col("interval_ms") * 5 / 2).cast("long")
    # Of a given interval Spark works this out once, when it plans; a lambda over an array it would ask for every sample.
    most_ms = sql.col("gap_ms") * _MAX_SLOTS / 2
    cell = sql.greatest(*(sql.when(most_ms >= size, sql.lit(size).cast("long")) for size in _CELLS_MS))
    slots = sql.ceil(sql.col("cell_ms") * 2 / sql.col("gap_ms")).cast("long")
    return frame.withColumn("gap_ms", gap).withColumn("cell_ms", cell).withColumn("slots", slots)
