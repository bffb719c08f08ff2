"""Kopf's handlers: indexes that hold each group's objects, and events that hand over what the indexes hold then.

They run in kopf's own thread (`watch.py`). Kopf fills an index before it calls the event's handler, and calls none before every
kind was listed once; a handler takes the group's objects out of the index as a tuple, so nothing is shared that still changes.
Kopf writes nothing: `on.event` handlers keep no state in annotations, peering is off (equal priorities would pause every plane;
the Lease decides), and it posts no Events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import kopf

from brokergroup_operator.api import names
from brokergroup_operator.kube.resources import NODES
from brokergroup_operator.reconcile.kinds import BROKER_GROUPS, ROCKETMQ_CLUSTERS
from brokergroup_operator.records.group_cache import LABELLED, WATCHED, group_of
from brokergroup_operator.records.store import GroupKey

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.kube.resources import Resource
    from brokergroup_operator.reconcile.access import ClusterAccess


@dataclass(frozen=True, kw_only=True)
class Listener:
    """What is called with what the watches say. Without `on_cluster` or `on_node` those kinds are not watched."""

    on_objects: Callable[[Resource, GroupKey, tuple[JsonObject, ...]], None]
    on_cluster: Callable[[GroupKey], None] | None = None
    on_node: Callable[[str, JsonObject | None], None] | None = None


def build_registry(access: ClusterAccess, listener: Listener) -> kopf.OperatorRegistry:
    """Return the handlers of one run of kopf."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def login(settings: kopf.OperatorSettings, **_: Any) -> Any:
        return access.kopf_credentials(settings)

    for resource in WATCHED:
        _watch_objects(registry, resource, listener)
    if listener.on_cluster is not None:
        _watch_clusters(registry, listener.on_cluster)
    if listener.on_node is not None:
        _watch_nodes(registry, listener.on_node)
    return registry


def _watch_objects(registry: kopf.OperatorRegistry, resource: Resource, listener: Listener) -> None:
    async def index(body: kopf.Body, **_: Any) -> dict[GroupKey, JsonObject]:
        return {group_of(resource, body): dict(body)}

    async def event(body: kopf.Body, **indexes: Any) -> None:
        key = group_of(resource, body)
        listener.on_objects(resource, key, tuple(indexes[resource.plural].get(key, ())))

    labels: Any = {names.LABEL_BROKER_GROUP: kopf.PRESENT} if resource in LABELLED else None
    kopf.index(*_selector(resource), id=resource.plural, labels=labels, registry=registry)(index)
    kopf.on.event(*_selector(resource), id=resource.plural, labels=labels, registry=registry)(event)


def _watch_clusters(registry: kopf.OperatorRegistry, on_change: Callable[[GroupKey], None]) -> None:
    """A cluster, and its groups: their status is part of its own."""

    async def group(namespace: str | None, labels: Any, **_: Any) -> None:
        if cluster := labels.get(names.LABEL_ROCKETMQ_CLUSTER):
            on_change(GroupKey(str(namespace), str(cluster)))

    async def cluster(namespace: str | None, name: str | None, **_: Any) -> None:
        on_change(GroupKey(str(namespace), str(name)))

    kopf.on.event(*_selector(BROKER_GROUPS), id="brokergroups-of-clusters", registry=registry)(group)
    kopf.on.event(*_selector(ROCKETMQ_CLUSTERS), id=ROCKETMQ_CLUSTERS.plural, registry=registry)(cluster)


def _watch_nodes(registry: kopf.OperatorRegistry, on_node: Callable[[str, JsonObject | None], None]) -> None:
    async def event(type: str | None, name: str | None, body: kopf.Body, **_: Any) -> None:  # noqa: A002 - kopf's name
        on_node(str(name), None if type == "DELETED" else node_facts(body))

    kopf.on.event(*_selector(NODES), id=NODES.plural, registry=registry)(event)


def node_facts(node: Any) -> JsonObject:
    """Return what passes read of a node, which is large: in its own form, without what changes with each of its heartbeats."""
    metadata, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
    labels = metadata.get("labels") or {}
    return {
        "metadata": {
            "name": metadata["name"],
            "labels": {key: labels[key] for key in (names.LABEL_ZONE,) if key in labels},
        },
        "spec": {key: spec[key] for key in ("unschedulable", "taints") if key in spec},
        "status": {
            "conditions": [
                {key: value for key, value in one.items() if key != "lastHeartbeatTime"}
                for one in status.get("conditions") or []
            ],
            "nodeInfo": {"bootID": (status.get("nodeInfo") or {}).get("bootID", "")},
        },
    }


def _selector(resource: Resource) -> tuple[str, str, str]:
    return resource.group, resource.version, resource.plural


def build_settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True
    settings.posting.enabled = False
    # We know our kinds and namespaces; following all CRDs and namespaces would need more rights and buy nothing.
    settings.scanning.disabled = True
    settings.persistence.finalizer = f"{names.GROUP}/kopf"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=names.GROUP)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=names.GROUP)
    settings.networking.error_backoffs = (0.2, 0.5, 1, 2, 3, 5)
    settings.networking.request_timeout = 10.0
    # An integer: the API server refuses "300.0".
    settings.watching.server_timeout = 300
    settings.process.ultimate_exiting_timeout = None
    for resource in LABELLED:
        settings.watching.label_selectors[_selector(resource)] = names.LABEL_BROKER_GROUP
    return settings
