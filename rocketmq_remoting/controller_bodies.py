"""Bodies of the controller's requests and answers (docs/reference/controller.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rocketmq_remoting import java_json
from rocketmq_remoting.errors import BodyError
from rocketmq_remoting.json_body import JsonBody, JsonPart

if TYPE_CHECKING:
    from collections.abc import Iterable


class SyncStateSetBody(JsonBody, frozen=True):
    """1001 both ways, 1003 and 1004 answers, 1008. Java's reader throws when ``syncStateSet`` is missing, so does ours."""

    sync_state_set: frozenset[int]
    sync_state_set_epoch: int = 0


class BrokerMemberGroup(JsonPart, frozen=True):
    """All registered replicas of a broker group, keyed by broker id."""

    cluster: str = ""
    broker_name: str = ""
    broker_addrs: dict[int, str] = msgspec.field(default_factory=dict)


class ElectMasterResponseBody(JsonBody, frozen=True):
    """1002: with the group on code 0, the set alone on 2011. The broker needs the body in both cases."""

    broker_member_group: BrokerMemberGroup | None = None
    sync_state_set: frozenset[int] = frozenset()

    def encode(self) -> bytes:
        """Both shapes in one object: mqadmin reads the body as a bare member group, a Java bug."""
        members = msgspec.to_builtins(self, order="sorted")
        if self.broker_member_group is not None:
            members |= msgspec.to_builtins(self.broker_member_group, order="sorted")
        return java_json.dumps(members)


class ReplicaIdentity(JsonPart, frozen=True):
    """One replica as 1006 shows it."""

    broker_name: str = ""
    broker_id: int = 0
    broker_address: str | None = None
    alive: bool = False


class ReplicasInfo(JsonPart, frozen=True):
    """One broker group as 1006 shows it; both lists must be there, mqadmin dereferences them."""

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
    """The body of a 1006 request."""
    return java_json.dumps(list(broker_names))


def decode_broker_names(body: bytes | None) -> tuple[str, ...]:
    """The broker names a 1006 request asks for; empty for no body, ``null`` and an empty list, which Java treats alike."""
    if body is None:
        return ()
    names: tuple[str | None, ...] | None = java_json.loads_as(body, tuple[str | None, ...] | None)
    if names is not None and None in names:
        raise BodyError(f"broker names {names!r}: expected an array of strings")
    return tuple(name for name in names or () if name is not None)
