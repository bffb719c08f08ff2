"""Headers and bodies of requests to NameServers, among brokers and to a BrokerContainer, and of a broker's answers to operators."""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from rocketmq_remoting.controller_protocol import BrokerMemberGroup
from rocketmq_remoting.errors import BodyError
from rocketmq_remoting.serialization import ExtFieldsHeader, Int32, Int64, JsonBody, JsonPart, dump_json, load_json

if TYPE_CHECKING:
    from collections.abc import Mapping


class RegisterBrokerRequestHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """103; body RegisterBrokerBody. ``broker_id`` is 0 for the master, else its own; ``body_crc32`` 0 is not checked."""

    broker_name: str | None = None
    broker_addr: str | None = None
    cluster_name: str | None = None
    ha_server_addr: str | None = None
    broker_id: Int64 | None = None
    heartbeat_timeout_ms: Int64 | None = msgspec.field(default=None, name="heartbeatTimeoutMillis")
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: Int32 = 0


class RegisterBrokerResponseHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """103; for slaves: the master's address and its HA address."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class UnRegisterBrokerRequestHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """104."""

    cluster_name: str | None = None
    broker_addr: str | None = None
    broker_name: str | None = None
    broker_id: Int64 | None = None


class GetRouteInfoRequestHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """105; requests of version 401 and above get standard JSON, with quoted keys."""

    topic: str | None = None
    accept_standard_json_only: bool | None = None


class GetBrokerMemberGroupRequestHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """901."""

    cluster_name: str | None = None
    broker_name: str | None = None


class ExchangeHAInfoRequestHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """906, to a broker: with ``master_ha_address`` its HA client dials it; without, a master answers with its own addresses."""

    master_ha_address: str | None = None
    master_flush_offset: Int64 | None = None
    master_address: str | None = None


class ExchangeHAInfoResponseHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """906."""

    master_ha_address: str | None = None
    master_flush_offset: Int64 | None = None
    master_address: str | None = None


class GetBrokerConfigResponseHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """26; the body holds the configuration (properties, as text)."""

    version: str | None = None


class AddBrokerRequestHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """902: a broker.conf on the container's disk."""

    config_path: str | None = None


class RemoveBrokerRequestHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """903; the answer is 211 (BROKER_NOT_EXIST) if there is no such broker."""

    broker_name: str | None = None
    broker_cluster_name: str | None = None
    broker_id: Int64 | None = None


class DataVersion(JsonPart, frozen=True):
    """Version of a broker's topics. ``state_version`` is the master epoch: it decides between two brokers with one id."""

    state_version: int = 0
    timestamp: int = 0
    counter: int = 0


class TopicConfig(JsonPart, frozen=True):
    """One topic. ``perm`` bits: 4 read, 2 write, 1 inherit."""

    topic_name: str = ""
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = msgspec.field(default_factory=dict)


class TopicAnswerBody(TopicConfig, JsonBody, frozen=True):
    """351: one topic."""


class TopicConfigBody(JsonBody, frozen=True):
    """All topics of a broker: part of 103, and the whole answer to 21."""

    data_version: DataVersion = DataVersion()
    mapping_data_version: DataVersion = DataVersion()
    topic_config_table: dict[str, TopicConfig] = msgspec.field(default_factory=dict)
    topic_queue_mapping_info_map: dict[str, Any] = msgspec.field(default_factory=dict)
    topic_queue_mapping_detail_map: dict[str, Any] = msgspec.field(default_factory=dict)


class RegisterBrokerBody(JsonBody, frozen=True):
    """103. A NameServer refuses a first registration with exactly one topic."""

    filter_server_list: tuple[str, ...] = ()
    topic_config_serialize_wrapper: TopicConfigBody = TopicConfigBody()


class BrokerData(JsonPart, frozen=True):
    """A broker group at the NameServer: addresses by id, 0 is the master."""

    cluster: str = ""
    broker_name: str = ""
    broker_addrs: dict[int, str] = msgspec.field(default_factory=dict)
    zone_name: str | None = None
    enable_acting_master: bool = False


class QueueData(JsonPart, frozen=True):
    """The queues of a topic at one broker group."""

    broker_name: str = ""
    read_queue_nums: int = 0
    write_queue_nums: int = 0
    perm: int = 0
    topic_sys_flag: int = 0


class TopicRouteBody(JsonBody, frozen=True):
    """105."""

    queue_datas: tuple[QueueData, ...] = ()
    broker_datas: tuple[BrokerData, ...] = ()
    filter_server_table: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    order_topic_conf: str | None = None


class ClusterInfoBody(JsonBody, frozen=True):
    """106: every broker group by name, and the names of each cluster."""

    broker_addr_table: dict[str, BrokerData] = msgspec.field(default_factory=dict)
    cluster_addr_table: dict[str, frozenset[str]] = msgspec.field(default_factory=dict)


class BrokerMemberGroupBody(JsonBody, frozen=True):
    """901."""

    broker_member_group: BrokerMemberGroup = BrokerMemberGroup()


def body_crc32(body: bytes) -> int:
    """``bodyCrc32`` of a 103 request."""
    return zlib.crc32(body) & 0x7FFFFFFF


OPEN_END_OFFSET: Final = 2**63 - 1
"""End offset of the current epoch."""


class EpochEntry(JsonPart, frozen=True):
    """One master epoch and where it begins and ends in the log."""

    epoch: Int32 = 0
    start_offset: Int64 = 0
    end_offset: Int64 = OPEN_END_OFFSET


class EpochCacheBody(JsonBody, frozen=True):
    """1007; ``broker_id`` is the NameServer's id: 0 for the master."""

    cluster_name: str | None = None
    broker_name: str | None = None
    broker_id: Int64 = 0
    epoch_list: tuple[EpochEntry, ...] = ()
    max_offset: Int64 = 0


class HAConnectionRuntimeInfo(JsonPart, frozen=True):
    """One slave as its master sees it: ``addr`` is the ephemeral ip:port of the slave's HA client, not its identity."""

    addr: str = ""
    slave_ack_offset: int = 0
    diff: int = 0
    in_sync: bool = False
    transferred_byte_in_second: int = 0
    transfer_from_where: int = 0


class HAClientRuntimeInfo(JsonPart, frozen=True):
    """The HA client of a slave: its master and its progress."""

    master_addr: str | None = None
    transferred_byte_in_second: int = 0
    max_offset: int = 0
    last_read_timestamp: int = 0
    last_write_timestamp: int = 0
    master_flush_offset: int = 0


class HARuntimeInfoBody(JsonBody, frozen=True):
    """907. Only the master's answer is reliable about the slaves (measured)."""

    master: bool = False
    master_commit_log_max_offset: int = 0
    in_sync_slave_nums: int = 0
    ha_connection_info: tuple[HAConnectionRuntimeInfo, ...] = ()
    ha_client_runtime_info: HAClientRuntimeInfo = HAClientRuntimeInfo()


class BrokerRuntimeInfoBody(JsonBody, frozen=True):
    """28: all values as text."""

    table: dict[str, str] = msgspec.field(default_factory=dict)


class GroupListBody(JsonBody, frozen=True):
    """300: the consumer groups of a topic."""

    group_list: tuple[str, ...] = ()


class DelayOffsetBody(JsonBody, frozen=True):
    """45: by delay level, the queue offset of the next message to deliver. Level n is queue n - 1 of SCHEDULE_TOPIC_XXXX."""

    offset_table: dict[int, int] = msgspec.field(default_factory=dict)


class QueueOffsets(NamedTuple):
    """Of one queue: the offset of its first message, the one after its last, and when that was stored (0: none)."""

    minimum: int
    maximum: int
    last_update_ms: int = 0


# 202 is a map with objects as its keys, which is no JSON: {"offsetTable":{{"brokerName":...}:{"lastUpdateTimestamp":...}}}
_STATS_ENTRY: Final = re.compile(rb"(\{[^{}]*\}):(\{[^{}]*\})")
_STATS_BEGIN: Final = b'{"offsetTable":{'


def encode_topic_stats(topic: str, broker_name: str, queues: Mapping[int, QueueOffsets]) -> bytes:
    """Return the body of 202, Java's TopicStatsTable."""
    entries = (
        dump_json({"brokerName": broker_name, "queueId": queue_id, "topic": topic})
        + b":"
        + dump_json({"lastUpdateTimestamp": one.last_update_ms, "maxOffset": one.maximum, "minOffset": one.minimum})
        for queue_id, one in queues.items()
    )
    return _STATS_BEGIN + b",".join(entries) + b'},"topicPutTps":0.0}'


def decode_topic_stats(body: bytes | None) -> dict[int, QueueOffsets]:
    """Return the queues in a body of 202, by their ids. Raise BodyError if it is none."""
    text = body or b""
    if b'"offsetTable"' not in text:
        raise BodyError(f"202: body of {len(text)} bytes without offsetTable")
    found: dict[int, QueueOffsets] = {}
    for key, value in _STATS_ENTRY.findall(text):
        queue, offsets = load_json(key), load_json(value)
        try:
            minimum, maximum = int(offsets["minOffset"]), int(offsets["maxOffset"])
            found[int(queue["queueId"])] = QueueOffsets(minimum, maximum, int(offsets["lastUpdateTimestamp"]))
        except (KeyError, TypeError, ValueError) as error:
            raise BodyError(f"202: unreadable entry {value[:80]!r}") from error
    return found
