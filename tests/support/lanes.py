"""Lanes: commands that check something, run side by side as far as the machine's places go, each with its output in a file.

A lane's output is shown whole when it ends; until then the file in the results folder has it. What a run found is told
lane by lane in `lanes.json` there: `{name: {"passed", "failed", "left_out", "seconds"}}`.

A run that has used up its time ends by itself: what runs then is interrupted, the rest is named as not run, and the run has
failed. Killed from outside it would end without a word about what it had found.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "build" / "test-results"
PROCESSORS = Path("/proc/stat")
# So long may an interrupted command take to clean up and tell what it found.
CLEAN_UP_SECONDS = 90.0
POLL_SECONDS = 0.2
COUNTS = "counts.json"
# Of each lane that failed the run repeats so much at its end: who sees a long run's last lines only sees why it failed.
REPEATED_CHARACTERS = 1500


@dataclass
class Tally:
    """What passed, what failed, what was left out and why."""

    passed: int = 0
    failed: int = 0
    left_out: list[dict[str, str]] = field(default_factory=list)

    def add(self, counts: Tally) -> None:
        self.passed += counts.passed
        self.failed += counts.failed
        self.left_out.extend(counts.left_out)


def say(line: str) -> None:
    print(line, flush=True)


@dataclass(frozen=True)
class TimeLimit:
    """When the run has to end by itself; without minutes, never."""

    minutes: float | None = None
    clock: Callable[[], float] = time.monotonic
    started: float = field(default_factory=time.monotonic)

    def is_up(self) -> bool:
        return self.minutes is not None and self.clock() - self.started > 60 * self.minutes

    def __str__(self) -> str:
        return f"the run's {self.minutes:g} minutes (--limit-minutes) are used up"


@dataclass(frozen=True)
class Lane:
    """One command, counted as one check or, where it is pytest's, test by test.

    `places`: how many of the machine's places it takes; at least all of them, and it runs alone. `parts`: the real parts
    without which it is left out.
    """

    name: str
    command: tuple[str, ...]
    places: int = 1
    counted_by_test: bool = False
    parts: tuple[str, ...] = ()

    def why_not(self) -> str:
        """The reason to leave it out, asked when its turn comes; "" to run it."""
        if not self.parts:
            return ""
        asked = [sys.executable, "tests/real/parts/install.py", "--missing", *self.parts]
        told = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
        return (told.stdout.strip() or f"exit code {told.returncode}") if told.returncode != 0 else ""

    @property
    def file_name(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower())

    def start(self, folder: Path) -> RunningLane:
        """Start it with its output in `folder`."""
        counts = folder / f"{self.file_name}-{COUNTS}"
        environment = {**os.environ, "BROKERGROUP_TEST_REPORT": str(counts)} if self.counted_by_test else None
        output = folder / f"{self.file_name}.log"
        with output.open("wb") as target:
            process = subprocess.Popen(
                self.command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=target,
                stderr=subprocess.STDOUT,
            )
        return RunningLane(self, process, output, counts)


def busy_seconds() -> float:
    """Of all processors, whoever used them: what a killed pod used is in no parent's count. 0 where Linux does not tell."""
    with contextlib.suppress(FileNotFoundError):
        user, nice, system, _idle, _waiting, *interrupts = map(int, PROCESSORS.read_text().splitlines()[0].split()[1:8])
        return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")
    return 0.0


@dataclass
class RunningLane:
    """A lane that was started."""

    lane: Lane
    process: subprocess.Popen[bytes]
    output: Path
    counts: Path
    started: float = field(default_factory=time.monotonic)
    busy_before: float = field(default_factory=busy_seconds)
    interrupted_at: float | None = None

    def has_ended(self) -> bool:
        """Whether its process is over; one that was interrupted long ago is killed."""
        late = self.interrupted_at is not None and time.monotonic() - self.interrupted_at > CLEAN_UP_SECONDS
        if late and self.process.poll() is None:
            say(f"{self.lane.name}: killed: it was still there {CLEAN_UP_SECONDS:.0f} s later")
            self.process.kill()
            self.process.wait()
        return self.process.poll() is not None

    def interrupt(self) -> None:
        """As by Ctrl-C: pytest then cleans up, shows its failures and leaves its count."""
        if self.interrupted_at is None:
            self.interrupted_at = time.monotonic()
            self.process.send_signal(signal.SIGINT)

    def tally(self) -> Tally:
        """What it found. One that was interrupted, died without its count, or ran nothing, has not passed."""
        code = self.process.returncode or (1 if self.interrupted_at is not None else 0)
        if not self.lane.counted_by_test:
            say(f"{self.lane.name}: {'passed' if code == 0 else f'FAILED (exit code {code})'}")
            return Tally(passed=1) if code == 0 else Tally(failed=1)
        if not self.counts.exists():
            say(f"{self.lane.name}: FAILED: pytest ended with exit code {code} and left no count")
            return Tally(failed=1)
        counts = Tally(**json.loads(self.counts.read_text(encoding="utf-8")))
        if code != 0 and counts.failed == 0:
            say(f"{self.lane.name}: FAILED: pytest ended with exit code {code} although no test failed")
            counts.failed = 1
        return counts


class Run:
    """A run of lanes: each is started, in their order, as soon as there is a place for it."""

    def __init__(self, lanes: Iterable[Lane], limit: TimeLimit, *, places: int, folder: Path = RESULTS) -> None:
        self._waiting = list(lanes)
        self._running: list[RunningLane] = []
        self._limit = limit
        self._places = places
        self._folder = folder
        self._started = time.monotonic()
        self.tally = Tally()
        self.by_lane: dict[str, dict[str, float]] = {}
        self._failed: dict[str, Path] = {}

    def until_all_ended(self) -> None:
        """Run them all, and write lanes.json."""
        # Started in the background by a shell, we and our children would ignore the interrupt that ends them in time.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # Ended by its parent, a run that did not interrupt its lanes would leave them running.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        try:
            while self._waiting or self._running:
                self._turn()
        except KeyboardInterrupt:
            self._stop()
            raise
        finally:
            (self._folder / "lanes.json").write_text(json.dumps(self.by_lane, indent=1) + "\n", encoding="utf-8")

    def why_it_failed(self) -> str:
        """The end of what each lane printed that failed, without its last line where that is JSON; "" where none did."""
        return "\n".join(f"--- {name} failed; its end was\n{_end_of(output)}" for name, output in self._failed.items())

    def _turn(self) -> None:
        if self._limit.is_up():
            self._end_in_time()
        while (lane := self._next()) is not None:
            self._start(lane)
        ended = [one for one in self._running if one.has_ended()]
        for one in ended:
            self._running.remove(one)
            self._tell(one)
        if not ended:
            time.sleep(POLL_SECONDS)

    def _next(self) -> Lane | None:
        """The first that there is a place for; one that takes all places comes when nothing else runs."""
        free = self._places - sum(one.lane.places for one in self._running)
        for lane in self._waiting:
            if min(lane.places, self._places) <= free:
                self._waiting.remove(lane)
                return lane
        return None

    def _start(self, lane: Lane) -> None:
        if reason := lane.why_not():
            self._count(lane, Tally(left_out=[{"what": lane.name, "why": reason}]), 0.0)
            return
        running = lane.start(self._folder)
        self._running.append(running)
        beside = ", ".join(one.lane.name for one in self._running[:-1])
        say(f"==> {lane.name}: {' '.join(lane.command)}{f' (beside {beside})' if beside else ''}")

    def _tell(self, one: RunningLane) -> None:
        seconds = time.monotonic() - one.started
        say(f"\n--- {one.lane.name}: what it printed")
        sys.stdout.flush()
        with one.output.open("rb") as output:
            shutil.copyfileobj(output, sys.stdout.buffer)
        sys.stdout.flush()
        counts = one.tally()
        self._count(one.lane, counts, seconds)
        if counts.failed:
            self._failed[one.lane.name] = one.output
        busy = (busy_seconds() - one.busy_before) / max(seconds, POLL_SECONDS)
        say(f"<== {one.lane.name}: {seconds:.0f} s, {busy:.1f} of {os.cpu_count()} processors busy\n")

    def _count(self, lane: Lane, counts: Tally, seconds: float) -> None:
        self.tally.add(counts)
        self.by_lane[lane.name] = {
            "passed": counts.passed,
            "failed": counts.failed,
            "left_out": len(counts.left_out),
            "seconds": round(seconds, 1),
        }

    def _stop(self) -> None:
        """By Ctrl-C, which a terminal sends to the lanes too: they clean up; one that was not sent it is interrupted then."""
        deadline = time.monotonic() + CLEAN_UP_SECONDS
        while self._running and time.monotonic() < deadline:
            self._running = [one for one in self._running if not one.has_ended()]
            if time.monotonic() > deadline - CLEAN_UP_SECONDS / 2:
                for one in self._running:
                    one.interrupt()
            time.sleep(POLL_SECONDS)
        for one in self._running:
            one.process.kill()

    def _end_in_time(self) -> None:
        """Interrupt what runs, and name what does not run any more: each is a failure."""
        for one in self._running:
            if one.interrupted_at is None:
                say(f"\nOUT OF TIME: {self._limit}; {one.lane.name} is interrupted")
                one.interrupt()
        for lane in self._waiting:
            say(f"{lane.name}: FAILED: not run: {self._limit}")
            self._count(lane, Tally(failed=1, left_out=[{"what": lane.name, "why": f"not run: {self._limit}"}]), 0.0)
        self._waiting.clear()


def _end_of(output: Path) -> str:
    lines = output.read_text(encoding="utf-8", errors="replace").rstrip().split("\n")
    if lines[-1].startswith("{"):
        lines.pop()
    return "\n".join(lines)[-REPEATED_CHARACTERS:]
