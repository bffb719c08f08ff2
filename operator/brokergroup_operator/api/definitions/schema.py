"""Turns the msgspec types into structural schemas as Kubernetes requires them.

msgspec writes JSON Schema 2020-12 with references and null unions; a CRD allows neither. So references are inlined, `X | null`
becomes an optional X, an object whose fields all have defaults gets the default {} (the API server then fills in the fields one
by one), and rules are added to their structs and fields.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import msgspec
from msgspec import Struct

from brokergroup_operator.api.bounds import DNS_LABEL_PATTERN, LONGEST_GROUP_NAME, SERVICE_NAME_PATTERN

if TYPE_CHECKING:
    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.rules import Rule

REFERENCE_PREFIX = "#/$defs/"
VALIDATIONS = "x-kubernetes-validations"
# msgspec's word -> the word a CRD uses; everything else that is not listed in KEPT is dropped.
KEPT_KEYWORDS = (
    "type", "description", "enum", "format", "pattern", "minimum", "maximum", "minLength", "maxLength",
    "minItems", "maxItems", "minProperties", "maxProperties", "required", "default",
)  # fmt: skip


class SchemaError(Exception):
    """A type uses something that a structural schema cannot say. The generator stops; nothing is written."""


def structural_schema(
    kind: type[Struct], *, max_name_length: int = LONGEST_GROUP_NAME, named_services: bool = False
) -> JsonObject:
    """The openAPIV3Schema of one kind."""
    _, components = msgspec.json.schema_components([kind], ref_template=REFERENCE_PREFIX + "{name}")
    converted = _Converter(components, structs_of(kind)).component(kind.__name__)
    converted["properties"]["metadata"] = _metadata(max_name_length, named_services=named_services)
    for name in ("apiVersion", "kind"):
        converted["properties"][name] = {"type": "string"}
    # The envelope is the API server's business: only our own part is required.
    converted["required"] = [name for name in converted.get("required", []) if name in {"spec", "record"}]
    return converted


def _metadata(max_name_length: int, *, named_services: bool) -> JsonObject:
    """A Service's name begins with a letter (RFC 1035), and so must that of an object whose Services are named after it."""
    begins = ", beginning with a letter" if named_services else ""
    name: JsonObject = {
        "type": "string",
        "maxLength": max_name_length,
        "pattern": SERVICE_NAME_PATTERN if named_services else DNS_LABEL_PATTERN,
        "description": f"At most {max_name_length} lower-case letters, digits and dashes{begins}.",
    }
    return {"type": "object", "properties": {"name": name}}


def without_nulls(value: Any) -> Any:
    """The value without the entries that are None: absent and null are two things to an API server."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def default_said(field: JsonObject) -> str:
    """Return the end of the description of a single value with a default: `kubectl explain` prints the description alone."""
    default = field.get("default", "")
    return (
        "" if default == "" or isinstance(default, dict | list) else f" Default: {json.dumps(default).strip(chr(34))}."
    )


class _Converter:
    def __init__(self, components: dict[str, Any], structs: dict[str, type[Struct]]) -> None:
        self._components = components
        self._structs = structs

    def component(self, name: str) -> JsonObject:
        source = self._components[name]
        converted = self.convert(source, where=name)
        if "properties" in source:
            converted["properties"] = {
                field: self._property(name, field, value) for field, value in source["properties"].items()
            }
            rules: tuple[Rule, ...] = getattr(self._structs[name], "RULES", ())
            _attach(converted, [rule.as_json() for rule in rules])
        return converted

    def _property(self, owner: str, field: str, source: JsonObject) -> JsonObject:
        converted = self.convert(source, where=f"{owner}.{field}")
        if "default" in converted:
            converted["default"] = without_nulls(converted["default"])
        if converted.get("default", ...) is None:
            del converted["default"]
        if "description" in converted:
            # A docstring of several lines is indented in the source.
            converted["description"] = " ".join(converted["description"].split()) + default_said(converted)
        return converted

    def convert(self, source: JsonObject, *, where: str) -> JsonObject:
        if "$ref" in source:
            converted = self.component(str(source["$ref"]).removeprefix(REFERENCE_PREFIX))
        elif "anyOf" in source:
            converted = self._optional(source["anyOf"], where=where)
        else:
            converted = {}
        converted |= {key: source[key] for key in KEPT_KEYWORDS if key in source}
        converted |= {
            key: value for key, value in source.items() if key.startswith("x-kubernetes-") and key != VALIDATIONS
        }
        if "enum" in converted:
            converted["type"] = "string"
        if "x-kubernetes-preserve-unknown-fields" in source and "properties" in source:
            # Kubernetes' own types: the few fields that our rules look at; the others are kept as they are.
            converted["properties"] = source["properties"]
        if not converted.get("required", True):
            del converted["required"]
        if "items" in source:
            converted["items"] = self.convert(source["items"], where=f"{where}[]")
        if isinstance(source.get("additionalProperties"), dict):
            converted["additionalProperties"] = self.convert(source["additionalProperties"], where=f"{where}{{}}")
        _attach(converted, source.get(VALIDATIONS, []))
        if "type" not in converted:
            raise SchemaError(f"{where}: expected a type that a structural schema can say, got {source}")
        return converted

    def _optional(self, choices: list[JsonObject], *, where: str) -> JsonObject:
        present = [choice for choice in choices if choice != {"type": "null"}]
        if len(present) != 1:
            raise SchemaError(f"{where}: expected one type or None, got a union of {len(present)} types")
        return self.convert(present[0], where=where)


def _attach(schema: JsonObject, rules: list[JsonObject]) -> None:
    """Add rules. A field has those of its type and its own."""
    if rules:
        schema[VALIDATIONS] = [*schema.get(VALIDATIONS, []), *rules]


def structs_of(kind: object) -> dict[str, type[Struct]]:
    """Return every struct that this type is made of, by name."""
    found: dict[str, type[Struct]] = {}
    to_visit = [kind]
    while to_visit:
        one = to_visit.pop()
        if isinstance(one, type) and issubclass(one, Struct):
            if one.__name__ not in found:
                found[one.__name__] = one
                to_visit += get_type_hints(one).values()
        else:
            to_visit += get_args(one)
    return found
