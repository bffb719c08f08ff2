"""Headers of what a BrokerContainer is asked on its own port."""

from __future__ import annotations

from dataclasses import dataclass

from rocketmq_remoting.header_fields import ExtFieldsHeader, Int64


@dataclass(frozen=True, slots=True, kw_only=True)
class AddBrokerRequestHeader(ExtFieldsHeader):
    """902: a broker.conf on the container's disk."""

    config_path: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveBrokerRequestHeader(ExtFieldsHeader):
    """903: 211 (BROKER_NOT_EXIST) where there is none."""

    broker_name: str | None = None
    broker_cluster_name: str | None = None
    broker_id: Int64 | None = None
