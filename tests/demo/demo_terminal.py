"""A demo in its own terminal (a pty), and the processes of its folder."""

from __future__ import annotations

import os
import pty
import shlex
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

REPOSITORY = Path(__file__).parents[2]
START_SECONDS = 200.0
END_SECONDS = 45.0


def demo_command(directory: Path, *arguments: str) -> list[str]:
    """Return the command of `make demo`, with its own folder."""
    return [sys.executable, "-m", "brokergroup_operator.cli.main", "demo", "--directory", str(directory), *arguments]


def made_by_make(directory: Path, *arguments: str) -> list[str]:
    """Return the demo's command as the recipe of a Makefile."""
    makefile = directory.parent / "Makefile"
    makefile.write_text(f"demo:\n\t@{shlex.join(demo_command(directory, *arguments))}\n", encoding="utf-8")
    return ["make", "-f", str(makefile), "demo"]


class DemoInTerminal:
    """A running demo on the test's terminal. `screen` has its whole output.

    `by_make`: make is the terminal's first program, as for `xterm -e make demo`: it alone gets the kernel's SIGHUP.
    """

    def __init__(self, directory: Path, *arguments: str, by_make: bool = False) -> None:
        self.directory = directory
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            made_by_make(directory, *arguments) if by_make else demo_command(directory, *arguments),
            cwd=REPOSITORY,
            preexec_fn=lambda: os.login_tty(theirs),  # noqa: PLW1509 - nothing else makes a terminal the child's own
        )
        os.close(theirs)
        self._written: list[bytes] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._stop_reading, self._told_to_stop = os.pipe()
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End all processes of the demo, after any result of the test."""
        self.close_terminal()
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        for pid in processes_of(self.directory):
            with suppress(ProcessLookupError):
                os.kill(pid, 9)

    @property
    def screen(self) -> str:
        return b"".join(self._written).decode(errors="replace")

    def wait_for(self, text: str) -> None:
        """Wait until the text is on the screen; the demo must not end before."""
        deadline = time.monotonic() + START_SECONDS
        while text not in self.screen:
            assert self.process.poll() is None, f"the demo ended with {self.process.returncode}: {self.screen[-2000:]}"
            assert time.monotonic() < deadline, f"{text!r} is not on the screen: {self.screen[-2000:]}"
            time.sleep(0.05)

    def close_terminal(self) -> None:
        """Close the window: the kernel sends SIGHUP, and every later write fails."""
        if self._ours >= 0:
            os.close(self._told_to_stop)
            self._reader.join()
            os.close(self._ours)
            self._ours = -1

    def _read(self) -> None:
        import select

        while True:
            ready, _, _ = select.select([self._ours, self._stop_reading], [], [])
            if self._stop_reading in ready:
                os.close(self._stop_reading)
                return
            try:
                data = os.read(self._ours, 1 << 16)
            except OSError:
                return  # no process has the terminal open any more
            self._written.append(data)


def processes_of(directory: Path) -> dict[int, str]:
    """Return pid and command of every process of the folder, by its arguments or its kubelet's mark."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                command = (entry / "cmdline").read_bytes()
                if str(directory).encode() in command + (entry / "environ").read_bytes():
                    found[int(entry.name)] = command.replace(b"\0", b" ").decode(errors="replace").strip()
    return found


def wait_until_none_is_left(directory: Path) -> None:
    """Wait, with a bound, until the folder has no process."""
    deadline = time.monotonic() + END_SECONDS
    while left := processes_of(directory):
        assert time.monotonic() < deadline, f"still running {END_SECONDS:.0f} s later: {left}"
        time.sleep(0.1)
