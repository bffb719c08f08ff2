"""Objects that have the name of one of ours and are somebody else's: a user's Service `orders-master`, another group's claim.

Server-side apply with force would take them over without a word. So whatever is applied is looked at first, and what is not ours is
not touched; nor does a pod start on it, for a pod takes its claims and its configuration by their names alone.

Ours is what names this very group as its owner, or carries our labels for a group of this name: claims outlive their group, and one
that is made again under the name takes them back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokergroup_operator.api import names
from brokergroup_operator.kube.errors import ApiError
from brokergroup_operator.kube.resources import CONFIG_MAPS, PERSISTENT_VOLUME_CLAIMS, PODS, SERVICES
from brokergroup_operator.reconcile.kinds import POD_DISRUPTION_BUDGETS
from brokergroup_operator.reconcile.see import observed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.kube.resources import Resource
    from brokergroup_operator.reconcile.see.observed import Observed


class NameTakenError(ApiError):
    """An object of that name is somebody else's. A person must rename or remove it, or rename the group."""


def is_ours(found: JsonObject, group_object: JsonObject) -> bool:
    """Whether the object was made by this operator for this group, or for an earlier one of its name."""
    owners = observed.metadata(found).get("ownerReferences") or []
    if any(owner.get("uid") == observed.uid(group_object) for owner in owners):
        return True
    labels, group = observed.labels_of(found), str(observed.metadata(group_object)["name"])
    if labels.get(names.LABEL_APP_MANAGED_BY) != names.MANAGED_BY:
        return False
    # Somebody may have taken the one label off by which we list: then the other tells.
    return labels.get(names.LABEL_BROKER_GROUP, labels.get(names.LABEL_APP_INSTANCE)) == group


def listed(seen: Observed, resource: Resource) -> Mapping[str, JsonObject]:
    """What the pass has of that kind; by the group's label, so a stranger's object is rarely in it."""
    by_kind: dict[Resource, Mapping[str, JsonObject]] = {
        PODS: seen.pods,
        PERSISTENT_VOLUME_CLAIMS: seen.claims,
        SERVICES: seen.services,
        CONFIG_MAPS: seen.config_maps,
        POD_DISRUPTION_BUDGETS: seen.disruption_budgets,
    }
    return by_kind.get(resource, {})


def taken(resource: Resource, name: str, found: JsonObject) -> NameTakenError:
    manager = observed.labels_of(found).get(names.LABEL_APP_MANAGED_BY)
    whose = f" (managed by {manager})" if manager else ""
    return NameTakenError(
        f"{resource.kind} {name} is there and is none of this group's{whose}: it is left alone. Rename or remove it"
    )


def stands_on(resource: Resource, obj: JsonObject) -> Iterator[tuple[str, str]]:
    """The claims and ConfigMaps that a pod takes by name, and the Service by whose address it is known: (kind, name)."""
    if resource != PODS:
        return
    if names.ANNOTATION_ADDRESS in observed.annotations_of(obj):
        yield SERVICES.kind, str(observed.metadata(obj)["name"])
    for volume in obj["spec"].get("volumes") or []:
        if "persistentVolumeClaim" in volume:
            yield PERSISTENT_VOLUME_CLAIMS.kind, str(volume["persistentVolumeClaim"]["claimName"])
        if "configMap" in volume:
            yield CONFIG_MAPS.kind, str(volume["configMap"]["name"])
