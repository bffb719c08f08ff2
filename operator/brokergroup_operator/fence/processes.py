"""What the kernel knows: the broker's processes, held by pidfds so that no other process is ever killed, and our own pauses.

The broker's processes carry the pod's uid and ``BROKERGROUP_CONTAINER=broker`` in their environment. In a shared process namespace
``/proc`` shows the pod, under the sandbox's process kubelet the whole machine. A held pidfd needs no search after a thaw.
"""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from brokergroup_operator.fence.settings import BROKER_CONTAINER, CONTAINER_VARIABLE, POD_VARIABLE, PROCESS_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator


_SEARCH_SECONDS = 1.0
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
_STOPPED = "T"
_STATE, _START_TIME = 0, 19


class BrokerProcesses:
    """The processes of this pod's broker container; with `started_only` the broker and what it started, no probe and no shell."""

    def __init__(self, pod_uid: str, *, started_only: bool = False) -> None:
        marks = {POD_VARIABLE: pod_uid, CONTAINER_VARIABLE: BROKER_CONTAINER}
        marks |= {PROCESS_VARIABLE: BROKER_CONTAINER} if started_only else {}
        self._marks = tuple(f"{name}={value}".encode() for name, value in marks.items())
        self._held: dict[int, int] = {}
        self._searched_at: float | None = None
        self._broker_started: float | None = None

    def refresh(self, now: float) -> None:
        """Search again if the last search is a second old."""
        if self._searched_at is None or now - self._searched_at >= _SEARCH_SECONDS:
            self.search(now)

    def search(self, now: float) -> None:
        """Release processes that have ended, hold new ones."""
        self._searched_at = now
        for pid, pidfd in list(self._held.items()):
            if _has_ended(pidfd):
                os.close(pidfd)
                del self._held[pid]
        for pid in self._marked():
            found = None if pid in self._held else self._hold(pid)
            if found is not None:
                self._held[pid] = found
        started = [at for pid in self._held if (at := _started_at(pid)) is not None]
        self._broker_started = min(started, default=self._broker_started)

    @property
    def pids(self) -> list[int]:
        """Return the pids of the held processes."""
        return sorted(self._held)

    def any_left(self, now: float) -> bool:
        """Search, and return whether a process runs."""
        self.search(now)
        return bool(self._held)

    def age_seconds(self, now: float) -> float | None:
        """Return the age of the oldest process; ``now`` is from the boot clock, as start times are."""
        ages = [now - started for pid in self._held if (started := _started_at(pid)) is not None]
        return max(ages, default=None)

    def broker_is_stopped(self) -> bool:
        """Whether the broker itself, the oldest held process, is stopped (SIGSTOP), and so does not act on SIGTERM.

        Hooks, probes and commands run by hand in the container carry the same marks.
        """
        oldest = self._oldest()
        return oldest is not None and _state(oldest) == _STOPPED

    def terminate(self) -> int | None:
        """Send SIGTERM to the broker itself, as a kubelet does; return its pid, None where none is held."""
        oldest = self._oldest()
        if oldest is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._held[oldest], signal.SIGTERM)
        return oldest

    def _oldest(self) -> int | None:
        started = {pid: _started_at(pid) for pid in self._held}
        found = (pid for pid in started if started[pid] is not None)
        return min(found, key=lambda pid: (started[pid], pid), default=None)

    def kill(self, now: float, *, deadline_seconds: float = 2.0) -> list[int]:
        """Send SIGKILL to all of them, held ones first; return the pids. It kills a stopped process too."""
        killed: list[int] = []
        until = time.monotonic() + deadline_seconds
        while True:
            for pid, pidfd in self._held.items():
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                    killed.append(pid)
            _wait_ended(list(self._held.values()), until)
            self.search(now)
            if not self._held or time.monotonic() > until:
                return sorted(set(killed))

    def kill_and_prove(self, now: float) -> tuple[list[int], float | None]:
        """Kill all of them; return the pids, and the start time of the last held broker, which is dead now.

        The start time is None if a process is left, or if none was ever held: an unseen broker may still run.
        """
        self.search(now)
        killed = self.kill(now)
        return killed, None if self._held else self._broker_started

    def _marked(self) -> Iterator[int]:
        own = os.getpid()
        for name in os.listdir("/proc"):  # noqa: PTH208 (a hundred paths less)
            if name.isdigit() and int(name) != own and self._is_marked(int(name)):
                yield int(name)

    def _is_marked(self, pid: int) -> bool:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123 (as above)
                entries = file.read().split(b"\0")
        except OSError:  # gone, or not ours to look at: then it is not the broker, which runs under our user
            return False
        return all(mark in entries for mark in self._marks)

    def _hold(self, pid: int) -> int | None:
        """Open the pidfd first, then check the marks again: the process that a pidfd names cannot change in between."""
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return None
        if self._is_marked(pid) and not _has_ended(pidfd):
            return pidfd
        os.close(pidfd)
        return None


def _has_ended(pidfd: int) -> bool:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))


def _wait_ended(pidfds: list[int], until: float) -> None:
    poller = select.poll()
    for pidfd in pidfds:
        poller.register(pidfd, select.POLLIN)
    waiting = set(pidfds)
    while waiting and (left_seconds := until - time.monotonic()) > 0:
        for pidfd, _ in poller.poll(left_seconds * 1000):
            poller.unregister(pidfd)
            waiting.discard(pidfd)


def _started_at(pid: int) -> float | None:
    """Return the start time on the boot clock."""
    fields = _stat_fields(pid)
    return int(fields[_START_TIME]) / _CLOCK_TICKS if fields else None


def _state(pid: int) -> str | None:
    fields = _stat_fields(pid)
    return fields[_STATE] if fields else None


def _stat_fields(pid: int) -> list[str]:
    """Return the fields after the program's name, which may hold any text in its parentheses; empty if the process has ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:  # noqa: PTH123 (as above)
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


# A loop that is later than this did not run.
NOTICED_SECONDS = 0.3


def boot_seconds() -> float:
    """Return the time on the clock that continues during suspend."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def starved_seconds() -> float:
    """Return how long this process has waited in the run queue since its start; 0 if the kernel does not report it."""
    try:
        with open("/proc/self/schedstat", encoding="ascii") as file:  # noqa: PTH123 (asked ten times a second)
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


@dataclass(frozen=True, slots=True)
class Pause:
    """This process did not run for ``seconds``, and waited in the run queue for ``starved_seconds`` of it."""

    seconds: float
    starved_seconds: float

    @property
    def was_starved(self) -> bool:
        """Whether the process mostly waited for a processor, and was not stopped: then the broker may have run meanwhile."""
        return self.starved_seconds >= self.seconds / 2


class PauseWatch:
    """Detects pauses of this process. Call ``look`` right after every wait."""

    def __init__(self, now: float, starved: float) -> None:
        self._now = now
        self._starved = starved

    def look(self, now: float, starved: float, *, waited_at_most_seconds: float) -> Pause | None:
        """Return the pause since the last call, beyond the intended wait; None if it was short."""
        late = now - self._now - waited_at_most_seconds
        starved_since = starved - self._starved
        self._now, self._starved = now, starved
        return Pause(late, starved_since) if late > NOTICED_SECONDS else None
