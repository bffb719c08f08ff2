"""Bodies of the requests by which ordered consumers lock their queues (41 and 42)."""

from __future__ import annotations

import msgspec

from rocketmq_remoting.json_body import JsonBody, JsonPart


class MessageQueue(JsonPart, frozen=True):
    """One queue of a topic on one broker."""

    topic: str
    queue_id: int
    broker_name: str = ""


class LockBatchBody(JsonBody, frozen=True):
    """41 and 42: who wants, or gives back, which queues."""

    consumer_group: str
    client_id: str
    mq_set: tuple[MessageQueue, ...] = ()


class LockBatchAnswerBody(JsonBody, frozen=True):
    """41's answer: the queues that are locked for the asker."""

    locked: tuple[MessageQueue, ...] = msgspec.field(default=(), name="lockOKMQSet")
