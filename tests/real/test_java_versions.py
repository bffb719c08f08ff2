"""The tables of versions (docs/reference/versions.md), run: NameServers and Java brokers of several releases at our controller.

A cell that runs: two brokers register, one is elected, sends are acknowledged and read, the master dies by SIGKILL, the other
leads, and no acknowledged message is missing. A cell that can't run shows why: what the broker asks, and what it is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from brokergroup_operator.api import versions
from brokergroup_operator.demo.client import numbered_message, read_keys
from brokergroup_operator.migrate.java import JavaCalls, MigrationCallError
from brokergroup_operator.reconcile.clusters.parts import ACL_CONFIG
from controller_core.settings import ControllerSettings
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import ResponseCode
from rocketmq_remoting.errors import RemotingError
from tests.real.parts import install, java
from tests.real.parts.process import start
from tests.support.java_rig import HOST, KEY, JavaRig, address_of, eventually, in_sync, plane_beside, record_of
from tests.support.places import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from brokergroup_operator.controller.plane import ControllerPlane
    from rocketmq_remoting.command import RemotingCommand
    from tests.real.parts.java import JavaProgram

T = TypeVar("T")
PARTS = ("java", "rocketmq", "older-rocketmq", "table-rocketmq")
pytestmark = [pytest.mark.real(*PARTS), pytest.mark.timeout(600)]

NAME_SERVERS = ("5.0.0", "5.1.4", "5.3.3", "5.5.0")
BROKERS = ("5.1.4", "5.3.3", "5.5.0")
# By day the corners: the oldest and the newest of each.
CORNERS = {("5.0.0", "5.1.4"), ("5.0.0", "5.5.0"), ("5.5.0", "5.1.4"), ("5.5.0", "5.5.0")}
WITHOUT_IDS = ("5.0.0", "5.1.0")
# What the controller of 5.0 answers to the request for the next broker id (1012).
REFUSED_ID = "request type 1012 not supported"
TOPIC, QUEUES, SENDS = "versions", 4, 20
# As the operator renders them.
EVERY_ONE = {"allAckInSyncStateSet": "true", "enableSplitMetadata": "false"}
ALONE: dict[str, str | int] = {"enableControllerMode": "false", "brokerId": 0, "brokerRole": "ASYNC_MASTER"}
# Releases up to 5.1 are made for Java 8, whose classes they unmap files with: their own images have it.
OF_JAVA_8 = ("--add-exports=java.base/sun.nio.ch=ALL-UNNAMED", "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED")
# Releases before 5.1 look for this file in their own folder and end without it.
LOGGING = """<configuration><appender name="console" class="ch.qos.logback.core.ConsoleAppender"><encoder>
<pattern>%d %p %c - %m%n</pattern></encoder></appender><root level="INFO"><appender-ref ref="console"/></root></configuration>
"""


def with_logging(folder: Path) -> Path:
    """Return the folder of a program, which releases of any age can start in."""
    (folder / "conf").mkdir(parents=True, exist_ok=True)
    for program in ("broker", "namesrv", "controller"):
        (folder / "conf" / f"logback_{program}.xml").write_text(LOGGING, encoding="utf-8")
    return folder


@dataclass
class Cell(JavaRig):
    """A NameServer of one release, brokers of others, and every key that was acknowledged."""

    client: RemotingClient = field(kw_only=True)
    acknowledged: set[str] = field(default_factory=set)

    async def name_server_of(self, version: str) -> None:
        """Start the NameServer; return when it listens."""
        self.name_server = java.start_name_server(with_logging(self.folder / "namesrv"), version=version)
        self.programs["namesrv"] = self.name_server
        await asyncio.to_thread(self.name_server.wait_until_listening)

    def broker_of(self, version: str, name: str, controllers: str, **extra: Any) -> JavaProgram:
        """Start a broker; one of that name that ran before leaves its store to this one."""
        with_logging(self.folder / name)
        return self.start_broker(name, controllers=controllers, version=version, **(EVERY_ONE | extra))

    async def answer(self, ask: Callable[[JavaCalls], Awaitable[T]]) -> T:
        """Return the answer to a question about brokers; a busy machine may need more than one try."""
        answers: list[T] = []

        async def is_answered() -> bool:
            with contextlib.suppress(MigrationCallError):
                answers.append(await ask(JavaCalls(self.client)))
            return bool(answers)

        await eventually(is_answered, f"an answer\n{self.logs()}")
        return answers[0]

    async def listed(self) -> dict[int, str]:
        """Return the group's brokers as the NameServer lists them: 0 is the master."""
        table = (await self.answer(lambda calls: calls.clusters(self.name_server_address))).broker_addr_table or {}
        found = table.get(KEY.name)
        return {} if found is None else {int(number): address for number, address in (found.broker_addrs or {}).items()}

    async def check_version(self, address: str, version: str) -> None:
        """The broker at the address says that it is this version."""
        assert await self.answer(lambda calls: calls.version(address)) == f"V{version.replace('.', '_')}"

    async def answer_to_send(self, address: str) -> RemotingCommand:
        """Return the answer to an unsigned send, once the broker answers."""
        message = numbered_message("unsigned", broker_name=KEY.name, topic=TOPIC, queue_id=0, queues=QUEUES)
        answers: list[RemotingCommand] = []

        async def is_answered() -> bool:
            with contextlib.suppress(RemotingError):
                answers.append(await self.client.invoke(address, message, timeout_seconds=10))
            return bool(answers)

        await eventually(is_answered, f"an answer to a send\n{self.logs()}")
        return answers[0]

    async def send(self, address: str, phase: str) -> None:
        """Have some messages acknowledged by the master at the address, one after another."""
        for number in range(SENDS):
            # A key ends at the first dot.
            key = f"{phase.replace('.', '_')}-{number:03d}"

            async def is_acknowledged(key: str = key, queue: int = number % QUEUES) -> bool:
                message = numbered_message(key, broker_name=KEY.name, topic=TOPIC, queue_id=queue, queues=QUEUES)
                try:
                    answer = await self.client.invoke(address, message, timeout_seconds=10)
                except RemotingError:
                    return False
                return answer.code == ResponseCode.SUCCESS

            await eventually(is_acknowledged, f"{key} acknowledged by {address}\n{self.logs()}")
            self.acknowledged.add(key)

    async def check_nothing_is_lost(self, address: str) -> None:
        """Every acknowledged message is in the log of the broker at the address."""

        missing = self.acknowledged

        async def is_all_there() -> bool:
            nonlocal missing
            missing = self.acknowledged - await read_keys(address, TOPIC, QUEUES)
            return not missing

        try:
            await eventually(is_all_there, f"all of {len(self.acknowledged)} messages at {address}", within_seconds=60)
        except AssertionError as error:
            error.add_note(f"missing: {sorted(missing)}")
            raise


@pytest.fixture
async def cell(tmp_path: Path) -> AsyncIterator[Cell]:
    made = Cell(tmp_path, flags=OF_JAVA_8, client=RemotingClient())
    yield made
    made.stop()
    await made.client.close()


def master(plane: ControllerPlane) -> str:
    """Return the address of the master of the record."""
    return address_of(plane, record_of(plane).granted_master_id or 0)


async def until_led_by_another(cell: Cell, plane: ControllerPlane) -> str:
    """Kill the master; return its name once another leads and the NameServer names that one as master."""
    before = record_of(plane)
    dead = cell.kill_at(master(plane))

    async def is_replaced() -> bool:
        record = record_of(plane)
        if record.granted_master_id is None or record.master_epoch <= before.master_epoch:
            return False
        return in_sync(plane, 1) and (await cell.listed()).get(0) == master(plane)

    await eventually(is_replaced, f"another master than {dead}\n{cell.logs()}")
    return dead


def cells() -> list[Any]:
    """Return every pair of a NameServer and a broker; those that are no corner run by night."""
    pairs = [(server, broker) for server in NAME_SERVERS for broker in BROKERS]
    # By day: the corners.
    return [pytest.param(*pair, marks=() if pair in CORNERS else pytest.mark.nightly) for pair in pairs]


@pytest.mark.parametrize(("name_server", "broker"), cells())
async def test_brokers_from_5_1_4_on_serve_and_fail_over_at_any_name_server(
    cell: Cell, name_server: str, broker: str
) -> None:
    await cell.name_server_of(name_server)
    async with plane_beside(cell.name_server_address, ControllerSettings()) as plane:
        for name in ("one", "two"):
            cell.broker_of(broker, name, plane.address)
        await eventually(lambda: in_sync(plane, 2), f"two brokers {broker} in sync\n{cell.logs()}")
        assert set(record_of(plane).replicas) == {1, 2}
        await cell.check_version(master(plane), broker)
        await cell.send(master(plane), "first")
        await until_led_by_another(cell, plane)
        await cell.send(master(plane), "second")
        await cell.check_nothing_is_lost(master(plane))


@pytest.mark.parametrize("name_server", ["5.0.0", "5.5.0"])
@pytest.mark.parametrize("broker", WITHOUT_IDS)
async def test_a_broker_without_persistent_ids_gets_no_role_and_is_answered_why(
    cell: Cell, name_server: str, broker: str
) -> None:
    """The cell 'old broker, new controller': the broker does not come online; it asks again and again, and logs our answer."""
    await cell.name_server_of(name_server)
    async with plane_beside(cell.name_server_address, ControllerSettings()) as plane:
        cell.broker_of(broker, "one", plane.address)
        await eventually(lambda: "brokers before 5.1.1" in cell.log_of("one"), f"the reason in its log\n{cell.logs()}")
        snapshot = plane.snapshot(KEY)
        assert snapshot is None or snapshot.record is None
        assert await cell.listed() == {}


@pytest.mark.parametrize("name_server", ["5.0.0", "5.5.0"])
async def test_a_broker_in_controller_mode_is_not_online_without_a_controller(cell: Cell, name_server: str) -> None:
    """The cells 'new broker in controller mode' of columns without a controller: it asks, and no NameServer lists it."""
    asked = 0

    async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        writer.close()

    dead = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with dead:
        host, port = dead.sockets[0].getsockname()
        await cell.name_server_of(name_server)
        broker = cell.broker_of("5.5.0", "one", f"{host}:{port}")
        await eventually(lambda: asked > 5, f"the broker to ask six times\n{cell.logs()}")
        assert broker.process.process.poll() is None
        assert await cell.listed() == {}


@pytest.mark.parametrize("name_server", ["5.0.0", "5.5.0"])
@pytest.mark.parametrize("broker", ["5.0.0", "5.5.0"])
async def test_a_broker_outside_controller_mode_serves_and_is_none_of_the_controllers(
    cell: Cell, name_server: str, broker: str
) -> None:
    """The rows 'old broker' and 'new broker, controller mode off': it runs and does not switch, whatever the controller."""
    await cell.name_server_of(name_server)
    async with plane_beside(cell.name_server_address, ControllerSettings()) as plane:
        program = cell.broker_of(broker, "one", plane.address, **ALONE)

        async def is_listed() -> bool:
            return await cell.listed() == {0: program.address}

        await eventually(is_listed, f"the broker at the NameServer\n{cell.logs()}")
        await cell.send(program.address, "first")
        await cell.check_nothing_is_lost(program.address)
        snapshot = plane.snapshot(KEY)
        assert snapshot is None or snapshot.record is None


async def test_a_step_back_below_5_3_0_lets_every_client_in(cell: Cell) -> None:
    """Why the operator refuses it with authenticationEnabled: on the disk of a broker that checks users, 5.1.4 checks none."""
    checks = {
        **ALONE,
        **ACL_CONFIG,
        "innerClientAuthenticationCredentials": '{"accessKey":"own","secretKey":"12345678"}',
    }
    assert versions.why_no_downgrade("5.5.0", "5.1.4", ACL_CONFIG)
    await cell.name_server_of("5.5.0")
    after = cell.broker_of("5.5.0", "one", java.NO_NAME_SERVER, **checks)
    await asyncio.to_thread(after.wait_until_listening)
    refused = await cell.answer_to_send(after.address)
    assert refused.code == ResponseCode.NO_PERMISSION, refused.remark
    after.process.kill()
    before = cell.broker_of("5.1.4", "one", java.NO_NAME_SERVER, **checks)
    await asyncio.to_thread(before.wait_until_listening)
    await cell.send(before.address, "unsigned")


def controller_of_5_0(rig: JavaRig, version: str = "5.0.0") -> JavaProgram:
    """Start Java's controller of 5.0.0 (or 5.1.0), alone; return when it listens."""
    folder, port = with_logging(rig.folder / "controller"), free_port(HOST)
    properties: dict[str, str | int] = {
        "controllerDLegerGroup": "tests",
        "controllerDLegerPeers": f"n0-{HOST}:{port}",
        "controllerDLegerSelfId": "n0",
        "controllerStorePath": str(folder / "store"),
        "mappedFileSize": 16777216,
    }
    config = java.write_properties(folder / "controller.conf", properties)
    command = java.java_command("controller", folder, home=install.rocketmq_home(version), flags=OF_JAVA_8)
    process = start("controller", [*command, "-c", str(config)], log=folder / "controller.log")
    rig.programs["controller"] = java.JavaProgram(process, HOST, port)
    return rig.programs["controller"].wait_until_listening()


async def test_brokers_of_5_0_fail_over_at_the_controller_of_5_0(cell: Cell) -> None:
    """The cell 'old broker, old controller', which runs as ever. The master is frozen: at the end of a connection the controller
    of 5.0.0 may take the last heartbeat of a dead master for a sign of life, and elects no other broker, then or later.
    """
    await cell.name_server_of("5.0.0")
    controller = await asyncio.to_thread(controller_of_5_0, cell)
    for name in ("one", "two"):
        cell.broker_of("5.0.0", name, controller.address)

    async def are_listed() -> bool:
        return len(await cell.listed()) == 2 and 0 in await cell.listed()

    await eventually(are_listed, f"both brokers\n{cell.logs()}")
    first = (await cell.listed())[0]
    await cell.send(first, "first")
    cell.programs[cell.name_at(first)].process.process.send_signal(signal.SIGSTOP)

    async def is_replaced() -> bool:
        return (await cell.listed()).get(0) not in (None, first)

    await eventually(is_replaced, f"another master\n{cell.logs()}")
    await cell.send((await cell.listed())[0], "second")
    await cell.check_nothing_is_lost((await cell.listed())[0])


async def test_a_later_broker_is_not_online_at_the_controller_of_5_0(cell: Cell) -> None:
    """The cell 'new broker, old controller'."""
    await cell.name_server_of("5.0.0")
    controller = await asyncio.to_thread(controller_of_5_0, cell)
    broker = cell.broker_of("5.1.4", "one", controller.address)
    await eventually(lambda: cell.log_of("one").count(REFUSED_ID) > 2, f"three refusals\n{cell.log_of('one')[-3000:]}")
    assert broker.process.process.poll() is None
    assert await cell.listed() == {}


async def until_replaced(cell: Cell, plane: ControllerPlane, broker_id: int, version: str) -> None:
    """Stop this slave, and start it as another version on the same disk; return when it is in sync."""
    name = cell.kill_at(address_of(plane, broker_id))
    await eventually(lambda: in_sync(plane, 1), f"{name} out of the set")
    cell.broker_of(version, name, plane.address)
    await eventually(lambda: in_sync(plane, 2), f"{name} back as {version}\n{cell.logs()}")


async def rolled(cell: Cell, plane: ControllerPlane, version: str) -> None:
    """Start each broker again as another version, as the operator does: the slave, and the master after a switchover."""
    first = record_of(plane).granted_master_id or 0
    slave = next(iter(record_of(plane).sync_state_set - {first}))
    await until_replaced(cell, plane, slave, version)
    await cell.send(master(plane), f"before-{version}")
    await plane.switch_master(KEY, to_broker_id=slave)
    await eventually(lambda: in_sync(plane, 2), f"both in sync under {version}\n{cell.logs()}")
    await cell.check_nothing_is_lost(master(plane))
    await cell.send(master(plane), f"under-{version}")
    await until_replaced(cell, plane, first, version)
    for broker_id in (first, slave):
        await cell.check_version(address_of(plane, broker_id), version)


@pytest.mark.parametrize("there_and_back", [("5.1.4", "5.5.0", "5.1.4"), ("5.3.3", "5.5.0", "5.3.3")], ids="-".join)
async def test_a_group_is_rolled_to_5_5_0_and_back(cell: Cell, there_and_back: tuple[str, str, str]) -> None:
    first, *others = there_and_back
    await cell.name_server_of("5.5.0")
    async with plane_beside(cell.name_server_address, ControllerSettings()) as plane:
        for name in ("one", "two"):
            cell.broker_of(first, name, plane.address)
        await eventually(lambda: in_sync(plane, 2), f"two brokers {first} in sync\n{cell.logs()}")
        await cell.send(master(plane), "first")
        for version in others:
            await rolled(cell, plane, version)
        await until_led_by_another(cell, plane)
        await cell.send(master(plane), "last")
        await cell.check_nothing_is_lost(master(plane))
        assert set(record_of(plane).replicas) == {1, 2}
