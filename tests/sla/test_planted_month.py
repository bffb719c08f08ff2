"""The report equals what was planted: a month, a day by hand, and drawn histories against plain loops."""

from __future__ import annotations

import datetime as dt
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metric_names import (
    CAUSES,
    GROUP_WRITABLE,
    SYNC_STATE_SET_SIZE,
    UNAVAILABLE_SECONDS_TOTAL,
    UNCLEAN_ELECTIONS_TOTAL,
    VOTING_REPLICAS,
)
from sla_reports.measures.amendments import Amendment
from sla_reports.measures.availability import Verdict
from sla_reports.measures.summary import Agreement, Evidence, Summary, summarise
from sla_reports.reduction.runs import Intervals, day_pieces, runs_in, stitched
from sla_reports.series import parse_series
from sla_reports.sources import REPORT_METRICS
from sla_reports.states.entities import Fleet, GroupKey
from sla_reports.states.incidents import Source
from sla_reports.states.logged import Circumstance, LoggedIncident, read_logs
from sla_reports.states.spans import Window, by_series, gap_limit_ms
from tests.sla import one_day
from tests.sla.histories import (
    INTERVAL_MS,
    START_MS,
    Sample,
    batches_of,
    fleet_of,
    histories,
    milliseconds_by_state,
    series_of,
)
from tests.sla.planted.exports import incidents_found, mismatches, write_incident_log
from tests.sla.planted.month import Month, Planted, plant
from tests.support.draws import WHOLE, examples

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sla_reports.states.logged import IncidentLogs

# A scrape every two minutes, in the whole form every minute.


@pytest.fixture(scope="module")
def planted() -> Planted:
    return plant(Month(groups=2) if WHOLE else Month(groups=2, step_ms=120_000))


@pytest.fixture(scope="module")
def fleet(planted: Planted) -> Fleet:
    samples = [
        (series, int(at_ms), float(value))
        for series, (times, values) in planted.series.items()
        if parse_series(series).metric in REPORT_METRICS
        for at_ms, value in zip(times, values, strict=True)
    ]
    return fleet_of(samples, planted.month.step_ms)


@pytest.fixture(scope="module")
def log(planted: Planted, tmp_path_factory: pytest.TempPathFactory) -> IncidentLogs:
    """Write the log as the operator does, and read it."""
    return read_logs([write_incident_log(planted, tmp_path_factory.mktemp("log") / "incidents.jsonl")])


def _summary(
    planted: Planted, fleet: Fleet, log: Sequence[LoggedIncident], noted: Sequence[Circumstance] = ()
) -> Summary:
    window = Window(planted.month.start_ms, planted.month.end_ms)
    return summarise(Agreement(window, 0.9995), Evidence(fleet, log, noted))


@pytest.mark.sampled
def test_with_the_log_every_figure_is_exact(planted: Planted, fleet: Fleet, log: IncidentLogs) -> None:
    assert {one.cause for one in planted.incidents} == set(CAUSES)
    summary = _summary(planted, fleet, log.incidents, log.circumstances)
    assert mismatches(planted, summary) == []
    assert incidents_found(summary) == len(planted.incidents)
    hours = dt.timedelta(milliseconds=summary.groups[0].availability.total_ms) / dt.timedelta(hours=1)
    assert hours == 745


@pytest.mark.sampled
def test_without_circumstances_no_cause_is_guessed(planted: Planted, fleet: Fleet, log: IncidentLogs) -> None:
    assert mismatches(planted, _summary(planted, fleet, log.incidents), with_circumstances=False) == []


@pytest.mark.sampled
def test_what_nothing_proves_is_unknown_and_tells_what_was_near(
    planted: Planted, fleet: Fleet, log: IncidentLogs
) -> None:
    found = [
        one for group in _summary(planted, fleet, log.incidents, log.circumstances).groups for one in group.incidents
    ]
    assert {one.circumstances for one in found if one.cause == "unknown"} == {("DiskPressure", "OOMKilled")}
    partitions = {one.circumstances for one in found if one.cause == "partition"}
    # The log itself proves the other one, regardless of circumstances nearby.
    assert partitions == {("NodeReachableAgain",), ()}
    assert sum(one.cut_off for one in planted.incidents) == 2


@pytest.mark.sampled
def test_without_the_log_gauge_and_counter_are_within_their_error(planted: Planted, fleet: Fleet) -> None:
    for figures in _summary(planted, fleet, []).groups:
        told = figures.availability
        ours = [one for one in planted.incidents if one.group == figures.group.broker_group]
        down_ms = sum(one.in_sync_ms - one.fault_ms for one in ours)
        assert len(figures.incidents) < len(ours)  # a scrape each minute misses most outages
        assert told.source in (Source.COUNTER, Source.GAUGE)
        silent_ms = sum(gap.end_ms - gap.start_ms for gap in planted.gaps)
        assert abs(told.down_ms - down_ms) <= told.error_ms + silent_ms
        # The counter lacks only seconds that were reset before a scrape.
        assert figures.counter_ms is not None
        assert figures.counter_ms <= down_ms + 1


GAP_MS = gap_limit_ms(INTERVAL_MS)


@st.composite
def clusters(draw: st.DrawFn) -> dict[str, list[Sample]]:
    """Draw the gauges of five groups of one cluster."""
    return {name: draw(histories(series_of(GROUP_WRITABLE, name))) for name in "abcde"}


@pytest.mark.sampled
@settings(max_examples=examples(15, 40), suppress_health_check=list(HealthCheck))
@given(lines=clusters(), cut=st.integers(0, 600_000), length=st.integers(1, 900_000))
def test_figures_are_those_of_plain_loops(lines: dict[str, list[Sample]], cut: int, length: int) -> None:
    samples = [sample for line in lines.values() for sample in line]
    # Read in two disjoint parts, each reduced alone, then joined.
    halves = [[one for one in samples if (one[1] < START_MS + cut) is early] for early in (True, False)]
    intervals = Intervals(other_ms=INTERVAL_MS)
    pieces = [piece for half in halves if half for piece in day_pieces(partial(batches_of, half), intervals)]
    fleet = Fleet(by_series(runs_in(stitched(pa.Table.from_batches(pieces)))), gap_ms=GAP_MS)
    window = Window(START_MS + 30_000, START_MS + 30_000 + length)
    summary = summarise(Agreement(window, 0.99), Evidence(fleet, []))
    want = milliseconds_by_state(lines, (window.start_ms, window.end_ms), GAP_MS)
    told = {figures.group.broker_group: figures.availability for figures in summary.groups}
    [cluster] = summary.clusters
    told |= {"any": cluster.write, "all": cluster.ordered_write}
    assert {
        name: {"up": one.up_ms, "down": one.down_ms, "unknown": one.unknown_ms, "disputed": one.disputed_ms}
        for name, one in told.items()
    } == want


HOUR_MS = 3_600_000
END_MS = 24 * HOUR_MS
SCRAPE_MS = 15_000
ORDERS = GroupKey("default", "c", "orders")


def _gauge(metric: str, group: str, changes: dict[int, float], first: float) -> list[Sample]:
    """Return scrapes of a day of a gauge with a value from each instant on."""
    value, samples, pending = first, [], sorted(changes.items())
    for at_ms in range(0, END_MS, SCRAPE_MS):
        while pending and pending[0][0] <= at_ms:
            value = pending.pop(0)[1]
        samples.append((series_of(metric, group), at_ms, value))
    return samples


def _planted_day(*, with_log: bool = True) -> Evidence:
    """One day: a crash of 7 s between scrapes, a logged outage of 10 min, a switchover, and an unlogged outage."""
    hour = HOUR_MS
    samples = _gauge(GROUP_WRITABLE, "orders", {2 * hour + 1: 0.0, 2 * hour + 600_001: 1.0}, 1.0)
    samples += _gauge(GROUP_WRITABLE, "payments", {5 * hour: 0.0, 5 * hour + 90_000: 1.0}, 1.0)
    samples += _gauge(SYNC_STATE_SET_SIZE, "orders", {2 * hour: 1.0, 3 * hour: 2.0, 4 * hour: 3.0}, 3.0)
    samples += _gauge(UNCLEAN_ELECTIONS_TOTAL, "orders", {2 * hour: 1.0}, 0.0)
    counted = {1 * hour: 7.0, 2 * hour + 600_000: 607.0, 8 * hour: 607.5}
    samples += _gauge(UNAVAILABLE_SECONDS_TOTAL, "orders", counted, 0.0)
    steps = {"detected": 0.0, "committed": 500.0, "roleChanged": 800.0}
    log = [
        LoggedIncident("o/1", ORDERS, 1 * hour + 3000, trigger="connectionRefused", detection_ms=3000.0,
                       steps_ms=steps | {"inSync": 4000.0}),
        LoggedIncident("o/2", ORDERS, 2 * hour + 5000, trigger="silence", detection_ms=5000.0, unclean=True,
                       truncated_bytes=4096, steps_ms=steps | {"inSync": 595_000.0}, facts={"zone": "z1"}),
        LoggedIncident("o/3", ORDERS, 8 * hour, kind="switchover", trigger="requested", steps_ms={"roleChanged": 500.0}),
        LoggedIncident("o/4", ORDERS, 9 * hour, outcome="cancelled"),
    ]  # fmt: skip
    fleet = fleet_of(samples, SCRAPE_MS)
    going_on = [Circumstance("partition", 2 * hour - 1000, 2 * hour + 100_000)]
    return Evidence(fleet, log if with_log else [], going_on)


def _figures(evidence: Evidence, **changes: Any) -> dict[str, Any]:
    summary = summarise(Agreement(Window(0, END_MS), 0.9995, **changes), evidence)
    return {figures.group.broker_group: figures for figures in summary.groups} | {"": summary}


def test_a_planted_day_is_told_to_the_millisecond() -> None:
    told = _figures(_planted_day())
    orders, payments = told["orders"], told["payments"]
    assert [(one.cause, one.start_ms, one.end_ms) for one in orders.incidents] == [
        ("crash", HOUR_MS, HOUR_MS + 7000),
        ("partition", 2 * HOUR_MS, 2 * HOUR_MS + 600_000),
        ("plannedSwitchover", 8 * HOUR_MS, 8 * HOUR_MS + 500),
    ]
    assert (orders.availability.down_ms, orders.availability.source.value) == (607_500, "incident_log")
    assert orders.counter_ms == pytest.approx(607_500)
    assert orders.verdict is Verdict.BREACHED
    assert [(one.cause, one.source.value) for one in payments.incidents] == [("unattributed", "gauge")]
    assert (payments.availability.down_ms, payments.availability.error_ms) == (90_000, 2 * SCRAPE_MS)
    assert orders.recovery.total.n == 2
    assert orders.recovery.dominant == "firstSuccess"
    assert orders.mttr.mean_ms == pytest.approx(303_500)
    assert (orders.exposure.below_promise_ms, orders.exposure.one_copy_ms) == (HOUR_MS, HOUR_MS)
    assert (orders.exposure.unclean_elections, orders.exposure.truncated_bytes) == (1, 4096)
    assert orders.budget.left_ms == pytest.approx(END_MS * 0.0005 - 607_500)
    [cluster] = told[""].clusters
    assert (cluster.write.down_ms, cluster.ordered_write.down_ms) == (0, 607_500 + 90_000)
    assert told[""].verdict is Verdict.BREACHED
    assert [len(event.groups) for event in told[""].events] == [1, 1, 1]
    assert _figures(_planted_day(), promised_copies_of={ORDERS: 3})["orders"].exposure.below_promise_ms == 2 * HOUR_MS


def test_without_a_log_the_counter_tells_what_the_gauge_missed() -> None:
    orders = _figures(_planted_day(with_log=False))["orders"]
    assert [one.source.value for one in orders.incidents] == ["gauge"]
    # 7.5 s are within the gauge's own error of half a minute.
    assert (orders.availability.down_ms, orders.availability.source.value) == (600_000, "gauge")


def test_what_ended_before_the_window_is_not_counted_into_it() -> None:
    evidence = _planted_day()
    # The window begins in the middle of the outage of ten minutes; at its end the counter rises by all of it.
    window = Window(2 * HOUR_MS + 300_000, END_MS)
    orders = next(one for one in summarise(Agreement(window, 0.9), evidence).groups if one.group == ORDERS)
    assert (orders.availability.down_ms, orders.availability.source.value) == (300_500, "incident_log")
    assert orders.counter_ms == pytest.approx(300_500)


def test_an_exclusion_takes_an_incident_out_of_every_measure() -> None:
    evidence = _planted_day()
    move = Amendment("default/c/orders", 2 * HOUR_MS, 3 * HOUR_MS, None, "move", "li")
    told = _figures(Evidence(evidence.fleet, evidence.log, evidence.circumstances, [move]))
    orders = told["orders"]
    assert [one.id for one in orders.incidents] == ["o/1", "o/3"]
    assert (orders.availability.down_ms, orders.availability.total_ms) == (7_500, 23 * HOUR_MS)
    assert orders.recovery.total.max_ms == 7_000
    assert [(one.down_ms, one.up_ms) for one in orders.audit] == [(600_000, HOUR_MS - 600_000)]
    # In that hour the set had one member; and an unclean election, which loses messages in maintenance too.
    exposure = orders.exposure
    assert (exposure.below_promise_ms, exposure.one_copy_ms, exposure.unclean_elections) == (0, 0, 1)
    # It concerns only one group, so the cluster's account stays.
    assert told[""].clusters[0].ordered_write.down_ms == 607_500 + 90_000


def test_hibernation_exposes_nothing() -> None:
    """Hours in which the spec wants no broker stood on page one as hours on one disk."""
    found = one_day.runs(GROUP_WRITABLE, one_day.ORDERS, (0, 1.0), (6, 0.0), (9, 1.0))
    found += one_day.runs(VOTING_REPLICAS, one_day.ORDERS, (0, 3.0), (6, 0.0), (8.5, 3.0))
    found += one_day.runs(SYNC_STATE_SET_SIZE, one_day.ORDERS, (0, 3.0), (6, 1.0), (9, 3.0))
    fleet = Fleet(by_series(found), gap_ms=2 * one_day.SCRAPE_MS)
    [figures] = summarise(Agreement(one_day.DAY, 0.99), Evidence(fleet, ())).groups
    hour = one_day.HOUR_MS
    assert (figures.exposure.below_promise_ms, figures.exposure.one_copy_ms) == (hour // 2, hour // 2)


@pytest.mark.parametrize(("voters", "below_hours"), [(1.0, 1), (2.0, 24), (None, 24)])
def test_a_group_of_one_replica_keeps_the_promise_of_one_copy(voters: float | None, below_hours: int) -> None:
    """It was told to have been below its promise all month. Without the gauge of voting replicas the usual promise holds."""
    found = one_day.runs(GROUP_WRITABLE, one_day.ORDERS, (0, 1.0))
    found += one_day.runs(SYNC_STATE_SET_SIZE, one_day.ORDERS, (0, 1.0), (6, 0.0), (7, 1.0))
    found += [] if voters is None else one_day.runs(VOTING_REPLICAS, one_day.ORDERS, (0, voters))
    fleet = Fleet(by_series(found), gap_ms=2 * one_day.SCRAPE_MS)
    [figures] = summarise(Agreement(one_day.DAY, 0.99), Evidence(fleet, ())).groups
    assert figures.exposure.below_promise_ms == below_hours * one_day.HOUR_MS
    assert figures.exposure.one_copy_ms == 24 * one_day.HOUR_MS


def test_a_window_still_running_ends_where_the_data_ends() -> None:
    evidence = _planted_day()
    running = Evidence(evidence.fleet, evidence.log, now_ms=2 * HOUR_MS + 300_000)
    orders = _figures(running)["orders"]
    assert orders.availability.down_ms == 7_000 + 300_000
    assert orders.availability.total_ms == 2 * HOUR_MS + 300_000
    assert orders.budget.forecast.spent_ms > orders.budget.spent_ms
    # The log's end is after the data's: within the data it is open.
    assert orders.recovery.total.censored == 1
