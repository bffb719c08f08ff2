"""Run a lane to its end with its output in a file, and count its tests. All its processes end with the run.

The runner adopts orphans of its descendants (PR_SET_CHILD_SUBREAPER), so `end_descendants` finds every process that a lane started.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from tests.lanes import NIGHT_MINUTES, Lane

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "build" / "test-results"
PR_SET_CHILD_SUBREAPER = 36
# A command that is late or interrupted gets SIGINT, and has 90 s to clean up and print its results.
TIMEOUT_OPTIONS = ("--foreground", "--signal=INT", "--kill-after=90s")
ENDINGS = {124: "no end within {minutes:g} minutes", 137: "no end within {minutes:g} minutes, nor after SIGINT"}
# A process that ends by itself after its lane, as a pool's worker does, is not a leftover.
LEFT_BEHIND_SECONDS = 5.0
# Killed processes that remain for this long cannot be ended from here.
KILL_SECONDS = 30.0
POLL_SECONDS = 0.05
MEMORY = Path("/dev/shm")
SCRATCH_BYTES = 4 << 30
# State of this process: the children that it waits for, and the signals that ended the run.
_running: set[int] = set()
_interrupts: list[int] = []


@dataclass
class Outcome:
    """A lane's result. `result`: the JSON object of its last line; None if that line is not one."""

    lane: Lane
    passed: int = 0
    failed: int = 0
    left_out: list[dict[str, str]] = field(default_factory=list)
    left_behind: list[str] = field(default_factory=list)
    seconds: float = 0.0
    why: str = ""
    result: dict[str, Any] | None = None

    @property
    def holds(self) -> bool:
        return not (self.failed or self.why or self.left_behind)

    def counts(self) -> dict[str, float]:
        """Return the number of passed, failed and skipped checks, and the duration."""
        return {"passed": self.passed, "failed": self.failed, "left_out": len(self.left_out), "seconds": self.seconds}


async def run_lane(lane: Lane, folder: Path = RESULTS, *, by_night: bool = False) -> Outcome:
    """Run a lane to its end with its output in `folder`/NAME.log; after an interrupt it does not start."""
    log, report = folder / f"{lane.name}.log", folder / f"{lane.name}.xml"
    for former in (log, report):
        former.unlink(missing_ok=True)
    if is_stopping():
        return Outcome(lane, failed=1, why="not run: the run was interrupted")
    began, minutes = time.monotonic(), NIGHT_MINUTES if by_night else lane.minutes
    command = lane.words(by_night=by_night)
    if lane.tests:
        command.append(f"--junitxml={report}")
    process = _start(["timeout", *TIMEOUT_OPTIONS, f"{minutes}m", *command], log, dict(lane.environment))
    was_interrupted = False
    while process.poll() is None:
        if is_stopping() and not was_interrupted:
            was_interrupted = True
            process.send_signal(signal.SIGINT)
        _reap_orphans()
        await asyncio.sleep(POLL_SECONDS)
    _running.discard(process.pid)
    why = "the run was interrupted" if was_interrupted else ENDINGS.get(process.returncode, "").format(minutes=minutes)
    outcome = _counted(lane, process.returncode, log, report, why)
    outcome.seconds = round(time.monotonic() - began, 1)
    return outcome


def _start(command: list[str], log: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            # Unbuffered: the log keeps its order, and a killed command's output.
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # A terminal's Ctrl-C reaches only the runner, which forwards it once.
            start_new_session=True,
        )
    _running.add(process.pid)
    return process


def _counted(lane: Lane, exit_code: int, log: Path, report: Path, why: str) -> Outcome:
    """Return the outcome. A command that ended early, or a pytest run without tests, has not passed."""
    outcome = Outcome(lane, why=why, result=last_json(log))
    if lane.tests:
        # Without a complete report, as after a killed pytest, no test has passed.
        with contextlib.suppress(FileNotFoundError, ElementTree.ParseError):
            outcome.passed, outcome.failed, outcome.left_out = count_tests(report)
    elif lane.says_json and exit_code == 0 and outcome.result is None:
        outcome.why = why or "its last line is no JSON object"
    else:
        outcome.passed = int(exit_code == 0)
    if outcome.failed == 0 and (outcome.why or exit_code != 0 or outcome.passed == 0):
        outcome.passed, outcome.failed = outcome.passed if lane.tests else 0, 1
        outcome.why = outcome.why or f"exit code {exit_code}"
    return outcome


def count_tests(report: Path) -> tuple[int, int, list[dict[str, str]]]:
    """Return passed, failed and skipped tests of a pytest JUnit report. A test with a failing teardown counts as one failure."""
    verdicts: dict[str, str] = {}
    left_out: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname', '')}::{case.get('name', '')}"
        if {child.tag for child in case} & {"failure", "error"}:
            verdicts[name] = "failed"
        elif (skipped := case.find("skipped")) is not None:
            verdicts.setdefault(name, "left out")
            left_out[name] = skipped.get("message", "")
        else:
            verdicts.setdefault(name, "passed")
    several = list(verdicts.values())
    missing = [{"what": name, "why": why} for name, why in left_out.items() if verdicts[name] == "left out"]
    return several.count("passed"), several.count("failed"), missing


def last_json(log: Path) -> dict[str, Any] | None:
    """Return the JSON object in a log's last line; None if that line is not one."""
    lines = log.read_text(encoding="utf-8", errors="replace").rstrip().rsplit("\n", 1)
    with contextlib.suppress(ValueError):
        found = json.loads(lines[-1])
        return found if isinstance(found, dict) else None
    return None


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a folder for temporary files, in memory if there is room; remove it at the end.

    On a busy disk an fsync takes seconds, longer than a store's deadline.
    """
    roomy = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > SCRATCH_BYTES
    with tempfile.TemporaryDirectory(prefix="bg-", dir=MEMORY if roomy else None, ignore_cleanup_errors=True) as name:
        yield Path(name)


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose parent dies, and end all lanes on SIGTERM as on Ctrl-C."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    # An ignored SIGCHLD would be inherited: every exit code would read as 0.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # A shell's background job ignores SIGINT, and its children inherit that.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: _interrupts.append(number))


def is_stopping() -> bool:
    """Whether the run was interrupted: then no further lane starts."""
    return bool(_interrupts)


def _reap_orphans() -> None:
    """Reap ended children that were adopted: a test may wait until a process is gone from /proc."""
    with contextlib.suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid in _running:
                return
            os.waitpid(ended.si_pid, 0)


def end_descendants() -> list[str]:
    """End every remaining descendant of this process. Return the commands of those that outlived their lane."""
    deadline = time.monotonic() + LEFT_BEHIND_SECONDS
    while descendants() and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    commands = [_command(pid) for pid in descendants()]
    # Repeat: a process found now may have forked after the list was read.
    deadline = time.monotonic() + KILL_SECONDS
    while (alive := descendants()) and time.monotonic() < deadline:
        for pid in alive:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_SECONDS)
    return commands


def descendants() -> list[int]:
    """Reap ended children, and return the pids of all descendants."""
    _reap_orphans()
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text(errors="replace").rpartition(") ")[2].split()[1])
    found = [os.getpid()]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()[:200]
    return f"process {pid}"
