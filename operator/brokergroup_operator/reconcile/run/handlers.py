"""Kopf's handlers: each hands over the object of an event. They run in kopf's own thread (`watch.py`).

Not `kopf.index`: kopf counts the objects that are not indexed yet, and wakes every one of them for each that is, so the start of
300 groups took 46 s of processor time instead of 13 (ADR 16). Kopf writes nothing: `on.event` handlers keep no state in
annotations, peering is off (equal priorities would pause every plane; the Lease decides), and it posts no Events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import kopf

from brokergroup_operator.api import names
from brokergroup_operator.kube.resources import NODES
from brokergroup_operator.reconcile.kinds import BROKER_GROUPS, ROCKETMQ_CLUSTERS
from brokergroup_operator.records.group_cache import LABELLED, WATCHED
from brokergroup_operator.records.store import GroupKey

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.kube.resources import Resource
    from brokergroup_operator.reconcile.access import ClusterAccess


@dataclass(frozen=True, kw_only=True)
class Listener:
    """What is called with what the watches say. Without `on_cluster` or `on_node` those kinds are not watched."""

    # The object, and whether it is gone.
    on_object: Callable[[Resource, JsonObject, bool], None]
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
    async def event(type: str | None, body: kopf.Body, **_: Any) -> None:  # noqa: A002 - kopf's name
        listener.on_object(resource, dict(body), type == "DELETED")

    kopf.on.event(*_selector(resource), id=resource.plural, registry=registry)(event)


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
