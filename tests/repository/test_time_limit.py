"""A run of every check that has used up its time ends by itself: it tells what it found, names what it did not run, and fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests import run
from tests.repository.made import ROOT
from tests.support import lanes

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


def limit_until(begun: Path) -> lanes.TimeLimit:
    """The time is up when that file is there."""
    return lanes.TimeLimit(1.0, clock=lambda: 61.0 if begun.exists() else 0.0, started=0.0)


def code(name: str, source: str, places: int = 1) -> lanes.Lane:
    return lanes.Lane(name, (sys.executable, "-c", source), places=places)


def after_all(folder: Path, some: list[lanes.Lane], limit: lanes.TimeLimit, *, places: int = 1) -> lanes.Run:
    ended = lanes.Run(some, limit, places=places, folder=folder / "results")
    ended.until_all_ended()
    return ended


def test_what_runs_is_interrupted_and_the_rest_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_made.py").write_text(MADE, encoding="utf-8")
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n", encoding="utf-8")
    arguments = ("-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), str(tmp_path))
    made = lanes.Lane("made tests", (sys.executable, "-m", "pytest", "-q", *arguments), counted_by_test=True)
    some = [code("first", "print('said')"), made, code("last", "")]
    tally = after_all(tmp_path, some, limit_until(tmp_path / "begun")).tally
    printed = capfd.readouterr().out
    assert (tally.passed, tally.failed) == (2, 2)
    told = sorted(tally.left_out, key=lambda entry: entry["what"])
    assert told == [
        {"what": "last", "why": "not run: the run's 1 minutes (--limit-minutes) are used up"},
        {"what": "test_made.py", "why": "not run: 3 of its tests"},
    ]
    assert "told all the same" in printed
    assert "OUT OF TIME: the run's 1 minutes (--limit-minutes) are used up; made tests is interrupted" in printed
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
    assert after_all(tmp_path, [code("one", ends_well)], limit_until(begun)).tally == lanes.Tally(failed=1)


def test_one_that_does_not_end_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lanes, "CLEAN_UP_SECONDS", 0.5)
    begun = tmp_path / "begun"
    deaf = f"""
import pathlib, signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
pathlib.Path({str(begun)!r}).touch()
time.sleep(250)
"""
    assert after_all(tmp_path, [code("one", deaf)], limit_until(begun)).tally == lanes.Tally(failed=1)
    assert "killed: it was still there" in capfd.readouterr().out


# Each writes who runs while it does, until the file of the lane beside it is there or long after.
MEETING = """
import pathlib, sys, time
folder, own, other = pathlib.Path({folder!r}), {own!r}, {other!r}
(folder / own).touch()
deadline = time.monotonic() + {seconds}
while not (folder / other).exists() and time.monotonic() < deadline:
    time.sleep(0.01)
sys.exit(0 if (folder / other).exists() else 1)
"""


def meeting(folder: Path, own: str, other: str, *, places: int = 1, seconds: float = 60.0) -> lanes.Lane:
    """Passes if the other lane has begun before it ends."""
    source = MEETING.format(folder=str(folder), own=own, other=other, seconds=seconds)
    return code(own, source, places)


def test_lanes_run_beside_each_other_while_there_is_a_place(tmp_path: Path) -> None:
    some = [meeting(tmp_path, "a", "b"), meeting(tmp_path, "b", "a")]
    assert after_all(tmp_path, some, lanes.TimeLimit(), places=2).tally == lanes.Tally(passed=2)


def test_one_that_takes_all_places_runs_alone(tmp_path: Path) -> None:
    alone = meeting(tmp_path, "alone", "after", places=1000, seconds=0.5)
    some = [meeting(tmp_path, "a", "alone", seconds=0.5), alone, meeting(tmp_path, "after", "alone", seconds=0.5)]
    ended = after_all(tmp_path, some, lanes.TimeLimit(), places=3)
    # "after" finds a place beside "a", "alone" begins when both have ended: it alone met what it waits for.
    assert {name: counts["passed"] for name, counts in ended.by_lane.items()} == {"a": 0, "after": 0, "alone": 1}


def test_each_lane_is_told_whole_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BROKERGROUP_CACHE", str(tmp_path / "empty"))
    left_out = replace(code("left out", ""), parts=("helm",))
    some = [code("good", "print('one'); print('two')"), code("bad one", "raise SystemExit(3)"), left_out]
    ended = after_all(tmp_path, some, lanes.TimeLimit(), places=3)
    printed = capfd.readouterr().out
    assert "good: what it printed\none\ntwo\n" in printed
    assert "bad one: FAILED (exit code 3)" in printed
    assert (tmp_path / "results" / "bad-one.log").exists()
    told = json.loads((tmp_path / "results" / "lanes.json").read_text(encoding="utf-8"))
    assert told == ended.by_lane
    counted = {name: (lane["passed"], lane["failed"], lane["left_out"]) for name, lane in told.items()}
    assert counted == {"good": (1, 0, 0), "bad one": (0, 1, 0), "left out": (0, 0, 1)}
    assert [entry["what"] for entry in ended.tally.left_out] == ["left out"]
    assert "helm: not built yet" in ended.tally.left_out[0]["why"]


def test_how_busy_the_machine_was_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 20 30 40000 5000 1 2 0 0 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n", encoding="utf-8")
    monkeypatch.setattr(lanes, "PROCESSORS", stat)
    assert lanes.busy_seconds() == 153 / os.sysconf("SC_CLK_TCK")
    stat.unlink()
    assert lanes.busy_seconds() == 0.0


def test_without_minutes_it_is_never_up() -> None:
    assert not lanes.TimeLimit(clock=lambda: 1e9, started=0.0).is_up()


@pytest.mark.parametrize(("required", "minutes"), [("1", "85"), ("", "no limit")])
def test_what_ci_runs_has_a_limit(required: str, minutes: str) -> None:
    command = [sys.executable, "tests/run.py", "--help"]
    told = subprocess.run(command, cwd=ROOT, env={"REQUIRE_REAL": required}, capture_output=True, text=True, check=True)
    assert minutes in told.stdout


def test_ci_runs_whatever_a_newcomer_runs() -> None:
    """All lanes of `make test` are lanes of `make test-all`, or less of them."""
    short = {lane.name for lane in run.lanes_of(run.Level.SHORT, required=False)}
    everything = {lane.name for lane in run.lanes_of(run.Level.ALL, required=True)}
    assert {name.partition(",")[0] for name in short} <= everything
    assert everything < {lane.name for lane in run.lanes_of(run.Level.NIGHTLY, required=True)}


def test_a_lane_that_is_not_there_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"'fnce': expected one of .*fence"):
        run.chosen_lanes(run.lanes_of(run.Level.ALL, required=False), ["fnce"])


def test_the_ends_of_failed_lanes_are_told_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "REPEATED_CHARACTERS", 20)
    bad = code("bad", "print('x' * 90); print('why it failed'); print('{}'); raise SystemExit(3)")
    ended = after_all(tmp_path, [code("good", "print('nothing')"), bad], lanes.TimeLimit())
    assert ended.why_it_failed() == "--- bad failed; its end was\nxxxxxx\nwhy it failed"
    assert after_all(tmp_path, [code("good", "")], lanes.TimeLimit()).why_it_failed() == ""
