"""Keeps samples as Parquet, a folder a day, and reads them back: the form for months and years.

`<lake>/day=2026-10-25/part-*.parquet`, days in UTC, sorted by series and time, zstd: 10 million samples are about 6 MB. Stale
markers keep their bits. Each sample stands once: equal duplicates are dropped, conflicting ones too, and both are counted.

Late data rewrites the days it belongs to and no other: new and old samples are written aside, and the day's folder is put in
place of the old one by renaming. A writer that is killed between the two renames leaves the old day under `_replaced`; the next
write or read puts it back. One writer at a time.
"""

import datetime as dt
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from sla_reports.readers.contract import SAMPLE_SCHEMA, ExportFormatError, Samples
from sla_reports.readers.duplicates import once
from sla_reports.readers.errors import readable_errors
from sla_reports.readers.lines import no_anomalies

_REPLACED: Final = "_replaced"
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class Written:
    """What one write did: the days it (re)wrote, how many samples they hold, and what was dropped."""

    days: tuple[str, ...]
    samples: int
    equal_duplicates: int
    conflicting_duplicates: int


def write(spark: SparkSession, frame: DataFrame, lake: Path | str) -> Written:
    """Add samples to the lake, one file a day. Raises what the frame's reader raises; the lake is then as it was."""
    folder = Path(lake)
    folder.mkdir(parents=True, exist_ok=True)
    _put_back(folder)
    day = sql.date_format(sql.timestamp_millis("ts_ms"), "yyyy-MM-dd").alias("day")
    incoming = frame.select("*", day).persist()
    aside = folder / f"_new-{uuid.uuid4().hex}"
    try:
        with readable_errors():
            days = [row["day"] for row in incoming.select("day").distinct().orderBy("day").collect()]
            known = [name for name in days if (folder / f"day={name}").is_dir()]
            if known:
                old = _days(spark, folder, known).withColumn("day", day)
                incoming_and_old = incoming.unionByName(old)
            else:
                incoming_and_old = incoming
            written = _write_aside(incoming_and_old, aside, days)
        for name in days:
            _put_in_place(folder, aside, name)
    finally:
        incoming.unpersist()
        shutil.rmtree(aside, ignore_errors=True)
    return written


def read(spark: SparkSession, lake: Path | str, *, start_ms: int | None = None, end_ms: int | None = None) -> Samples:
    """The lake's samples in [start, end); only the days that are needed are opened."""
    folder = Path(lake)
    if not folder.is_dir():
        raise ExportFormatError(f"lake {folder}: no such folder")
    _put_back(folder)
    names = [path.name.removeprefix("day=") for path in sorted(folder.glob("day=*"))]
    wanted = [name for name in names if _overlaps(name, folder, start_ms, end_ms)]
    if not wanted:
        return Samples(spark.createDataFrame([], SAMPLE_SCHEMA), no_anomalies(spark))
    frame = _days(spark, folder, wanted)
    if start_ms is not None:
        frame = frame.where(sql.col("ts_ms") >= start_ms)
    if end_ms is not None:
        frame = frame.where(sql.col("ts_ms") < end_ms)
    return Samples(frame, no_anomalies(spark))


def _days(spark: SparkSession, folder: Path, names: list[str]) -> DataFrame:
    paths = [str(folder / f"day={name}") for name in names]
    try:
        return spark.read.schema(SAMPLE_SCHEMA).parquet(*paths)
    except AnalysisException as error:
        raise ExportFormatError(f"lake {folder}: {error}") from error


def _write_aside(frame: DataFrame, aside: Path, days: list[str]) -> Written:
    # Hashed by day, the duplicates' groups need no shuffle of their own: a day is one task and one file.
    grouped = once(frame.repartition(max(1, len(days)), "day"), "day").persist()
    try:
        wrong = sql.col("conflict")
        rows = (
            grouped.where(~wrong)
            .sortWithinPartitions("day", "series", "ts_ms")
            .select("day", "series", "ts_ms", "value")
        )
        rows.write.partitionBy("day").option("compression", "zstd").parquet(str(aside))
        counts = grouped.agg(
            sql.count_if(~wrong).alias("samples"),
            sql.coalesce(sql.sum(sql.when(~wrong, sql.col("times") - 1)), sql.lit(0)).alias("equal"),
            sql.coalesce(sql.sum(sql.when(wrong, sql.col("times"))), sql.lit(0)).alias("conflicting"),
        ).collect()[0]
    finally:
        grouped.unpersist()
    return Written(tuple(days), counts["samples"], counts["equal"], counts["conflicting"])


def _put_in_place(folder: Path, aside: Path, day: str) -> None:
    new, here, replaced = aside / f"day={day}", folder / f"day={day}", folder / _REPLACED / f"day={day}"
    if here.is_dir():
        replaced.parent.mkdir(exist_ok=True)
        here.rename(replaced)
    if new.is_dir():
        new.rename(here)
    shutil.rmtree(replaced, ignore_errors=True)


def _put_back(folder: Path) -> None:
    """Finish or undo what a killed writer left between its two renames."""
    for replaced in sorted((folder / _REPLACED).glob("day=*")):
        here = folder / replaced.name
        if here.is_dir():
            shutil.rmtree(replaced)
        else:
            replaced.rename(here)


def _overlaps(name: str, folder: Path, start_ms: int | None, end_ms: int | None) -> bool:
    try:
        begin = dt.datetime.strptime(name, "%Y-%m-%d").replace(tzinfo=dt.UTC)
    except ValueError as error:
        raise ExportFormatError(f"lake {folder}: folder day={name}; expected day=YYYY-MM-DD") from error
    begin_ms = int(begin.timestamp() * 1000)
    return (end_ms is None or begin_ms < end_ms) and (start_ms is None or begin_ms + _DAY_MS > start_ms)
