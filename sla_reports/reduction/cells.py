"""From samples to runs in the JVM, exactly, with no Python in any row's way; and how often each series is scraped.

First level: each (series, cell) becomes one row: count, smallest and greatest value, first and last time, and which slots hold a
sample. A cell whose samples all say the same, without a gap, *is* a run. Second level: only the other cells are read again, row
by row, with a window over the few rows they have. Then runs that touch are stitched.

A cell is a slice of time, cut into slots half a gap limit wide: where every slot holds a sample, no two neighbours are further
apart than the limit. Sixty slots fit one `long`, which the JVM fills by `bit_or`. Cells divide the day, so a day alone has the
same cells.
"""

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as SqlWindow
from pyspark.sql import functions as sql
from pyspark.sql.window import WindowSpec

from metric_names import LABEL_BROKER_ID, REPLICA_LAG_BYTES
from sla_reports.reduction.runs import (
    ALIKE_PART,
    CONFLICT,
    HOUR_MS,
    LEAST_DISTANCES,
    LEAST_HOURS,
    MOST_RANGES,
    MOST_UNLIKE,
    ROUNDED_FROM_MS,
    ROUNDED_TO_MS,
    Run,
)
from sla_reports.series import metric_column, parse_series
from sla_reports.states.entities import GroupKey
from sla_reports.states.spans import Window

_DAY_MS = 86_400_000
# More mixed cells than this are not sent to every task: a join by shuffle is cheaper then.
_BROADCAST_CELLS = 500_000
# A cell of four hours may hold an hour of another interval, and with it another gap limit.
_CELL = ("series", "cell", "gap_ms")
DEFAULT_INTERVAL_MS = 15_000
MIN_INTERVAL_MS = 20
_FULLEST_HOURS = 3
_MAX_SLOTS = 60
_CELLS_MS = (
    1_000, 2_000, 5_000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000, 900_000, 1_800_000, 3_600_000,
    7_200_000, 14_400_000, 43_200_000, 86_400_000,
)  # fmt: skip


class IntervalError(ValueError):
    """A scrape interval that is not possible; says what was expected."""


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
    fullest_first = SqlWindow.partitionBy("series").orderBy(sql.desc("n"), "hour")
    ranked = counts.withColumn("place", sql.row_number().over(fullest_first))
    return ranked.where(sql.col("place") <= _FULLEST_HOURS).select("series", "hour")


def median_distances(samples: DataFrame, chosen: DataFrame, *, default_ms: int) -> DataFrame:
    """`series, interval_ms`: the median distance of distinct neighbouring samples in the chosen hours."""
    hour = sql.floor(samples["ts_ms"] / HOUR_MS)
    rows = samples.withColumn("hour", hour).join(sql.broadcast(chosen), ["series", "hour"])
    in_order = SqlWindow.partitionBy("series", "hour").orderBy("ts_ms")
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
    in_order = SqlWindow.partitionBy("series").orderBy("hour")
    goes_on = (sql.lag("hour").over(in_order) == sql.col("hour") - 1) & (
        sql.lag("longer_ms").over(in_order) == sql.col("longer_ms")
    )
    numbered = known.withColumn("begins", sql.when(goes_on, 0).otherwise(1))
    numbered = numbered.withColumn("number", sql.sum("begins").over(in_order))
    found = numbered.groupBy("series", "number", "longer_ms").agg(
        (sql.min("hour") * HOUR_MS).cast("long").alias("from_ms"),
        ((sql.max("hour") + 1) * HOUR_MS).cast("long").alias("until_ms"),
    )
    longest_first = SqlWindow.partitionBy("series").orderBy(sql.col("from_ms") - sql.col("until_ms"), "from_ms")
    ranked = found.withColumn("place", sql.row_number().over(longest_first))
    return ranked.where(sql.col("place") <= MOST_RANGES).select("series", "from_ms", "until_ms", "longer_ms")


def _often(hours: DataFrame) -> DataFrame:
    """The hours of series that have enough of them."""
    of_series = sql.count("*").over(SqlWindow.partitionBy("series"))
    return hours.withColumn("hours", of_series).where(sql.col("hours") >= LEAST_HOURS)


def _gap(interval_ms: Column) -> Column:
    return sql.floor(interval_ms * 5 / 2)


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
    in_order = SqlWindow.partitionBy(*keys).orderBy("start_ms")
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


def with_cells(frame: DataFrame) -> DataFrame:
    """Adds to `interval_ms`: `gap_ms`, `cell_ms`, and `slots`, the number of slots of a cell."""
    gap = sql.floor(sql.col("interval_ms") * 5 / 2).cast("long")
    # Of a given interval Spark works this out once, when it plans; a lambda over an array it would ask for every sample.
    most_ms = sql.col("gap_ms") * _MAX_SLOTS / 2
    cell = sql.greatest(*(sql.when(most_ms >= size, sql.lit(size).cast("long")) for size in _CELLS_MS))
    slots = sql.ceil(sql.col("cell_ms") * 2 / sql.col("gap_ms")).cast("long")
    return frame.withColumn("gap_ms", gap).withColumn("cell_ms", cell).withColumn("slots", slots)


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
    in_order = SqlWindow.partitionBy(*_CELL).orderBy("ts_ms")
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


def greatest_lag_bytes(samples: DataFrame, window: Window | None) -> dict[GroupKey, int]:
    """Of every group with two members at a scrape in the window (without one: in all samples)."""
    # The first condition says less, but a Parquet file knows where it can hold.
    near = samples.where(sql.col("series").startswith(REPLICA_LAG_BYTES))
    lags = near.where(metric_column(sql.col("series")) == REPLICA_LAG_BYTES).where(~sql.isnan("value"))
    if window is not None:
        lags = lags.where(sql.col("ts_ms").between(window.start_ms, window.end_ms - 1))
    # A sample that stands twice must not pass for two members.
    members = lags.groupBy("series", "ts_ms").agg(sql.min("value").alias("value"))
    group = without_label(sql.col("series"), LABEL_BROKER_ID).alias("of")
    at_once = members.groupBy(group, "ts_ms").agg(sql.sort_array(sql.collect_list("value")).alias("lags"))
    nearest = at_once.where(sql.size("lags") > 1).select("of", sql.col("lags")[1].alias("lag"))
    found: dict[GroupKey, int] = {}
    for row in nearest.groupBy("of").agg(sql.max("lag").alias("lag")).collect():
        key = GroupKey.of_series(parse_series(row["of"]))
        found[key] = max(found.get(key, 0), round(row["lag"]))
    return found


def without_label(series: Column, label: str) -> Column:
    """Return a series' text without one label."""
    value = r'"(?:[^"\\]|\\.)*"'
    first = sql.regexp_replace(series, rf"(?s)([{{]){label}={value},?", "$1")
    other = sql.regexp_replace(first, rf"(?s),{label}={value}", "")
    return sql.regexp_replace(other, r"[{][}]$", "")
