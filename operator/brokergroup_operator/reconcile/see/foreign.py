"""Objects of the names that a group uses: whose each is, and whether it already is what we would apply.

Each object is read before it is applied: server-side apply with force would take over a user's Service `orders-master`
silently. A foreign object stays as it is, and no pod starts on it. Ours is what names this group as its owner, or carries our
labels for a group of this name, since claims outlive their group. Quantities ("8Gi", "250m") are compared as numbers: API
servers spell them differently.
"""

from __future__ import annotations

import hashlib
import json
import re
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from brokergroup_operator.api import names
from brokergroup_operator.kube import resources
from brokergroup_operator.kube.errors import ApiError
from brokergroup_operator.reconcile import identity
from brokergroup_operator.reconcile.plan import Action, ApplyObject
from brokergroup_operator.reconcile.see import observed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.kube.resources import Resource
    from brokergroup_operator.reconcile.see.observed import Observed


# What is labelled as a group's own and lives and dies with it; claims and the record have rules of their own.
OWNED: Final = (
    resources.PODS,
    resources.CONFIG_MAPS,
    resources.SERVICES,
    resources.POD_DISRUPTION_BUDGETS,
    resources.NETWORK_POLICIES,
)


class NameTakenError(ApiError):
    """An object of that name has another owner. A person must rename or remove it, or rename the group."""


def is_ours(found: JsonObject, group_object: JsonObject) -> bool:
    """Whether the object was made by this operator for this group, or for an earlier one of its name."""
    owners = observed.metadata(found).get("ownerReferences") or []
    if any(owner.get("uid") == observed.uid(group_object) for owner in owners):
        return True
    labels, group = observed.labels_of(found), str(observed.metadata(group_object)["name"])
    if labels.get(names.LABEL_APP_MANAGED_BY) != names.MANAGED_BY:
        return False
    # The label by which we list may have been removed: then the name decides, which only this group gives to what it makes.
    return labels.get(names.LABEL_BROKER_GROUP, "" if owners else group) == group


@observed.derived
def made_here(seen: Observed, resource: Resource) -> dict[str, JsonObject]:
    """What this operator made for the group. A person's Service may carry the group's label, or every label of one of ours."""
    group = identity.name_of(seen.group)
    shared = {
        names.members_service_name(group),
        names.master_service_name(group),
        names.slaves_service_name(group),
        names.disruption_budget_name(group),
        names.master_disruption_budget_name(group),
        names.config_map_name(group),
        names.network_policy_name(group),
    }
    return {
        name: obj
        for name, obj in listed(seen, resource).items()
        if (name in shared or names.broker_id_of_pod_name(group, name) is not None) and is_ours(obj, seen.group_object)
    }


def children(seen: Observed) -> Iterator[tuple[Resource, JsonObject]]:
    """Everything that a group owns, with its kind; not its claims, which have no owner."""
    for resource in OWNED:
        for obj in made_here(seen, resource).values():
            yield resource, obj


@observed.derived
def has_unowned(seen: Observed) -> bool:
    """Whether something that this operator made for the group, or for an earlier one of its name, has no owner."""
    return any(observed.is_unowned(obj) for _, obj in children(seen))


@observed.derived
def listed(seen: Observed, resource: Resource) -> Mapping[str, JsonObject]:
    """What the pass has of that kind; by the group's label, so a foreign object is rarely in it."""
    by_kind: dict[Resource, Mapping[str, JsonObject]] = {
        resources.PODS: seen.pods,
        resources.PERSISTENT_VOLUME_CLAIMS: seen.claims,
        resources.SERVICES: seen.services,
        resources.CONFIG_MAPS: seen.config_maps,
        resources.POD_DISRUPTION_BUDGETS: seen.disruption_budgets,
        resources.NETWORK_POLICIES: seen.network_policies,
    }
    return by_kind.get(resource, {})


def taken(resource: Resource, name: str, found: JsonObject) -> NameTakenError:
    manager = observed.labels_of(found).get(names.LABEL_APP_MANAGED_BY)
    owner = f" (managed by {manager})" if manager else ""
    return NameTakenError(
        f"{resource.kind} {name} is there and is none of this group's{owner}: it is left alone. Rename or remove it"
    )


def stands_on(resource: Resource, obj: JsonObject) -> Iterator[tuple[str, str]]:
    """The claims and ConfigMaps that a pod takes by name, and the Service by whose address it is known: (kind, name)."""
    if resource != resources.PODS:
        return
    if names.ANNOTATION_ADDRESS in observed.annotations_of(obj):
        yield resources.SERVICES.kind, str(observed.metadata(obj)["name"])
    for volume in obj["spec"].get("volumes") or []:
        if "persistentVolumeClaim" in volume:
            yield resources.PERSISTENT_VOLUME_CLAIMS.kind, str(volume["persistentVolumeClaim"]["claimName"])
        if "configMap" in volume:
            yield resources.CONFIG_MAPS.kind, str(volume["configMap"]["name"])


def content_hash(text: str) -> str:
    """Short, stable, no secret: it only says whether two texts are the same."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def with_revision(desired: JsonObject) -> JsonObject:
    """Marks the object with a hash of what we want: fields we stop wanting are then noticed too."""
    revision = content_hash(json.dumps(desired, sort_keys=True))
    metadata = dict(desired["metadata"])
    metadata["annotations"] = dict(metadata.get("annotations") or {}) | {names.ANNOTATION_REVISION: revision}
    return desired | {"metadata": metadata}


def apply_if_drifted(resource: Resource, existing: Mapping[str, JsonObject], wanted: JsonObject) -> Iterator[Action]:
    """The object as we want it, unless it is so already or just going."""
    desired = with_revision(wanted)
    actual = existing.get(str(desired["metadata"]["name"]))
    if actual is not None and observed.being_deleted(actual):
        return
    if why := drifted(actual, desired):
        yield ApplyObject(reason=why, resource=resource, object=desired)


def drifted(actual: JsonObject | None, desired: JsonObject) -> str:
    """Why the object must be applied, or the empty text. `desired` carries its revision."""
    if actual is None:
        return "missing"
    wanted = observed.annotations_of(desired).get(names.ANNOTATION_REVISION)
    if observed.annotations_of(actual).get(names.ANNOTATION_REVISION) != wanted:
        return "the wanted object changed"
    difference = first_difference(desired, actual) or _widened(desired, actual)
    return f"another writer changed {difference}" if difference else ""


def _widened(desired: JsonObject, actual: JsonObject) -> str:
    """The field of a NetworkPolicy that differs at all: a further rule, source or port opens it, a further label narrows it.

    `egress` has no effect without its policyTypes, and an apply would not take it from the manager that added it.
    """
    if desired.get("kind") != resources.NETWORK_POLICIES.kind:
        return ""
    wanted, found = desired["spec"], actual.get("spec") or {}
    fields = ("podSelector", "policyTypes", "ingress")
    return next((f".spec.{one}" for one in fields if (wanted.get(one) or []) != (found.get(one) or [])), "")


def first_difference(desired: Any, actual: Any, path: str = "") -> str:
    """The path of the first field that is not as desired; fields that the API server adds do not count."""
    if desired == actual:
        return ""
    if isinstance(desired, dict):
        if not isinstance(actual, dict):
            return path or "."
        return next(filter(None, (first_difference(v, actual.get(k), f"{path}.{k}") for k, v in desired.items())), "")
    if not isinstance(desired, list):
        return "" if _is_same_quantity(desired, actual) else path
    if not isinstance(actual, list):
        return path
    # Other managers may add items (owner references, ports); ours must be there, in whatever order.
    lacking = (index for index, item in enumerate(desired) if all(first_difference(item, other) for other in actual))
    return next((f"{path}[{index}]" for index in lacking), "")


def _is_same_quantity(desired: Any, actual: Any) -> bool:
    if not (isinstance(desired, str) and isinstance(actual, str)):
        return False
    try:
        return parse_quantity(desired) == parse_quantity(actual)
    except QuantityError:
        return False


FACTORS: Final = {
    "m": Fraction(1, 1000),
    "": Fraction(1),
    **{unit: Fraction(1000**power) for power, unit in enumerate("kMGTPE", start=1)},
    **{f"{unit}i": Fraction(1024**power) for power, unit in enumerate("KMGTPE", start=1)},
}
QUANTITY: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(m|k|[MGTPE]i?|Ki)?")


class QuantityError(ValueError):
    """The text is no quantity."""


def parse_quantity(text: str) -> Fraction:
    match = QUANTITY.fullmatch(text)
    if match is None:
        raise QuantityError(f"{text!r} is no quantity, expected a number with an optional suffix such as Gi or m")
    return Fraction(match[1]) * FACTORS[match[2] or ""]
