"""A group under a (fake) Java controller: three brokers, a NameServer, and a migration's client."""

from __future__ import annotations

import contextlib
import re
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.migrate.cut_over import CutOverSettings
from brokergroup_operator.migrate.java import JavaCalls, read_controller
from brokergroup_operator.migrate.quiet_controller import QuietController
from rocketmq_remoting.client import RemotingClient
from tests.migrate.fake_java import FakeJavaController, Tables
from tests.migrate.running_broker import RunningBroker
from tests.support import virtual_time
from tests.support.fake_broker import CLUSTER, NAME, FakeGroup, eventually
from tests.support.fake_name_server import FakeNameServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from brokergroup_operator.migrate.java import Reading

pytest_asyncio_loop_factories = virtual_time.pytest_asyncio_loop_factories

EPOCH = 4
SET_EPOCH = 9
# As FakeBroker notes it.
ROLE_TAKEN = re.compile(r"\d+ (master|slave) \d+")


@dataclass
class House:
    """All running parts."""

    java: FakeJavaController
    group: FakeGroup
    brokers: list[RunningBroker]
    name_server: FakeNameServer
    calls: JavaCalls
    quiet: QuietController
    steps: list[str] = field(default_factory=list)
    java_port_kept: socket.socket = field(default_factory=socket.socket)

    async def stop_java(self) -> None:
        """Its port refuses from now on, and stays taken: on a freed one, a test beside this one could answer."""
        await self.java.stop()
        host, _, port = self.java.address.rpartition(":")
        self.java_port_kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.java_port_kept.bind((host, int(port)))

    @property
    def tables(self) -> Tables:
        return self.java.sets[NAME]

    def report(self, step: str, **facts: object) -> None:
        self.steps.append(step)
        self.facts = facts

    async def read(self) -> Reading:
        return await read_controller(
            self.calls, controller=self.java.address, name_servers=[self.name_server.address], settle_seconds=0.05
        )

    def know(self, java: FakeJavaController) -> None:
        """Give a Java controller the state that the brokers are in."""
        java.sets[NAME] = Tables(
            cluster=CLUSTER,
            next_id=4,
            replicas={one.broker_id: one.address for one in self.brokers},
            codes={one.broker_id: f"{one.address};1" for one in self.brokers},
            master=1,
            master_epoch=EPOCH,
            members=frozenset({1, 2, 3}),
            members_epoch=SET_EPOCH,
        )

    def nobody_changed_role(self) -> bool:
        return not [line for line in self.group.journal if ROLE_TAKEN.fullmatch(line)]


def cut_settings(own_address: str) -> CutOverSettings:
    """All brokers get the list of this one address, and each wait is short."""
    return CutOverSettings(
        own_address=own_address,
        controller_list=own_address,
        stop_deadline_seconds=10.0,
        list_deadline_seconds=8.0,
        refused_for_seconds=0.2,
        verify_deadline_seconds=0.5,
        settle_seconds=0.2,
    )


@pytest.fixture
async def fresh() -> AsyncIterator[FakeJavaController]:
    """A Java controller that knows nothing."""
    controller = FakeJavaController()
    await controller.start()
    yield controller
    await controller.stop()


@pytest.fixture
async def house() -> AsyncIterator[House]:
    """The group, settled."""
    async with a_house() as built:
        yield built


@contextlib.asynccontextmanager
async def a_house() -> AsyncIterator[House]:
    """The settled group for a test with its own event loop."""
    java = FakeJavaController()
    await java.start()
    quiet = QuietController()
    await quiet.start("127.0.0.1", 0)
    group = FakeGroup()
    brokers = [RunningBroker(group, broker_id, java.address) for broker_id in (1, 2, 3)]
    for one in brokers:
        one.believe(master=1, epoch=EPOCH, members={1, 2, 3}, set_epoch=SET_EPOCH)
        await one.start()
    name_server = FakeNameServer(group)
    await name_server.start()
    client = RemotingClient()
    built = House(java, group, brokers, name_server, JavaCalls(client, deadline_seconds=5.0), quiet)
    built.know(java)
    for one in brokers:
        one.run()
    await eventually(lambda: all(java.is_alive(NAME, one.broker_id) for one in brokers), what="all heard by Java")
    yield built
    await group.stop()
    await client.close()
    for stop in (java.stop, quiet.stop, name_server.stop):
        with contextlib.suppress(RuntimeError):
            await stop()
    built.java_port_kept.close()
