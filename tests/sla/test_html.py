"""report.html: complete, escaped, deterministic, with all of the summary, and whole at 1280 px in a real Chromium."""

from __future__ import annotations

import os
import re
import sys
import xml.etree.ElementTree as ET
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from metric_names import GROUP_WRITABLE, SYNC_STATE_SET_SIZE
from sla_reports.measures.amendments import Amendment
from sla_reports.measures.objectives import BudgetWindow, Objective
from sla_reports.measures.summary import Agreement, Evidence, summarise
from sla_reports.output.html_elements import Markup, TimeScale, duration, join, minutes, percent, table, tag, text
from sla_reports.output.html_groups import counted_downs
from sla_reports.output.html_page import report_html
from sla_reports.states.entities import Fleet, GroupKey
from sla_reports.states.logged import LoggedIncident
from sla_reports.states.spans import Span, State, Window, by_series
from tests.real.parts.install import chromium_program, playwright_folder
from tests.sla import one_day

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GOLDEN = Path(__file__).parent / "golden" / "report.html"
PROVENANCE: dict[str, Any] = {
    "schemaVersion": 1,
    "inputs": [{"name": "export <1>.json", "bytes": 12, "sha256": "ab" * 32}],
    "question": {"objective": 0.999, "scrapeIntervalsMs": [15_000], "until": None},
    "quality": {"samples": 17_000, "stale_markers": 0},
    "versions": {"pyspark": "4.3.0"},
}


def _page(**changes: Any) -> str:
    return report_html(one_day.summary(**changes), PROVENANCE)


def _root(page: str) -> ET.Element:
    return ET.fromstring(page.removeprefix("<!DOCTYPE html>"))


def test_the_page_is_the_one_that_a_person_has_read() -> None:
    page = _page()
    if os.environ.get("UPDATE_GOLDEN") == "1":
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(page, encoding="utf-8")
    assert page == GOLDEN.read_text(encoding="utf-8")


def test_it_is_xml_and_its_anchors_are_there() -> None:
    page = _page()
    root = _root(page)
    ids = [one.get("id") for one in root.iter() if one.get("id")]
    assert len(ids) == len(set(ids))
    links = [one.attrib["href"] for one in root.iter("a")]
    assert links == [f"#{one}" for one in ids]
    assert page.splitlines()[0] == "<!DOCTYPE html>"


def test_what_comes_from_outside_is_text_and_nothing_else() -> None:
    root = _root(_page())
    names = {one.tag for one in root.iter()}
    assert not names & {"script", "i", "iframe", "object", "img", "link"}
    # All bold ones are our own figures.
    assert all("n1" not in (one.text or "") for one in root.iter("b"))
    words = "".join(root.itertext())
    assert '<script>alert("1")</script>&]]>\ufffd' in words
    assert "<script>move</script>" in words
    assert "li & wei" in words
    assert not [key for one in root.iter() for key in one.attrib if key.startswith("on")]


def test_nothing_is_loaded_from_anywhere() -> None:
    page = _page()
    assert not re.search(r"https?:|//[a-z]|url\(|@import|\bsrc=|xlink", page)
    policy = next(one for one in _root(page).iter("meta") if one.get("http-equiv"))
    assert policy.attrib["content"].startswith("default-src 'none'")


def test_the_lowest_availability_is_the_figure_of_the_group_that_is_named() -> None:
    """The worst group by its bounds had another group's figure: half an hour down, and two unknown hours."""
    gauge = GROUP_WRITABLE
    runs = [
        *one_day.runs(gauge, one_day.ORDERS, (0, 1.0), (5, 0.0), (5.5, 1.0)),
        *one_day.runs(gauge, one_day.QUIET, (0, 1.0), (8, None), (10, 1.0)),
    ]
    fleet = Fleet(by_series(runs), gap_ms=37_500)
    page = report_html(summarise(Agreement(one_day.DAY, 0.999), Evidence(fleet, [])), PROVENANCE)
    tiles = ["".join(one.itertext()) for one in _root(page).iter("div") if one.get("class") == "tile"]
    [lowest] = [one for one in tiles if one.startswith("Lowest availability")]
    assert lowest.startswith("Lowest availability97.9"), lowest
    assert "orders, between 97.9" in lowest
    assert "quiet is 91.6" in lowest


def test_each_objective_is_named_with_its_window() -> None:
    """A percentage needs its window: 99.95 % of a day is 43 s, of thirty days 22 minutes."""
    own = [
        Objective("orders", str(one_day.ORDERS), 0.95, BudgetWindow(30)),
        Objective("quiet", str(one_day.QUIET), 0.99, BudgetWindow(30, "month", "Asia/Shanghai")),
    ]
    told = summarise(Agreement(one_day.DAY, 0.999, objectives=own), one_day.evidence())
    root = _root(report_html(told, PROVENANCE))
    parts = {one.attrib["id"]: one for one in root.iter("section")}
    rows = {row[0].text: ["".join(cell.itertext()) for cell in row] for row in parts["objectives"].iter("tr")}
    assert rows["default/c/orders"][1:5] == [
        "95.0000 %", "rolling 30 days", "2025-10-03 00:00:00 to 2025-11-02 00:00:00", "? undecidable",
    ]  # fmt: skip
    # The month in Shanghai begins eight hours before the day in UTC, and continues after it.
    assert rows["default/c/quiet"][1:4] == [
        "99.0000 %", "calendar month (Asia/Shanghai)", "2025-10-31 16:00:00 to 2025-11-30 16:00:00",
    ]  # fmt: skip
    [hostile] = [row for name, row in rows.items() if "alert" in (name or "")]
    assert hostile[1:4] == ["99.9000 %", "the report's period", "2025-11-01 00:00:00 to 2025-11-02 00:00:00"]
    groups = {row[0].text: "".join(row[1].itertext()) for row in next(parts["groups"].iter("table")).iter("tr")}
    assert groups["default/c/orders"] == "? undecidable; 95.0000 % over rolling 30 days"
    assert groups["default/c/quiet"].endswith("; 99.0000 % over calendar month (Asia/Shanghai)")
    manager = next(one for one in root.iter("div") if one.get("class") == "manager")
    words = " ".join("".join(manager.itertext()).split())
    assert (
        "objective 95.0000 % to 99.9000 %, each broker group's own, over calendar month (Asia/Shanghai), rolling 30 days"
        " or the report's period"
    ) in words
    assert "of 1.4 min over the report's period" in words
    # 5 % of thirty days, not of this day.
    assert rows["default/c/orders"][8:11] == ["2160.0 min", "15.3 min", "2144.7 min"]


def test_page_one_names_service_owner_and_how_many_groups_met_it() -> None:
    words = "".join(_root(_page()).itertext())
    assert "Service: not named (--service). Owner: not named (--owner). 3 broker groups." in words
    assert "1 of 3 groups met it" in words
    own = [Objective("orders", str(one_day.ORDERS), 0.95, BudgetWindow(30), service="shop", owner="team <shop>")]
    for agreement, named in (
        (Agreement(one_day.DAY, 0.999, objectives=own), "Service: shop. Owner: team <shop>."),
        (
            Agreement(one_day.DAY, 0.999, objectives=own, service="checkout", owner="li"),
            "Service: checkout. Owner: li.",
        ),
    ):
        manager, _, _ = report_html(summarise(agreement, one_day.evidence()), PROVENANCE).partition("<nav")
        assert named in unescape(manager)


def test_each_chart_has_its_numbers_in_a_table_of_the_same_part() -> None:
    root = _root(_page())
    of_charts = {
        part.attrib["id"]: [[cell.text for cell in table.iter("th")] for table in part.iter("table")]
        for part in root.iter("section")
        if any(one.tag == "svg" for one in part.iter())
    }
    assert {name: [head for head in tables if wanted in head] != [] for name, wanted in (
        ("timeline", "unknown"), ("incidents", "lasted"), ("rto", "recoveries"), ("budget", "spent"), ("groups", "down"),
    ) for tables in (of_charts[name],)} == dict.fromkeys(of_charts, True)  # fmt: skip
    words = "".join("".join(part.itertext()) for part in root.iter("section") if part.attrib["id"] == "rto")
    assert "recoveries" in words


def test_one_is_not_told_as_many() -> None:
    """ "1 outages" stood on page one."""
    runs = one_day.runs(GROUP_WRITABLE, one_day.ORDERS, (0, 1.0), (5, 0.0), (5.5, 1.0))
    fleet = Fleet(by_series(runs), gap_ms=37_500)
    for log in ([], one_day.log()[:1]):
        words = " ".join(
            _root(report_html(summarise(Agreement(one_day.DAY, 0.999), Evidence(fleet, log)), {})).itertext()
        )
        assert not re.findall(r"(?<![\d.,:])1 (?!ms)[a-z]+(?:ies|s)\b", words)
    assert "1 outage " in words


def test_a_calm_day_says_so() -> None:
    fleet = Fleet(by_series(one_day.runs("brokergroup_group_writable", one_day.QUIET, (0, 1.0))), gap_ms=37_500)
    calm = summarise(Agreement(one_day.DAY, 0.999), Evidence(fleet, []))
    words = "".join(_root(report_html(calm, PROVENANCE)).itertext())
    assert "✔ Met" in words
    assert "Nothing: the objective is met and nothing odd was seen." in words
    assert "No incident in this period." in words


def test_no_group_at_all_is_a_page_too() -> None:
    nothing = summarise(Agreement(one_day.DAY, 0.999), Evidence(Fleet({}, gap_ms=1), []))
    assert "? Undecidable" in "".join(_root(report_html(nothing, {})).itertext())


def test_a_period_still_running_shows_where_it_goes() -> None:
    until_ms = one_day.START_MS + 12 * one_day.HOUR_MS
    root = _root(_page(until_ms=until_ms))
    assert "still running, data up to 2025-11-01 12:00:00" in "".join(root.itertext())
    assert any(one.get("class") == "forecast" for one in root.iter("line"))
    assert not any(one.get("class") == "forecast" for one in _root(_page()).iter("line"))


def test_times_are_told_in_the_agreements_zone() -> None:
    page = report_html(one_day.summary(), PROVENANCE, time_zone="Asia/Shanghai")
    assert "2025-11-01 08:00:00 to 2025-11-02 08:00:00 (Asia/Shanghai)" in page


def test_time_excluded_from_a_down_is_cut_out_of_it() -> None:
    middle = one_day.START_MS + 5 * one_day.HOUR_MS + 300_000
    known = one_day.evidence()
    about = [Amendment(str(one_day.HOSTILE), middle, middle + 60_000, None, "move", "li")]
    told = summarise(Agreement(one_day.DAY, 0.999), Evidence(known.fleet, known.log, amendments=about))
    [hostile] = [one for one in told.groups if one.group == one_day.HOSTILE]
    assert [span.length_ms for span in counted_downs(hostile)] == [300_000, 540_000]
    # The budget's line ends with the budget, and never rises.
    root = _root(report_html(told, PROVENANCE))
    figure = next(one for one in root.iter("figure") if "alert" in (one[0].text or ""))
    path = next(one for one in figure.iter("path") if one.get("class") == "left").attrib["d"]
    heights = [float(point.split()[1]) for point in path[1:].split("L")]
    assert heights == sorted(heights)
    assert heights[-1] > heights[0]


def test_an_amendment_of_no_group_is_told_on_page_one() -> None:
    """A mistyped group name excluded nothing, without a warning."""
    known = one_day.evidence()
    amendment = Amendment("default/c/order", one_day.START_MS, one_day.START_MS + 60_000, None, "move", "li")
    told = summarise(Agreement(one_day.DAY, 0.999), Evidence(known.fleet, known.log, amendments=[amendment]))
    words = "exclusion of default/c/order (move): no group has such a name, nothing was amended"
    assert words in told.warnings
    manager, _, _ = report_html(told, PROVENANCE).partition("<nav")
    assert words in manager


def test_flapping_states_stay_a_small_picture() -> None:
    scale = TimeScale(Window(0, 10_000), 0.0, 100.0)
    flapping = [Span(at, at + 1, State.DOWN if at % 2 else State.UP) for at in range(10_000)]
    assert scale.columns(flapping, State.DOWN) == [(0.0, 100.0)]
    assert scale.columns([Span(500, 501, State.DOWN)], State.DOWN) == [(5.0, 6.0)]


def test_figures_are_short_texts() -> None:
    """A budget below a minute is shown in seconds; a share is cut, and not rounded."""
    told: tuple[tuple[Callable[[Any], str], dict[float | None, str]], ...] = (
        (duration, {None: "-", 0: "0 ms", 999: "999 ms", 3500: "3.5 s", 125_000: "2 min 5 s", 7_260_000: "2 h 1 min",
                    90_000_000: "1 d 1 h", -125_000: "-2 min 5 s"}),
        (minutes, {16.0: "16 ms", -8_200: "-8.2 s", 59_999: "60.0 s", 90_000: "1.5 min", -900_000: "-15.0 min"}),
        (percent, {0.9995: "99.9500 %", 0.9999999: "99.9999 %", 1.0: "100.0000 %", 0.57: "57.0000 %", None: "unknown"}),
    )  # fmt: skip
    for show, texts in told:
        assert {value: show(value) for value in texts} == texts


def test_only_markup_is_not_escaped() -> None:
    assert tag("p", "<b>", Markup("<i/>"), class_='a"b') == '<p class="a&quot;b">&lt;b&gt;<i/></p>'
    assert join(["<", Markup("<br/>")], ", ") == "&lt;, <br/>"
    assert "&lt;td&gt;" in table(["h"], [["a", "<td>"]])
    assert text("\x01\ud800") == "\ufffd\ufffd"


# Realistic names: DNS labels of up to 63 characters.
NAMES = ["orders", "payments-and-refunds-of-the-europe-west-region", "a" * 63]
_SIDEWAYS = """() => [...document.querySelectorAll("html, body, body *")]
  .filter(one => one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).display !== "inline" && !one.closest("svg"))
  .map(one => `${one.tagName} of ${one.closest("section")?.id ?? "page one"}: ${one.scrollWidth} in ${one.clientWidth}`)"""
_BEYOND = """() => [...document.querySelectorAll("body *")]
  .filter(one => !one.closest("svg") && one.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
  .map(one => `${one.tagName} of ${one.closest("section")?.id ?? "page one"}`)"""


def _page_of_long_names() -> str:
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


@pytest.mark.real("browser")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_scrolls_sideways(browser: Any, tmp_path: Path, scheme: str) -> None:
    (tmp_path / "report.html").write_text(_page_of_long_names(), encoding="utf-8")
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
