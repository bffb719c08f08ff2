"""A demo's processes end with it in every case; and two demos do not share a folder.

Each test runs the real demo in a terminal of its own: sandbox, operator and three brokers.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from rocketmq_remoting.broker_protocol import TopicRouteBody
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import request
from tests.demo.demo_terminal import (
    REPOSITORY,
    DemoInTerminal,
    demo_command,
    processes_of,
    wait_until_none_is_left,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.longer, pytest.mark.timeout(600)]
# sandbox, operator, three brokers, the demo itself
ALL_OF_A_DEMO = 6


def running_demo(directory: Path, *, by_make: bool = False) -> DemoInTerminal:
    demo = DemoInTerminal(directory, "--pace-seconds", "30", by_make=by_make)
    demo.wait_for("sending messages")
    return demo


@pytest.mark.parametrize(
    "ending",
    [
        "terminal of make closed",
        *(pytest.param(name, marks=pytest.mark.longer) for name in ("terminal closed", "SIGTERM", "SIGKILL")),
    ],
)
def test_no_process_outlives_its_demo(tmp_path: Path, ending: str) -> None:
    directory = tmp_path / "demo"
    with running_demo(directory, by_make="make" in ending) as demo:
        assert len(processes_of(directory)) >= ALL_OF_A_DEMO
        if "closed" in ending:
            demo.close_terminal()
        else:
            os.kill(demo.process.pid, signal.Signals[ending])
        demo.process.wait(60)
        wait_until_none_is_left(directory)


def test_a_folder_in_use_is_refused_by_the_name_of_its_process_and_taken_over_from_a_dead_one(tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    with running_demo(directory) as first:
        second = subprocess.run(
            demo_command(directory, "--once"), cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=60
        )
        assert second.returncode == 2, second
        assert re.search(rf"process {first.process.pid} \(.*demo --directory {directory}", second.stderr), second.stderr
        assert first.process.poll() is None
        assert len(processes_of(directory)) >= ALL_OF_A_DEMO, "the demo that holds the folder was disturbed"
        first.process.kill()
        first.process.wait()
        # At once: the dead demo's processes may still be ending in the folder.
        with running_demo(directory) as third:
            assert len(processes_of(directory)) >= ALL_OF_A_DEMO
            third.close_terminal()
            third.process.wait(60)
            wait_until_none_is_left(directory)


def test_clients_find_the_group_and_a_sandbox_that_was_killed_leaves_no_broker(tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    with running_demo(directory) as demo:
        assert f"this process's own is {directory}/logs/demo.log" in demo.screen.replace("\r\n", "")
        assert 0 in _brokers_of_the_topic(demo.screen), "clients find the master by the id 0"
        [sandbox] = [pid for pid, command in processes_of(directory).items() if " sandbox --data-dir" in command]
        os.kill(sandbox, signal.SIGKILL)
        assert demo.process.wait(60) == 2
        wait_until_none_is_left(directory)
        assert "sandbox ended with -9" in demo.screen
        assert "[warning" not in demo.screen


def _brokers_of_the_topic(screen: str) -> set[int]:
    """Return the broker ids at the NameServer on the screen, once there are three."""
    name_server = re.findall(r"NameServer (127\.0\.0\.1:\d+)", screen)[-1]

    async def ask() -> set[int]:
        client = RemotingClient()
        command = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": "demo"})
        try:
            async with asyncio.timeout(30):
                while True:
                    answer = await client.invoke(name_server, command, timeout_seconds=5)
                    if answer.code == ResponseCode.SUCCESS:
                        [broker] = TopicRouteBody.decode(answer.body).broker_datas
                        if len(broker.broker_addrs) == 3:
                            return {int(broker_id) for broker_id in broker.broker_addrs}
                    await asyncio.sleep(0.1)
        finally:
            await client.close()

    return asyncio.run(ask())
