"""docs/anchors.md: each of the 88 features has a row, with tests that are there, and the counts above are the table's."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING

import pytest

from tests.repository.test_docs import DOCS, LINK, TEST_LINK

if TYPE_CHECKING:
    from pathlib import Path

PAGE = DOCS / "anchors.md"
FEATURES = 88
STATES = ("works", "partly", "not")
COUNTS = re.compile(r"Of the (\d+) features (\d+) work, (\d+) work partly, and (\d+) do not\.")
SIZES = {"hours", "day", "days"}
NOTHING = "\N{EN DASH}"


@cache
def functions_of(file: Path) -> frozenset[str]:
    """A check of a lane is a function of a program, such as those of tests/node."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return frozenset(one.name for one in ast.walk(tree) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))


def rows_of(text: str) -> list[list[str]]:
    """The rows of a table that begin with a number."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if re.match(r"\| *\d+ *\|", line)]
    return [[cell.strip() for cell in row] for row in rows]


def wrong_tests(cell: str) -> list[str]:
    wrong = []
    for link in TEST_LINK.finditer(cell):
        file, name = (DOCS / link["path"]).resolve(), link["label"].strip("`")
        if not file.is_file():
            wrong.append(f"{name}: no such file: {link['path']}")
        elif name not in functions_of(file):
            wrong.append(f"{name}: not a function of {link['path']}")
    return wrong


def wrong_row(row: list[str]) -> list[str]:
    if len(row) != 6:
        return [f"{len(row)} cells, expected 6"]
    _, feature, state, where, shown, missing = row
    wrong = wrong_tests(shown)
    if not 5 <= len(feature.split()) <= 12:
        wrong.append(f"the feature has {len(feature.split())} words, expected 5 to 12")
    if len(LINK.findall(where)) != 1:
        wrong.append(f"where: expected one link, got {where}")
    if state not in STATES:
        wrong.append(f"state {state}, expected one of {', '.join(STATES)}")
    elif (state == "not") != (shown == NOTHING) or (state != "not" and not TEST_LINK.search(shown)):
        wrong.append(f"{state}, shown by {shown}: a feature that is built has a test, and no other")
    if state != "works" and missing == NOTHING:
        wrong.append(f"{state}: expected what is missing")
    return wrong


def wrong_in(text: str) -> list[str]:
    """Each fault of the page, by its row."""
    table, _, later = text.partition("\n## What is missing")
    rows, sized = rows_of(table), rows_of(later)
    wrong = [f"{row[0]}: {one}" for row in rows for one in wrong_row(row)]
    numbers = [int(row[0]) for row in rows]
    if numbers != list(range(1, FEATURES + 1)):
        wrong.append(f"the rows are {numbers}, expected 1 to {FEATURES}")
    found = Counter(row[2] for row in rows)
    counts = COUNTS.search(table)
    expected = (str(len(rows)), *(str(found[state]) for state in STATES))
    if counts is None or counts.groups() != expected:
        wrong.append(f"the text counts {counts and counts.groups()}, the table has {expected}")
    open_rows = [row[:3] for row in rows if row[2] != "works"]
    if [row[:3] for row in sized] != open_rows:
        wrong.append(f"the list of what is missing has {[row[:3] for row in sized]}, expected {open_rows}")
    return wrong + [f"{row[0]}: size {row[-1]}" for row in sized if row[-1] not in SIZES]


def test_every_feature_has_its_row_with_tests_that_are_there() -> None:
    assert wrong_in(PAGE.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (r"^\| 36 \|.*\n", "", "the rows are"),
        (r"^\| 10 \|", "| 11 |", "the rows are"),
        (r"^(\| 1 \|.*)`test_a_group_of_java", r"\1`test_a_flock_of_java", "1: test_a_flock_of_java_brokers"),
        (r"^(\| 1 \|.*)tests/real/test_java_group", r"\1tests/real/test_gone", "1: .*no such file"),
        (r"^(\| 28 \|.*)`cut`", r"\1`cut_off`", "28: cut_off: not a function"),
        (r"^(\| 1 \| [^|]*\|) works", r"\1 not", "1: not, shown by"),
        (r"^(\| 36 \| [^|]*\|) not", r"\1 works", "36: works, shown by"),
        (r"^(\| 36 \| [^|]*\|) not", r"\1 soon", "36: state soon"),
        (r"^(\| 20 \|.*\|) [^|]*\|$", rf"\1 {NOTHING} |", "20: partly: expected what is missing"),
        (r"(features) \d+", r"\1 99", "the text counts"),
        (r"^(\| 36 \| .*\|) days \|$", r"\1 soon |", "36: size soon"),
        (r"^\| 36 \| .*\| days \|\n", "", "the list of what is missing"),
    ],
)
def test_a_wrong_page_is_seen(old: str, new: str, said: str) -> None:
    text = PAGE.read_text(encoding="utf-8")
    changed = re.sub(old, new, text, count=1, flags=re.MULTILINE)
    assert changed != text
    assert [one for one in wrong_in(changed) if re.match(said, one)]
