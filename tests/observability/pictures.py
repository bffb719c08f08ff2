"""Pictures for the documents by a headless Chromium: drawn dashboards, and a report of a planted month."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.real.parts.install import chromium_program, playwright_folder
from tests.sla.planted.exports import write_incident_log, write_openmetrics
from tests.sla.planted.month import Month, plant

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = {"width": 1480, "height": 200}
# Page one: the verdict, five figures, what to do, the timeline.
REPORT = {"width": 1100, "height": 1035}
REPORT_SECONDS = 900
# Enough for a picture; a sample a minute is half a GiB.
STEP_MS = 180_000
# The planted October is one of this zone.
TIME_ZONE, OBJECTIVE = "Europe/Berlin", "99.98"


def of_dashboards(pages: Mapping[str, str], folder: Path) -> None:
    """`dashboard-NAME.png` of each page of HTML, by the dashboard's uid."""
    with _browser() as browser:
        for uid, text in pages.items():
            page = browser.new_page(viewport=DASHBOARD)
            page.set_content(text)
            page.screenshot(path=str(folder / f"dashboard-{uid.removeprefix('brokergroup-')}.png"), full_page=True)
            page.close()


def of_a_report(target: Path, scratch: Path) -> None:
    """Take pictures of the report of a planted month, which is the same each time."""
    planted = plant(Month(step_ms=STEP_MS))
    samples = write_openmetrics(planted, scratch / "month.om")
    incidents = write_incident_log(planted, scratch / "incidents.jsonl")
    command = [sys.executable, "-m", "brokergroup_operator.cli.main", "sla", "report", "--from", "openmetrics"]
    command += [
        "--export",
        str(samples),
        "--incidents",
        str(incidents),
        "--period",
        "2026-10",
        "--time-zone",
        TIME_ZONE,
    ]
    command += ["--objective", OBJECTIVE, "--out", str(scratch / "report"), "--no-progress"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=REPORT_SECONDS, check=False)
    # 2: the objective is breached; 3: it may be.
    if done.returncode not in {0, 2, 3}:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2000:]}")
    [page_one] = (scratch / "report").rglob("report.html")
    with _browser() as browser:
        page = browser.new_page(viewport=REPORT)
        page.goto(page_one.as_uri())
        page.screenshot(path=str(target))


@contextmanager
def _browser() -> Iterator[Any]:
    if str(playwright_folder()) not in sys.path:
        sys.path.insert(0, str(playwright_folder()))
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(chromium_program()), args=["--no-sandbox"])
        yield browser
        browser.close()
