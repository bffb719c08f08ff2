"""README.md's list of wrong numbers names a test for each; those that fit nowhere else stand here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from brokergroup_operator.cli.main import app
from metric_names import GROUP_WRITABLE
from sla_reports.measures.amendments import Amendment
from sla_reports.measures.summary import Agreement, Evidence, summarise
from sla_reports.output.html_page import report_html
from sla_reports.sources import Form, Origin
from tests.sla import one_day
from tests.sla.histories import series_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sla_reports.measures.availability import Availability

MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS
ROOT = Path(__file__).parents[2]
WRITABLE = series_of(GROUP_WRITABLE)


def test_each_test_that_the_list_names_is_there() -> None:
    text = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"`([a-z_/]+\.py)::(test_\w+)`", text)
    assert len(named) > 20
    for file, name in named:
        assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), name


def test_an_amendment_of_no_group_is_told_on_page_one() -> None:
    """A slip of the pen excluded nothing, and nobody was told."""
    known = one_day.evidence()
    amendment = Amendment("default/c/order", one_day.START_MS, one_day.START_MS + 60_000, None, "move", "li")
    told = summarise(Agreement(one_day.DAY, 0.999), Evidence(known.fleet, known.log, amendments=[amendment]))
    words = "exclusion of default/c/order (move): no group has such a name, nothing was amended"
    assert words in told.warnings
    manager, _, _ = report_html(told, {}).partition("<nav")
    assert words in manager


def _exported(path: Path, *, contradicted: range) -> Path:
    """A day scraped each minute, always up; in `contradicted` minutes the same instant says down as well."""
    rows = [(minute, 1.0) for minute in range(24 * 60)] + [(minute, 0.0) for minute in contradicted]
    lines = [f"{WRITABLE} {value} {(one_day.START_MS + minute * MINUTE_MS) / 1000}" for minute, value in sorted(rows)]
    path.write_text("\n".join([*lines, "# EOF\n"]))
    return path


@pytest.mark.real("java")
@pytest.mark.timeout(600)
def test_conflicting_duplicates_are_the_same_figure_from_files_lake_and_table(
    spark: SparkSession, tmp_path: Path
) -> None:
    """70 minutes of one value and the other: 95.139 % from files and 99.275 % from the lake, which had chosen."""
    from sla_reports.readers import lake
    from sla_reports.readers.text import read_openmetrics
    from sla_reports.reduction.daily_table import append_days
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
    assert first.disputed_ms == 70 * MINUTE_MS
    assert told(Origin(Form.LAKE, [tmp_path / "lake"])) == first
    assert told(Origin(Form.RUNS, table=str(tmp_path / "runs"))) == first


def test_rolling_days_are_a_period_of_the_command(tmp_path: Path) -> None:
    """The help named `30d`, and the command refused it: what is missing now is the table, and not the period."""
    words = [
        "sla", "report", "--from", "runs", "--export", str(tmp_path / "none"), "--incidents",
        str(tmp_path / "log.jsonl"),
    ]  # fmt: skip
    (tmp_path / "log.jsonl").write_text("")
    told = CliRunner().invoke(
        app, [*words, "--period", "30d", "--until", "2025-11-02T00:00:00Z"], env={"COLUMNS": "200"}
    )
    assert told.exit_code == 1
    assert "--period" not in told.output
    assert str(tmp_path / "none") in told.output
