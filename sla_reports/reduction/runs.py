"""From samples to runs on Arrow's columns, without Spark: of a day of a lake, or of one series; and a series' scrape interval.

Where samples are sorted by series and time, a run ends where the next row has another series, another value, or comes too late:
three comparisons of neighbours, for a million rows at a time. What comes out is a few rows a series. Pieces of neighbouring days
and tasks are stitched on the driver (`stitched`). Merging is associative and exact, so a month may be reduced in any parts and in
any order.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sla_reports.states.spans import CONFLICT, Run, gap_limit_ms

RUN_SCHEMA: Final = "series string, value double, start_ms long, end_ms long, n long, longer_ms long"
PIECE_SCHEMA: Final = f"{RUN_SCHEMA}, gap_ms long, duplicates long, conflicts long"
HOUR_SCHEMA: Final = "series string, hour long, n long, even_ms long"
_RUN_COLUMNS: Final = ["series", "value", "start_ms", "end_ms", "n", "longer_ms"]
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 86_400_000
DEFAULT_INTERVAL_MS: Final = 15_000
MIN_INTERVAL_MS: Final = 20
FULLEST_HOURS: Final = 3
_LEAST_DISTANCES: Final = 10
_MOST_UNLIKE: Final = 3
_ALIKE_PART: Final = 25
# Fewer hours at a longer interval stay as they are: they are few runs.
_LEAST_HOURS: Final = 12
_ROUNDED_FROM_MS: Final = 10_000
_MOST_RANGES: Final = 50

# Opens the day's files anew and hands out their rows; called again where the order was not as promised.
OpenDay = Callable[[], Iterable[pa.RecordBatch]]


class _OutOfOrderError(Exception):
    """A file is not sorted by series and time, or has a sample twice."""


@dataclass(frozen=True, slots=True)
class Quality:
    """What was odd about the samples."""

    samples: int
    series: int
    stale_markers: int
    duplicates: int
    conflicting_duplicates: int


@dataclass(frozen=True, slots=True)
class Longer:
    """From `from_ms` up to `until_ms` the samples of a series were `longer_ms` apart."""

    from_ms: int
    until_ms: int
    longer_ms: int


@dataclass(frozen=True, slots=True)
class Intervals:
    """The scrape interval of each series that is known, and that of all others; 0: the others are left out.

    `longer`: the ranges of hours, in order, in which a series has a longer one (`Longer`).
    """

    known_ms: Mapping[str, int] = field(default_factory=dict)
    other_ms: int = 0
    longer: Mapping[str, tuple[Longer, ...]] = field(default_factory=dict)

    def gap_ms(self, series: str) -> int:
        """Return the series' usual gap limit; 0 if it is left out."""
        return gap_limit_ms(self.known_ms.get(series, self.other_ms))

    def longer_at(self, series: str, ts_ms: np.ndarray) -> np.ndarray:
        """Return the longer interval at each of these times of a series; 0 where the usual one holds."""
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


def day_pieces(open_day: OpenDay, intervals: Intervals) -> Iterator[pa.RecordBatch]:
    """Yield the pieces of runs (PIECE_SCHEMA) of a day's samples, whatever their order. None crosses midnight UTC."""
    try:
        # All of it, before any is handed out: what the order proves wrong must not have been used.
        yield from list(_in_order(open_day(), intervals))
    except _OutOfOrderError:
        table = pa.Table.from_batches(list(open_day())).unify_dictionaries().combine_chunks()
        yield _pieces(_in_place(_rows(table.to_batches()[0])), intervals)


def series_pieces(
    series: str, ts_ms: np.ndarray, values: np.ndarray, *, interval_ms: int | None, default_ms: int
) -> tuple[pa.RecordBatch, int]:
    """Return the pieces of all samples of a series, in any order, and its usual interval: the given one, or as inferred."""
    intervals = Intervals(other_ms=interval_ms or 0)
    if interval_ms is None:
        interval_ms, longer = infer(np.sort(ts_ms), default_ms=default_ms)
        intervals = Intervals({series: interval_ms}, longer={series: longer} if longer else {})
    rows = _Rows([series], np.zeros(len(ts_ms), dtype=np.int32), ts_ms, values)
    return _pieces(_in_place(rows), intervals), interval_ms


def stitched(pieces: pa.Table, *, by_day: bool = False) -> pa.Table:
    """Return the runs (RUN_SCHEMA, ordered by series and time) of all pieces. With `by_day` no run crosses midnight UTC."""
    if not len(pieces):
        return pieces.select(_RUN_COLUMNS)
    # Of a year of a thousand groups the series' names are most of the memory: only the rows that begin a run are copied.
    series = pieces["series"].combine_chunks().dictionary_encode()
    ranks = np.argsort(np.argsort(np.array(series.dictionary.to_pylist(), dtype=object)))
    codes = ranks[series.indices.to_numpy()]
    order = np.lexsort((pieces["start_ms"].to_numpy(), codes))
    codes = codes[order]
    start_ms, end_ms, gap_ms, longer_ms, n, values = (
        pieces[name].to_numpy()[order] for name in ("start_ms", "end_ms", "gap_ms", "longer_ms", "n", "value")
    )
    begins = (codes[1:] != codes[:-1]) | _differ(values)
    begins |= (start_ms[1:] - end_ms[:-1] > gap_ms[1:]) | (longer_ms[1:] != longer_ms[:-1])
    if by_day:
        begins |= start_ms[1:] // DAY_MS != start_ms[:-1] // DAY_MS
    starts = _starts(begins, len(codes))
    first = pieces.take(pa.array(order[starts]))
    own = {"end_ms": pa.array(end_ms[np.append(starts[1:], len(codes)) - 1]), "n": pa.array(np.add.reduceat(n, starts))}
    return pa.table({name: own.get(name, first[name]) for name in _RUN_COLUMNS})


def runs_in(table: pa.Table) -> list[Run]:
    """Return the runs of a table of RUN_SCHEMA as plain objects."""
    columns = (table[name].to_pylist() for name in _RUN_COLUMNS)
    return [Run(*row) for row in zip(*columns, strict=True)]


def quality_of(pieces: pa.Table) -> Quality:
    """Return what was odd about the samples of all pieces."""
    stale = pieces.filter(pc.is_null(pieces["value"]))
    samples, markers, duplicates, conflicts = (
        pc.sum(column).as_py() or 0 for column in (pieces["n"], stale["n"], pieces["duplicates"], pieces["conflicts"])
    )
    return Quality(samples, pc.count_distinct(pieces["series"]).as_py(), markers, duplicates, conflicts)


def hour_counts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield how many samples a series has in an hour, and their distance if it is even (HOUR_SCHEMA); in parts, to be added up."""
    for rows in map(_rows, batches):
        hours = rows.ts_ms // HOUR_MS
        starts = _starts((rows.codes[1:] != rows.codes[:-1]) | (hours[1:] != hours[:-1]), len(hours))
        counts = np.diff(starts, append=len(hours))
        columns = [
            _series(rows, starts), pa.array(hours[starts]), pa.array(counts), pa.array(_even(rows, starts, counts)),
        ]  # fmt: skip
        yield pa.record_batch(columns, names=["series", "hour", "n", "even_ms"])


def _even(rows: _Rows, starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The distance within each block of rows if it is even, else 0. Blocks of like distances (nearly all) are found at once."""
    found = np.zeros(len(starts), dtype=np.int64)
    if not len(starts):
        return found
    last = starts + counts - 1
    distances = np.diff(rows.ts_ms, append=0)
    # The distance to the next block's first row does not count.
    distances[last] = distances[starts]
    least, most = np.minimum.reduceat(distances, starts), np.maximum.reduceat(distances, starts)
    enough = (counts > _LEAST_DISTANCES) & (least > 0)
    # All like their median.
    alike = enough & ((most - least) * _ALIKE_PART <= least)
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


def _in_place(rows: _Rows) -> _Rows:
    """Sort the rows and make one of equal instants. Known values that differ are a CONFLICT."""
    order = np.lexsort((rows.ts_ms, rows.codes))
    codes, ts_ms, values = rows.codes[order], rows.ts_ms[order], rows.values[order]
    starts = _starts((codes[1:] != codes[:-1]) | (ts_ms[1:] != ts_ms[:-1]), len(codes))
    # fmin and fmax pass over NaN: a known value counts more than a stale marker.
    least, greatest = np.fmin.reduceat(values, starts), np.fmax.reduceat(values, starts)
    conflicts = least < greatest
    copies = np.diff(starts, append=len(codes))
    return _Rows(rows.names, codes[starts], ts_ms[starts], np.where(conflicts, CONFLICT, least), copies, conflicts)


def _pieces(rows: _Rows, intervals: Intervals) -> pa.RecordBatch:
    usual = np.array([intervals.gap_ms(name) for name in rows.names], dtype=np.int64)
    longer = _longer(rows, intervals)
    # One number for all rows, if it is one: a look-up for each costs as much as all the rest.
    gaps = (
        usual[rows.codes]
        if longer.any() or (usual != usual[:1]).any()
        else np.broadcast_to(usual[:1], rows.codes.shape)
    )
    gaps = np.where((longer > 0) & (gaps > 0), longer * 5 // 2, gaps) if longer.any() else gaps
    begins = (rows.ts_ms[1:] - rows.ts_ms[:-1] > gaps[1:]) | (rows.codes[1:] != rows.codes[:-1])
    begins |= _differ(rows.values)
    if longer.any():
        begins |= longer[1:] != longer[:-1]
    if len(rows.ts_ms) and rows.ts_ms.min() // DAY_MS != rows.ts_ms.max() // DAY_MS:
        begins |= rows.ts_ms[1:] // DAY_MS != rows.ts_ms[:-1] // DAY_MS
    starts = _starts(begins, len(rows.codes))
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
    """Which values differ from the one before. NaN differs from NaN; here it is the same: unknown."""
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


def infer(times_ms: np.ndarray, *, default_ms: int) -> tuple[int, tuple[Longer, ...]]:
    """Return the scrape interval of a series and the hours at a longer one, from the times of all its samples, in order.

    The interval is the median distance in the three fullest hours, so neither an export that was read twice nor a long silence
    changes it. Judged by its gap limit each sample of an hour at a longer interval would be a run of its own: a month at 60 s
    after a day at 15 s is 42,000 runs a series. So such hours are reduced by their own interval, which their runs carry
    (`Run.longer_ms`).
    """
    hours, counts = np.unique(times_ms // HOUR_MS, return_counts=True)
    distinct = times_ms[np.append(True, np.diff(times_ms) > 0)]
    hour_of = distinct // HOUR_MS
    fullest = hours[np.lexsort((hours, -counts))[:FULLEST_HOURS]]
    usual_ms = usual_interval(distinct[np.isin(hour_of, fullest)], default_ms=default_ms)
    gap_ms = gap_limit_ms(usual_ms)
    # Twice: an export may hold each sample twice.
    few = hours[(counts > _LEAST_DISTANCES) & (counts <= 2 * HOUR_MS / gap_ms)]
    if len(few) < _LEAST_HOURS:
        return usual_ms, ()
    edges = zip(few.tolist(), *(np.searchsorted(hour_of, few, side=side) for side in ("left", "right")), strict=True)
    even = [(hour, even_distance(distinct[begin:end])) for hour, begin, end in edges]
    return usual_ms, longer_ranges([one for one in even if one[1] > gap_ms])


def usual_interval(times_ms: np.ndarray, *, default_ms: int) -> int:
    """Return the median distance within hours of distinct times, in order; `default_ms` if there is none."""
    distances = np.diff(times_ms)[np.diff(times_ms // HOUR_MS) == 0]
    median = int(np.sort(distances)[(len(distances) - 1) // 2]) if len(distances) else default_ms
    return max(median, MIN_INTERVAL_MS)


def longer_ranges(hours: Iterable[tuple[int, int]]) -> tuple[Longer, ...]:
    """Return ranges of hours of one longer interval, from hours and their even distances; none if there are few hours."""
    found: list[Longer] = []
    count = 0
    for hour, even_ms in sorted(hours):
        count += 1
        # Medians of neighbouring hours differ by milliseconds; so their runs join.
        longer_ms = (even_ms + 500) // 1000 * 1000 if even_ms >= _ROUNDED_FROM_MS else even_ms
        if found and (found[-1].until_ms, found[-1].longer_ms) == (hour * HOUR_MS, longer_ms):
            found[-1] = replace(found[-1], until_ms=(hour + 1) * HOUR_MS)
        else:
            found.append(Longer(hour * HOUR_MS, (hour + 1) * HOUR_MS, longer_ms))
    if count < _LEAST_HOURS:
        return ()
    # Of each series the longest: a sample is compared with every range of its series.
    longest = sorted(found, key=lambda one: (one.from_ms - one.until_ms, one.from_ms))[:_MOST_RANGES]
    return tuple(sorted(longest, key=lambda one: one.from_ms))


def even_distance(times_ms: np.ndarray) -> int:
    """Return the usual distance of these times (in order) if they are even enough, else 0.

    Even enough is what `states.spans` finds ten like distances in a row in, at every place: ten distances or more, none shorter
    than their median by more than a twenty-fifth, at most three longer.
    """
    distances = np.diff(times_ms)
    if len(distances) < _LEAST_DISTANCES:
        return 0
    median = int(np.sort(distances)[(len(distances) - 1) // 2])
    unlike = (distances - median) * _ALIKE_PART
    return median if (unlike > median).sum() <= _MOST_UNLIKE and not (-unlike > median).any() else 0
