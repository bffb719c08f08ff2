"""Programs that outlive their starting command: each identified by pid and start time.

A pid alone may belong to another program at its end: the kernel reuses numbers.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.node.places import state_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

LOG_TAIL_LINES = 25
# A node stands for a separate machine: other programs here should not delay its API server.
NICENESS = "-10"


class NodeError(Exception):
    """The cluster did not start, did not carry out a step, or did not end; the message has the observed state."""


@dataclass(frozen=True)
class Process:
    """A process, and when it began in ticks since the machine's start."""

    pid: int
    began: int

    def lives(self) -> bool:
        """Whether it still runs; one that has ended and was not waited for is dead."""
        seen = read_stat(self.pid)
        return seen is not None and seen[1] == self.began and seen[0] not in "ZX"

    def send(self, number: signal.Signals) -> None:
        if self.lives():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def read_stat(pid: int) -> tuple[str, int] | None:
    """State and beginning of a process; None where there is none of that number."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return fields[0], int(fields[19])


def process_of(pid: int) -> Process | None:
    seen = read_stat(pid)
    return Process(pid, seen[1]) if seen else None


def command_line(pid: int) -> str:
    """Its words, with blanks between them; empty for one that is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def pid_file(name: str) -> Path:
    return state_folder() / "pids" / f"{name}.json"


def log_file(name: str) -> Path:
    return state_folder() / "logs" / f"{name}.log"


def started(name: str) -> Process | None:
    """The process that was started by this name, if it still runs."""
    try:
        process = Process(**json.loads(pid_file(name).read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return None
    return process if process.lives() else None


def start(name: str, command: Iterable[str], **environment: str) -> None:
    """Start a program in a session of its own, unless it runs already; its pid and its output go into files.

    A shell starts it and ends: the program becomes init's child, which reaps it.
    """
    if started(name) is not None:
        return
    for file in (pid_file(name), log_file(name)):
        file.parent.mkdir(parents=True, exist_ok=True)
    log_file(name).touch()
    done = subprocess.run(
        [
            "nice",
            "-n",
            NICENESS,
            "setsid",
            "sh",
            "-c",
            '"$@" < /dev/null >> "$0" 2>&1 & echo $!',
            str(log_file(name)),
            *command,
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env={**os.environ, **environment},
        text=True,
        check=True,
    )
    process = process_of(int(done.stdout))
    if process is None:
        raise NodeError(f"{name} ended at once: {tail(name)}")
    pid_file(name).write_text(json.dumps({"pid": process.pid, "began": process.began}), encoding="utf-8")


def end(*names: str) -> None:
    """Send SIGTERM to all, then SIGKILL to those that remain."""
    end_processes([process for name in names if (process := started(name)) is not None])
    for name in names:
        pid_file(name).unlink(missing_ok=True)


def end_processes(processes: list[Process], grace_seconds: float = 8.0) -> None:
    for process in processes:
        process.send(signal.SIGTERM)
    deadline = time.monotonic() + grace_seconds
    while any(process.lives() for process in processes) and time.monotonic() < deadline:
        time.sleep(0.05)
    kill_processes(processes)


def kill_processes(processes: list[Process], seconds: float = 5.0) -> None:
    """SIGKILL, and see that they are gone."""
    for process in processes:
        process.send(signal.SIGKILL)
    deadline = time.monotonic() + seconds
    while alive := [process.pid for process in processes if process.lives()]:
        if time.monotonic() > deadline:
            raise NodeError(f"processes {alive} were still there {seconds:g} s after SIGKILL")
        time.sleep(0.02)


def tail(name: str) -> str:
    """The end of a program's log."""
    try:
        lines = log_file(name).read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return "(no log)"
    return "\n".join(lines[-LOG_TAIL_LINES:])


def wait_for(name: str, what: str, holds: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until a started program does what it is for; at once an error when it has ended."""
    deadline = time.monotonic() + seconds
    while not holds():
        if started(name) is None:
            raise NodeError(f"{name} ended before {what}; {log_file(name)} ends:\n{tail(name)}")
        if time.monotonic() > deadline:
            raise NodeError(f"{name}: {what} not within {seconds:g} s; {log_file(name)} ends:\n{tail(name)}")
        time.sleep(0.1)


def command(*words: str, stdin: str | None = None, seconds: float = 120.0) -> str:
    """Run one command to its end and hand back its output."""
    try:
        done = subprocess.run(
            words,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise NodeError(f"{' '.join(words)}: not done within {seconds:g} s") from error
    if done.returncode != 0:
        raise NodeError(f"{' '.join(words)}: exit code {done.returncode}: {(done.stderr or done.stdout).strip()}")
    return done.stdout
