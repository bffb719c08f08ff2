"""A lane: one command that checks something, with its output in a file and its verdict counted.

`make test` runs two queues of lanes side by side, `make proofs` one lane after the other. Whatever a lane starts ends with the
run: this process adopts orphans of its descendants (PR_SET_CHILD_SUBREAPER), so `end_descendants` finds every process that a lane
started.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "build" / "test-results"
PR_SET_CHILD_SUBREAPER = 36
# An interrupted command has this long to clean up and to print what it found.
CLEAN_UP_SECONDS = 90.0
# A process that goes away by itself after its lane, as a pool's worker does, is not left behind.
LEFT_BEHIND_SECONDS = 5.0
POLL_SECONDS = 0.05
MEMORY = Path("/dev/shm")
SCRATCH_BYTES = 4 << 30
# Killed processes that are still there after so long cannot be ended from here.
KILL_SECONDS = 30.0
_REAPING = threading.Lock()
_RUNNING: set[int] = set()


class _Run:
    """Whether this process adopts orphans, and whether the run was interrupted: no further lane begins."""

    adopts = False
    is_stopping = False


@dataclass(frozen=True)
class Lane:
    """`tests`: the command is pytest's, counted test by test; any other counts as one check.

    `says_json`: it has failed unless its last line is a JSON object. After `limit_minutes` it is ended, and has failed.
    `environment` is added to that of the runner.
    """

    name: str
    command: tuple[str, ...]
    tests: bool = False
    says_json: bool = False
    limit_minutes: float = 40.0
    environment: tuple[tuple[str, str], ...] = ()


@dataclass
class Outcome:
    """What a lane found. `result`: the JSON object of its last line; None if that is none."""

    lane: Lane
    passed: int = 0
    failed: int = 0
    left_out: list[dict[str, str]] = field(default_factory=list)
    seconds: float = 0.0
    exit_code: int = 0
    why: str = ""
    result: dict[str, Any] | None = None

    @property
    def holds(self) -> bool:
        return self.failed == 0 and self.exit_code == 0 and not self.why

    def counts(self) -> dict[str, float]:
        """How many of its checks passed, failed and were left out, and how long it took."""
        return {"passed": self.passed, "failed": self.failed, "left_out": len(self.left_out), "seconds": self.seconds}


def run_lane(lane: Lane, folder: Path = RESULTS) -> Outcome:
    """Run it to its end with its output in `folder`/NAME.log."""
    folder.mkdir(parents=True, exist_ok=True)
    log, counts = folder / f"{lane.name}.log", folder / f"{lane.name}.xml"
    counts.unlink(missing_ok=True)
    began = time.monotonic()
    with log.open("wb") as output, _REAPING:
        try:
            process = _start(lane, output, counts)
        except OSError as error:
            return Outcome(lane, failed=1, why=f"{lane.command[0]} does not start: {error}")
        _RUNNING.add(process.pid)
    why = _wait(process, lane, began)
    outcome = _counted(lane, process.returncode, log, counts, why)
    outcome.seconds = round(time.monotonic() - began, 1)
    return outcome


def _start(lane: Lane, output: BinaryIO, counts: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*lane.command, f"--junitxml={counts}"] if lane.tests else list(lane.command),
        cwd=ROOT,
        # Unbuffered: the log keeps its order, and what a killed command printed.
        env={**os.environ, "PYTHONUNBUFFERED": "1", **dict(lane.environment)},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        # Ctrl-C of a terminal reaches only the runner, which hands it on once.
        start_new_session=True,
    )


def _wait(process: subprocess.Popen[bytes], lane: Lane, began: float) -> str:
    """Wait for its end. Return why it was ended early; "" if it ended by itself."""
    why, deadline = "", began + 60 * lane.limit_minutes
    while process.poll() is None:
        late = time.monotonic() > deadline
        if late and why:
            process.kill()
        elif late or (_Run.is_stopping and not why):
            why = "the run was interrupted" if _Run.is_stopping else f"no end within {lane.limit_minutes:g} minutes"
            process.send_signal(signal.SIGINT)
            deadline = time.monotonic() + CLEAN_UP_SECONDS
        _reap_orphans()
        time.sleep(POLL_SECONDS)
    _RUNNING.discard(process.pid)
    return why


def _reap_orphans() -> None:
    """Reap adopted children that have ended: a test may wait until a process is gone from /proc."""
    if not _Run.adopts:
        return
    with _REAPING, contextlib.suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid in _RUNNING:
                return
            os.waitpid(ended.si_pid, 0)


def _counted(lane: Lane, exit_code: int, log: Path, counts: Path, why: str) -> Outcome:
    """The verdict. A command that was ended early, or pytest that ran nothing, has not passed."""
    outcome = Outcome(lane, exit_code=exit_code, why=why, result=last_json(log))
    if lane.tests:
        # Without a whole report, as of a pytest that was killed, nothing has passed.
        with contextlib.suppress(FileNotFoundError, ElementTree.ParseError):
            outcome.passed, outcome.failed, outcome.left_out = count_tests(counts)
    elif lane.says_json and exit_code == 0 and outcome.result is None:
        outcome.why = outcome.why or "its last line is no JSON object"
    elif not outcome.why:
        outcome.passed = int(exit_code == 0)
    if outcome.failed == 0 and (exit_code != 0 or outcome.passed == 0):
        outcome.failed = 1
        outcome.why = outcome.why or f"exit code {exit_code}"
    return outcome


def count_tests(report: Path) -> tuple[int, int, list[dict[str, str]]]:
    """Passed, failed and left out of a JUnit report of pytest's. A test whose teardown fails has failed, and only once."""
    verdicts: dict[str, str] = {}
    left_out: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname', '')}::{case.get('name', '')}"
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
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
    """The JSON object in the last line of a log; None if it is none."""
    lines = log.read_text(encoding="utf-8", errors="replace").rstrip().rsplit("\n", 1)
    with contextlib.suppress(ValueError):
        found = json.loads(lines[-1])
        return found if isinstance(found, dict) else None
    return None


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for temporary files, in memory if there is room, removed at the end.

    On a disk that other programs keep busy an fsync takes seconds, longer than a store's deadline.
    """
    roomy = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > SCRATCH_BYTES
    with tempfile.TemporaryDirectory(prefix="bg-", dir=MEMORY if roomy else None, ignore_cleanup_errors=True) as name:
        yield Path(name)


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose parent dies, and end all lanes on SIGTERM as on Ctrl-C."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    _Run.adopts = True
    # A parent that ignores SIGCHLD would hand that on: every exit code would read as 0.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # A background job of a shell ignores SIGINT, and hands that on to its children.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)


def _stop(_number: int, _frame: object) -> None:
    _Run.is_stopping = True


def is_stopping() -> bool:
    """Whether the run was interrupted: no further lane begins."""
    return _Run.is_stopping


def end_descendants() -> list[str]:
    """End every process that is still there under this one. Return the commands of those that outlived their lane."""
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
    """The pids of this process's living descendants; its dead children are reaped on the way."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            parent = int(re.sub(r"^.*\) ", "", (entry / "stat").read_text(), flags=re.DOTALL).split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    found, waiting = [], [os.getpid()]
    while waiting:
        following = children.get(waiting.pop(), [])
        waiting += following
        found += following
    return [pid for pid in found if not _reaped(pid)]


def _reaped(pid: int) -> bool:
    """Whether the process is over: reap it if it is ours."""
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    with contextlib.suppress(OSError):
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    return True


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()[:200]
    return f"process {pid}"
