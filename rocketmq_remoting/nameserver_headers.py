"""Headers of requests to a NameServer, and of 906 between brokers."""

from __future__ import annotations

from dataclasses import dataclass, field

from rocketmq_remoting.header_fields import ExtFieldsHeader, Int32, Int64, wire_name


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerRequestHeader(ExtFieldsHeader):
    """103; body RegisterBrokerBody. ``broker_id`` is 0 for the master, else its own; ``body_crc32`` 0 is not checked."""

    broker_name: str | None = None
    broker_addr: str | None = None
    cluster_name: str | None = None
    ha_server_addr: str | None = None
    broker_id: Int64 | None = None
    heartbeat_timeout_ms: Int64 | None = field(default=None, metadata=wire_name("heartbeatTimeoutMillis"))
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: Int32 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerResponseHeader(ExtFieldsHeader):
    """103; for slaves: where the master is and where it serves its log."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnRegisterBrokerRequestHeader(ExtFieldsHeader):
    """104."""

    cluster_name: str | None = None
    broker_addr: str | None = None
    broker_name: str | None = None
    broker_id: Int64 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetRouteInfoRequestHeader(ExtFieldsHeader):
    """105; standard JSON has quoted keys, given to requests of version 401 and above."""

    topic: str | None = None
    accept_standard_json_only: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBrokerMemberGroupRequestHeader(ExtFieldsHeader):
    """901."""

    cluster_name: str | None = None
    broker_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeHAInfoRequestHeader(ExtFieldsHeader):
    """906, to a broker: with ``master_ha_address`` its HA client goes there; without, the master tells about itself."""

    master_ha_address: str | None = None
    master_flush_offset: Int64 | None = None
    master_address: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeHAInfoResponseHeader(ExtFieldsHeader):
    """906."""

    master_ha_address: str | None = None
    master_flush_offset: Int64 | None = None
    master_address: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBrokerConfigResponseHeader(ExtFieldsHeader):
    """26; the body holds the configuration (properties.py)."""

    version: str | None = None
