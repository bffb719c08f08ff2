"""A kill proves the broker's processes dead only if none is left, and only for processes that the fence held."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.fence.processes import BrokerProcesses
from brokergroup_operator.fence.settings import BROKER_CONTAINER, CONTAINER_VARIABLE, POD_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

NOW = 1.0


@pytest.fixture
def broker() -> Iterator[tuple[BrokerProcesses, subprocess.Popen[bytes]]]:
    """Start the processes of a pod, one of them as its broker."""
    uid = str(uuid.uuid4())
    environment = {**os.environ, POD_VARIABLE: uid, CONTAINER_VARIABLE: BROKER_CONTAINER}
    command = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    yield BrokerProcesses(uid), process
    process.kill()
    process.wait()
    process.stdout.close()


def test_what_was_killed_is_proven_dead(broker: tuple[BrokerProcesses, subprocess.Popen[bytes]]) -> None:
    held, process = broker
    killed, started = held.kill_and_prove(NOW)
    assert killed == [process.pid]
    assert process.wait() == -signal.SIGKILL
    assert started is not None
    assert started <= time.clock_gettime(time.CLOCK_BOOTTIME)


def test_what_survives_the_kill_is_not_proven_dead(
    broker: tuple[BrokerProcesses, subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process in an uninterruptible sleep handles no signal."""
    held, process = broker
    monkeypatch.setattr("brokergroup_operator.fence.processes.signal.pidfd_send_signal", lambda pidfd, number: None)
    monkeypatch.setattr("brokergroup_operator.fence.processes._wait_ended", lambda pidfds, until: None)
    held.search(NOW)
    assert (held.kill(NOW, deadline_seconds=0.0), held.pids) == ([process.pid], [process.pid])
    monkeypatch.setattr(held, "kill", lambda now: [process.pid])
    assert held.kill_and_prove(NOW) == ([process.pid], None)
    assert process.poll() is None


def test_where_none_was_ever_held_none_is_proven_dead() -> None:
    assert BrokerProcesses(str(uuid.uuid4())).kill_and_prove(NOW) == ([], None)
