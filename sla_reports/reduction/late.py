"""Samples that came after their day had been reduced: counted when the day is written again, and never dropped in silence.

    late.jsonl      a line for each time that a day was replaced and the table held other numbers of samples for it

For each series and day the samples before and now are compared: `more` came late (or are of new series), `fewer` were there
and are not any more. The first is what a backfill is for. The second says that an export did not hold its day whole, or that
the server forgot: what was known of that day is less than before. A line is written before the day is, so a backfill that dies
and is repeated writes the same line again, which counts once.
"""

import datetime as dt
import json
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from sla_reports.readers.contract import ExportFormatError
from sla_reports.reduction.runs import RUN_SCHEMA

_NAME = "late.jsonl"


@dataclass(frozen=True, slots=True)
class Late:
    """Of one day that was replaced; `samples` is how many it has now."""

    day: str
    more: int
    fewer: int
    samples: int


def note_late(store: Path, dated: DataFrame, replaced: Collection[dt.date]) -> tuple[Late, ...]:
    """Compare runs that are about to be written (with their `day`) with those that they replace, note it, and tell it."""
    if not replaced:
        return ()
    is_replaced = sql.col("day").isin([day.isoformat() for day in replaced])
    stored = dated.sparkSession.read.schema(f"{RUN_SCHEMA}, day string").parquet(str(store / "runs"))
    before, now = _counts(stored.where(is_replaced), "before"), _counts(dated.where(is_replaced), "now")
    both = before.join(now, ["day", "series"], "full").na.fill(0)
    change = sql.col("now") - sql.col("before")
    rows = both.groupBy("day").agg(
        sql.sum(sql.greatest(change, sql.lit(0))).alias("more"),
        sql.sum(sql.greatest(-change, sql.lit(0))).alias("fewer"),
        sql.sum("now").alias("samples"),
    )
    told = (Late(**row.asDict()) for row in rows.collect())
    found = tuple(sorted((one for one in told if one.more or one.fewer), key=lambda one: one.day))
    if found:
        _add(store / _NAME, "".join(json.dumps(asdict(one)) + "\n" for one in found))
    return found


def late_days(store: Path, *, first: dt.date = dt.date.min, last: dt.date = dt.date.max) -> list[Late]:
    """What was noted of the days from `first` to `last`, in the order in which it came. Raises ExportFormatError."""
    found: list[Late] = []
    latest: dict[str, Late] = {}
    for number, line in enumerate(_text(store / _NAME).splitlines(), start=1):
        try:
            one = Late(**json.loads(line))
            wanted = first <= dt.date.fromisoformat(one.day) <= last
        except (ValueError, TypeError) as error:
            raise ExportFormatError(
                f"{_NAME} line {number}: {error}; expected an object with day, more, fewer, samples"
            ) from error
        # Twice the same in a row is one backfill that died and was repeated; what changes a day changes its numbers.
        if wanted and latest.get(one.day) != one:
            found.append(one)
        latest[one.day] = one
    return found


def _counts(runs: DataFrame, name: str) -> DataFrame:
    return runs.groupBy("day", "series").agg(sql.sum("n").alias(name))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def _add(path: Path, lines: str) -> None:
    """Whole or not at all: half a line would make the table unreadable."""
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(_text(path) + lines, encoding="utf-8")
    beside.replace(path)
