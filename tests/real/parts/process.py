"""A program under test: started with a log file, waited for until it answers, stopped by its own pid.

Synchronous on purpose: session fixtures outlive the event loop of any one test.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from pathlib import Path

LOG_TAIL_LINES = 30


class RealProcessError(Exception):
    """A real program did not start, did not answer in time, or ended; the message carries the end of its log."""


@dataclass(frozen=True)
class RealProcess:
    """One running program and where it logs."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def tail(self) -> str:
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_TAIL_LINES:])

    def wait_until(self, answers: Callable[[], bool], *, what: str, deadline_seconds: float = 60.0) -> None:
        """Wait until the program answers; fail at once when it has ended."""
        deadline = time.monotonic() + deadline_seconds
        while not answers():
            code = self.process.poll()
            if code is not None:
                raise RealProcessError(f"{self.name} ended with {code} before {what}; {self.log} ends:\n{self.tail()}")
            if time.monotonic() > deadline:
                raise RealProcessError(f"{self.name}: {what} not within {deadline_seconds} s; log ends:\n{self.tail()}")
            time.sleep(0.05)

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def stop(self, grace_seconds: float = 10.0) -> None:
        """SIGTERM, and SIGKILL after the grace period."""
        if self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.process.kill()
        self.process.wait()


def start(name: str, command: list[str], *, log: Path, env: dict[str, str] | None = None) -> RealProcess:
    """Start a program with its output in a log file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env={**os.environ, **(env or {})}
        )
    return RealProcess(name, process, log)


def accepts_connections(host: str, port: int) -> bool:
    """Whether the address accepts connections."""
    try:
        with socket.create_connection((host, port), timeout=0.5):
            return True
    except OSError:
        return False
