"""A structural OpenAPI schema, compiled once and then applied to every write: prune, default, validate.

Complaints are worded as kube-apiserver words them (k8s.io/kube-openapi/pkg/validation), because people read them and tests
match them. An unchanged part of an object is not judged again on update, as with CRD validation ratcheting.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from kube_sandbox.api_server.custom import schema_checks
from kube_sandbox.api_server.custom.cel_rules import RuleSet, escaped
from kube_sandbox.api_server.errors import FieldError, duplicate, required, type_invalid
from kube_sandbox.api_server.json_values import clone

if TYPE_CHECKING:
    from kube_sandbox.api_server.json_values import JsonObject

_NOTHING: Any = object()
_BLOCKING = frozenset(("Unsupported value", "Required value", "Too long", "Type invalid", "Too many"))
NOT_CHECKED = FieldError(
    "<nil>",
    "Invalid value",
    "null: some validation rules were not checked because the object was invalid; correct the existing errors to complete"
    " validation",
)


def is_blocking(errors: list[FieldError]) -> bool:
    """Whether rules would have to reckon with values of the wrong shape."""
    return any(error.kind in _BLOCKING for error in errors)


class SchemaNode:
    """One node of the schema; its children hang below."""

    def __init__(self, schema: JsonObject) -> None:
        self.type: str = schema.get("type", "")
        self.nullable: bool = bool(schema.get("nullable"))
        self.int_or_string: bool = bool(schema.get("x-kubernetes-int-or-string"))
        self.preserves_unknown: bool = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
        self.embedded: bool = bool(schema.get("x-kubernetes-embedded-resource"))
        self.default: Any = schema.get("default", _NOTHING)
        self.required: tuple[str, ...] = tuple(schema.get("required") or ())
        self.properties = {name: SchemaNode(child) for name, child in (schema.get("properties") or {}).items()}
        self.items = SchemaNode(schema["items"]) if isinstance(schema.get("items"), dict) else None
        additional = schema.get("additionalProperties")
        self.additional = SchemaNode(additional) if isinstance(additional, dict) else None
        self.allows_any_key: bool = additional is True
        self.list_type: str = schema.get("x-kubernetes-list-type", "atomic")
        self.list_map_keys: tuple[str, ...] = tuple(schema.get("x-kubernetes-list-map-keys") or ())
        self.map_type: str = schema.get("x-kubernetes-map-type", "granular")
        self.checks = schema_checks.checks_of(schema)
        listed_rules = schema.get("x-kubernetes-validations")
        self.rules = RuleSet(listed_rules) if listed_rules else None
        self._children = [*self.properties.values(), *filter(None, (self.items, self.additional))]
        self.has_defaults: bool = any(child.default is not _NOTHING or child.has_defaults for child in self._children)
        self.has_rules: bool = self.rules is not None or any(child.has_rules for child in self._children)
        self.has_transitions: bool = (self.rules is not None and self.rules.has_transitions) or any(
            child.has_transitions for child in self._children
        )
        self.needs_escaping: bool = any(escaped(name) != name for name in self.properties) or any(
            child.needs_escaping for child in self._children
        )

    # -- pruning ---------------------------------------------------------------------------------------------------

    def prune(self, value: Any, path: str, unknown: list[str]) -> None:
        """Removes what the schema does not know, in place; tells the paths."""
        if isinstance(value, dict):
            self._prune_object(value, path, unknown)
        elif isinstance(value, list) and self.items is not None:
            for index, item in enumerate(value):
                self.items.prune(item, f"{path}[{index}]", unknown)

    def _prune_object(self, value: JsonObject, path: str, unknown: list[str]) -> None:
        for name in list(value):
            child = self.properties.get(name, self.additional)
            if child is not None:
                child.prune(value[name], f"{path}.{name}" if path else name, unknown)
            elif not (self.preserves_unknown or self.allows_any_key):
                if self.embedded and name in ("apiVersion", "kind", "metadata"):
                    continue
                del value[name]
                unknown.append(f"{path}.{name}" if path else name)

    # -- defaults --------------------------------------------------------------------------------------------------

    def set_defaults(self, value: Any) -> None:
        """Fills in defaults, in place; a null where null is not allowed counts as left out."""
        if not self.has_defaults:
            return
        if isinstance(value, dict):
            self._set_property_defaults(value)
        elif isinstance(value, list) and self.items is not None:
            for item in value:
                self.items.set_defaults(item)

    def _set_property_defaults(self, value: JsonObject) -> None:
        for name, child in self.properties.items():
            if child.default is not _NOTHING:
                present = value.get(name, _NOTHING)
                if present is _NOTHING or (present is None and not child.nullable):
                    value[name] = clone(child.default)
            if name in value:
                child.set_defaults(value[name])
        if self.additional is not None:
            for name in value.keys() - self.properties.keys():
                self.additional.set_defaults(value[name])

    # -- validation ------------------------------------------------------------------------------------------------

    def validate(self, value: Any, old: Any, path: str, errors: list[FieldError]) -> None:
        """Appends complaints about `value`; `old` is the value it replaces, None where there is none."""
        if old is not None and old == value:
            return
        if not self._has_right_type(value, path, errors):
            return
        for check in self.checks:
            errors.extend(check(value, path))
        if isinstance(value, dict):
            self._validate_object(value, old if isinstance(old, dict) else {}, path, errors)
        elif isinstance(value, list):
            self._validate_list(value, old if isinstance(old, list) else [], path, errors)

    def _has_right_type(self, value: Any, path: str, errors: list[FieldError]) -> bool:
        if value is None and self.nullable:
            return False
        wanted = self.type
        if self.int_or_string:
            if isinstance(value, str) or type(value) is int:
                return True
            wanted = "integer,string"
        elif not wanted or (value is not None and schema_checks.is_of_type(value, wanted)):
            return True
        shown = schema_checks.type_name(value)
        errors.append(type_invalid(path, shown, f'{path} in body must be of type {wanted}: "{shown}"'))
        return False

    def _validate_object(self, value: JsonObject, old: JsonObject, path: str, errors: list[FieldError]) -> None:
        errors.extend(required(_below(path, name)) for name in self.required if name not in value)
        for name, item in value.items():
            child = self.properties.get(name, self.additional)
            if child is not None:
                child.validate(item, old.get(name), _below(path, name), errors)

    def _validate_list(self, value: list[Any], old: list[Any], path: str, errors: list[FieldError]) -> None:
        if self.list_type in ("set", "map"):
            errors.extend(self._duplicates(value, path))
        if self.items is not None:
            before = self.correlated(old)
            for index, item in enumerate(value):
                self.items.validate(item, before.get(self.item_key(item)), f"{path}[{index}]", errors)

    def _duplicates(self, value: list[Any], path: str) -> list[FieldError]:
        errors, seen = [], set()
        for index, item in enumerate(value):
            key = self.item_key(item)
            if key in seen:
                shown = {name: item.get(name) for name in self.list_map_keys} if self.list_type == "map" else item
                errors.append(duplicate(f"{path}[{index}]", shown))
            seen.add(key)
        return errors

    def item_key(self, item: Any) -> str:
        """What identifies an item of a list between two versions of it: its keys, or the whole of it."""
        if self.list_type == "map" and isinstance(item, dict) and self.items is not None:
            parts = [item.get(key, self.items.default_of(key)) for key in self.list_map_keys]
            return json.dumps(parts, sort_keys=True)
        return json.dumps(item, sort_keys=True)

    def default_of(self, name: str) -> Any:
        child = self.properties.get(name)
        return None if child is None or child.default is _NOTHING else child.default

    def correlated(self, items: list[Any]) -> dict[str, Any]:
        """Items by what identifies them."""
        return {self.item_key(item): item for item in items}

    # -- rules -----------------------------------------------------------------------------------------------------

    def judge(self, value: Any, old: Any, path: str, errors: list[FieldError]) -> None:
        """Evaluates the rules at and below this node. Unchanged values are judged by their transition rules only."""
        if not self.has_rules or value is None or (not self.has_transitions and old is not None and old == value):
            return
        if self.rules is not None:
            seen, seen_old = (self.as_seen(value), self.as_seen(old)) if self.needs_escaping else (value, old)
            errors.extend(self.rules.judge(value, old, path=path, seen=seen, seen_old=seen_old))
        if isinstance(value, dict):
            before = old if isinstance(old, dict) else {}
            for name, item in value.items():
                child = self.properties.get(name, self.additional)
                if child is not None:
                    child.judge(item, before.get(name), _below(path, name), errors)
        elif isinstance(value, list) and self.items is not None:
            known = self.correlated(old) if isinstance(old, list) and self.list_type == "map" else {}
            for index, item in enumerate(value):
                self.items.judge(item, known.get(self.item_key(item)), f"{path}[{index}]", errors)

    def as_seen(self, value: Any) -> Any:
        """The value with property names as CEL spells them."""
        if isinstance(value, dict):
            seen = {}
            for name, item in value.items():
                child = self.properties.get(name)
                if child is not None:
                    seen[escaped(name)] = child.as_seen(item)
                else:
                    seen[name] = item if self.additional is None else self.additional.as_seen(item)
            return seen
        if isinstance(value, list) and self.items is not None:
            return [self.items.as_seen(item) for item in value]
        return value

    # -- lookup ----------------------------------------------------------------------------------------------------

    def at(self, path: tuple[str, ...]) -> SchemaNode | None:
        """The node below a path of property names and `*` for items."""
        node: SchemaNode | None = self
        for part in path:
            if node is None:
                return None
            node = node.items if part == "*" else node.properties.get(part, node.additional)
        return node


def _below(path: str, name: str) -> str:
    if not path:
        return name
    return f"{path}.{name}" if re.fullmatch(r"[^.\[\]/]+", name) else f"{path}[{name}]"
