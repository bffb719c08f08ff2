"""RocketMQ's Proxy in the process of unmodified Java 5.5.0 brokers (spec.localProxy), started by the rendered pod's own command.

Two members in network namespaces of their own, our controller plane in this process, RocketMQ's gRPC client. A relay stands for the
Service `GROUP-master`: it passes each new connection on to the present master's pod.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.request
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.api.proxy_fields import GRPC_PORT, REMOTING_PORT
from brokergroup_operator.controller.directory.group_directory import FixedDirectory
from brokergroup_operator.controller.plane import ControllerPlane
from brokergroup_operator.controller.settings import PlaneSettings
from brokergroup_operator.reconcile.render.children import build_config_map
from brokergroup_operator.reconcile.render.containers import java_arguments
from brokergroup_operator.reconcile.render.pods import build_pod
from brokergroup_operator.reconcile.settings import ReconcileSettings
from brokergroup_operator.records.memory import MemoryRecordStore
from controller_core.settings import ControllerSettings
from kube_sandbox.kubelet.network import NetworkNamespaces
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.command import RemotingCommand, request
from rocketmq_remoting.serialization import decode_properties, encode_properties
from tests.interop.proxy import GROUP, TOPIC, GrpcClient
from tests.real.parts import install, java
from tests.real.parts.process import RealProcess, accepts_connections, start
from tests.real.test_java_memory import mebibytes_of
from tests.reconcile import builders as b
from tests.support.java_rig import KEY, eventually, in_sync, record_of
from tests.support.places import pod_network_place

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from brokergroup_operator.api.brokergroup import BrokerGroup
    from kube_sandbox.kubelet.network import PodAddress

pytestmark = [
    pytest.mark.real("java", "rocketmq", "rocketmq-proxy", "rocketmq-python-client", "netns"),
    pytest.mark.timeout(400),
]
BROKER_PORT = 10911
LIMIT_MEBIBYTES = 768
SHARE = 50
# "service not available now. It may be caused by ... messages are put to the slave ..."
REFUSED_BY_A_SLAVE = "50001"
# The client reads its route every 30 s, and a Proxy every 2.
CLIENT_SECONDS = 120.0
ANSWER_SECONDS = 10.0


@dataclass
class Member:
    """The broker's container of one pod."""

    number: int
    address: PodAddress
    process: RealProcess

    def listens(self, port: int) -> bool:
        return accepts_connections(self.address.ip, port)


@dataclass
class Rig:
    """The group, by the addresses of its members."""

    folder: Path
    plane: ControllerPlane
    name_server: str
    rocketmq_home: Path
    client: RemotingClient
    members: dict[str, Member] = field(default_factory=dict)

    @property
    def group(self) -> BrokerGroup:
        return b.group(
            implementation="Java",
            brokerName=KEY.name,
            replicas=2,
            durability="Available",
            nameServers=[self.name_server],
            localProxy={},
            monitoring={"exporter": True},
            config={key: str(value) for key, value in java.SPARING_BROKER.items()},
            resources={"limits": {"memory": f"{LIMIT_MEBIBYTES}Mi"}},
            # The whole heap is touched at the start, as after a while of use.
            jvm={"extraArguments": [*java.FAST_START, "-XX:+AlwaysPreTouch"]},
        )

    def start(self, number: int, address: PodAddress) -> Member:
        """Start what the pod's container `broker` runs, with the files of the group's ConfigMap."""
        settings = ReconcileSettings(controller_addresses=(self.plane.address,))
        folders = {name: self.folder / str(number) / name for name in ("STORE_DIR", "CONFIG_DIR", "RUN_DIR")}
        for folder in folders.values():
            folder.mkdir(parents=True)
        for name, text in build_config_map(self.group, settings)["data"].items():
            (folders["CONFIG_DIR"] / name).write_text(text, encoding="utf-8")
        container = b.containers(build_pod(self.group, b.member(number), settings))[names.CONTAINER_BROKER]
        environment = {name: str(folder) for name, folder in folders.items()}
        environment |= {"POD_IP": address.ip, "ROCKETMQ_HOME": str(self.rocketmq_home)}
        command = [*address.command_prefix, *container["command"]]
        log = self.folder / str(number) / "broker.log"
        member = Member(number, address, start(f"broker-{number}", command, log=log, env=environment))
        self.members[address.ip] = member
        return member

    def folder_of(self, client: str) -> Path:
        folder = self.folder / client
        folder.mkdir()
        return folder

    def has_opened_in_order(self) -> bool:
        """Whether all listen. The port of the readiness probe is the last of a process."""
        for member in self.members.values():
            if not member.listens(REMOTING_PORT):
                return False
            assert member.listens(GRPC_PORT)
            assert member.listens(BROKER_PORT)
        return True

    def master(self) -> Member:
        record = record_of(self.plane)
        address = record.address_of(record.granted_master_id or 0) or ""
        return self.members[address.rpartition(":")[0]]

    def id_of(self, member: Member) -> int:
        """Return its broker id: the member that registers first gets the first."""
        replicas = record_of(self.plane).replicas.values()
        return next(one.broker_id for one in replicas if (one.address or "").startswith(f"{member.address.ip}:"))

    def others(self, member: Member) -> list[Member]:
        return [one for one in self.members.values() if one is not member]

    async def ask(self, member: Member, code: RequestCode, *, port: int = BROKER_PORT, **wish: Any) -> RemotingCommand:
        answer = await self.client.invoke(
            f"{member.address.ip}:{port}", request(code, **wish), timeout_seconds=ANSWER_SECONDS
        )
        assert answer.code == 0, answer
        return answer

    def logs(self) -> str:
        return "\n".join(member.process.tail() for member in self.members.values())


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with AsyncExitStack() as stack:
        place = stack.enter_context(pod_network_place())
        network = NetworkNamespaces(tmp_path / "next-address", bridge=place.bridge, subnet=place.subnet)
        await network.open()
        stack.push_async_callback(network.close)
        name_server = java.start_name_server(tmp_path / "namesrv", host=network.node_ip)
        stack.callback(name_server.process.kill)
        await asyncio.to_thread(name_server.wait_until_listening)
        plane = ControllerPlane(
            store=MemoryRecordStore(),
            directory=FixedDirectory(settings=ControllerSettings(), name_servers=(name_server.address,)),
            settings=PlaneSettings(listen_host=network.node_ip, listen_port=0),
        )
        await plane.start()
        stack.push_async_callback(plane.stop)
        client = RemotingClient()
        stack.push_async_callback(client.close)
        rig = Rig(tmp_path, plane, name_server.address, home_as_in_the_image(tmp_path / "rocketmq"), client)
        for number in (1, 2):
            member = rig.start(number, await network.attach(str(number)))
            stack.callback(member.process.kill)
        yield rig


def home_as_in_the_image(home: Path) -> Path:
    """Return RocketMQ's folder with the jars of broker and Proxy together."""
    lib = home / "lib"
    lib.mkdir(parents=True)
    for jar in (install.rocketmq_home() / "lib").iterdir():
        (lib / jar.name).symlink_to(jar)
    install.add_proxy(lib, os.symlink)
    return home


@dataclass
class MasterService:
    """Passes connections on to the gRPC port of the present master's pod, while it is open."""

    rig: Rig
    address: str = ""
    is_open: bool = True
    connections: list[asyncio.StreamWriter] = field(default_factory=list)

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append(writer)
        try:
            if not self.is_open:
                return
            there_reader, there_writer = await asyncio.open_connection(self.rig.master().address.ip, GRPC_PORT)
            self.connections.append(there_writer)
            await asyncio.gather(copied(reader, there_writer), copied(there_reader, writer))
        except (OSError, KeyError):
            pass
        finally:
            writer.close()

    def close(self) -> None:
        """From now on no client can read its route."""
        self.is_open = False
        for one in self.connections:
            one.close()


@asynccontextmanager
async def master_service(rig: Rig) -> AsyncIterator[MasterService]:
    service = MasterService(rig)
    server = await asyncio.start_server(service.relay, "127.0.0.1", 0)
    service.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield service
    finally:
        service.close()
        server.close()


async def copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def grpc_client(rig: Rig, name: str, endpoint: str) -> AsyncIterator[GrpcClient]:
    client = GrpcClient(rig.folder_of(name), endpoint)
    try:
        yield client
    finally:
        client.kill()


async def produced(client: GrpcClient, first: int) -> list[str]:
    """Send a share of messages, each until it is acknowledged; return the refusals."""
    async with asyncio.timeout(CLIENT_SECONDS):
        answer = await client.ask("produce", first, SHARE)
    assert answer.get("sent") == SHARE, answer
    refusals: list[str] = answer["failed"]
    return refusals


async def received(client: GrpcClient, first: int, count: int) -> set[str]:
    async with asyncio.timeout(CLIENT_SECONDS):
        answer = await client.ask("consume", first, count, int(CLIENT_SECONDS) // 2)
    return set(answer["keys"])


async def make_topic_and_group(rig: Rig) -> None:
    topic = {"topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
    topic |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
    await rig.ask(rig.master(), RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=topic)
    body = json.dumps({"groupName": GROUP}).encode()
    await rig.ask(rig.master(), RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)


async def has_topic(rig: Rig, member: Member) -> bool:
    wish = request(RequestCode.GET_TOPIC_CONFIG, ext_fields={"topic": TOPIC})
    answer = await rig.client.invoke(f"{member.address.ip}:{BROKER_PORT}", wish, timeout_seconds=ANSWER_SECONDS)
    return answer.code == 0


async def check_routes(rig: Rig, *members: Member) -> None:
    """Each Proxy names the master's pod at its gRPC port: also to clients of the remoting protocol, which cannot use that one."""

    async def route_of(member: Member) -> Any:
        address = f"{member.address.ip}:{REMOTING_PORT}"
        wish = request(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": TOPIC, "acceptStandardJsonOnly": "true"}
        )
        answer = await rig.client.invoke(address, wish, timeout_seconds=ANSWER_SECONDS)
        return json.loads(answer.body or b"{}")

    master = f"{rig.master().address.ip}:{GRPC_PORT}"
    for member in members:

        async def named(member: Member = member) -> bool:
            brokers = (await route_of(member)).get("brokerDatas") or []
            return [one["brokerAddrs"].get("0") for one in brokers] == [master]

        await eventually(named, f"the route of member {member.number}")


async def test_the_proxy_in_the_masters_process_takes_messages_and_the_next_masters_after_it(rig: Rig) -> None:
    await eventually(rig.has_opened_in_order, f"every port\n{rig.logs()}")
    await eventually(lambda: in_sync(rig.plane, 2), f"two brokers in sync\n{rig.logs()}")
    check_memory(rig)
    page = await eventually(lambda: asyncio.to_thread(metrics_of, rig.master()), "the broker's metrics at the exporter")
    assert "rocketmq_proxy" not in page, "a Proxy in local mode adds nothing to it"
    await make_topic_and_group(rig)
    await check_a_running_broker_takes_another_value(rig)
    first, [second] = rig.master(), rig.others(rig.master())
    await check_routes(rig, first, second)
    # Before that its Proxy answers with the topic, and without what messages it takes.
    await eventually(lambda: has_topic(rig, second), "the topic at the slave")
    async with master_service(rig) as service, grpc_client(rig, "client", service.address) as client:
        assert await produced(client, 0) == []
        # A client that begins at the slave's Proxy is sent on to the master's.
        async with grpc_client(rig, "at-the-slave", f"{second.address.ip}:{GRPC_PORT}") as another:
            assert await produced(another, SHARE) == []
        assert len(await received(client, 0, 2 * SHARE)) == 2 * SHARE

        service.close()
        await rig.plane.switch_master(KEY, to_broker_id=rig.id_of(second))
        assert rig.master() is second
        # The client's route has the former master, and it cannot read another one.
        assert REFUSED_BY_A_SLAVE in (await client.ask("send", 2 * SHARE))["error"]
        service.is_open = True
        await produced(client, 2 * SHARE)
        await eventually(lambda: in_sync(rig.plane, 2), "the former master in sync")

        second.process.kill()
        await eventually(lambda: record_of(rig.plane).granted_master_id == rig.id_of(first), "the other one master")
        await check_routes(rig, first)
        async with grpc_client(rig, "new", service.address) as new:
            assert await produced(new, 3 * SHARE) == []
        await produced(client, 4 * SHARE)
        assert len(await received(client, 2 * SHARE, 3 * SHARE)) == 3 * SHARE
        await check_it_ends_in_time_with_its_clients_connected(rig, first)


async def check_it_ends_in_time_with_its_clients_connected(rig: Rig, member: Member) -> None:
    """The Proxy waits for its clients, and both of its shutdown hooks stop the broker: the store is closed all the same."""
    assert (rig.folder / str(member.number) / "STORE_DIR" / "abort").exists(), "it runs"
    member.process.signal(signal.SIGTERM)
    await asyncio.to_thread(member.process.process.wait, rig.group.spec.termination_grace_period_seconds)
    assert not (rig.folder / str(member.number) / "STORE_DIR" / "abort").exists(), member.process.tail()


def metrics_of(member: Member) -> str:
    """Return the page of the exporter; empty until it has the broker's metrics."""
    try:
        with urllib.request.urlopen(f"http://{member.address.ip}:5557/metrics", timeout=ANSWER_SECONDS) as answer:
            page = str(answer.read().decode())
    except OSError:
        return ""
    return page if "rocketmq_topic_number" in page else ""


def check_memory(rig: Rig) -> None:
    """As in test_java_memory.py: what is anonymous, and all the direct memory that may come, fits in the limit."""
    sizes = [word for word in java_arguments(rig.group.spec) if "MaxDirectMemorySize" in word]
    direct = int(sizes[0].rpartition("=")[2].removesuffix("m"))
    for member in rig.members.values():
        anonymous = mebibytes_of(member.process.pid, "RssAnon")
        assert anonymous + direct < LIMIT_MEBIBYTES, f"{anonymous} MiB, and {direct} MiB of direct memory may be added"


async def check_a_running_broker_takes_another_value(rig: Rig) -> None:
    """A Proxy's broker reads and writes the broker.conf of the command, and takes hot keys like one without a Proxy."""
    master = rig.master()
    body = encode_properties({"fileReservedTime": "47"})
    await rig.ask(master, RequestCode.UPDATE_BROKER_CONFIG, body=body)
    told = decode_properties((await rig.ask(master, RequestCode.GET_BROKER_CONFIG)).body or b"")
    assert told["fileReservedTime"] == "47"
    written = rig.folder / str(master.number) / "RUN_DIR" / names.CONFIG_FILE
    assert "fileReservedTime=47" in written.read_text(encoding="utf-8")
