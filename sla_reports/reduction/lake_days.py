"""Reduces a lake by its days: each task opens one day's file itself, and only pieces of runs leave it.

Rows that Spark reads cost a string hash and a table look-up each in the JVM, and to hand them on to Python costs as much again.
A lake's file is sorted already, so a task that reads it as Arrow columns does neither (`day_pieces.py`): many times less processor
time than `cells.reduce_samples` on the same samples, and the same runs. Files must be where every executor sees them under the same
path, as for the readers.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from sla_reports.readers import lake
from sla_reports.readers.samples import ExportFormatError, readable_errors
from sla_reports.reduction.cells import Quality
from sla_reports.reduction.day_pieces import HOUR_SCHEMA, PIECE_SCHEMA, Intervals, day_pieces, hour_counts, stitched
from sla_reports.reduction.intervals import DEFAULT_INTERVAL_MS, fullest, median_distances, ranges
from sla_reports.reduction.longer import ranges_by_series
from sla_reports.tasks import own, tasks_of

_ROWS_AT_A_TIME: Final = 1_000_000
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class LakeReduction:
    """`runs` as a table of RUN_SCHEMA, ordered by series and time, and what was odd. There are no cells: nothing is read twice."""

    runs: pa.Table
    quality: Quality


def reduce_lake(
    spark: SparkSession, folder: Path, intervals: Intervals, *, metrics: Collection[str] = (),
    days: Collection[str] = (), by_day: bool = False,
) -> LakeReduction:  # fmt: skip
    """Runs of a lake's samples: of some metrics, of some days, or of all.

    With `by_day` no run crosses midnight UTC (what the store keeps). Raises ExportFormatError.
    """
    folders = lake.day_folders(folder, days)
    tasks = tasks_of(spark, len(folders))
    with readable_errors():
        pieces = tasks.mapInArrow(partial(_pieces_of, folders, frozenset(metrics), intervals), PIECE_SCHEMA).toArrow()
    return LakeReduction(stitched(pieces, by_day=by_day), _quality(pieces))


def infer_intervals(
    spark: SparkSession, folder: Path, *, metrics: Collection[str] = (), days: Collection[str] = (),
    default_ms: int = DEFAULT_INTERVAL_MS,
) -> Intervals:  # fmt: skip
    """The scrape interval of each series, as `intervals.infer` tells it. Only the days of the fullest hours are read as rows."""
    folders = lake.day_folders(folder, days)
    tasks = tasks_of(spark, len(folders))
    parts = tasks.mapInArrow(partial(_hours_of, folders, frozenset(metrics)), HOUR_SCHEMA)
    # An hour that lies in two batches is even where both parts are.
    even = sql.when(sql.min("even_ms") > 0, sql.max("even_ms")).otherwise(0).alias("even_ms")
    counts = parts.groupBy("series", "hour").agg(sql.sum("n").alias("n"), even).cache()
    chosen = fullest(counts).cache()
    of_day = sql.date_format(sql.timestamp_seconds(sql.col("hour") * 3600), "yyyy-MM-dd")
    needed = [row[0] for row in chosen.select(of_day).distinct().collect()]
    if not needed:
        return Intervals()
    usual = median_distances(lake.read_days(spark, folder, needed), chosen, default_ms=default_ms).cache()
    longer = ranges(counts.where("even_ms > 0"), usual)
    found = Intervals(
        {row[0]: row[1] for row in usual.collect()}, longer=ranges_by_series(tuple(row) for row in longer.collect())
    )
    for frame in (counts, chosen, usual):
        frame.unpersist()
    return found


def _quality(pieces: pa.Table) -> Quality:
    stale = pieces.filter(pc.is_null(pieces["value"]))
    samples, markers, duplicates, conflicts = (
        pc.sum(column).as_py() or 0 for column in (pieces["n"], stale["n"], pieces["duplicates"], pieces["conflicts"])
    )
    series = pc.count_distinct(pieces["series"]).as_py()
    return Quality(samples, series, markers, duplicates, conflicts, cells=0, cells_read_again=0)


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


def _samples(folder: Path, metrics: frozenset[str]) -> Iterator[pa.RecordBatch]:
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
        if limits["min"] < begin_ms or limits["max"] >= begin_ms + _DAY_MS:
            raise ExportFormatError(
                f"lake {path}: samples from {limits['min']} to {limits['max']} ms; expected those of the day"
            )


def _of_metrics(batch: pa.RecordBatch, metrics: frozenset[str]) -> pa.RecordBatch:
    series = batch.column("series")
    wanted = pa.array([name.partition("{")[0] in metrics for name in series.dictionary.to_pylist()], pa.bool_())
    return batch if pc.all(wanted).as_py() else batch.filter(wanted.take(series.indices))
