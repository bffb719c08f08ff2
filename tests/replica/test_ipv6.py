"""A group wholly on ``::1``: replicas, the standalone controller, a NameServer, a client and the page of metrics."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

import aiohttp
import pytest

from brokergroup_operator.controller.standalone import StandaloneSettings, run_standalone
from brokergroup_operator.demo.routes import RouteServer
from controller_core.settings import ControllerSettings
from rocketmq_remoting.address import join_address
from rocketmq_remoting.broker_protocol import TopicRouteBody
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.controller_protocol import BrokerReplicasInfoBody, encode_broker_names
from rocketmq_remoting.errors import RemotingConnectError
from rocketmq_replica.configuration import parse_configuration
from tests.controller.conftest import QUICK
from tests.replica.support import BROKER_NAME, Client, RunningReplica, configuration_text, start_replica
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

_places = itertools.count()
# Below the ports that the kernel gives to connections; each process of a run begins elsewhere.
_FIRST_PORT = 11_000 + os.getpid() % 400 * 45


def free_port() -> int:
    """A port, free in both families, of which a broker can have the fast port two below, and its HA port one above."""
    while True:
        port = _FIRST_PORT + next(_places) * 5 % 1_500 + 2
        with contextlib.suppress(OSError), contextlib.ExitStack() as held:
            for each in (port - 2, port, port + 1):
                held.enter_context(socket.create_server(("::", each), family=socket.AF_INET6, dualstack_ipv6=True))
            return port


class House:
    """What runs, and what a client and a person see of it."""

    def __init__(self, host: str, folder: Path) -> None:
        self.host, self.folder = host, folder
        self.controller = join_address(host, free_port())
        self.metrics_port = free_port()
        self.routes = RouteServer()
        self.client = Client()
        self.replicas: dict[str, RunningReplica] = {}
        self._stop = asyncio.Event()

    async def start(self) -> None:
        await self.routes.start(self.host, 0)
        settings = StandaloneSettings(
            plane=replace(QUICK, listen_host=self.host, listen_port=int(self.controller.rpartition(":")[2])),
            name_servers=(self.routes.address,),
            controller=ControllerSettings(expected_replicas=3),
            metrics_listen=(self.host, self.metrics_port),
        )
        self._task = asyncio.create_task(run_standalone(settings, self._stop))
        for number in (1, 2, 3):
            port = free_port()
            name = f"r{number}"
            self.replicas[name] = await start_replica(
                self.folder / name,
                self.controller,
                address=self.host,
                listenPort=port,
                haListenPort=port + 1,
                namesrvAddr=self.routes.address,
            )

    async def stop(self) -> None:
        for one in self.replicas.values():
            if not one.task.done():
                await one.stop()
        self._stop.set()
        await self._task
        await self.client.remoting.close()
        await self.routes.stop()

    async def replica_info(self) -> BrokerReplicasInfoBody:
        """1006."""
        body = encode_broker_names([BROKER_NAME])
        answer = await self.client.ask(self.controller, RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=body)
        return BrokerReplicasInfoBody.decode(answer.body)

    async def in_sync(self, count: int) -> None:
        """Wait until the controller listens and has so many members in sync."""
        async with asyncio.timeout(60.0):
            while True:
                with contextlib.suppress(RemotingConnectError):
                    info = (await self.replica_info()).replicas_info_table.get(BROKER_NAME)
                    if info is not None and len(info.in_sync_replicas) == count:
                        return
                await asyncio.sleep(0.02)

    async def routed_master(self, *, other_than: str = "") -> str:
        """The master's address, as the NameServer tells it to a client."""
        async with asyncio.timeout(60.0):
            while True:
                fields = {"topic": "TBW102"}
                answer = await self.client.ask(
                    self.routes.address, RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields=fields
                )
                if answer.code == ResponseCode.SUCCESS:
                    for data in TopicRouteBody.decode(answer.body).broker_datas:
                        address = data.broker_addrs.get(0, "")
                        if address not in ("", other_than):
                            return address
                await asyncio.sleep(0.02)

    def at(self, address: str) -> RunningReplica:
        return next(one for one in self.replicas.values() if one.address == address)


@pytest.fixture
async def house(ipv6_loopback: str, tmp_path: Path) -> AsyncIterator[House]:
    made = House(ipv6_loopback, tmp_path)
    try:
        await made.start()
        yield made
    finally:
        await made.stop()


async def test_a_group_on_ipv6_alone_elects_acknowledges_fails_over_and_is_read_back(house: House) -> None:
    """Reports: apache/rocketmq #10834, #9987, #5858."""
    await house.in_sync(3)
    url = f"http://{join_address(house.host, house.metrics_port)}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        page = await response.text()
    assert house.controller in page, "by its address in brackets"
    assert f'broker_group="{BROKER_NAME}"' in page
    first = await house.routed_master()
    assert first.startswith("[::1]:")
    answers = [await house.client.send(first, b"%d" % number) for number in range(20)]
    assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
    message_id = (answers[0].ext_fields or {})["msgId"]
    port = int(first.rpartition(":")[2])
    assert message_id == f"{1:032X}{port:08X}{0:016X}"  # 16 bytes of host, as Java's createMessageId

    await house.at(first).stop()
    second = await house.routed_master(other_than=first)
    await eventually(lambda: house.at(second).role == "MASTER")
    assert (await house.client.send(second, b"20")).code == ResponseCode.SUCCESS

    read = await house.client.pull_all(second)
    assert [message.body for message in read] == [b"%d" % number for number in range(21)]
    assert {(message.born_host.ip, message.store_host.ip) for message in read} == {("::1", "::1")}
    assert {message.sys_flag for message in read} == {0x30}


@pytest.mark.parametrize("written", ["fd00::5", "[fd00::5]", "FD00:0::5", "[fd00:0:0:0:0:0:0:5]"])
def test_a_replica_writes_its_own_address_in_one_spelling(tmp_path: Path, written: str) -> None:
    text = configuration_text(tmp_path, "[::1]:9878", written, namesrvAddr="[FD00::1]:9876;10.0.0.1:9876")
    found = parse_configuration(text, {})
    assert (found.broker_address, found.ha_address) == ("[fd00::5]:10911", "[fd00::5]:10912")
    assert found.name_server_addresses == ("[fd00::1]:9876", "10.0.0.1:9876")
    assert found.own_ip == "fd00::5"


@pytest.mark.parametrize(
    ("environment", "address"),
    [
        ({"POD_IP": "10.0.0.1"}, "10.0.0.1:10911"),
        ({"POD_IP": "10.0.0.1", "POD_IPS": "10.0.0.1,fd00::5", "POD_IP_FAMILY": "IPv6"}, "[fd00::5]:10911"),
        ({"POD_IP": "fd00::5", "POD_IPS": "fd00::5,10.0.0.1", "POD_IP_FAMILY": "IPv4"}, "10.0.0.1:10911"),
        ({"POD_IP": "10.0.0.1", "POD_IPS": "10.0.0.1", "POD_IP_FAMILY": "IPv6"}, "10.0.0.1:10911"),
    ],
)
def test_of_its_pods_addresses_a_replica_has_the_one_of_its_family(
    tmp_path: Path, environment: dict[str, str], address: str
) -> None:
    text = configuration_text(tmp_path, "[::1]:9878", "${POD_IP}", listenAddress="${LISTEN_IP}")
    found = parse_configuration(text, environment)
    assert found.broker_address == address
    assert found.listen_ip == found.ha_bind_ip == ("::" if "," in environment.get("POD_IPS", "") else "10.0.0.1")
    assert found.own_ip == address.rpartition(":")[0].strip("[]"), "from where it dials, and is known"


async def test_a_replica_of_both_families_is_reached_by_either_address(ipv6_loopback: str, tmp_path: Path) -> None:
    """A kubelet probes the pod's first address; a replica known by the second one was never ready."""
    port = free_port()
    replica = await start_replica(
        tmp_path, "[::1]:9", address=ipv6_loopback, listenAddress="::", listenPort=port, haListenPort=port + 1
    )
    await replica.process.listening.wait()
    client = Client()
    for host in ("127.0.0.1", ipv6_loopback):
        for each in (port, port - 2):
            answer = await client.ask(join_address(host, each), RequestCode.GET_BROKER_HA_STATUS)
            assert answer.code == ResponseCode.SUCCESS
    await client.remoting.close()
    await replica.stop()
