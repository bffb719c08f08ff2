"""The daily table gives the same as all samples at once, in any order of arrival, by any jobs; every report is a query by key."""

from __future__ import annotations

import datetime as dt
import json
import random
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from brokergroup_operator.cli.main import app
from metric_names import GROUP_WRITABLE
from sla_reports.daily import append_days, derived, sums, sums_document, sums_text
from sla_reports.measures.reconciliation import Reconciliation
from sla_reports.output.files import incident_document
from sla_reports.readers import lake
from sla_reports.readers.text import read_openmetrics
from sla_reports.reduction.daily_table import (
    FIGURES,
    INCIDENTS,
    LOG,
    Derive,
    Late,
    late_days,
    missing_days,
    read_lines,
    read_rows,
    read_runs,
    stretches_of,
    write_days,
)
from sla_reports.reduction.runs import DAY_MS, Quality, runs_in
from sla_reports.report import Request, StoredQuality, as_text, make_report, reduced_from_table, wanted
from sla_reports.series import parse_series
from sla_reports.sources import REPORT_METRICS, Form, Origin, SourceError, TableError, samples_of
from sla_reports.states.logged import lines_of_logs
from sla_reports.states.spans import Run, Window, gap_limit_ms
from tests.sla import one_day
from tests.sla.histories import Sample, runs_of, series_of
from tests.sla.planted.exports import write_incident_log
from tests.sla.planted.month import Month, plant
from tests.sla.test_states import line

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from sla_reports.measures.availability import Availability
    from sla_reports.measures.summary import Summary
    from sla_reports.reduction.daily_table import Appended
    from sla_reports.states.logged import LogLine

STEP_MS = 120_000
FIRST = dt.date(2025, 9, 29)
START_MS = (FIRST - dt.date(1970, 1, 1)).days * DAY_MS
INTERVAL_MS = 60_000
FIRST_DAY = 20_400
DAYS = [dt.date(1970, 1, 1) + dt.timedelta(days=FIRST_DAY + number) for number in range(3)]


def write(
    table: str | Path, samples: Collection[Sample], *, log: Iterable[LogLine] = (), step_ms: int = STEP_MS,
    derive: Derive | None = derived, until_ms: int | None = None,
) -> Appended:  # fmt: skip
    """Write runs as the reduction does: none crosses midnight."""
    days: dict[int, list[Sample]] = {}
    for one in samples:
        days.setdefault(one[1] // DAY_MS, []).append(one)
    runs = [run for own in days.values() for run in runs_of(own, gap_limit_ms(step_ms))]
    columns = {name: [getattr(run, name) for run in runs] for name in ("series", "value", "start_ms", "end_ms", "n")}
    frame = pa.table({**columns, "interval_ms": pa.array([step_ms] * len(runs), pa.int64())})
    quality = Quality(len(samples), 0, 0, 0, 0)
    return write_days(table, frame, quality, log=list(log), derive=derive, until_ms=until_ms)


# Without figures: the series of these tests are of no group.
append = partial(write, step_ms=INTERVAL_MS, derive=None)


def gauge(group: str, days: int, *, down: Iterable[tuple[int, int]] = ()) -> list[Sample]:
    """Return a gauge of some days from FIRST on; `down` in minutes since then."""
    times = range(START_MS, START_MS + days * DAY_MS, STEP_MS)
    downs = [(START_MS + low * 60_000, START_MS + high * 60_000) for low, high in down]
    series = series_of(GROUP_WRITABLE, group)
    return [(series, at_ms, 0.0 if any(low <= at_ms < high for low, high in downs) else 1.0) for at_ms in times]


def _summary(table: Path, window: Window, groups: str = "*") -> Summary:
    return make_report(None, Request(Origin(Form.RUNS, table=str(table)), (), window, groups=groups)).summary


def _day(number: int) -> Window:
    return Window(START_MS + number * DAY_MS, START_MS + (number + 1) * DAY_MS)


@pytest.fixture(scope="module")
def month(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write two groups' planted ten days in three jobs, out of order, one day twice."""
    folder = tmp_path_factory.mktemp("month")
    planted = plant(
        Month(groups=2, start_ms=START_MS, end_ms=START_MS + 10 * DAY_MS, step_ms=STEP_MS, incidents_per_group=6)
    )
    samples = [
        (series, int(at_ms), float(value))
        for series, (times, values) in planted.series.items()
        if parse_series(series).metric in REPORT_METRICS
        for at_ms, value in zip(times, values, strict=True)
    ]
    log = lines_of_logs([write_incident_log(planted, folder / "incidents.jsonl")])
    for first, end in ((6, 12), (-2, 3), (2, 7)):
        own = [one for one in samples if START_MS + first * DAY_MS <= one[1] < START_MS + end * DAY_MS]
        write(folder / "table", own, log=log)
    return folder


def test_a_days_figures_and_outages_are_those_of_its_report(month: Path) -> None:
    table = month / "table"
    for number in range(10):
        day = FIRST + dt.timedelta(days=number)
        summary = _summary(table, _day(number))
        figures = read_rows(table, FIGURES, day, day).to_pylist()
        assert [
            (one["broker_group"], one["up_ms"], one["down_ms"], one["unknown_ms"], one["disputed_ms"], one["n"])
            for one in sorted(figures, key=lambda one: one["broker_group"])
        ] == [
            (one.group.broker_group, told.up_ms, told.down_ms, told.unknown_ms, told.disputed_ms, len(one.incidents))
            for one in summary.groups
            for told in (one.availability,)
        ]
        outages = read_rows(table, INCIDENTS, day, day).to_pylist()
        told = {one.id: incident_document(one) for one in summary.incidents}
        assert {one["id"]: json.loads(one["line"]) for one in outages} == told, day


def test_the_days_add_up_to_the_report_of_all_of_them(month: Path) -> None:
    """By the table's log and by the log's file: the table has every line."""
    table, window = month / "table", Window(START_MS, START_MS + 10 * DAY_MS)
    summary = _summary(table, window)
    files = Request(Origin(Form.RUNS, table=str(table)), [month / "incidents.jsonl"], window)
    assert make_report(None, files).summary == summary
    assert summary.incidents
    by_group = {one.key["group"]: one for one in sums(table, window, by=["group"])}
    assert sorted(by_group) == [str(one.group) for one in summary.groups]
    for one in summary.groups:
        told = by_group[str(one.group)]
        assert (told.days, told.outages) == (10, len(one.incidents))
        ours, theirs = told.availability, one.availability
        assert (ours.up_ms, ours.down_ms, ours.unknown_ms, ours.disputed_ms) == (
            theirs.up_ms, theirs.down_ms, theirs.unknown_ms, theirs.disputed_ms,
        )  # fmt: skip


def test_sums_by_key_are_the_same_time_cut_in_other_ways(month: Path) -> None:
    table, window = month / "table", Window(START_MS, START_MS + 10 * DAY_MS)
    [fleet] = sums(table, window)
    assert (fleet.groups, fleet.days, fleet.availability.total_ms) == (2, 10, 2 * 10 * DAY_MS)
    for by in (["day"], ["month"], ["cluster"], ["namespace"], ["group"], ["month", "cluster"], ["day", "group"]):
        found = sums(table, window, by=by)
        assert sum(one.availability.down_ms for one in found) == fleet.availability.down_ms > 0, by
        assert sum(one.outages for one in found) == fleet.outages
        assert all(list(one.key) == by for one in found)
    assert [one.key["month"] for one in sums(table, window, by=["month"])] == ["2025-09", "2025-10"]
    [one] = sums(table, window, groups="*/*/orders-1")
    assert one == sums(table, window, by=["group"])[1].__class__({}, one.days, 1, one.outages, one.availability)
    assert sums(table, window, groups="default/Default' OR 'a'='a/orders-1") == []
    with pytest.raises(SourceError, match="by: 'zone'; expected one of day, month, namespace, cluster, group"):
        sums(table, window, by=["zone"])
    with pytest.raises(SourceError, match="midnight UTC"):
        sums(table, Window(START_MS + 1, START_MS + DAY_MS))


def test_days_that_the_table_lacks_are_named(tmp_path: Path) -> None:
    """A month with a hole had bounds as narrow as a whole one, where its report has the hole as unknown."""
    samples = gauge("orders", 5)
    for number in (0, 1, 4):
        write(tmp_path, [one for one in samples if _day(number).start_ms <= one[1] < _day(number).end_ms])
    window = Window(START_MS, START_MS + 5 * DAY_MS)
    [whole] = sums(tmp_path, window)
    assert (whole.days, whole.lacking) == (3, ("2025-10-01", "2025-10-02"))
    [named] = sums(tmp_path, window, groups="*/*/orders")
    assert named.lacking == whole.lacking
    assert [one.lacking for one in sums(tmp_path, window, by=["month"])] == [(), whole.lacking]
    assert {one.lacking for one in sums(tmp_path, window, by=["day"])} == {()}
    assert sums_text([whole]).endswith("the table lacks 2 days, which no figure counts: 2025-10-01, 2025-10-02")
    [document] = sums_document([whole])
    assert document["lackingDays"] == ["2025-10-01", "2025-10-02"]


def test_a_report_of_some_groups_reads_them_by_key(month: Path) -> None:
    table, window = month / "table", Window(START_MS, START_MS + 10 * DAY_MS)
    whole = {one.group: one for one in _summary(table, window).groups}
    for pattern in ("default/*/orders-1", "default/DefaultCluster/orders-1", "*-1"):
        [figures] = _summary(table, window, pattern).groups
        assert figures.group.broker_group == "orders-1"
        assert figures == whole[figures.group]


def test_a_midnight_is_decided_by_both_days_whichever_is_written_last(tmp_path: Path) -> None:
    """Down from 23:50 to 0:10; the earlier day is written first, and updated after the next one."""
    samples = gauge("orders", 2, down=[(1430, 1450)])
    first, second = ([one for one in samples if one[1] // DAY_MS == (START_MS + n * DAY_MS) // DAY_MS] for n in (0, 1))
    tables = []
    for name, order in (("forwards", (first, second)), ("backwards", (second, first)), ("at once", (samples,))):
        tables.append(tmp_path / name)
        for given in order:
            write(tables[-1], given)
    figures = [
        [read_rows(table, kind, FIRST, FIRST + dt.timedelta(days=1)).to_pylist() for kind in (FIGURES, INCIDENTS)]
        for table in tables
    ]
    assert figures[0] == figures[1] == figures[2]
    (days, outages) = figures[0]
    assert [(one["day"], one["down_ms"], one["n"]) for one in days] == [
        ("2025-09-29", 600_000, 1), ("2025-09-30", 600_000, 0),
    ]  # fmt: skip
    assert [(one["day"], one["start_ms"]) for one in outages] == [("2025-09-29", START_MS + 1430 * 60_000)]


def test_a_line_that_comes_late_changes_its_days_figures_and_is_never_lost(tmp_path: Path) -> None:
    table, log = tmp_path / "table", tmp_path / "incidents.jsonl"
    samples = gauge("orders", 3, down=[(600, 620)])
    assert write(table, samples).logged == ()
    before = read_rows(table, INCIDENTS, FIRST, FIRST + dt.timedelta(days=2)).to_pylist()
    assert [one["source"] for one in before] == ["gauge"]
    started = dt.datetime.fromtimestamp(START_MS / 1000, dt.UTC) + dt.timedelta(minutes=600)
    steps = {"detected": 0.0, "inSync": 20 * 60_000.0}
    log.write_text(
        line(
            brokerName="orders", cluster="c", startedAt=started.isoformat(), stepsMilliseconds=steps, cause="crash",
            durationMilliseconds=20 * 60_000.0,
        )
    )  # fmt: skip
    given = lines_of_logs([log])
    # The last day again, now with the log: the first day's figures change.
    last = [one for one in samples if one[1] >= START_MS + 2 * DAY_MS]
    appended = write(table, last, log=given)
    assert (appended.days, appended.logged) == ((FIRST + dt.timedelta(days=2),), (FIRST,))
    after = read_rows(table, INCIDENTS, FIRST, FIRST + dt.timedelta(days=2)).to_pylist()
    assert [(one["source"], one["cause"]) for one in after] == [("incident_log", "crash")]
    # The log was rotated away; the day is reduced again without it.
    assert write(table, samples, log=()).logged == ()
    assert read_lines(table, Window(START_MS, START_MS + DAY_MS)) == [given[0].text]
    assert read_rows(table, INCIDENTS, FIRST, FIRST).to_pylist() == after
    assert write(table, samples, log=given).logged == ()
    assert len(read_rows(table, LOG, FIRST, FIRST)) == 1


def test_a_day_that_goes_on_has_figures_up_to_now(tmp_path: Path) -> None:
    noon_ms = START_MS + DAY_MS // 2
    write(tmp_path / "t", [one for one in gauge("orders", 1) if one[1] < noon_ms], until_ms=noon_ms)
    [one] = read_rows(tmp_path / "t", FIGURES, FIRST, FIRST).to_pylist()
    assert (one["up_ms"], one["unknown_ms"]) == (DAY_MS // 2, 0)
    # Also after a job that catches up on the previous day, and does not know the present time.
    day_before = [(name, at_ms - DAY_MS, value) for name, at_ms, value in gauge("orders", 1)]
    write(tmp_path / "t", day_before)
    assert read_rows(tmp_path / "t", FIGURES, FIRST, FIRST).to_pylist() == [one]


def run_command(*words: str) -> tuple[int, str]:
    told = CliRunner().invoke(app, [*words], env={"COLUMNS": "200"})
    return told.exit_code, told.output


def test_every_question_is_a_command_that_needs_neither_java_nor_the_log(month: Path, tmp_path: Path) -> None:
    store = ("--store", str(month / "table"))
    code, output = run_command("sla", "days", *store, "--period", "2025-10-03", "--by", "cluster")
    assert code == 0, output
    [told] = json.loads(output.splitlines()[-1])
    assert (told["cluster"], told["groups"], told["days"]) == ("default/DefaultCluster", 2, 1)
    assert output.startswith("default/DefaultCluster: ")
    code, output = run_command("sla", "days", *store, "--period", "2024-10")
    assert (code, "no figures of * in 2024-10" in output) == (1, True)
    words = ("--from", "runs", "--export", str(month / "table"), "--group", "*/*/orders-0", "--out", str(tmp_path))
    code, output = run_command("sla", "report", *words, "--period", "2025-10-03")
    assert code == 0, output
    assert [one["broker_group"] for one in json.loads(output.splitlines()[-1])["groups"]] == ["orders-0"]
    question = json.loads((tmp_path / "provenance.json").read_text())["question"]
    assert question["groups"] == "*/*/orders-0"
    code, output = run_command("sla", "report", *words, "--period", "2025-10-03", "--group", "nobody")
    assert (code, "of a group nobody (--group)" in output) == (1, True)


def test_what_changed_from_period_to_period_is_a_query_of_the_table(month: Path, tmp_path: Path) -> None:
    for period in ("2025-10-01", "2025-10-02"):
        words = ("--from", "runs", "--export", str(month / "table"), "--period", period)
        assert run_command("sla", "report", *words, "--out", str(tmp_path / period))[0] == 0
    periods = ("--before", "2025-10-01", "--after", "2025-10-02")
    code, asked = run_command("slo", "compare", "--store", str(month / "table"), *periods)
    assert code == 0, asked
    folders = ("--before", str(tmp_path / "2025-10-01"), "--after", str(tmp_path / "2025-10-02"))
    assert run_command("slo", "compare", *folders) == (0, asked)
    assert len(json.loads(asked.splitlines()[-1])["groups"]) == 2
    code, output = run_command("slo", "compare", *folders, "--group", "a")
    assert (code, "expected none without --store" in output) == (1, True)


def test_figures_that_do_not_add_up_end_with_a_code_of_their_own(month: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Reconciliation(7, ("fleet: down: 1 ms; expected 2 ms",))
    for place in ("sla_reports.measures.reconciliation", "sla_reports.report", "sla_reports.output.html_page"):
        monkeypatch.setattr(f"{place}.reconcile_totals", lambda _: broken)
    words = ("--from", "runs", "--export", str(month / "table"), "--period", "2025-10-03")
    # Also where the objective is met.
    for more in ((), ("--objective", "50")):
        code, output = run_command("sla", "report", *words, *more)
        assert (code, "do not use this report" in output) == (4, True)
        assert json.loads(output.splitlines()[-1])["reconciled"] is False


def planted_days() -> list[Sample]:
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


def of_day(samples: Iterable[Sample], number: int) -> list[Sample]:
    return [sample for sample in samples if sample[1] // DAY_MS == FIRST_DAY + number]


def days_of(table: Path) -> list[dt.date]:
    return sorted({dt.date.fromisoformat(one["day"]) for one in DeltaTable(str(table)).partitions()})


def test_days_one_by_one_are_all_at_once(tmp_path: Path) -> None:
    samples, table = planted_days(), tmp_path / "table"
    first_day = of_day(samples, 0)
    late = [sample for sample in first_day if sample[0] == "a"]
    # The last day first, then the first day without two of its series; late samples come at the end, with their whole day.
    for number, given in ((2, of_day(samples, 2)), (0, late), (1, of_day(samples, 1))):
        appended = append(table, given)
        assert (appended.days, appended.replaced, appended.late) == ((DAYS[number],), (), ())
    appended = append(table, first_day)
    assert (appended.days, appended.replaced) == ((DAYS[0],), (DAYS[0],))
    assert days_of(table) == DAYS
    assert appended.late == (Late(DAYS[0].isoformat(), len(first_day) - len(late), 0, len(first_day)),)
    window = Window((FIRST_DAY + 1) * DAY_MS, (FIRST_DAY + 2) * DAY_MS)
    assert runs_in(read_runs(table, window).runs) == runs_of(samples, gap_limit_ms(INTERVAL_MS))


def test_what_an_export_lacks_or_brings_late_is_told_by_a_report_without_spark(tmp_path: Path) -> None:
    start_ms = FIRST_DAY * DAY_MS
    whole = [(series_of(GROUP_WRITABLE), start_ms + number * INTERVAL_MS, 1.0) for number in range(100)]
    others = [(series_of(GROUP_WRITABLE, "payments"), at_ms, 1.0) for _, at_ms, _ in whole]
    table, log = tmp_path / "table", tmp_path / "incidents.jsonl"
    log.write_text("")
    append(table, whole)
    # A day written again unchanged reports no late sample. Then an export lacks 30 of its samples, and has 100 of another series.
    assert append(table, whole).late == ()
    told = Late(DAYS[0].isoformat(), 100, 30, 170)
    assert append(table, whole[30:] + others).late == (told,)
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
    table, samples = tmp_path / "table", [sample for sample in planted_days() if sample[0] == "a"]
    last_ms = (FIRST_DAY + 2) * DAY_MS
    noon_ms, next_ms = last_ms + DAY_MS // 2, last_ms + DAY_MS
    before = DAYS[0] - dt.timedelta(days=1)
    assert missing_days(table, back=3, now_ms=noon_ms) == [before, *DAYS]
    append(table, of_day(samples, 0), until_ms=last_ms - DAY_MS)
    append(table, [sample for sample in of_day(samples, 2) if sample[1] < noon_ms], until_ms=noon_ms)
    missing = missing_days(table, back=3, now_ms=noon_ms)
    assert missing == [before, DAYS[1], DAYS[2]]
    assert stretches_of(missing, now_ms=noon_ms) == [
        Window(last_ms - 3 * DAY_MS, last_ms - 2 * DAY_MS),
        Window(last_ms - DAY_MS, noon_ms),
    ]
    # The next day is over an hour old; the job was down at midnight.
    next_day = DAYS[2] + dt.timedelta(days=1)
    assert missing_days(table, back=1, now_ms=next_ms + DAY_MS // 24) == [DAYS[2], next_day]
    appended = append(table, of_day(samples, 2), until_ms=next_ms + DAY_MS // 24)
    assert (appended.replaced, appended.late, late_days(table)) == ((DAYS[2],), (), [])
    assert missing_days(table, back=1, now_ms=next_ms + DAY_MS // 24) == [next_day]
    # From now on, more samples of that day are late.
    assert append(table, [*of_day(samples, 2), ("b", last_ms, 1.0)]).late != ()


def test_a_day_with_another_scrape_interval_keeps_its_own(tmp_path: Path) -> None:
    start_ms = FIRST_DAY * DAY_MS
    both = Window(start_ms, start_ms + 2 * DAY_MS)
    append(tmp_path / "t", [("a", start_ms + at_ms, 1.0) for at_ms in range(0, DAY_MS, 15_000)], step_ms=15_000)
    append(tmp_path / "t", [("a", start_ms + DAY_MS + at_ms, 1.0) for at_ms in range(0, DAY_MS, 60_000)])
    assert runs_in(read_runs(tmp_path / "t", both).runs) == [
        Run("a", 1.0, start_ms, start_ms + DAY_MS - 15_000, 5760),
        Run("a", 1.0, start_ms + DAY_MS, start_ms + 2 * DAY_MS - 60_000, 1440, 60_000),
    ]
    # The usual interval of all samples together, not that of a day with one sample.
    append(tmp_path / "t", [("a", start_ms + 2 * DAY_MS, 1.0)], step_ms=1_000)
    assert read_runs(tmp_path / "t", both).intervals_ms == {"a": 15_000}


def test_a_place_that_is_no_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"no Delta table; expected one that `sla backfill` wrote"):
        read_runs(tmp_path / "none", Window(0, 1))
    (tmp_path / "file").write_text("")
    with pytest.raises(TableError, match="expected a"):
        append(tmp_path / "file" / "table", [("a", FIRST_DAY * DAY_MS, 1.0)])


@pytest.mark.real("java")
@pytest.mark.timeout(600)
def test_spark_reduces_days_into_the_table(spark: SparkSession, tmp_path: Path) -> None:
    samples = planted_days()
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
