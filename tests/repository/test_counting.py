"""The count of `make test` is correct: failures, skips and missing parts are reported, never counted as passed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.repository.made import run_made

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


@pytest.mark.parametrize("workers", ["0", "2"])
def test_every_outcome_is_counted_once(tmp_path: Path, workers: str) -> None:
    made = run_made(tmp_path, MIXED, PYTEST_ADDOPTS=f"-n {workers}")
    assert (made.code, made.passed, made.failed) == (1, 1, 2)
    told = {entry["what"].rpartition("::")[2]: entry["why"] for entry in made.left_out}
    assert told == {"test_skipped": "not today", "test_known_hole": "known hole"}


def test_a_file_that_cannot_be_imported_is_a_failure(tmp_path: Path) -> None:
    made = run_made(tmp_path, "import no_such_module")
    assert (made.code != 0, made.passed, made.failed) == (True, 0, 1)


NEEDS_HELM = """
import pytest

@pytest.mark.real("helm")
def test_with_helm(): pass
"""


def test_a_missing_part_leaves_its_test_out_and_says_why(tmp_path: Path) -> None:
    made = run_made(tmp_path, NEEDS_HELM, BROKERGROUP_CACHE=str(tmp_path / "empty"))
    assert (made.code, made.passed, made.failed) == (0, 0, 0)
    [left_out] = made.left_out
    assert "the real part helm is missing: not built yet" in left_out["why"]


def test_a_missing_part_fails_its_test_when_real_is_required(tmp_path: Path) -> None:
    made = run_made(tmp_path, NEEDS_HELM, BROKERGROUP_CACHE=str(tmp_path / "empty"), REQUIRE_REAL="1")
    assert (made.code, made.passed, made.failed, made.left_out) == (1, 0, 1, [])


@pytest.mark.parametrize("arguments", ["", '"no-such-part"'])
def test_a_marker_that_names_no_known_part_stops_the_run(tmp_path: Path, arguments: str) -> None:
    made = run_made(tmp_path, NEEDS_HELM.replace('"helm"', arguments))
    assert (made.code, made.passed) == (pytest.ExitCode.USAGE_ERROR, 0)


@pytest.mark.parametrize("ci", [{"CI": "true"}, {"REQUIRE_REAL": "1"}])
def test_ci_never_writes_golden_files(tmp_path: Path, ci: dict[str, str]) -> None:
    made = run_made(tmp_path, "def test_good(): pass", UPDATE_GOLDEN="1", **ci)
    assert made.code == pytest.ExitCode.USAGE_ERROR
    assert "UPDATE_GOLDEN is set in CI" in made.printed


def test_by_hand_golden_files_can_be_written(tmp_path: Path) -> None:
    assert run_made(tmp_path, "def test_good(): pass", UPDATE_GOLDEN="1", CI="").code == 0
