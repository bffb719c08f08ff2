"""A house that a failed story left: its later stories fail at once and name that story, and no other test fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.repository.made import run_made

if TYPE_CHECKING:
    from pathlib import Path

STORIES = """
import pytest

told = []

@pytest.fixture(scope="module", params=["near", "far"])
def any_house(request): return request.param

@pytest.fixture
def lab(): pass

@pytest.fixture(scope="module")
def certificate(): pass

def test_good(any_house): told.append(("good", any_house))
def test_bad(any_house): assert any_house == "far"
def test_later(any_house): told.append(("later", any_house))
@pytest.mark.parametrize("number", [1, 2])
def test_much_later(any_house, number): told.append((number, any_house))

def test_bad_with_a_lab_of_its_own(lab): assert False
def test_good_with_a_lab_of_its_own(lab): told.append("lab")
def test_bad_with_a_certificate(certificate): assert False
def test_good_with_a_certificate(certificate): told.append("certificate")

def test_what_was_told():
    assert told == [
        ("good", "near"), ("good", "far"), ("later", "far"), (1, "far"), (2, "far"), "lab", "certificate"
    ]
"""


def test_later_stories_of_the_same_house_fail_at_once(tmp_path: Path) -> None:
    made = run_made(tmp_path, STORIES)
    assert (made.code, made.left_out) == (1, [])
    failed = {line.split()[1].rpartition("::")[2] for line in made.printed.splitlines() if line.startswith("FAILED")}
    assert failed == {"test_bad[near]", "test_bad_with_a_lab_of_its_own", "test_bad_with_a_certificate"}
    left = {line.split()[1].rpartition("::")[2] for line in made.printed.splitlines() if line.startswith("ERROR ")}
    assert left == {"test_later[near]", "test_much_later[near-1]", "test_much_later[near-2]"}
    assert made.printed.count("the house was left by test_made.py::test_bad[near], which failed") >= len(left)
    assert (made.passed, made.failed) == (9, 6)


BROKEN = """
import pytest

@pytest.fixture(scope="module")
def house(): pass
@pytest.fixture
def messy(house):
    yield
    raise RuntimeError("not cleaned up")

def test_messy(messy): pass
def test_later(house): pass
"""


def test_a_house_that_was_not_cleaned_up_was_left_too(tmp_path: Path) -> None:
    made = run_made(tmp_path, BROKEN)
    assert (made.passed, made.failed, made.left_out) == (0, 2, [])
    assert "the house was left by test_made.py::test_messy, which failed" in made.printed


NEVER_STARTED = """
import pytest

@pytest.fixture(scope="module")
def house(): raise RuntimeError("no house today")

def test_first(house): pass
def test_second(house): pass
"""


def test_a_house_that_never_started_fails_all_its_stories(tmp_path: Path) -> None:
    made = run_made(tmp_path, NEVER_STARTED)
    assert (made.passed, made.failed, made.left_out) == (0, 2, [])
    assert "no house today" in made.printed
