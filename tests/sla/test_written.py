"""A written report read back: the same incidents and runs, the same replay, and a complete incident. No Spark."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest
from typer.testing import CliRunner

from brokergroup_operator.api.brokergroup_status import Durability
from brokergroup_operator.api.durability import RULES
from brokergroup_operator.cli.main import app
from metric_names import GROUP_WRITABLE, SYNC_STATE_SET_SIZE
from sla_reports import what_if as table
from sla_reports.measures.availability import sum_of
from sla_reports.measures.summary import Agreement, Evidence, Summary, summarise
from sla_reports.output.files import write_report
from sla_reports.output.written import (
    NoSuchIncidentError,
    WrittenReportError,
    explain,
    find_incident,
    read_fleet,
    read_report,
)
from sla_reports.report import Reduced, Report, Request, StoredQuality, as_text
from sla_reports.sources import Form, Origin
from sla_reports.states.entities import Fleet, GroupKey
from sla_reports.states.logged import LoggedIncident
from sla_reports.states.spans import Run, Span, State, Window, at_least, by_series, gap_limit_ms
from sla_reports.what_if import Loss, Setup, losses_among, replay
from tests.sla import one_day
from tests.sla.histories import series_of

if TYPE_CHECKING:
    from pathlib import Path

    from sla_reports.output.written import WrittenReport

UTC = ZoneInfo("UTC")
ORDERS = GroupKey("default", "c", "orders")
DAY = Window(0, 86_400_000)
HOUR_MS = 3_600_000
# The master is silently lost for an hour; half an hour later its successor crashes for ten minutes. A slave is down at 10 h.
LOSSES = {
    ORDERS: [
        Loss(HOUR_MS, 2 * HOUR_MS, master=True, detection_ms=3000, switch_ms=500, silent=True),
        Loss(HOUR_MS * 3 // 2, HOUR_MS * 3 // 2 + 600_000, master=True, detection_ms=10, switch_ms=490),
        Loss(10 * HOUR_MS, 10 * HOUR_MS + 60_000),
    ]
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    runs = one_day.all_runs()
    intervals = {run.series: one_day.SCRAPE_MS for run in runs}
    write_report(tmp_path / "report", one_day.summary(), runs, intervals, {"schemaVersion": 1})
    return tmp_path / "report"


@pytest.fixture
def report(folder: Path) -> WrittenReport:
    return read_report(folder)


def test_incidents_come_back_as_they_were(report: WrittenReport) -> None:
    want = {figures.group: figures.incidents for figures in one_day.summary().groups}
    assert report.incidents == want
    assert report.window == one_day.DAY


def _losses(summary: Summary, fleet: Fleet) -> dict[GroupKey, list[Loss]]:
    window = Window(summary.agreement.window.start_ms, summary.until_ms)
    incidents = {one.group: one.incidents for one in summary.groups}
    return losses_among(incidents, window, fleet, SYNC_STATE_SET_SIZE, observed=Setup(3))


def test_a_replay_of_the_files_is_that_of_the_figures(folder: Path, report: WrittenReport) -> None:
    fleet = read_fleet(folder)
    assert table.replicas_seen(fleet, report.incidents) == {one_day.HOSTILE: 3, one_day.ORDERS: 3}
    told = one_day.summary()
    losses = _losses(told, one_day.evidence().fleet)
    others = table.setups_of([1, 2, 5], [(1, False), (2, False)], [1], [None])
    assert [(one.replicas, one.min_in_sync) for one in others] == [(1, 1), (2, 1), (2, 2), (5, 1), (5, 2)]
    observed, rest = table.outcomes_of(report, fleet, Setup(3), others)
    known_ms = sum(one.availability.up_ms + one.availability.down_ms for one in told.groups)
    assert observed == replace(replay(losses, one_day.DAY, Setup(3)), total_ms=known_ms)
    assert rest == [replace(replay(losses, one_day.DAY, setup), total_ms=known_ms) for setup in others]
    lines = table.as_table(observed, rest, table.measured_down_ms(report)).splitlines()
    assert lines[1].startswith("observed: 3 replicas, minInSync 1, 1 zone ")
    # One replica means an hour of downtime after the crash; with three it was 3.5 s.
    assert "1 replica, minInSync 1, 1 zone" in lines[2]
    assert rest[0].down_ms > observed.down_ms
    assert f"{(rest[0].availability - observed.availability) * 100:+.4f}" in lines[2]
    document = table.as_document(observed, rest, table.measured_down_ms(report))
    assert [one["cost"] for one in document["others"]] == [3, 6, 6, 15, 15]
    for one, outcome in zip(document["others"], rest, strict=True):
        assert one["change"] == {
            "availability": round(outcome.availability - observed.availability, 9),
            "downMs": outcome.down_ms - observed.down_ms,
            "oneCopyMs": outcome.one_copy_ms - observed.one_copy_ms,
            "cost": outcome.cost - observed.cost,
        }
    assert lines[2].endswith("3               -6")


def test_the_same_setup_is_predicted_as_it_was_observed(folder: Path, report: WrittenReport) -> None:
    """Every line includes the cases outside the model (switchovers, waiting), and states them."""
    fleet = read_fleet(folder)
    observed, rest = table.outcomes_of(report, fleet, Setup(3), [Setup(3), Setup(5)])
    measured_ms = sum(figures.availability.down_ms for figures in one_day.summary().groups)
    assert table.measured_down_ms(report) == measured_ms != observed.down_ms
    document = table.as_document(observed, rest, measured_ms)
    assert document["observed"]["downMs"] == document["others"][0]["downMs"] == measured_ms
    # Two hours of one group are unknown and one of another is excluded: they counted as up here, and as nothing in the report.
    whole = sum_of([figures.availability for figures in one_day.summary().groups])
    assert document["observed"]["availability"] == pytest.approx(whole.availability, abs=1e-9)
    assert (document["replayedDownMs"], document["leftOutMs"]) == (observed.down_ms, measured_ms - observed.down_ms)
    assert document["others"][0]["change"]["downMs"] == 0
    words = table.as_table(observed, rest, measured_ms)
    assert "observed down time: " in words
    assert "The model " in words
    # Of three members two were away for an hour.
    exposure = [figures.exposure.one_copy_ms for figures in one_day.summary().groups]
    assert document["observed"]["oneCopyMs"] == sum(exposure) == HOUR_MS
    assert document["others"][1]["change"]["oneCopyMs"] == -HOUR_MS


def test_a_setup_without_a_difference_is_told_with_the_reason() -> None:
    one = {ORDERS: [Loss(HOUR_MS, 2 * HOUR_MS, master=True, switch_ms=500)]}
    three, five = (replay(one, DAY, Setup(replicas)) for replicas in (3, 5))
    words = table.as_table(three, [three, five], three.down_ms)
    assert "5 replicas, minInSync 1, 1 zone: as 3 replicas, minInSync 1, 1 zone, for no two" in words
    assert "3 replicas, minInSync 1, 1 zone: as" not in words


def test_durabilities_have_the_names_of_the_spec() -> None:
    assert set(table.DURABILITIES) == {one.value for one in Durability}
    for name, (minimum, alone) in table.DURABILITIES.items():
        rule = RULES[Durability(name)]
        assert (rule.minimum_in_sync, not rule.all_acknowledge) == (minimum, alone)
    assert table.durabilities_of(["Fast", "Strict"], []) == [(1, True), (2, False)]
    assert table.durabilities_of([], [1, 3]) == [(1, False), (3, False)]
    assert table.durabilities_of([], []) == [(1, False)]
    for names, numbers, words in ((["Safe"], [], "expected one of Strict"), (["Fast"], [1], "expected one of the two")):
        with pytest.raises(ValueError, match=words):
            table.durabilities_of(names, numbers)


def test_an_incident_is_told_whole(report: WrittenReport) -> None:
    text = explain(report, find_incident(report, "orders", "1"), UTC)
    assert "incident orders/1 of default/c/orders" in text
    assert "began   2025-11-01 02:00:00 UTC (by incident_log, may be off by 1 ms)" in text
    assert "ended   2025-11-01 02:00:07, after 7.6 s" in text
    assert "cause   crash: the trigger connectionRefused proves it" in text
    assert [line.split()[1:3] for line in text.splitlines() if line.startswith("  detect")] == [["3.0", "s"]]
    bars = [line.partition("|")[2] for line in text.splitlines() if "=|" in line or "= " in line]
    begins = [len(bar) - len(bar.lstrip(" ")) for bar in bars]
    assert begins == [0, 16, 17, 18]
    assert "evidence <i>container ended</i>" in text
    assert "source  the gauge does not show it" in text
    assert "it took 7.6 s of the 1.4 min of the period (8.7962 %)" in text


def test_what_is_open_or_in_no_log_is_told_so(report: WrittenReport) -> None:
    text = explain(report, find_incident(report, "default/c/orders", "orders/3"), UTC)
    assert "it lasted at least 15 min 10 s" in text
    assert "in no stage" in text
    assert "the trigger silence proves none" in text
    assert "elected uncleanly, 4096 bytes cut off" in text
    [incident] = report.incidents[one_day.HOSTILE]
    text = explain(report, incident, UTC)
    assert "cause   unattributed: no incident log has it" in text
    assert "source  the gauge alone" in text
    # A terminal gets no control characters.
    assert "\x00" not in text
    assert all(one.isprintable() or one == "\n" for one in text)


def test_what_is_not_there_is_told_with_what_is(report: WrittenReport) -> None:
    with pytest.raises(NoSuchIncidentError, match=r"group 'order': expected one of .*default/c/orders"):
        find_incident(report, "order", "1")
    with pytest.raises(NoSuchIncidentError, match="incident '4': expected one of orders/1, orders/2, orders/3"):
        find_incident(report, "orders", "4")
    with pytest.raises(NoSuchIncidentError, match="the report has no incident of it"):
        find_incident(report, "quiet", "1")
    with pytest.raises(KeyError, match="n/c/nobody"):
        report.figures(GroupKey("n", "c", "nobody"))


def test_a_folder_that_is_no_report_is_named(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(WrittenReportError, match=r"summary\.json: No such file or directory; expected a folder that"):
        read_report(tmp_path)
    with pytest.raises(WrittenReportError, match=r"runs\.parquet: .*expected the runs of a report"):
        read_fleet(tmp_path)
    lines = (folder / "incidents.jsonl").read_text().splitlines()
    older = {name: value for name, value in json.loads(lines[1]).items() if name != "detectionMs"}
    (folder / "incidents.jsonl").write_text("\n".join([lines[0], json.dumps(older)]))
    with pytest.raises(WrittenReportError, match=r"incidents\.jsonl:2: detectionMs: missing"):
        read_report(folder)
    (folder / "summary.json").write_text('{"schemaVersion": 1}')
    with pytest.raises(WrittenReportError, match=r"summary\.json: schemaVersion: 1; expected 2"):
        read_report(folder)


def test_the_same_figures_make_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    runs = one_day.all_runs()
    intervals = {run.series: one_day.SCRAPE_MS for run in runs}
    again = write_report(tmp_path / "again", one_day.summary(), runs, intervals, {"schemaVersion": 1})
    assert [path.read_bytes() for path in again] == [(folder / path.name).read_bytes() for path in again]
    assert {path.name for path in again} == {path.name for path in folder.iterdir()}


def test_the_groups_that_got_worse_come_first_with_the_causes(folder: Path, tmp_path: Path) -> None:
    """The next day: orders is up, and the quiet group is no longer scraped."""
    well = [run for run in one_day.all_runs() if 'broker_group="quiet"' not in run.series]
    fleet = Fleet(by_series(well), gap_ms=gap_limit_ms(one_day.SCRAPE_MS))
    told_later = summarise(Agreement(one_day.DAY, 0.999), Evidence(fleet, []))
    write_report(tmp_path / "then", told_later, well, {run.series: one_day.SCRAPE_MS for run in well}, {})
    words = ["slo", "compare", "--before", str(folder), "--after", str(tmp_path / "then")]
    told = CliRunner().invoke(app, words)
    assert told.exit_code == 0, told.output
    *lines, last = told.output.splitlines()
    groups = {one["group"]: one for one in json.loads(last)["groups"]}
    orders, quiet = groups[str(one_day.ORDERS)], groups[str(one_day.QUIET)]
    assert orders["downMs"] == orders["after"]["downMs"] - orders["before"]["downMs"]
    assert orders["before"]["outages"] == 3
    assert orders["after"]["outages"] == 1
    # The log had causes; without it the gauge's outages are unattributed, and the known causes are gone.
    assert orders["outageMsByCause"]["unattributed"] == 900_000
    assert all(ms < 0 for cause, ms in orders["outageMsByCause"].items() if cause != "unattributed")
    assert (quiet["after"], quiet["downMs"]) == (None, None)
    assert f"{one_day.QUIET}: not in the later report" in lines
    assert any(line.startswith(f"{one_day.ORDERS}: ") and "outages 3 -> 1" in line for line in lines)
    # As page one has it: cut, and not rounded to 98.9372.
    assert any(line.startswith(f"{one_day.ORDERS}: 98.9371 % -> ") for line in lines)


def test_no_line_rounds_an_availability_up_to_the_objective_or_to_all_of_the_time() -> None:
    """300 ms of a day are 99.9996 %, and not 100 %; so is the objective printed."""
    runs = one_day.runs(GROUP_WRITABLE, ORDERS, (0, 1.0))
    lost = LoggedIncident("o/1", ORDERS, one_day.START_MS + HOUR_MS, trigger="silence", steps_ms={"inSync": 300.0})
    fleet = Fleet(by_series(runs), gap_ms=gap_limit_ms(one_day.SCRAPE_MS))
    told = summarise(Agreement(one_day.DAY, 0.999998), Evidence(fleet, [lost]))
    assert told.groups[0].availability.down_ms == 300
    quality = StoredQuality(samples=9, series=1, stale_markers=0, late_samples=0, missing_samples=0)
    reduced = Reduced(tuple(runs), {run.series: one_day.SCRAPE_MS for run in runs}, quality)
    text = as_text(Report(Request(Origin(Form.RUNS, table="runs"), ()), told, reduced, 0))
    assert f"{ORDERS}: breached, 99.9996 % (between 99.9996 % and 99.9996 %; down 0.300 s" in text
    assert "any group writable 99.9996 %, all 99.9996 %" in text
    assert "objective 99.9998 % " in text


@pytest.mark.parametrize(
    ("setup", "down_ms", "one_copy_ms", "stranded"),
    [
        # One replica: down as long as the replica is; there is no slave to lose.
        (Setup(1), HOUR_MS, 24 * HOUR_MS, 2),
        # Two: the second loss finds no candidate until the first member returns; one copy as long as one is down.
        (Setup(2), 3500 + 600_000, HOUR_MS + 60_000, 1),
        (Setup(3), 3500 + 500, 600_000, 0),
        # Strict on three: writes are refused while two are down.
        (Setup(3, min_in_sync=2), 3500 + 600_000, 600_000, 0),
        (Setup(5, min_in_sync=3), 3500 + 500, 0, 0),
        # Fast: no slave is waited for, so an acknowledged message may have only one copy at any time.
        (Setup(3, master_alone=True), 3500 + 500, 24 * HOUR_MS, 0),
        (Setup(3, silence_timeout_ms=10_000), 10_500 + 500, 600_000, 0),
    ],
)
def test_other_setups(setup: Setup, down_ms: int, one_copy_ms: int, stranded: int) -> None:
    outcome = replay(LOSSES, DAY, setup)
    assert (outcome.down_ms, outcome.one_copy_ms, outcome.stranded) == (down_ms, one_copy_ms, stranded)
    assert outcome.availability == pytest.approx(1 - down_ms / DAY.length_ms)
    assert outcome.cost == setup.replicas


def test_a_zone_takes_all_that_lie_in_it() -> None:
    losses = {ORDERS: [Loss(0, HOUR_MS, master=True, switch_ms=500, whole_zone=True)]}
    together, apart = (replay(losses, DAY, Setup(3, zones=zones)) for zones in (1, 3))
    assert (together.down_ms, together.stranded) == (HOUR_MS, 1)
    assert (apart.down_ms, apart.stranded) == (500, 0)


def test_a_setup_nobody_can_have_is_refused() -> None:
    with pytest.raises(ValueError, match=r"min_in_sync 3: expected 1 to replicas \(2\)"):
        Setup(2, min_in_sync=3)


def _runs(metric: str, *points: tuple[int, float]) -> list[Run]:
    """Return the runs of a gauge scraped every 10 s with a value from each of the instants on."""
    series = series_of(metric)
    ends = [at_ms for at_ms, _ in points[1:]] + [DAY.end_ms]
    return [
        Run(series, value, start_ms, end_ms - 10_000, 1) for (start_ms, value), end_ms in zip(points, ends, strict=True)
    ]


def test_losses_are_taken_from_what_was_observed() -> None:
    size = _runs(
        SYNC_STATE_SET_SIZE, (0, 3.0), (HOUR_MS, 2.0), (2 * HOUR_MS, 3.0), (10 * HOUR_MS, 1.0), (11 * HOUR_MS, 3.0)
    )
    fleet = Fleet(by_series([*_runs(GROUP_WRITABLE, (0, 1.0)), *size]), gap_ms=25_000)
    steps = {"detected": 0.0, "committed": 300.0, "roleChanged": 500.0, "inSync": 600.0}
    log = [LoggedIncident("o/1", ORDERS, HOUR_MS + 3000, trigger="silence", detection_ms=3000.0, steps_ms=steps)]
    summary = summarise(Agreement(DAY, 0.999), Evidence(fleet, log))
    losses = _losses(summary, fleet)
    assert losses == {
        ORDERS: [
            Loss(HOUR_MS, 2 * HOUR_MS, master=True, detection_ms=3000.0, switch_ms=600.0, silent=True),
            Loss(10 * HOUR_MS, 11 * HOUR_MS),
            Loss(10 * HOUR_MS, 11 * HOUR_MS),
        ]
    }
    observed = replay(losses, DAY, Setup(3))
    assert observed.down_ms == summary.groups[0].availability.down_ms == 3600
    assert observed.one_copy_ms == summary.groups[0].exposure.one_copy_ms == HOUR_MS


PAIR = GroupKey("default", "c", "pair")
ALONE = GroupKey("default", "c", "alone")


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A written report of groups of 3, 2 and 1: the second lost its slave for an hour, all else was well."""
    runs = [
        run
        for group, sizes in ((ORDERS, [(0, 3.0)]), (PAIR, [(0, 2.0), (4, 1.0), (5, 2.0)]), (ALONE, [(0, 1.0)]))
        for run in (*one_day.runs(GROUP_WRITABLE, group, (0, 1.0)), *one_day.runs(SYNC_STATE_SET_SIZE, group, *sizes))
    ]
    fleet = Fleet(by_series(runs), gap_ms=gap_limit_ms(one_day.SCRAPE_MS))
    summary = summarise(Agreement(one_day.DAY, 0.999), Evidence(fleet, []))
    write_report(tmp_path / "mixed", summary, runs, {run.series: one_day.SCRAPE_MS for run in runs}, {})
    return tmp_path / "mixed"


def test_each_group_is_replayed_with_its_own_number_of_replicas(mixed: Path) -> None:
    told = CliRunner().invoke(app, ["sla", "whatif", "--report", str(mixed), "--replicas", "3"])
    assert told.exit_code == 0, told.output
    *lines, last = told.output.splitlines()
    document = json.loads(last)
    observed, [three] = document["observed"], document["others"]
    # One copy as the report has it: the hour of the pair, and all the day of the group of one.
    exposure = sum(one["exposure"]["oneCopyMs"] for one in read_report(mixed).summary["groups"])
    assert exposure == HOUR_MS + 24 * HOUR_MS
    assert (observed["oneCopyMs"], observed["cost"]) == (exposure, 3 + 2 + 1)
    assert (observed["replicas"], observed["leastReplicas"]) == (3, 1)
    # With three members the pair keeps two during that hour, and the group of one has slaves.
    assert (three["oneCopyMs"], three["cost"], three["change"]["cost"]) == (0, 9, 3)
    assert lines[1].startswith("observed: 1 to 3 replicas, minInSync 1, 1 zone ")


def test_a_durability_is_no_more_than_a_group_has_replicas(mixed: Path) -> None:
    words = ["sla", "whatif", "--report", str(mixed), "--replicas", "2", "--observed-durability", "Strict"]
    told = CliRunner().invoke(app, words)
    assert told.exit_code == 0, told.output
    document = json.loads(told.output.splitlines()[-1])
    # The hour of the pair; the group of one is not down all day.
    assert document["replayedDownMs"] == HOUR_MS


def test_a_master_that_only_the_gauge_lost_is_down_as_long_as_the_gauge_says() -> None:
    """Its member came back later than the writes did; the group was down for five minutes, not for the hour."""
    own = [
        *one_day.runs(GROUP_WRITABLE, ORDERS, (0, 1.0), (4, 0.0), (4 + 1 / 12, 1.0)),
        *one_day.runs(SYNC_STATE_SET_SIZE, ORDERS, (0, 3.0), (4, 2.0), (5, 3.0)),
    ]
    fleet = Fleet(by_series(own), gap_ms=gap_limit_ms(one_day.SCRAPE_MS))
    summary = summarise(Agreement(one_day.DAY, 0.999), Evidence(fleet, []))
    losses = _losses(summary, fleet)
    assert replay(losses, one_day.DAY, Setup(3)).down_ms == summary.groups[0].availability.down_ms == 300_000
    # One replica is down until it is back.
    assert replay(losses, one_day.DAY, Setup(1)).down_ms == HOUR_MS


@pytest.mark.parametrize(
    ("writable", "sizes"),
    [
        # The master and a slave at once, and the slave for longer.
        ([(0, 1.0), (4, 0.0), (4.1, 1.0)], [(0, 3.0), (4, 1.0), (5, 2.0), (6, 3.0)]),
        # A slave was away already when the master was lost, and stayed away.
        ([(0, 1.0), (4, 0.0), (4.1, 1.0)], [(0, 3.0), (3, 2.0), (4, 1.0), (5, 2.0), (6, 3.0)]),
        # Two slaves, one of them for longer; the master was not lost.
        ([(0, 1.0)], [(0, 3.0), (3, 2.0), (4, 1.0), (5, 2.0), (6, 3.0)]),
    ],
)
def test_the_observed_setup_has_one_copy_as_long_as_the_report_says(
    writable: list[tuple[float, float]], sizes: list[tuple[float, float]]
) -> None:
    own = [*one_day.runs(GROUP_WRITABLE, ORDERS, *writable), *one_day.runs(SYNC_STATE_SET_SIZE, ORDERS, *sizes)]
    fleet = Fleet(by_series(own), gap_ms=gap_limit_ms(one_day.SCRAPE_MS))
    summary = summarise(Agreement(one_day.DAY, 0.999), Evidence(fleet, []))
    losses = _losses(summary, fleet)
    assert summary.groups[0].exposure.one_copy_ms == HOUR_MS
    assert replay(losses, one_day.DAY, Setup(3)).one_copy_ms == HOUR_MS
    # Of two replicas one is away as long as any was: the report's time with less than three.
    short_ms = sum(span.end_ms - span.start_ms for span in _short(fleet))
    assert replay(losses, one_day.DAY, Setup(2)).one_copy_ms == short_ms
    assert replay(losses, one_day.DAY, Setup(5)).one_copy_ms == 0


def _short(fleet: Fleet) -> list[Span]:
    spans = fleet.spans(SYNC_STATE_SET_SIZE, ORDERS, one_day.DAY, at_least(3))
    return [span for span in spans if span.state is State.DOWN]
