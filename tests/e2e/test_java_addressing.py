"""Java brokers behind Services, on a real API server: a member keeps one advertised address, whatever its pod's IP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from brokergroup_operator.kube.resources import PODS, SERVICES
from rocketmq_remoting.broker_protocol import TopicRouteBody
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.command import request
from tests.e2e.conftest import REAL_PARTS
from tests.e2e.house import NAMESPACE, TOPIC, WholeGroup, settled_group
from tests.e2e.java_house import ClusterHouse, open_java_house
from tests.e2e.java_services import carried_services
from tests.e2e.known_addresses import reached_where_known
from tests.e2e.stories import ask, holds, objects_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.real(*REAL_PARTS, "nft"),
    pytest.mark.timeout(900),
]
FIRST_NODE_PORT = 31_000
PORT = 10911


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def java_house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ClusterHouse]:
    async with open_java_house(tmp_path_factory.mktemp("house")) as running:
        assert running.cluster is not None
        async with carried_services(running.cluster):
            yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def orders(java_house: ClusterHouse) -> AsyncIterator[WholeGroup]:
    """A settled group of three, each behind its own Service."""
    await java_house.start_operator()
    async with settled_group(java_house, "orders", network={"addressing": "ServiceIP"}) as watched:
        yield watched


async def cluster_ips(group: WholeGroup) -> dict[int, str]:
    """Return the address of each broker's Service, by broker id."""
    services = await objects_of(group, SERVICES)
    found = {broker_id: services[group.pod_of(broker_id)]["spec"]["clusterIP"] for broker_id in group.pids()}
    return {broker_id: f"{host}:{PORT}" for broker_id, host in found.items()}


def recorded(group: WholeGroup) -> dict[int, str]:
    return {one["brokerId"]: one["address"] for one in group.seen.record["replicas"]}


def shown(group: WholeGroup) -> dict[int, tuple[str, str, str]]:
    """Return from the status, for each member: pod, pod IP, advertised address."""
    members = group.seen.status["members"]
    return {one["brokerId"]: (one["pod"], one["podIP"], one["address"]) for one in members}


async def pod_ips(group: WholeGroup) -> dict[int, str]:
    pods = await objects_of(group, PODS)
    return {broker_id: pods[group.pod_of(broker_id)]["status"]["podIP"] for broker_id in group.pids()}


async def is_routed(group: WholeGroup, known: dict[int, str]) -> bool:
    """Whether the NameServer routes clients of the topic to this address."""
    name_server = group.house.group_spec["nameServers"][0]
    answer = await ask(name_server, request(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": TOPIC}))
    [data] = TopicRouteBody.decode(answer.body).broker_datas
    return set(data.broker_addrs.values()) == set(known.values())


async def test_a_member_that_dies_comes_back_with_another_pod_ip_and_the_same_address(orders: WholeGroup) -> None:
    known, ips = await cluster_ips(orders), await pod_ips(orders)
    assert recorded(orders) == known
    assert len(set(known.values())) == 3
    assert shown(orders) == {one: (orders.pod_of(one), ips[one], known[one]) for one in known}
    first, epoch = orders.master, orders.seen.master_epoch
    async with orders.lossless():
        await orders.house.api.delete(PODS, orders.pod_of(first), namespace=NAMESPACE, grace_period_seconds=0)
        # A pod's absence from the API does not prove death: a new process that registers within the fence's time may win.
        await orders.until(lambda: orders.seen.master_epoch > epoch, "a master is elected")
    now = await pod_ips(orders)
    assert [one for one in now if now[one] != ips[one]] == [first]
    assert await cluster_ips(orders) == known
    assert recorded(orders) == known, "addresses in clients and message ids are still valid"
    assert shown(orders) == {one: (orders.pod_of(one), now[one], known[one]) for one in known}
    await holds(orders, "clients are sent to the Services", lambda: is_routed(orders, known))


# By day test_addressing.py covers this, and this file's other story covers Java's addresses.
@pytest.mark.nightly
async def test_members_behind_node_ports_are_known_by_their_node(orders: WholeGroup, java_house: ClusterHouse) -> None:
    assert java_house.cluster is not None
    assert orders.house is java_house, "the operator runs"
    async with settled_group(
        java_house, "shop", network={"addressing": "NodePort", "firstNodePort": FIRST_NODE_PORT}
    ) as group:
        # Each member takes five ports; the third is the broker's.
        ports = {one: FIRST_NODE_PORT + 5 * number + 2 for number, one in enumerate(sorted(recorded(group)))}
        known = {one: f"{java_house.cluster.node_ip}:{port}" for one, port in ports.items()}
        assert recorded(group) == known
        first, epoch = group.master, group.seen.master_epoch
        async with group.lossless(), reached_where_known(group):
            await java_house.api.delete(PODS, group.pod_of(first), namespace=NAMESPACE)
            await group.until(lambda: group.seen.master_epoch > epoch, "a master is elected")
        assert recorded(group) == known
        await holds(group, "clients are sent to the node", lambda: is_routed(group, known))
