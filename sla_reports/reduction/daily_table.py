"""The daily table: a day's samples are reduced once, and a month's report reads thirty small pieces of a Delta table.

    series, value, start_ms, end_ms, n     a run of that UTC day; none crosses midnight
    interval_ms                            the series' scrape interval on that day, or the run's own longer one (`runs.Longer`)
    day                                    2026-10-31, the partition

It lies in a folder or in S3. A day is written whole and replaces what was there, in one commit: late data means to write its day
again. A day that is not over yet is written as far as it goes, and its commit says so: `missing_days` names it until it is whole.
Of two jobs at once the later one sees the other commit, compares and writes anew. Runs are stitched over midnights when they
are read, exactly. Why delta-rs and not delta-spark: docs/adr/0013-delta-without-spark.md.
"""

import datetime as dt
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from pyspark.sql import DataFrame, SparkSession

from sla_reports.reduction.jobs import Reduction, infer_intervals, reduce_lake, reduce_samples
from sla_reports.reduction.runs import DAY_MS, DEFAULT_INTERVAL_MS, HOUR_MS, Intervals, Quality, stitched
from sla_reports.sources import TableError
from sla_reports.states.spans import Window, gap_limit_ms

_COLUMNS: Final = ["series", "value", "start_ms", "end_ms", "n", "interval_ms"]
_LONGER: Final = "longer_ms"
_HELD_MS: Final = 3 * HOUR_MS
_LATE: Final = "late"
_DAYS: Final = "days"
_OPEN: Final = "open"
# Each lost race means that another job has written its days: more jobs than this do not run at once.
_ATTEMPTS: Final = 20
# The commits hold what came late, so they are kept for as long as an agreement may be argued about.
_KEPT: Final[Mapping[str, str | None]] = {"delta.logRetentionDuration": "interval 3650 days"}


@dataclass(frozen=True, slots=True)
class Late:
    """How many samples a replaced day has more and fewer than before, and how many now."""

    day: str
    more: int
    fewer: int
    samples: int


@dataclass(frozen=True, slots=True)
class Appended:
    """The days that an append wrote, those it replaced, what changed in them, and what was odd about the samples."""

    days: tuple[dt.date, ...]
    replaced: tuple[dt.date, ...]
    late: tuple[Late, ...]
    quality: Quality


def append_days(
    table: str | Path, samples: DataFrame, *, interval_ms: int | None = None, default_ms: int = DEFAULT_INTERVAL_MS,
    until_ms: int | None = None,
) -> Appended:  # fmt: skip
    """Reduce samples and write every UTC day that occurs in them, whole. The frame must hold each such day completely.

    `interval_ms` is the scrape interval; without it each series' own is inferred. `until_ms`: the day of this instant has samples
    up to it only. Raises TableError.
    """
    reduction = reduce_samples(samples, interval_ms, by_day=True, default_ms=default_ms)
    return _append(table, reduction, until_ms=until_ms)


def append_lake(
    spark: SparkSession, table: str | Path, lake: Path, *, days: Collection[str] = (), metrics: Collection[str] = (),
    interval_ms: int | None = None,
) -> Appended:  # fmt: skip
    """As `append_days`, from a lake: the named days (as 2026-10-31) and metrics, or all of them."""
    known = Intervals(other_ms=interval_ms or 0)
    if interval_ms is None:
        known = infer_intervals(spark, lake, metrics=metrics, days=days)
    return _append(table, reduce_lake(spark, lake, known, metrics=metrics, days=days, by_day=True))


def _append(table: str | Path, reduction: Reduction, *, until_ms: int | None = None) -> Appended:
    intervals = [reduction.intervals_ms[series] for series in reduction.runs["series"].to_pylist()]
    runs = reduction.runs.append_column("interval_ms", pa.array(intervals, pa.int64()))
    return write_runs(table, runs, reduction.quality, until_ms=until_ms)


def write_runs(table: str | Path, runs: pa.Table, told: Quality, *, until_ms: int | None = None) -> Appended:
    """Write the days that occur, whole, in one commit; its metadata has what changed in days that were there.

    The day of `until_ms`, unless that is a midnight, is one that goes on: its samples after it are not late. `runs` have
    `interval_ms`, the usual one of their series; a run's own longer one is written in its place.
    """
    if _LONGER in runs.column_names:
        own = pc.if_else(pc.greater(runs[_LONGER], 0), runs[_LONGER], runs["interval_ms"])
        runs = runs.select([name for name in _COLUMNS if name != "interval_ms"]).append_column("interval_ms", own)
    numbers = np.unique(runs["start_ms"].to_numpy() // DAY_MS)
    days = tuple(dt.date(1970, 1, 1) + dt.timedelta(days=int(number)) for number in numbers)
    if not days:
        return Appended((), (), (), told)
    names = pa.array([day.isoformat() for day in days])
    places = np.searchsorted(numbers, runs["start_ms"].to_numpy() // DAY_MS)
    dated = runs.append_column("day", names.take(pa.array(places)))
    dated = dated.sort_by([("day", "ascending"), ("series", "ascending"), ("start_ms", "ascending")])
    for _ in range(_ATTEMPTS):
        known = _opened(table) or _made(table, dated.schema)
        before = _days_of(known)
        replaced = tuple(day for day in days if day in before)
        went_on = _open_days(known)
        late = _late(known, dated, [day for day in replaced if day not in went_on])
        try:
            write_deltalake(
                known, dated, mode="overwrite", partition_by="day",
                predicate=" OR ".join(f"day = '{day}'" for day in days),
                commit_properties=_told(days, late, until_ms),
            )  # fmt: skip
        except CommitFailedError:
            continue
        except (DeltaError, OSError) as error:
            raise TableError(f"table {table}: {error}; expected a place that can be written") from error
        return Appended(days, replaced, late, told)
    raise TableError(
        f"table {table}: {_ATTEMPTS} times another job wrote these days first; expected fewer jobs at once"
    )


def _told(days: Sequence[dt.date], late: Sequence[Late], until_ms: int | None) -> CommitProperties:
    goes_on = [
        day for day in days if until_ms is not None and _midnight_ms(day) < until_ms < _midnight_ms(day) + DAY_MS
    ]
    told = {
        _LATE: [asdict(one) for one in late],
        _DAYS: [day.isoformat() for day in days],
        _OPEN: [day.isoformat() for day in goes_on],
    }
    return CommitProperties(custom_metadata={key: json.dumps(value) for key, value in told.items()})


def missing_days(table: str | Path, *, back: int, now_ms: int) -> list[dt.date]:
    """Return the UTC days, from so many days back to today, that the table lacks, or has from when they were not over.

    Raises TableError.
    """
    known = _opened(table)
    whole = set[dt.date]() if known is None else set(_days_of(known)) - _open_days(known)
    today = day_of(now_ms)
    wanted = [today - dt.timedelta(days=number) for number in range(back, -1, -1)]
    return [day for day in wanted if day not in whole]


def stretches_of(days: Sequence[dt.date], *, now_ms: int) -> list[Window]:
    """Return the time of these days in as few windows as there are stretches of them; the last one ends now at the latest."""
    found: list[Window] = []
    for start_ms in map(_midnight_ms, days):
        first_ms = found.pop().start_ms if found and found[-1].end_ms == start_ms else start_ms
        found.append(Window(first_ms, min(start_ms + DAY_MS, now_ms)))
    return found


def read_runs(table: str | Path, *, start_ms: int, end_ms: int) -> pa.Table:
    """Read the runs of the days that touch the time, and of a day before and after: those decide what holds at the edges.

    Ordered by series and time. Raises TableError.
    """
    first, last = day_of(start_ms - DAY_MS).isoformat(), day_of(end_ms + DAY_MS).isoformat()
    near = _existing(table).to_pyarrow_table(columns=_COLUMNS, filters=[("day", ">=", first), ("day", "<=", last)])
    usual = _usual_intervals(near)
    own = near["interval_ms"].to_pylist()
    longer = [
        interval if interval > gap_limit_ms(usual[series]) else 0
        for series, interval in zip(near["series"].to_pylist(), own, strict=True)
    ]
    gaps = pa.array([gap_limit_ms(interval) for interval in own], pa.int64())
    return stitched(near.append_column("gap_ms", gaps).append_column(_LONGER, pa.array(longer, pa.int64())))


def stored_intervals(table: str | Path, *, start_ms: int, end_ms: int) -> dict[str, int]:
    """Return the usual scrape interval of each series in that time."""
    first, last = day_of(start_ms - DAY_MS).isoformat(), day_of(end_ms + DAY_MS).isoformat()
    near = _existing(table).to_pyarrow_table(
        columns=["series", "interval_ms", "n"], filters=[("day", ">=", first), ("day", "<=", last)]
    )
    return _usual_intervals(near)


def _usual_intervals(near: pa.Table) -> dict[str, int]:
    """The shortest interval under which three hours of samples stand, as `runs.infer` has it; else that of most samples."""
    counted = near.group_by(["series", "interval_ms"]).aggregate([("n", "sum")]).to_pydict()
    found: dict[str, tuple[bool, int, int]] = {}
    for series, interval, n in zip(counted["series"], counted["interval_ms"], counted["n_sum"], strict=True):
        held = n * interval >= _HELD_MS
        one = (held, -interval if held else n, interval)
        found[series] = max(one, found.get(series, one))
    return {series: interval for series, (*_, interval) in found.items()}


def late_days(table: str | Path, *, first: dt.date = dt.date.min, last: dt.date = dt.date.max) -> list[Late]:
    """Return the changes of replaced days from `first` to `last`, in the order of the commits."""
    commits = reversed(_existing(table).history())
    told = [Late(**one) for commit in commits for one in json.loads(commit.get(_LATE, "[]"))]
    return [one for one in told if first <= dt.date.fromisoformat(one.day) <= last]


def day_of(at_ms: int) -> dt.date:
    """Return the UTC day of an instant."""
    return dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC).date()


def _midnight_ms(day: dt.date) -> int:
    return (day - dt.date(1970, 1, 1)).days * DAY_MS


def _open_days(known: DeltaTable) -> set[dt.date]:
    """The days that were not over when they were last written."""
    found: set[dt.date] = set()
    for commit in reversed(known.history()):
        found -= {dt.date.fromisoformat(day) for day in json.loads(commit.get(_DAYS, "[]"))}
        found |= {dt.date.fromisoformat(day) for day in json.loads(commit.get(_OPEN, "[]"))}
    return found


def _late(known: DeltaTable, dated: pa.Table, replaced: Sequence[dt.date]) -> tuple[Late, ...]:
    if not replaced:
        return ()
    names = [day.isoformat() for day in replaced]
    before = _counts(known.to_pyarrow_table(columns=["day", "series", "n"], filters=[("day", "in", names)]))
    now = _counts(dated.filter(pc.is_in(dated["day"], pa.array(names))))
    found = []
    for name in names:
        series = {key for key in (*before, *now) if key[0] == name}
        changes = [now.get(key, 0) - before.get(key, 0) for key in series]
        more, fewer = sum(one for one in changes if one > 0), -sum(one for one in changes if one < 0)
        if more or fewer:
            found.append(Late(name, more, fewer, sum(now.get(key, 0) for key in series)))
    return tuple(found)


def _counts(runs: pa.Table) -> dict[tuple[str, str], int]:
    counted = runs.group_by(["day", "series"]).aggregate([("n", "sum")]).to_pydict()
    return dict(zip(zip(counted["day"], counted["series"], strict=True), counted["n_sum"], strict=True))


def _days_of(known: DeltaTable) -> list[dt.date]:
    return sorted(dt.date.fromisoformat(one["day"]) for one in known.partitions())


def _made(table: str | Path, schema: pa.Schema) -> DeltaTable:
    """An empty table; of two jobs that make it at once both have the same one."""
    try:
        DeltaTable.create(str(table), schema, mode="ignore", partition_by="day", configuration=_KEPT)
    except CommitFailedError:
        pass
    except (DeltaError, OSError) as error:
        raise TableError(f"table {table}: {error}; expected a place that can be written") from error
    return _existing(table)


def _opened(table: str | Path) -> DeltaTable | None:
    try:
        return DeltaTable(str(table))
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise TableError(f"table {table}: {error}; expected a table that `sla backfill` wrote") from error


def _existing(table: str | Path) -> DeltaTable:
    if (known := _opened(table)) is None:
        raise TableError(f"table {table}: no Delta table; expected one that `sla backfill` wrote")
    return known
