"""Kopf's handlers: each only turns an event into the key of a group or a cluster. They run in kopf's own thread (`watch.py`).

Kopf writes nothing: `on.event` handlers keep no state in annotations, peering is off (equal priorities would pause every
plane; the Lease decides), and it posts no Events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import kopf

from brokergroup_operator.api import names
from brokergroup_operator.reconcile.kinds import (
    BROKER_GROUP_OPERATIONS,
    BROKER_GROUP_STATES,
    BROKER_GROUPS,
    CONFIG_MAPS,
    PERSISTENT_VOLUME_CLAIMS,
    POD_DISRUPTION_BUDGETS,
    PODS,
    ROCKETMQ_CLUSTERS,
    SERVICES,
)
from brokergroup_operator.records.store import GroupKey

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokergroup_operator.kube.resources import Resource
    from brokergroup_operator.reconcile.access import ClusterAccess

# Children are found by their label; the group and its record by their name.
LABELLED: Final = (PODS, PERSISTENT_VOLUME_CLAIMS, SERVICES, CONFIG_MAPS, POD_DISRUPTION_BUDGETS)
NAMED: Final = (BROKER_GROUPS, BROKER_GROUP_STATES)


def build_registry(
    access: ClusterAccess, on_change: Callable[[GroupKey], None], on_cluster_change: Callable[[GroupKey], None] | None
) -> kopf.OperatorRegistry:
    """The handlers; each only turns an event into a group's or a cluster's key."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def login(settings: kopf.OperatorSettings, **_: Any) -> Any:
        return access.kopf_credentials(settings)

    async def named(namespace: str | None, name: str | None, **_: Any) -> None:
        on_change(GroupKey(str(namespace), str(name)))

    async def labelled(namespace: str | None, labels: Any, **_: Any) -> None:
        on_change(GroupKey(str(namespace), str(labels.get(names.LABEL_BROKER_GROUP))))

    async def operation(namespace: str | None, spec: Any, **_: Any) -> None:
        on_change(GroupKey(str(namespace), str((spec.get("brokerGroupRef") or {}).get("name"))))

    kopf.on.event(*_selector(BROKER_GROUP_OPERATIONS), id=BROKER_GROUP_OPERATIONS.plural, registry=registry)(operation)
    if on_cluster_change is not None:
        _watch_clusters(registry, on_cluster_change)
    for resource in NAMED:
        kopf.on.event(*_selector(resource), id=resource.plural, registry=registry)(named)
    for resource in LABELLED:
        kopf.on.event(
            *_selector(resource),
            id=resource.plural,
            labels={names.LABEL_BROKER_GROUP: kopf.PRESENT},
            registry=registry,
        )(labelled)
    return registry


def _watch_clusters(registry: kopf.OperatorRegistry, on_change: Callable[[GroupKey], None]) -> None:
    """A cluster, and its groups: their status is part of its own."""

    async def group(namespace: str | None, labels: Any, **_: Any) -> None:
        if cluster := labels.get(names.LABEL_ROCKETMQ_CLUSTER):
            on_change(GroupKey(str(namespace), str(cluster)))

    async def cluster(namespace: str | None, name: str | None, **_: Any) -> None:
        on_change(GroupKey(str(namespace), str(name)))

    kopf.on.event(*_selector(BROKER_GROUPS), id="brokergroups-of-clusters", registry=registry)(group)
    kopf.on.event(*_selector(ROCKETMQ_CLUSTERS), id=ROCKETMQ_CLUSTERS.plural, registry=registry)(cluster)


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
