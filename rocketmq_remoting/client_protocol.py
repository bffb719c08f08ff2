"""Headers and bodies of the requests a producer, a consumer or an admin tool sends to a broker.

A send travels under full names (code 10) or one-letter names (310, 320): :func:`read_send_fields` reads either.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import msgspec

from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.message_record import CorruptRecordError
from rocketmq_remoting.serialization import (
    ExtFieldsHeader,
    Int32,
    Int64,
    JsonBody,
    JsonPart,
    parse_int32,
    parse_int64,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rocketmq_remoting.command import RemotingCommand


class SendMessageRequestHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """10; body = body of the message. ``properties`` in the stored form ``k\\x01v\\x02...``."""

    producer_group: str | None = None
    topic: str | None = None
    default_topic: str | None = None
    default_topic_queue_nums: Int32 | None = None
    queue_id: Int32 | None = None
    sys_flag: Int32 | None = None
    born_timestamp: Int64 | None = None
    flag: Int32 | None = None
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
    max_reconsume_times: Int32 | None = None
    batch: bool | None = None
    broker_name: str | None = msgspec.field(default=None, name="bname")


class SendMessageRequestHeaderV2(SendMessageRequestHeader, frozen=True, kw_only=True):
    """310 and 320: the same fields under one-letter names; 320 sets ``batch``, and its body holds several messages."""

    WIRE_NAMES: ClassVar = tuple("abcdefghijklmn")


class SendFields(msgspec.Struct, frozen=True, gc=False):
    """The fields of a send header that a broker reads, with the Java broker's values for absent ones."""

    topic: str
    queue_id: int
    sys_flag: int
    born_timestamp_ms: int
    flag: int
    properties: str
    reconsume_times: int
    batch: bool
    default_topic_queue_nums: int | None


_FULL_NAMES = (
    "topic",
    "queueId",
    "sysFlag",
    "bornTimestamp",
    "flag",
    "properties",
    "reconsumeTimes",
    "batch",
    "defaultTopicQueueNums",
)
_SEND_MESSAGE = RequestCode.SEND_MESSAGE
_SHORT_NAMES = ("b", "e", "f", "g", "h", "i", "j", "m", "d")


def read_send_fields(command: RemotingCommand) -> SendFields:
    """Read a send's header, several times as fast as the header class: this runs once per message."""
    names = _FULL_NAMES if command.code == _SEND_MESSAGE else _SHORT_NAMES
    fields: Mapping[str, str] = command.ext_fields or {}
    get = fields.get
    topic, queue_id, sys_flag, born, flag, properties, reconsume_times, batch, queue_nums = map(get, names)
    queue = None if queue_id is None else parse_int32(queue_id)
    return SendFields(
        topic or "",
        -1 if queue is None else queue,
        0 if sys_flag is None else parse_int32(sys_flag) or 0,
        0 if born is None else parse_int64(born) or 0,
        0 if flag is None else parse_int32(flag) or 0,
        properties or "",
        0 if reconsume_times is None else parse_int32(reconsume_times) or 0,
        batch is not None and batch.lower() == "true",
        None if queue_nums is None else parse_int32(queue_nums),
    )


class SendMessageResponseHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """10, 310, 320."""

    msg_id: str | None = None
    queue_id: Int32 | None = None
    queue_offset: Int64 | None = None
    transaction_id: str | None = None
    batch_uniq_id: str | None = None


class PullMessageRequestHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """11 and 361. Bits of ``sys_flag``: 1 commit offset, 2 suspend, 4 subscription included, 8 class filter, 16 lite."""

    consumer_group: str | None = None
    topic: str | None = None
    queue_id: Int32 | None = None
    queue_offset: Int64 | None = None
    max_msg_nums: Int32 | None = None
    sys_flag: Int32 | None = None
    commit_offset: Int64 | None = None
    suspend_timeout_ms: Int64 | None = msgspec.field(default=None, name="suspendTimeoutMillis")
    subscription: str | None = None
    sub_version: Int64 | None = None
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None
    request_source: Int32 | None = None


class PullMessageResponseHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """11 and 361; body = records one after the other (message_record.py)."""

    suggest_which_broker_id: Int64 | None = None
    next_begin_offset: Int64 | None = None
    min_offset: Int64 | None = None
    max_offset: Int64 | None = None
    offset_delta: Int64 | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
    forbidden_type: Int32 | None = None


class GetMaxOffsetRequestHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """30; ``committed`` is true by default in Java."""

    topic: str | None = None
    queue_id: Int32 | None = None
    committed: bool = True


class GetMinOffsetRequestHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """31."""

    topic: str | None = None
    queue_id: Int32 | None = None


class SearchOffsetRequestHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """29."""

    topic: str | None = None
    queue_id: Int32 | None = None
    timestamp: Int64 | None = None
    boundary_type: str | None = None


class ViewMessageRequestHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """33; ``offset`` is a physical offset of the commit log."""

    topic: str | None = None
    offset: Int64 | None = None


class QueryMessageRequestHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """12; times in milliseconds."""

    topic: str | None = None
    key: str | None = None
    max_num: Int32 | None = None
    begin_timestamp: Int64 | None = None
    end_timestamp: Int64 | None = None


class QueryMessageResponseHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """The answer to 12; its body is a sequence of records."""

    index_last_update_timestamp: Int64 | None = None
    index_last_update_phyoffset: Int64 | None = None


class QueryConsumerOffsetRequestHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """14."""

    consumer_group: str | None = None
    topic: str | None = None
    queue_id: Int32 | None = None
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffsetRequestHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """15. ``onlyForward`` is our extension, from a slave that reports its consumers' offsets; Java ignores it."""

    consumer_group: str | None = None
    topic: str | None = None
    queue_id: Int32 | None = None
    commit_offset: Int64 | None = None
    only_forward: bool | None = None


class OffsetResponseHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """The answer to 14, 29, 30 and 31."""

    offset: Int64 | None = None


class UnregisterClientRequestHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """35."""

    client_id: str | None = msgspec.field(default=None, name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class GetConsumerListByGroupRequestHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """38."""

    consumer_group: str | None = None


class NotifyConsumerIdsChangedRequestHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """40, one-way from a broker to each consumer of the group."""

    consumer_group: str | None = None


class CreateTopicRequestHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """17. ``perm`` bits: 4 read, 2 write, 1 inherit."""

    topic: str | None = None
    default_topic: str | None = None
    read_queue_nums: Int32 | None = None
    write_queue_nums: Int32 | None = None
    perm: Int32 | None = None
    topic_filter_type: str | None = None
    topic_sys_flag: Int32 | None = None
    order: bool = False
    attributes: str | None = None


class DeleteTopicRequestHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """215."""

    topic: str | None = None


class ConsumerSendMsgBackRequestHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """36; ``offset`` is the physical offset of the message that failed."""

    offset: Int64 | None = None
    group: str | None = None
    delay_level: Int32 | None = None
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool | None = None
    max_reconsume_times: Int32 | None = None


class GetEarliestMsgStoretimeRequestHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """32."""

    topic: str | None = None
    queue_id: Int32 | None = None


class GetEarliestMsgStoretimeResponseHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """The answer to 32, in milliseconds; -1 for an empty queue."""

    timestamp: Int64 | None = None


class MessageQueue(JsonPart, frozen=True):
    """One queue of a topic on one broker."""

    topic: str
    queue_id: int
    broker_name: str = ""


class LockBatchBody(JsonBody, frozen=True):
    """41 and 42: the queues that a client locks or unlocks."""

    consumer_group: str
    client_id: str
    mq_set: tuple[MessageQueue, ...] = ()


class LockBatchAnswerBody(JsonBody, frozen=True):
    """The answer to 41: the queues that are locked for the client."""

    locked: tuple[MessageQueue, ...] = msgspec.field(default=(), name="lockOKMQSet")


_SHORT = struct.Struct(">h")


class BatchedMessage(NamedTuple):
    """One message of a SEND_BATCH_MESSAGE body."""

    flag: int
    body: bytes
    properties: bytes


_BATCH_HEAD = struct.Struct(">iiiii")


def encode_batch(messages: Iterable[BatchedMessage]) -> bytes:
    """Encode the body of request 320: total 4, magic 4, CRC 4, flag 4, body length 4, body, properties length 2, properties."""
    parts: list[bytes] = []
    for message in messages:
        total = _BATCH_HEAD.size + len(message.body) + 2 + len(message.properties)
        parts.append(_BATCH_HEAD.pack(total, 0, 0, message.flag, len(message.body)))
        parts += (message.body, _SHORT.pack(len(message.properties)), message.properties)
    return b"".join(parts)


def decode_batch(data: bytes) -> list[BatchedMessage]:
    """Decode the messages of a SEND_BATCH_MESSAGE body, each of which the broker stores as a record of its own."""
    messages: list[BatchedMessage] = []
    position = 0
    while position < len(data):
        if position + _BATCH_HEAD.size + 2 > len(data):
            raise CorruptRecordError(f"batch of {len(data)} bytes ends inside the message at {position}")
        total, _, _, flag, body_length = _BATCH_HEAD.unpack_from(data, position)
        body_at = position + _BATCH_HEAD.size
        properties_at = body_at + body_length
        if body_length < 0 or properties_at + 2 > len(data):
            raise CorruptRecordError(f"batch message at {position}: a body of {body_length} bytes does not fit")
        (properties_length,) = _SHORT.unpack_from(data, properties_at)
        end = properties_at + 2 + properties_length
        if properties_length < 0 or end > len(data) or end != position + total:
            raise CorruptRecordError(f"batch message at {position}: its parts do not add up to its {total} bytes")
        messages.append(BatchedMessage(flag, data[body_at:properties_at], data[properties_at + 2 : end]))
        position = end
    return messages


class ProducerData(JsonPart, frozen=True):
    """One producer group of a client."""

    group_name: str = ""


class SubscriptionData(JsonPart, frozen=True):
    """A consumer group's subscription to one topic."""

    topic: str = ""
    sub_string: str = "*"
    tags_set: tuple[str, ...] = ()
    code_set: tuple[int, ...] = ()
    sub_version: int = 0
    expression_type: str = "TAG"
    class_filter_mode: bool = False


class ConsumerData(JsonPart, frozen=True):
    """One consumer group of a client."""

    group_name: str = ""
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None
    subscription_data_set: tuple[SubscriptionData, ...] = ()
    unit_mode: bool = False


class HeartbeatDataBody(JsonBody, frozen=True):
    """34: a client and its groups."""

    client_id: str = msgspec.field(name="clientID", default="")
    producer_data_set: tuple[ProducerData, ...] = ()
    consumer_data_set: tuple[ConsumerData, ...] = ()
    heartbeat_fingerprint: int = 0
    without_sub: bool = False


class ConsumerListBody(JsonBody, frozen=True):
    """38: client ids of a consumer group."""

    consumer_id_list: tuple[str, ...] = ()
