"""A whole controller process under heartbeats: ours standing alone, and RocketMQ's own, with the same brokers over real sockets.

Groups of three scripted brokers, each on a connection of its own, register and elect as brokers do and then heartbeat at a
fixed rate that neither controller is busy with. They answer what they are asked, with success and nothing else. The figure is the
heartbeats that were sent per second of the controller process's own processor time (all its threads, /proc), everything it does
beside included.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.controller_in_process import CLUSTER, MEMBERS, group_name
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import request
from rocketmq_remoting.errors import RemotingError
from rocketmq_remoting.server import RemotingServer
from tests.real.parts.process import start
from tests.support.places import free_port
from tests.upstream.java_controllers import start_dledger, wait_until_leading

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_remoting.connection import RemotingConnection
    from tests.real.parts.process import RealProcess

# Of ours, which is compared with itself; RocketMQ's controller has the middle size.
SIZES = (10, 300, 1000)
JAVA_SIZE = 300
ROUNDS, ROUND_SECONDS = 7, 4.0
# No broker here ever confirms its role, and each is told again with pauses that have grown to their longest by then.
WARM_UP_SECONDS = 20.0
# As many as the brokers of the largest size send: one a second each.
HEARTBEATS_PER_SECOND = 3_000
ROOT = Path(__file__).resolve().parents[1]
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class _Answers:
    """The brokers' side: whatever they are asked, they did it."""

    def handle(self, asked: RemotingCommand, connection: RemotingConnection) -> RemotingCommand:  # noqa: ARG002
        return asked.answer(0)

    def connection_opened(self, connection: RemotingConnection) -> None:
        connection.peer_is_known()

    def connection_closed(self, connection: RemotingConnection) -> None:
        pass


def processor_seconds(pid: int) -> float:
    """What the process has used so far, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
        return True
    return False


class Brokers:
    """Three brokers of each group, on a connection each, all at the one port where `_Answers` listens."""

    def __init__(self, controller: str, groups: int) -> None:
        self._controller = controller
        self._groups = groups
        # The controller calls all of them from one host.
        self._server = RemotingServer(_Answers(), max_connections_per_host=20_000)
        self._clients: dict[tuple[int, int], RemotingClient] = {}
        self._offset = 1000

    async def start(self) -> None:
        """Register all, elect in each group."""
        await self._server.start("0.0.0.0", 0)
        for number in range(self._groups):
            await asyncio.gather(*(self._register(number, one) for one in MEMBERS[:1]))
            for one in MEMBERS[1:]:
                await self._register(number, one)
            for one in MEMBERS:
                await self._beat(number, one)
            await self._elect(number)

    async def stop(self) -> None:
        """Close everything."""
        await asyncio.gather(*(client.close() for client in self._clients.values()))
        await self._server.stop(grace_seconds=0.1)

    async def beat_for(self, seconds: float) -> int:
        """Heartbeats of all in turn, at the fixed rate; how many were sent."""
        clock = asyncio.get_running_loop().time
        begun_seconds, sent = clock(), 0
        while (passed_seconds := clock() - begun_seconds) < seconds:
            self._offset += 1
            due = int(passed_seconds * HEARTBEATS_PER_SECOND)
            while sent < due:
                number, one = divmod(sent % (self._groups * len(MEMBERS)), len(MEMBERS))
                await self._beat(number, MEMBERS[one])
                sent += 1
            await asyncio.sleep(0.005)
        return sent

    async def until_read(self) -> None:
        """Until every heartbeat was read: a question on each connection is answered after what was sent before it."""
        question = request(RequestCode.CONTROLLER_GET_METADATA_INFO)
        await asyncio.gather(
            *(client.invoke(self._controller, question, timeout_seconds=120.0) for client in self._clients.values())
        )

    def _address(self, number: int, one: int) -> str:
        return f"127.{80 + one}.{number // 250}.{number % 250 + 1}:{self._server.port}"

    async def _register(self, number: int, one: int) -> None:
        self._clients[number, one] = RemotingClient(local_host=self._address(number, one).rpartition(":")[0])
        address = self._address(number, one)
        await self._ask(
            number, one, RequestCode.CONTROLLER_APPLY_BROKER_ID, appliedBrokerId=one, registerCheckCode=f"{address};1"
        )
        await self._ask(number, one, RequestCode.CONTROLLER_REGISTER_BROKER, brokerId=one, brokerAddress=address)

    async def _elect(self, number: int) -> None:
        await self._ask(number, 1, RequestCode.CONTROLLER_ELECT_MASTER, brokerId=1, designateElect=False, invokeTime=1)

    async def _ask(self, number: int, one: int, code: int, **fields: object) -> None:
        ext_fields = {"clusterName": CLUSTER, "brokerName": group_name(number)}
        ext_fields |= {
            name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in fields.items()
        }
        for _ in range(20):
            try:
                answer = await self._clients[number, one].invoke(
                    self._controller, request(code, ext_fields=ext_fields), timeout_seconds=10.0
                )
            except RemotingError:
                answer = None
            # An election whose answer came too late was one all the same: asked again, the master exists.
            if answer is not None and answer.code in (0, ResponseCode.CONTROLLER_MASTER_STILL_EXIST):
                return
            await asyncio.sleep(0.2)
        raise RuntimeError(f"{self._controller}: code {code} of broker {one} of {group_name(number)}: {answer}")

    async def _beat(self, number: int, one: int) -> None:
        ext_fields = {
            "clusterName": CLUSTER,
            "brokerName": group_name(number),
            "brokerAddr": self._address(number, one),
            "brokerId": str(one),
            "epoch": "1" if self._offset > 1000 else "0",
            "maxOffset": str(self._offset if self._offset > 1000 else 0),
            "confirmOffset": str(self._offset if self._offset > 1000 else 0),
            "heartbeatTimeoutMills": "600000",
            "electionPriority": "2147483647",
        }
        command = request(RequestCode.BROKER_HEARTBEAT, ext_fields=ext_fields, oneway=True, version=513)
        await self._clients[number, one].invoke_oneway(self._controller, command, timeout_seconds=10.0)


@dataclass(frozen=True)
class WholeProcess:
    """Heartbeats per second of the process's processor time in each round; how long it took to end after SIGTERM.

    `alone`: of the time that they add to what it uses in a round without any.
    """

    rates: list[float]
    alone: list[float]
    sigterm_seconds: float
    warnings: int

    @property
    def heartbeats_per_cpu_second(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.rates)


async def over_sockets(*, java: bool, say: Callable[[str], None]) -> dict[str, WholeProcess]:
    """Measure `brokergroup controller`, records in memory, at each size, and RocketMQ's controller ("java") on DLedger, one node.

    They take turns of a few seconds, so that a slow minute of the machine strikes all of them alike.
    """
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        started: dict[str, tuple[RealProcess, str]] = {}
        for size in SIZES:
            started[str(size)] = await asyncio.to_thread(_start_ours, Path(name) / f"{size}.log", stack)
        if java:
            leader = await asyncio.to_thread(start_dledger, Path(name))
            stack.callback(leader.process.stop, grace_seconds=1.0)
            await asyncio.to_thread(wait_until_leading, leader)
            started["java"] = leader.process, leader.address
        brokers = {
            label: await _Brokers.start(address, process.pid, JAVA_SIZE if label == "java" else int(label))
            for label, (process, address) in started.items()
        }
        rounds = [{label: await one.rates() for label, one in brokers.items()} for _ in range(ROUNDS)]
        found: dict[str, WholeProcess] = {}
        for label, (process, _) in started.items():
            await brokers[label].stop()
            stopped_seconds = time.monotonic()
            await asyncio.to_thread(process.stop, grace_seconds=30.0)
            ended_seconds = time.monotonic() - stopped_seconds
            found[label] = WholeProcess(
                rates=[one[label][0] for one in rounds],
                alone=[one[label][1] for one in rounds],
                sigterm_seconds=ended_seconds,
                warnings=_warnings(Path(name) / f"{label}.log"),
            )
            say(f"over sockets, {label}: {found[label]}")
    return found


def _start_ours(log: Path, stack: contextlib.ExitStack) -> tuple[RealProcess, str]:
    port = free_port()
    program = Path(sys.executable).with_name("brokergroup")
    command = [str(program), "controller", "--listen", f"127.0.0.1:{port}", "--open-admin"]
    process = start("controller", command, log=log)
    stack.callback(process.stop, grace_seconds=1.0)
    process.wait_until(lambda: _listens(port), what="it listens", deadline_seconds=120.0)
    return process, f"127.0.0.1:{port}"


def _warnings(log: Path) -> int:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    return sum("warning" in line for line in lines)


class _Brokers:
    """`Brokers` in a process of their own: what another one has measured before would slow them down, and brokers that answer too
    late are told again. They measure once for each line on standard input.
    """

    def __init__(self, program: asyncio.subprocess.Process) -> None:
        self._program = program

    @classmethod
    async def start(cls, address: str, pid: int, groups: int) -> _Brokers:
        """Register, elect and warm up."""
        paths = os.pathsep.join((str(ROOT), str(ROOT / "operator")))
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.controller_sockets", address, str(pid), str(groups)),
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": paths},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        brokers = cls(program)
        await brokers._line()
        return brokers

    async def rates(self) -> tuple[float, float]:
        """Return the heartbeats per second of the controller's processor time, of one round; and of what it uses for them alone."""
        assert self._program.stdin is not None
        self._program.stdin.write(b"\n")
        whole, alone = (await self._line()).split()
        return float(whole), float(alone)

    async def stop(self) -> None:
        """Close their connections."""
        assert self._program.stdin is not None
        self._program.stdin.close()
        await self._program.wait()

    async def _line(self) -> bytes:
        assert self._program.stdout is not None
        line = await self._program.stdout.readline()
        if not line:
            raise RuntimeError(f"the scripted brokers ended with exit code {await self._program.wait()}")
        return line


async def _measure_here(address: str, pid: int, groups: int) -> None:
    brokers = Brokers(address, groups)
    await brokers.start()
    await brokers.beat_for(WARM_UP_SECONDS)
    await brokers.until_read()
    print("ready", flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        begun_seconds = processor_seconds(pid)
        await asyncio.sleep(ROUND_SECONDS)
        quiet_seconds = processor_seconds(pid)
        sent = await brokers.beat_for(ROUND_SECONDS)
        await brokers.until_read()
        read_seconds = processor_seconds(pid)
        # The same questions without heartbeats before them: three thousand at the largest size, thirty at the smallest.
        await brokers.until_read()
        whole_seconds = 2 * read_seconds - quiet_seconds - processor_seconds(pid)
        alone_seconds = whole_seconds - (quiet_seconds - begun_seconds)
        print(sent / whole_seconds, sent / alone_seconds, flush=True)
    await brokers.stop()


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    asyncio.run(_measure_here(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
