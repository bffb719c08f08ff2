"""The groups that `replica.py` measures: brokers of one kind as processes on loopback, with a small controller in this one.

Both kinds get the same properties: all members of the SyncStateSet acknowledge (in an asynchronous group the master alone),
flushing is asynchronous, files have 256 MiB.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rocketmq_remoting.broker_protocol import EpochCacheBody
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.client_protocol import GetMaxOffsetRequestHeader, OffsetResponseHeader
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import request
from rocketmq_remoting.errors import BodyError, RemotingError
from tests.real.parts.java import broker_properties, java_command, start_name_server, write_properties
from tests.real.parts.process import RealProcess, start
from tests.replica.support import BROKER_NAME, FakeController
from tests.support.places import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOST: Final = "127.0.0.1"
TOPIC: Final = "Bench"
_FILE_BYTES: Final = 256 << 20
_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
_RUN_FROM: Final = (
    "import sys, runpy; sys.path.insert(0, sys.argv.pop(1)); runpy.run_module('rocketmq_replica', run_name='__main__')"
)
_START_SECONDS: Final = 300.0  # a Java broker on a machine that is busy otherwise


class MeasurementError(Exception):
    """A figure could not be had, or a message was lost."""


class StuckSlaveError(MeasurementError):
    """A slave that does not catch up."""


@dataclass
class Group:
    """The brokers of one kind: ``python``, ``java``, or ``before``, the Python replica of the checkout at ``against``.

    With ``asynchronous`` the master answers a sender without waiting for its slaves.
    """

    kind: str
    name_server: str
    against: Path | None = None
    profile: str | None = None
    asynchronous: bool = False
    acknowledged: int = 0
    stuck_slaves: int = 0
    patience_seconds: float = 10.0
    controller: FakeController = field(default_factory=FakeController)
    client: RemotingClient = field(default_factory=RemotingClient)
    brokers: list[RealProcess] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    root: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="replica-bench-")))

    @property
    def name(self) -> str:
        """Which of the groups that stand at the same time."""
        return f"{self.kind}_asynchronous" if self.asynchronous else self.kind

    async def start(self, replicas: int) -> None:
        """All of them, and wait until they are in sync."""
        await self.controller.start()
        for number in range(replicas):
            self.add_broker()
            await self.wait_until(lambda wanted=number + 1: len(self.controller.members) == wanted)  # type: ignore[misc]
        await asyncio.sleep(2)  # the master has to hear of it too

    def add_broker(self) -> RealProcess:
        """One more process."""
        folder = self.root / f"b{next(self.numbers)}"
        port = free_port(HOST, neighbours=2)
        properties = broker_properties(
            folder, controllers=self.controller.address, name_server=self.name_server, host=HOST
        ) | {
            "brokerName": BROKER_NAME,
            "listenPort": port,
            "haListenPort": free_port(HOST),
            "mappedFileSizeCommitLog": _FILE_BYTES,
            "allAckInSyncStateSet": "false" if self.asynchronous else "true",
            "haSendHeartbeatInterval": 1000,
            "brokerHeartbeatInterval": 500,
            "controllerHeartBeatTimeoutMills": 5000,
            "checkSyncStateSetPeriod": 1000,
        }
        config = write_properties(folder / "broker.conf", properties)
        log = folder / "output.log"
        if self.kind == "java":
            process = start(folder.name, [*java_command("broker", folder, heap="384m"), "-c", str(config)], log=log)
        elif self.against is not None:
            command = [sys.executable, "-c", _RUN_FROM, str(self.against), "--config", str(config)]
            process = start(folder.name, command, log=log)
        else:
            how = ("-m", "cProfile", "-o", self.profile, "-m") if self.profile and not self.brokers else ("-m",)
            process = start(folder.name, [sys.executable, *how, "rocketmq_replica", "--config", str(config)], log=log)
        self.brokers.append(process)
        return process

    async def wait_until(self, what: Callable[[], object], *, every_seconds: float = 0.02) -> None:
        """MeasurementError when it does not happen, or a broker ends meanwhile."""
        deadline = time.monotonic() + _START_SECONDS
        while not what():
            for broker in self.brokers:
                if broker.process.poll() is not None:
                    raise MeasurementError(f"{self.kind} broker {broker.name} ended; its log ends:\n{broker.tail()}")
            if time.monotonic() > deadline:
                raise MeasurementError(f"{self.kind} brokers were not ready within {_START_SECONDS:.0f} s")
            await asyncio.sleep(every_seconds)

    @property
    def master_address(self) -> str:
        """Where to send to."""
        assert self.controller.master_id is not None
        return self.controller.addresses[self.controller.master_id]

    def processor_seconds(self) -> list[float]:
        """What each broker has used so far, user and system."""
        return [processor_seconds(broker.pid) for broker in self.brokers]

    def memory_megabytes(self) -> list[dict[str, int]]:
        """What each broker holds now, and the most it ever held."""
        return [_memory_megabytes(broker.pid) for broker in self.brokers]

    async def log_end(self, address: str) -> int:
        """Where a broker's log ends; -1 if it does not say."""
        try:
            answer = await self.client.invoke(address, request(RequestCode.GET_BROKER_EPOCH_CACHE), timeout_seconds=2.0)
            return EpochCacheBody.decode(answer.body).max_offset
        except (RemotingError, BodyError):
            return -1

    async def lost_messages(self) -> int:
        """How many acknowledged messages are missing from the queue of any of the brokers.

        One queue took them all, so its end is their number; unacknowledged ones may be among them. A slave is given time.
        """
        missing = 0
        for address in list(self.controller.addresses.values()):
            deadline = time.monotonic() + self.patience_seconds
            while (end := await self._queue_end(address)) < self.acknowledged and time.monotonic() < deadline:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            missing = max(missing, self.acknowledged - end)
        return missing

    async def _queue_end(self, address: str) -> int:
        header = GetMaxOffsetRequestHeader(topic=TOPIC, queue_id=0)
        command = request(RequestCode.GET_MAX_OFFSET, ext_fields=header.encode())
        try:
            answer = await self.client.invoke(address, command, timeout_seconds=5.0)
        except RemotingError:
            return -1
        if answer.code != ResponseCode.SUCCESS:
            return -1
        return OffsetResponseHeader.decode(answer.ext_fields).offset or 0

    async def stop(self) -> None:
        """End the brokers (a profile is written at a gentle end) and delete what they stored."""
        if self.profile:
            await asyncio.to_thread(self.brokers[0].stop)
        for broker in self.brokers:
            broker.kill()
        await self.client.close()
        if self.controller.address:
            await self.controller.stop()
        shutil.rmtree(self.root, ignore_errors=True)


def start_bench_name_server(folder: Path) -> tuple[RealProcess, str]:
    """A Java slave learns the HA address of its master from a NameServer."""
    program = start_name_server(folder).wait_until_listening()
    return program.process, program.address


def processor_seconds(pid: int) -> float:
    """User and system time of a process so far: on a shared machine this tells more than the time that passed."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


def _memory_megabytes(pid: int) -> dict[str, int]:
    status = Path(f"/proc/{pid}/status").read_text()
    found = {line.split(":")[0]: int(line.split()[1]) // 1024 for line in status.splitlines() if line.startswith("Vm")}
    return {"resident": found["VmRSS"], "peak": found["VmHWM"]}
