"""Keeps samples as Parquet, a folder a day, and reads them back: the form for months and years.

`<lake>/day=2026-10-25/part-*.parquet`, days in UTC, sorted by series and time, zstd: 10 million samples are about 6 MB. Each sample
stands once; samples that contradict each other are kept, so that a report disputes them. Late data rewrites the days it belongs to:
new and old samples are written aside, and the day's folder takes the place of the old one by renaming. A writer that is killed
between the two renames leaves the old day under `_replaced`; the next write or read puts it back. One writer at a time.
"""

import datetime as dt
import shutil
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as sql

from sla_reports.readers.samples import SAMPLE_SCHEMA, ExportFormatError, Samples, readable_errors

_REPLACED: Final = "_replaced"
_DAY_MS: Final = 86_400_000
# As many days as are sorted at a time, at most, where there are as many cores.
_TASKS: Final = 32


@dataclass(frozen=True, slots=True)
class Written:
    """The days that one write (re)wrote, their samples, the equal duplicates it dropped, the conflicting ones it kept."""

    days: tuple[str, ...]
    samples: int
    equal_duplicates: int
    conflicting_duplicates: int


def write(spark: SparkSession, frame: DataFrame, lake: Path | str) -> Written:
    """Add samples to the lake, one file a day. Raises what the frame's reader raises; the lake is then as it was."""
    folder = Path(lake)
    folder.mkdir(parents=True, exist_ok=True)
    _put_back(folder)
    with tempfile.TemporaryDirectory(dir=folder, prefix="_new-") as scratch, readable_errors():
        fresh, merged = Path(scratch) / "fresh", Path(scratch) / "merged"
        equal, conflicting = _write_days(frame, fresh)
        days = sorted(path.name.removeprefix("day=") for path in fresh.glob("day=*"))
        known = [name for name in days if (folder / f"day={name}").is_dir()]
        if known:
            both = read_days(spark, folder, known).unionByName(read_days(spark, fresh, known))
            more_equal, more_conflicting = _write_days(both, merged)
            equal, conflicting = equal + more_equal, conflicting + more_conflicting
        for name in days:
            _put_in_place(folder, merged if name in known else fresh, name)
    samples = read_days(spark, folder, days).count() if days else 0
    return Written(tuple(days), samples, equal, conflicting)


def read(spark: SparkSession, lake: Path | str, *, start_ms: int | None = None, end_ms: int | None = None) -> Samples:
    """Read the lake's samples in [start, end); only the days of that time are opened."""
    folder = Path(lake)
    names = [path.name.removeprefix("day=") for path in day_folders(folder)]
    begins = {name: begin_ms_of(folder / f"day={name}") for name in names}
    wanted = [
        name
        for name, begin_ms in begins.items()
        if (end_ms is None or begin_ms < end_ms) and (start_ms is None or begin_ms + _DAY_MS > start_ms)
    ]
    if not wanted:
        return Samples(spark.createDataFrame([], SAMPLE_SCHEMA))
    frame = read_days(spark, folder, wanted)
    if start_ms is not None:
        frame = frame.where(sql.col("ts_ms") >= start_ms)
    if end_ms is not None:
        frame = frame.where(sql.col("ts_ms") < end_ms)
    return Samples(frame)


def day_folders(folder: Path, names: Collection[str] = ()) -> list[Path]:
    """Return the folders of the named days that exist, or of all days, in order. Raises ExportFormatError."""
    if not folder.is_dir():
        raise ExportFormatError(f"lake {folder}: no such folder")
    _put_back(folder)
    found = sorted(folder.glob("day=*"))
    return [path for path in found if not names or path.name.removeprefix("day=") in names]


def read_days(spark: SparkSession, folder: Path, names: list[str]) -> DataFrame:
    """Read the samples of some days, by name."""
    paths = [str(folder / f"day={name}") for name in names]
    try:
        return spark.read.schema(SAMPLE_SCHEMA).parquet(*paths)
    except AnalysisException as error:
        raise ExportFormatError(f"lake {folder}: {error}") from error


def _write_days(frame: DataFrame, target: Path) -> tuple[int, int]:
    """Write each sample once, a file a day, in one pass; hands back how many equal and conflicting duplicates there were."""
    day = sql.date_format(sql.timestamp_millis("ts_ms"), "yyyy-MM-dd").alias("day")
    # Hashed by day, the duplicates' groups need no shuffle of their own: a day is in one task, and becomes one file.
    by_day = frame.select("*", day).repartition(_TASKS, "day").groupBy("day", "series", "ts_ms")
    grouped = by_day.agg(sql.collect_set("value").alias("values"), sql.count("*").alias("times"))
    counted = Observation()
    distinct, times = sql.size("values"), sql.col("times")
    observed = grouped.observe(
        counted,
        sql.sum(times - distinct).alias("equal"),
        sql.sum(sql.when(distinct > 1, distinct)).alias("conflicting"),
    )
    rows = observed.select("day", "series", "ts_ms", sql.explode("values").alias("value")).sortWithinPartitions(
        "day", "series", "ts_ms", "value"
    )
    rows.write.partitionBy("day").option("compression", "zstd").parquet(str(target))
    told = counted.get
    return told["equal"] or 0, told["conflicting"] or 0


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


def begin_ms_of(day: Path) -> int:
    """Return when the day of a lake's folder begins. Raises ExportFormatError for a folder that is no day."""
    try:
        begin = dt.datetime.strptime(day.name, "day=%Y-%m-%d").replace(tzinfo=dt.UTC)
    except ValueError as error:
        raise ExportFormatError(f"lake {day.parent}: folder {day.name}; expected day=YYYY-MM-DD") from error
    return int(begin.timestamp() * 1000)
