"""CONSUMER_SEND_MSG_BACK (36): a message that could not be consumed comes again, or goes to the dead letters.

The message is stored anew for ``%RETRY%group``, where it comes when its delay is over (``delayed_delivery.py``), or under
``%DLQ%group`` when it came too often.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rocketmq_remoting.client_protocol import ConsumerSendMsgBackRequestHeader
from rocketmq_remoting.codes import ResponseCode
from rocketmq_remoting.message_record import (
    BLANK_HEADER_BYTES,
    MessageRecordError,
    StoredMessage,
    decode_record,
    encode_properties,
)
from rocketmq_replica.clients.send_requests import RefusedError, SendRequests
from rocketmq_replica.log.message_store import NewMessage
from rocketmq_replica.metadata.topics import RETRY_PREFIX, InvalidTopicError
from rocketmq_replica.term.broker import Broker, Role, wall_clock_ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_remoting.handler import LaterAnswer
    from rocketmq_replica.metadata.subscription_groups import SubscriptionGroups

DEAD_LETTER_PREFIX = "%DLQ%"
_MOST_RECONSUME_TIMES = 16
_FIRST_RETRY_LEVEL = 3
"""10 s, as in Java, where the consumer leaves it to the broker."""


@dataclass(frozen=True)
class Destination:
    """Where the message goes, with which properties, and after which delay (0: at once)."""

    topic: str
    properties: dict[str, str]
    delay_level: int = 0


def destination(
    message: StoredMessage, header: ConsumerSendMsgBackRequestHeader, *, group_retries: int = _MOST_RECONSUME_TIMES
) -> Destination:
    """The retry topic, or the dead letters for one that came too often or that the consumer gave up (negative level).

    ``group_retries`` is the group's ``retryMaxTimes``; a consumer that names its own number goes by that, as in Java.
    """
    properties = dict(message.properties)
    properties.setdefault("ORIGIN_MESSAGE_ID", header.origin_msg_id or message.message_id)
    most = header.max_reconsume_times if header.max_reconsume_times is not None else group_retries
    if message.reconsume_times >= most or (header.delay_level or 0) < 0:
        properties.setdefault("DLQ_ORIGIN_TOPIC", properties.get("RETRY_TOPIC", message.topic))
        properties.setdefault("DLQ_ORIGIN_MESSAGE_ID", properties["ORIGIN_MESSAGE_ID"])
        return Destination(f"{DEAD_LETTER_PREFIX}{header.group}", properties)
    properties.setdefault("RETRY_TOPIC", message.topic)
    properties["CONSUME_START_TIME"] = properties.get("CONSUME_START_TIME", "0")
    level = header.delay_level or _FIRST_RETRY_LEVEL + message.reconsume_times
    return Destination(f"{RETRY_PREFIX}{header.group}", properties, level)


class RetryRequests:
    """The handler of 36."""

    def __init__(
        self, broker: Broker, sends: SendRequests, groups: SubscriptionGroups, *, on_topic_created: Callable[[], None]
    ) -> None:
        """``sends`` stores and acknowledges, ``groups`` say how often a message may come again."""
        self._groups = groups
        self._broker = broker
        self._sends = sends
        self._on_topic_created = on_topic_created

    def send_back(self, request: RemotingCommand) -> RemotingCommand | LaterAnswer:
        """36."""
        header = ConsumerSendMsgBackRequestHeader.decode(request.ext_fields)
        if self._broker.role is not Role.MASTER:
            return request.answer(ResponseCode.SYSTEM_ERROR, remark="this broker is no master")
        if not header.group:
            return request.answer(ResponseCode.SYSTEM_ERROR, remark="36 without a consumer group")
        try:
            message = self._find(header.offset)
            to = destination(message, header, group_retries=self._retries(header.group))
            stored = self._sends.put_all([self._sends.delayed(self._again(message, to), to.delay_level)])[0]
        except RefusedError as refusal:
            return request.answer(refusal.code, remark=refusal.remark)
        return self._sends.answer_when_acknowledged(request, stored.end_offset, {})

    def _retries(self, group: str) -> int:
        """Also as a Java master's table says, which a slave copies."""
        retries = (self._groups.find(group) or {}).get("retryMaxTimes")
        return retries if isinstance(retries, int) else _MOST_RECONSUME_TIMES

    def _find(self, offset: int | None) -> StoredMessage:
        store = self._broker.store
        if offset is None or not store.log.min_offset <= offset < store.confirm_offset:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {offset}")
        try:
            size = int.from_bytes(store.log.read(offset, BLANK_HEADER_BYTES)[:4], "big")
            return decode_record(store.read_record(offset, size), physical_offset=offset)
        except MessageRecordError as error:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {error}") from error

    def _again(self, message: StoredMessage, to: Destination) -> NewMessage:
        topics = self._broker.topics
        try:
            if topics.find(to.topic) is None:
                topics.create(to.topic, queue_count=1, now_ms=wall_clock_ms())
                self._on_topic_created()
        except InvalidTopicError as error:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, f"topic[{to.topic}] not exist: {error}") from error
        return NewMessage(
            topic=to.topic,
            queue_id=0,
            body=message.body,
            properties=encode_properties(to.properties),
            born_timestamp_ms=message.born_timestamp_ms,
            born_host=message.born_host,
            flag=message.flag,
            sys_flag=message.sys_flag,
            reconsume_times=message.reconsume_times + 1,
        )
