"""The daily job: a day's samples become its runs, outages and figures in the daily table; and sums of figures, by key.

A day's figures are those of the report of that day from the table. What is down at a midnight is down on both days, and an outage
is one of the day on which it began, so the days of a month add up to its report; but what only the counter knows is judged for
each period by itself. Figures are before amendments: those are made when a report is.
"""

import datetime as dt
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from sla_reports.measures.availability import Availability
from sla_reports.measures.summary import Agreement, Summary, summarise
from sla_reports.output.files import incident_document
from sla_reports.output.html_elements import counted, percent
from sla_reports.reduction.daily_table import (
    FIGURES,
    GROUP_COLUMNS,
    INCIDENTS,
    SCHEMA,
    Appended,
    day_of,
    midnight_ms,
    near_lines,
    near_runs,
    read_rows,
    rows_of,
    write_days,
)
from sla_reports.reduction.jobs import Reduction, infer_intervals, reduce_lake, reduce_samples
from sla_reports.reduction.runs import DAY_MS, DEFAULT_INTERVAL_MS, Intervals, runs_in
from sla_reports.report import DEFAULT_OBJECTIVE, Reduced, StoredQuality, evidence
from sla_reports.sources import SourceError
from sla_reports.states.identity import identity_of
from sla_reports.states.incidents import Source
from sla_reports.states.logged import LogLine, read_logs
from sla_reports.states.spans import Window

BY: Final = ("day", "month", "namespace", "cluster", "group")
_SUMS: Final = ("up_ms", "down_ms", "unknown_ms", "disputed_ms", "error_ms", "n")
_ONE_DAY: Final = dt.timedelta(days=1)
_NOT_ASKED: Final = StoredQuality(0, 0, 0, 0, 0)
_SHOWN_DAYS: Final = 5


def append_days(
    table: str | Path, samples: DataFrame, *, interval_ms: int | None = None, default_ms: int = DEFAULT_INTERVAL_MS,
    until_ms: int | None = None, log: Sequence[LogLine] = (),
) -> Appended:  # fmt: skip
    """Reduce samples and write every UTC day that occurs in them, whole. The frame must hold each such day completely.

    `interval_ms` is the scrape interval; without it each series' own is inferred. `until_ms`: the day of this instant has samples
    up to it only. Raises TableError.
    """
    reduction = reduce_samples(samples, interval_ms, by_day=True, default_ms=default_ms)
    return _append(table, reduction, log, until_ms)


def append_lake(
    spark: SparkSession, table: str | Path, lake: Path, *, days: Collection[str] = (), metrics: Collection[str] = (),
    interval_ms: int | None = None, log: Sequence[LogLine] = (),
) -> Appended:  # fmt: skip
    """As `append_days`, from a lake: the named days (as 2026-10-31) and metrics, or all of them."""
    known = Intervals(other_ms=interval_ms or 0)
    if interval_ms is None:
        known = infer_intervals(spark, lake, metrics=metrics, days=days)
    return _append(table, reduce_lake(spark, lake, known, metrics=metrics, days=days, by_day=True), log, None)


def _append(table: str | Path, reduction: Reduction, log: Sequence[LogLine], until_ms: int | None) -> Appended:
    intervals = [reduction.intervals_ms[series] for series in reduction.runs["series"].to_pylist()]
    runs = reduction.runs.append_column("interval_ms", pa.array(intervals, pa.int64()))
    return write_days(table, runs, reduction.quality, log=log, derive=derived, until_ms=until_ms)


def derived(days: Sequence[dt.date], runs: pa.Table, lines: pa.Table, until_ms: int | None) -> pa.Table:
    """Return the rows of incidents and figures of some days, of the runs and the log's lines of these and those beside them."""
    found = [SCHEMA.empty_table()]
    for day in days:
        around = pa.array([str(day + step) for step in (-_ONE_DAY, 0 * _ONE_DAY, _ONE_DAY)])
        near = near_runs(runs.filter(pc.is_in(runs["day"], around)))
        logs = read_logs((), near_lines(lines, day - _ONE_DAY, day + _ONE_DAY))
        start_ms = midnight_ms(day)
        now_ms = until_ms if until_ms is not None and start_ms < until_ms < start_ms + DAY_MS else None
        reduced = Reduced(tuple(runs_in(near.runs)), near.intervals_ms, _NOT_ASKED)
        known = evidence(reduced, logs.incidents, circumstances=logs.circumstances, now_ms=now_ms)
        # Two groups under one name have no figures; the report names both, and how to tell them apart.
        if not identity_of(known.fleet).faults:
            summary = summarise(Agreement(Window(start_ms, start_ms + DAY_MS), DEFAULT_OBJECTIVE), known)
            found += [_figure_rows(day, summary), _incident_rows(day, summary)]
    return pa.concat_tables(found)


def _figure_rows(day: dt.date, summary: Summary) -> pa.Table:
    told = [one.availability for one in summary.groups]
    states = {name: [getattr(one, name) for one in told] for name in _SUMS if name != "n"}
    return rows_of(FIGURES, {
        "day": [str(day)] * len(told), **_keys(one.group for one in summary.groups), **states,
        "source": [one.source.value for one in told], "n": [len(one.incidents) for one in summary.groups],
    })  # fmt: skip


def _incident_rows(day: dt.date, summary: Summary) -> pa.Table:
    told = summary.incidents
    return rows_of(INCIDENTS, {
        "day": [str(day)] * len(told), **_keys(one.group for one in told),
        **{name: [getattr(one, name) for one in told] for name in ("id", "start_ms", "end_ms", "cause")},
        "source": [one.source.value for one in told],
        "line": [json.dumps(incident_document(one), ensure_ascii=False, separators=(",", ":")) for one in told],
    })  # fmt: skip


def _keys(groups: Iterator[Any]) -> dict[str, list[str]]:
    every = list(groups)
    return {name: [getattr(one, name) for one in every] for name in GROUP_COLUMNS}


@dataclass(frozen=True, slots=True)
class Sum:
    """The figures of all days and groups of one key, as `{"month": "2026-10", "cluster": "default/orders"}`.

    `lacking`: days of its time that the table lacks. Of those nothing is in any figure, not even as unknown.
    """

    key: Mapping[str, str]
    days: int
    groups: int
    outages: int
    availability: Availability
    lacking: tuple[str, ...] = ()


def sums(table: str | Path, window: Window, *, groups: str = "*", by: Sequence[str] = ()) -> list[Sum]:
    """Add up the daily figures of a time of whole UTC days; one key for each value of `by`, all in one without.

    Raises SourceError for other keys or times, TableError.
    """
    if unknown := [one for one in by if one not in BY]:
        raise SourceError(f"by: {unknown[0]!r}; expected one of {', '.join(BY)}")
    if window.start_ms % DAY_MS or window.end_ms % DAY_MS:
        raise SourceError(
            "time-zone: the period does not begin and end at midnight UTC; expected whole days of the table"
        )
    rows = read_rows(table, FIGURES, day_of(window.start_ms), day_of(window.end_ms - 1), groups)
    cluster = pc.binary_join_element_wise(rows["namespace"], rows["cluster"], "/")
    columns = {
        "day": rows["day"], "month": pc.utf8_slice_codeunits(rows["day"], 0, 7), "namespace": rows["namespace"],
        "cluster": cluster, "group": pc.binary_join_element_wise(cluster, rows["broker_group"], "/"),
    }  # fmt: skip
    told = pa.table({**columns, **{name: rows[name] for name in _SUMS}})
    if not len(told):
        return []
    asked = [(name, "sum") for name in _SUMS] + [("day", "count_distinct"), ("group", "count_distinct")]
    there = rows if groups == "*" else read_rows(table, FIGURES, day_of(window.start_ms), day_of(window.end_ms - 1))
    lacking = _lacking(window, set(there["day"].to_pylist()))
    # Without a key all rows are of one.
    keyed = told.append_column("all", pa.array([""] * len(told))).group_by([*by] or ["all"]).aggregate(asked)
    return [
        _sum(row, by, lacking) for row in keyed.sort_by([(name, "ascending") for name in by or ["all"]]).to_pylist()
    ]


def _lacking(window: Window, there: Collection[str]) -> list[str]:
    """The days of the window, up to today, that the table has no figures of."""
    first, today = day_of(window.start_ms), dt.datetime.now(dt.UTC).date()
    last = min(day_of(window.end_ms - 1), today)
    days = (str(first + number * _ONE_DAY) for number in range((last - first).days + 1))
    return [day for day in days if day not in there]


def _sum(row: Mapping[str, Any], by: Sequence[str], lacking: Sequence[str]) -> Sum:
    up, down, unknown, disputed, error, outages = (row[f"{name}_sum"] for name in _SUMS)
    whole = Availability(up, down, unknown, Source.GAUGE, error, disputed)
    key = {name: row[name] for name in by}
    own = () if "day" in key else tuple(day for day in lacking if day.startswith(key.get("month", "")))
    return Sum(key, row["day_count_distinct"], row["group_count_distinct"], outages, whole, own)


def sums_text(found: Sequence[Sum]) -> str:
    """Return the sums as text, a line for each key."""
    return "\n".join(
        f"{' '.join(one.key.values()) or 'all groups'}: {percent(told.availability)} (between {percent(told.worst)} and"
        f" {percent(told.best)}; down {told.down_ms / 1000:.3f} s, unknown {told.unknown_ms / 1000:.1f} s,"
        f" disputed {told.disputed_ms / 1000:.1f} s), {counted(one.outages, 'outage')};"
        f" {counted(one.groups, 'group')}, {counted(one.days, 'day')}{_lacking_words(one)}"
        for one in found
        for told in (one.availability,)
    )


def _lacking_words(one: Sum) -> str:
    if not one.lacking:
        return ""
    more = ", ..." if len(one.lacking) > _SHOWN_DAYS else ""
    days = ", ".join(one.lacking[:_SHOWN_DAYS])
    return f"; the table lacks {counted(len(one.lacking), 'day')}, which no figure counts: {days}{more}"


def sums_document(found: Sequence[Sum]) -> list[dict[str, Any]]:
    """Return the sums for a program."""
    return [
        {
            **one.key, "days": one.days, "lackingDays": list(one.lacking), "groups": one.groups, "outages": one.outages,
            "upMs": told.up_ms, "downMs": told.down_ms, "unknownMs": told.unknown_ms, "disputedMs": told.disputed_ms,
            "errorMs": told.error_ms, "availability": told.availability, "worst": told.worst, "best": told.best,
        }
        for one in found
        for told in (one.availability,)
    ]  # fmt: skip
