"""A Java slave 5.5.0 with a page that lacks the last names under the master's new data version: only our plane makes it copy again.

A master reads the size of its table before it copies the table, and the data version after that: a topic made in between pushes
the last name out of the page, and the slave takes the page for all there is under the new version (seen in a run of our tests:
`rmq_sys_wheel_timer` was missing for ever, and a rolling update stood still). The race is not to be had at will, so here a
relay stands before the master and does to one page of each kind what the race does. Measured with a plane that
does not ask for it: both still missing after 90 s, which is seven rounds of a slave's copying (every 10 s, looked at every 3 s).
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.controller.peers.broker_calls import PASSING_NAME
from brokergroup_operator.observe.group_view import MetadataKind
from brokergroup_operator.observe.observer import Observer
from controller_core.settings import ControllerSettings
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.serialization import load_json
from rocketmq_remoting.server import RemotingServer
from tests.controller.conftest import snapshot_of
from tests.support.java_rig import HOST, KEY, JavaRig, address_of, eventually, in_sync, plane_beside
from tests.support.places import free_port
from tests.support.quiet_handler import QuietHandler
from tests.upstream import lab as upstream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from brokergroup_operator.controller.plane import ControllerPlane
    from brokergroup_operator.observe.group_view import MetadataDifference
    from brokergroup_operator.records.store import GroupKey
    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_remoting.connection import RemotingConnection
    from tests.real.parts.java import JavaProgram

pytestmark = [pytest.mark.real("java", "rocketmq"), pytest.mark.timeout(300)]

# The master's listening address; all others know only the relay's.
HIDDEN_HOST = "127.0.0.2"
LOST = "zz-lost"
TABLES: dict[int, str] = {
    RequestCode.GET_ALL_TOPIC_CONFIG: "topicConfigTable",
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: "subscriptionGroupTable",
}


class Relay(QuietHandler):
    """One port of the master. The first page of each kind that has the lost name comes without it."""

    def __init__(self, client: RemotingClient) -> None:
        self._client = client
        self._server = RemotingServer(self)
        self._behind = ""
        self.cut: list[int] = []
        self.asked: list[int] = []

    async def start(self, port: int) -> None:
        self._behind = f"{HIDDEN_HOST}:{port}"
        await self._server.start(HOST, port)

    async def stop(self) -> None:
        await self._server.stop(grace_seconds=0.0)

    async def handle(self, command: RemotingCommand, connection: RemotingConnection) -> RemotingCommand | None:
        self.asked.append(command.code)
        if command.is_oneway:
            await self._client.invoke_oneway(self._behind, command, timeout_seconds=10.0)
            return None
        answer = await self._client.invoke(self._behind, command, timeout_seconds=10.0)
        body = self._page(command, answer.body)
        return command.answer(answer.code, remark=answer.remark, ext_fields=answer.ext_fields, body=body)

    def _page(self, command: RemotingCommand, body: bytes | None) -> bytes | None:
        """Only a slave asks by pages; our plane and this test ask for everything."""
        table, fields = TABLES.get(command.code), command.ext_fields or {}
        if table is None or not {"maxTopicNum", "maxGroupNum"} & fields.keys() or command.code in self.cut:
            return body
        document = load_json(body or b"")
        if document[table].pop(LOST, None) is None:
            return body
        self.cut.append(command.code)
        return json.dumps(document).encode()


class Told(Observer):
    def __init__(self) -> None:
        self.copied_again: list[MetadataDifference] = []

    def metadata_copied_again(self, key: GroupKey, lacked: tuple[MetadataDifference, ...]) -> None:
        self.copied_again += lacked


@dataclass
class Lab(JavaRig):
    plane: ControllerPlane = field(kw_only=True)
    client: RemotingClient = field(kw_only=True)
    relays: list[Relay] = field(default_factory=list)

    async def start_master(self) -> None:
        port = free_port(HOST, neighbours=2)
        self.start_broker("master", controllers=self.plane.address, listenPort=port, bindAddress=HIDDEN_HOST)
        self.relays = [Relay(self.client) for _ in range(2)]
        for relay, one in zip(self.relays, (port, port - 2), strict=True):
            await relay.start(one)
        await eventually(lambda: in_sync(self.plane, 1), "a master")

    async def start_slave(self) -> None:
        slave = self.start_broker("slave", controllers=self.plane.address)
        await eventually(lambda: in_sync(self.plane, 2), "a slave in sync")
        await asyncio.to_thread(slave.wait_until_listening)

    async def ask(self, address: str, code: int, body: object = None, **fields: object) -> RemotingCommand:
        return await upstream.ask(self.client, address, code, body, **fields)

    async def names(self, address: str, code: int) -> set[str]:
        return set(load_json((await self.ask(address, code)).body or b"")[TABLES[code]])

    async def make_both(self, master: str) -> None:
        queues = {"readQueueNums": "4", "writeQueueNums": "4", "perm": "6", "topicSysFlag": "0", "order": "false"}
        topic = {"topic": LOST, "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG"} | queues
        assert (await self.ask(master, RequestCode.UPDATE_AND_CREATE_TOPIC, **topic)).code == 0
        group = {"groupName": LOST, "retryMaxTimes": 3}
        assert (await self.ask(master, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group)).code == 0


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
async def lab(tmp_path: Path, java_name_server: JavaProgram, told: Told) -> AsyncIterator[Lab]:
    client = RemotingClient()
    rules, quick = (
        ControllerSettings(min_in_sync_replicas=1),
        {"metadata_period_seconds": 2.0, "metadata_copy_seconds": 2.0},
    )
    async with plane_beside(java_name_server.address, rules, observer=told, plane=quick) as plane:
        lab = Lab(tmp_path, name_server=java_name_server, plane=plane, client=client)
        yield lab
        lab.stop()
        for relay in lab.relays:
            await relay.stop()
    await client.close()


async def test_a_slave_that_lost_a_page_is_made_to_copy_all_again(lab: Lab, told: Told) -> None:
    await lab.start_master()
    await lab.start_slave()
    master, slave = address_of(lab.plane, 1), address_of(lab.plane, 2)
    await lab.make_both(master)
    await eventually(lambda: {one for relay in lab.relays for one in relay.cut} == set(TABLES), "both pages to be cut")

    async def same() -> bool:
        return all([await lab.names(master, code) == await lab.names(slave, code) for code in TABLES])

    assert not await same()
    await eventually(same, "the slave to have all that the master has")
    kinds = {one.kind for one in told.copied_again if (one.broker_id, one.name) == (2, LOST)}
    assert kinds == {MetadataKind.TOPIC, MetadataKind.SUBSCRIPTION_GROUP}
    await eventually(lambda: not snapshot_of(lab.plane, KEY).metadata_diverged, "nothing to be missing")
    for code in TABLES:
        assert PASSING_NAME not in await lab.names(slave, code)
    route = await lab.ask(lab.name_server_address, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=PASSING_NAME)
    assert route.code == ResponseCode.TOPIC_NOT_EXIST
