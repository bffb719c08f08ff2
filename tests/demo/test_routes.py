"""The sandbox's NameServer: the rules of the table, and replicas and clients that find each other through it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.demo.routes import RegistrationRefusedError, RouteServer, RouteTable
from rocketmq_remoting.broker_protocol import (
    BrokerMemberGroupBody,
    ClusterInfoBody,
    DataVersion,
    RegisterBrokerBody,
    RegisterBrokerRequestHeader,
    TopicConfig,
    TopicConfigBody,
    TopicRouteBody,
)
from rocketmq_remoting.codes import RequestCode, ResponseCode
from tests.replica.support import Client, RunningReplica, start_replica
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.replica.support import FakeController

GROUP = ("DefaultCluster", "orders")
TOPICS = ("SELF_TEST_TOPIC", "Topic")


def registered(
    table: RouteTable,
    address: str,
    broker_id: int,
    *,
    epoch: int = 1,
    now: float = 0.0,
    connection: int = 1,
    topics: tuple[str, ...] = TOPICS,
    timeout_ms: int | None = None,
) -> str | None:
    """Register; return the master's address in the answer."""
    header = RegisterBrokerRequestHeader(
        broker_name=GROUP[1],
        broker_addr=address,
        cluster_name=GROUP[0],
        ha_server_addr=address + "1",
        broker_id=broker_id,
        heartbeat_timeout_ms=timeout_ms,
    )
    wrapper = TopicConfigBody(
        data_version=DataVersion(state_version=epoch),
        topic_config_table={name: TopicConfig(topic_name=name, write_queue_nums=4) for name in topics},
    )
    body = RegisterBrokerBody(topic_config_serialize_wrapper=wrapper)
    master = table.register(header, body, connection_id=connection, now_seconds=now)
    return None if master is None else master.address


def addresses(table: RouteTable, topic: str = "Topic") -> dict[int, str] | None:
    route = table.route(topic)
    return None if route is None else dict(route.broker_datas[0].broker_addrs)


def test_a_slave_is_told_of_the_master_and_a_topic_is_the_masters() -> None:
    table = RouteTable()
    assert registered(table, "s:1", 2) is None
    assert table.route("Topic") is None, "no broker accepts sends"
    assert registered(table, "m:1", 0, topics=("SELF_TEST_TOPIC", "Topic", "Made")) is None
    assert registered(table, "s:1", 2) == "m:1"
    assert addresses(table, "Made") == {0: "m:1", 2: "s:1"}
    assert addresses(table, "Other") is None


def test_an_address_has_one_id() -> None:
    table = RouteTable()
    registered(table, "a:1", 0, epoch=1)
    registered(table, "b:1", 2, epoch=1)
    registered(table, "b:1", 0, epoch=2)
    assert addresses(table) == {0: "b:1"}
    registered(table, "a:1", 1, epoch=2)
    assert addresses(table) == {0: "b:1", 1: "a:1"}


def test_of_two_that_claim_to_be_master_the_later_epoch_wins() -> None:
    table = RouteTable()
    registered(table, "new:1", 0, epoch=5)
    registered(table, "old:1", 0, epoch=4)
    assert addresses(table) == {0: "new:1"}
    registered(table, "newest:1", 0, epoch=5)
    assert addresses(table) == {0: "newest:1"}, "a tie: the latest registration"


def test_a_late_unregistration_does_not_unseat_another() -> None:
    table = RouteTable()
    registered(table, "a:1", 0)
    table.unregister("a:1", 1)
    table.unregister("b:1", 0)
    assert addresses(table) == {0: "a:1"}
    table.unregister("a:1", 0)
    assert addresses(table) is None
    assert table.cluster_info().broker_addr_table == {}


def test_a_first_registration_with_one_topic_is_refused_as_java_does() -> None:
    table = RouteTable()
    with pytest.raises(RegistrationRefusedError, match="register broker failed"):
        registered(table, "a:1", 0, topics=("Topic",))
    registered(table, "a:1", 0)
    registered(table, "a:1", 0, topics=("Topic",))
    assert table.route("SELF_TEST_TOPIC") is None


def test_the_silent_and_the_disconnected_are_forgotten() -> None:
    table = RouteTable()
    registered(table, "a:1", 0, connection=1, timeout_ms=10_000)
    registered(table, "b:1", 2, connection=2)
    table.heard("a:1", now_seconds=5.0)
    table.heard("nobody:1", now_seconds=5.0)
    table.expire(now_seconds=15.0)
    assert addresses(table) == {0: "a:1", 2: "b:1"}
    table.expire(now_seconds=15.1)
    assert addresses(table) == {2: "b:1"}, "the topics stay while any member of the group does"
    table.connection_closed(2)
    assert addresses(table) is None


@pytest.mark.parametrize("broker_id", [None, -1])
def test_a_registration_without_an_id_is_refused(broker_id: int | None) -> None:
    header = RegisterBrokerRequestHeader(
        broker_name="orders", broker_addr="a:1", cluster_name="DefaultCluster", broker_id=broker_id
    )
    with pytest.raises(RegistrationRefusedError, match="brokerId"):
        RouteTable().register(header, RegisterBrokerBody(), connection_id=1, now_seconds=0.0)


async def master_by_route(client: Client, routes: RouteServer) -> str | None:
    answer = await client.ask(routes.address, RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": "Topic"})
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    assert answer.code == ResponseCode.SUCCESS
    route = TopicRouteBody.decode(answer.body)
    assert [queues.write_queue_nums for queues in route.queue_datas] == [4]
    return route.broker_datas[0].broker_addrs.get(0)


async def test_clients_find_the_master_through_a_failover(
    routes: RouteServer, controller: FakeController, tmp_path: Path
) -> None:
    client = Client()
    keys = {"namesrvAddr": routes.address}
    replicas: list[RunningReplica] = []
    try:
        replicas.append(await start_replica(tmp_path / "r1", controller.address, **keys))
        await eventually(lambda: replicas[0].role == "MASTER")
        replicas.append(await start_replica(tmp_path / "r2", controller.address, **keys))
        await eventually(lambda: controller.members == {1, 2})
        one, two = replicas
        assert await master_by_route(client, routes) is None
        assert (await client.send(one.address, b"before")).code == ResponseCode.SUCCESS
        await eventually(lambda: routes.table.route("Topic") is not None)
        assert await master_by_route(client, routes) == one.address
        await one.stop()
        controller.decide(2)
        await controller.notify(2)
        await eventually(lambda: routes.table.members(("DefaultCluster", "broker-a")) == {0: two.address})
        assert await master_by_route(client, routes) == two.address
        assert [each.body for each in await client.pull_all(two.address)] == [b"before"]
        info = ClusterInfoBody.decode((await client.ask(routes.address, RequestCode.GET_BROKER_CLUSTER_INFO)).body)
        assert info.cluster_addr_table == {"DefaultCluster": {"broker-a"}}
        group = await client.ask(
            routes.address,
            RequestCode.GET_BROKER_MEMBER_GROUP,
            ext_fields={"clusterName": "DefaultCluster", "brokerName": "broker-a"},
        )
        assert BrokerMemberGroupBody.decode(group.body).broker_member_group.broker_addrs == {0: two.address}
    finally:
        for replica in replicas:
            if not replica.task.done():
                await replica.stop()
        await client.remoting.close()


async def test_what_it_does_not_serve_it_says(routes: RouteServer) -> None:
    client = Client()
    try:
        answer = await client.ask(routes.address, RequestCode.GET_NAMESRV_CONFIG)
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        answer = await client.ask(routes.address, RequestCode.REGISTER_BROKER, body=b"no JSON")
        assert answer.code == ResponseCode.SYSTEM_ERROR
    finally:
        await client.remoting.close()
