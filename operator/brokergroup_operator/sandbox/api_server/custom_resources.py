"""From a CustomResourceDefinition to served resources.

A definition takes effect in the same call that stores it: there is no moment at which it is Established but not served.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokergroup_operator.sandbox.api_server.resource_types import Behaviour, ResourceType, ScalePaths

if TYPE_CHECKING:
    from brokergroup_operator.sandbox.api_server.json_values import JsonObject


class CustomBehaviour(Behaviour):
    """Custom objects: shaped and judged by the schema of their version."""

    counts_generation = True
    unconditional_update = False


def custom_resource_types(definition: JsonObject) -> list[ResourceType]:
    """One resource type for each version of the definition."""
    return [_resource_type(definition["spec"], version) for version in definition["spec"]["versions"]]


def _resource_type(spec: JsonObject, version: JsonObject) -> ResourceType:
    names = spec["names"]
    subresources = version.get("subresources") or {}
    return ResourceType(
        spec["group"],
        version["name"],
        names["plural"],
        names["kind"],
        singular=names.get("singular", ""),
        namespaced=spec["scope"] == "Namespaced",
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        has_status="status" in subresources,
        scale=_scale_paths(subresources.get("scale")),
        selectable_fields=frozenset(
            entry["jsonPath"].removeprefix(".") for entry in version.get("selectableFields") or ()
        ),
        behaviour=CustomBehaviour(),
        custom=True,
        served=version.get("served", True),
    )


def _scale_paths(scale: JsonObject | None) -> ScalePaths | None:
    if not scale:
        return None
    return ScalePaths(
        scale["specReplicasPath"].removeprefix("."),
        scale["statusReplicasPath"].removeprefix("."),
        scale.get("labelSelectorPath", "").removeprefix("."),
    )
