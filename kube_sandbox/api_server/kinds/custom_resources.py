"""From a CustomResourceDefinition to served resources.

A definition takes effect in the call that stores it: once it is Established, its kind is served.
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

from kube_sandbox.api_server.errors import FieldError, invalid
from kube_sandbox.api_server.kinds.schema import NOT_CHECKED, SchemaNode, is_blocking
from kube_sandbox.api_server.resource_types import Behaviour, ResourceType, ScalePaths
from kube_sandbox.api_server.tables import printer_columns
from kube_sandbox.api_server.values import field_at

if TYPE_CHECKING:
    from kube_sandbox.api_server.values import JsonObject


_UNTOUCHED = ("apiVersion", "kind", "metadata")


class CustomBehaviour(Behaviour):
    """Custom objects: completed and validated by the schema of their version."""

    counts_generation = True
    unconditional_update = False

    def __init__(
        self, schema: SchemaNode, name_schema: SchemaNode, *, has_status: bool, scale: ScalePaths | None
    ) -> None:
        self._schema = schema
        self._name_schema = name_schema
        self._has_status = has_status
        self._scale = scale

    def _scale_errors(self, obj: JsonObject) -> list[FieldError]:
        """Complaints about replicas that the scale subresource cannot show."""
        replicas = field_at(obj, self._scale.spec_replicas) if self._scale is not None else None
        if self._scale is None or replicas is None:
            return []
        path = f".{self._scale.spec_replicas}"
        if type(replicas) is not int:
            kind = {str: "string", float: "float64", bool: "bool"}.get(type(replicas), "map[string]interface {}")
            return [invalid(path, 0, f"{path} accessor error: {replicas} is of the type {kind}, expected int64")]
        return [invalid(path, replicas, "should be a non-negative integer")] if replicas < 0 else []

    def drop_unknown_fields(self, obj: JsonObject) -> list[str]:
        unknown: list[str] = []
        content = self._content(obj)
        self._schema.prune(content, "", unknown)
        for name in [name for name in obj if name not in _UNTOUCHED and name not in content]:
            del obj[name]
        return unknown

    def set_defaults(self, obj: JsonObject) -> None:
        self._schema.set_defaults(obj)

    def prepare_create(self, obj: JsonObject) -> None:
        """Drop the status that a client gives a new object."""
        if self._has_status:
            obj.pop("status", None)

    def validate(self, new: JsonObject, old: JsonObject | None, subresource: str) -> list[FieldError]:
        """Return the errors by the definition's schema, its scale path, and its CEL rules unless a value has the wrong shape.

        Values unchanged since `old` are held to transition rules only; the schema of the metadata covers a new object's name.
        """
        errors: list[FieldError] = []
        if subresource == "status":
            # The rest is as stored, possibly under an older schema: not this writer's mistake.
            self._schema.validate(self._content(new), self._content(old or {}), "", errors)
        else:
            if old is None and (name := new["metadata"].get("name")):
                self._name_schema.validate(name, None, "metadata.name", errors)
            self._schema.validate(self._content(new), self._content(old) if old else None, "", errors)
        errors += self._scale_errors(new)
        if not self._schema.has_rules:
            return errors
        if is_blocking(errors):
            return [*errors, NOT_CHECKED]
        self._schema.judge(new, old, "", errors)
        return errors

    def list_map_keys(self, path: tuple[str, ...]) -> tuple[str, ...] | None:
        if path[0] == "metadata":
            return super().list_map_keys(path)
        node = self._schema.at(path)
        if node is None or node.list_type == "atomic":
            return None
        return node.list_map_keys

    def key_default(self, path: tuple[str, ...], key: str) -> Any:
        node = self._schema.at(path)
        return None if node is None or node.items is None else node.items.default_of(key)

    def is_atomic_map(self, path: tuple[str, ...]) -> bool:
        node = self._schema.at(path)
        return node is not None and node.map_type == "atomic"

    def is_always_there(self, path: tuple[str, ...]) -> bool:
        return path in ((), ("metadata",))

    @staticmethod
    def _content(obj: JsonObject) -> JsonObject:
        return {name: value for name, value in obj.items() if name not in _UNTOUCHED}


@functools.lru_cache(maxsize=64)
def _schema_node(schema: str) -> SchemaNode:
    """Compile a schema once in a process: each definition is compiled to judge it and to serve it, by every server again."""
    return SchemaNode(json.loads(schema))


def custom_resource_types(definition: JsonObject) -> list[ResourceType]:
    """Return the resource of the definition's storage version; other versions are not served."""
    spec = definition["spec"]
    version = next(version for version in spec["versions"] if version.get("storage"))
    names = spec["names"]
    subresources = version.get("subresources") or {}
    scale = None
    if paths := subresources.get("scale"):
        keys = ("specReplicasPath", "statusReplicasPath", "labelSelectorPath")
        scale = ScalePaths(*(paths.get(key, "").removeprefix(".") for key in keys))
    has_status = "status" in subresources
    schema = (version.get("schema") or {}).get("openAPIV3Schema") or {}
    properties = schema.get("properties") or {}
    content = {**schema, "properties": {name: child for name, child in properties.items() if name not in _UNTOUCHED}}
    # The name is the one field of the metadata that a definition may restrict.
    name_schema = ((properties.get("metadata") or {}).get("properties") or {}).get("name") or {}
    behaviour = CustomBehaviour(
        _schema_node(json.dumps(content)), _schema_node(json.dumps(name_schema)), has_status=has_status, scale=scale
    )
    resource = ResourceType(
        spec["group"],
        version["name"],
        names["plural"],
        names["kind"],
        singular=names.get("singular", ""),
        namespaced=spec["scope"] == "Namespaced",
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        has_status=has_status,
        scale=scale,
        selectable_fields=frozenset(
            entry["jsonPath"].removeprefix(".") for entry in version.get("selectableFields") or ()
        ),
        columns=printer_columns(version.get("additionalPrinterColumns") or ()),
        behaviour=behaviour,
        custom=True,
    )
    return [resource]
