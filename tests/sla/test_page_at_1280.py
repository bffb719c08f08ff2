"""report.html in a real Chromium at 1280 px: no clipped text and no sideways scrolling, also with long names and many figures."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from metric_names import GROUP_WRITABLE, SYNC_STATE_SET_SIZE
from sla_reports.measures.objectives import BudgetWindow, Objective
from sla_reports.measures.summary import Agreement, Evidence, summarise
from sla_reports.output.html_page import report_html
from sla_reports.states.entities import Fleet, GroupKey
from sla_reports.states.logged import LoggedIncident
from sla_reports.states.spans import by_series
from tests.real.parts.install import chromium_program, playwright_folder
from tests.sla import one_day

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.real("browser"), pytest.mark.timeout(300)]

# Realistic names: DNS labels of up to 63 characters.
NAMES = ["orders", "payments-and-refunds-of-the-europe-west-region", "a" * 63]
_SIDEWAYS = """() => [...document.querySelectorAll("html, body, body *")]
  .filter(one => one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).display !== "inline" && !one.closest("svg"))
  .map(one => `${one.tagName} of ${one.closest("section")?.id ?? "page one"}: ${one.scrollWidth} in ${one.clientWidth}`)"""
_BEYOND = """() => [...document.querySelectorAll("body *")]
  .filter(one => !one.closest("svg") && one.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
  .map(one => `${one.tagName} of ${one.closest("section")?.id ?? "page one"}`)"""


def _page() -> str:
    """Three groups with long names, each with logged and unlogged incidents, and its own objectives."""
    groups = [GroupKey("default", "c", name) for name in NAMES]
    runs = [
        run
        for group in groups
        for run in (
            *one_day.runs(GROUP_WRITABLE, group, (0, 1.0), (5, 0.0), (5.25, 1.0), (8, None), (10, 1.0)),
            *one_day.runs(SYNC_STATE_SET_SIZE, group, (0, 3.0), (5, 1.0), (6, 3.0)),
        )
    ]
    steps = {"detected": 0.0, "committed": 300.0, "roleChanged": 500.0, "inSync": 104_600.0}
    log = [
        LoggedIncident(
            f"default/{group.broker_group}/{number}", group, one_day.START_MS + number * one_day.HOUR_MS,
            trigger="connectionRefused", detection_ms=3_000.0, steps_ms=steps, facts={"zone": "eu-west-1a", "node": "n" * 40},
        )
        for group in groups
        for number in (2, 13, 21)
    ]  # fmt: skip
    own = [
        Objective(str(one), str(one), 0.9995, BudgetWindow(30, "month", "Asia/Shanghai"), "checkout", "li")
        for one in groups
    ]
    told = summarise(
        Agreement(one_day.DAY, 0.999, objectives=own), Evidence(Fleet(by_series(runs), gap_ms=37_500), log)
    )
    files = [{"name": f"{'x' * 60}.json", "bytes": 1, "sha256": "ab" * 32}]
    return report_html(told, {"inputs": files, "question": {"match": {"region": "eu"}}}, time_zone="Asia/Shanghai")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sys.path.insert(0, str(playwright_folder()))
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=str(chromium_program()), args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_scrolls_sideways(browser: Any, tmp_path: Path, scheme: str) -> None:
    (tmp_path / "report.html").write_text(_page(), encoding="utf-8")
    page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme=scheme)
    page.goto((tmp_path / "report.html").as_uri())
    page.evaluate("() => document.querySelectorAll('details').forEach(one => one.open = true)")
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"report-{scheme}.png", full_page=True)
    assert page.evaluate(_SIDEWAYS) == []
    assert page.evaluate(_BEYOND) == []
    small = "() => Math.min(...[...document.querySelectorAll('td, th')].map(one => parseFloat(getComputedStyle(one).fontSize)))"
    assert page.evaluate(small) >= 12
    page.close()
