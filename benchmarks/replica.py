"""How fast a replica is: sends per second with 1 and 3 replicas, replication, memory; with ``--java`` a Java broker's beside it.

    .venv/bin/python benchmarks/replica.py [--seconds 10] [--java] [--profile FILE]

Every broker is a process of its own on loopback, with a small controller in this one; all members of the SyncStateSet acknowledge
(``allAckInSyncStateSet``), flushing is asynchronous, messages have 1 KiB. Replication is an empty slave that catches up with a log
written before. One line of JSON. ``--profile`` has the single replica write its profile (cProfile) to a file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.replica_load import produce
from rocketmq_remoting.broker_bodies import EpochCacheBody
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.command import request
from rocketmq_remoting.errors import BodyError, RemotingError
from tests.replica.support import FakeController, configuration_text
from tests.replica.test_java_interop import Lab, free_ports

FILE_BYTES = 256 << 20
HOST = "127.0.0.1"


class Group(Lab):
    """The brokers of one measurement, of one kind."""

    async def start_broker(self, name: str, *, java: bool, profile: str | None = None) -> int:
        """One more broker; its pid."""
        keys = self.properties(name, free_ports()) | {
            "mappedFileSizeCommitLog": FILE_BYTES,
            "haSendHeartbeatInterval": 1000,
        }
        if java:
            await self.java(name, "org.apache.rocketmq.broker.BrokerStartup", keys)
        else:
            config = self.root / f"{name}.conf"
            config.write_text(configuration_text(self.root / name / "store", self.controller.address, HOST, **keys))
            how = ("-m", "cProfile", "-o", profile, "-m") if profile else ("-m",)
            with (self.root / f"{name}.log").open("wb") as log:
                self.started.append(
                    await asyncio.create_subprocess_exec(
                        sys.executable, *how, "rocketmq_replica", "--config", str(config), stderr=log
                    )
                )
        return self.started[-1].pid

    async def members(self, count: int) -> str:
        """Wait until so many are in sync; the master's address."""
        async with asyncio.timeout(120):
            while len(self.controller.members) != count:  # noqa: ASYNC110 - other processes change it
                await asyncio.sleep(0.05)
        await asyncio.sleep(2)  # the master has to hear of it too
        assert self.controller.master_id is not None
        return self.controller.addresses[self.controller.master_id]

    async def stop_gently(self) -> None:
        """Give every process the chance to write its profile."""
        for process in self.started:
            if process.returncode is None:
                process.terminate()
        for process in self.started:
            try:
                async with asyncio.timeout(20):
                    await process.wait()
            except TimeoutError:
                process.kill()
        await self.stop()


def memory_megabytes(pid: int) -> dict[str, int]:
    """What the process holds now, and the most it ever held."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = {line.split(":")[0]: int(line.split()[1]) // 1024 for line in status.splitlines() if line.startswith("Vm")}
    return {"resident": found["VmRSS"], "peak": found["VmHWM"]}


def processor_seconds(pids: list[int]) -> list[float]:
    """What each process has used so far: on a shared machine this tells more than the time that passed."""
    tick = os.sysconf("SC_CLK_TCK")
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return [(int(each[11]) + int(each[12])) / tick for each in fields]


def per_send(before: list[float], after: list[float], sends: int) -> list[float]:
    """Microseconds of processor time each broker spent on a send."""
    return [round((late - early) / max(sends, 1) * 1e6, 1) for early, late in zip(before, after, strict=True)]


async def log_end(client: RemotingClient, address: str) -> int:
    """Where a broker's log ends; -1 if it does not say."""
    try:
        answer = await client.invoke(address, request(RequestCode.GET_BROKER_EPOCH_CACHE), timeout_seconds=2.0)
        return EpochCacheBody.decode(answer.body).max_offset
    except (RemotingError, BodyError):
        return -1


async def measure_sends(folder: Path, replicas: int, arguments: argparse.Namespace, *, java: bool) -> dict[str, object]:
    """Sends per second and their latencies: many at once for throughput, few for latency."""
    controller = FakeController()
    await controller.start()
    group = Group(folder, controller)
    try:
        await group.start_name_server()
        pids = []
        for number in range(replicas):
            profile = arguments.profile if replicas == 1 else None
            pids.append(await group.start_broker(f"b{number}", java=java, profile=profile))
            await group.members(number + 1)
        address = await group.members(replicas)
        await produce(address, seconds=2.0, body_bytes=1024, connections=2, window=32)  # warm up, create the topic
        before = processor_seconds(pids)
        many = await produce(address, seconds=arguments.seconds, body_bytes=1024, connections=4, window=128)
        after = processor_seconds(pids)
        few = await produce(address, seconds=arguments.seconds / 2, body_bytes=1024, connections=1, window=8)
        return {
            "loaded": many.summary(),
            "light": few.summary(),
            "processor_microseconds_per_send": per_send(before, after, many.codes.get(0, 0)),
            "memory_megabytes": [memory_megabytes(pid) for pid in pids],
        }
    finally:
        await group.stop_gently()
        await controller.stop()


async def measure_replication(folder: Path, arguments: argparse.Namespace, *, java: bool) -> dict[str, object]:
    """Megabytes per second that an empty slave takes over."""
    controller = FakeController()
    await controller.start()
    group = Group(folder, controller)
    client = RemotingClient()
    try:
        await group.start_name_server()
        await group.start_broker("b0", java=java)
        master = await group.members(1)
        while await log_end(client, master) < arguments.replicated_megabytes << 20:
            await produce(master, seconds=2.0, body_bytes=64 << 10, connections=2, window=32)
        end = await log_end(client, master)
        await group.start_broker("b1", java=java)
        async with asyncio.timeout(120):
            while 2 not in controller.addresses or await log_end(client, controller.addresses[2]) <= 0:  # noqa: ASYNC110
                await asyncio.sleep(0.002)  # another process
            started, first = time.perf_counter(), await log_end(client, controller.addresses[2])
            while await log_end(client, controller.addresses[2]) < end:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        seconds = time.perf_counter() - started
        return {"megabytes": end >> 20, "megabytes_per_second": round((end - first) / seconds / 1e6, 1)}
    finally:
        await client.close()
        await group.stop_gently()
        await controller.stop()


async def measure(arguments: argparse.Namespace) -> dict[str, object]:
    """Everything, one kind of broker after the other."""
    report: dict[str, object] = {"cores": os.cpu_count(), "seconds": arguments.seconds, "message_bytes": 1024}
    for kind, java in (("python", False), *((("java", True),) if arguments.java else ())):
        figures: dict[str, object] = {}
        for replicas in arguments.replicas:
            folder = Path(tempfile.mkdtemp(prefix="replica-bench-"))
            try:
                figures[f"{replicas}_replicas"] = await measure_sends(folder, replicas, arguments, java=java)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(prefix="replica-bench-"))
        try:
            if arguments.replicated_megabytes:
                figures["replication"] = await measure_replication(folder, arguments, java=java)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        report[kind] = figures
    return report


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="How fast a replica is")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--replicas", type=int, nargs="*", default=[1, 3])
    parser.add_argument("--replicated-megabytes", type=int, default=400, help="0 leaves replication out")
    parser.add_argument("--java", action="store_true", help="the same with Java brokers")
    parser.add_argument("--profile", help="where the single Python replica writes its profile")
    print(json.dumps(uvloop.run(measure(parser.parse_args())), indent=None))


if __name__ == "__main__":
    main()
