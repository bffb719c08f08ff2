"""What ends a command: signals, a closed terminal, the end of its parent; each in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

WAITING = """
import asyncio, signal, sys, time
from brokergroup_operator.cli import running
async def run(stop):
    print("up", flush=True)
    await stop.wait()
    print("in good order", flush=True)
"""


def started(program: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING + program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_asks_for_the_end(number: signal.Signals) -> None:
    process = started("running.run_until_signalled(run)")
    process.send_signal(number)
    assert process.communicate(timeout=60)[0] == "in good order\n"
    assert process.returncode == 0


def test_a_command_under_nohup_outlives_its_terminal() -> None:
    process = started("signal.signal(signal.SIGHUP, signal.SIG_IGN); running.run_until_signalled(run)")
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    process.terminate()
    assert process.communicate(timeout=60)[0] == "in good order\n"


def test_the_end_of_standard_input_asks_for_the_end() -> None:
    process = started("running.end_with_standard_input(); running.run_until_signalled(run)")
    assert process.communicate("what it is told is not read\n", timeout=60)[0] == "in good order\n"
    assert process.returncode == 0


def test_a_command_that_does_not_end_with_its_parent_is_killed() -> None:
    process = started(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); running._ORPHAN_SECONDS = 0.2\n"
        "print('up', flush=True); running.end_with_standard_input(); time.sleep(600)"
    )
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
