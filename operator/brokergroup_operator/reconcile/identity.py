"""Which names, labels and owner the children of a group carry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from brokergroup_operator.api import names

if TYPE_CHECKING:
    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.brokergroup import BrokerGroup


@dataclass(frozen=True, kw_only=True)
class Member:
    """One broker id that the group's pods carry, and the one name of its pod and claim."""

    broker_id: int
    pod: str


def namespace_of(group: BrokerGroup) -> str:
    return str(group.metadata["namespace"])


def name_of(group: BrokerGroup) -> str:
    return str(group.metadata["name"])


def selector_labels(group: BrokerGroup) -> dict[str, str]:
    """What all pods of the group carry for ever; Services and budgets select by it."""
    return {names.LABEL_BROKER_GROUP: name_of(group)}


def selector_text(labels: dict[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in sorted(labels.items()))


def child_labels(group: BrokerGroup) -> dict[str, str]:
    labels = {
        names.LABEL_APP_NAME: names.APP_NAME,
        names.LABEL_APP_COMPONENT: "broker",
        names.LABEL_APP_MANAGED_BY: names.MANAGED_BY,
    }
    # A label value must begin and end with a letter or digit; RocketMQ's names need not.
    if cluster := group.spec.broker_cluster_name.strip("-_"):
        labels |= {names.LABEL_APP_PART_OF: cluster, names.LABEL_CLUSTER: cluster}
    return labels | selector_labels(group)


def copy_labels(group: BrokerGroup) -> dict[str, str]:
    """Of what copies a store of the group, or is a copy: no Service, budget or controller counts it as a member."""
    labels = {key: value for key, value in child_labels(group).items() if key != names.LABEL_BROKER_GROUP}
    return labels | {names.LABEL_APP_COMPONENT: "backup", names.LABEL_COPIES_FOR: name_of(group)}


def member_labels(group: BrokerGroup, member: Member) -> dict[str, str]:
    return child_labels(group) | {names.LABEL_BROKER_ID: str(member.broker_id)}


def owner_reference(group: BrokerGroup) -> JsonObject:
    """The group as owner, for people and for the garbage collector where there is one; the operator relies on its finalizer."""
    return controller_reference(names.BROKER_GROUP_KIND, group.metadata)


def controller_reference(kind: str, metadata: JsonObject) -> JsonObject:
    return {
        "apiVersion": names.API_VERSION,
        "kind": kind,
        "name": str(metadata["name"]),
        "uid": str(metadata["uid"]),
        "controller": True,
        "blockOwnerDeletion": True,
    }


def plain_reference(kind: str, metadata: JsonObject) -> JsonObject:
    """As owner for the garbage collector alone: its deletion waits for nothing, so it needs no right to the owner's finalizers."""
    return {
        field: value for field, value in controller_reference(kind, metadata).items() if field != "blockOwnerDeletion"
    }


def object_metadata(group: BrokerGroup, name: str, labels: dict[str, str], *, owned: bool = True) -> JsonObject:
    metadata: JsonObject = {"name": name, "namespace": namespace_of(group), "labels": labels}
    if owned:
        metadata["ownerReferences"] = [owner_reference(group)]
    return metadata


def claim_names(group: BrokerGroup, pod: str) -> tuple[str, ...]:
    """The claims without which this pod's data is not whole; none where its disk goes with it."""
    storage = group.spec.storage
    if storage.ephemeral is not None:
        return ()
    return (pod,) if storage.commit_log is None else (pod, names.commit_log_claim_name(pod))
