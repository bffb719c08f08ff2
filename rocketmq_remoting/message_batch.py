"""The body of SEND_BATCH_MESSAGE (320): several messages for one queue in one request.

The broker stores each as a record of its own; this packing exists on the wire only.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from rocketmq_remoting.message_record import CorruptRecordError

if TYPE_CHECKING:
    from collections.abc import Iterable

_SHORT = struct.Struct(">h")


class BatchedMessage(NamedTuple):
    """One message of a SEND_BATCH_MESSAGE body."""

    flag: int
    body: bytes
    properties: bytes


_BATCH_HEAD = struct.Struct(">iiiii")


def encode_batch(messages: Iterable[BatchedMessage]) -> bytes:
    """The body of request 320: total 4, magic 4, CRC 4, flag 4, body length 4, body, properties length 2, properties."""
    parts: list[bytes] = []
    for message in messages:
        total = _BATCH_HEAD.size + len(message.body) + 2 + len(message.properties)
        parts.append(_BATCH_HEAD.pack(total, 0, 0, message.flag, len(message.body)))
        parts += (message.body, _SHORT.pack(len(message.properties)), message.properties)
    return b"".join(parts)


def decode_batch(data: bytes) -> list[BatchedMessage]:
    """The messages of a SEND_BATCH_MESSAGE body."""
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
