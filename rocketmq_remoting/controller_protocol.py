"""Headers and bodies of the controller's requests and answers, under Java's class names (docs/reference/controller.md).

Defaults are those of the Java classes, because Java handles a request without a field: text that Java leaves null is None, an
elect request without names has empty ones, primitive booleans and the new epoch of 1001 are never absent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rocketmq_remoting.errors import BodyError
from rocketmq_remoting.serialization import (
    ExtFieldsHeader,
    Int32,
    Int64,
    JsonBody,
    JsonPart,
    dump_json,
    load_json_as,
)

if TYPE_CHECKING:
    from collections.abc import Iterable


DEFAULT_HEARTBEAT_TIMEOUT_MS = 10_000
"""The timeout that a controller assumes if a heartbeat has none (docs/reference/controller.md)."""
LOWEST_ELECTION_PRIORITY = 2**31 - 1
"""The priority of a broker without brokerElectionPriority; lower wins (docs/reference/controller.md)."""


class AlterSyncStateSetRequestHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """1001; body SyncStateSetBody with the *old* epoch (docs/reference/controller.md)."""

    broker_name: str | None = None
    master_broker_id: Int64 | None = None
    master_epoch: Int32 | None = None
    invoke_time: Int64 | None = None


class AlterSyncStateSetResponseHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """1001; errors carry 0."""

    new_sync_state_set_epoch: Int32 = 0


class ElectMasterRequestHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """1002; ``designate_elect`` means: this broker id and no other (docs/reference/controller.md)."""

    cluster_name: str = ""
    broker_name: str = ""
    broker_id: Int64 | None = None
    designate_elect: bool = False
    invoke_time: Int64 | None = None


class ElectMasterResponseHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """1002, codes 0 and 2011; every other code carries an empty one."""

    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None


class RegisterBrokerToControllerRequestHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """1003 (docs/reference/controller.md)."""

    cluster_name: str | None = None
    broker_name: str | None = None
    broker_id: Int64 | None = None
    broker_address: str | None = None
    invoke_time: Int64 | None = None


class RegisterBrokerToControllerResponseHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """1003; the four fields of the master are set only if it is alive."""

    cluster_name: str | None = None
    broker_name: str | None = None
    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None


class GetReplicaInfoRequestHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """1004."""

    broker_name: str | None = None


class GetReplicaInfoResponseHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """1004; the epoch of the SyncStateSet is in the body only. A broker throws without ``master_epoch``."""

    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None


class GetMetaDataResponseHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """1005; without a leader address the broker asks the next controller (docs/reference/controller.md)."""

    group: str | None = None
    controller_leader_id: str | None = None
    controller_leader_address: str | None = None
    is_leader: bool = False
    peers: str | None = None


class BrokerHeartbeatRequestHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """904 (docs/reference/controller.md). A NameServer only uses the first three fields."""

    cluster_name: str | None = None
    broker_name: str | None = None
    broker_addr: str | None = None
    broker_id: Int64 | None = None
    epoch: Int32 = -1
    max_offset: Int64 = -1
    confirm_offset: Int64 = -1
    heartbeat_timeout_ms: Int64 = msgspec.field(default=DEFAULT_HEARTBEAT_TIMEOUT_MS, name="heartbeatTimeoutMills")
    election_priority: Int32 = LOWEST_ELECTION_PRIORITY


class NotifyBrokerRoleChangedRequestHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """1008, controller to broker; body SyncStateSetBody, without which the broker fails (docs/reference/controller.md)."""

    master_address: str | None = None
    master_broker_id: Int64 | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None


class CleanBrokerDataRequestHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """1011; ids separated by ``;``, ignored if live brokers are cleaned too (docs/reference/controller.md)."""

    cluster_name: str | None = None
    broker_name: str | None = None
    broker_controller_ids_to_clean: str | None = None
    is_clean_living_broker: bool = False
    invoke_time: Int64 | None = None


class GetNextBrokerIdRequestHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """1012."""

    cluster_name: str | None = None
    broker_name: str | None = None


class GetNextBrokerIdResponseHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """1012."""

    cluster_name: str | None = None
    broker_name: str | None = None
    next_broker_id: Int64 | None = None


class ApplyBrokerIdRequestHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """1013; the check code is ``host:port;milliseconds`` (docs/reference/controller.md)."""

    cluster_name: str | None = None
    broker_name: str | None = None
    applied_broker_id: Int64 | None = None
    register_check_code: str | None = None


class ApplyBrokerIdResponseHeader(ExtFieldsHeader, frozen=True, kw_only=True):
    """1013; also on refusal."""

    cluster_name: str | None = None
    broker_name: str | None = None


class SyncStateSetBody(JsonBody, frozen=True):
    """1001 both ways, answers to 1003 and 1004, 1008. Decoding fails without ``syncStateSet``, as in Java."""

    sync_state_set: frozenset[int]
    sync_state_set_epoch: int = 0


class BrokerMemberGroup(JsonPart, frozen=True):
    """All registered replicas of a broker group, keyed by broker id."""

    cluster: str = ""
    broker_name: str = ""
    broker_addrs: dict[int, str] = msgspec.field(default_factory=dict)


class ElectMasterResponseBody(JsonBody, frozen=True):
    """1002: with the group on code 0, only the set on 2011. The broker needs the body in both cases."""

    broker_member_group: BrokerMemberGroup | None = None
    sync_state_set: frozenset[int] = frozenset()

    def encode(self) -> bytes:
        """Write the group twice: as ``brokerMemberGroup``, and its members at the top, where mqadmin reads them (a Java bug)."""
        members = msgspec.to_builtins(self, order="sorted")
        if self.broker_member_group is not None:
            members |= msgspec.to_builtins(self.broker_member_group, order="sorted")
        return dump_json(members)


class ReplicaIdentity(JsonPart, frozen=True):
    """One replica as 1006 shows it."""

    broker_name: str = ""
    broker_id: int = 0
    broker_address: str | None = None
    alive: bool = False


class ReplicasInfo(JsonPart, frozen=True):
    """One broker group as 1006 shows it. Both lists must be present: mqadmin dereferences them."""

    master_broker_id: int | None = None
    master_address: str | None = None
    master_epoch: int = 0
    sync_state_set_epoch: int = 0
    in_sync_replicas: tuple[ReplicaIdentity, ...] = ()
    not_in_sync_replicas: tuple[ReplicaIdentity, ...] = ()


class BrokerReplicasInfoBody(JsonBody, frozen=True):
    """1006 answer, keyed by broker name; unknown names are left out."""

    replicas_info_table: dict[str, ReplicasInfo] = msgspec.field(default_factory=dict)


def encode_broker_names(broker_names: Iterable[str]) -> bytes:
    """Return the body of a 1006 request."""
    return dump_json(list(broker_names))


def decode_broker_names(body: bytes | None) -> tuple[str, ...]:
    """Return the broker names of a 1006 request; empty for no body, ``null`` and an empty list, as in Java."""
    if body is None:
        return ()
    names: tuple[str | None, ...] | None = load_json_as(body, tuple[str | None, ...] | None)
    if names is not None and None in names:
        raise BodyError(f"broker names {names!r}: expected an array of strings")
    return tuple(name for name in names or () if name is not None)
