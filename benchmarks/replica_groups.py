"""The groups that `replica.py` measures, a producer that costs little, and the figures of many runs.

Brokers of one kind run as processes on loopback, with a small controller in this one. Both kinds get the same properties: all
members of the SyncStateSet acknowledge (in an asynchronous group the master alone), flushing is asynchronous, files have 256 MiB.
The producer sends ready-made frames with a window of unanswered ones, and parses only opaque and code of an answer: so a small
machine measures the broker, not the producer.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from rocketmq_remoting.address import Address
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
    """User and system time of a process so far: on a shared machine this says more than the time that passed."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


def _memory_megabytes(pid: int) -> dict[str, int]:
    status = Path(f"/proc/{pid}/status").read_text()
    found = {line.split(":")[0]: int(line.split()[1]) // 1024 for line in status.splitlines() if line.startswith("Vm")}
    return {"resident": found["VmRSS"], "peak": found["VmHWM"]}


_CODE = re.compile(rb'"code":(-?\d+)')
_OPAQUE = re.compile(rb'"opaque":(-?\d+)')


@dataclass
class Result:
    """What one run measured."""

    seconds: float = 0.0
    latencies_seconds: list[float] = field(default_factory=list)
    codes: dict[int, int] = field(default_factory=dict)

    def percentile_ms(self, part: float) -> float | None:
        """How long that part of the sends waited at most; None if there were none."""
        ordered = sorted(self.latencies_seconds)
        return ordered[int(part * (len(ordered) - 1))] * 1000 if ordered else None


class Producer(asyncio.Protocol):
    """One connection that keeps ``window`` sends unanswered for as long as ``goes_on`` says."""

    def __init__(self, result: Result, body: bytes, *, window: int, goes_on: Callable[[], bool]) -> None:
        """Nothing is sent before the connection stands."""
        self._result = result
        self._window = window
        self._goes_on = goes_on
        self._sent: dict[int, float] = {}
        self._received = bytearray()
        self._opaque = 1_000_000_000
        values = {"a": "PG", "b": "Bench", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0"}
        values["i"] = r"UNIQ_KEY\u00017F00000100002A9F3B6E0000000000002\u0002WAIT\u0001true\u0002"  # as Java's producer
        fields = ",".join(f'"{name}":"{value}"' for name, value in values.items())
        head = f'{{"code":310,"extFields":{{{fields}}},"flag":0,"language":"PYTHON","opaque":%d,'
        self._head = head + '"serializeTypeCurrentRPC":"JSON","version":479}'
        self._header_bytes = len(self._head % self._opaque)
        self._prefix = (4 + self._header_bytes + len(body)).to_bytes(4, "big") + self._header_bytes.to_bytes(4, "big")
        self._body = body
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Fill the window."""
        self._transport = cast("asyncio.Transport", transport)
        self._fill(self._window)

    def data_received(self, data: bytes) -> None:
        """Answers: each makes room for another send."""
        self._received += data
        now = time.perf_counter()
        answered = position = 0
        while len(self._received) - position >= 8:
            end = position + 4 + int.from_bytes(self._received[position : position + 4], "big")
            if end > len(self._received):
                break
            frame = bytes(self._received[position:end])
            position = end
            answered += 1
            self._note(frame, now)
        del self._received[:position]
        if self._goes_on():
            self._fill(answered)
        elif not self._sent and not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the measurement with an error."""
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("the broker closed the connection"))

    def close(self) -> None:
        """End the connection."""
        self._transport.close()

    def _note(self, frame: bytes, now: float) -> None:
        opaque, code = _OPAQUE.search(frame), _CODE.search(frame)
        assert opaque is not None
        assert code is not None
        self._result.latencies_seconds.append(now - self._sent.pop(int(opaque[1])))
        number = int(code[1])
        self._result.codes[number] = self._result.codes.get(number, 0) + 1

    def _fill(self, count: int) -> None:
        now = time.perf_counter()
        frames: list[bytes] = []
        for _ in range(count):
            self._opaque += 1
            self._sent[self._opaque] = now
            frames += (self._prefix, (self._head % self._opaque).encode(), self._body)
        if frames:
            self._transport.write(b"".join(frames))


async def produce(address: str, *, seconds: float, body_bytes: int, connections: int, window: int) -> Result:
    """Send for so long; every send is waited for."""
    found = Address.parse(address, "address")
    result = Result()
    started = time.perf_counter()
    loop = asyncio.get_running_loop()

    def goes_on() -> bool:
        return time.perf_counter() - started < seconds

    producers: list[Producer] = []
    for _ in range(connections):
        _, producer = await loop.create_connection(
            lambda: Producer(result, bytes(65 + n % 26 for n in range(body_bytes)), window=window, goes_on=goes_on),
            found.host,
            found.port,
        )
        producers.append(producer)
    async with asyncio.timeout(seconds + 30):
        await asyncio.gather(*(producer.done for producer in producers))
    result.seconds = time.perf_counter() - started
    for producer in producers:
        producer.close()
        await asyncio.gather(producer.done, return_exceptions=True)
    return result


TARGETS: Final = {
    # what: (figure, at least)
    "sends_per_second_1_replica": ("1_replicas", "sends_per_second", 15_000),
    "sends_per_second_3_replicas": ("3_replicas", "sends_per_second", 8_000),
    "replication_megabytes_per_second": ("replication", "megabytes_per_second", 200),
}
_PER_PROCESSOR = {
    "sends_per_second": "sends_per_processor_second",
    "megabytes_per_second": "megabytes_per_processor_second",
}


@dataclass
class Figure:
    """One figure of every run. ``more_is_better`` says which end is the worst."""

    more_is_better: bool
    values: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, float]:
        """The median and both ends."""
        best, worst = (max, min) if self.more_is_better else (min, max)
        return {
            "median": round(statistics.median(self.values), 2),
            "worst": round(worst(self.values), 2),
            "best": round(best(self.values), 2),
        }


@dataclass
class Figures:
    """The figures of one kind of broker in one arrangement."""

    by_name: dict[str, Figure] = field(default_factory=dict)
    also: dict[str, object] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, value: float | None, *, more_is_better: bool = False) -> None:
        """One run's."""
        if value is not None:
            self.by_name.setdefault(name, Figure(more_is_better)).values.append(value)

    def note_refused(self, codes: dict[int, int]) -> None:
        """Answers other than 0: those messages are not counted as sent."""
        for code, count in codes.items():
            if code:
                self.refused[str(code)] = self.refused.get(str(code), 0) + count

    def runs(self) -> int:
        """How many runs every figure has."""
        return min((len(figure.values) for figure in self.by_name.values()), default=0)

    def summary(self) -> dict[str, object]:
        """All of them."""
        return {
            **{name: figure.summary() for name, figure in self.by_name.items()},
            "refused": self.refused,
            "runs": self.runs(),
            **self.also,
        }


def judge_targets(python: dict[str, Figures]) -> dict[str, object]:
    """What was asked for, what the median of the Python replica is, and what it is per second of the busiest broker's core.

    The machine's cores are shared by the brokers, the load and any other process, and the target speaks of one core for a broker:
    so the second figure is what a broker does with a core of its own; the first is what was seen.
    """
    judged: dict[str, object] = {}
    for target, (arrangement, name, least) in TARGETS.items():
        if arrangement not in python or name not in python[arrangement].by_name:
            continue
        figures = python[arrangement].by_name
        seen = statistics.median(figures[name].values)
        alone = statistics.median(figures[_PER_PROCESSOR[name]].values)
        judged[target] = {
            "wanted": least,
            "as_measured": round(seen),
            "met_as_measured": seen >= least,
            "per_processor_second_of_the_busiest_broker": round(alone),
            "met_on_one_core": alone >= least,
        }
    return judged


def times_before(now: dict[str, Figures], before: dict[str, Figures]) -> dict[str, dict[str, float]]:
    """How much better each figure's median is than the other checkout's: above 1 is better, whichever way the figure goes."""
    found: dict[str, dict[str, float]] = {}
    for arrangement in now.keys() & before.keys():
        ours, theirs = now[arrangement].by_name, before[arrangement].by_name
        found[arrangement] = {name: round(_ratio(ours[name], theirs[name]), 2) for name in ours.keys() & theirs.keys()}
    return found


def cost_of_waiting(synchronous: Figures, asynchronous: Figures) -> dict[str, float]:
    """Return sends per second with all members acknowledging, as a share of those with the master alone, run by run."""
    pairs = zip(
        synchronous.by_name["sends_per_second"].values, asynchronous.by_name["sends_per_second"].values, strict=True
    )
    shares = [one / other for one, other in pairs]
    return {
        "median": round(statistics.median(shares), 3),
        "worst": round(min(shares), 3),
        "best": round(max(shares), 3),
    }


def _ratio(ours: Figure, theirs: Figure) -> float:
    one, other = statistics.median(ours.values), statistics.median(theirs.values)
    if not ours.more_is_better:
        one, other = other, one
    return one / other if other else 0.0
