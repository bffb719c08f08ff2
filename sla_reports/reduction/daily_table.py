"""The daily table: a day's samples are reduced once, and a month's report reads thirty small pieces of a Delta table.

    day, kind                              2026-10-31 and one of the four below: the partition
    namespace, cluster, broker_group       the group, of each row
    runs                                   series, value, start_ms, end_ms, n: a run of that UTC day; none crosses midnight
                                           interval_ms: the series' scrape interval on that day, or the run's own longer one
    log                                    line, start_ms, end_ms: a line of the incident log, on each day that it touches
    incidents                              id, start_ms, end_ms, source, cause, line: an outage that began on that day
    figures                                up_ms, down_ms, unknown_ms, disputed_ms, error_ms, source, n (outages): a group's day

It lies in a folder or in S3. A day is written whole and replaces what was there, in one commit: late data means to write its day
again. A day that is not over yet is written as far as it goes, and its commit says so: `missing_days` names it until it is whole.
Of two jobs at once the later one sees the other commit, compares and writes anew. Runs are stitched over midnights when they
are read, exactly. What holds at a midnight depends on both days, so the figures of the days before and after are made anew in the
same commit (`daily.py`). Why delta-rs and not delta-spark: docs/adr/0013-delta-without-spark.md.
"""

import datetime as dt
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, QueryBuilder, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from sla_reports.reduction.runs import DAY_MS, HOUR_MS, Quality, stitched
from sla_reports.series import parse_series
from sla_reports.sources import TableError
from sla_reports.states.entities import GroupKey
from sla_reports.states.logged import LogLine
from sla_reports.states.spans import Window, gap_limit_ms

RUNS: Final = "runs"
LOG: Final = "log"
INCIDENTS: Final = "incidents"
FIGURES: Final = "figures"
GROUP_COLUMNS: Final = ("namespace", "cluster", "broker_group")
SCHEMA: Final = pa.schema(
    [(name, pa.string()) for name in ("day", "kind", *GROUP_COLUMNS, "series", "id", "source", "cause", "line")]
    + [("value", pa.float64())]
    + [
        (name, pa.int64())
        for name in (
            "start_ms", "end_ms", "n", "interval_ms", "up_ms", "down_ms", "unknown_ms", "disputed_ms", "error_ms",
        )
    ]
)  # fmt: skip
_COLUMNS: Final = ["series", "value", "start_ms", "end_ms", "n", "interval_ms"]
_OF_KIND: Final[Mapping[str, Sequence[str]]] = {
    RUNS: ["day", *GROUP_COLUMNS, *_COLUMNS],
    LOG: ["day", *GROUP_COLUMNS, "line", "start_ms", "end_ms"],
    INCIDENTS: ["day", *GROUP_COLUMNS, "id", "start_ms", "end_ms", "source", "cause", "line"],
    FIGURES: ["day", *GROUP_COLUMNS, "up_ms", "down_ms", "unknown_ms", "disputed_ms", "error_ms", "source", "n"],
}
_LONGER: Final = "longer_ms"
_HELD_MS: Final = 3 * HOUR_MS
_LATE: Final = "late"
_DAYS: Final = "days"
_OPEN: Final = "open"
_ONE_DAY: Final = dt.timedelta(days=1)
# Each lost race means that another job has written its days: more jobs than this do not run at once.
_ATTEMPTS: Final = 20
# The commits hold what came late, so they are kept for as long as an agreement may be argued about.
_KEPT: Final[Mapping[str, str | None]] = {"delta.logRetentionDuration": "interval 3650 days"}

# From the runs and the log's lines of some days, and of those around them, to the rows of incidents and figures of the days.
Derive = Callable[[Sequence[dt.date], pa.Table, pa.Table, int | None], pa.Table]


@dataclass(frozen=True, slots=True)
class Late:
    """How many samples a replaced day has more and fewer than before, and how many now."""

    day: str
    more: int
    fewer: int
    samples: int


@dataclass(frozen=True, slots=True)
class Appended:
    """The days that an append wrote, those it replaced, what changed in them, and what was odd about the samples.

    `logged`: days whose lines of the incident log became more.
    """

    days: tuple[dt.date, ...]
    replaced: tuple[dt.date, ...]
    late: tuple[Late, ...]
    quality: Quality
    logged: tuple[dt.date, ...] = ()


def write_days(
    table: str | Path, runs: pa.Table | None, told: Quality, *, log: Sequence[LogLine] = (), derive: Derive | None = None,
    until_ms: int | None = None,
) -> Appended:  # fmt: skip
    """Write the days that occur in the runs, whole, and the log's lines of these and of the table's other days, in one commit.

    Its metadata has what changed in days that were there. The day of `until_ms`, unless that is a midnight, is one that goes on:
    its samples after it are not late. `runs` have `interval_ms`, the usual one of their series; a run's own longer one is
    written in its place. Lines of the log are added to those that are there, since a log is rotated away. Raises TableError.
    """
    new = SCHEMA.empty_table() if runs is None else _rows_of_runs(runs)
    days = _days_in(new)
    if not days and not log:
        return Appended((), (), (), told)
    for _ in range(_ATTEMPTS):
        known = _opened(table) or _made(table)
        before = _days_of(known)
        replaced = tuple(day for day in days if day in before)
        lines, logged = _more_lines(known, {*before, *days}, log)
        touched = {*days, *logged}
        if not touched:
            return Appended((), (), (), told)
        went_on = _open_days(known)
        # A day that goes on is written again soon, and only that job knows how far it goes.
        around = {day + step for day in touched for step in (-_ONE_DAY, _ONE_DAY)} & set(before) - went_on
        rows = _whole_days(known, new, lines, sorted(touched | around), derive, until_ms)
        late = _late(known, new, [day for day in replaced if day not in went_on])
        try:
            write_deltalake(
                known, rows, mode="overwrite", partition_by=["day", "kind"],
                predicate=" OR ".join(f"day = '{day}'" for day in sorted(touched | around)),
                commit_properties=_told(days, late, until_ms),
            )  # fmt: skip
        except CommitFailedError:
            continue
        except (DeltaError, OSError) as error:
            raise TableError(f"table {table}: {error}; expected a place that can be written") from error
        return Appended(days, replaced, late, told, tuple(sorted(logged)))
    raise TableError(
        f"table {table}: {_ATTEMPTS} times another job wrote these days first; expected fewer jobs at once"
    )


def _rows_of_runs(runs: pa.Table) -> pa.Table:
    if _LONGER in runs.column_names:
        own = pc.if_else(pc.greater(runs[_LONGER], 0), runs[_LONGER], runs["interval_ms"])
        runs = runs.select([name for name in _COLUMNS if name != "interval_ms"]).append_column("interval_ms", own)
    numbers, places = np.unique(runs["start_ms"].to_numpy() // DAY_MS, return_inverse=True)
    days = pa.array([str(_date_of(number)) for number in numbers.tolist()], pa.string())
    encoded = runs["series"].combine_chunks().dictionary_encode()
    groups = [GroupKey.of_series(parse_series(text)) for text in encoded.dictionary.to_pylist()]
    columns = {
        "day": days.take(pa.array(places)),
        **{
            name: pa.array([getattr(one, name) for one in groups], pa.string()).take(encoded.indices)
            for name in GROUP_COLUMNS
        },
        **{name: runs[name] for name in _COLUMNS},
    }
    return rows_of(RUNS, columns)


def rows_of(kind: str, columns: Mapping[str, pa.Array | Sequence[object]]) -> pa.Table:
    """Return rows of the table's schema; what a kind does not have is null."""
    length = len(next(iter(columns.values())))
    told = {"kind": pa.array([kind], pa.string()).take(pa.array(np.zeros(length, dtype=np.int32))), **columns}
    arrays = [
        (one if isinstance(one, pa.Array | pa.ChunkedArray) else pa.array(one, field.type))
        if (one := told.get(field.name)) is not None
        else pa.nulls(length, field.type)
        for field in SCHEMA
    ]
    return pa.table(arrays, schema=SCHEMA)


def _whole_days(
    known: DeltaTable, new: pa.Table, lines: pa.Table, days: Sequence[dt.date], derive: Derive | None, until_ms: int | None
) -> pa.Table:  # fmt: skip
    """Everything of these days: runs and lines, the new ones in place of the table's, and what is derived of them."""
    near = {day + step for day in days for step in (-_ONE_DAY, 0 * _ONE_DAY, _ONE_DAY)}
    fresh = set(_days_in(new))
    runs = pa.concat_tables([_rows(known, RUNS, _in(near - fresh)), new])
    within = pa.array([str(day) for day in days])
    kept = [one.filter(pc.is_in(one["day"], within)) for one in (runs, lines)]
    if derive is not None:
        kept.append(derive(days, runs, lines, until_ms))
    whole = pa.concat_tables(kept)
    return whole.sort_by([(name, "ascending") for name in ("day", "kind", *GROUP_COLUMNS, "series", "start_ms")])


def _more_lines(known: DeltaTable, days: Collection[dt.date], log: Sequence[LogLine]) -> tuple[pa.Table, set[dt.date]]:
    """All lines of the log that the table has or gets, and the days that get more."""
    stored = _rows(known, LOG)
    there = set(zip(stored["day"].to_pylist(), stored["line"].to_pylist(), strict=True))
    more = [
        (str(day), one)
        for one in log
        for day in _touched(one.start_ms, one.end_ms)
        if day in days and (str(day), one.text) not in there
    ]
    columns = {
        "day": [day for day, _ in more],
        **{name: [getattr(one.group, name) for _, one in more] for name in GROUP_COLUMNS},
        **{name: [getattr(one, name) for _, one in more] for name in ("start_ms", "end_ms")},
        "line": [one.text for _, one in more],
    }
    return pa.concat_tables([stored, rows_of(LOG, columns)]), {dt.date.fromisoformat(day) for day, _ in more}


def _touched(start_ms: int, end_ms: int | None) -> list[dt.date]:
    """The days from start to end; without an end the first one."""
    last_ms = start_ms if end_ms is None else max(start_ms, end_ms)
    return [_date_of(number) for number in range(start_ms // DAY_MS, last_ms // DAY_MS + 1)]


def _told(days: Sequence[dt.date], late: Sequence[Late], until_ms: int | None) -> CommitProperties:
    goes_on = [day for day in days if until_ms is not None and midnight_ms(day) < until_ms < midnight_ms(day) + DAY_MS]
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
    for start_ms in map(midnight_ms, days):
        first_ms = found.pop().start_ms if found and found[-1].end_ms == start_ms else start_ms
        found.append(Window(first_ms, min(start_ms + DAY_MS, now_ms)))
    return found


@dataclass(frozen=True, slots=True)
class NearRuns:
    """The runs of some time and of a day before and after it, ordered by series and time; the usual interval of each series."""

    runs: pa.Table
    intervals_ms: Mapping[str, int]


def read_runs(table: str | Path, time: Window, groups: str = "*") -> NearRuns:
    """Read the runs of the days that touch the time, and of a day before and after: those decide what holds at the edges.

    `groups`: only of groups of such names, as namespace/cluster/brokerGroup with `*` and `?`. Raises TableError.
    """
    days = [day_of(time.start_ms - DAY_MS), day_of(time.end_ms + DAY_MS)]
    return near_runs(_query(_existing(table), RUNS, days[0], days[1], groups))


def near_runs(rows: pa.Table) -> NearRuns:
    """Stitch rows of runs over midnights."""
    usual = _usual_intervals(rows)
    series = rows["series"].combine_chunks().dictionary_encode()
    own = rows["interval_ms"].to_numpy()
    most = np.array([gap_limit_ms(usual[name]) for name in series.dictionary.to_pylist()], np.int64)
    longer = np.where(own > most[series.indices.to_numpy()], own, 0)
    pieces = rows.select(_COLUMNS).append_column("gap_ms", pa.array(gap_limit_ms(own)))
    pieces = pieces.append_column(_LONGER, pa.array(longer))
    return NearRuns(stitched(pieces), usual)


def read_lines(table: str | Path, time: Window, groups: str = "*") -> list[str]:
    """Read the log's lines of the days around the time, as `read_runs`, and earlier ones that have no end. Raises TableError."""
    first, last = day_of(time.start_ms - DAY_MS), day_of(time.end_ms + DAY_MS)
    return near_lines(_query(_existing(table), LOG, None, last, groups), first, last)


def near_lines(rows: pa.Table, first: dt.date, last: dt.date) -> list[str]:
    """Return, of rows of the log, the lines from day to day, and those without an end from before."""
    until = pc.less_equal(rows["day"], str(last))
    own = rows.filter(pc.and_(until, pc.or_(pc.greater_equal(rows["day"], str(first)), pc.is_null(rows["end_ms"]))))
    return list(dict.fromkeys(own["line"].to_pylist()))


def read_rows(table: str | Path, kind: str, first: dt.date, last: dt.date, groups: str = "*") -> pa.Table:
    """Read the incidents or figures from day to day, of groups of such names. Raises TableError."""
    return _query(_existing(table), kind, first, last, groups)


def _query(known: DeltaTable, kind: str, first: dt.date | None, last: dt.date, groups: str) -> pa.Table:
    """Rows by key. A part of a name without `*` and `?` is compared where the file is; the others are matched here."""
    key = groups.split("/") if groups.count("/") == 2 else []
    exact = [(name, "=", part) for name, part in zip(GROUP_COLUMNS, key, strict=False) if not set("*?") & set(part)]
    days = [("day", "<=", str(last)), *([] if first is None else [("day", ">=", str(first))])]
    rows = _rows(known, kind, [*days, *exact], _OF_KIND[kind])
    if kind != RUNS:
        # Files come in any order; runs are put in order when they are stitched.
        order = ("day", *GROUP_COLUMNS, "start_ms", "line")
        rows = rows.sort_by([(name, "ascending") for name in order if name in rows.column_names])
    if groups == "*" or len(exact) == len(GROUP_COLUMNS):
        return rows
    names = list(zip(*(rows[name].to_pylist() for name in GROUP_COLUMNS), strict=True))
    wanted = {name: GroupKey(*name).matches(groups) for name in set(names)}
    return rows.filter(pa.array([wanted[name] for name in names], pa.bool_()))


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


def midnight_ms(day: dt.date) -> int:
    """Return the instant at which a UTC day begins."""
    return (day - dt.date(1970, 1, 1)).days * DAY_MS


def _date_of(number: int) -> dt.date:
    return dt.date(1970, 1, 1) + dt.timedelta(days=number)


def _days_in(rows: pa.Table) -> tuple[dt.date, ...]:
    return tuple(sorted(dt.date.fromisoformat(day) for day in pc.unique(rows["day"]).to_pylist()))


def _rows(
    known: DeltaTable, kind: str, where: Sequence[tuple[str, str, object]] = (), columns: Sequence[str] = SCHEMA.names
) -> pa.Table:
    """Rows of a kind. DataFusion reads them: a dataset of pyarrow takes ten times as long, for it judges each file apart."""
    terms = " AND ".join(f'"{name}" {how} {_literal(value)}' for name, how, value in [("kind", "=", kind), *where])
    text = f"""SELECT {", ".join(f'"{name}"' for name in columns)} FROM daily WHERE {terms}"""  # noqa: S608
    rows = pa.RecordBatchReader.from_stream(QueryBuilder().register("daily", known).execute(text)).read_all()
    return rows.cast(pa.schema([SCHEMA.field(name) for name in columns]))


def _literal(value: object) -> str:
    """A string of SQL, or a list of them."""
    if isinstance(value, list):
        return f"({', '.join(map(_literal, value))})"
    return "'" + str(value).replace("'", "''") + "'"


def _in(days: Iterable[dt.date]) -> list[tuple[str, str, object]]:
    return [("day", "in", [str(day) for day in days])]


def _open_days(known: DeltaTable) -> set[dt.date]:
    """The days that were not over when they were last written."""
    found: set[dt.date] = set()
    for commit in reversed(known.history()):
        found -= {dt.date.fromisoformat(day) for day in json.loads(commit.get(_DAYS, "[]"))}
        found |= {dt.date.fromisoformat(day) for day in json.loads(commit.get(_OPEN, "[]"))}
    return found


def _late(known: DeltaTable, new: pa.Table, replaced: Sequence[dt.date]) -> tuple[Late, ...]:
    if not replaced:
        return ()
    names = [day.isoformat() for day in replaced]
    before = _counts(_rows(known, RUNS, _in(replaced), ["day", "series", "n"]))
    now = _counts(new.filter(pc.is_in(new["day"], pa.array(names))))
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
    return sorted(dt.date.fromisoformat(one["day"]) for one in known.partitions() if one["kind"] == RUNS)


def _made(table: str | Path) -> DeltaTable:
    """An empty table; of two jobs that make it at once both have the same one."""
    try:
        DeltaTable.create(str(table), SCHEMA, mode="ignore", partition_by=["day", "kind"], configuration=_KEPT)
    except CommitFailedError:
        pass
    except (DeltaError, OSError) as error:
        raise TableError(f"table {table}: {error}; expected a place that can be written") from error
    return _existing(table)


def _opened(table: str | Path) -> DeltaTable | None:
    try:
        known = DeltaTable(str(table))
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise TableError(f"table {table}: {error}; expected a table that `sla backfill` wrote") from error
    if (found := known.metadata().partition_columns) != ["day", "kind"]:
        raise TableError(f"table {table}: partitioned by {found}; expected day and kind, as `sla backfill` writes it")
    return known


def _existing(table: str | Path) -> DeltaTable:
    if (known := _opened(table)) is None:
        raise TableError(f"table {table}: no Delta table; expected one that `sla backfill` wrote")
    return known
