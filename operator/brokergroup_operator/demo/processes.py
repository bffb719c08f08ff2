"""The demo's own processes: the sandbox and the operator, each a child with a log file, stopped by pid and in reverse order.

Each child reads a pipe that the demo holds and ends when it is closed (`brokergroup --until-stdin-ends`), so that even a demo
that is killed takes everything with it. Each holds the lock of the demo's folder until it has ended.

They are processes of their own, not tasks of ours, because that is how they run elsewhere: the operator can be killed and started
again, and the producer's timings don't share an event loop with what they measure.
"""

import asyncio
import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path

_STOP_SECONDS = 15.0


class DemoProcessError(Exception):
    """A process of the demo did not start, or ended when it should not have; says where its log is."""


@dataclass
class ChildProcess:
    """One running child and where it logs."""

    name: str
    process: asyncio.subprocess.Process
    log_path: Path

    def check(self) -> None:
        """Raise DemoProcessError when the child has ended."""
        if self.process.returncode is not None:
            tail = "\n".join(self.log_path.read_text(errors="replace").splitlines()[-15:])
            raise DemoProcessError(f"{self.name} ended with {self.process.returncode}; {self.log_path} ends:\n{tail}")


@dataclass
class DemoProcesses:
    """Starts `brokergroup` subcommands and stops them all, last one first."""

    log_directory: Path
    # None where no folder is locked, as in the tests' houses.
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
                # Ctrl-C is for the demo, which then ends its children in order; the terminal must not end them all at once.
                start_new_session=True,
            )
        child = ChildProcess(name, process, log_path)
        self.children.append(child)
        return child

    def check(self) -> None:
        """Raise DemoProcessError when any child has ended."""
        for child in self.children:
            child.check()

    async def stop(self) -> None:
        for child in reversed(self.children):
            await _stop(child.process)
        self.children.clear()


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(_STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def free_port(host: str = "127.0.0.1") -> int:
    """A port that was free a moment ago; children bind it themselves."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port
