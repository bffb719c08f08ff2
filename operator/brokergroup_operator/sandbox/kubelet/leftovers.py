"""Nothing outlives its container or its kubelet unnoticed: every process carries marks in its environment.

One mark is the kubelet's data folder, the other the start of a container. Reading them from ``/proc`` instead of from a list
of ours means that nothing is missed: neither if the kubelet dies between starting a process and writing it down, nor a
grandchild in a session of its own, which a process group does not hold. Containers have a process namespace for that;
we have none, and *terminated* must mean that nothing runs any more (docs/architecture.md, rule 7: it is the fence's word). Only a
process that empties its environment escapes.

Leftovers of a dead kubelet are killed, not adopted: to the API this is a node that rebooted, and the pods start again
on new addresses with the restart counted, which is what happens to them on a real node.
"""

from __future__ import annotations

import os
import select
import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

KUBELET_MARK = "BROKERGROUP_KUBELET_DATA"
CONTAINER_MARK = "BROKERGROUP_CONTAINER_START"

EXEC_READS = 5
EXEC_PAUSE_SECONDS = 0.002


def kill_leftovers(data_folder: Path, *, deadline_seconds: float = 5.0) -> list[int]:
    """Kill every process of an earlier kubelet with this data folder and wait until they are gone; returns their pids.

    OSError: TimeoutError of what survives SIGKILL, PermissionError of what we may not kill, EMFILE.
    """
    return _kill_marked((f"{KUBELET_MARK}={data_folder}\0",), deadline_seconds)


def kill_strays(container_start: str, *, deadline_seconds: float = 5.0) -> list[int]:
    """Kill what one start of a container left behind, and what was run beside it; wait until it is gone. OSError as above."""
    whole = f"{CONTAINER_MARK}={container_start}"
    return _kill_marked((f"{whole}\0", f"{whole}/"), deadline_seconds)


def _kill_marked(marks: tuple[str, ...], deadline_seconds: float) -> list[int]:
    """Kill in passes until one finds nobody: what is found may have started another since the list was read."""
    wanted = [b"\0" + mark.encode() for mark in marks]
    killed: list[int] = []
    while found := _kill_found(wanted, deadline_seconds):
        killed += found
    return killed


def _kill_found(wanted: list[bytes], deadline_seconds: float) -> list[int]:
    """One pass. What is found is killed though another could not be; then that one's PermissionError is raised."""
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
    """What a process was started with; empty for one that is gone, and for threads of the kernel.

    In the middle of an exec the kernel shows an empty environment too, so a program's empty one is read again.
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
    """First the pidfd, then the question again: what the pidfd names cannot change in between."""
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
