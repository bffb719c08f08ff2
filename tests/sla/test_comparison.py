"""What changed from one written report to the next."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from brokergroup_operator.cli.main import app
from sla_reports.measures.summary import Agreement, Evidence, summarise
from sla_reports.output.files import write_report
from sla_reports.output.written import read_report
from sla_reports.reduction.runs import by_series, gap_limit_ms
from sla_reports.states.entities import Fleet, GroupKey
from tests.sla import one_day

if TYPE_CHECKING:
    from pathlib import Path


def test_a_group_that_no_report_has_is_named(tmp_path: Path) -> None:
    intervals = {run.series: one_day.SCRAPE_MS for run in one_day.all_runs()}
    write_report(tmp_path, one_day.summary(), one_day.all_runs(), intervals, {})
    with pytest.raises(KeyError, match="n/c/nobody"):
        read_report(tmp_path).figures(GroupKey("n", "c", "nobody"))


def test_the_groups_that_got_worse_come_first_with_the_causes(tmp_path: Path) -> None:
    """The day after: orders is well, and the quiet group is not scraped any more."""
    intervals = {run.series: one_day.SCRAPE_MS for run in one_day.all_runs()}
    write_report(tmp_path / "first", one_day.summary(), one_day.all_runs(), intervals, {})
    well = [run for run in one_day.all_runs() if 'broker_group="quiet"' not in run.series]
    fleet = Fleet(by_series(well), gap_ms=gap_limit_ms(one_day.SCRAPE_MS))
    write_report(tmp_path / "then", summarise(Agreement(one_day.DAY, 0.999), Evidence(fleet, [])), well, intervals, {})
    words = ["slo", "compare", "--before", str(tmp_path / "first"), "--after", str(tmp_path / "then")]
    told = CliRunner().invoke(app, words)
    assert told.exit_code == 0, told.output
    *lines, last = told.output.splitlines()
    groups = {one["group"]: one for one in json.loads(last)["groups"]}
    orders, quiet = groups[str(one_day.ORDERS)], groups[str(one_day.QUIET)]
    assert orders["downMs"] == orders["after"]["downMs"] - orders["before"]["downMs"]
    assert orders["before"]["outages"] == 3
    assert orders["after"]["outages"] == 1
    # The log knew causes; without it what the gauge saw is unattributed, and the known ones are gone.
    assert orders["outageMsByCause"]["unattributed"] == 900_000
    assert all(ms < 0 for cause, ms in orders["outageMsByCause"].items() if cause != "unattributed")
    assert (quiet["after"], quiet["downMs"]) == (None, None)
    assert f"{one_day.QUIET}: not in the later report" in lines
    assert any(line.startswith(f"{one_day.ORDERS}: ") and "outages 3 -> 1" in line for line in lines)
