"""A run of every check that has used up its time ends by itself: it tells what it found, names what it did not run, and fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests import run
from tests.repository.made import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MADE = """
import pathlib, time
import pytest

@pytest.fixture
def cleaned():
    yield
    pathlib.Path(__file__).with_name("cleaned").touch()

def test_good(): pass
def test_bad(): assert False, "told all the same"
def test_endless(cleaned):
    pathlib.Path(__file__).with_name("begun").touch()
    time.sleep(250)
def test_after(): pass
def test_long_after(): pass
"""


@pytest.fixture(autouse=True)
def interrupts_as_they_were() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def limit_until(begun: Path) -> run.TimeLimit:
    """The time is up when that file is there."""
    return run.TimeLimit(1.0, clock=lambda: 61.0 if begun.exists() else 0.0, started=0.0)


def printing(text: str) -> Any:
    return lambda limit: run.check(text, [sys.executable, "-c", f"print({text!r})"], limit)


def test_what_runs_is_interrupted_and_the_rest_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_made.py").write_text(MADE, encoding="utf-8")
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n", encoding="utf-8")
    arguments = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), str(tmp_path)]
    lanes: run.Lanes = {
        "first": printing("first"),
        "made tests": lambda limit: run.pytest_run("made tests", arguments, limit),
        "last": printing("last"),
    }
    tally = run.run_lanes(lanes, limit_until(tmp_path / "begun"))
    printed = capfd.readouterr().out
    assert (tally.passed, tally.failed) == (2, 2)
    assert tally.left_out == [
        {"what": "test_made.py", "why": "not run: 3 of its tests"},
        {"what": "last", "why": "not run: the run's 1 minutes (--limit-minutes) are used up"},
    ]
    assert "told all the same" in printed
    assert "OUT OF TIME: the run's 1 minutes (--limit-minutes) are used up; interrupted" in printed
    assert "last: FAILED: not run" in printed
    assert (tmp_path / "cleaned").exists()


def test_an_interrupted_command_never_passed(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    ends_well = f"""
import pathlib, time
try:
    pathlib.Path({str(begun)!r}).touch()
    time.sleep(250)
except KeyboardInterrupt:
    print("cleaned up")
"""
    assert run.run([sys.executable, "-c", ends_well], limit_until(begun)) != 0


def test_one_that_does_not_end_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "CLEAN_UP_SECONDS", 0.5)
    begun = tmp_path / "begun"
    deaf = f"""
import pathlib, signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
pathlib.Path({str(begun)!r}).touch()
time.sleep(250)
"""
    assert run.run([sys.executable, "-c", deaf], limit_until(begun)) == -signal.SIGKILL
    assert "killed: it was still there" in capfd.readouterr().out


def test_how_busy_the_machine_was_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 20 30 40000 5000 1 2 0 0 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n", encoding="utf-8")
    monkeypatch.setattr(run, "PROCESSORS", stat)
    assert run.busy_seconds() == 153 / os.sysconf("SC_CLK_TCK")
    stat.unlink()
    assert run.busy_seconds() == 0.0


def test_without_minutes_it_is_never_up() -> None:
    assert not run.TimeLimit(clock=lambda: 1e9, started=0.0).is_up()


@pytest.mark.parametrize(("required", "minutes"), [("1", "85"), ("", "no limit")])
def test_what_ci_runs_has_a_limit(required: str, minutes: str) -> None:
    command = [sys.executable, "tests/run.py", "--help"]
    told = subprocess.run(command, cwd=ROOT, env={"REQUIRE_REAL": required}, capture_output=True, text=True, check=True)
    assert minutes in told.stdout
