"""Several replicas in one process: three groups over three containers, kept by a controller plane of ours; Java's tools at one."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import signal
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from rocketmq_remoting.broker_protocol import AddBrokerRequestHeader, RemoveBrokerRequestHeader
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import RemotingCommand, request
from rocketmq_remoting.serialization import decode_properties
from rocketmq_remoting.signature import Credentials
from rocketmq_replica import broker_container
from rocketmq_replica.broker_container import BrokerContainer, Member, NoSuchBrokerError, run_container
from rocketmq_replica.configuration import (
    ContainerConfiguration,
    ReplicaConfiguration,
    load_configuration,
    parse_configuration,
)
from rocketmq_replica.log import disk
from tests.real.parts import install, java
from tests.real.parts.process import RealProcessError
from tests.replica.support import (
    Client,
    configuration_text,
    fresh_address,
    is_complete,
    numbered,
    record_of,
    start_process,
)
from tests.support.one_request import answer_to
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from brokergroup_operator.controller.plane import ControllerPlane
    from brokergroup_operator.demo.routes import RouteServer
    from controller_core.model import BrokerGroupRecord
    from tests.controller.conftest import StartPlane

GROUPS = ("orders", "payments", "stock")
ADMIN = Credentials(access_key="admin", secret_key="planted-secret-of-the-container")
SUCCESS = ResponseCode.SUCCESS
QUICK_KEYS = {"syncBrokerMetadataPeriod": 300, "minInSyncReplicas": 1}


@dataclass
class RunningContainer:
    """One container in this event loop, with a replica of each group, all at one address."""

    root: Path
    controller: str
    address: str = field(default_factory=fresh_address)
    admin: ContainerConfiguration | None = None
    keys: dict[str, object] = field(default_factory=dict)

    def text(self, group: str, *, port: int | None = None) -> str:
        number = GROUPS.index(group) if group in GROUPS else len(GROUPS)
        keys = QUICK_KEYS | {"brokerName": group, "listenPort": port or 10911 + 10 * number} | self.keys
        return configuration_text(self.root / group, self.controller, self.address, **keys)

    def start(self, groups: tuple[str, ...] = GROUPS) -> None:
        self.container = BrokerContainer([parse_configuration(self.text(group), {}) for group in groups])
        self.stop_event = asyncio.Event()
        self.task = asyncio.create_task(run_container(self.container, self.admin, stop=self.stop_event))

    async def stop(self) -> None:
        self.stop_event.set()
        await self.task

    def member(self, group: str) -> Member:
        return next(member for member in self.container.members if member.configuration.broker_name == group)

    def role(self, group: str) -> str:
        process = self.member(group).process
        return "" if process is None else process.broker.role.name

    def broker_id(self, group: str) -> int:
        process = self.member(group).process
        assert process is not None
        return process.broker.broker_id


@dataclass
class World:
    """A controller plane and three containers."""

    plane: ControllerPlane
    containers: list[RunningContainer]

    def record(self, group: str) -> BrokerGroupRecord:
        record = record_of(self.plane, group)
        assert record is not None
        return record

    def complete(self, group: str, *, size: int = 3) -> bool:
        return is_complete(self.plane, size, group)

    def master(self, group: str) -> str:
        record = self.record(group)
        address = record.address_of(record.master_broker_id)
        assert address is not None
        return address

    def container_of_master(self, group: str) -> RunningContainer:
        host = self.master(group).partition(":")[0]
        return next(container for container in self.containers if container.address == host)

    def connections_from(self, container: RunningContainer) -> int:
        return sum(each.peer_host == container.address for each in self.plane._server.connections)


@pytest.fixture
async def world(start_plane: StartPlane, tmp_path: Path) -> AsyncIterator[World]:
    plane = await start_plane(heartbeat_timeout_seconds=5.0)
    containers = [RunningContainer(tmp_path / f"container-{number}", plane.address) for number in (1, 2, 3)]
    yield World(plane, containers)
    for container in containers:
        if hasattr(container, "task") and not container.task.done():
            await container.stop()


async def complete_world(world: World) -> None:
    """Each container is master of one group: it is the first of that group."""
    pairs = list(zip(world.containers, GROUPS, strict=True))
    for container, group in pairs:
        container.start((group,))
    await eventually(lambda: all(container.role(group) == "MASTER" for container, group in pairs))
    for container, group in pairs:
        for other in (one for one in GROUPS if one != group):
            await container.container.add(parse_configuration(container.text(other), {}))
    await eventually(lambda: all(world.complete(group) for group in GROUPS))


async def test_three_groups_in_containers_fail_over_each_for_itself(world: World, client: Client) -> None:
    await complete_world(world)
    first = world.containers[0]
    assert [world.container_of_master(group) for group in GROUPS] == world.containers
    await eventually(lambda: [world.connections_from(container) for container in world.containers] == [1, 1, 1])
    for number in range(20):
        for group in GROUPS:
            await client.store(world.master(group), b"%d" % number)
    epochs = {group: world.record(group).master_epoch for group in GROUPS}
    await first.stop()
    await eventually(lambda: world.complete("orders", size=2) and world.container_of_master("orders") is not first)
    await eventually(lambda: all(world.complete(group, size=2) for group in GROUPS))
    for group in ("payments", "stock"):
        assert world.record(group).master_epoch == epochs[group], "no election in a group whose master runs"
    await eventually(lambda: all(world.container_of_master(group).role(group) == "MASTER" for group in GROUPS))
    for group in GROUPS:
        assert await client.bodies(world.master(group)) == numbered(20)
        await client.store(world.master(group), b"after")


async def test_a_replica_whose_fsync_fails_dies_alone_and_comes_back(
    world: World, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_container, "FIRST_PAUSE_SECONDS", 0.2)
    await complete_world(world)
    container = world.containers[0]
    member = container.member("orders")
    identity = container.broker_id("orders")
    for number in range(5):
        await client.store(world.master("orders"), b"%d" % number)
    assert member.process is not None
    log = os.fstat(member.process.store.log._files[-1].descriptor)
    failing = True
    real_sync = disk.sync_data

    def sync_data(descriptor: int) -> None:
        status = os.fstat(descriptor)
        if failing and (status.st_dev, status.st_ino) == (log.st_dev, log.st_ino):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real_sync(descriptor)

    monkeypatch.setattr(disk, "sync_data", sync_data)
    others = {group: container.member(group).process for group in ("payments", "stock")}
    assert (await client.send(world.master("orders"), b"5")).code == SUCCESS, "async flush: the replicas hold it"
    await eventually(lambda: member.supervision.failures > 0)
    failing = False
    assert "Input/output error" in member.problem
    assert {group: container.member(group).process for group in others} == others
    assert container.role("stock") == "SLAVE"
    await eventually(lambda: member.listens and container.role("orders") in ("MASTER", "SLAVE"))
    assert container.broker_id("orders") == identity
    await eventually(lambda: world.complete("orders"))
    await eventually(lambda: world.container_of_master("orders").role("orders") == "MASTER")
    assert await client.bodies(world.master("orders")) == numbered(6)


async def test_a_store_that_a_person_must_repair_is_tried_again_and_keeps_the_others_running(
    world: World, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_container, "FIRST_PAUSE_SECONDS", 0.05)
    container = world.containers[0]
    damaged = container.root / "payments" / "brokerIdentity"
    damaged.parent.mkdir(parents=True)
    damaged.write_text("")
    container.start()
    await eventually(lambda: container.role("orders") == "MASTER" and container.role("stock") == "MASTER")
    member = container.member("payments")
    await eventually(lambda: member.supervision.failures >= 2)
    assert "do not delete it" in member.problem
    await client.store(world.master("orders"), b"taken")
    damaged.unlink()
    await eventually(lambda: container.role("payments") == "MASTER")


async def test_a_killed_container_is_replaced_by_others_at_once(world: World, client: Client) -> None:
    """A real process with two groups: its one connection closes, and both groups have new masters; then it comes back."""
    inside = world.containers[0]
    groups = ("orders", "payments")
    inside.root.mkdir()
    for group in groups:
        (inside.root / f"{group}.conf").write_text(inside.text(group))
    process = await _start_process(inside, groups)
    await eventually(lambda: all(world.complete(group, size=1) for group in groups), within_seconds=30)
    outside = world.containers[1]
    outside.start(groups)
    await eventually(lambda: all(world.complete(group, size=2) for group in groups), within_seconds=30)
    for group in groups:
        assert world.container_of_master(group) is inside
        await client.store(world.master(group), b"kept")
    process.kill()
    await process.wait()
    await eventually(lambda: all(world.container_of_master(group) is outside for group in groups), within_seconds=30)
    await eventually(lambda: all(outside.role(group) == "MASTER" for group in groups))
    for group in groups:
        assert await client.bodies(world.master(group)) == [b"kept"]
    ids = {group: world.record(group).replicas.keys() for group in groups}
    process = await _start_process(inside, groups)
    await eventually(lambda: all(world.complete(group, size=2) for group in groups), within_seconds=30)
    for group in groups:
        assert world.record(group).replicas.keys() == ids[group]
    process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), 30) == 0
    log = (inside.root / "log").read_text()
    assert "INFO orders rocketmq_replica" in log
    assert "INFO payments rocketmq_replica" in log


async def _start_process(container: RunningContainer, groups: tuple[str, ...]) -> asyncio.subprocess.Process:
    files = [str(container.root / f"{group}.conf") for group in groups]
    return await start_process(container.root / "log", "--container", *files)


# ---------------------------------------------------------------------------------------------------- the container's port


def adding(path: Path) -> RemotingCommand:
    return request(RequestCode.ADD_BROKER, ext_fields=AddBrokerRequestHeader(config_path=str(path)).encode())


def removing(group: str) -> RemotingCommand:
    header = RemoveBrokerRequestHeader(broker_cluster_name="DefaultCluster", broker_name=group, broker_id=1)
    return request(RequestCode.REMOVE_BROKER, ext_fields=header.encode())


async def with_orders(world: World, tmp_path: Path, key: Credentials | None) -> RunningContainer:
    """A container with one broker and a port of its own, and the configuration of a second broker beside it."""
    container = world.containers[0]
    container.admin = ContainerConfiguration(bind_address=container.address, credentials=key)
    container.start(("orders",))
    await eventually(lambda: container.role("orders") == "MASTER")
    (tmp_path / "payments.conf").write_text(container.text("payments"))
    return container


@pytest.fixture
async def administered(world: World, tmp_path: Path) -> RunningContainer:
    return await with_orders(world, tmp_path, ADMIN)


async def ask(container: RunningContainer, command: RemotingCommand, signed_as: Credentials | None) -> RemotingCommand:
    return await answer_to(f"{container.address}:10811", command, signed_as=signed_as)


async def test_brokers_are_added_listed_and_removed(administered: RunningContainer, tmp_path: Path) -> None:
    add = adding(tmp_path / "payments.conf")
    assert (await ask(administered, add, ADMIN)).code == SUCCESS
    assert administered.member("payments").listens, "0 means that it listens"
    await eventually(lambda: administered.role("payments") == "MASTER")
    again = await ask(administered, add, ADMIN)
    assert again.code == ResponseCode.SYSTEM_ERROR
    assert "of this container has it already" in (again.remark or "")
    listed = decode_properties((await ask(administered, request(RequestCode.GET_BROKER_CONFIG), ADMIN)).body)
    assert listed["listenPort"] == "10811"
    assert ADMIN.secret_key not in str(listed)
    assert listed[f"broker.DefaultCluster.payments.{administered.address}:10921"] == "SYNC_MASTER brokerId=1 failures=0"
    assert (await ask(administered, removing("payments"), ADMIN)).code == SUCCESS
    assert [member.configuration.broker_name for member in administered.container.members] == ["orders"]
    assert (administered.root / "payments" / "brokerIdentity").exists(), "its data stays"
    assert (await ask(administered, removing("payments"), ADMIN)).code == ResponseCode.BROKER_NOT_EXIST
    assert administered.role("orders") == "MASTER"
    assert (await ask(administered, add, ADMIN)).code == SUCCESS
    await eventually(lambda: administered.role("payments") == "MASTER")
    assert administered.broker_id("payments") == 1


WRONG = Credentials(access_key="admin", secret_key="another")


@pytest.mark.parametrize(("key", "signed_as"), [(ADMIN, None), (ADMIN, WRONG), (None, None), (None, ADMIN)])
async def test_only_signed_requests_change_or_read_a_container(
    world: World, tmp_path: Path, key: Credentials | None, signed_as: Credentials | None
) -> None:
    """A container without a key answers every read and refuses every change."""
    container = await with_orders(world, tmp_path, key)
    read = request(RequestCode.GET_BROKER_CONFIG)
    for command in (adding(tmp_path / "payments.conf"), removing("orders"), *([read] if key else [])):
        answer = await ask(container, command, signed_as)
        assert answer.code == ResponseCode.NO_PERMISSION
        assert not answer.body
    assert [member.configuration.broker_name for member in container.container.members] == ["orders"]
    assert (await ask(container, read, key)).code == SUCCESS
    if key is not None:
        other = await ask(container, request(RequestCode.UPDATE_BROKER_CONFIG, body=b"listenPort=1"), key)
        assert other.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


@pytest.mark.parametrize(
    ("content", "remark"),
    [
        ("brokerName=payments\n", r"missing, expected in every broker\.conf"),
        ("listenPort=abc\n", "listenPort=abc: expected a whole number"),
        (None, "cannot be read"),
        ("a pipe", "cannot be read: expected a file"),  # reading it would stop every broker of the container for ever
        ("the port of the container", "DefaultCluster#payments: .*address already in use"),
    ],
)
async def test_a_broker_that_cannot_start_is_not_kept(
    administered: RunningContainer, tmp_path: Path, content: str | None, remark: str
) -> None:
    path = tmp_path / "broken.conf"
    if content == "a pipe":
        os.mkfifo(path)
    elif content == "the port of the container":
        path.write_text(administered.text("payments", port=10811))
    elif content is not None:
        path.write_text(content)
    answer = await ask(administered, adding(path), ADMIN)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert re.search(remark, answer.remark or "")
    assert len(administered.container.members) == 1
    with pytest.raises(NoSuchBrokerError, match="0 brokers of this container"):
        await administered.container.remove("DefaultCluster", "payments", None)


async def test_the_event_loop_reads_no_file_that_a_caller_names(
    administered: RunningContainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[threading.Thread] = []

    def load(path: Path, environment: Mapping[str, str]) -> ReplicaConfiguration:
        readers.append(threading.current_thread())
        return load_configuration(path, environment)

    monkeypatch.setattr(broker_container, "load_configuration", load)
    add = adding(tmp_path / "payments.conf")
    assert (await ask(administered, add, ADMIN)).code == SUCCESS
    [reader] = readers
    assert reader is not threading.main_thread()


def test_pauses_double_to_a_minute_and_begin_anew_after_a_good_run() -> None:
    watched, pauses = broker_container.Supervision(), []
    for now_seconds in range(0, 800, 100):
        watched.started(now_seconds=now_seconds)
        pauses.append(watched.failed(now_seconds=now_seconds + 1))
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    watched.started(now_seconds=1000.0)
    assert watched.failed(now_seconds=1000.0 + broker_container.FORGIVEN_AFTER_SECONDS) == 1
    assert watched.failures == 9


MESSAGES = 200


@pytest.mark.real("java", "rocketmq")
@pytest.mark.timeout(300)
async def test_mqadmin_adds_and_removes_brokers_and_a_java_producer_finds_them(
    start_plane: StartPlane, routes: RouteServer, client: Client, tmp_path: Path
) -> None:
    plane = await start_plane(heartbeat_timeout_seconds=5.0)
    address = fresh_address()

    def text(name: str, port: int) -> str:
        keys = {"brokerName": name, "listenPort": port, "namesrvAddr": routes.address}
        return configuration_text(tmp_path / name, plane.address, address, **keys)

    container = BrokerContainer([parse_configuration(text("broker-a", 10911), {})])
    stop = asyncio.Event()
    configuration = ContainerConfiguration(bind_address=address, credentials=ADMIN)
    running = asyncio.create_task(run_container(container, configuration, stop=stop))
    admin = tmp_path / "mqadmin"
    (admin / "conf").mkdir(parents=True)
    (admin / "conf" / "tools.yml").write_text(f"accessKey: {ADMIN.access_key}\nsecretKey: {ADMIN.secret_key}\n")
    (tmp_path / "b.conf").write_text(text("broker-b", 10921))

    async def mqadmin(*arguments: str, folder: Path = admin) -> str:
        return await asyncio.to_thread(java.mqadmin, folder, *arguments, name_server_address=routes.address)

    async def change(*arguments: str, said: str, done_before: str) -> None:
        """Asked again when the answer came too late for mqadmin, what was done then is refused."""
        try:
            assert said in await mqadmin(*arguments)
        except RealProcessError as error:
            assert done_before in str(error), error  # noqa: PT017 - either is right

    try:
        port = f"{address}:10811"
        with pytest.raises(RealProcessError, match="CODE: 16"):
            await mqadmin("addBroker", "-c", port, "-b", str(tmp_path / "b.conf"), folder=tmp_path / "without-a-key")
        await change(
            *("addBroker", "-c", port, "-b", str(tmp_path / "b.conf")),
            said=f"add broker to {port} success",
            done_before="broker-b of this container has it already",
        )
        await eventually(lambda: routes.table.members(("DefaultCluster", "broker-b")).keys() == {0})
        await eventually(lambda: routes.table.members(("DefaultCluster", "broker-a")).keys() == {0})
        listed = await mqadmin("clusterList")
        for name, broker_port in (("broker-a", 10911), ("broker-b", 10921)):
            assert [name, "0", f"{address}:{broker_port}"] in [line.split()[1:4] for line in listed.splitlines()]
        # Made by the first send, the topic would be at one broker only, and a producer that asks for the route then stays there.
        made = await mqadmin("updateTopic", "-c", "DefaultCluster", "-t", "Demo", "-r", "4", "-w", "4")
        for broker_port in (10911, 10921):
            assert f"create topic to {address}:{broker_port} success" in made
        await eventually(lambda: writable_queues(routes) == {"broker-a": 4, "broker-b": 4})
        acknowledged = await produced(routes.address)
        assert {each["broker"] for each in acknowledged} == {"broker-a", "broker-b"}
        await check_all_are_there(client, acknowledged, address)
        await change(
            *("removeBroker", "-c", port, "-b", "DefaultCluster:broker-b:1"),
            said=f"remove broker from {port} success",
            done_before="DefaultCluster#broker-b#1: 0 brokers of this container",
        )
        await eventually(lambda: not routes.table.members(("DefaultCluster", "broker-b")))
    finally:
        stop.set()
        await running


def writable_queues(routes: RouteServer) -> dict[str, int]:
    """By the name of the broker, as a producer's next question about the topic is answered."""
    route = routes.table.route("Demo")
    return {} if route is None else {each.broker_name: each.write_queue_nums for each in route.queue_datas}


async def produced(name_server: str) -> list[dict[str, object]]:
    """What Java's producer says was acknowledged."""
    command = [
        *("java", "-Xms128m", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", java.QUIET),
        *("-cp", str(install.rocketmq_home() / "lib" / "*"), str(java.DEMO_JAVA / "NumberedProducer.java")),
        *("--name-server", name_server, "--topic", "Demo", "--messages", str(MESSAGES), "--send-timeout-ms", "10000"),
    ]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(), 120)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    events = [json.loads(line) for line in output.decode().splitlines()]
    acknowledged = [event for event in events if event["event"] == "ack"]
    assert len(acknowledged) == MESSAGES, errors.decode()
    return acknowledged


async def check_all_are_there(client: Client, acknowledged: list[dict[str, object]], address: str) -> None:
    for name, port in (("broker-a", 10911), ("broker-b", 10921)):
        for queue_id in range(4):
            of_queue = [one for one in acknowledged if (one["broker"], one["queue"]) == (name, queue_id)]
            if of_queue:
                found = await client.pull_all(f"{address}:{port}", topic="Demo", queue_id=queue_id)
                assert [message.queue_offset for message in found] == sorted(
                    int(str(one["offset"])) for one in of_queue
                )
