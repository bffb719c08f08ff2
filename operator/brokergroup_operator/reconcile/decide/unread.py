"""Which unread messages keep a group from being deleted. Pure.

A topic counts unless it is one of RocketMQ's own that holds no message for consumers. It is read once every consumer group that
reads it has read every queue to its end. A topic with messages and without a reader is unread: whether it is needed is for a
person to say (`abandonTopics`). What the broker itself delivers later counts too: delayed messages, timers, half messages of
transactions. A message that a consumer popped and has not acknowledged waits as a timer (Java 5.5.0), or in the broker's memory for
some seconds: so with pop everything must stay read for `SETTLE_SECONDS_WITH_POP`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from msgspec import structs

from brokergroup_operator.api.brokergroup_operation import (
    MAX_GROUP_NAME,
    MAX_KNOWN_READERS,
    MAX_READER_CHARACTERS,
    MAX_TOPIC_NAME,
    MAX_UNREAD_GROUPS,
    ConsumerLag,
    UnreadTopic,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from brokergroup_operator.observe.group_offsets import GroupOffsets, TopicOffsets
    from rocketmq_remoting.broker_protocol import QueueOffsets

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
REVIVE_PREFIX: Final = "rmq_sys_REVIVE_LOG_"
# As which light message queues are named that no request counts.
LIGHT_QUEUES: Final = "%LMQ%"
# What they hold is for brokers, proxies and tools, and worth nothing once the group is gone.
_NOT_FOR_CONSUMERS: Final = frozenset(
    {
        "BROKERGROUP_CANARY",  # controller/upkeep/recovery_watch.py
        "BROKERGROUP_OPERATOR_PASSING",  # controller/peers/broker_calls.py: at a slave only, and takes no message
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The result of one look at a group's master, without the tables that it was read from."""

    master_id: int
    epoch: int
    read_at_unix_seconds: float
    booted_at_unix_seconds: float | None
    takes_sends: bool
    acknowledges: bool
    log_end: int
    steady: bool
    position: int
    settle_seconds: float
    # The topics that keep the group, those with the most messages first.
    unread: tuple[UnreadTopic, ...]
    # `topic@group` of consumer groups that subscribe to a topic, now or in an earlier look, and have no offset of it. The broker
    # knows them only while its process hears them.
    readers: tuple[str, ...]


def look_at(
    offsets: GroupOffsets,
    *,
    abandoned: Collection[str] = (),
    without_groups: Collection[str] = (),
    readers: Collection[str] = (),
) -> Look:
    """Judge what was read. `readers` are those of the look before. Takes seconds for a group with many topics and readers."""
    without = frozenset(without_groups)
    known = _with_readers(offsets, readers)
    return Look(
        master_id=offsets.master_id,
        epoch=offsets.epoch,
        read_at_unix_seconds=offsets.read_at_unix_seconds,
        booted_at_unix_seconds=offsets.booted_at_unix_seconds,
        takes_sends=offsets.takes_sends,
        acknowledges=offsets.acknowledges,
        log_end=offsets.log_end,
        steady=offsets.steady,
        position=position_of(offsets),
        settle_seconds=settle_seconds(offsets),
        unread=tuple(unread_topics(known, abandoned=abandoned, without_groups=without)),
        readers=tuple(sorted(_without_offset(known, abandoned, without))[:MAX_KNOWN_READERS]),
    )


def _with_readers(offsets: GroupOffsets, readers: Collection[str]) -> GroupOffsets:
    """The same with the readers of the look before: a master whose process has just started has heard no consumer yet."""
    topics = dict(offsets.topics)
    for name, _, group in (one.partition("@") for one in readers):
        if (topic := topics.get(name)) is not None and group not in topic.readers:
            topics[name] = replace(topic, readers=topic.readers | {group})
    return replace(offsets, topics=topics)


def _without_offset(offsets: GroupOffsets, abandoned: Collection[str], without: frozenset[str]) -> Iterator[str]:
    for name, topic in offsets.topics.items():
        if name in abandoned or not counts(offsets, name):
            continue
        pairs = (f"{name}@{group}" for group in topic.readers - without)
        yield from (one for one in pairs if one not in offsets.consumed and len(one) <= MAX_READER_CHARACTERS)


def unread_topics(
    offsets: GroupOffsets, *, abandoned: Collection[str] = (), without_groups: Collection[str] = ()
) -> list[UnreadTopic]:
    """The topics that keep the group, those with the most messages first."""
    without = frozenset(without_groups)
    found = [
        *_uncounted(offsets),
        *(UnreadTopic(topic=name, queues=0, messages=0) for name in _missing(offsets)),
        *(
            unread
            for name, topic in offsets.topics.items()
            if counts(offsets, name) and (unread := _unread(offsets, name, topic, without))
        ),
    ]
    kept = (_cut(one) for one in found if one.topic not in abandoned)
    return sorted(kept, key=lambda one: (-one.messages, one.topic))


def _cut(one: UnreadTopic) -> UnreadTopic:
    """As long as a status takes it: a broker bounds the names of consumer groups less strictly."""
    lags = [structs.replace(lag, name=lag.name[:MAX_GROUP_NAME]) for lag in one.consumer_groups]
    return structs.replace(one, topic=one.topic[:MAX_TOPIC_NAME], consumer_groups=lags)


def _missing(offsets: GroupOffsets) -> list[str]:
    return sorted(name for name in offsets.missing_topics if counts(offsets, name))


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


def described(unread: Collection[UnreadTopic], *, most: int = 8) -> str:
    """The first of them with queues, messages and the consumer groups that are behind."""
    listed = [_description(one) for one in unread][:most]
    more = [f"and {len(unread) - most} more topics"] if len(unread) > most else []
    return "; ".join([*listed, *more])


def _description(one: UnreadTopic) -> str:  # noqa: PLR0911 (one return per kind)
    if one.topic == LIGHT_QUEUES:
        return f"{one.topic}: with enableLmq or enableMultiDispatch this broker keeps queues that can't be counted"
    if one.topic.startswith(REVIVE_PREFIX):
        return f"{one.topic}: popped messages that this broker keeps in a RocksDB can't be counted"
    queues = "1 queue" if one.queues == 1 else f"{one.queues} queues"
    if not one.messages and one.queues:
        return f"topic {one.topic}: {queues} beyond its number of queues, which can't be counted"
    if not one.messages:
        return f"topic {one.topic}: the master lacks it, and another member has it"
    what = f"topic {one.topic}: {one.messages} messages in {queues}"
    if one.topic in (SCHEDULE_TOPIC, TIMER_TOPIC):
        return f"{what} that are delivered later"
    if not one.consumer_groups:
        return f"{what} that no consumer group reads"
    behind = ", ".join(f"{lag.name} ({_lag(lag)})" for lag in one.consumer_groups)
    return f"{what}, unread by {behind}"


def _lag(lag: ConsumerLag) -> str:
    return f"{lag.messages}, its offset is beyond the end" if lag.beyond_end else str(lag.messages)


def _uncounted(offsets: GroupOffsets) -> Iterator[UnreadTopic]:
    if "popConsumerKVServiceEnable" in offsets.uncounted:
        yield UnreadTopic(topic=f"{REVIVE_PREFIX}{offsets.cluster_name}", queues=0, messages=0)
    if {"enableLmq", "enableMultiDispatch"} & set(offsets.uncounted):
        yield UnreadTopic(topic=LIGHT_QUEUES, queues=0, messages=0)


def _unread(
    offsets: GroupOffsets, name: str, topic: TopicOffsets, without_groups: frozenset[str]
) -> UnreadTopic | None:
    if name == SCHEDULE_TOPIC:
        return _of(
            name, {queue_id: _behind(one, offsets.delayed.get(queue_id + 1)) for queue_id, one in topic.queues.items()}
        )
    if name == TIMER_TOPIC and offsets.timers is not None and "timerRocksDBEnable" not in offsets.uncounted:
        return UnreadTopic(topic=name, queues=len(topic.queues), messages=offsets.timers) if offsets.timers else None
    consumed = {group: offsets.consumed.get(f"{name}@{group}", {}) for group in topic.readers - without_groups}
    lags = {
        group: {queue_id: _behind(one, read.get(queue_id)) for queue_id, one in topic.queues.items()}
        for group, read in consumed.items()
    }
    unlisted = UnreadTopic(topic=name, queues=len(topic.unlisted), messages=0) if topic.unlisted else None
    if not lags:
        return _of(name, {queue_id: _behind(one, None) for queue_id, one in topic.queues.items()}) or unlisted
    behind = sorted(
        (
            ConsumerLag(name=group, messages=sum(queues.values()), beyond_end=_is_beyond(topic.queues, consumed[group]))
            for group, queues in lags.items()
            if any(queues.values())
        ),
        key=lambda lag: (-lag.messages, lag.name),
    )
    if not behind:
        return unlisted
    queues = {queue_id for found in lags.values() for queue_id, lag in found.items() if lag}
    return UnreadTopic(
        topic=name, queues=len(queues), messages=behind[0].messages, consumer_groups=behind[:MAX_UNREAD_GROUPS]
    )


def _of(name: str, lags: Mapping[int, int]) -> UnreadTopic | None:
    queues = sum(1 for lag in lags.values() if lag)
    return UnreadTopic(topic=name, queues=queues, messages=sum(lags.values())) if queues else None


def _behind(queue: QueueOffsets, offset: int | None) -> int:
    """How many messages of the queue come at this offset or later; None: all. Expired messages count for nothing.

    An offset beyond the end is of a log that this master lacks (after an unclean election): it says nothing of what is here.
    """
    begin = queue.minimum if offset is None or offset > queue.maximum else max(offset, queue.minimum)
    return max(0, queue.maximum - begin)


def _is_beyond(queues: Mapping[int, QueueOffsets], read: Mapping[int, int]) -> bool:
    return any(read.get(queue_id, 0) > one.maximum for queue_id, one in queues.items())
