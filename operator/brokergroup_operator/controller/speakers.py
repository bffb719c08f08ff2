"""Which members are pods: they are spoken for by those pods alone (safety rule 8, ``authorization.py``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from brokergroup_operator.controller.group import Group


def pod_of(group: Group, broker_id: int | None) -> str:
    """The pod for which the record keeps this member's id; empty where it is kept for none."""
    replica = group.record.replicas.get(broker_id) if group.record is not None and broker_id is not None else None
    return (replica.reserved_for or "") if replica is not None else ""


def belongs_to_a_pod(group: Group, broker_id: int | None) -> bool:
    """Whether the record keeps this member's id for a pod."""
    return bool(pod_of(group, broker_id))
