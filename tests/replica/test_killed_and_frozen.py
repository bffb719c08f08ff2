"""Real processes: masters killed and frozen under a running producer; no acknowledged message may be gone."""

from __future__ import annotations

import asyncio
import itertools
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rocketmq_remoting.codes import ResponseCode
from rocketmq_remoting.errors import RemotingError
from tests.replica.support import Client, FakeController, configuration_text, eventually, fresh_address

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@dataclass
class Process:
    """One replica process; each start gets another address, as a pod does."""

    root: Path
    controller: FakeController
    started: asyncio.subprocess.Process | None = None
    address: str = ""

    async def start(self) -> None:
        self.address = fresh_address()
        self.root.mkdir(exist_ok=True)
        config = self.root / "broker.conf"
        text = configuration_text(
            self.root / "store",
            self.controller.address,
            self.address,
            syncBrokerMetadataPeriod=300,
            minInSyncReplicas=2,
        )
        config.write_text(text)
        with (self.root / "log").open("ab") as log:
            self.started = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "rocketmq_replica", "--config", str(config), stderr=log, cwd=Path.cwd()
            )

    def signal(self, number: signal.Signals) -> None:
        assert self.started is not None
        self.started.send_signal(number)

    async def kill(self) -> None:
        assert self.started is not None
        if self.started.returncode is None:
            self.started.kill()
            await self.started.wait()


async def until_known(controller: FakeController, broker_id: int) -> None:
    await eventually(lambda: broker_id in controller.addresses, within_seconds=30)


@pytest.fixture
async def group(controller: FakeController, tmp_path: Path) -> AsyncIterator[list[Process]]:
    processes = [Process(tmp_path / f"r{number}", controller) for number in (1, 2, 3)]
    for number, process in enumerate(processes, 1):
        await process.start()
        await until_known(controller, number)
    await eventually(lambda: len(controller.members) == 3, within_seconds=30)
    yield processes
    for process in processes:
        await process.kill()


def process_of_master(group: list[Process], controller: FakeController) -> Process:
    host = controller.master_address.partition(":")[0]
    return next(process for process in group if process.address == host)


async def produce(
    controller: FakeController, stop: asyncio.Event, acknowledged: set[bytes], numbers: itertools.count[int]
) -> None:
    client = Client()
    while not stop.is_set():
        body = b"key-%d" % next(numbers)
        try:
            answer = await client.send(controller.master_address, body, timeout_seconds=0.5)
        except (RemotingError, KeyError):
            await asyncio.sleep(0.01)
            continue
        if answer.code == ResponseCode.SUCCESS:
            acknowledged.add(body)
        else:
            await asyncio.sleep(0.005)
    await client.remoting.close()


async def fail_over(controller: FakeController) -> None:
    """Elect among the members, the longest log first, and tell everybody who listens."""
    candidates = controller.members - {controller.master_id}
    best = max(candidates, key=lambda each: (controller.heartbeats[each].epoch, controller.heartbeats[each].max_offset))
    old = controller.master_id
    controller.decide(best)
    await asyncio.gather(*(controller.notify(each) for each in (1, 2, 3) if each != old), return_exceptions=True)


async def grows(acknowledged: set[bytes], by: int) -> None:
    target = len(acknowledged) + by
    await eventually(lambda: len(acknowledged) >= target, within_seconds=30)


@pytest.mark.parametrize("how", ["killed", "frozen", "frozen and killed"])
async def test_nothing_acknowledged_is_lost(
    group: list[Process], controller: FakeController, client: Client, how: str
) -> None:
    stop, acknowledged, numbers = asyncio.Event(), set[bytes](), itertools.count()
    producers = [asyncio.create_task(produce(controller, stop, acknowledged, numbers)) for _ in range(8)]
    for _ in range(3):
        await grows(acknowledged, 100)
        victim = process_of_master(group, controller)
        victim.signal(signal.SIGKILL if how == "killed" else signal.SIGSTOP)
        if how != "killed":
            await asyncio.sleep(0.2)  # sends pile up in the sockets of the stopped process
        await fail_over(controller)
        await grows(acknowledged, 100)
        if how == "frozen":
            victim.signal(signal.SIGCONT)
        else:
            await victim.kill()
            await victim.start()
        await eventually(lambda: len(controller.members) == 3, within_seconds=30)
    stop.set()
    await asyncio.gather(*producers)
    stored = {message.body for message in await client.pull_all(controller.master_address)}
    assert len(acknowledged) >= 600
    assert acknowledged <= stored, f"lost {sorted(acknowledged - stored)[:5]}"
    assert controller.next_id == 4
