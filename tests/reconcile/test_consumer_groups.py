"""Declared topics and consumer groups, and the first offsets of readers: which requests each master gets, and in which order."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from brokergroup_operator.api.consumer_group_fields import ConsumerGroupSpec
from brokergroup_operator.api.rocketmq_cluster import MessageType, TopicSpec
from brokergroup_operator.reconcile.clusters import consumer_groups
from brokergroup_operator.reconcile.clusters.master_looks import AGAIN_SECONDS, Standing
from brokergroup_operator.reconcile.clusters.readers import PATIENCE_SECONDS
from brokergroup_operator.reconcile.clusters.topics import TopicDiffersError, change_of
from tests.reconcile.kept import BILLING, FIRST, SECOND, Kept, record_of, topic

if TYPE_CHECKING:
    from collections.abc import Collection

    from rocketmq_remoting.broker_protocol import SubscriptionGroupConfig, TopicConfig

ORDERS, EIGHT = TopicSpec(name="orders", queues=2), TopicSpec(name="orders", queues=8)
PAYMENTS = TopicSpec(name="payments", queues=4)
FIFO = TopicSpec(name="payments", queues=4, message_type=MessageType.FIFO)


@pytest.mark.parametrize(
    ("declared", "found", "change"),
    [
        ({"name": "b"}, None, {"groupName": "b"}),
        ({"name": "b", "consumeEnable": False}, None, {"groupName": "b", "consumeEnable": False}),
        ({"name": "b"}, {"groupName": "b", "retryMaxTimes": 7}, None),
        ({"name": "b", "retryMaxTimes": 7}, {"groupName": "b", "retryMaxTimes": 7, "newer": 1}, None),
        (
            {"name": "b", "retryMaxTimes": 0, "consumeMessageOrderly": True},
            {"groupName": "b", "retryMaxTimes": 7, "newer": {"x": 1}, "brokerId": 4, "attributes": {"a": "1"}},
            {"groupName": "b", "retryMaxTimes": 0, "consumeMessageOrderly": True, "newer": {"x": 1}, "brokerId": 4},
        ),
    ],
    ids=["not there", "not there, disabled", "nothing declared", "as declared", "a change keeps what else it is"],
)
def test_the_change_that_a_declared_consumer_group_asks_for(
    declared: dict[str, Any], found: SubscriptionGroupConfig | None, change: SubscriptionGroupConfig | None
) -> None:
    assert consumer_groups.change_of(msgspec.convert(declared, ConsumerGroupSpec), found) == change


@pytest.mark.parametrize(
    ("declared", "found", "change"),
    [
        (EIGHT, None, topic("orders", 8)),
        (FIFO, None, topic("payments", 4, message_type="FIFO")),
        (EIGHT, topic("orders", 8), None),
        (
            EIGHT,
            topic("orders", 4, perm=4, order=True, attributes={"queue.type": "SimpleCQ"}),
            topic("orders", 8, perm=4, order=True),
        ),
    ],
    ids=["not there", "not there, FIFO", "as declared", "more queues keep what else it is"],
)
def test_the_change_that_a_declared_topic_asks_for(
    declared: TopicSpec, found: TopicConfig | None, change: TopicConfig | None
) -> None:
    assert change_of(declared, found) == change


def test_fewer_queues_are_still_read() -> None:
    change = change_of(EIGHT, topic("orders", 16))
    assert change is not None
    assert (change.read_queue_nums, change.write_queue_nums) == (16, 8)
    assert change_of(EIGHT, change) is None


@pytest.mark.parametrize("present", ["NORMAL", "MIXED", "DELAY", "UNSPECIFIED"])
def test_another_message_type_is_left_and_told(present: str) -> None:
    found = topic("payments", 4, message_type=present)
    with pytest.raises(TopicDiffersError, match=f"payments has {present} messages, spec.topics wants FIFO"):
        change_of(FIFO, found)


async def test_every_group_gets_every_topic_and_then_nothing_is_asked() -> None:
    kept = Kept(FIRST, SECOND)
    assert await kept.only_topics(ORDERS, PAYMENTS) == Standing(desired=2, ready=2)
    assert set(kept.view.topics) == {(key, name) for key in (FIRST, SECOND) for name in ("orders", "payments")}
    kept.view.asked.clear()
    assert await kept.only_topics(ORDERS, PAYMENTS) == Standing(desired=2, ready=2)
    assert kept.view.asked == []


@pytest.mark.parametrize("why", ["a new master", "five minutes"])
async def test_a_topic_that_a_master_lacks_comes_back(why: str) -> None:
    """A new master may lack the newest; a person may have deleted it."""
    kept = Kept(FIRST, SECOND)
    await kept.only_topics(ORDERS)
    del kept.view.topics[FIRST, "orders"]
    kept.now_seconds = AGAIN_SECONDS - 1
    await kept.only_topics(ORDERS)
    assert (FIRST, "orders") not in kept.view.topics, "not looked at again yet"
    kept.asked_again_for(why)
    await kept.only_topics(ORDERS)
    assert (FIRST, "orders") in kept.view.topics


async def test_a_group_without_a_master_is_waited_for_and_one_that_had_them_is_not() -> None:
    kept = Kept(FIRST)
    standing = await kept.only_topics(ORDERS)
    assert standing == Standing(desired=1, ready=0, pending=("group shop-1 has no master",))
    kept.lead(SECOND)
    assert (await kept.only_topics(ORDERS)).ready == 1
    kept.view.snapshots.clear()
    assert await kept.only_topics(ORDERS) == Standing(desired=1, ready=1), "a failover takes no topic away"


async def test_a_master_that_hides_its_topics_is_asked_in_the_next_pass() -> None:
    kept = Kept(FIRST, SECOND)
    kept.view.hides_topics = {SECOND}
    standing = await kept.only_topics(ORDERS, PAYMENTS)
    assert standing == Standing(desired=2, pending=(f"group {SECOND}: topic orders: no answer",))
    kept.view.hides_topics = set()
    assert await kept.only_topics(ORDERS, PAYMENTS) == Standing(desired=2, ready=2)


async def test_a_group_made_anew_under_the_same_name_has_nothing() -> None:
    kept = Kept(FIRST, SECOND)
    await kept.only_topics(ORDERS)
    kept.view.topics.clear()
    kept.uids = {**kept.uids, "shop-1": "another"}
    await kept.only_topics(ORDERS)
    assert kept.view.topics_put[-1] == (SECOND, "orders")


async def test_groups_that_are_not_made_yet_count() -> None:
    kept = Kept(FIRST)
    kept.uids = {"shop-0": "u0"}
    assert (await kept.only_topics(ORDERS)).ready == 0


async def test_without_declared_topics_no_master_is_asked() -> None:
    kept = Kept(FIRST, SECOND)
    assert await kept.only_topics() == Standing()
    assert kept.view.asked == []


async def test_every_group_gets_every_consumer_group_and_then_nothing_is_asked() -> None:
    kept = Kept(FIRST)
    assert await kept.keep(BILLING) == Standing(1, 0, pending=("group shop-1 has no master",))
    kept.lead(SECOND)
    assert await kept.keep(BILLING) == Standing(1, 1)
    assert {key for key, _ in kept.view.consumer_groups_put} == {FIRST, SECOND}
    kept.view.unreachable = {FIRST, SECOND}
    assert await kept.keep(BILLING) == Standing(1, 1)


@pytest.mark.parametrize("why", ["a new master", "five minutes"])
async def test_a_changed_consumer_group_is_put_back_and_an_undeclared_one_left(why: str) -> None:
    kept = Kept(FIRST, SECOND)
    await kept.keep(BILLING)
    table = kept.view.consumer_group_tables[FIRST]
    table["billing"] = table["billing"] | {"retryMaxTimes": 16, "consumeEnable": False}
    table["a persons"] = {"groupName": "a persons", "retryMaxTimes": 1}
    await kept.keep(BILLING)
    assert table["billing"]["retryMaxTimes"] == 16, "not looked at again yet"
    kept.asked_again_for(why)
    await kept.keep(BILLING)
    assert table["billing"] == {"groupName": "billing", "retryMaxTimes": 3, "consumeEnable": False}
    assert table["a persons"] == {"groupName": "a persons", "retryMaxTimes": 1}
    await kept.keep()
    assert set(table) == {"billing", "a persons"}, "what is declared no more stays"


async def test_a_retry_topic_with_fewer_queues_than_retries_are_sent_to_gets_more() -> None:
    kept = Kept(FIRST, SECOND)
    kept.view.topics[FIRST, "%RETRY%billing"] = topic("%RETRY%billing", 1)
    await kept.keep(ConsumerGroupSpec(name="billing", retry_queue_nums=4))
    widened = kept.view.topics[FIRST, "%RETRY%billing"]
    assert (widened.read_queue_nums, widened.write_queue_nums) == (4, 4)
    assert (SECOND, "%RETRY%billing") not in kept.view.topics, "the broker makes it with four"


async def test_a_new_groups_topic_takes_messages_once_its_readers_have_its_beginning() -> None:
    kept = await beside_a_new_group(ORDERS, readers={"billing", "a persons"})
    assert (await kept.keep_topics(ORDERS)).ready == 1
    assert kept.view.written == [(SECOND, 0), (SECOND, 2)]
    assert kept.view.first_offsets == {(SECOND, "orders", queue, "billing"): 0 for queue in (0, 1)}


async def test_what_an_operator_left_half_done_is_completed_by_the_next() -> None:
    kept = Kept(FIRST, SECOND)
    kept.view.topics[FIRST, "orders"] = topic("orders", 2)
    kept.view.topics[SECOND, "orders"] = topic("orders", 2, 0)
    kept.view.readers[FIRST, "orders"] = frozenset({"billing"})
    await kept.keep_topics(ORDERS)
    assert set(kept.view.first_offsets) == {(SECOND, "orders", queue, "billing") for queue in (0, 1)}
    assert kept.view.topics[SECOND, "orders"].write_queue_nums == 2


async def test_more_queues_take_messages_once_their_readers_have_their_beginning() -> None:
    kept = Kept(FIRST, SECOND)
    await kept.keep_topics(ORDERS)
    for key in (FIRST, SECOND):
        kept.view.readers[key, "orders"] = frozenset({"billing"})
    kept.view.written.clear()
    await kept.keep_topics(TopicSpec(name="orders", queues=4))
    assert sorted(kept.view.written) == [(FIRST, 2), (FIRST, 4), (SECOND, 2), (SECOND, 4)]
    assert {queue for _, _, queue, _ in kept.view.first_offsets} == {2, 3}
    await kept.keep_topics(ORDERS)
    assert kept.view.topics[FIRST, "orders"].read_queue_nums == 4
    assert len(kept.view.first_offsets) == 4, "fewer queues change no offset"


async def test_without_declared_consumer_groups_no_group_is_asked_for_readers() -> None:
    kept = Kept(FIRST, SECOND)
    kept.view.unreachable = {FIRST, SECOND}
    assert await kept.keep_topics(ORDERS, consumer_groups=()) == Standing(1, 1)
    assert kept.view.written == [(FIRST, 2), (SECOND, 2)]


async def beside_a_new_group(*topics: TopicSpec, readers: Collection[str] = ()) -> Kept:
    """The first group has these topics, whose first one has these readers; the second has just got its master."""
    kept = Kept(FIRST)
    await kept.keep_topics(*topics)
    kept.view.readers[FIRST, topics[0].name] = frozenset(readers)
    kept.view.written.clear()
    kept.lead(SECOND)
    return kept


async def test_a_topic_waits_for_the_consumer_groups_of_its_master() -> None:
    kept = await beside_a_new_group(ORDERS)
    kept.view.unreachable = {SECOND}
    standing = await kept.keep_topics(ORDERS)
    assert standing.pending == ("group shop-1: topic orders waits for its consumer groups",)
    assert kept.view.written == []
    kept.view.unreachable = set()
    assert await kept.keep_topics(ORDERS) == Standing(1, 1)


@pytest.mark.parametrize("how", ["no answer", "no master"])
async def test_a_new_topic_waits_a_minute_for_the_only_group_that_knows_its_readers(how: str) -> None:
    """Then it takes messages all the same: the group may be there because the other one is lost."""
    kept = await beside_a_new_group(ORDERS)
    if how == "no answer":
        kept.view.unreachable = {FIRST}
    else:
        lost = replace(record_of(kept.view.snapshots[FIRST]), master_process_lost=True)
        kept.view.snapshots[FIRST] = replace(kept.view.snapshots[FIRST], record=lost)
    standing = await kept.keep_topics(ORDERS)
    assert "topic orders waits for the names of its readers" in standing.pending[0]
    kept.now_seconds = PATIENCE_SECONDS - 1
    assert (await kept.keep_topics(ORDERS)).pending
    kept.now_seconds = PATIENCE_SECONDS
    assert (await kept.keep_topics(ORDERS)) == Standing(1, 1)


async def test_topics_wait_together_and_a_silent_group_is_asked_once_a_look() -> None:
    kept = await beside_a_new_group(ORDERS, PAYMENTS)
    kept.view.unreachable = {FIRST}
    kept.view.asked_for_readers.clear()
    standing = await kept.keep_topics(ORDERS, PAYMENTS)
    assert len(standing.pending[0].split("; ")) == 2
    assert kept.view.asked_for_readers == [FIRST]
    kept.now_seconds = PATIENCE_SECONDS
    assert await kept.keep_topics(ORDERS, PAYMENTS) == Standing(2, 2)
    assert kept.view.written == [(SECOND, 2), (SECOND, 4)]


async def test_a_topic_that_is_declared_again_waits_a_minute_again() -> None:
    kept = await beside_a_new_group(PAYMENTS)
    kept.view.unreachable = {FIRST}
    assert (await kept.keep_topics(ORDERS, PAYMENTS)).pending
    await kept.keep_topics(PAYMENTS)
    kept.now_seconds = PATIENCE_SECONDS
    await kept.keep_topics(PAYMENTS)
    assert (SECOND, "payments") in kept.view.topics
    assert (await kept.keep_topics(ORDERS, PAYMENTS)).pending
    assert (SECOND, "orders") not in kept.view.topics


async def test_a_topic_that_waits_holds_up_no_other() -> None:
    kept = Kept(FIRST, SECOND)
    kept.view.topics[SECOND, "orders"] = topic("orders", 2, 0)
    kept.view.topics[SECOND, "payments"] = topic("payments", 8)
    kept.view.unreachable = {FIRST}
    assert (await kept.keep_topics(ORDERS, PAYMENTS)).pending
    assert kept.view.topics[SECOND, "orders"].write_queue_nums == 0
    assert kept.view.topics[SECOND, "payments"].write_queue_nums == 4


async def test_a_consumer_group_that_a_master_refuses_delays_its_topics_for_a_minute() -> None:
    kept = await beside_a_new_group(ORDERS)
    kept.view.refuses_consumer_groups = {SECOND}
    assert (await kept.keep_topics(ORDERS)).pending
    kept.now_seconds = PATIENCE_SECONDS
    assert await kept.keep_topics(ORDERS) == Standing(1, 1)
    assert kept.view.topics[SECOND, "orders"].write_queue_nums == 2


async def test_a_consumer_group_that_is_refused_holds_up_no_other() -> None:
    kept = Kept(FIRST, SECOND)
    kept.view.refused_names = {"billing"}
    others = (BILLING, ConsumerGroupSpec(name="audit"))
    standing = await kept.keep(*others)
    assert set(kept.view.consumer_group_tables[FIRST]) == set(kept.view.consumer_group_tables[SECOND]) == {"audit"}
    told = "consumer group billing: group n/{}: 200 answered 16"
    assert standing == Standing(2, 1, pending=(told.format("shop-0"), told.format("shop-1")))
    kept.view.refused_names = set()
    assert await kept.keep(*others) == Standing(2, 2), "it is looked at again in the next pass"


async def test_a_topic_that_is_refused_holds_up_no_other() -> None:
    kept = Kept(FIRST, SECOND)
    kept.view.refused_names = {"orders"}
    standing = await kept.keep_topics(ORDERS, PAYMENTS, consumer_groups=())
    assert set(kept.view.topics) == {(FIRST, "payments"), (SECOND, "payments")}
    assert (standing.ready, standing.desired) == (1, 2)
    assert standing.pending == tuple(f"topic orders: group n/{name}: 17 answered 16" for name in ("shop-0", "shop-1"))


async def test_a_master_that_does_not_answer_is_not_asked_for_each_of_them() -> None:
    """Each request would have its deadline."""
    kept = Kept(FIRST, SECOND)
    kept.view.unreachable = {SECOND}
    many = tuple(ConsumerGroupSpec(name=f"group-{number}") for number in range(9))
    assert (await kept.keep(*many)).pending == ("group n/shop-1: no answer",)


async def test_offsets_that_a_master_refuses_delay_a_topic_for_a_minute() -> None:
    """As with a key that may not do it: the topic would stay without a queue to write to."""
    kept = await beside_a_new_group(ORDERS, readers={"billing"})
    kept.view.refuses_offsets = {SECOND}
    assert "15 answered 16" in (await kept.keep_topics(ORDERS)).pending[0]
    await kept.keep_topics(ORDERS)
    assert kept.view.written == [(SECOND, 0)], "and the topic is not written again in each pass"
    kept.now_seconds = PATIENCE_SECONDS
    assert await kept.keep_topics(ORDERS) == Standing(1, 1)
    assert kept.view.topics[SECOND, "orders"].write_queue_nums == 2


async def test_a_group_whose_record_is_not_read_yet_may_have_readers() -> None:
    """As right after a start of the operator: its groups come one by one."""
    kept = Kept(SECOND)
    kept.view.topics[SECOND, "orders"] = topic("orders", 2, 0)
    kept.view.readers[FIRST, "orders"] = frozenset({"billing"})
    del kept.view.snapshots[FIRST]
    assert "shop-0" in "".join((await kept.keep_topics(ORDERS)).pending)
    assert kept.view.topics[SECOND, "orders"].write_queue_nums == 0
    kept.lead(FIRST)
    await kept.keep_topics(ORDERS)
    assert set(kept.view.first_offsets) == {(SECOND, "orders", queue, "billing") for queue in (0, 1)}
    assert kept.view.topics[SECOND, "orders"].write_queue_nums == 2


async def test_a_topic_that_a_new_master_lacks_does_not_count_while_it_waits() -> None:
    kept = Kept(FIRST, SECOND)
    assert await kept.keep_topics(ORDERS) == Standing(1, 1)
    del kept.view.topics[SECOND, "orders"]
    kept.lead(SECOND, epoch=2)
    kept.view.unreachable = {FIRST}
    standing = await kept.keep_topics(ORDERS)
    assert (standing.ready, len(standing.pending)) == (0, 1)
    kept.view.unreachable = set()
    assert await kept.keep_topics(ORDERS) == Standing(1, 1), "it is looked at again in the next pass"


async def test_a_topic_with_many_offsets_to_set_waits_for_the_next_passes() -> None:
    wide = TopicSpec(name="orders", queues=3)
    kept = await beside_a_new_group(wide, readers={"billing"})
    kept.view.offsets_at_once = 1
    for left in (2, 1):
        standing = await kept.keep_topics(wide)
        assert (standing.ready, f" {left} " in standing.pending[0]) == (0, True)
        assert kept.view.topics[SECOND, "orders"].write_queue_nums == 0
        kept.now_seconds += 2 * PATIENCE_SECONDS
    assert await kept.keep_topics(wide) == Standing(1, 1)
    assert len(kept.view.first_offsets) == 3


async def test_a_topic_that_a_broker_makes_meanwhile_for_a_producer_keeps_its_queues_to_write_to() -> None:
    kept = Kept(FIRST, SECOND)
    kept.view.readers[FIRST, "orders"] = frozenset({"billing"})
    kept.view.topics[FIRST, "orders"] = topic("orders", 8)
    kept.view.made_meanwhile = {(SECOND, "orders"): topic("orders", 4)}
    assert "was changed" in (await kept.keep_topics(EIGHT)).pending[0]
    assert kept.view.written == []
    kept.view.made_meanwhile = {}
    assert await kept.keep_topics(EIGHT) == Standing(1, 1)
    assert kept.view.written == [(SECOND, 4), (SECOND, 8)]
