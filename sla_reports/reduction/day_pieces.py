"""One day of a lake, a file of sorted samples, to pieces of runs: on Arrow's columns, where the file is.

A lake's day is sorted by series and time and has each sample once, so a run ends where the next row has another series, another
value, or comes too late: three comparisons of neighbours, for a million rows at a time. What comes out is a few rows a series,
and only those go to the JVM. That the order is as promised is seen on the way; a day that someone else wrote in another order is
sorted here, whole, and its duplicates become one sample by the rule of `cells.py`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from sla_reports.reduction.longer import HOUR_MS, LEAST_DISTANCES, Longer, even_distance, is_even
from sla_reports.reduction.runs import CONFLICT, RUN_SCHEMA, Run, gap_limit_ms

PIECE_SCHEMA: Final = f"{RUN_SCHEMA}, gap_ms long, duplicates long, conflicts long"
HOUR_SCHEMA: Final = "series string, hour long, n long, even_ms long"
_DAY_MS: Final = 86_400_000
_RUN_COLUMNS: Final = ["series", "value", "start_ms", "end_ms", "n", "longer_ms"]

# Opens the day's files anew and hands out their rows; called again where the order was not as promised.
OpenDay = Callable[[], Iterable[pa.RecordBatch]]


class _OutOfOrderError(Exception):
    """A file is not sorted by series and time, or has a sample twice."""


@dataclass(frozen=True, slots=True)
class Intervals:
    """The scrape interval of each series that is known, and that of all others; 0: the others are left out.

    `longer`: the ranges of hours, in order, in which a series has a longer one (`longer.py`).
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
