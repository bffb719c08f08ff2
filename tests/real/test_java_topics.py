"""Declared topics at unmodified Java 5.5.0 brokers, which make no topics by themselves."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.api.rocketmq_cluster import MessageType, TopicSpec
from brokergroup_operator.controller.settings import SecuritySettings
from brokergroup_operator.observe.group_view import BrokerUnreachableError
from brokergroup_operator.reconcile.clusters.master_looks import Standing
from brokergroup_operator.reconcile.clusters.topics import MESSAGE_TYPE, TopicKeeper
from rocketmq_remoting.broker_protocol import TopicConfig
from tests.real.test_java_security import plane_with
from tests.support.fake_broker import eventually as until
from tests.support.java_rig import KEY

if TYPE_CHECKING:
    from brokergroup_operator.controller.plane import ControllerPlane
    from tests.support.java_rig import JavaRig

pytestmark = [pytest.mark.real("java", "rocketmq"), pytest.mark.timeout(420)]

ORDERS = TopicSpec(name="orders", queues=4, message_type=MessageType.FIFO)
PAYMENTS = TopicSpec(name="payments", queues=2)


async def test_java_brokers_take_declared_topics_and_keep_them_through_a_failover(rig: JavaRig) -> None:
    name_server = rig.start_name_server().address
    async with plane_with(SecuritySettings(), name_server=name_server) as plane:
        await rig.start_pair(plane, autoCreateTopicEnable="false")
        await check_topics(rig, plane)


async def check_topics(rig: JavaRig, plane: ControllerPlane) -> None:
    async def keep(*declared: TopicSpec) -> Standing:
        keeper = TopicKeeper(plane, time.monotonic)
        return await keeper.keep(KEY.namespace, declared, {KEY.name: "uid"}, count=1)

    assert await keep(ORDERS, PAYMENTS) == Standing(desired=2, ready=2)
    made = await plane.topic(KEY, "orders")
    assert made is not None
    assert (made.read_queue_nums, made.write_queue_nums, made.attributes) == (4, 4, {MESSAGE_TYPE: "FIFO"})

    assert await keep(TopicSpec(name="orders", queues=2, message_type=MessageType.FIFO)) == Standing(1, 1)
    fewer = await plane.topic(KEY, "orders")
    assert fewer is not None
    assert (fewer.read_queue_nums, fewer.write_queue_nums) == (4, 2), "messages in a queue are still read"
    assert fewer.attributes == {MESSAGE_TYPE: "FIFO"}, "settings without a declaration stay"

    standing = await keep(TopicSpec(name="payments", queues=2, message_type=MessageType.DELAY))
    assert standing.differing == (f"group {KEY.name}: topic payments has NORMAL messages, spec.topics wants DELAY",)
    with pytest.raises(BrokerUnreachableError, match="17 answered"):
        await plane.put_topic(KEY, TopicConfig(topic_name="TBW102"))

    await rig.kill_master(plane)

    async def kept() -> bool:
        return await keep(ORDERS, PAYMENTS) == Standing(desired=2, ready=2)

    await until(kept, what="the new master to have them, from its master or from us", within_seconds=60)
