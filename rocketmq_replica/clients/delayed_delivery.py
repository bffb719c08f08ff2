"""Delayed delivery of messages that consumers sent back, as in Java.

A delayed message is stored in ``SCHEDULE_TOPIC_XXXX``, in the queue of its level, with its real topic and queue in the properties
``REAL_TOPIC`` and ``REAL_QID``. So it is replicated like any other message, and any next master delivers it, Java or Python. When
it is due, the master stores a copy in its real topic.

An offset counts as delivered only when the copy is confirmed and durable: a crash or a failover may deliver a message twice, and
never loses one (``tests/replica/test_delayed_delivery.py``).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rocketmq_remoting.message_record import (
    MessageRecordError,
    StoredMessage,
    decode_properties,
    decode_record,
    encode_properties,
)
from rocketmq_replica.broker import Broker, NotWritableError, wall_clock_ms
from rocketmq_replica.log.message_store import MessageTooLargeError, NewMessage
from rocketmq_replica.master_term import NotEnoughReplicasError
from rocketmq_replica.topics import MAX_QUEUES, InvalidTopicError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rocketmq_replica.log.consume_queues import ConsumeQueue
    from rocketmq_replica.tables import DelayOffsets

logger = logging.getLogger(__name__)

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
DELAY = "DELAY"
_REAL_TOPIC, _REAL_QUEUE = "REAL_TOPIC", "REAL_QID"
_PERIOD_SECONDS = 0.1
_MOST_AT_ONCE = 200


def delay_level(properties: bytes) -> int:
    """Return the delay level in a message's properties; 0 for none."""
    if DELAY.encode() not in properties:
        return 0
    level = decode_properties(properties).get(DELAY, "0")
    return int(level) if level.isascii() and level.isdigit() and len(level) < 4 else 0


def kept_back(message: NewMessage, level: int) -> NewMessage:
    """Return the message for the schedule topic; ``level`` starts at 1."""
    properties = decode_properties(message.properties)
    properties |= {DELAY: str(level), _REAL_TOPIC: message.topic, _REAL_QUEUE: str(message.queue_id)}
    return _copy(message, SCHEDULE_TOPIC, level - 1, encode_properties(properties))


def _copy(message: NewMessage | StoredMessage, topic: str, queue_id: int, properties: bytes) -> NewMessage:
    return NewMessage(
        topic=topic,
        queue_id=queue_id,
        body=message.body,
        properties=properties,
        born_timestamp_ms=message.born_timestamp_ms,
        born_host=message.born_host,
        flag=message.flag,
        sys_flag=message.sys_flag,
        reconsume_times=message.reconsume_times,
    )


@dataclass
class _Level:
    """The delivery of one level during one term."""

    next_offset: int
    undelivered_until: deque[tuple[int, int]] = field(default_factory=deque)
    """(end of the copy in the log, next queue offset) of copies that are not confirmed and durable yet."""


class DelayedDelivery:
    """Delivers due messages while this replica is master."""

    def __init__(
        self,
        broker: Broker,
        offsets: DelayOffsets,
        delays_seconds: Sequence[int],
        *,
        on_topic_created: Callable[[], None],
    ) -> None:
        """``delays_seconds``: the delays of the levels 1, 2, …"""
        self._on_topic_created = on_topic_created
        self._broker = broker
        self._offsets = offsets
        self._delays_seconds = delays_seconds
        self._term: object = None
        self._levels: dict[int, _Level] = {}

    def term_begins(self) -> None:
        """Correct offsets beyond the end of their queue before this master stores a message there: it would count as delivered.

        Such an offset was copied from a master that had more messages. An empty queue continues at the offset, because its messages
        may all have been in deleted files. Otherwise those messages are lost, and the offset goes back to the queue's end.
        """
        store, ahead, back = self._broker.store, {}, {}
        for level in range(1, len(self._delays_seconds) + 1):
            queue, offset = store.queues.find(SCHEDULE_TOPIC, level - 1), self._offsets.get(level)
            if queue is None or not len(queue):
                ahead[SCHEDULE_TOPIC, level - 1] = offset
            elif offset > queue.next_offset:
                back[level] = queue.next_offset
        try:
            self._offsets.put_back(back)
            store.take_queue_offsets(ahead)
        except OSError as error:
            store.queues.begin_at({name: offset for name, offset in ahead.items() if offset > 0})
            logger.warning("delay offsets beyond their queues: not saved: %s", error.strerror)

    async def run(self) -> None:
        """Deliver until cancelled."""
        while True:
            more = self.deliver(now_ms=wall_clock_ms())
            await asyncio.sleep(0 if more else _PERIOD_SECONDS)

    def deliver(self, *, now_ms: int) -> bool:
        """Store copies of due messages. Return whether more may be due."""
        broker = self._broker
        if broker.term is not self._term:
            self._term, self._levels = broker.term, {}
        if broker.term is None:
            return False
        more = False
        for level, delay_seconds in enumerate(self._delays_seconds, 1):
            queue = broker.store.queues.find(SCHEDULE_TOPIC, level - 1)
            if queue is not None:
                more |= self._deliver_level(level, queue, due_ms=now_ms - 1000 * delay_seconds)
        return more

    def _deliver_level(self, level: int, queue: ConsumeQueue, *, due_ms: int) -> bool:
        store = self._broker.store
        state = self._levels.get(level)
        if state is None:
            begin = min(max(self._offsets.get(level), queue.min_offset), queue.next_offset)
            state = self._levels[level] = _Level(begin)
        end = min(queue.visible_end(store.confirm_offset), state.next_offset + _MOST_AT_ONCE)
        while state.next_offset < end and self._deliver_one(queue, state, due_ms):
            state.next_offset += 1
        held = min(store.confirm_offset, store.log.flushed_offset)
        delivered = None
        while state.undelivered_until and state.undelivered_until[0][0] <= held:
            delivered = state.undelivered_until.popleft()[1]
        if delivered is not None:
            self._offsets.put(level, delivered)
        return state.next_offset == end < queue.visible_end(store.confirm_offset)

    def _deliver_one(self, queue: ConsumeQueue, state: _Level, due_ms: int) -> bool:
        """Deliver one message. Return False if it is not due yet, or cannot be stored now."""
        store, offset = self._broker.store, state.next_offset
        place = queue.locate(offset)
        end_offset = 0
        if place is not None:
            try:
                message = decode_record(store.read_record(*place), physical_offset=place[0])
                if message.store_timestamp_ms > due_ms:
                    return False
                due = _to_deliver(message)
                self._make_topic(due)
                end_offset = self._broker.put_all([due])[0].end_offset
                self._broker.stored_without_waiting()
            except (NotWritableError, NotEnoughReplicasError):
                return False
            except (MessageRecordError, MessageTooLargeError, ValueError) as error:
                logger.error("a message that waited is left out: %s", error)  # noqa: TRY400 - the traceback says nothing
        state.undelivered_until.append((end_offset, offset + 1))
        return True

    def _make_topic(self, message: NewMessage) -> None:
        """Create the message's topic if this master never copied it: the log names a topic only once it has a message."""
        topics = self._broker.topics
        if topics.find(message.topic) is not None:
            return
        try:
            topics.create(message.topic, queue_count=message.queue_id + 1, now_ms=wall_clock_ms())
        except InvalidTopicError as error:
            # Too many topics: the message is stored nevertheless, and the log names its topic.
            logger.warning("no topic for a delayed message: %s", error)
        self._on_topic_created()


def _to_deliver(message: StoredMessage) -> NewMessage:
    """Return the copy for the real topic. Raise ValueError if the properties do not name it."""
    properties = dict(message.properties)
    properties.pop(DELAY, None)
    topic, queue_id = properties.get(_REAL_TOPIC, ""), properties.get(_REAL_QUEUE, "")
    if not topic or not queue_id.isascii() or not queue_id.isdigit() or int(queue_id) >= MAX_QUEUES:
        raise ValueError(f"message at offset {message.physical_offset}: REAL_TOPIC {topic!r}, REAL_QID {queue_id!r}")
    return _copy(message, topic, int(queue_id), encode_properties(properties))
