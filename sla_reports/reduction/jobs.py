"""The reduction as Spark runs it: of any frame of samples series by series, of a lake day by day where its files are.

Of a frame, a task gets all samples of a series at once (`runs.series_pieces`), so one look at them gives the scrape interval and
the pieces of runs. A lake's days are sorted already: a task opens one day's file itself, and only pieces leave it; that costs many
times less processor time than to hand its rows to Spark. Files must be where every executor sees them under the same path.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import Window as SqlWindow
from pyspark.sql import functions as sql

from metric_names import LABEL_BROKER_ID, REPLICA_LAG_BYTES
from sla_reports.readers import lake
from sla_reports.readers.samples import ExportFormatError, readable_errors, unpacked
from sla_reports.reduction.runs import (
    DAY_MS,
    DEFAULT_INTERVAL_MS,
    FULLEST_HOURS,
    HOUR_MS,
    HOUR_SCHEMA,
    MIN_INTERVAL_MS,
    PIECE_SCHEMA,
    Intervals,
    Quality,
    day_pieces,
    hour_counts,
    longer_ranges,
    quality_of,
    series_pieces,
    stitched,
    usual_interval,
)
from sla_reports.series import metric_column, parse_series
from sla_reports.session import own, tasks_of
from sla_reports.states.entities import GroupKey
from sla_reports.states.spans import Window

_ROWS_AT_A_TIME: Final = 1_000_000


class IntervalError(ValueError):
    """A scrape interval that is not possible; says what was expected."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """`runs` as a table of RUN_SCHEMA, ordered by series and time; the usual interval of each series; what was odd."""

    runs: pa.Table
    intervals_ms: Mapping[str, int]
    quality: Quality


def reduce_samples(
    samples: DataFrame, interval_ms: int | None = None, *, by_day: bool = False, default_ms: int = DEFAULT_INTERVAL_MS
) -> Reduction:
    """Return the runs of a frame of SAMPLE_SCHEMA or PACKED_SCHEMA. Raises IntervalError.

    `interval_ms` is the scrape interval; without it each series' own is inferred, `default_ms` if it has too few samples. With
    `by_day` no run crosses midnight UTC (what the daily table keeps).
    """
    if interval_ms is not None and not MIN_INTERVAL_MS <= interval_ms <= DAY_MS:
        raise IntervalError(f"scrape interval {interval_ms} ms: expected {MIN_INTERVAL_MS} ms to one day")
    if "samples" not in samples.columns:
        in_day = sql.collect_list(sql.struct("ts_ms", "value")).alias("samples")
        samples = samples.groupBy("series", sql.floor(samples["ts_ms"] / DAY_MS).alias("day")).agg(in_day).drop("day")

    def job(table: pa.Table) -> pa.Table:
        return _reduce_series(table, interval_ms=interval_ms, default_ms=default_ms)

    found = samples.groupBy("series").applyInArrow(job, f"{PIECE_SCHEMA}, interval_ms long").toArrow()
    intervals = dict(zip(found["series"].to_pylist(), found["interval_ms"].to_pylist(), strict=True))
    return Reduction(stitched(found, by_day=by_day), intervals, quality_of(found))


def _reduce_series(table: pa.Table, *, interval_ms: int | None, default_ms: int) -> pa.Table:
    """All packed rows of a series."""
    samples = pa.concat_arrays([chunk.flatten() for chunk in table["samples"].chunks])
    ts_ms, values = samples.field("ts_ms").to_numpy(), samples.field("value").to_numpy(zero_copy_only=False)
    pieces, usual_ms = series_pieces(
        table["series"][0].as_py(), ts_ms, values, interval_ms=interval_ms, default_ms=default_ms
    )
    found = pa.Table.from_batches([pieces])
    return found.append_column("interval_ms", pa.array(np.full(len(found), usual_ms)))


def reduce_lake(
    spark: SparkSession, folder: Path, intervals: Intervals, *, metrics: Collection[str] = (),
    days: Collection[str] = (), by_day: bool = False,
) -> Reduction:  # fmt: skip
    """Return the runs of a lake's samples: of some metrics, of some days, or of all. Raises ExportFormatError."""
    folders = lake.day_folders(folder, days)
    tasks = tasks_of(spark, len(folders))
    with readable_errors():
        pieces = tasks.mapInArrow(partial(_pieces_of, folders, frozenset(metrics), intervals), PIECE_SCHEMA).toArrow()
    runs = stitched(pieces, by_day=by_day)
    known = {name: intervals.known_ms.get(name, intervals.other_ms) for name in pc.unique(runs["series"]).to_pylist()}
    return Reduction(runs, known, quality_of(pieces))


def infer_intervals(
    spark: SparkSession, folder: Path, *, metrics: Collection[str] = (), days: Collection[str] = (),
    default_ms: int = DEFAULT_INTERVAL_MS,
) -> Intervals:  # fmt: skip
    """Return the scrape interval of each series of a lake, as `runs.infer` has it. Only the fullest hours are read as rows."""
    folders = lake.day_folders(folder, days)
    tasks = tasks_of(spark, len(folders))
    parts = tasks.mapInArrow(partial(_hours_of, folders, frozenset(metrics)), HOUR_SCHEMA)
    # An hour that lies in two batches is even where both parts are.
    even = sql.when(sql.min("even_ms") > 0, sql.max("even_ms")).otherwise(0).alias("even_ms")
    counts = parts.groupBy("series", "hour").agg(sql.sum("n").alias("n"), even).cache()
    place = sql.row_number().over(SqlWindow.partitionBy("series").orderBy(sql.desc("n"), "hour"))
    fullest = (
        counts.withColumn("place", place).where(sql.col("place") <= FULLEST_HOURS).select("series", "hour").cache()
    )
    of_day = sql.date_format(sql.timestamp_seconds(sql.col("hour") * 3600), "yyyy-MM-dd")
    needed = [row[0] for row in fullest.select(of_day).distinct().collect()]
    if not needed:
        return Intervals()
    rows = lake.read_days(spark, folder, needed).withColumn("hour", sql.floor(sql.col("ts_ms") / HOUR_MS))
    chosen = rows.join(sql.broadcast(fullest), ["series", "hour"]).groupBy("series")
    times = chosen.agg(sql.sort_array(sql.collect_set("ts_ms")).alias("times")).toArrow()
    usual = {
        name: usual_interval(np.array(one), default_ms=default_ms)
        for name, one in zip(times["series"].to_pylist(), times["times"].to_pylist(), strict=True)
    }
    known = spark.createDataFrame(list(usual.items()), "series string, interval_ms long")
    thin = counts.join(sql.broadcast(known), "series").where(
        sql.col("even_ms") > sql.floor(sql.col("interval_ms") * 5 / 2)
    )
    hours: dict[str, list[tuple[int, int]]] = {}
    for row in thin.select("series", "hour", "even_ms").collect():
        hours.setdefault(row[0], []).append((row[1], row[2]))
    longer = {name: found for name, one in hours.items() if (found := longer_ranges(one))}
    for frame in (counts, fullest):
        frame.unpersist()
    return Intervals(usual, longer=longer)


def _pieces_of(
    folders: list[Path], metrics: frozenset[str], intervals: Intervals, tasks: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for folder in own(folders, tasks):
        yield from day_pieces(partial(_samples, folder, metrics), intervals)


def _hours_of(
    folders: list[Path], metrics: frozenset[str], tasks: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for folder in own(folders, tasks):
        yield from hour_counts(_samples(folder, metrics))


def _samples(folder: Path, metrics: frozenset[str]) -> Iterable[pa.RecordBatch]:
    """The rows of a day's files, some at a time. Raises ExportFormatError for what is no day of samples."""
    begin_ms = lake.begin_ms_of(folder)
    for path in sorted(folder.glob("*.parquet")):
        try:
            with pq.ParquetFile(path, read_dictionary=["series"]) as file:
                columns = ["series", "ts_ms", "value"]
                for batch in file.iter_batches(batch_size=_ROWS_AT_A_TIME, columns=columns, use_threads=False):
                    _check(batch, path, begin_ms)
                    yield _of_metrics(batch, metrics) if metrics else batch
        except (pa.ArrowException, OSError, KeyError) as error:
            raise ExportFormatError(f"lake {path}: {error}; expected Parquet with series, ts_ms, value") from error


def _check(batch: pa.RecordBatch, path: Path, begin_ms: int) -> None:
    times = batch.column("ts_ms")
    if times.null_count or batch.column("series").null_count:
        raise ExportFormatError(f"lake {path}: a sample without series or time; expected both")
    if len(times):
        limits = pc.min_max(times).as_py()
        if limits["min"] < begin_ms or limits["max"] >= begin_ms + DAY_MS:
            raise ExportFormatError(
                f"lake {path}: samples from {limits['min']} to {limits['max']} ms; expected those of the day"
            )


def _of_metrics(batch: pa.RecordBatch, metrics: frozenset[str]) -> pa.RecordBatch:
    series = batch.column("series")
    wanted = pa.array([name.partition("{")[0] in metrics for name in series.dictionary.to_pylist()], pa.bool_())
    return batch if pc.all(wanted).as_py() else batch.filter(wanted.take(series.indices))


def greatest_lag_bytes(samples: DataFrame, window: Window | None) -> dict[GroupKey, int]:
    """Return how many bytes only the master had: the greatest lag of the slave nearest to it, over all scrapes in the window.

    A value that moves at every scrape makes no runs, so this is one number for each group. The master is among the members, with a
    lag of nothing, so the second smallest is that of the nearest slave. Scrapes with one member alone say nothing.
    """
    # The first condition says less, but a Parquet file knows where it can hold.
    near = samples.where(sql.col("series").startswith(REPLICA_LAG_BYTES))
    own = near.where(metric_column(sql.col("series")) == REPLICA_LAG_BYTES)
    lags = (unpacked(own) if "samples" in own.columns else own).where(~sql.isnan("value"))
    if window is not None:
        lags = lags.where(sql.col("ts_ms").between(window.start_ms, window.end_ms - 1))
    # A duplicate sample must not count as two members.
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
