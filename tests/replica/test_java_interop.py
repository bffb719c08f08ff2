"""One group of a Java broker 5.5.0 and a Python replica behind a real NameServer: mastership goes to and fro, both ways."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.java_json import loads
from rocketmq_remoting.message_record import decode_records
from tests.real.parts.install import rocketmq_home
from tests.replica.support import BROKER_NAME, Client, FakeController, configuration_text, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.real("java", "rocketmq"), pytest.mark.timeout(300)]

FILE_BYTES = 4 << 20
MESSAGES = 10_000
AT_ONCE = 16
HOST = "127.0.0.1"
JVM = ("-Xms384m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:-UseLargePages", "-XX:MaxDirectMemorySize=256m")


def free_ports() -> int:
    """A port whose neighbours -2 and +1 are free too, below the range the kernel hands out itself."""
    while True:
        port = random.randrange(20_000, 30_000)
        try:
            for each in (port - 2, port, port + 1):
                with socket.socket() as probe:
                    probe.bind(("", each))
        except OSError:
            continue
        return port


@dataclass
class Lab:
    """The processes of one test."""

    root: Path
    controller: FakeController
    name_server: str = ""
    started: list[asyncio.subprocess.Process] = field(default_factory=list)

    async def java(self, name: str, main: str, properties: dict[str, object]) -> None:
        folder = self.root / name
        folder.mkdir()
        config = folder / "conf"
        config.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        folders = (f"-Duser.home={folder}", f"-Drocketmq.home.dir={folder}")
        jars = ("-cp", str(rocketmq_home() / "lib" / "*"))
        with (folder / "output").open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                "java", *JVM, *folders, *jars, main, "-c", str(config), stdout=output, stderr=output
            )
        self.started.append(process)

    async def start_name_server(self) -> None:
        port = free_ports()
        self.name_server = f"{HOST}:{port}"
        main = "org.apache.rocketmq.namesrv.NamesrvStartup"
        await self.java("namesrv", main, {"listenPort": port, "bindAddress": HOST})
        async with asyncio.timeout(60):
            while not await reachable(port):  # noqa: ASYNC110 - another process opens it
                await asyncio.sleep(0.1)

    async def start_java_broker(self) -> None:
        await self.java("java", "org.apache.rocketmq.broker.BrokerStartup", self.properties("java", free_ports()))

    async def start_python_replica(self) -> None:
        config = self.root / "python.conf"
        keys = self.properties("python", free_ports())
        config.write_text(configuration_text(self.root / "python" / "store", self.controller.address, HOST, **keys))
        with (self.root / "python.log").open("wb") as log:
            self.started.append(
                await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "rocketmq_replica", "--config", str(config), stderr=log, cwd=Path.cwd()
                )
            )

    def properties(self, name: str, port: int) -> dict[str, object]:
        store = self.root / name / "store"
        return {
            "brokerClusterName": "DefaultCluster",
            "brokerName": BROKER_NAME,
            "brokerId": -1,
            "brokerRole": "SLAVE",
            "enableControllerMode": "true",
            "controllerAddr": self.controller.address,
            "namesrvAddr": self.name_server,
            "brokerIP1": HOST,
            "brokerIP2": HOST,
            "listenPort": port,
            "haListenPort": port + 1,
            "storePathRootDir": store,
            "storePathCommitLog": store / "commitlog",
            "storePathEpochFile": store / "epochFileCheckpoint",
            "storePathBrokerIdentity": store / "brokerIdentity",
            "mappedFileSizeCommitLog": FILE_BYTES,
            "allAckInSyncStateSet": "true",
            "haSendHeartbeatInterval": 1,
            "brokerHeartbeatInterval": 500,
            "controllerHeartBeatTimeoutMills": 5000,
            "syncBrokerMetadataPeriod": 1000,
            "checkSyncStateSetPeriod": 1000,
        }

    def log_bytes(self, name: str, end: int) -> bytes:
        files = sorted((self.root / name / "store" / "commitlog").iterdir())
        return b"".join(path.read_bytes() for path in files)[:end]

    def epoch_file(self, name: str) -> str:
        return (self.root / name / "store" / "epochFileCheckpoint").read_text()

    async def stop(self) -> None:
        for process in self.started:
            if process.returncode is None:
                process.kill()
        for process in self.started:
            await process.wait()


async def reachable(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(HOST, port)
    except OSError:
        return False
    writer.close()
    return True


@pytest.fixture
async def lab(tmp_path: Path, controller: FakeController) -> AsyncIterator[Lab]:
    each = Lab(tmp_path, controller)
    await each.start_name_server()
    yield each
    await each.stop()


async def switch_over(controller: FakeController, client: Client, new: int) -> None:
    """Old master first, then the new one, then where its log is: the order that is safe with Java brokers."""
    controller.decide(new)
    for broker_id in (3 - new, new):
        assert (await controller.notify(broker_id)).code == ResponseCode.SUCCESS
    host, _, port = controller.addresses[new].rpartition(":")
    fields = {"masterHaAddress": f"{host}:{int(port) + 1}"}
    await client.ask(controller.addresses[3 - new], RequestCode.EXCHANGE_BROKER_HA_INFO, ext_fields=fields)
    await eventually(lambda: controller.members == {1, 2}, within_seconds=60)


async def pull_all(client: Client, address: str) -> list[bytes]:
    """Everything a consumer of the master sees; a Java broker has to know the group first."""
    consumer = {"groupName": "CG", "consumeType": "CONSUME_ACTIVELY", "messageModel": "CLUSTERING"}
    consumer |= {"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"}
    consumer |= {"subscriptionDataSet": [{"topic": "Topic", "subString": "*"}]}
    heartbeat = {"clientID": "test", "producerDataSet": [], "consumerDataSet": [consumer]}
    answer = await client.ask(address, RequestCode.HEART_BEAT, body=json.dumps(heartbeat).encode())
    assert answer.code == ResponseCode.SUCCESS, answer
    end_answer = await client.ask(address, RequestCode.GET_MAX_OFFSET, ext_fields={"topic": "Topic", "queueId": "0"})
    end = int((end_answer.ext_fields or {})["offset"])
    bodies: list[bytes] = []
    async with asyncio.timeout(60):
        while len(bodies) < end:
            answer = await client.pull(address, len(bodies), suspend_ms=1000)
            assert answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND), answer
            if answer.code == ResponseCode.SUCCESS:
                bodies += [message.body for message in decode_records(answer.body or b"")]
    return bodies


@pytest.mark.parametrize("first", ["python", "java"])
async def test_java_and_python_replicate_to_each_other(
    lab: Lab, controller: FakeController, client: Client, first: str
) -> None:
    starters = [lab.start_python_replica, lab.start_java_broker]
    if first == "java":
        starters.reverse()
    await starters[0]()
    await eventually(lambda: controller.master_id == 1, within_seconds=120)
    await starters[1]()
    await eventually(lambda: controller.members == {1, 2}, within_seconds=120)
    acknowledged: list[bytes] = []
    sizes = random.Random(7)

    async def send_one(body: bytes) -> None:
        async with asyncio.timeout(60):
            while True:
                answer = await client.send(controller.addresses[controller.master_id], body, timeout_seconds=20)
                if answer.code != ResponseCode.SYSTEM_BUSY:  # Java throws away what waited 200 ms; it is not stored
                    break
        assert answer.code == ResponseCode.SUCCESS, answer
        acknowledged.append(body)

    async def send(count: int, largest_bytes: int) -> None:
        for start in range(0, count, AT_ONCE):
            bodies = [
                (b"%d-%d-" % (len(acknowledged), number)).ljust(sizes.randint(1, largest_bytes), b".")
                for number in range(min(AT_ONCE, count - start))
            ]
            await asyncio.gather(*(send_one(body) for body in bodies))

    await send(MESSAGES // 4 - 40, 2000)
    await send(24, 200_000)
    await send(16, 1 << 20)
    for new in (2, 1, 2):
        await switch_over(controller, client, new)
        await send(MESSAGES // 4, 2000)
    assert len(acknowledged) == MESSAGES
    master = controller.addresses[2]
    end = loads((await client.ask(master, RequestCode.GET_BROKER_EPOCH_CACHE)).body)["maxOffset"]
    assert end > 2 * FILE_BYTES
    assert lab.log_bytes("java", end) == lab.log_bytes("python", end)
    assert lab.epoch_file("java") == lab.epoch_file("python")
    assert sorted(await pull_all(client, master)) == sorted(acknowledged), "each exactly once"
    group = loads((await client.ask(lab.name_server, RequestCode.GET_BROKER_CLUSTER_INFO)).body)
    assert group["brokerAddrTable"][BROKER_NAME]["brokerAddrs"] == {
        "0": controller.addresses[2],
        "1": controller.addresses[1],
    }
