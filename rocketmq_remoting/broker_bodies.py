"""Bodies of what a broker answers to operators and peers."""

from __future__ import annotations

from typing import Final

import msgspec

from rocketmq_remoting.json_body import JsonBody, JsonPart

OPEN_END_OFFSET: Final = 2**63 - 1
"""End offset of the epoch that is being written."""


class EpochEntry(JsonPart, frozen=True):
    """One master epoch and where it begins and ends in the log."""

    epoch: int = 0
    start_offset: int = 0
    end_offset: int = OPEN_END_OFFSET


class EpochCacheBody(JsonBody, frozen=True):
    """1007; ``broker_id`` is the NameServer's id: 0 for the master."""

    cluster_name: str | None = None
    broker_name: str | None = None
    broker_id: int = 0
    epoch_list: tuple[EpochEntry, ...] = ()
    max_offset: int = 0


class HAConnectionRuntimeInfo(JsonPart, frozen=True):
    """One slave as its master sees it: ``addr`` is the ephemeral ip:port of the slave's HA client, not its identity."""

    addr: str = ""
    slave_ack_offset: int = 0
    diff: int = 0
    in_sync: bool = False
    transferred_byte_in_second: int = 0
    transfer_from_where: int = 0


class HAClientRuntimeInfo(JsonPart, frozen=True):
    """The HA client of a slave: whom it reads from and how far it is."""

    master_addr: str | None = None
    transferred_byte_in_second: int = 0
    max_offset: int = 0
    last_read_timestamp: int = 0
    last_write_timestamp: int = 0
    master_flush_offset: int = 0


class HARuntimeInfoBody(JsonBody, frozen=True):
    """907. What it says of the slaves is proof only at the master (measured)."""

    master: bool = False
    master_commit_log_max_offset: int = 0
    in_sync_slave_nums: int = 0
    ha_connection_info: tuple[HAConnectionRuntimeInfo, ...] = ()
    ha_client_runtime_info: HAClientRuntimeInfo = HAClientRuntimeInfo()


class BrokerRuntimeInfoBody(JsonBody, frozen=True):
    """28: everything as text."""

    table: dict[str, str] = msgspec.field(default_factory=dict)


class ProducerData(JsonPart, frozen=True):
    """One producer group of a client."""

    group_name: str = ""


class SubscriptionData(JsonPart, frozen=True):
    """What a consumer group wants of one topic."""

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
