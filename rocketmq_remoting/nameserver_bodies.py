"""Bodies of NameServer traffic."""

from __future__ import annotations

import zlib
from typing import Any

import msgspec

from rocketmq_remoting.controller_bodies import BrokerMemberGroup
from rocketmq_remoting.json_body import JsonBody, JsonPart


class DataVersion(JsonPart, frozen=True):
    """Version of a broker's topics; ``state_version`` is the master epoch and decides who owns an id."""

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
    """103. A first registration with exactly one topic is refused."""

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
