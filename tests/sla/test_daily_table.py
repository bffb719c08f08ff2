"""The daily table gives the same as all samples at once, in any order of arrival; a late day replaces only itself."""

from __future__ import annotations

import datetime as dt
import json
import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from metric_names import GROUP_WRITABLE
from sla_reports.reduction.runs import Quality
from sla_reports.sources import Form, Origin, TableError
from sla_reports.states.spans import Run, Window, gap_limit_ms
from tests.sla import one_day
from tests.sla.histories import Sample, runs_of, series_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from sla_reports.measures.availability import Availability
    from sla_reports.reduction.daily_table import Appended

DAY_MS = 86_400_000
FIRST_DAY = 20_400
INTERVAL_MS = 60_000
DAYS = [dt.date(1970, 1, 1) + dt.timedelta(days=FIRST_DAY + number) for number in range(3)]


def _planted() -> list[Sample]:
    """Return three days: an outage over a midnight, one that ends at it, a silence over it, and single bad scrapes."""
    start_ms = FIRST_DAY * DAY_MS
    rng = random.Random(7)
    samples = []
    for number in range(3 * DAY_MS // INTERVAL_MS):
        at_ms = start_ms + number * INTERVAL_MS
        minute = number - 1440
        samples.append(("a", at_ms, 0.0 if -3 <= minute < 4 else 1.0))
        samples.append(("b", at_ms + 17, 0.0 if -10 <= minute < 0 or rng.random() < 0.001 else 1.0))
        if not -5 <= minute - 1440 < 5:
            samples.append(("c", at_ms, 1.0))
    rng.shuffle(samples)
    return samples


def _of_day(samples: Iterable[Sample], number: int) -> list[Sample]:
    return [sample for sample in samples if sample[1] // DAY_MS == FIRST_DAY + number]


def _append(
    table: str | Path, samples: list[Sample], interval_ms: int = INTERVAL_MS, *, until_ms: int | None = None
) -> Appended:
    """Append runs as the reduction does: none crosses midnight."""
    from sla_reports.reduction.daily_table import write_days

    days = sorted({at_ms // DAY_MS for _, at_ms, _ in samples})
    runs = [
        run for day in days for run in runs_of([s for s in samples if s[1] // DAY_MS == day], gap_limit_ms(interval_ms))
    ]
    columns = {name: [getattr(run, name) for run in runs] for name in ("series", "value", "start_ms", "end_ms", "n")}
    frame = pa.table({**columns, "interval_ms": pa.array([interval_ms] * len(runs), pa.int64())})
    return write_days(table, frame, Quality(len(samples), 0, 0, 0, 0), until_ms=until_ms)


def _days(table: Path) -> list[dt.date]:
    return sorted({dt.date.fromisoformat(one["day"]) for one in DeltaTable(str(table)).partitions()})


def test_days_one_by_one_are_all_at_once(tmp_path: Path) -> None:
    from sla_reports.reduction.daily_table import Late, read_runs
    from sla_reports.reduction.runs import runs_in

    samples, table = _planted(), tmp_path / "table"
    first_day = _of_day(samples, 0)
    late = [sample for sample in first_day if sample[0] == "a"]
    # The last day first, then the first day without two of its series; late samples come at the end, with their whole day.
    for number, given in ((2, _of_day(samples, 2)), (0, late), (1, _of_day(samples, 1))):
        appended = _append(table, given)
        assert (appended.days, appended.replaced, appended.late) == ((DAYS[number],), (), ())
    appended = _append(table, first_day)
    assert (appended.days, appended.replaced) == ((DAYS[0],), (DAYS[0],))
    assert _days(table) == DAYS
    assert appended.late == (Late(DAYS[0].isoformat(), len(first_day) - len(late), 0, len(first_day)),)
    window = Window((FIRST_DAY + 1) * DAY_MS, (FIRST_DAY + 2) * DAY_MS)
    assert runs_in(read_runs(table, window).runs) == runs_of(samples, gap_limit_ms(INTERVAL_MS))


def test_two_jobs_at_once_do_not_tear_a_day(tmp_path: Path) -> None:
    """Eight writers of two days: afterwards each day is completely one writer's, and no write is lost in part."""
    from sla_reports.reduction.daily_table import read_runs
    from sla_reports.reduction.runs import runs_in

    table = tmp_path / "table"
    whole = [s for s in _planted() if s[0] == "a"]
    given = {n: [*(_of_day(whole, 0)[: 500 + n]), *(_of_day(whole, 1)[: 700 + n])] for n in range(8)}
    with ThreadPoolExecutor(4) as pool:
        appended = list(pool.map(lambda n: _append(table, given[n]), given))
    assert _days(table) == DAYS[:2]
    assert sum(len(one.replaced) for one in appended) == 2 * 7
    counts = {sum(run.n for run in runs_in(read_runs(table, Window(FIRST_DAY * DAY_MS, FIRST_DAY * DAY_MS + 1)).runs))}
    assert counts <= {1200 + 2 * n for n in given}


def test_what_an_export_lacks_or_brings_late_is_told_by_a_report_without_spark(tmp_path: Path) -> None:
    from sla_reports.reduction.daily_table import Late, late_days
    from sla_reports.report import Request, StoredQuality, as_text, make_report, reduced_from_table

    start_ms = FIRST_DAY * DAY_MS
    whole = [(series_of(GROUP_WRITABLE), start_ms + number * INTERVAL_MS, 1.0) for number in range(100)]
    others = [(series_of(GROUP_WRITABLE, "payments"), at_ms, 1.0) for _, at_ms, _ in whole]
    table, log = tmp_path / "table", tmp_path / "incidents.jsonl"
    log.write_text("")
    _append(table, whole)
    # A day written again unchanged reports no late sample. Then an export lacks 30 of its samples, and has 100 of another series.
    assert _append(table, whole).late == ()
    told = Late(DAYS[0].isoformat(), 100, 30, 170)
    assert _append(table, whole[30:] + others).late == (told,)
    assert late_days(table) == [told]
    assert late_days(table, first=DAYS[1]) == late_days(table, last=DAYS[0] - dt.timedelta(days=1)) == []
    origin = Origin(Form.RUNS, table=str(table))
    report = make_report(None, Request(origin, [log], Window(start_ms, start_ms + DAY_MS)))
    assert "days written again: 100 samples came late, 30 not there any more" in as_text(report)
    report.write(tmp_path / "report")
    quality = json.loads((tmp_path / "report" / "provenance.json").read_text())["quality"]
    assert (quality["samples"], quality["late_samples"], quality["missing_samples"]) == (170, 100, 30)
    next_day = reduced_from_table(table, Window(start_ms + DAY_MS, start_ms + 2 * DAY_MS)).quality
    assert isinstance(next_day, StoredQuality)
    assert (next_day.late_samples, next_day.missing_samples) == (0, 0)


def test_a_day_is_missing_until_it_is_there_whole(tmp_path: Path) -> None:
    """A job that was down for a day catches up; samples after a partly written day are not late."""
    from sla_reports.reduction.daily_table import late_days, missing_days, stretches_of

    table, samples = tmp_path / "table", [sample for sample in _planted() if sample[0] == "a"]
    last_ms = (FIRST_DAY + 2) * DAY_MS
    noon_ms, next_ms = last_ms + DAY_MS // 2, last_ms + DAY_MS
    before = DAYS[0] - dt.timedelta(days=1)
    assert missing_days(table, back=3, now_ms=noon_ms) == [before, *DAYS]
    _append(table, _of_day(samples, 0), until_ms=last_ms - DAY_MS)
    _append(table, [sample for sample in _of_day(samples, 2) if sample[1] < noon_ms], until_ms=noon_ms)
    missing = missing_days(table, back=3, now_ms=noon_ms)
    assert missing == [before, DAYS[1], DAYS[2]]
    assert stretches_of(missing, now_ms=noon_ms) == [
        Window(last_ms - 3 * DAY_MS, last_ms - 2 * DAY_MS),
        Window(last_ms - DAY_MS, noon_ms),
    ]
    # The next day is over an hour old; the job was down at midnight.
    next_day = DAYS[2] + dt.timedelta(days=1)
    assert missing_days(table, back=1, now_ms=next_ms + DAY_MS // 24) == [DAYS[2], next_day]
    appended = _append(table, _of_day(samples, 2), until_ms=next_ms + DAY_MS // 24)
    assert (appended.replaced, appended.late, late_days(table)) == ((DAYS[2],), (), [])
    assert missing_days(table, back=1, now_ms=next_ms + DAY_MS // 24) == [next_day]
    # From now on, more samples of that day are late.
    assert _append(table, [*_of_day(samples, 2), ("b", last_ms, 1.0)]).late != ()


def test_a_day_with_another_scrape_interval_keeps_its_own(tmp_path: Path) -> None:
    from sla_reports.reduction.daily_table import read_runs
    from sla_reports.reduction.runs import runs_in

    start_ms = FIRST_DAY * DAY_MS
    both = Window(start_ms, start_ms + 2 * DAY_MS)
    _append(tmp_path / "t", [("a", start_ms + at_ms, 1.0) for at_ms in range(0, DAY_MS, 15_000)], 15_000)
    _append(tmp_path / "t", [("a", start_ms + DAY_MS + at_ms, 1.0) for at_ms in range(0, DAY_MS, 60_000)], 60_000)
    assert runs_in(read_runs(tmp_path / "t", both).runs) == [
        Run("a", 1.0, start_ms, start_ms + DAY_MS - 15_000, 5760),
        Run("a", 1.0, start_ms + DAY_MS, start_ms + 2 * DAY_MS - 60_000, 1440, 60_000),
    ]
    # The usual interval of all samples together, not that of a day with one sample.
    _append(tmp_path / "t", [("a", start_ms + 2 * DAY_MS, 1.0)], 1_000)
    assert read_runs(tmp_path / "t", both).intervals_ms == {"a": 15_000}


def test_a_place_that_is_no_table_is_refused(tmp_path: Path) -> None:
    from sla_reports.reduction.daily_table import read_runs

    with pytest.raises(TableError, match=r"no Delta table; expected one that `sla backfill` wrote"):
        read_runs(tmp_path / "none", Window(0, 1))
    (tmp_path / "file").write_text("")
    with pytest.raises(TableError, match="expected a"):
        _append(tmp_path / "file" / "table", [("a", FIRST_DAY * DAY_MS, 1.0)])


@pytest.mark.real("java")
@pytest.mark.timeout(600)
def test_spark_reduces_days_into_the_table(spark: SparkSession, tmp_path: Path) -> None:
    from sla_reports.daily import append_days
    from sla_reports.reduction.daily_table import read_runs
    from sla_reports.reduction.runs import runs_in

    samples = _planted()
    frame = spark.createDataFrame(samples, "series string, ts_ms long, value double")
    appended = append_days(tmp_path / "table", frame)
    assert (appended.days, appended.quality.samples) == (tuple(DAYS), len(samples))
    window = Window((FIRST_DAY + 1) * DAY_MS, (FIRST_DAY + 2) * DAY_MS)
    assert runs_in(read_runs(tmp_path / "table", window).runs) == runs_of(samples, gap_limit_ms(INTERVAL_MS))


def _exported(path: Path, *, contradicted: range) -> Path:
    """Return a day scraped each minute, always up; in `contradicted` minutes the same instant also has a down sample."""
    rows = [(minute, 1.0) for minute in range(24 * 60)] + [(minute, 0.0) for minute in contradicted]
    lines = [
        f"{series_of(GROUP_WRITABLE)} {value} {(one_day.START_MS + minute * INTERVAL_MS) / 1000}"
        for minute, value in sorted(rows)
    ]
    path.write_text("\n".join([*lines, "# EOF\n"]))
    return path


@pytest.mark.real("java")
@pytest.mark.timeout(600)
def test_conflicting_duplicates_are_the_same_figure_from_files_lake_and_table(
    spark: SparkSession, tmp_path: Path
) -> None:
    """70 minutes of both values: it was 95.139 % from files and 99.275 % from the lake, which had chosen one."""
    from sla_reports.daily import append_days
    from sla_reports.readers import lake
    from sla_reports.readers.text import read_openmetrics
    from sla_reports.report import Request, make_report, wanted
    from sla_reports.sources import REPORT_METRICS, samples_of

    (tmp_path / "log.jsonl").write_text("")
    files = Origin(Form.OPENMETRICS, [_exported(tmp_path / "day.om", contradicted=range(300, 370))])
    lake.write(spark, read_openmetrics(spark, files.paths).frame, tmp_path / "lake")
    append_days(str(tmp_path / "runs"), wanted(samples_of(spark, files, REPORT_METRICS).frame))

    def told(origin: Origin) -> Availability:
        report = make_report(spark, Request(origin, [tmp_path / "log.jsonl"], window=one_day.DAY))
        [figures] = report.summary.groups
        return figures.availability

    first = told(files)
    assert (first.down_ms, first.unknown_ms) == (0, 0)
    assert first.disputed_ms == 70 * INTERVAL_MS
    assert told(Origin(Form.LAKE, [tmp_path / "lake"])) == first
    assert told(Origin(Form.RUNS, table=str(tmp_path / "runs"))) == first
