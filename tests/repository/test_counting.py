"""The count that ends `make test` is honest: a failure, a skip and a missing part are each told, never passed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.repository.made import count, run_made

if TYPE_CHECKING:
    from pathlib import Path

MIXED = """
import pytest

def test_good(): pass
def test_bad(): assert False
@pytest.mark.skip(reason="not today")
def test_skipped(): pass
@pytest.mark.xfail(reason="known hole", strict=True)
def test_known_hole(): assert False
@pytest.fixture
def broken_teardown():
    yield
    raise RuntimeError("teardown")
def test_teardown(broken_teardown): pass
"""


def test_every_outcome_is_counted_once(tmp_path: Path) -> None:
    code, counts = count(tmp_path, MIXED)
    assert code == 1
    assert (counts["passed"], counts["failed"]) == (1, 2)
    told = {entry["what"].rpartition("::")[2]: entry["why"] for entry in counts["left_out"]}
    assert told == {"test_skipped": "not today", "test_known_hole": "expected to fail: known hole"}


def test_a_file_that_cannot_be_imported_is_a_failure(tmp_path: Path) -> None:
    code, counts = count(tmp_path, "import no_such_module")
    assert code != 0
    assert counts["failed"] == 1


STOPPED = """
import pytest

@pytest.mark.parametrize("number", range(64))
def test_one(number): assert number != 2
"""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_what_a_stopped_run_came_not_to_is_left_out(tmp_path: Path, workers: str) -> None:
    code, counts = count(tmp_path, STOPPED, PYTEST_ADDOPTS=f"--exitfirst -n {workers}")
    assert (code != 0, counts["failed"]) == (True, 1)
    (left_out,) = counts["left_out"]
    not_run = 64 - counts["passed"] - counts["failed"]
    assert left_out == {"what": "test_made.py", "why": f"not run: {not_run} of its tests"}
    assert not_run > 0


NEEDS_HELM = """
import pytest

@pytest.mark.real("helm")
def test_with_helm(): pass
"""


def test_a_missing_part_leaves_its_test_out_and_says_why(tmp_path: Path) -> None:
    code, counts = count(tmp_path, NEEDS_HELM, BROKERGROUP_CACHE=str(tmp_path / "empty"))
    assert code == 0
    assert (counts["passed"], counts["failed"]) == (0, 0)
    assert len(counts["left_out"]) == 1
    assert "the real part helm is missing: not built yet" in counts["left_out"][0]["why"]


def test_a_missing_part_fails_its_test_when_real_is_required(tmp_path: Path) -> None:
    code, counts = count(tmp_path, NEEDS_HELM, BROKERGROUP_CACHE=str(tmp_path / "empty"), REQUIRE_REAL="1")
    assert code == 1
    assert (counts["passed"], counts["failed"], counts["left_out"]) == (0, 1, [])


@pytest.mark.parametrize("arguments", ["", '"no-such-part"'])
def test_a_marker_that_names_no_known_part_stops_the_run(tmp_path: Path, arguments: str) -> None:
    source = NEEDS_HELM.replace('"helm"', arguments)
    code, counts = count(tmp_path, source)
    assert code == pytest.ExitCode.USAGE_ERROR
    assert counts.get("passed", 0) == 0


@pytest.mark.parametrize("ci", [{"CI": "true"}, {"REQUIRE_REAL": "1"}])
def test_ci_never_writes_golden_files(tmp_path: Path, ci: dict[str, str]) -> None:
    made = run_made(tmp_path, "def test_good(): pass", UPDATE_GOLDEN="1", **ci)
    assert made.code == pytest.ExitCode.USAGE_ERROR
    assert "UPDATE_GOLDEN is set in CI" in made.errors


def test_by_hand_golden_files_can_be_written(tmp_path: Path) -> None:
    assert count(tmp_path, "def test_good(): pass", UPDATE_GOLDEN="1", CI="")[0] == 0
