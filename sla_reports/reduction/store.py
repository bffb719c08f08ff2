"""The `runs` table: a day's samples are reduced once, and a month's report reads thirty small files.

    runs/day=2026-10-31/*.parquet      runs of that UTC day (RUN_SCHEMA); none crosses midnight
    intervals/*.parquet                series, interval_ms: as first seen, for the gap rule must not change under stored runs
    store.json                         the version of this layout
    late.jsonl                         what came after its day, in numbers (late.py)

A day is written whole and replaces what was there: late data means to write its day again, nothing else. Runs are stitched over
midnights when they are read. Both directions are exact, so a report from the table is the report from all samples.
"""

import datetime as dt
import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from sla_reports.reduction.cells import Quality, quality, reduce_samples, stitch
from sla_reports.reduction.day_pieces import Intervals
from sla_reports.reduction.intervals import DEFAULT_INTERVAL_MS, infer, with_cells
from sla_reports.reduction.lake_days import infer_intervals, reduce_lake
from sla_reports.reduction.late import Late, note_late
from sla_reports.reduction.runs import RUN_SCHEMA

LAYOUT_VERSION = 1
_DAY_MS = 86_400_000
_INTERVAL_SCHEMA = "series string, interval_ms long"


class StoreError(Exception):
    """A folder is no table of runs that this version can read; says what was expected."""


@dataclass(frozen=True, slots=True)
class Appended:
    """What an append did: the days it wrote, which of them it replaced, with what change, and what was odd about the samples."""

    days: tuple[dt.date, ...]
    replaced: tuple[dt.date, ...]
    late: tuple[Late, ...]
    quality: Quality


def append_days(
    spark: SparkSession, store: Path, samples: DataFrame, *, interval_ms: int | None = None,
    default_ms: int = DEFAULT_INTERVAL_MS,
) -> Appended:  # fmt: skip
    """Reduce samples and write every UTC day that occurs in them, whole. The frame must hold each such day completely.

    `interval_ms` is the scrape interval of series that the table does not know yet; without it, it is inferred.
    """
    _check(store, may_be_new=True)
    samples = samples.cache()
    intervals = _intervals(spark, store, samples, interval_ms, default_ms)
    reduction = reduce_samples(samples, intervals, by_day=True)
    appended = _write(store, reduction.runs, quality(reduction))
    for frame in (samples, intervals):
        frame.unpersist()
    reduction.unpersist()
    return appended


def append_lake(
    spark: SparkSession, store: Path, lake: Path, *, days: Collection[str] = (), metrics: Collection[str] = (),
    interval_ms: int | None = None,
) -> Appended:  # fmt: skip
    """As `append_days`, of a lake's days (as 2026-10-31; all, if none is named) and metrics (or all of them)."""
    _check(store, may_be_new=True)
    known = _known_intervals(spark, store)
    told = dict(known)
    if interval_ms is None:
        told = {**infer_intervals(spark, lake, metrics=metrics, days=days), **known}
    reduction = reduce_lake(
        spark, lake, Intervals(told, interval_ms or 0), metrics=metrics, days=days, by_day=True
    )  # fmt: skip
    appended = _write(store, spark.createDataFrame(reduction.runs, RUN_SCHEMA), reduction.quality)
    seen = sorted(set(reduction.runs["series"].to_pylist()) - set(known))
    fresh = [(series, told.get(series, interval_ms)) for series in seen]
    if fresh:
        spark.createDataFrame(fresh, _INTERVAL_SCHEMA).coalesce(1).write.mode("append").parquet(
            str(store / "intervals")
        )
    return appended


def _write(store: Path, runs: DataFrame, told: Quality) -> Appended:
    """Write the days that occur, whole, and note what is not as it was in those that were there."""
    days = sql.to_date(sql.timestamp_millis("start_ms")).cast("string")
    dated = runs.withColumn("day", days).cache()
    found = tuple(sorted(dt.date.fromisoformat(row[0]) for row in dated.select("day").distinct().collect()))
    before = set(days_in(store))
    replaced = tuple(day for day in found if day in before)
    late = note_late(store, dated, replaced)
    (
        dated.repartition("day")
        .sortWithinPartitions("series", "start_ms")
        .write.mode("overwrite")
        .option("partitionOverwriteMode", "dynamic")
        .partitionBy("day")
        .parquet(str(store / "runs"))
    )
    dated.unpersist()
    return Appended(found, replaced, late, told)


def read_runs(spark: SparkSession, store: Path, *, start_ms: int, end_ms: int) -> DataFrame:
    """Runs (RUN_SCHEMA) of the days that touch the time, and of a day before and after: they tell what holds at the edges."""
    _check(store)
    first, last = day_of(start_ms - _DAY_MS), day_of(end_ms + _DAY_MS)
    runs = spark.read.schema(f"{RUN_SCHEMA}, day string").parquet(str(store / "runs"))
    near = runs.where(sql.col("day").between(first.isoformat(), last.isoformat())).drop("day")
    gaps = with_cells(stored_intervals(spark, store)).select("series", "gap_ms")
    return stitch(near.join(sql.broadcast(gaps), "series"))


def stored_intervals(spark: SparkSession, store: Path) -> DataFrame:
    """`series, interval_ms` of every series of the table."""
    return spark.read.schema(_INTERVAL_SCHEMA).parquet(str(store / "intervals"))


def days_in(store: Path) -> list[dt.date]:
    """The days of the table, in order."""
    return sorted(dt.date.fromisoformat(folder.name.removeprefix("day=")) for folder in (store / "runs").glob("day=*"))


def _known_intervals(spark: SparkSession, store: Path) -> dict[str, int]:
    if not (store / "intervals").is_dir():
        return {}
    return {row["series"]: row["interval_ms"] for row in stored_intervals(spark, store).collect()}


def _intervals(
    spark: SparkSession, store: Path, samples: DataFrame, interval_ms: int | None, default_ms: int
) -> DataFrame:
    """Of the known series as stored, of new ones as given or inferred; new ones are stored."""
    fresh = samples
    known = None
    if (store / "intervals").is_dir():
        known = stored_intervals(spark, store)
        fresh = samples.join(sql.broadcast(known.select("series")), "series", "left_anti")
    if interval_ms is None:
        told = infer(fresh, default_ms=default_ms)
    else:
        told = fresh.select("series").distinct().withColumn("interval_ms", sql.lit(interval_ms).cast("long"))
    told = told.cache()
    if told.count():
        told.coalesce(1).write.mode("append").parquet(str(store / "intervals"))
    return told if known is None else known.unionByName(told)


def _check(store: Path, *, may_be_new: bool = False) -> None:
    marker = store / "store.json"
    if may_be_new and not marker.exists() and (not store.exists() or not any(store.iterdir())):
        store.mkdir(parents=True, exist_ok=True)
        marker.write_text(json.dumps({"layoutVersion": LAYOUT_VERSION}) + "\n")
    try:
        version = json.loads(marker.read_bytes())["layoutVersion"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"runs table {store}: expected a folder with a store.json ({error!r})") from error
    if version != LAYOUT_VERSION:
        raise StoreError(f"runs table {store}: layoutVersion {version!r}; expected {LAYOUT_VERSION}")


def day_of(at_ms: int) -> dt.date:
    """The UTC day of an instant."""
    return dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC).date()
