"""A message as RocketMQ stores it: one record of the commit log.

The same bytes are appended to the commit log, replicated to slaves as raw log bytes, and sent to consumers as the body of a pull
answer (a sequence of records). So this module is the storage format of the replica and the read side of every client.

Layout, in order (all integers big-endian and signed)::

    total size 4 · magic 4 · body CRC 4 · queue id 4 · flag 4 · queue offset 8 · physical offset 8 · sys flag 4
    born timestamp 8 · born host 4|16 + port 4 · store timestamp 8 · store host 4|16 + port 4
    reconsume times 4 · prepared transaction offset 8 · body length 4 + body
    topic length 1 (v1) or 2 (v2) + topic · properties length 2 + properties

The physical offset must equal the offset at which the record is found. Java does not compare them; we do, because only this
distinguishes a record from a stale tail of earlier file content (upstream #10666).
"""

from __future__ import annotations

import enum
import ipaddress
import struct
import zlib
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

MAGIC_V1 = -626843481  # 0xDAA320A7
MAGIC_V2 = -626843477  # 0xDAA320AB, two bytes of topic length
_RECORD_MAGICS = (MAGIC_V1, MAGIC_V2)
BLANK_MAGIC = -875286124  # 0xCBD43194, fills the end of a file
BLANK_HEADER_BYTES = 8

SYS_FLAG_COMPRESSED = 0x1
SYS_FLAG_TRANSACTION_MASK = 0xC
SYS_FLAG_TRANSACTION_PREPARED = 0x4
SYS_FLAG_TRANSACTION_ROLLBACK = 0xC
SYS_FLAG_BORN_HOST_V6 = 0x10
SYS_FLAG_STORE_HOST_V6 = 0x20

MAX_TOPIC_BYTES_V1 = 127
MAX_TOPIC_BYTES_V2 = 32767
MAX_PROPERTIES_BYTES = 32767

NAME_VALUE_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"

_INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")
_BLANK = struct.Struct(">ii")
_LONG_HEX = "{:016X}".format
# total size … born timestamp; the born host follows, whose length depends on the sys flag.
_HEAD = struct.Struct(">iiiiiqqiq")
# reconsume times, prepared transaction offset, body length.
_MIDDLE = struct.Struct(">iqi")
# Everything up to the body, by the lengths of the two addresses.
_UP_TO_BODY = {
    (born, store): struct.Struct(f">iiiiiqqiq{born}siq{store}siiqi") for born in (4, 16) for store in (4, 16)
}
_IPV4_HEAD = _UP_TO_BODY[4, 4]
_HOSTS_V6 = SYS_FLAG_BORN_HOST_V6 | SYS_FLAG_STORE_HOST_V6
_ADDRESS_BYTES = {SYS_FLAG_BORN_HOST_V6: (16, 4), SYS_FLAG_STORE_HOST_V6: (4, 16), _HOSTS_V6: (16, 16)}
_IPV4_FIXED_BYTES = 88  # everything up to the body when both hosts are IPv4
_SMALLEST_RECORD_BYTES = 91


class MessageRecordError(ValueError):
    """The bytes are not a record of the commit log."""


class IncompleteRecordError(MessageRecordError):
    """The bytes end inside a record: read more, or cut here if there is no more."""


class CorruptRecordError(MessageRecordError):
    """The bytes contradict themselves: more bytes cannot repair it."""


class Host(NamedTuple):
    """An address and port as records carry them."""

    ip: str
    port: int


@dataclass(frozen=True)
class StoredMessage:
    """One decoded record and its place in the log."""

    topic: str
    body: bytes
    queue_id: int
    queue_offset: int
    physical_offset: int
    flag: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: Host
    store_timestamp_ms: int
    store_host: Host
    reconsume_times: int
    prepared_transaction_offset: int
    properties_bytes: bytes
    size_bytes: int
    magic: int = MAGIC_V1

    @cached_property
    def properties(self) -> dict[str, str]:
        """User and system properties, decoded on first use."""
        return decode_properties(self.properties_bytes)

    @property
    def message_id(self) -> str:
        """The ``msgId`` of the send answer."""
        return offset_message_id(self.store_host, self.physical_offset)


class EntryKind(enum.Enum):
    """What a position of the log holds."""

    RECORD = enum.auto()
    BLANK = enum.auto()  # the rest of this file is unused: continue with the next file
    END = enum.auto()  # zeros: no data from here on


class LogEntry(msgspec.Struct, frozen=True, gc=False):
    """What the index needs of an entry of the log."""

    kind: EntryKind
    size_bytes: int
    topic: str = ""
    queue_id: int = 0
    queue_offset: int = 0
    sys_flag: int = 0
    store_timestamp_ms: int = 0


_RECORD = EntryKind.RECORD
_END = LogEntry(EntryKind.END, 0)


def inspect_entry(
    data: bytes | memoryview, position: int, end: int, *, physical_offset: int, check_crc: bool = True
) -> LogEntry:
    """Check the entry at ``data[position:end]``, which should be stored at ``physical_offset``, and return it.

    Raise IncompleteRecordError if the bytes end inside the entry, CorruptRecordError if they are not an entry.
    """
    available = end - position
    if available < BLANK_HEADER_BYTES:
        raise IncompleteRecordError(f"{available} bytes at offset {physical_offset}, an entry has at least 8")
    total, magic = _BLANK.unpack_from(data, position)
    if magic not in _RECORD_MAGICS:
        return _no_record(total, magic, physical_offset)
    if not _SMALLEST_RECORD_BYTES <= total <= available:
        raise _wrong_size(total, available, physical_offset)
    record_end = position + total
    up_to_body = _UP_TO_BODY[4, 4]
    head = up_to_body.unpack_from(data, position)
    sys_flag = head[7]
    if sys_flag & _HOSTS_V6:
        up_to_body = _up_to_body_v6(sys_flag, total, physical_offset)
        head = up_to_body.unpack_from(data, position)
    if head[6] != physical_offset:
        raise CorruptRecordError(f"record at offset {physical_offset} says it is stored at {head[6]}")
    body_at = position + up_to_body.size
    topic_length_at = body_at + head[16]
    topic_at = topic_length_at + (1 if magic == MAGIC_V1 else 2)
    if topic_length_at < body_at or topic_at > record_end:
        raise CorruptRecordError(f"record at offset {physical_offset}: a body of {head[16]} bytes does not fit")
    properties_at = topic_at + (
        data[topic_length_at] if magic == MAGIC_V1 else _SHORT.unpack_from(data, topic_length_at)[0]
    )
    if not topic_at <= properties_at <= record_end - 2:
        raise CorruptRecordError(f"record at offset {physical_offset}: the topic runs past its {total} bytes")
    _check_end(data, topic_at, properties_at, record_end, physical_offset)
    if check_crc and zlib.crc32(data[body_at:topic_length_at]) & 0x7FFFFFFF != head[2]:
        raise CorruptRecordError(f"record at offset {physical_offset}: the body's CRC is wrong")
    topic = _topic_text(bytes(data[topic_at:properties_at]))
    return LogEntry(_RECORD, total, topic, head[3], head[5], sys_flag, head[11])


def inspect_entries(data: bytes | memoryview, *, physical_offset: int) -> tuple[list[LogEntry], int]:
    """Return the complete entries at the start of ``data``, which should be stored at ``physical_offset``, and their total size.

    Does the checks of ``inspect_entry`` inline for ordinary records, and calls it for all other entries: it raises the error.
    """
    entries: list[LogEntry] = []
    position, size = 0, len(data)
    unpack, head_bytes, crc32 = _IPV4_HEAD.unpack_from, _IPV4_HEAD.size, zlib.crc32
    while size - position >= BLANK_HEADER_BYTES:
        offset = physical_offset + position
        if size - position >= _SMALLEST_RECORD_BYTES:
            head = unpack(data, position)
            record_end, body_at = position + head[0], position + head_bytes
            topic_at = body_at + head[16] + 1
            if (
                head[1] == MAGIC_V1
                and head[6] == offset
                and not head[7] & _HOSTS_V6
                and body_at < topic_at < record_end <= size
            ):
                properties_at = topic_at + data[topic_at - 1]
                if (
                    topic_at < properties_at <= record_end - 2
                    and properties_at + 2 + (data[properties_at] << 8 | data[properties_at + 1]) == record_end
                    and data[properties_at - 1]
                    and data[record_end - 1]
                    and crc32(data[body_at : topic_at - 1]) & 0x7FFFFFFF == head[2]
                ):
                    topic = _topic_text(bytes(data[topic_at:properties_at]))
                    entries.append(LogEntry(_RECORD, head[0], topic, head[3], head[5], head[7], head[11]))
                    position = record_end
                    continue
        try:
            entry = inspect_entry(data, position, size, physical_offset=offset)
        except IncompleteRecordError:
            break
        if position + entry.size_bytes > size:
            break
        entries.append(entry)
        if entry.kind is EntryKind.END:
            break
        position += entry.size_bytes
    return entries, position


def _wrong_size(total: int, available: int, physical_offset: int) -> MessageRecordError:
    where = f"record at offset {physical_offset}"
    if total < _SMALLEST_RECORD_BYTES:
        return CorruptRecordError(f"{where}: size {total} is below {_SMALLEST_RECORD_BYTES}")
    return IncompleteRecordError(f"{where}: {available} of {total} bytes are there")


def _up_to_body_v6(sys_flag: int, total: int, physical_offset: int) -> struct.Struct:
    """Return the layout of a record with one or two IPv6 addresses."""
    up_to_body = _UP_TO_BODY[_ADDRESS_BYTES[sys_flag & _HOSTS_V6]]
    if up_to_body.size > total:
        raise CorruptRecordError(f"record at offset {physical_offset}: its IPv6 addresses do not fit its {total} bytes")
    return up_to_body


def _check_end(data: bytes | memoryview, topic_at: int, properties_at: int, end: int, physical_offset: int) -> None:
    """Check that the properties end with the record, and that neither they nor the topic end in zeros, which were never written."""
    if properties_at + 2 + _SHORT.unpack_from(data, properties_at)[0] != end:
        raise CorruptRecordError(f"record at offset {physical_offset}: its parts do not add up to its size")
    if topic_at == properties_at or data[properties_at - 1] == 0 or (end > properties_at + 2 and data[end - 1] == 0):
        raise CorruptRecordError(f"record at offset {physical_offset}: topic or properties end in zeros")


def _no_record(total: int, magic: int, physical_offset: int) -> LogEntry:
    if magic == BLANK_MAGIC:
        return LogEntry(EntryKind.BLANK, total)
    if total == 0 and magic == 0:
        return _END
    raise CorruptRecordError(f"offset {physical_offset}: magic {magic & 0xFFFFFFFF:#010x} is no record's")


def _body_position(sys_flag: int) -> int:
    """Return where the body begins, counted from the start of the record."""
    return (
        _IPV4_FIXED_BYTES
        + (12 if sys_flag & SYS_FLAG_BORN_HOST_V6 else 0)
        + (12 if sys_flag & SYS_FLAG_STORE_HOST_V6 else 0)
    )


@lru_cache(maxsize=4096)
def _topic_text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


@lru_cache(maxsize=4096)
def _packed_ip(ip: str) -> bytes:
    return ipaddress.ip_address(ip).packed


@lru_cache(maxsize=4096)
def _ip_text(packed: bytes) -> str:
    return str(ipaddress.ip_address(packed))


@lru_cache(maxsize=4096)
def _packed_topic(topic: str) -> bytes:
    """Return the topic with its length before it, in two bytes if one is too short."""
    raw = topic.encode()
    if not 0 < len(raw) <= MAX_TOPIC_BYTES_V2:
        raise MessageRecordError(f"topic of {len(raw)} bytes, a record takes 1 to {MAX_TOPIC_BYTES_V2}")
    return (bytes((len(raw),)) if len(raw) <= MAX_TOPIC_BYTES_V1 else _SHORT.pack(len(raw))) + raw


@lru_cache(maxsize=4096)
def record_overhead_bytes(topic: str, born_ip: str, store_ip: str) -> int:
    """Return the size of a record without its body and properties."""
    hosts = len(_packed_ip(born_ip)) + len(_packed_ip(store_ip))
    return _IPV4_FIXED_BYTES - 8 + hosts + len(_packed_topic(topic)) + _SHORT.size


def encode_record(  # noqa: PLR0913 - one keyword per field of the record
    *,
    topic: str,
    body: bytes,
    queue_id: int,
    queue_offset: int,
    physical_offset: int,
    born_timestamp_ms: int,
    born_host: Host,
    store_timestamp_ms: int,
    store_host: Host,
    properties: bytes = b"",
    flag: int = 0,
    sys_flag: int = 0,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
) -> bytes:
    """Encode a record. The hosts set the IPv6 bits of ``sys_flag``; topics above 127 bytes select v2."""
    packed_topic = _packed_topic(topic)
    if len(properties) > MAX_PROPERTIES_BYTES:
        raise MessageRecordError(f"properties of {len(properties)} bytes, at most {MAX_PROPERTIES_BYTES} fit a record")
    born_ip, store_ip = _packed_ip(born_host.ip), _packed_ip(store_host.ip)
    sys_flag &= ~(SYS_FLAG_BORN_HOST_V6 | SYS_FLAG_STORE_HOST_V6)
    if len(born_ip) == 16:
        sys_flag |= SYS_FLAG_BORN_HOST_V6
    if len(store_ip) == 16:
        sys_flag |= SYS_FLAG_STORE_HOST_V6
    up_to_body = _UP_TO_BODY[len(born_ip), len(store_ip)].pack(
        record_overhead_bytes(topic, born_host.ip, store_host.ip) + len(body) + len(properties),
        MAGIC_V1 if len(packed_topic) <= 1 + MAX_TOPIC_BYTES_V1 else MAGIC_V2,
        zlib.crc32(body) & 0x7FFFFFFF,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_timestamp_ms,
        born_ip,
        born_host.port,
        store_timestamp_ms,
        store_ip,
        store_host.port,
        reconsume_times,
        prepared_transaction_offset,
        len(body),
    )
    return b"".join((up_to_body, body, packed_topic, _SHORT.pack(len(properties)), properties))


def encode_blank(size_bytes: int) -> bytes:
    """Encode the filler at the end of a file: its header and zeros (C.2)."""
    if size_bytes < BLANK_HEADER_BYTES:
        raise MessageRecordError(f"a blank of {size_bytes} bytes, it has at least {BLANK_HEADER_BYTES}")
    return _BLANK.pack(size_bytes, BLANK_MAGIC) + bytes(size_bytes - BLANK_HEADER_BYTES)


def decode_record(data: bytes | memoryview, position: int = 0, *, physical_offset: int | None = None) -> StoredMessage:
    """Decode the record at ``position``. Without ``physical_offset``, the record's own offset is not checked."""
    if len(data) - position < _SMALLEST_RECORD_BYTES:
        raise IncompleteRecordError(
            f"{len(data) - position} bytes left, a record has at least {_SMALLEST_RECORD_BYTES}"
        )
    head = _HEAD.unpack_from(data, position)
    expected = head[6] if physical_offset is None else physical_offset
    entry = inspect_entry(data, position, len(data), physical_offset=expected)
    if entry.kind is not EntryKind.RECORD:
        raise CorruptRecordError(f"a record was expected at offset {expected}, found {entry.kind.name}")
    born_ip_bytes = 16 if entry.sys_flag & SYS_FLAG_BORN_HOST_V6 else 4
    store_ip_bytes = 16 if entry.sys_flag & SYS_FLAG_STORE_HOST_V6 else 4
    at = position + _HEAD.size
    born_ip, born_port, store_timestamp_ms, store_ip, store_port = struct.unpack_from(
        f">{born_ip_bytes}siq{store_ip_bytes}si", data, at
    )
    body_at = position + _body_position(entry.sys_flag)
    reconsume_times, prepared_transaction_offset, body_length = _MIDDLE.unpack_from(data, body_at - _MIDDLE.size)
    properties_at = body_at + body_length + (2 if head[1] == MAGIC_V2 else 1) + len(entry.topic.encode())
    return StoredMessage(
        topic=entry.topic,
        body=bytes(data[body_at : body_at + body_length]),
        queue_id=head[3],
        queue_offset=head[5],
        physical_offset=head[6],
        flag=head[4],
        sys_flag=entry.sys_flag,
        born_timestamp_ms=head[8],
        born_host=Host(_ip_text(born_ip), born_port),
        store_timestamp_ms=store_timestamp_ms,
        store_host=Host(_ip_text(store_ip), store_port),
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_transaction_offset,
        properties_bytes=bytes(data[properties_at + 2 : position + entry.size_bytes]),
        size_bytes=entry.size_bytes,
        magic=head[1],
    )


def decode_records(data: bytes) -> list[StoredMessage]:
    """Decode and check the records of a pull answer's body, which must end with a complete record."""
    messages: list[StoredMessage] = []
    position = 0
    while position < len(data):
        message = decode_record(data, position)
        messages.append(message)
        position += message.size_bytes
    return messages


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Encode each as ``name \\x01 value \\x02``, as Java does."""
    for name, value in properties.items():
        if any(mark in text for mark in (NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR) for text in (name, value)):
            raise MessageRecordError(f"property {name!r} has the value {value!r}: \\x01 and \\x02 are the separators")
    return "".join(
        f"{name}{NAME_VALUE_SEPARATOR}{value}{PROPERTY_SEPARATOR}" for name, value in properties.items()
    ).encode()


def decode_properties(raw: bytes) -> dict[str, str]:
    """Decode properties. The last one may lack its closing mark; an entry without a value is left out."""
    properties: dict[str, str] = {}
    if not raw:
        return properties
    for entry in raw.decode("utf-8", "replace").split(PROPERTY_SEPARATOR):
        name, found, value = entry.partition(NAME_VALUE_SEPARATOR)
        if found:
            properties[name] = value
    return properties


def offset_message_id(store_host: Host, physical_offset: int) -> str:
    """Return the ``msgId`` of a send answer: IP, port and physical offset, upper-case hex (C.4)."""
    return _message_id_prefix(store_host) + _LONG_HEX(physical_offset)


@lru_cache(maxsize=64)
def _message_id_prefix(store_host: Host) -> str:
    return (_packed_ip(store_host.ip) + _INT.pack(store_host.port)).hex().upper()
