"""Reduce a lake by its days: each task opens one day's file itself, and only pieces of runs leave it.

Rows that Spark reads cost a string hash and a table look-up each in the JVM, and to hand them on to Python costs as much again.
A lake's file is sorted by series and time and has each sample once, so a run ends where the next row has another series, another
value, or comes too late: three comparisons of neighbours, for a million rows at a time. That costs many times less processor
time than `cells.reduce_samples`, and gives the same runs. A day in another order is noticed and sorted first. Files must be
where every executor sees them under the same path.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from sla_reports.readers import lake
from sla_reports.readers.samples import ExportFormatError, readable_errors
from sla_reports.reduction.cells import DEFAULT_INTERVAL_MS, Quality, fullest, median_distances, ranges
from sla_reports.reduction.runs import (
    CONFLICT,
    HOUR_MS,
    LEAST_DISTANCES,
    RUN_SCHEMA,
    Longer,
    Run,
    even_distance,
    gap_limit_ms,
    is_even,
    ranges_by_series,
)
from sla_reports.session import own, tasks_of

_ROWS_AT_A_TIME: Final = 1_000_000
_DAY_MS: Final = 86_400_000
PIECE_SCHEMA: Final = f"{RUN_SCHEMA}, gap_ms long, duplicates long, conflicts long"
HOUR_SCHEMA: Final = "series string, hour long, n long, even_ms long"
_RUN_COLUMNS: Final = ["series", "value", "start_ms", "end_ms", "n", "longer_ms"]
# Opens the day's files anew and hands out their rows; called again where the order was not as promised.
OpenDay = Callable[[], Iterable[pa.RecordBatch]]


class _OutOfOrderError(Exception):
    """A file is not sorted by series and time, or has a sample twice."""


@dataclass(frozen=True, slots=True)
class Intervals:
    """The scrape interval of each series that is known, and that of all others; 0: the others are left out.

    `longer`: the ranges of hours, in order, in which a series has a longer one (`runs.Longer`).
    """

    known_ms: Mapping[str, int] = field(default_factory=dict)
    other_ms: int = 0
    longer: Mapping[str, tuple[Longer, ...]] = field(default_factory=dict)

    def gap_ms(self, series: str) -> int:
        """The series' usual gap limit; 0 where it is left out."""
        return gap_limit_ms(self.known_ms.get(series, self.other_ms))

    def longer_at(self, series: str, ts_ms: np.ndarray) -> np.ndarray:
        """The longer interval at each of these times of a series; 0 where the usual one holds."""
        own = self.longer[series]
        place = np.searchsorted([one.from_ms for one in own], ts_ms, side="right") - 1
        ends, lengths = np.array([one.until_ms for one in own]), np.array([one.longer_ms for one in own])
        found: np.ndarray = np.where((place >= 0) & (ts_ms < ends[place]), lengths[place], 0)
        return found


@dataclass(frozen=True, slots=True)
class _Rows:
    """Samples as columns. `names[codes[i]]` is the series of row i; equal instants are counted where they were merged."""

    names: list[str]
    codes: np.ndarray
    ts_ms: np.ndarray
    values: np.ndarray
    copies: np.ndarray | None = None
    conflicts: np.ndarray | None = None


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


def day_pieces(open_day: OpenDay, intervals: Intervals) -> Iterator[pa.RecordBatch]:
    """The pieces of runs (PIECE_SCHEMA) of a day's samples; pieces that touch are stitched later, with those of other days."""
    try:
        # All of it, before any is handed out: what the order proves wrong must not have been used.
        yield from list(_in_order(open_day(), intervals))
    except _OutOfOrderError:
        yield from _sorted_pieces(open_day(), intervals)


def stitched(pieces: pa.Table, *, by_day: bool = False) -> pa.Table:
    """The runs (RUN_SCHEMA, ordered by series and time) of all days' pieces: what `cells.stitch` does, for those few rows.

    With `by_day` no run crosses midnight UTC.
    """
    ordered = pieces.sort_by([("series", "ascending"), ("start_ms", "ascending")]).combine_chunks()
    if not len(ordered):
        return ordered.select(_RUN_COLUMNS)
    codes = ordered["series"].combine_chunks().dictionary_encode().indices.to_numpy()
    values = ordered["value"].to_numpy()
    start_ms, end_ms, gap_ms = (ordered[name].to_numpy() for name in ("start_ms", "end_ms", "gap_ms"))
    longer_ms = ordered["longer_ms"].to_numpy()
    begins = (codes[1:] != codes[:-1]) | _differ(values) | (start_ms[1:] - end_ms[:-1] > gap_ms[1:])
    begins |= longer_ms[1:] != longer_ms[:-1]
    if by_day:
        begins |= start_ms[1:] // _DAY_MS != start_ms[:-1] // _DAY_MS
    starts = _starts(begins, len(codes))
    ends = np.append(starts[1:], len(codes)) - 1
    first = ordered.take(pa.array(starts))
    n = np.add.reduceat(ordered["n"].to_numpy(), starts)
    columns = [
        first["series"],
        first["value"],
        first["start_ms"],
        pa.array(end_ms[ends]),
        pa.array(n),
        first["longer_ms"],
    ]
    return pa.table(columns, names=_RUN_COLUMNS)


def runs_in(table: pa.Table) -> list[Run]:
    """The runs of a table of RUN_SCHEMA as plain objects."""
    columns = (table[name].to_pylist() for name in _RUN_COLUMNS)
    return [Run(*row) for row in zip(*columns, strict=True)]


def hour_counts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """How many samples a series has in an hour, and their distance where it is even (HOUR_SCHEMA); in parts, to be added up."""
    for rows in map(_rows, batches):
        hours = rows.ts_ms // HOUR_MS
        starts = _starts((rows.codes[1:] != rows.codes[:-1]) | (hours[1:] != hours[:-1]), len(hours))
        counts = np.diff(starts, append=len(hours))
        columns = [
            _series(rows, starts),
            pa.array(hours[starts]),
            pa.array(counts),
            pa.array(_even(rows, starts, counts)),
        ]
        yield pa.record_batch(columns, names=["series", "hour", "n", "even_ms"])


def _even(rows: _Rows, starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The distance within each block of rows where it is even, else 0. Blocks of like distances (nearly all) are told at once."""
    found = np.zeros(len(starts), dtype=np.int64)
    if not len(starts):
        return found
    last = starts + counts - 1
    distances = np.diff(rows.ts_ms, append=0)
    # What leads to the next block is none of this one's.
    distances[last] = distances[starts]
    least, most = np.minimum.reduceat(distances, starts), np.maximum.reduceat(distances, starts)
    enough = (counts > LEAST_DISTANCES) & (least > 0)
    alike = enough & is_even(least, most)
    found[alike] = (rows.ts_ms[last] - rows.ts_ms[starts])[alike] // (counts[alike] - 1)
    for block in np.flatnonzero(enough & ~alike).tolist():
        found[block] = even_distance(rows.ts_ms[starts[block] : last[block] + 1])
    return found


def _in_order(batches: Iterable[pa.RecordBatch], intervals: Intervals) -> Iterator[pa.RecordBatch]:
    seen: set[str] = set()
    last, last_ms = "", 0
    for rows in map(_rows, batches):
        if not len(rows.ts_ms):
            continue
        another = rows.codes[1:] != rows.codes[:-1]
        if ((rows.ts_ms[1:] <= rows.ts_ms[:-1]) & ~another).any():
            raise _OutOfOrderError
        blocks = [rows.names[code] for code in rows.codes[_starts(another, len(rows.codes))].tolist()]
        goes_on = blocks[0] == last
        if goes_on and rows.ts_ms[0] <= last_ms:
            raise _OutOfOrderError
        fresh = blocks[1:] if goes_on else blocks
        known = len(seen)
        seen.update(fresh)
        if len(seen) != known + len(fresh):
            raise _OutOfOrderError
        last, last_ms = blocks[-1], int(rows.ts_ms[-1])
        yield _pieces(rows, intervals)


def _sorted_pieces(batches: Iterable[pa.RecordBatch], intervals: Intervals) -> Iterator[pa.RecordBatch]:
    table = pa.Table.from_batches(list(batches)).unify_dictionaries().combine_chunks()
    rows = _rows(table.to_batches()[0])
    order = np.lexsort((rows.ts_ms, rows.codes))
    codes, ts_ms, values = rows.codes[order], rows.ts_ms[order], rows.values[order]
    starts = _starts((codes[1:] != codes[:-1]) | (ts_ms[1:] != ts_ms[:-1]), len(codes))
    # fmin and fmax pass over NaN: a known value counts more than a stale marker.
    least, greatest = np.fmin.reduceat(values, starts), np.fmax.reduceat(values, starts)
    conflicts = least < greatest
    merged = np.where(conflicts, CONFLICT, least)
    copies = np.diff(starts, append=len(codes))
    yield _pieces(_Rows(rows.names, codes[starts], ts_ms[starts], merged, copies, conflicts), intervals)


def _pieces(rows: _Rows, intervals: Intervals) -> pa.RecordBatch:
    usual = np.array([intervals.gap_ms(name) for name in rows.names], dtype=np.int64)
    longer = _longer(rows, intervals)
    # One number for all rows, where it is one: a look-up for each costs as much as all the rest.
    gaps = (
        usual[rows.codes]
        if longer.any() or (usual != usual[:1]).any()
        else np.broadcast_to(usual[:1], rows.codes.shape)
    )
    gaps = np.where((longer > 0) & (gaps > 0), longer * 5 // 2, gaps) if longer.any() else gaps
    late = rows.ts_ms[1:] - rows.ts_ms[:-1] > gaps[1:]
    another = rows.codes[1:] != rows.codes[:-1]
    if longer.any():
        another |= longer[1:] != longer[:-1]
    starts = _starts(_differ(rows.values) | late | another, len(rows.codes))
    ends = np.append(starts[1:], len(rows.codes)) - 1
    values = rows.values[starts]
    copies = ends + 1 - starts if rows.copies is None else np.add.reduceat(rows.copies, starts)
    conflicts = np.zeros(len(starts), int) if rows.conflicts is None else np.add.reduceat(rows.conflicts, starts)
    made = pa.record_batch(
        {
            "series": _series(rows, starts),
            # Adding zero makes one zero of 0.0 and -0.0.
            "value": pa.array(values + 0.0, mask=np.isnan(values)),
            "start_ms": pa.array(rows.ts_ms[starts]),
            "end_ms": pa.array(rows.ts_ms[ends]),
            "n": pa.array(copies),
            "longer_ms": pa.array(longer[starts]),
            "gap_ms": pa.array(gaps[starts]),
            "duplicates": pa.array(copies - (ends + 1 - starts)),
            "conflicts": pa.array(conflicts),
        }
    )
    return made if (usual > 0).all() else made.filter(pa.array(gaps[starts] > 0))


def _longer(rows: _Rows, intervals: Intervals) -> np.ndarray:
    """The longer interval at each row; 0 where the usual one holds. The rows of a series stand together."""
    found = np.zeros(len(rows.codes), dtype=np.int64)
    starts = _starts(rows.codes[1:] != rows.codes[:-1], len(rows.codes))
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(rows.codes)], strict=True):
        if (name := rows.names[rows.codes[start]]) in intervals.longer:
            found[start:end] = intervals.longer_at(name, rows.ts_ms[start:end])
    return found


def _differ(values: np.ndarray) -> np.ndarray:
    """Which values differ from the one before. NaN differs from NaN; here it is the same: nobody knows."""
    differ: np.ndarray = values[1:] != values[:-1]
    odd = np.flatnonzero(differ)
    differ[odd] = ~(np.isnan(values[odd]) & np.isnan(values[odd + 1]))
    return differ


def _rows(batch: pa.RecordBatch) -> _Rows:
    series = batch.column("series")
    if not pa.types.is_dictionary(series.type):
        series = series.dictionary_encode()
    return _Rows(
        series.dictionary.to_pylist(),
        series.indices.to_numpy(),
        batch.column("ts_ms").to_numpy(),
        batch.column("value").to_numpy(zero_copy_only=False),
    )


def _starts(begins: np.ndarray, length: int) -> np.ndarray:
    """Where something begins: at the first row, and at each that `begins` says of its second to last."""
    return np.append([0], np.flatnonzero(begins) + 1) if length else np.array([], dtype=np.int64)


def _series(rows: _Rows, starts: np.ndarray) -> pa.Array:
    return pa.array(rows.names, pa.string()).take(pa.array(rows.codes[starts]))
