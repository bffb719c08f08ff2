"""Adds to a pod what spec.podTemplate says, as a strategic merge does: named things by their name, the rest beside ours. Pure.

Ours always wins. The API server refuses the names of our own containers, volumes and labels
(api/pod_fields.py); this holds without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokergroup_operator.api import names
from brokergroup_operator.reconcile.render.fence_container import restricted

if TYPE_CHECKING:
    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.pod_fields import BrokerContainerSpec, TemplateMetadata, TemplateSpec

OWN: Final = {
    "containers": names.OWN_CONTAINERS,
    "initContainers": names.OWN_CONTAINERS,
    "volumes": names.OWN_VOLUMES,
}


def with_template_spec(spec: JsonObject, template: TemplateSpec) -> JsonObject:
    """The PodSpec with what the template adds."""
    lists = {
        "containers": [_as_restricted(item) for item in template.containers],
        "initContainers": [_as_restricted(item) for item in template.init_containers],
        "volumes": template.volumes,
    }
    own = [
        _with_more(item, template.broker) if item["name"] == names.CONTAINER_BROKER else item
        for item in spec["containers"]
    ]
    spec = spec | {"containers": own}
    added: JsonObject = {
        field: [*spec.get(field, []), *(item for item in items if item.get("name") not in OWN[field])]
        for field, items in lists.items()
        if items
    }
    others: JsonObject = {
        "hostAliases": list(template.host_aliases),
        "dnsConfig": dict(template.dns_config),
        "runtimeClassName": template.runtime_class_name,
        "schedulerName": template.scheduler_name,
        "serviceAccountName": template.service_account_name,
    }
    return spec | added | {field: value for field, value in others.items() if value}


def _with_more(broker: JsonObject, template: BrokerContainerSpec) -> JsonObject:
    """The broker's container with what the template adds to it."""
    more = {
        "env": [item for item in template.env if item.get("name") not in names.OWN_VARIABLES],
        "volumeMounts": [item for item in template.volume_mounts if item.get("mountPath") not in names.OWN_FOLDERS],
    }
    return broker | {field: [*broker[field], *items] for field, items in more.items()}


def _as_restricted(container: JsonObject) -> JsonObject:
    """Where a further container says nothing, what holds for the broker holds for it."""
    return container | {"securityContext": {**restricted(), **(container.get("securityContext") or {})}}


def with_template_metadata(metadata: JsonObject, template: TemplateMetadata) -> JsonObject:
    """The metadata of a pod or claim with further labels and annotations."""
    return metadata | {
        field: {**more, **metadata.get(field, {})}
        for field, more in (("labels", template.labels), ("annotations", template.annotations))
        if more
    }
