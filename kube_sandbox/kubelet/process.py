"""One start of a container: a process in a session of its own, watched and signalled through a pidfd; and what it leaves behind.

A process id may be reused once its process is reaped; a pidfd always means the same process. The group is killed while its leader
is an unreaped zombie, because until then the group's number cannot belong to another one.

Every process has two marks in its environment: the kubelet's data folder, and the start of its container. Leftovers are found
by these marks in ``/proc``, so a process in a session of its own, or one started just before the kubelet died, is found too. Only a
process that empties its environment escapes. A container counts as terminated when no process with its mark runs any more.

Leftovers of a dead kubelet are killed, not adopted: to the API the node has rebooted, and its pods start again.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

KUBELET_MARK = "KUBE_SANDBOX_DATA"
CONTAINER_MARK = "KUBE_SANDBOX_CONTAINER_START"

EXEC_READS = 5
EXEC_PAUSE_SECONDS = 0.002


def kill_leftovers(data_folder: Path, *, deadline_seconds: float = 5.0) -> list[int]:
    """Kill every process of an earlier kubelet with this data folder, wait until they are gone, and return their pids.

    OSError: TimeoutError if a process survives SIGKILL, PermissionError if one may not be killed, EMFILE.
    """
    return _kill_marked((f"{KUBELET_MARK}={data_folder}\0",), deadline_seconds)


def kill_strays(container_start: str, *, deadline_seconds: float = 5.0) -> list[int]:
    """Kill what one start of a container left behind, and what was run beside it. OSError as above."""
    whole = f"{CONTAINER_MARK}={container_start}"
    return _kill_marked((f"{whole}\0", f"{whole}/"), deadline_seconds)


def _kill_marked(marks: tuple[str, ...], deadline_seconds: float) -> list[int]:
    """Repeat until a pass finds no process: a process found earlier may have forked after the list was read."""
    wanted = [b"\0" + mark.encode() for mark in marks]
    killed: list[int] = []
    while found := _kill_found(wanted, deadline_seconds):
        killed += found
    return killed


def _kill_found(wanted: list[bytes], deadline_seconds: float) -> list[int]:
    """One pass. All that are found are killed; then the PermissionError of one that could not be is raised."""
    found: dict[int, int] = {}
    refused: PermissionError | None = None
    try:
        for pid in _marked_pids(wanted):
            if (pidfd := _open_marked(pid, wanted)) is not None:
                found[pid] = pidfd
                try:
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                except ProcessLookupError:
                    pass  # it has ended by itself
                except PermissionError as error:
                    refused = error
                    os.close(found.pop(pid))
        _wait_ended(list(found.values()), deadline_seconds)
    finally:
        for pidfd in found.values():
            os.close(pidfd)
    if refused is not None:
        raise refused
    return list(found)


def _marked_pids(wanted: list[bytes]) -> list[int]:
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 (a hundred paths less)
    return [pid for pid in pids if pid != os.getpid() and _is_marked(pid, wanted)]


def _is_marked(pid: int, wanted: list[bytes]) -> bool:
    content = b"\0" + _environment(pid)
    return any(mark in content for mark in wanted)


def _environment(pid: int) -> bytes:
    """The environment that a process was started with; empty for one that is gone, and for threads of the kernel.

    During an exec the kernel shows an empty environment too, so a program's empty one is read again.
    """
    for _ in range(EXEC_READS):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
                content = file.read()
            if content:
                return content
            os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115 - a thread of the kernel has none
        except OSError:
            return b""
        time.sleep(EXEC_PAUSE_SECONDS)
    return b""


def _open_marked(pid: int, wanted: list[bytes]) -> int | None:
    """Open the pidfd, then look for the mark again: the pid may have been reused, the pidfd cannot be."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    if _is_marked(pid, wanted):
        return pidfd
    os.close(pidfd)
    return None


def _wait_ended(pidfds: list[int], deadline_seconds: float) -> None:
    poller = select.poll()
    waiting = set(pidfds)
    for pidfd in pidfds:
        poller.register(pidfd, select.POLLIN)
    while waiting:
        ended = poller.poll(deadline_seconds * 1000)
        if not ended:
            raise TimeoutError(f"{len(waiting)} processes survive SIGKILL")
        for pidfd, _ in ended:
            poller.unregister(pidfd)
            waiting.discard(pidfd)


log = structlog.get_logger(__name__)

# A kubelet sees that a container has ended at its next look (once a second), when clients have long seen its connections close.
# A look in that very moment would take the processor from those who act on it: the failover of the demo.
RELIST_SECONDS = 0.05
BURY_FIRST_SECONDS = 0.1
BURY_LAST_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """What to start; the environment contains the marks, both outputs go to the log file."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    working_folder: Path
    log_file: Path
    # How many of the arguments lead into the pod's network.
    prefix_length: int = 0


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended. ``code`` is 128 + signal for a killed one, as with container engines."""

    code: int
    signal: int
    finished_at: datetime


class ContainerProcess:
    """A running process. ``start`` raises OSError if the program cannot be started."""

    def __init__(self, child: subprocess.Popen[bytes], mark: str) -> None:
        """OSError if the child cannot be watched; the caller kills it then."""
        self._child = child
        self._mark = mark
        self._reaped = False
        self._burial: asyncio.Task[None] | None = None
        self.pid = child.pid
        self._pidfd = os.pidfd_open(child.pid)
        self.started_at = datetime.now(UTC)
        self._loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[Exit] = self._loop.create_future()
        self._loop.add_reader(self._pidfd, self._reap)

    @classmethod
    def start(cls, spec: ProcessSpec) -> ContainerProcess:
        """Start the program of a container."""
        spec.log_file.parent.mkdir(parents=True, exist_ok=True)
        with spec.log_file.open("ab") as log:
            child = subprocess.Popen(  # noqa: S603 (running what pods ask for is this program's purpose)
                list(spec.arguments),
                env=dict(spec.environment),
                cwd=spec.working_folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            return cls(child, spec.environment[CONTAINER_MARK])
        except OSError:
            # An unwatched process would run on beside the next start of the container, on the same store.
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            raise

    def on_exit(self, callback: Callable[[Exit], None]) -> None:
        """Call back before any ``wait`` that begins later returns."""
        self._exit.add_done_callback(lambda exit_: callback(exit_.result()))

    async def wait(self) -> Exit:
        """Wait until the process and everything that it started have ended."""
        return await asyncio.shield(self._exit)

    def terminate(self) -> None:
        """SIGTERM to the main process only, as Kubernetes signals process 1 of the container."""
        if not self._reaped:
            with suppress(PermissionError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to the whole group, frozen (SIGSTOP) processes too."""
        if not self._reaped:
            with suppress(PermissionError):  # a program that became another user; `_bury` retries
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            self._kill_group()

    def _reap(self) -> None:
        self._loop.remove_reader(self._pidfd)
        self._kill_group()
        return_code = self._child.wait()  # a readable pidfd is an ended process: this does not wait
        os.close(self._pidfd)
        self._reaped = True
        killed_by = max(0, -return_code)
        exit_ = Exit(128 + killed_by if killed_by else return_code, killed_by, datetime.now(UTC))
        self._burial = self._loop.create_task(self._bury(exit_))

    async def _bury(self, exit_: Exit) -> None:
        """Report the exit only after all processes of the container are dead; retry on EPERM and EMFILE."""
        await asyncio.sleep(RELIST_SECONDS)
        delay_seconds = BURY_FIRST_SECONDS
        while True:
            try:
                strays = await asyncio.to_thread(kill_strays, self._mark)
            except OSError as error:
                log.warning("a container has ended but not all of it", pid=self.pid, error=str(error))
            else:
                break
            await asyncio.sleep(delay_seconds)
            delay_seconds = min(delay_seconds * 2, BURY_LAST_SECONDS)
        if strays:
            log.info("killed what a container left behind", pid=self.pid, strays=strays)
        self._exit.set_result(exit_)

    def _kill_group(self) -> None:
        # The child sets up its session before Popen returns, so the group's number is the pid.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
