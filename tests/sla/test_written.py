"""A written report read back: the same incidents and runs, the same replay, and an incident told whole. No Spark."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest

from brokergroup_operator.api.brokergroup_status import Durability
from brokergroup_operator.api.meaning.durability import RULES
from metric_names import SYNC_STATE_SET_SIZE
from sla_reports import what_if as table
from sla_reports.output.files import write_report
from sla_reports.output.written import (
    NoSuchIncidentError,
    WrittenReportError,
    explain,
    find_incident,
    read_fleet,
    read_report,
)
from sla_reports.what_if import Setup, losses_of, replay
from tests.sla import one_day

if TYPE_CHECKING:
    from pathlib import Path

    from sla_reports.output.written import WrittenReport

UTC = ZoneInfo("UTC")


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


def test_a_replay_of_the_files_is_that_of_the_figures(folder: Path, report: WrittenReport) -> None:
    fleet = read_fleet(folder)
    assert table.replicas_seen(fleet) == 3
    told = one_day.summary()
    losses = losses_of(told, one_day.evidence().fleet, SYNC_STATE_SET_SIZE, replicas=3)
    others = table.setups_of([1, 2, 5], [(1, False), (2, False)], [1], [None])
    assert [(one.replicas, one.min_in_sync) for one in others] == [(1, 1), (2, 1), (2, 2), (5, 1), (5, 2)]
    observed, rest = table.outcomes_of(report, fleet, Setup(3), others)
    assert observed == replay(losses, one_day.DAY, Setup(3))
    assert rest == [replay(losses, one_day.DAY, setup) for setup in others]
    lines = table.as_table(observed, rest, table.measured_down_ms(report)).splitlines()
    assert lines[1].startswith("observed: 3 replicas, minInSync 1, 1 zones ")
    # One replica is down while it is away: an hour after the crash, which three were over in 3.5 s.
    assert "1 replicas, minInSync 1, 1 zones" in lines[2]
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
    """What the model leaves out (outages without a log, switchovers) is in every line, and said."""
    fleet = read_fleet(folder)
    observed, rest = table.outcomes_of(report, fleet, Setup(3), [Setup(3), Setup(5)])
    measured_ms = sum(figures.availability.down_ms for figures in one_day.summary().groups)
    assert table.measured_down_ms(report) == measured_ms != observed.down_ms
    document = table.as_document(observed, rest, measured_ms)
    assert document["observed"]["downMs"] == document["others"][0]["downMs"] == measured_ms
    assert (document["replayedDownMs"], document["leftOutMs"]) == (observed.down_ms, measured_ms - observed.down_ms)
    assert document["others"][0]["change"]["downMs"] == 0
    words = table.as_table(observed, rest, measured_ms)
    assert "observed down time: " in words
    assert "The model " in words
    assert "5 replicas, minInSync 1, 1 zones: as 3 replicas, minInSync 1, 1 zones" in words


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
    assert "it took 0.1 min of the 1.4 min of the period (8.7962 %)" in text


def test_what_is_open_or_in_no_log_is_told_so(report: WrittenReport) -> None:
    text = explain(report, find_incident(report, "default/c/orders", "orders/3"), UTC)
    assert "it lasted at least 15 min 10 s" in text
    assert "not told" in text
    assert "the trigger silence proves none" in text
    assert "elected uncleanly, 4096 bytes cut off" in text
    [incident] = report.incidents[one_day.HOSTILE]
    text = explain(report, incident, UTC)
    assert "cause   unattributed: no incident log tells of it" in text
    assert "source  the gauge alone" in text
    # A terminal gets nothing that it would obey.
    assert "\x00" not in text
    assert all(one.isprintable() or one == "\n" for one in text)


def test_what_is_not_there_is_told_with_what_is(report: WrittenReport) -> None:
    with pytest.raises(NoSuchIncidentError, match=r"group 'order': expected one of .*default/c/orders"):
        find_incident(report, "order", "1")
    with pytest.raises(NoSuchIncidentError, match="incident '4': expected one of orders/1, orders/2, orders/3"):
        find_incident(report, "orders", "4")
    with pytest.raises(NoSuchIncidentError, match="the report has no incident of it"):
        find_incident(report, "quiet", "1")


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
