"""Which messages of a group nobody has read yet, and that keep it from being deleted. Pure.

A topic counts unless it is one of RocketMQ's own that holds no message for consumers. It is read once every consumer group that
reads it has read every queue to its end. A topic with messages and without a reader is unread: whether it is needed is for a
person to say (`abandonTopics`). What the broker itself delivers later counts too: delayed messages, timers, half messages of
transactions. A message that a consumer popped and has not acknowledged waits as a timer (Java 5.5.0), or in the broker's memory for
some seconds: so with pop everything must stay read for `SETTLE_SECONDS_WITH_POP`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokergroup_operator.api.brokergroup_operation import (
    MAX_UNREAD_GROUPS,
    ConsumerLag,
    UnreadTopic,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from brokergroup_operator.observe.group_offsets import GroupOffsets, TopicOffsets
    from rocketmq_remoting.broker_protocol import QueueOffsets

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
REVIVE_PREFIX: Final = "rmq_sys_REVIVE_LOG_"
# What they hold is for brokers, proxies and tools, and worth nothing once the group is gone.
_NOT_FOR_CONSUMERS: Final = frozenset(
    {
        "BROKERGROUP_CANARY",  # controller/upkeep/recovery_watch.py
        "CHECKPOINT_TOPIC",
        "DefaultHeartBeatSyncerTopic",  # proxies tell each other of their clients, and keep their own offsets
        "OFFSET_MOVED_EVENT",
        "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
        "RMQ_SYS_TRACE_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "SELF_TEST_TOPIC",
        "TBW102",
    }
)
_PREFIXES_NOT_FOR_CONSUMERS: Final = (REVIVE_PREFIX, "rmq_sys_SYNC_BROKER_MEMBER_")
_REPLIES: Final = "_REPLY_TOPIC"

SETTLE_SECONDS: Final = 3.0
# A popped message is stored within popCkStayBufferTime (10 s) and 3 s, and brought back within 5 s of its time.
SETTLE_SECONDS_WITH_POP: Final = 30.0


def unread_topics(
    offsets: GroupOffsets, *, abandoned: Collection[str] = (), without_groups: Collection[str] = ()
) -> list[UnreadTopic]:
    """The topics that keep the group, those with the most messages first."""
    found = [
        *_uncounted(offsets),
        *(
            unread
            for name, topic in offsets.topics.items()
            if counts(offsets, name) and (unread := _unread(offsets, name, topic, frozenset(without_groups)))
        ),
    ]
    return sorted((one for one in found if one.topic not in abandoned), key=lambda one: (-one.messages, one.topic))


def counts(offsets: GroupOffsets, topic: str) -> bool:
    """Whether its messages are for consumers."""
    own = topic in _NOT_FOR_CONSUMERS or topic.startswith(_PREFIXES_NOT_FOR_CONSUMERS)
    return not own and topic != f"{offsets.cluster_name}{_REPLIES}"


def settle_seconds(offsets: GroupOffsets) -> float:
    """How long everything must stay read before it counts as read."""
    with_pop = any(name.startswith(REVIVE_PREFIX) for name in offsets.topics)
    return SETTLE_SECONDS_WITH_POP if with_pop else SETTLE_SECONDS


def position_of(offsets: GroupOffsets) -> int:
    """The sum of all queues' ends: another one if any message was stored that counts, or was popped."""
    popped = {name for name in offsets.topics if name.startswith(REVIVE_PREFIX)}
    counted = (topic for name, topic in offsets.topics.items() if name in popped or counts(offsets, name))
    return sum(queue.maximum for topic in counted for queue in topic.queues.values())


def told(unread: Collection[UnreadTopic], *, most: int = 8) -> str:
    """The first of them with queues, messages and the consumer groups that are behind."""
    listed = [_one_told(one) for one in unread][:most]
    more = [f"and {len(unread) - most} more topics"] if len(unread) > most else []
    return "; ".join([*listed, *more])


def _one_told(one: UnreadTopic) -> str:
    if one.topic.startswith(REVIVE_PREFIX):
        return f"{one.topic}: popped messages that this broker keeps in a RocksDB can't be counted"
    queues = "1 queue" if one.queues == 1 else f"{one.queues} queues"
    what = f"topic {one.topic}: {one.messages} messages in {queues}"
    if one.topic in (SCHEDULE_TOPIC, TIMER_TOPIC):
        return f"{what} that are delivered later"
    if not one.consumer_groups:
        return f"{what} that no consumer group reads"
    behind = ", ".join(f"{lag.name} ({lag.messages})" for lag in one.consumer_groups)
    return f"{what}, unread by {behind}"


def _uncounted(offsets: GroupOffsets) -> Iterator[UnreadTopic]:
    if "popConsumerKVServiceEnable" in offsets.uncounted:
        yield UnreadTopic(topic=f"{REVIVE_PREFIX}{offsets.cluster_name}", queues=0, messages=0)


def _unread(
    offsets: GroupOffsets, name: str, topic: TopicOffsets, without_groups: frozenset[str]
) -> UnreadTopic | None:
    if name == SCHEDULE_TOPIC:
        return _of(
            name, {queue_id: _behind(one, offsets.delayed.get(queue_id + 1)) for queue_id, one in topic.queues.items()}
        )
    if name == TIMER_TOPIC and offsets.timers is not None and "timerRocksDBEnable" not in offsets.uncounted:
        return UnreadTopic(topic=name, queues=len(topic.queues), messages=offsets.timers) if offsets.timers else None
    lags = {
        group: {
            queue_id: _behind(one, offsets.consumed.get(f"{name}@{group}", {}).get(queue_id))
            for queue_id, one in topic.queues.items()
        }
        for group in topic.readers - without_groups
    }
    if not lags:
        return _of(name, {queue_id: _behind(one, None) for queue_id, one in topic.queues.items()})
    behind = sorted(
        (
            ConsumerLag(name=group, messages=sum(queues.values()))
            for group, queues in lags.items()
            if any(queues.values())
        ),
        key=lambda lag: (-lag.messages, lag.name),
    )
    if not behind:
        return None
    queues = {queue_id for found in lags.values() for queue_id, lag in found.items() if lag}
    return UnreadTopic(
        topic=name, queues=len(queues), messages=behind[0].messages, consumer_groups=behind[:MAX_UNREAD_GROUPS]
    )


def _of(name: str, lags: Mapping[int, int]) -> UnreadTopic | None:
    queues = _nonzero(lags.values())
    return UnreadTopic(topic=name, queues=queues, messages=sum(lags.values())) if queues else None


def _nonzero(lags: Iterable[int]) -> int:
    return sum(1 for lag in lags if lag)


def _behind(queue: QueueOffsets, offset: int | None) -> int:
    """How many messages of the queue come at this offset or later; None: all. Expired messages count for nothing."""
    begin = queue.minimum if offset is None else max(offset, queue.minimum)
    return max(0, queue.maximum - begin)
