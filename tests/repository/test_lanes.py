"""A lane's verdict, and that whatever it started ends with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests import run
from tests.repository.made import ROOT
from tests.support.lanes import Lane, run_lane

if TYPE_CHECKING:
    from pathlib import Path

# Longer than any machine needs; no test waits so long unless it fails.
DEADLINE_SECONDS = 60.0


def code(source: str) -> Lane:
    return Lane("made", (sys.executable, "-c", source))


def test_a_check_counts_as_one_and_its_last_line_is_kept(tmp_path: Path) -> None:
    outcome = run_lane(code("""print("a line"); print('{"found": 3}')"""), tmp_path)
    assert (outcome.holds, outcome.passed, outcome.failed, outcome.result) == (True, 1, 0, {"found": 3})
    assert (tmp_path / "made.log").read_text() == 'a line\n{"found": 3}\n'


def test_a_check_that_fails_says_how_it_ended(tmp_path: Path) -> None:
    outcome = run_lane(code("raise SystemExit(3)"), tmp_path)
    assert (outcome.holds, outcome.passed, outcome.failed, outcome.why) == (False, 0, 1, "exit code 3")


@pytest.mark.parametrize("source", ["raise SystemExit(0)", "raise SystemExit(3)"])
def test_tests_that_left_no_report_have_failed(tmp_path: Path, source: str) -> None:
    outcome = run_lane(replace(code(source), tests=True), tmp_path)
    assert (outcome.holds, outcome.passed, outcome.failed) == (False, 0, 1)


def test_a_command_without_an_end_is_ended(tmp_path: Path) -> None:
    endless = replace(code("import time; time.sleep(600)"), limit_minutes=0.001)
    outcome = run_lane(endless, tmp_path)
    assert (outcome.holds, outcome.failed, outcome.why) == (False, 1, "no end within 0.001 minutes")


def test_a_lane_that_is_not_there_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"'fnce': expected one of tests, .*lint"):
        run.chosen_lanes(["fnce"])


# A lane that starts a process of another session and dies without it, as a program does that is killed.
LEAVES_ONE_BEHIND = """
import subprocess, sys, pathlib
left = subprocess.Popen(["sleep", "6{pid}"], start_new_session=True)
pathlib.Path({file!r}).write_text(str(left.pid))
{then}
"""
RUNNER = """
import json
from tests.support import lanes
lanes.LEFT_BEHIND_SECONDS = 0.2
lanes.adopt_orphans()
outcome = lanes.run_lane(lanes.Lane("made", {command!r}), __import__("pathlib").Path({folder!r}))
print(json.dumps([outcome.why, lanes.end_descendants()]))
"""


def start_runner(folder: Path, *, then: str) -> tuple[subprocess.Popen[str], Path]:
    file = folder / "left"
    command = (sys.executable, "-c", LEAVES_ONE_BEHIND.format(pid=os.getpid(), file=str(file), then=then))
    source = RUNNER.format(command=command, folder=str(folder))
    return subprocess.Popen([sys.executable, "-c", source], cwd=ROOT, stdout=subprocess.PIPE, text=True), file


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_process_that_outlives_its_lane_is_named_and_ended(tmp_path: Path) -> None:
    runner, file = start_runner(tmp_path, then="")
    why, left_behind = json.loads(runner.communicate(timeout=DEADLINE_SECONDS)[0])
    assert (why, left_behind) == ("", [f"sleep 6{os.getpid()}"])
    assert not is_there(int(file.read_text()))


def test_a_run_that_is_ended_by_sigterm_leaves_nothing(tmp_path: Path) -> None:
    runner, file = start_runner(tmp_path, then="import time; time.sleep(600)")
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (file.exists() and file.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    runner.send_signal(signal.SIGTERM)
    why, left_behind = json.loads(runner.communicate(timeout=DEADLINE_SECONDS)[0])
    assert (why, left_behind) == ("the run was interrupted", [f"sleep 6{os.getpid()}"])
    assert not is_there(int(file.read_text()))
