"""The daily table has each group's runs, outages and figures, and every report is a query by key."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from brokergroup_operator.cli.main import app
from metric_names import GROUP_WRITABLE
from sla_reports.daily import derived, sums
from sla_reports.measures.reconciliation import Reconciliation
from sla_reports.output.files import incident_document
from sla_reports.reduction.daily_table import FIGURES, INCIDENTS, LOG, read_lines, read_rows, write_days
from sla_reports.reduction.runs import DAY_MS, Quality
from sla_reports.report import Request, make_report
from sla_reports.series import parse_series
from sla_reports.sources import REPORT_METRICS, Form, Origin, SourceError
from sla_reports.states.logged import lines_of_logs
from sla_reports.states.spans import Window, gap_limit_ms
from tests.sla.histories import runs_of, series_of
from tests.sla.planted.exports import write_incident_log
from tests.sla.planted.month import Month, plant

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from sla_reports.measures.summary import Summary
    from sla_reports.reduction.daily_table import Appended
    from sla_reports.states.logged import LogLine
    from tests.sla.histories import Sample

STEP_MS = 120_000
FIRST = dt.date(2025, 9, 29)
START_MS = (FIRST - dt.date(1970, 1, 1)).days * DAY_MS
NOTHING_ODD = Quality(0, 0, 0, 0, 0)


def write(
    table: str | Path, samples: Iterable[Sample], *, log: Iterable[LogLine] = (), step_ms: int = STEP_MS, **more: Any
) -> Appended:
    """Write runs as the reduction does: none crosses midnight."""
    days: dict[int, list[Sample]] = {}
    for one in samples:
        days.setdefault(one[1] // DAY_MS, []).append(one)
    runs = [run for own in days.values() for run in runs_of(own, gap_limit_ms(step_ms))]
    columns = {name: [getattr(run, name) for run in runs] for name in ("series", "value", "start_ms", "end_ms", "n")}
    frame = pa.table({**columns, "interval_ms": pa.array([step_ms] * len(runs), pa.int64())})
    return write_days(table, frame, NOTHING_ODD, log=list(log), derive=derived, **more)


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
    from tests.sla.test_incident_log import line

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


def _run(*words: str) -> tuple[int, str]:
    told = CliRunner().invoke(app, [*words], env={"COLUMNS": "200"})
    return told.exit_code, told.output


def test_every_question_is_a_command_that_needs_neither_java_nor_the_log(month: Path, tmp_path: Path) -> None:
    store = ("--store", str(month / "table"))
    code, output = _run("sla", "days", *store, "--period", "2025-10-03", "--by", "cluster")
    assert code == 0, output
    [told] = json.loads(output.splitlines()[-1])
    assert (told["cluster"], told["groups"], told["days"]) == ("default/DefaultCluster", 2, 1)
    assert output.startswith("default/DefaultCluster: ")
    code, output = _run("sla", "days", *store, "--period", "2024-10")
    assert (code, "no figures of * in 2024-10" in output) == (1, True)
    words = ("--from", "runs", "--export", str(month / "table"), "--group", "*/*/orders-0", "--out", str(tmp_path))
    code, output = _run("sla", "report", *words, "--period", "2025-10-03")
    assert code == 0, output
    assert [one["broker_group"] for one in json.loads(output.splitlines()[-1])["groups"]] == ["orders-0"]
    question = json.loads((tmp_path / "provenance.json").read_text())["question"]
    assert question["groups"] == "*/*/orders-0"
    code, output = _run("sla", "report", *words, "--period", "2025-10-03", "--group", "nobody")
    assert (code, "of a group nobody (--group)" in output) == (1, True)


def test_what_changed_from_period_to_period_is_a_query_of_the_table(month: Path, tmp_path: Path) -> None:
    for period in ("2025-10-01", "2025-10-02"):
        words = (
            "--from",
            "runs",
            "--export",
            str(month / "table"),
            "--period",
            period,
            "--out",
            str(tmp_path / period),
        )
        assert _run("sla", "report", *words)[0] == 0
    periods = ("--before", "2025-10-01", "--after", "2025-10-02")
    code, asked = _run("slo", "compare", "--store", str(month / "table"), *periods)
    assert code == 0, asked
    folders = ("--before", str(tmp_path / "2025-10-01"), "--after", str(tmp_path / "2025-10-02"))
    assert _run("slo", "compare", *folders) == (0, asked)
    assert len(json.loads(asked.splitlines()[-1])["groups"]) == 2
    code, output = _run("slo", "compare", *folders, "--group", "a")
    assert (code, "expected none without --store" in output) == (1, True)


def test_figures_that_do_not_add_up_end_with_a_code_of_their_own(month: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Reconciliation(7, ("fleet: down: 1 ms; expected 2 ms",))
    for place in ("sla_reports.measures.reconciliation", "sla_reports.report", "sla_reports.output.html_page"):
        monkeypatch.setattr(f"{place}.reconcile_totals", lambda _: broken)
    words = ("--from", "runs", "--export", str(month / "table"), "--period", "2025-10-03")
    # Also where the objective is met.
    for more in ((), ("--objective", "50")):
        code, output = _run("sla", "report", *words, *more)
        assert (code, "do not use this report" in output) == (4, True)
        assert json.loads(output.splitlines()[-1])["reconciled"] is False
