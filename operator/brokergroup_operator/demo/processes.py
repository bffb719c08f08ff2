"""The demo's processes: the sandbox and the operator, each a child with a log file; and the signals to a broker's process.

Each child stops when a pipe that the demo holds is closed (`brokergroup --until-stdin-ends`), so also when the demo is killed.
Each holds the lock of the demo's folder until it has ended. They are processes, as elsewhere: the operator can be killed and
started again, and the producer measures from another event loop.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_STOP_SECONDS = 15.0


class DemoProcessError(Exception):
    """A process of the demo did not start, or ended too early; says where its log is."""


@dataclass
class ChildProcess:
    """One child and its log."""

    name: str
    process: asyncio.subprocess.Process
    log_path: Path

    def check(self) -> None:
        """Raise DemoProcessError if the child has ended."""
        if self.process.returncode is not None:
            tail = "\n".join(self.log_path.read_text(errors="replace").splitlines()[-15:])
            raise DemoProcessError(f"{self.name} ended with {self.process.returncode}; {self.log_path} ends:\n{tail}")


@dataclass
class DemoProcesses:
    """Starts `brokergroup` subcommands and stops them all, last one first."""

    log_directory: Path
    # None without a locked folder, as in tests.
    lock_descriptor: int | None = None
    children: list[ChildProcess] = field(default_factory=list)

    async def start(self, name: str, *arguments: str) -> ChildProcess:
        self.log_directory.mkdir(parents=True, exist_ok=True)
        log_path = self.log_directory / f"{name}.log"
        with log_path.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "brokergroup_operator.cli.main", "--until-stdin-ends", *arguments),
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=() if self.lock_descriptor is None else (self.lock_descriptor,),
                # Ctrl-C is for the demo, which stops its children in order.
                start_new_session=True,
            )
        child = ChildProcess(name, process, log_path)
        self.children.append(child)
        return child

    def check(self) -> None:
        """Raise DemoProcessError if any child has ended."""
        for child in self.children:
            child.check()

    async def stop(self) -> None:
        """Stop all children, the last one first; kill one that does not stop in time."""
        for process in (child.process for child in reversed(self.children)):
            if process.returncode is not None:
                continue
            process.terminate()
            try:
                async with asyncio.timeout(_STOP_SECONDS):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        self.children.clear()


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that was free a moment ago; children bind it."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(frozen=True)
class HeldProcess:
    """A process held by a pidfd: a later signal cannot reach another process that got its number since."""

    pid: int
    descriptor: int

    def kill(self) -> None:
        signal.pidfd_send_signal(self.descriptor, signal.SIGKILL)

    def freeze(self) -> None:
        signal.pidfd_send_signal(self.descriptor, signal.SIGSTOP)

    def thaw(self) -> bool:
        """Let it run again; return False if it is dead: fenced, as it should be."""
        try:
            signal.pidfd_send_signal(self.descriptor, signal.SIGCONT)
        except ProcessLookupError:
            return False
        return True


@contextlib.contextmanager
def hold(pid: int) -> Iterator[HeldProcess]:
    """Hold a process for the length of a block. Raises ProcessLookupError if it is dead already."""
    descriptor = os.pidfd_open(pid)
    try:
        yield HeldProcess(pid, descriptor)
    finally:
        os.close(descriptor)
