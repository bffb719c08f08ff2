"""The report equals the planted month: by the log to the millisecond, by gauges and counters within their error."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pytest

from metric_names import CAUSES
from sla_reports.measures.summary import Agreement, Evidence, Summary, summarise
from sla_reports.series import parse_series
from sla_reports.sources import REPORT_METRICS
from sla_reports.states.incidents import Source
from sla_reports.states.logged import read_logs
from sla_reports.states.spans import Window
from tests.sla.histories import fleet_of
from tests.sla.planted.exports import incidents_found, mismatches, write_incident_log
from tests.sla.planted.month import Month, Planted, plant
from tests.support.draws import WHOLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sla_reports.states.entities import Fleet
    from sla_reports.states.logged import Circumstance, IncidentLogs, LoggedIncident


# A scrape every two minutes, in the whole form every minute.
pytestmark = pytest.mark.sampled


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


def test_with_the_log_every_figure_is_exact(planted: Planted, fleet: Fleet, log: IncidentLogs) -> None:
    assert {one.cause for one in planted.incidents} == set(CAUSES)
    summary = _summary(planted, fleet, log.incidents, log.circumstances)
    assert mismatches(planted, summary) == []
    assert incidents_found(summary) == len(planted.incidents)
    hours = dt.timedelta(milliseconds=summary.groups[0].availability.total_ms) / dt.timedelta(hours=1)
    assert hours == 745


def test_without_circumstances_no_cause_is_guessed(planted: Planted, fleet: Fleet, log: IncidentLogs) -> None:
    assert mismatches(planted, _summary(planted, fleet, log.incidents), with_circumstances=False) == []


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
