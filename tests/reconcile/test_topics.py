"""Declared topics of a cluster: which requests a group's master gets, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.api.rocketmq_cluster import MessageType, TopicSpec
from brokergroup_operator.observe.group_view import BrokerUnreachableError
from brokergroup_operator.reconcile.clusters.topics import (
    AGAIN_SECONDS,
    TopicDiffersError,
    TopicKeeper,
    TopicsStanding,
    change_of,
)
from brokergroup_operator.records.memory import MemoryRecordStore
from brokergroup_operator.records.store import GroupKey
from rocketmq_remoting.broker_protocol import TopicConfig
from tests.reconcile.fake_view import FakeGroupView, led_by

if TYPE_CHECKING:
    from brokergroup_operator.observe.group_view import GroupView

ORDERS = TopicSpec(name="orders", queues=8)
PAYMENTS = TopicSpec(name="payments", queues=4, message_type=MessageType.FIFO)
FIRST, SECOND = GroupKey("n", "shop-0"), GroupKey("n", "shop-1")


def test_a_topic_that_is_not_there_is_made() -> None:
    assert change_of(ORDERS, None) == TopicConfig(topic_name="orders", read_queue_nums=8, write_queue_nums=8)
    assert change_of(PAYMENTS, None) == TopicConfig(
        topic_name="payments", read_queue_nums=4, write_queue_nums=4, attributes={"message.type": "FIFO"}
    )


def test_one_that_is_as_declared_is_left() -> None:
    assert change_of(ORDERS, TopicConfig(topic_name="orders", read_queue_nums=8, write_queue_nums=8)) is None


def test_more_queues_keep_what_else_the_topic_is() -> None:
    found = TopicConfig(
        topic_name="orders",
        read_queue_nums=4,
        write_queue_nums=4,
        perm=4,
        order=True,
        attributes={"queue.type": "SimpleCQ"},
    )
    change = change_of(ORDERS, found)
    assert change == TopicConfig(topic_name="orders", read_queue_nums=8, write_queue_nums=8, perm=4, order=True)


def test_fewer_queues_are_still_read() -> None:
    found = TopicConfig(topic_name="orders", read_queue_nums=16, write_queue_nums=16)
    change = change_of(ORDERS, found)
    assert change is not None
    assert (change.read_queue_nums, change.write_queue_nums) == (16, 8)
    assert change_of(ORDERS, change) is None


@pytest.mark.parametrize("present", ["NORMAL", "MIXED", "DELAY", "UNSPECIFIED"])
def test_another_message_type_is_left_and_told(present: str) -> None:
    found = TopicConfig(
        topic_name="payments", read_queue_nums=4, write_queue_nums=4, attributes={"message.type": present}
    )
    with pytest.raises(TopicDiffersError, match=f"payments has {present} messages, spec.topics wants FIFO"):
        change_of(PAYMENTS, found)


class UnreachableView(FakeGroupView):
    """Groups whose master does not answer, while they are named."""

    def __init__(self) -> None:
        super().__init__(MemoryRecordStore())
        self.unreachable: set[GroupKey] = set()
        self.asked: list[tuple[GroupKey, str]] = []

    async def topic(self, key: GroupKey, name: str) -> TopicConfig | None:
        self.asked.append((key, name))
        if key in self.unreachable:
            raise BrokerUnreachableError(f"group {key}: topic {name}: no answer")
        return await super().topic(key, name)


class Kept:
    """Two groups of a cluster, and a clock that a test moves."""

    def __init__(self) -> None:
        self.view = UnreachableView()
        self.now_seconds = 0.0
        view: GroupView = self.view
        self.keeper = TopicKeeper(view, lambda: self.now_seconds)
        self.uids = {"shop-0": "u0", "shop-1": "u1"}

    async def keep(self, *declared: TopicSpec) -> TopicsStanding:
        return await self.keeper.keep("n", declared, self.uids, count=2)

    def lead(self, *keys: GroupKey, epoch: int = 1) -> None:
        for key in keys:
            self.view.snapshots[key] = led_by(key, 1, epoch=epoch)


async def test_every_group_gets_every_topic_and_then_nothing_is_asked() -> None:
    kept = Kept()
    kept.lead(FIRST, SECOND)
    assert await kept.keep(ORDERS, PAYMENTS) == TopicsStanding(desired=2, ready=2)
    assert set(kept.view.topics) == {(key, name) for key in (FIRST, SECOND) for name in ("orders", "payments")}
    kept.view.asked.clear()
    assert await kept.keep(ORDERS, PAYMENTS) == TopicsStanding(desired=2, ready=2)
    assert kept.view.asked == []


async def test_a_new_master_is_asked_again_since_it_may_lack_the_newest() -> None:
    kept = Kept()
    kept.lead(FIRST, SECOND)
    await kept.keep(ORDERS)
    del kept.view.topics[FIRST, "orders"]
    kept.lead(FIRST, epoch=2)
    await kept.keep(ORDERS)
    assert (FIRST, "orders") in kept.view.topics


async def test_a_deleted_topic_comes_back_after_a_while() -> None:
    kept = Kept()
    kept.lead(FIRST, SECOND)
    await kept.keep(ORDERS)
    del kept.view.topics[FIRST, "orders"]
    kept.now_seconds = AGAIN_SECONDS - 1
    await kept.keep(ORDERS)
    assert (FIRST, "orders") not in kept.view.topics
    kept.now_seconds = AGAIN_SECONDS
    await kept.keep(ORDERS)
    assert (FIRST, "orders") in kept.view.topics


async def test_a_group_without_a_master_is_waited_for_and_one_that_had_them_is_not() -> None:
    kept = Kept()
    kept.lead(FIRST)
    standing = await kept.keep(ORDERS)
    assert standing == TopicsStanding(desired=1, ready=0, pending=("group shop-1 has no master",))
    kept.lead(SECOND)
    assert (await kept.keep(ORDERS)).ready == 1
    kept.view.snapshots.clear()
    assert await kept.keep(ORDERS) == TopicsStanding(desired=1, ready=1), "a failover takes no topic away"


async def test_a_master_that_does_not_answer_is_asked_in_the_next_pass() -> None:
    kept = Kept()
    kept.lead(FIRST, SECOND)
    kept.view.unreachable = {SECOND}
    standing = await kept.keep(ORDERS, PAYMENTS)
    assert standing == TopicsStanding(desired=2, pending=(f"group {SECOND}: topic orders: no answer",))
    kept.view.unreachable = set()
    assert await kept.keep(ORDERS, PAYMENTS) == TopicsStanding(desired=2, ready=2)


async def test_a_group_made_anew_under_the_same_name_has_nothing() -> None:
    kept = Kept()
    kept.lead(FIRST, SECOND)
    await kept.keep(ORDERS)
    kept.view.topics.clear()
    kept.uids = {**kept.uids, "shop-1": "another"}
    await kept.keep(ORDERS)
    assert kept.view.topics_put[-1] == (SECOND, "orders")


async def test_groups_that_are_not_made_yet_count() -> None:
    kept = Kept()
    kept.lead(FIRST)
    kept.uids = {"shop-0": "u0"}
    assert (await kept.keep(ORDERS)).ready == 0


async def test_without_declared_topics_no_master_is_asked() -> None:
    kept = Kept()
    kept.lead(FIRST, SECOND)
    assert await kept.keep() == TopicsStanding()
    assert kept.view.asked == []
