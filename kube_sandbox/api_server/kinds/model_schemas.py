"""The shape of built-in kinds: their fields, from the official client's models, and which of their lists are keyed.

The client's classes are generated from the API's OpenAPI document and have every field with its JSON name and type. Pruning and
type checks of built-in objects come from them. The client is imported when first needed: that takes two thirds of a second.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from kube_sandbox.api_server.errors import bad_request

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kube_sandbox.api_server.store.field_managers import Place
    from kube_sandbox.api_server.values import JsonObject

_TYPE = re.compile(r"^(?:(List)\[(.+)\]|(Dict)\[str, (.+)\]|(\w+))$")
_INDEX = re.compile(r"\[[0-9]+\]")
# Maps whose values are quantities: numbers are as good as texts.
_QUANTITY_MAPS = frozenset(("limits", "requests", "capacity", "allocatable", "overhead", "allocatedResources"))
_JSON_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "string"),
    "int": ((int,), "int64"),
    "bool": ((bool,), "bool"),
    "float": ((int, float), "float64"),
    "datetime": ((str,), "string"),
    "bytes": ((str,), "[]uint8"),
}


@dataclass(frozen=True)
class ModelField:
    """One field: a value, a list or a map of values; `type` names a model or a primitive."""

    container: Literal["", "list", "map"]
    type: str

    @property
    def is_model(self) -> bool:
        return self.type not in _JSON_TYPES and self.type != "object"


def read_as(obj: JsonObject, model: str) -> list[str]:
    """Drop unknown fields and nulls in place; return the unknown ones; 400 if a value has the wrong type."""
    walk = _Walk(str(obj.get("kind", "")), str(obj.get("apiVersion", "")).rpartition("/")[2])
    for name, field in _fields_of(model).items():
        if name in obj and name not in ("apiVersion", "kind", "metadata") and obj[name] is not None and field.is_model:
            walk._expect(obj[name], (list,) if field.container else (dict,), "struct", name, model)  # noqa: SLF001
    metadata = obj.pop("metadata", {})
    walk.model(obj, model, "")
    obj["metadata"] = metadata
    return walk.unknown


def load(models: Iterable[str]) -> None:
    """Import the client and read these models and all that they reach, so that no write waits for it."""
    waiting, seen = list(models), set()
    while waiting:
        model = waiting.pop()
        if model not in seen:
            seen.add(model)
            waiting.extend(field.type for field in _fields_of(model).values() if field.is_model)


@functools.cache
def _fields_of(model: str) -> dict[str, ModelField]:
    """The fields of one model of the client (`V1Pod`), by JSON name."""
    import kubernetes.client  # noqa: PLC0415  slow to import

    cls = getattr(kubernetes.client, model)
    fields = {}
    for attribute, type_text in cls.openapi_types.items():
        found = _TYPE.match(type_text)
        if found is None:
            raise ValueError(f"{model}.{attribute}: unexpected type {type_text!r} in the client's model")
        container: Literal["", "list", "map"] = "list" if found[1] else "map" if found[3] else ""
        fields[cls.attribute_map[attribute]] = ModelField(container, found[2] or found[4] or found[5])
    return fields


class _Walk:
    """One pass over one object."""

    def __init__(self, kind: str, version: str) -> None:
        self._prefix = f'{kind} in version "{version}" cannot be handled as a {kind}: json: cannot unmarshal'
        self.unknown: list[str] = []

    def model(self, value: JsonObject, model: str, path: str) -> None:
        fields = _fields_of(model)
        for name in list(value):
            field = fields.get(name)
            below = f"{path}.{name}" if path else name
            if field is None:
                del value[name]
                self.unknown.append(below)
            elif value[name] is None:
                del value[name]
            else:
                value[name] = self._field(value[name], name, field, below, model)

    def _field(self, value: Any, name: str, field: ModelField, path: str, model: str) -> Any:
        if field.container == "list":
            self._expect(value, (list,), "slice", path, model)
            return [self._value(item, field, f"{path}[{index}]", model) for index, item in enumerate(value)]
        if field.container == "map":
            self._expect(value, (dict,), "map", path, model)
            if name in _QUANTITY_MAPS:
                return {key: str(item) for key, item in value.items()}
            return {key: self._value(item, field, path, model) for key, item in value.items()}
        return self._value(value, field, path, model)

    def _value(self, value: Any, field: ModelField, path: str, model: str) -> Any:
        if field.type == "object":
            return value
        if field.is_model:
            self._expect(value, (dict,), field.type.removeprefix("V1"), path, model)
            self.model(value, field.type, path)
            return value
        classes, shown = _JSON_TYPES[field.type]
        self._expect(value, classes, shown, path, model)
        return value

    def _expect(self, value: Any, classes: tuple[type, ...], shown: str, path: str, model: str) -> None:
        if type(value) not in classes:
            got = {dict: "object", list: "array", str: "string", bool: "bool"}.get(type(value), "number")
            where = f"{model.removeprefix('V1')}.{_INDEX.sub('', path)}"
            raise bad_request(f"{self._prefix} {got} into Go struct field {where} of type {shown}")


# By field name: a name means the same everywhere except `ports`. From the patchMergeKey and x-kubernetes-list-map-keys markers
# of k8s.io/api.
_KEYS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("containers", "initContainers", "ephemeralContainers", "env", "volumes", "imagePullSecrets", "secrets",
         "resourceClaims", "schedulingGates"), ("name",)
    ),
    **dict.fromkeys(("hostAliases", "podIPs", "hostIPs"), ("ip",)),
    **dict.fromkeys(("conditions", "addresses"), ("type",)),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "ownerReferences": ("uid",),
}  # fmt: skip
SETS = frozenset(("finalizers", "podCIDRs"))
ATOMIC_MAPS = frozenset(
    ("nodeSelector", "labelSelector", "namespaceSelector", "podSelector", "fieldRef", "resourceFieldRef", "configMapKeyRef",
     "secretKeyRef", "involvedObject", "related", "regarding", "claimRef", "dataSource", "targetRef", "roleRef")
)  # fmt: skip
# Structs and lists that Go writes even when empty.
ALWAYS_THERE = frozenset(
    (("metadata",), ("spec",), ("status",), ("spec", "containers"), ("spec", "resources"), ("source",), ("deprecatedSource",))
)  # fmt: skip


def merge_keys(place: Place) -> tuple[str, ...] | None:
    """Return the keys by which a strategic merge patch matches the items of a list."""
    name = place[-1] if place else ""
    if name == "ports":
        return ("port", "protocol") if len(place) == 2 else ("containerPort", "protocol")
    if name == "addresses" and place[0] != "status":
        return None
    return _KEYS.get(name)
