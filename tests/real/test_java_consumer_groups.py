"""Declared consumer groups at unmodified Java 5.5.0 brokers, and a group that is added under a running Java push consumer."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.api.consumer_group_fields import ConsumerGroupSpec
from brokergroup_operator.api.rocketmq_cluster import TopicSpec
from brokergroup_operator.controller.settings import SecuritySettings
from brokergroup_operator.demo.client import numbered_message
from brokergroup_operator.observe.group_view import GroupViewError
from brokergroup_operator.reconcile.clusters.consumer_groups import ConsumerGroupKeeper
from brokergroup_operator.reconcile.clusters.master_looks import Standing
from brokergroup_operator.reconcile.clusters.topics import TopicKeeper
from brokergroup_operator.records.store import GroupKey
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import request
from tests.interop.clients import compile_client, start_client
from tests.real.parts import install
from tests.real.test_java_security import plane_with
from tests.support.java_rig import KEY, eventually

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from pathlib import Path

    from brokergroup_operator.controller.plane import ControllerPlane
    from rocketmq_remoting.client import RemotingClient
    from tests.interop.clients import JavaClient
    from tests.support.java_rig import JavaRig

pytestmark = [pytest.mark.real("java", "rocketmq"), pytest.mark.timeout(420)]

ADDED = GroupKey(KEY.namespace, "broker-b")
ORDERS = TopicSpec(name="orders", queues=4)
BILLING = ConsumerGroupSpec(name="billing", retry_max_times=3, consume_message_orderly=True)
# No topic and no consumer group by itself: what is there was declared.
DECLARED_ONLY = {"autoCreateTopicEnable": "false", "autoCreateSubscriptionGroup": "false"}


class Cluster:
    """The groups as a pass over their RocketMQCluster sees them, and requests of clients to their masters."""

    def __init__(self, plane: ControllerPlane, client: RemotingClient) -> None:
        self.plane, self.client = plane, client
        self.groups = {KEY.name: "uid-a"}
        self._consumer_groups = ConsumerGroupKeeper(plane, time.monotonic)
        self._topics = TopicKeeper(plane, time.monotonic)

    async def keep(self, *consumer_groups: ConsumerGroupSpec) -> tuple[Standing, Standing]:
        count = len(self.groups)
        first = await self._consumer_groups.keep(KEY.namespace, consumer_groups, self.groups, count=count)
        had = {
            name: self._consumer_groups.had(GroupKey(KEY.namespace, name), consumer_groups, uid)
            for name, uid in self.groups.items()
        }
        return first, await self._topics.keep(KEY.namespace, (ORDERS,), self.groups, count=count, consumer_groups=had)

    async def is_whole(self, *consumer_groups: ConsumerGroupSpec) -> bool:
        declared = len(consumer_groups)
        return await self.keep(*consumer_groups) == (Standing(declared, declared), Standing(1, 1))

    async def send(self, key: GroupKey, number: int, queue_id: int = 0) -> bool:
        """Whether the group's master acknowledged this message."""
        message = numbered_message(f"{key.name}-{number}", broker_name=key.name, topic="orders", queue_id=queue_id)
        answer = await self.client.invoke(self._master(key), message, timeout_seconds=5.0)
        return answer.code == ResponseCode.SUCCESS

    async def offset(self, key: GroupKey, queue_id: int, consumer_group: str) -> int | None:
        """14: the offset of this consumer group; None if the broker has none."""
        fields = {"consumerGroup": consumer_group, "setZeroIfNotFound": "false"}
        return await self._ask(key, RequestCode.QUERY_CONSUMER_OFFSET, queue_id, **fields)

    async def begin(self, key: GroupKey, consumer_group: str) -> int | None:
        """14, as a Java push consumer asks when it gets queue 0; None: it asks for the end of the queue then."""
        return await self._ask(key, RequestCode.QUERY_CONSUMER_OFFSET, 0, consumerGroup=consumer_group)

    async def end(self, key: GroupKey) -> int | None:
        """30, of queue 0."""
        return await self._ask(key, RequestCode.GET_MAX_OFFSET, 0)

    async def _ask(self, key: GroupKey, code: RequestCode, queue_id: int, **fields: str) -> int | None:
        command = request(code, ext_fields={"topic": "orders", "queueId": str(queue_id), **fields})
        answer = await self.client.invoke(self._master(key), command, timeout_seconds=5.0)
        assert answer.code in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        return int((answer.ext_fields or {})["offset"]) if answer.code == ResponseCode.SUCCESS else None

    def leads(self, key: GroupKey) -> bool:
        snapshot = self.plane.snapshot(key)
        return snapshot is not None and snapshot.writable

    def _master(self, key: GroupKey) -> str:
        snapshot = self.plane.snapshot(key)
        assert snapshot is not None
        assert snapshot.record is not None
        return str(snapshot.record.address_of(snapshot.record.granted_master_id))


async def test_java_brokers_take_declared_consumer_groups_and_keep_them_through_a_failover(
    rig: JavaRig, client: RemotingClient
) -> None:
    name_server = rig.start_name_server().address
    async with plane_with(SecuritySettings(), name_server=name_server) as plane:
        await rig.start_pair(plane, **DECLARED_ONLY)
        cluster = Cluster(plane, client)
        await eventually(lambda: cluster.is_whole(BILLING), "the master to take them")
        made = (await plane.consumer_groups(KEY, ["billing", "none"]))["billing"]
        assert (made["retryMaxTimes"], made["consumeMessageOrderly"], made["consumeEnable"]) == (3, True, True)

        by_hand = made | {"attributes": {}, "retryMaxTimes": 9, "consumeTimeoutMinute": 7}
        await eventually(lambda: is_done(plane.put_consumer_group(KEY, by_hand)), "the master to take it")
        another_process = Cluster(plane, client)
        await eventually(lambda: another_process.is_whole(BILLING), "the master to be asked again")
        made = (await plane.consumer_groups(KEY, ["billing"]))["billing"]
        assert (made["retryMaxTimes"], made["consumeTimeoutMinute"]) == (3, 7), "what is not declared stays"

        await rig.kill_master(plane)

        async def has_them() -> bool:
            # What a group had it is taken to have until its new master answers.
            assert await cluster.is_whole(BILLING)
            with suppress(GroupViewError):
                return set(await plane.consumer_groups(KEY, ["billing"])) == {"billing"}
            return False

        await eventually(has_them, "the new master to have them", within_seconds=60, every_seconds=0.2)


async def test_no_message_of_a_group_that_is_added_under_a_running_consumer_is_skipped(
    rig: JavaRig, client: RemotingClient, tmp_path: Path
) -> None:
    name_server = rig.start_name_server().address
    async with plane_with(SecuritySettings(), name_server=name_server) as plane:
        rig.start_broker("a", controllers=plane.address, **DECLARED_ONLY)
        cluster, reader = Cluster(plane, client), ConsumerGroupSpec(name="billing")
        await eventually(lambda: cluster.leads(KEY), "the first group's master")
        await eventually(lambda: cluster.is_whole(reader), "the first group to have topic and consumer group")
        class_path = await asyncio.to_thread(compile_client, tmp_path, install.ROCKETMQ_VERSION)
        how = {"name_server": name_server, "topic": "orders", "group": "billing", "from": "CONSUME_FROM_LAST_OFFSET"}
        consumer = start_client(tmp_path, "push", class_path, "push", **how)
        try:
            await check_that_it_reads(cluster, consumer)
            rig.start_broker("b", controllers=plane.address, brokerName=ADDED.name, **DECLARED_ONLY)
            await eventually(lambda: cluster.leads(ADDED), "the second group's master")
            cluster.groups[ADDED.name] = "uid-b"
            sent = await check_the_added_group(cluster, reader)
            await eventually(lambda: sent <= keys_of(consumer), "the consumer to have them all", within_seconds=90)
        finally:
            consumer.stop()


async def check_that_it_reads(cluster: Cluster, consumer: JavaClient) -> None:
    """It begins at the end of each queue: until it has its queues, what is sent is not for it."""
    sent = 0

    async def has_read() -> bool:
        nonlocal sent
        sent += 1
        assert await cluster.send(KEY, sent)
        return bool(keys_of(consumer))

    await eventually(has_read, "the consumer to read", every_seconds=0.5)
    await eventually(lambda: cluster.begin(KEY, "billing"), "its first commit", every_seconds=0.5)


async def check_the_added_group(cluster: Cluster, reader: ConsumerGroupSpec) -> set[str]:
    """Send from before the topic is there; returns the keys of what the added group has acknowledged."""
    sent: set[str] = set()
    sender = asyncio.create_task(send_without_end(cluster, sent))
    try:
        await eventually(lambda: cluster.is_whole(reader), "the added group to have topic and consumer group")
        begins = [await cluster.offset(ADDED, queue_id, "billing") for queue_id in range(ORDERS.queues)]
        assert None not in begins, "no queue takes messages before its readers have an offset"
        await eventually(lambda: len(sent) > 100, "messages of the added group")
    finally:
        sender.cancel()
        with suppress(asyncio.CancelledError):
            await sender
    return sent


async def send_without_end(cluster: Cluster, sent: set[str]) -> None:
    number = 0
    while True:
        number += 1
        if await cluster.send(ADDED, number, number % ORDERS.queues):
            sent.add(f"{ADDED.name}-{number}")


async def test_without_an_offset_a_consumer_skips_what_is_stored_while_it_asks_where_to_begin(
    rig: JavaRig, client: RemotingClient
) -> None:
    """The two questions of a Java push consumer with CONSUME_FROM_LAST_OFFSET (RebalancePushImpl), and a message between them."""
    name_server = rig.start_name_server().address
    async with plane_with(SecuritySettings(), name_server=name_server) as plane:
        rig.start_broker("a", controllers=plane.address, **DECLARED_ONLY)
        cluster = Cluster(plane, client)
        await eventually(lambda: cluster.leads(KEY), "a master")
        await eventually(lambda: cluster.is_whole(BILLING), "the master to have topic and consumer group")
        first_offsets = partial(plane.put_first_offsets, KEY, "orders", range(4), {"billing"}, only_empty=False)
        await eventually(lambda: is_done(first_offsets()), "the master to take offsets")
        assert await cluster.begin(KEY, "undeclared") is None
        assert await cluster.begin(KEY, "billing") == 0
        assert await cluster.send(KEY, 1)
        # A broker acknowledges a message before its queue counts it.
        await eventually(lambda: cluster.end(KEY), "the message in its queue", every_seconds=0.05)
        assert await cluster.end(KEY) == 1, "where the first one begins: behind the message"


async def is_done(call: Awaitable[object]) -> bool:
    """A broker that has just become master may not answer within the plane's second."""
    with suppress(GroupViewError):
        await call
        return True
    return False


def keys_of(consumer: JavaClient) -> set[str]:
    return {one["key"] for one in consumer.outcomes()}
