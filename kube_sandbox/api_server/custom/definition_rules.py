"""What a CustomResourceDefinition must be before its kind is served.

The part of k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation that keeps authors from shipping a definition
here which a real API server would refuse: names, one stored version, a structural schema, rules that compile.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kube_sandbox.api_server.custom.cel_rules import Rule, RuleError
from kube_sandbox.api_server.errors import (
    FieldError,
    forbidden_field,
    invalid,
    required,
    type_invalid,
    unsupported,
)
from kube_sandbox.api_server.tables.json_path import JsonPathError, compile_path

if TYPE_CHECKING:
    from kube_sandbox.api_server.json_values import JsonObject

_TYPES = ("array", "boolean", "integer", "number", "object", "string")
_VALUE_ONLY = ("allOf", "anyOf", "oneOf")


def definition_errors(definition: JsonObject, old: JsonObject | None) -> list[FieldError]:
    """All complaints about a definition."""
    spec = definition.get("spec")
    if not isinstance(spec, dict):
        return [required("spec")]
    names = spec.get("names") or {}
    errors = _name_errors(definition, spec, names)
    if old is not None:
        for field, now, before in (
            ("spec.scope", spec.get("scope"), old["spec"].get("scope")),
            ("spec.group", spec.get("group"), old["spec"].get("group")),
            ("spec.names.plural", names.get("plural"), old["spec"]["names"].get("plural")),
            ("spec.names.kind", names.get("kind"), old["spec"]["names"].get("kind")),
        ):
            if now != before:
                errors.append(invalid(field, now, "field is immutable"))
    versions = spec.get("versions") or []
    if not versions:
        errors.append(required("spec.versions"))
    elif sum(bool(version.get("storage")) for version in versions) != 1:
        errors.append(invalid("spec.versions", versions, "must have exactly one version marked as storage version"))
    for index, version in enumerate(versions):
        errors.extend(_version_errors(version, f"spec.versions[{index}]", alone=len(versions) == 1))
    return errors


def _name_errors(definition: JsonObject, spec: JsonObject, names: JsonObject) -> list[FieldError]:
    group, plural = spec.get("group", ""), names.get("plural", "")
    errors = [required(f"spec.names.{key}") for key in ("plural", "singular", "kind", "listKind") if not names.get(key)]
    if not group:
        errors.append(required("spec.group"))
    if spec.get("scope") not in ("Namespaced", "Cluster"):
        errors.append(unsupported("spec.scope", spec.get("scope", ""), ("Cluster", "Namespaced")))
    wanted = f"{plural}.{group}"
    name = definition["metadata"].get("name", "")
    if plural and group and name != wanted:
        errors.append(invalid("metadata.name", name, 'must be spec.names.plural+"."+spec.group'))
    return errors


def _version_errors(version: JsonObject, path: str, *, alone: bool) -> list[FieldError]:
    errors: list[FieldError] = []
    if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", version.get("name", "")):
        errors.append(invalid(f"{path}.name", version.get("name", ""), "a DNS-1035 label is expected"))
    schema = (version.get("schema") or {}).get("openAPIV3Schema")
    if not isinstance(schema, dict):
        return [*errors, required(f"{path}.schema.openAPIV3Schema", "schemas are required")]
    # A schema that all versions share is complained of where apiextensions keeps it internally.
    root = "spec.validation.openAPIV3Schema" if alone else f"{path}.schema.openAPIV3Schema"
    if schema.get("type") != "object":
        errors.append(invalid(f"{root}.type", schema.get("type", ""), "must be object at the root"))
    for index, column in enumerate(version.get("additionalPrinterColumns") or ()):
        errors.extend(
            required(f"{path}.additionalPrinterColumns[{index}].{key}")
            for key in ("name", "type", "jsonPath")
            if not column.get(key)
        )
        try:
            compile_path(column.get("jsonPath", ""))
        except JsonPathError as error:
            errors.append(invalid(f"{path}.additionalPrinterColumns[{index}].jsonPath", column["jsonPath"], str(error)))
    return errors + _schema_errors(schema, root)


def _schema_errors(schema: Any, path: str) -> list[FieldError]:
    """A structural schema has a type at every node, except where any value or an int-or-string is meant."""
    if not isinstance(schema, dict):
        return [type_invalid(path, type(schema).__name__, "must be a schema")]
    errors = _node_errors(schema, path)
    for name, child in (schema.get("properties") or {}).items():
        errors.extend(_schema_errors(child, f"{path}.properties[{name}]"))
    if isinstance(schema.get("items"), dict):
        errors.extend(_schema_errors(schema["items"], f"{path}.items"))
    if isinstance(schema.get("additionalProperties"), dict):
        errors.extend(_schema_errors(schema["additionalProperties"], f"{path}.additionalProperties"))
    return errors


def _node_errors(schema: JsonObject, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    kind = schema.get("type", "")
    free = schema.get("x-kubernetes-int-or-string") or schema.get("x-kubernetes-preserve-unknown-fields")
    if not kind and not free:
        errors.append(required(f"{path}.type", "must not be empty for specified object fields"))
    elif kind and kind not in _TYPES:
        errors.append(unsupported(f"{path}.type", kind, _TYPES))
    if kind == "array" and "items" not in schema:
        errors.append(required(f"{path}.items", "must be specified"))
    if schema.get("properties") and schema.get("additionalProperties"):
        errors.append(
            forbidden_field(
                f"{path}.additionalProperties", "additionalProperties and properties are mutually exclusive"
            )
        )
    if schema.get("x-kubernetes-list-type") == "map" and not schema.get("x-kubernetes-list-map-keys"):
        errors.append(
            required(f"{path}.x-kubernetes-list-map-keys", "must not be empty if x-kubernetes-list-type is map")
        )
    for key in _VALUE_ONLY:
        for index, part in enumerate(schema.get(key) or ()):
            if "description" in part or "default" in part:
                errors.append(forbidden_field(f"{path}.{key}[{index}]", "must only contain value validations"))
    for index, rule in enumerate(schema.get("x-kubernetes-validations") or ()):
        errors.extend(_rule_errors(rule, f"{path}.x-kubernetes-validations[{index}]"))
    return errors


def _rule_errors(rule: JsonObject, path: str) -> list[FieldError]:
    source = rule.get("rule", "")
    if not source.strip():
        return [required(f"{path}.rule", "rule is not specified")]
    if "\n" in source.strip() and not rule.get("message"):
        return [required(f"{path}.message", "message must be specified if rule contains line breaks")]
    try:
        Rule.compile(rule)
    except RuleError as error:
        return [invalid(f"{path}.rule", source, str(error))]
    except KeyError:
        reasons = ("FieldValueInvalid", "FieldValueForbidden", "FieldValueRequired", "FieldValueDuplicate")
        return [unsupported(f"{path}.reason", rule.get("reason"), reasons)]
    return []
