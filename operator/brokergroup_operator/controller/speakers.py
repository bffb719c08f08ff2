"""Whose word counts for whom: a member that belongs to a pod is spoken for by that pod alone (safety rule 8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from brokergroup_operator.controller.directory import Peer
    from brokergroup_operator.controller.group import Group


def is_foreign(peer: Peer | None, group: Group) -> bool:
    """Whether this peer is a pod of another group."""
    return peer is not None and peer.group is not None and peer.group != group.key


def belongs_to_a_pod(group: Group, broker_id: int | None) -> bool:
    """Whether the record keeps this member's id for a pod."""
    replica = group.record.replicas.get(broker_id) if group.record is not None and broker_id is not None else None
    return replica is not None and bool(replica.reserved_for)


def speaks_for(peer: Peer | None, group: Group, broker_id: int) -> bool:
    """Whether this peer is the member: it must be the pod that the id is reserved for, where it is reserved for one."""
    if group.record is None or not belongs_to_a_pod(group, broker_id):
        return True
    own = group.record.replicas[broker_id].reserved_for
    return peer is not None and (peer.namespace, peer.pod_name) == (group.key.namespace, own)
