"""Which messages keep a group: a table over what a master says of its topics. Pure."""

from __future__ import annotations

import pytest

from brokergroup_operator.api.brokergroup_operation import MAX_GROUP_NAME
from brokergroup_operator.controller.peers.broker_calls import PASSING_NAME
from brokergroup_operator.observe.group_offsets import GroupOffsets, TopicOffsets
from brokergroup_operator.reconcile.decide import unread
from tests.operations.retiring import offsets, topic
from tests.reconcile.cases import table

HALF, TIMERS, DELAYED = "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX"
REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"


def read(**of_groups: dict[int, int]) -> dict[str, dict[int, int]]:
    """Offsets of consumer groups in topic t."""
    return {f"t@{group}": queues for group, queues in of_groups.items()}


NOTHING_TO_READ = (
    "RMQ_SYS_TRANS_OP_HALF_TOPIC", "RMQ_SYS_TRACE_TOPIC", "DefaultHeartBeatSyncerTopic", "DefaultCluster_REPLY_TOPIC",
    "BROKERGROUP_CANARY", REVIVE, "rmq_sys_SYNC_BROKER_MEMBER_orders",
)  # fmt: skip
LMQ = "%LMQ%: with enableLmq or enableMultiDispatch this broker keeps queues that can't be counted"
CASES: list[tuple[str, GroupOffsets, str]] = [
    ("no message ever", offsets(), ""),
    ("all expired", offsets({"t": topic((3, 3))}), ""),
    ("no reader", offsets({"t": topic((0, 5), (0, 2))}), "topic t: 7 messages in 2 queues that no consumer group reads"),
    ("read", offsets({"t": topic((0, 5), readers=("a",))}, consumed=read(a={0: 5})), ""),
    (
        "two behind, one of them in a queue that it never read",
        offsets({"t": topic((0, 5), (0, 4), (0, 0), readers=("a", "b"))}, consumed=read(a={0: 4, 1: 4}, b={0: 2})),
        "topic t: 7 messages in 2 queues, unread by b (7), a (1)",
    ),
    (
        "a group that has subscribed a moment ago", offsets({"t": topic((0, 5), readers=("a", "late"))}, consumed=read(a={0: 5})),
        "topic t: 5 messages in 1 queue, unread by late (5)",
    ),
    (
        "expired messages are not waited for", offsets({"t": topic((2, 5), readers=("a",))}, consumed=read(a={0: 1})),
        "topic t: 3 messages in 1 queue, unread by a (3)",
    ),
    (
        "an offset beyond the end is of another log",
        offsets({"t": topic((0, 5), (0, 2), readers=("a",))}, consumed=read(a={0: 9, 1: 2})),
        "topic t: 5 messages in 1 queue, unread by a (5, its offset is beyond the end)",
    ),
    (
        "a queue that the broker does not list",
        offsets({"t": TopicOffsets(queues={}, readers=frozenset("a"), unlisted=(7,))}, consumed=read(a={7: 3})),
        "topic t: 1 queue beyond its number of queues, which can't be counted",
    ),
    (
        "such a queue that nobody reads", offsets({"t": TopicOffsets(queues={}, readers=frozenset(), unlisted=(7,))}),
        "topic t: 1 queue beyond its number of queues, which can't be counted",
    ),
    (
        "a topic that only a slave has", offsets(missing_topics=frozenset({"t", "BROKERGROUP_CANARY"})),
        "topic t: the master lacks it, and another member has it",
    ),
    ("a topic with which a slave is made to copy", offsets(missing_topics=frozenset({PASSING_NAME})), ""),
    *((key, offsets(uncounted=(key,)), LMQ) for key in ("enableLmq", "enableMultiDispatch")),
    (
        "a retry", offsets({"%RETRY%a": topic((0, 2), readers=("a",))}, consumed={"%RETRY%a@a": {0: 1}}),
        "topic %RETRY%a: 1 messages in 1 queue, unread by a (1)",
    ),
    ("a dead letter", offsets({"%DLQ%a": topic((0, 1))}), "topic %DLQ%a: 1 messages in 1 queue that no consumer group reads"),
    (
        "delayed", offsets({DELAYED: topic((0, 3), (0, 2))}, delayed={1: 3, 2: 1}),
        f"topic {DELAYED}: 1 messages in 1 queue that are delivered later",
    ),
    ("delivered", offsets({DELAYED: topic((0, 3))}, delayed={1: 3}), ""),
    ("timers", offsets({TIMERS: topic((0, 8))}, timers=2), f"topic {TIMERS}: 2 messages in 1 queue that are delivered later"),
    ("no timer left", offsets({TIMERS: topic((0, 8))}, timers=0), ""),
    ("timers unknown", offsets({TIMERS: topic((0, 8))}), f"topic {TIMERS}: 8 messages in 1 queue that are delivered later"),
    (
        "timers that no request counts", offsets({TIMERS: topic((0, 8))}, timers=0, uncounted=("timerRocksDBEnable",)),
        f"topic {TIMERS}: 8 messages in 1 queue that are delivered later",
    ),
    (
        "an open transaction",
        offsets({HALF: topic((0, 3), readers=("CID_RMQ_SYS_TRANS",))}, consumed={f"{HALF}@CID_RMQ_SYS_TRANS": {0: 2}}),
        f"topic {HALF}: 1 messages in 1 queue, unread by CID_RMQ_SYS_TRANS (1)",
    ),
    (
        "half messages whose readers are not known", offsets({"RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC": topic((0, 3))}),
        "topic RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC: 3 messages in 1 queue that no consumer group reads",
    ),
    (
        "popped messages that no request counts", offsets(uncounted=("popConsumerKVServiceEnable",)),
        f"{REVIVE}: popped messages that this broker keeps in a RocksDB can't be counted",
    ),
    *((name, offsets({name: topic((0, 3))}), "") for name in NOTHING_TO_READ),
]  # fmt: skip


@pytest.mark.parametrize(("seen", "told"), table(CASES))
def test_what_keeps_a_group(seen: GroupOffsets, told: str) -> None:
    assert unread.described(unread.unread_topics(seen)) == told


def test_what_a_user_gives_up_is_named() -> None:
    seen = offsets({"t": topic((0, 5), readers=("a", "old")), "u": topic((0, 1))}, consumed=read(a={0: 5}, old={0: 1}))
    names = [one.topic for one in unread.unread_topics(seen)]
    assert names == ["t", "u"], "the most messages first"
    assert [one.topic for one in unread.unread_topics(seen, without_groups=["old"])] == ["u"]
    assert unread.unread_topics(seen, abandoned=["t", "u"]) == []
    only_reader = unread.unread_topics(seen, without_groups=["old", "a"], abandoned=["u"])
    assert unread.described(only_reader) == "topic t: 5 messages in 1 queue that no consumer group reads"


def test_many_topics_are_told_in_short() -> None:
    many = unread.unread_topics(offsets({f"t{number}": topic((0, 1)) for number in range(20)}))
    assert unread.described(many).endswith("; and 12 more topics")


def test_a_new_message_moves_the_position_and_a_heartbeat_of_proxies_does_not() -> None:
    before = {"t": topic((0, 5)), REVIVE: topic((0, 2)), "DefaultHeartBeatSyncerTopic": topic((0, 7))}
    assert unread.position_of(offsets(before)) == 7
    assert unread.position_of(offsets(before | {"DefaultHeartBeatSyncerTopic": topic((0, 9))})) == 7
    assert unread.position_of(offsets(before | {REVIVE: topic((0, 3))})) == 8, "a pop may bring a message back"
    assert unread.settle_seconds(offsets(before)) == unread.SETTLE_SECONDS_WITH_POP
    assert unread.settle_seconds(offsets({"t": topic((0, 5))})) == unread.SETTLE_SECONDS


def test_a_reader_that_the_broker_no_longer_hears_is_waited_for() -> None:
    """Its process has just started: a consumer group that only subscribed, and committed nothing, is gone from its answers."""
    heard = offsets({"t": topic((0, 5), readers=("a", "late", "old"))}, consumed=read(a={0: 5}))
    before = unread.look_at(heard, without_groups=["old"])
    assert before.readers == ("t@late",)
    silent = offsets({"t": topic((0, 5), readers=("a",))}, consumed=read(a={0: 5}))
    after = unread.look_at(silent, without_groups=["old"], readers=before.readers)
    assert unread.described(after.unread) == "topic t: 5 messages in 1 queue, unread by late (5)"
    assert after.readers == before.readers
    done = offsets({"t": topic((0, 5), readers=("a",))}, consumed=read(a={0: 5}, late={0: 5}))
    assert (
        unread.look_at(done, readers=before.readers).unread,
        unread.look_at(done, readers=before.readers).readers,
    ) == ((), ())


def test_long_names_fit_into_a_status() -> None:
    """A broker takes longer names of consumer groups than the status does; one that is refused would stop the operation."""
    look = unread.look_at(offsets({"t": topic((0, 5), readers=("g" * 300,))}))
    (lag,) = look.unread[0].consumer_groups
    assert len(lag.name) == MAX_GROUP_NAME
    many = frozenset(f"g{number}" for number in range(400))
    assert len(unread.look_at(offsets({"t": TopicOffsets(queues=topic((0, 5)).queues, readers=many)})).readers) == 256
