"""The pages of docs/: the index lists each, no link is broken, and their references to tests are correct."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from brokergroup_operator.api.brokergroup_status import ConditionType, Reason

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r'\]\((?!https?:)(?P<path>[^)#\s]*)(?:#(?P<anchor>[^)\s]+))?(?: "(?P<title>[^"]*)")?\)')
NAMED = re.compile(r"`(?P<path>tests/[\w/.]+|benchmarks/[\w/.]+)(?:::(?P<name>test_\w+))?`")
# `[test](…/test_x.py "test_name")` beside a sentence, [`test_name`](…/test_x.py) in a table: tests/repository/test_guarantees.py.
TEST_LINK = re.compile(
    r'\[(?P<label>[^\]]*)\]\((?P<path>[^)#\s]*(?:tests|benchmarks)/[\w/]+\.(?:py|txt))(?: "(?P<title>[^"]*)")?\)'
)
TARGET = re.compile(r"`make (?P<target>[\w-]+)")


def pages() -> list[Path]:
    """Every page of ours that a reader may come upon."""
    folders = ("docs", "charts", "tests", "benchmarks", "operator", "examples")
    return [*ROOT.glob("*.md"), *(path for folder in folders for path in sorted((ROOT / folder).rglob("*.md")))]


PAGES = [str(path.relative_to(ROOT)) for path in pages()]


@cache
def anchors(page: Path) -> frozenset[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(
        r"^#+ (.+)$", re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL), re.MULTILINE
    )
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)


@pytest.mark.parametrize("page", PAGES)
def test_no_link_leads_nowhere(page: str) -> None:
    path = ROOT / page
    for link in LINK.finditer(re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)):
        target = (path.parent / link["path"]).resolve() if link["path"] else path
        assert target.exists(), f"{page}: {link[0]}"
        if link["anchor"] and target.suffix == ".md":
            assert link["anchor"] in anchors(target), f"{page}: {link[0]}: no such heading"


def test_the_index_leads_to_every_page() -> None:
    text = (DOCS / "README.md").read_text(encoding="utf-8")
    parts = [DOCS / part for part in ("start", "tasks", "concepts", "reference", "contributors")]
    names = [path.relative_to(DOCS).as_posix() for part in parts for path in sorted(part.glob("*.md"))]
    assert len(names) >= 18
    assert [name for name in names if f"({name}" not in text] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_test_and_target_that_a_page_names_is_there(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for named in NAMED.finditer(text):
        path = ROOT / named["path"]
        assert path.exists() or path.with_suffix(".py").exists(), f"{page}: {named[0]}"
        if named["name"]:
            assert re.search(rf"^(async )?def {named['name']}\(", path.read_text(encoding="utf-8"), re.MULTILINE), (
                named[0]
            )
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in TARGET.findall(text):
        assert f"\n{target}:" in makefile, f"{page}: make {target}"


def test_every_level_item_is_shown_or_said_not_to_be_built() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|\n ").split(" | ")]
        for line in (DOCS / "contributors" / "capability-levels.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| ") and not line.startswith("| item")
    ]
    assert len(rows) > 20
    for item, state, shown in rows:
        if state.startswith(("no", "**no**")):
            assert len(shown) == 1, item  # a dash
        else:
            assert NAMED.search(shown) or TARGET.search(shown), f"{item}: {shown}"


def test_every_failure_is_shown_by_a_test() -> None:
    """The contributors' list: which test shows which row."""
    body = (DOCS / "tasks" / "failure-modes.md").read_text(encoding="utf-8")
    listed = _section("Failure modes")
    rows = [
        line.split("|")[1].strip()
        for line in body.splitlines()
        if line.startswith("|") and not line.startswith(("|---", "| fault", "| change"))
    ]
    shown = {line.split("|")[1].strip(): line.split("|")[2] for line in listed.splitlines() if line.startswith("| ")}
    shown.pop("row", None)
    assert set(shown) == set(rows)
    for row, tests in shown.items():
        assert TEST_LINK.search(tests) or TARGET.search(tests) or "not shown" in tests, f"{row}: {tests}"


def test_every_rule_for_operations_is_shown_by_a_test() -> None:
    body = (DOCS / "tasks" / "operations.md").read_text(encoding="utf-8").partition("## Rules for all of them\n")[2]
    rules, shown = (
        _first_cells(text.strip().partition("\n\n")[0]) for text in (body, _section("Operations").partition("\n\n")[2])
    )
    assert len(rules) >= 7
    assert rules == shown


def _section(heading: str) -> str:
    text = (DOCS / "contributors" / "shown-by.md").read_text(encoding="utf-8")
    return text.partition(f"## {heading}\n")[2].partition("\n## ")[0]


def _first_cells(table: str) -> list[str]:
    return [line.split("|")[1].strip() for line in table.splitlines()[2:]]


def test_each_reason_that_is_not_as_it_should_be_has_a_heading() -> None:
    as_it_should_be = {
        Reason.ALL_MEMBERS_IN_SYNC, Reason.MASTER_SERVES_WRITES, Reason.STABLE, Reason.ENOUGH_CANDIDATES,
        Reason.ALL_LINKED, Reason.ALL_UP_TO_DATE, Reason.NOTHING_STALLED,
    }  # fmt: skip
    text = (DOCS / "tasks" / "condition-reasons.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^### (\w+)$", text, re.MULTILINE)) == sorted(set(Reason) - as_it_should_be)
    for section in re.findall(r"^### \w+\n(.+?)(?=^##|\Z)", text, re.DOTALL | re.MULTILINE):
        assert re.search(r"\S \*\*Do:\*\* \S", section), section
    assert set(re.findall(r"^`(\w+)`: ", text, re.MULTILINE)) <= set(ConditionType)
