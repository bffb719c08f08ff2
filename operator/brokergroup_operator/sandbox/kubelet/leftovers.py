"""No process outlives its kubelet unnoticed: every one carries a mark in its environment, and a starting kubelet looks.

The mark is the kubelet's data folder. Reading it from ``/proc`` instead of from a list of ours means that nothing is missed
if the kubelet dies between starting a process and writing it down, nor a grandchild that went into a session of its own.
Leftovers are killed, not adopted: to the API this is a node that rebooted, and the pods start again on new addresses with
the restart counted, which is what happens to them on a real node.
"""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from pathlib import Path

MARK = "BROKERGROUP_KUBELET_DATA"


def kill_leftovers(data_folder: Path, *, deadline_seconds: float = 5.0) -> list[int]:
    """Kill every process marked with this data folder and wait until they are gone; returns their pids."""
    found = [leftover for entry in Path("/proc").iterdir() if (leftover := _open_marked(entry, data_folder))]
    try:
        for pidfd in [pidfd for _, pidfd in found]:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        _wait_ended([pidfd for _, pidfd in found], deadline_seconds)
    finally:
        for _, pidfd in found:
            os.close(pidfd)
    return [pid for pid, _ in found]


def _open_marked(entry: Path, data_folder: Path) -> tuple[int, int] | None:
    if not entry.name.isdigit() or int(entry.name) == os.getpid():
        return None
    pid = int(entry.name)
    try:
        # First the pidfd, then the question: what it names cannot change in between.
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    try:
        environment = (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        environment = []
    if f"{MARK}={data_folder}".encode() in environment:
        return pid, pidfd
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
            raise TimeoutError(f"{len(waiting)} processes of an earlier kubelet survived SIGKILL")
        for pidfd, _ in ended:
            poller.unregister(pidfd)
            waiting.discard(pidfd)
