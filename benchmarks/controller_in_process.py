"""The controller plane's own cost, in this process: no socket, no other process's share of the processor in the figures.

Brokers are connections without a socket: the bytes of a Java broker's heartbeat (904) go through the frame decoder, the access
rules, the heartbeat table and the marks, as they do behind a socket. The groups come from the Kubernetes directory, each with
three pods, and the records name a master that every member follows.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brokergroup_operator.api import names
from brokergroup_operator.controller.directory.kubernetes_directory import KubernetesDirectory
from brokergroup_operator.controller.directory.pods import Peer
from brokergroup_operator.controller.plane import ControllerPlane
from brokergroup_operator.controller.settings import PlaneSettings
from brokergroup_operator.kube.client import KubernetesApi, WatchEvent
from brokergroup_operator.records.memory import MemoryRecordStore
from brokergroup_operator.records.store import GroupKey
from controller_core.model import BrokerGroupRecord, Replica
from rocketmq_remoting.codec import encode
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.command import request
from rocketmq_remoting.connection import RemotingConnection
from rocketmq_remoting.limits import ConnectionSettings
from tests.controller.conftest import group_of
from tests.support.pods_directory import PodsDirectory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MEMBERS = (1, 2, 3)
CLUSTER = "DefaultCluster"
NAMESPACE = "default"
PORT = 10911
# So many heartbeats of each size are measured in a run, in rounds in which every member beats once.
HEARTBEATS_PER_RUN = 30_000
API_SERVER = Path(__file__).with_name("controller_api_pages.py")


def group_name(number: int) -> str:
    """The name of a group, also its brokerName."""
    return f"group-{number}"


def host_of(number: int, broker_id: int) -> str:
    """The address of a member's pod: loopback, where nothing listens."""
    return f"127.{64 + number // 65536 + 8 * broker_id}.{number // 256 % 256}.{number % 256}"


def group_object(number: int) -> dict[str, Any]:
    """The BrokerGroup."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.BROKER_GROUP_KIND,
        "metadata": {
            "namespace": NAMESPACE,
            "name": group_name(number),
            "uid": f"g{number}",
            "resourceVersion": "1",
            "generation": 1,
        },
        "spec": {"replicas": len(MEMBERS), "implementation": "Java", "version": "5.5.0"},
    }


def pod_object(number: int, broker_id: int) -> dict[str, Any]:
    """A member's running pod; the environment makes it as large as one of a cluster."""
    environment = [{"name": f"SETTING_{index}", "value": "x" * 40} for index in range(30)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": NAMESPACE,
            "name": f"{group_name(number)}-{broker_id}",
            "uid": f"p{number}-{broker_id}",
            "resourceVersion": "1",
            "labels": {names.LABEL_BROKER_GROUP: group_name(number), names.LABEL_BROKER_ID: str(broker_id)},
        },
        "spec": {"nodeName": f"node-{number % 100}", "containers": [{"name": "broker", "env": environment}]},
        "status": {
            "phase": "Running",
            "podIP": host_of(number, broker_id),
            "containerStatuses": [{"name": "broker", "restartCount": 0, "state": {"running": {}}}],
        },
    }


def record_of(number: int) -> BrokerGroupRecord:
    """Three members in sync, the first one master."""
    return BrokerGroupRecord(
        CLUSTER,
        group_name(number),
        next_broker_id=4,
        replicas={
            one: Replica(
                one,
                register_check_code=f"{host_of(number, one)}:{PORT};1",
                address=f"{host_of(number, one)}:{PORT}",
                reserved_for=f"{group_name(number)}-{one}",
                registered=True,
                held_epoch=1,
                held_offset=1000,
            )
            for one in MEMBERS
        },
        master_broker_id=1,
        master_epoch=1,
        sync_state_set=frozenset(MEMBERS),
        sync_state_set_epoch=3,
    )


def heartbeat(number: int, broker_id: int, offset: int, *, timeout_ms: int = 10_000) -> bytes:
    """The frame of a Java broker's 904."""
    return encode(
        request(
            RequestCode.BROKER_HEARTBEAT,
            oneway=True,
            version=513,
            ext_fields={
                "clusterName": CLUSTER,
                "brokerName": group_name(number),
                "brokerAddr": f"{host_of(number, broker_id)}:{PORT}",
                "brokerId": str(broker_id),
                "epoch": "1",
                "maxOffset": str(offset),
                "confirmOffset": str(offset),
                "heartbeatTimeoutMills": str(timeout_ms),
                "electionPriority": "2147483647",
            },
        )
    )


class _Transport(asyncio.Transport):
    """Where a connection's bytes go to: nowhere."""

    def __init__(self, host: str) -> None:
        super().__init__({"peername": (host, 40000)})
        self._closing = False

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._closing = True

    abort = close

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


def connect(plane: ControllerPlane, host: str) -> RemotingConnection:
    """A broker's connection to the plane."""
    connection = RemotingConnection(handler=plane.handler, settings=ConnectionSettings())
    connection.connection_made(_Transport(host))
    return connection


class World:
    """A plane with so many groups, and a connection of each of their members."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.offset = 1000
        self.directory = KubernetesDirectory(KubernetesApi.from_url("http://127.0.0.1:1"))
        self.store = MemoryRecordStore()
        settings = PlaneSettings(listen_host="127.0.0.1", listen_port=0, advertise_address="127.0.0.1:1")
        self.plane = ControllerPlane(store=self.store, directory=self.directory, settings=settings)
        self.connections: dict[tuple[int, int], RemotingConnection] = {}

    async def set_up(self) -> None:
        """The directory hears of every group and pod, the plane reads every record, every member connects."""
        for number in range(self.count):
            self.directory._on_group(WatchEvent("ADDED", group_object(number)))  # noqa: SLF001 - as its watch does
            for one in MEMBERS:
                self.directory._on_pod(WatchEvent("ADDED", pod_object(number, one)))  # noqa: SLF001
                self.connections[number, one] = connect(self.plane, host_of(number, one))
            key = GroupKey(NAMESPACE, group_name(number))
            await self.store.commit(key, record_of(number), None)
            await group_of(self.plane, key).load()
        for _ in range(2):
            self.beat_once()
        self.offset += 1

    def frames(self) -> Iterator[tuple[RemotingConnection, bytes]]:
        """A heartbeat of every member, each with a little more than its last one."""
        self.offset += 1
        for (number, one), connection in self.connections.items():
            yield connection, heartbeat(number, one, self.offset)

    def beat_once(self) -> float:
        """Every member beats once; the processor seconds that took the plane."""
        frames = list(self.frames())
        begun_seconds = time.process_time()
        for connection, frame in frames:
            connection.data_received(frame)
        return time.process_time() - begun_seconds


async def heartbeats_per_cpu_second(counts: list[int], *, runs: int, say: Callable[[str], None]) -> dict[int, float]:
    """The median of the runs for each number of groups. The sizes take turns, and each is first in its turn."""
    worlds = [World(count) for count in counts]
    for world in worlds:
        await world.set_up()
    rates: dict[int, list[float]] = {count: [] for count in counts}
    for run in range(runs):
        first = run % len(worlds)
        for world in (*worlds[first:], *worlds[:first]):
            rounds = max(1, HEARTBEATS_PER_RUN // (world.count * len(MEMBERS)))
            spent_seconds = sum([world.beat_once() for _ in range(rounds)])
            rates[world.count].append(rounds * world.count * len(MEMBERS) / spent_seconds)
            await asyncio.sleep(0)
        say(f"run {run + 1}: " + ", ".join(f"{count} groups {rates[count][-1]:,.0f}/s" for count in counts))
    return {count: statistics.median(found) for count, found in rates.items()}


@dataclass(frozen=True)
class FirstList:
    """How long the directory takes to learn everything, and the longest that it kept the loop (processor seconds)."""

    seconds: float
    longest_block_seconds: float


async def first_list(count: int) -> FirstList:
    """Start a directory on a server that has this many groups with three pods each."""
    server = await asyncio.create_subprocess_exec(
        sys.executable, str(API_SERVER), str(count), stdout=asyncio.subprocess.PIPE, env={**os.environ}
    )
    assert server.stdout is not None
    port = int(await server.stdout.readline())
    longest_seconds = 0.0

    async def watch_the_loop() -> None:
        nonlocal longest_seconds
        while True:
            before_seconds = time.process_time()
            await asyncio.sleep(0.001)
            longest_seconds = max(longest_seconds, time.process_time() - before_seconds)

    watching = asyncio.create_task(watch_the_loop())
    async with KubernetesApi.from_url(f"http://127.0.0.1:{port}") as api:
        directory = KubernetesDirectory(api)
        begun_seconds = time.monotonic()
        await directory.start()
        took_seconds = time.monotonic() - begun_seconds
        assert len(directory.bindings()) == count
        last = GroupKey(NAMESPACE, group_name(count - 1))
        assert len(directory.pods.hosts(last)) == len(MEMBERS)
        watching.cancel()
        await directory.stop()
    server.kill()
    await server.wait()
    return FirstList(took_seconds, longest_seconds)


@dataclass(frozen=True)
class Deaths:
    """How long after the masters' connections closed, all at once, the elections were committed."""

    p99_seconds: float


async def deaths_decided(count: int) -> Deaths:
    """The masters of this many groups die at once: their connections close, and their addresses refuse."""
    store, directory = MemoryRecordStore(), PodsDirectory(namespace=NAMESPACE)
    settings = PlaneSettings(listen_host="127.0.0.1", listen_port=0)
    plane = ControllerPlane(store=store, directory=directory, settings=settings)
    decided: dict[GroupKey, float] = {}
    all_decided = asyncio.Event()
    await plane.start()
    masters = []
    for number in range(count):
        key = GroupKey(NAMESPACE, group_name(number))
        await store.commit(key, record_of(number), None)
        directory.find(group_name(number), cluster_name=CLUSTER)
        await group_of(plane, key).load()
        for one in MEMBERS:
            pod = Peer(namespace=NAMESPACE, pod_name=f"{group_name(number)}-{one}", group=key)
            directory.introduce(host_of(number, one), pod)
            connection = connect(plane, host_of(number, one))
            for offset in (1001, 1002):
                connection.data_received(heartbeat(number, one, offset, timeout_ms=120_000))
            if one == 1:
                masters.append(connection)
        if number % 20 == 0:
            await asyncio.sleep(0)
    begun_seconds = time.monotonic()

    def note(key: GroupKey, version: str | None) -> None:  # noqa: ARG001 - the store calls it with both
        stored = store.watched(key)
        if stored is not None and stored.record.granted_master_id in MEMBERS[1:]:
            decided.setdefault(key, time.monotonic() - begun_seconds)
        if len(decided) == count:
            all_decided.set()

    store.subscribe(note)
    for connection in masters:
        connection.close()
        connection.connection_lost(None)
    async with asyncio.timeout(300):
        await all_decided.wait()
    await plane.stop()
    return Deaths(statistics.quantiles(decided.values(), n=100)[98])
