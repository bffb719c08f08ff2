"""How often a series is scraped, and what follows from it: the gap limit, and the cells of the first level of reduction.

The interval is given, or inferred per series: the median distance of neighbouring distinct samples in the series' three fullest
hours. So neither an export that was read twice nor a long silence changes it. Hours at a longer one have that (`longer.py`).

A cell is a time slice that is reduced to one row where its samples all say the same. It is cut into slots half a gap limit wide;
where every slot holds a sample no two neighbours are further apart than the limit. Sixty slots fit one `long`, which
the JVM fills by `bit_or`: proof that a cell has no gap, without looking at neighbours. Cells divide the day, so that a day's cells
are the same whether the day is reduced alone or in its month.
"""

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sql

from sla_reports.reduction.longer import (
    ALIKE_PART,
    HOUR_MS,
    LEAST_DISTANCES,
    LEAST_HOURS,
    MOST_RANGES,
    MOST_UNLIKE,
    ROUNDED_FROM_MS,
    ROUNDED_TO_MS,
)

DEFAULT_INTERVAL_MS = 15_000
MIN_INTERVAL_MS = 20
_FULLEST_HOURS = 3
_MAX_SLOTS = 60
_CELLS_MS = (
    1_000, 2_000, 5_000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000, 900_000, 1_800_000, 3_600_000,
    7_200_000, 14_400_000, 43_200_000, 86_400_000,
)  # fmt: skip


class IntervalError(ValueError):
    """A scrape interval nobody can have; says what was expected."""


@dataclass(frozen=True, slots=True)
class Inferred:
    """`usual` is `series, interval_ms`, a row a series; `longer` is what `ranges` says, or None. Cached until `unpersist`."""

    usual: DataFrame
    longer: DataFrame | None = None
    counts: DataFrame | None = None

    def unpersist(self) -> None:
        """Give the memory back."""
        for frame in (self.usual, self.longer, self.counts):
            if frame is not None:
                frame.unpersist()


def given(interval_ms: int) -> Column:
    """One interval for all series. Raises IntervalError."""
    if not MIN_INTERVAL_MS <= interval_ms <= 86_400_000:
        raise IntervalError(f"scrape interval {interval_ms} ms: expected {MIN_INTERVAL_MS} ms to one day")
    return sql.lit(interval_ms).cast("long")


def infer(samples: DataFrame, *, default_ms: int = DEFAULT_INTERVAL_MS) -> Inferred:
    """The interval of every series; `default_ms` where there are too few samples to tell. Both frames are kept: see `Inferred`."""
    hour = sql.floor(samples["ts_ms"] / HOUR_MS)
    counts = samples.groupBy("series", hour.alias("hour")).agg(sql.count("*").alias("n")).cache()
    usual = median_distances(samples, fullest(counts), default_ms=default_ms).cache()
    hours = even_hours(samples, counts, usual)
    return Inferred(usual, None if hours is None else ranges(hours, usual).cache(), counts)


def fullest(counts: DataFrame) -> DataFrame:
    """`series, hour` of the three fullest hours of each series, out of `series, hour, n`."""
    fullest_first = Window.partitionBy("series").orderBy(sql.desc("n"), "hour")
    ranked = counts.withColumn("place", sql.row_number().over(fullest_first))
    return ranked.where(sql.col("place") <= _FULLEST_HOURS).select("series", "hour")


def median_distances(samples: DataFrame, chosen: DataFrame, *, default_ms: int) -> DataFrame:
    """`series, interval_ms`: the median distance of distinct neighbouring samples in the chosen hours."""
    hour = sql.floor(samples["ts_ms"] / HOUR_MS)
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


def even_hours(samples: DataFrame, counts: DataFrame, usual: DataFrame) -> DataFrame | None:
    """`series, hour, even_ms` of the hours that have too few samples for the usual interval; None where there is no such hour.

    `counts` are `series, hour, n`; `usual` is `series, interval_ms`. Reads the samples once more, but only for such hours.
    """
    known = counts.join(sql.broadcast(usual), "series")
    # Twice: an export may hold each sample twice.
    most = sql.lit(2 * HOUR_MS) / _gap(sql.col("interval_ms"))
    few = _often(known.where((sql.col("n") > LEAST_DISTANCES) & (sql.col("n") <= most))).select("series", "hour")
    if few.isEmpty():
        return None
    rows = samples.withColumn("hour", sql.floor(samples["ts_ms"] / HOUR_MS)).join(few, ["series", "hour"])
    times = rows.groupBy("series", "hour").agg(sql.sort_array(sql.collect_set("ts_ms")).alias("times"))
    median = "element_at(array_sort(distances), cast((size(distances) + 1) div 2 as int))"
    longer = f"size(filter(distances, one -> (one - median) * {ALIKE_PART} > median)) <= {MOST_UNLIKE}"
    even = f"{longer} and (median - array_min(distances)) * {ALIKE_PART} <= median"
    return (
        times.where(sql.size("times") > LEAST_DISTANCES)
        .selectExpr(
            "series", "hour", "transform(slice(times, 2, size(times)), (one, at) -> one - times[at]) as distances"
        )
        .selectExpr("series", "hour", "distances", f"{median} as median")
        .selectExpr("series", "hour", f"if({even}, median, 0L) as even_ms")
    )


def ranges(hours: DataFrame, usual: DataFrame) -> DataFrame:
    """`series, from_ms, until_ms, longer_ms`: hours in a row of one longer interval, of `series, hour, even_ms`."""
    even = sql.col("even_ms")
    rounded = sql.when(even >= ROUNDED_FROM_MS, sql.round(even / ROUNDED_TO_MS) * ROUNDED_TO_MS).otherwise(even)
    known = hours.join(sql.broadcast(usual), "series").where(even > _gap(sql.col("interval_ms")))
    known = _often(known).select("series", "hour", rounded.cast("long").alias("longer_ms"))
    in_order = Window.partitionBy("series").orderBy("hour")
    goes_on = (sql.lag("hour").over(in_order) == sql.col("hour") - 1) & (
        sql.lag("longer_ms").over(in_order) == sql.col("longer_ms")
    )
    numbered = known.withColumn("begins", sql.when(goes_on, 0).otherwise(1))
    numbered = numbered.withColumn("number", sql.sum("begins").over(in_order))
    found = numbered.groupBy("series", "number", "longer_ms").agg(
        (sql.min("hour") * HOUR_MS).cast("long").alias("from_ms"),
        ((sql.max("hour") + 1) * HOUR_MS).cast("long").alias("until_ms"),
    )
    longest_first = Window.partitionBy("series").orderBy(sql.col("from_ms") - sql.col("until_ms"), "from_ms")
    ranked = found.withColumn("place", sql.row_number().over(longest_first))
    return ranked.where(sql.col("place") <= MOST_RANGES).select("series", "from_ms", "until_ms", "longer_ms")


def _often(hours: DataFrame) -> DataFrame:
    """The hours of series that have enough of them."""
    of_series = sql.count("*").over(Window.partitionBy("series"))
    return hours.withColumn("hours", of_series).where(sql.col("hours") >= LEAST_HOURS)


def with_cells(frame: DataFrame) -> DataFrame:
    """Adds to `interval_ms`: `gap_ms`, `cell_ms`, and `slots`, the number of slots of a cell."""
    gap = sql.floor(sql.col("interval_ms") * 5 / 2).cast("long")
    # Of a given interval Spark works this out once, when it plans; a lambda over an array it would ask for every sample.
    most_ms = sql.col("gap_ms") * _MAX_SLOTS / 2
    cell = sql.greatest(*(sql.when(most_ms >= size, sql.lit(size).cast("long")) for size in _CELLS_MS))
    slots = sql.ceil(sql.col("cell_ms") * 2 / sql.col("gap_ms")).cast("long")
    return frame.withColumn("gap_ms", gap).withColumn("cell_ms", cell).withColumn("slots", slots)


def _gap(interval_ms: Column) -> Column:
    return sql.floor(interval_ms * 5 / 2)
