"""SEND_MESSAGE (10, 310), SEND_BATCH_MESSAGE (320) and CONSUMER_SEND_MSG_BACK (36): stored at once, answered when acknowledged.

The codes are a Java broker's, with one difference: a send that waits while this replica stops being master gets 14
(SERVICE_NOT_AVAILABLE), never success. The message may or may not survive; a Java producer retries elsewhere.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from rocketmq_remoting.client_protocol import (
    BatchedMessage,
    ConsumerSendMsgBackRequestHeader,
    SendFields,
    decode_batch,
    read_send_fields,
)
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.handler import LaterAnswer
from rocketmq_remoting.message_record import (
    MAX_PROPERTIES_BYTES,
    PROPERTY_SEPARATOR,
    SYS_FLAG_TRANSACTION_MASK,
    Host,
    MessageRecordError,
    StoredMessage,
    decode_properties,
    decode_record,
    encode_properties,
)
from rocketmq_replica.broker import Broker, NotWritableError, Role, wall_clock_ms
from rocketmq_replica.clients.delayed_delivery import DELAY, SCHEDULE_TOPIC, delay_level, kept_back
from rocketmq_replica.log.message_store import MessageTooLargeError, NewMessage, Stored
from rocketmq_replica.master_term import NotEnoughReplicasError, Outcome
from rocketmq_replica.topics import PERMISSION_WRITE, RETRY_PREFIX, InvalidTopicError, Topic, check_topic_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_remoting.connection import RemotingConnection
    from rocketmq_replica.tables import SubscriptionGroups


_OUTCOME_CODES = {
    Outcome.FLUSH_DISK_TIMEOUT: (ResponseCode.FLUSH_DISK_TIMEOUT, None),
    Outcome.FLUSH_SLAVE_TIMEOUT: (ResponseCode.FLUSH_SLAVE_TIMEOUT, None),
    Outcome.MASTER_NO_MORE: (
        ResponseCode.SERVICE_NOT_AVAILABLE,
        "this broker stopped being master before the message was acknowledged; it may or may not have survived",
    ),
}
_REJECTED = "[REJECTREQUEST]system busy, start flow control for a while"
_MAX_CLIENT_QUEUES = 8
_PROPERTY_END = PROPERTY_SEPARATOR.encode()
_DELAYS = (DELAY, "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")
_STORED = Outcome.STORED
_SLAVE = Role.SLAVE
_host = lru_cache(maxsize=4096)(Host)


class RefusedError(Exception):
    """A send is refused with this code and remark."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark


class SendRequests:
    """Sends: checks, stores and answers them."""

    def __init__(self, broker: Broker, *, on_topic_created: Callable[[], None]) -> None:
        """``on_topic_created`` registers the topic with the NameServers."""
        self._broker = broker
        self._on_topic_created = on_topic_created
        self._next_queue = itertools.count()

    def send(self, request: RemotingCommand, connection: RemotingConnection) -> RemotingCommand | LaterAnswer:
        """10, 310 and 320."""
        try:
            stored, queue_id, properties = self._store(request, connection)
        except RefusedError as refusal:
            return request.answer(refusal.code, remark=refusal.remark)
        ext_fields = {
            "msgId": stored[0].message_id if len(stored) == 1 else ",".join(each.message_id for each in stored),
            "queueId": str(queue_id),
            "queueOffset": str(stored[0].queue_offset),
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
        }
        if "UNIQ_KEY" in properties:
            ext_fields["transactionId"] = properties["UNIQ_KEY"]
        waits = properties.get("WAIT", "true").lower() != "false"
        if not waits:
            self._broker.stored_without_waiting()
            return _answer(request, _STORED, ext_fields)
        return self.answer_when_acknowledged(request, stored[-1].end_offset, ext_fields)

    def answer_when_acknowledged(
        self, request: RemotingCommand, end_offset: int, ext_fields: dict[str, str]
    ) -> RemotingCommand | LaterAnswer:
        """Return the answer for a stored message that ends at ``end_offset``, or one that comes with its acknowledgement."""
        if self._broker.acknowledged_at_once(end_offset):
            return _answer(request, _STORED, ext_fields)
        later = LaterAnswer()
        self._broker.when_acknowledged(lambda outcome: later.give(_answer(request, outcome, ext_fields)), end_offset)
        return later

    def _store(
        self, request: RemotingCommand, connection: RemotingConnection
    ) -> tuple[list[Stored], int, dict[str, str]]:
        if self._broker.role is _SLAVE:
            raise RefusedError(ResponseCode.SYSTEM_BUSY, _REJECTED)
        header = read_send_fields(request)
        topic = self._topic(header)
        queue_id = header.queue_id
        if queue_id < 0:
            queue_id = next(self._next_queue) % topic.write_queues
        if queue_id >= topic.write_queues:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, f"queueId[{queue_id}] is illegal, topic {topic}")
        messages = _messages(request, header)
        self._check_sizes(messages)
        _check_kinds(messages, header.sys_flag, topic.name)
        born_host = _host(connection.peer_host, connection.peer_port)
        born_timestamp_ms = header.born_timestamp_ms or wall_clock_ms()
        new_messages = [
            NewMessage(
                topic.name,
                queue_id,
                message.body,
                message.properties,
                born_timestamp_ms,
                born_host,
                message.flag,
                header.sys_flag,
                header.reconsume_times,
            )
            for message in messages
        ]
        if topic.name.startswith(RETRY_PREFIX):
            if len(messages) > 1:
                raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, "batch request does not support retry group")
            # A Java consumer whose 36 failed sends the message itself, with its delay in a property.
            new_messages = [self.delayed(each, delay_level(each.properties)) for each in new_messages]
        return self.put_all(new_messages), queue_id, decode_properties(messages[0].properties)

    def delayed(self, message: NewMessage, level: int) -> NewMessage:
        """Return the message for the schedule topic if it has a delay level; higher levels count as the last, as in Java."""
        levels = len(self._broker.configuration.delay_levels_seconds)
        if level <= 0 or not levels:
            return message
        topics = self._broker.topics
        if (known := topics.find(SCHEDULE_TOPIC)) is None or known.write_queues < levels:
            topics.create(SCHEDULE_TOPIC, queue_count=levels, now_ms=wall_clock_ms())
            self._on_topic_created()
        return kept_back(message, min(level, levels))

    def put_all(self, messages: list[NewMessage]) -> list[Stored]:
        """Store messages of one queue. Raise RefusedError for the whole batch."""
        try:
            return self._broker.put_all(messages)
        except NotEnoughReplicasError as error:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, f"in-sync replicas not enough: {error}") from error
        except NotWritableError as error:
            raise RefusedError(ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {error}") from error
        except (MessageTooLargeError, MessageRecordError) as error:
            raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error

    def _topic(self, header: SendFields) -> Topic:
        broker = self._broker
        name = header.topic
        topic = broker.topics.find(name)
        if topic is None:
            try:
                check_topic_name(name)
            except InvalidTopicError as error:
                raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        if not broker.live.broker_permission & PERMISSION_WRITE:
            raise RefusedError(ResponseCode.NO_PERMISSION, "the broker's permission forbids sending")
        if topic is None:
            if broker.role is not Role.MASTER:
                raise RefusedError(ResponseCode.SERVICE_NOT_AVAILABLE, f"role is {broker.role.value}")
            if not broker.configuration.auto_create_topic_enable:
                raise RefusedError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
            wanted = header.default_topic_queue_nums
            count = min(max(wanted, 1), _MAX_CLIENT_QUEUES) if wanted is not None else None
            try:
                topic = broker.topics.create(name, queue_count=count, now_ms=wall_clock_ms())
            except InvalidTopicError as error:
                raise RefusedError(ResponseCode.SYSTEM_ERROR, str(error)) from error
            self._on_topic_created()
        if not topic.permission & PERMISSION_WRITE:
            raise RefusedError(ResponseCode.NO_PERMISSION, f"sending to topic[{name}] is forbidden")
        return topic

    def _check_sizes(self, messages: list[BatchedMessage]) -> None:
        limit = self._broker.configuration.max_message_size
        for message in messages:
            if len(message.body) > limit:
                raise RefusedError(
                    ResponseCode.MESSAGE_ILLEGAL, f"the message body has {len(message.body)} bytes, limit {limit}"
                )
            if len(message.properties) > MAX_PROPERTIES_BYTES:
                raise RefusedError(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"the message properties have {len(message.properties)} bytes, limit {MAX_PROPERTIES_BYTES}",
                )


def _messages(request: RemotingCommand, header: SendFields) -> list[BatchedMessage]:
    if not (request.code == RequestCode.SEND_BATCH_MESSAGE or header.batch):
        properties = header.properties.encode()
        return [BatchedMessage(header.flag, request.body or b"", _terminated(properties))]
    try:
        messages = decode_batch(request.body or b"")
    except MessageRecordError as error:
        raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
    if not messages:
        raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, "a batch without messages")
    return [message._replace(properties=_terminated(message.properties)) for message in messages]


def _check_kinds(messages: list[BatchedMessage], sys_flag: int, topic: str) -> None:
    """Refuse transactional and delayed messages: stored as ordinary ones they would be delivered at once."""
    if sys_flag & SYS_FLAG_TRANSACTION_MASK:
        raise RefusedError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "transactional messages are not supported")
    for message in messages:
        if not _may_be_kept_back(message.properties):
            continue
        properties = decode_properties(message.properties)
        if properties.get("TRAN_MSG") == "true":
            raise RefusedError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "transactional messages are not supported")
        for name in _DELAYS:
            if properties.get(name, "0") != "0" and not topic.startswith(RETRY_PREFIX):
                remark = f"delayed messages are not supported: property {name}={properties[name]}"
                raise RefusedError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)


def _may_be_kept_back(properties: bytes) -> bool:
    return b"DELAY" in properties or b"TIMER_" in properties or b"TRAN_MSG" in properties


def _terminated(properties: bytes) -> bytes:
    """Return the properties with a closing mark, as Java's broker stores them."""
    return properties if not properties or properties.endswith(_PROPERTY_END) else properties + _PROPERTY_END


def _answer(request: RemotingCommand, outcome: Outcome, ext_fields: dict[str, str]) -> RemotingCommand:
    if outcome is _STORED:
        return request.answer(ResponseCode.SUCCESS, ext_fields=ext_fields)
    code, remark = _OUTCOME_CODES[outcome]
    return request.answer(code, remark=remark, ext_fields=None if outcome is Outcome.MASTER_NO_MORE else ext_fields)


DEAD_LETTER_PREFIX = "%DLQ%"
_MOST_RECONSUME_TIMES = 16
_FIRST_RETRY_LEVEL = 3
"""The first delay level (10 s), as in Java, if the consumer leaves it to the broker."""


@dataclass(frozen=True)
class Destination:
    """The topic, properties and delay level (0: none) of a message that was sent back."""

    topic: str
    properties: dict[str, str]
    delay_level: int = 0


def destination(
    message: StoredMessage, header: ConsumerSendMsgBackRequestHeader, *, group_retries: int = _MOST_RECONSUME_TIMES
) -> Destination:
    """Return the retry topic, or the dead-letter topic after too many retries or for a negative delay level.

    ``group_retries`` is the group's ``retryMaxTimes``; the consumer's own limit takes precedence, as in Java.
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
    """The handler of 36: a message that could not be consumed is retried, or becomes a dead letter.

    It is stored again for ``%RETRY%group`` after its delay (``delayed_delivery.py``), or in ``%DLQ%group`` after too many retries.
    """

    def __init__(
        self, broker: Broker, sends: SendRequests, groups: SubscriptionGroups, *, on_topic_created: Callable[[], None]
    ) -> None:
        """``sends`` stores and acknowledges; ``groups`` has the limits of retries."""
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
        """Return the group's limit of retries, also from a Java master's table."""
        retries = (self._groups.find(group) or {}).get("retryMaxTimes")
        return retries if isinstance(retries, int) else _MOST_RECONSUME_TIMES

    def _find(self, offset: int | None) -> StoredMessage:
        try:
            return decode_record(self._broker.store.read_confirmed(offset), physical_offset=offset)
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
