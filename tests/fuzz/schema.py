"""The CRD's schema of BrokerGroup.spec as a strategy: the test has no list of fields.

A `Node` is one place of the schema; its path is written `spec.storage.size`, with `[]` for the items of a list and `{}` for the
values of a map. A *leaf* is a place that holds a value of its own: a scalar, or an object whose content Kubernetes judges. A
field that is added to the CRD is another leaf, and is drawn without a change here. What a schema can't know (what a quantity
is, which images there are) stands in `hints.py`.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from hypothesis import strategies as st

from tests.fuzz.hints import BEYOND_THIS_WORLD, HINTS

if TYPE_CHECKING:
    from collections.abc import Iterator

CRD = Path(__file__).parents[2] / "crds" / "brokergroup.dev_brokergroups.yaml"
ASCII = st.characters(codec="ascii", exclude_categories=["Cc"])
# Longer lists cost time and say no more; `grow` and the bounds draw larger ones.
FEW = 3
LONGEST_TEXT = 40
KEY_RULE = re.compile(r"key\.matches\('([^']+)'\)")
# A field and what is in it; a method of CEL (`.all(`) is none.
FIELD_IN_RULE = re.compile(r"self((?:\.[A-Za-z]+\b(?!\())+)")


@dataclass(frozen=True, eq=False)
class Node:
    """One place of the schema."""

    path: str
    schema: dict[str, Any]
    properties: dict[str, Node] = field(default_factory=dict)
    items: Node | None = None
    values: Node | None = None

    @property
    def is_open(self) -> bool:
        return bool(self.schema.get("x-kubernetes-preserve-unknown-fields"))

    @property
    def is_leaf(self) -> bool:
        return self.is_open or not (self.properties or self.items or self.values)

    @property
    def rules(self) -> list[dict[str, str]]:
        return list(self.schema.get("x-kubernetes-validations", []))

    def below(self) -> Iterator[Node]:
        yield self
        for child in [*self.properties.values(), *filter(None, (self.items, self.values))]:
            yield from child.below()


def node(path: str, schema: dict[str, Any]) -> Node:
    values = schema.get("additionalProperties")
    return Node(
        path=path,
        schema=schema,
        properties={name: node(f"{path}.{name}", child) for name, child in schema.get("properties", {}).items()},
        items=node(f"{path}[]", schema["items"]) if "items" in schema else None,
        values=node(f"{path}{{}}", values) if isinstance(values, dict) else None,
    )


@functools.cache
def definition() -> dict[str, Any]:
    found: dict[str, Any] = yaml.load(CRD.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    return found


@functools.cache
def spec_node() -> Node:
    (version,) = definition()["spec"]["versions"]
    return node("spec", version["schema"]["openAPIV3Schema"]["properties"]["spec"])


@functools.cache
def leaves() -> dict[str, Node]:
    """Return all leaves by path, in the CRD's order, without the few that the world can't show."""
    return {path: one for path, one in all_leaves().items() if not path.startswith(BEYOND_THIS_WORLD)}


@functools.cache
def all_leaves() -> dict[str, Node]:
    return {one.path: one for one in spec_node().below() if one.is_leaf}


def steps(path: str) -> tuple[str, ...]:
    """`spec.a[].b` as (a, [], b)."""
    return tuple(re.findall(r"[^.\[\]{}]+|\[\]|\{\}", path))[1:]


def fields_of_rule(at: Node, rule: str) -> list[str]:
    """The paths of the leaves that a rule of this place looks at; all of its own where it names none."""
    found = {f"{at.path}{name}" for name in FIELD_IN_RULE.findall(rule)}
    found = found or {at.path}
    return sorted(
        path for path in leaves() if any(re.fullmatch(rf"{re.escape(name)}([.\[{{].*)?", path) for name in found)
    )


@functools.cache
def value(at: Node) -> st.SearchStrategy[Any]:
    """Draw any value that this place's schema allows, regardless of rules."""
    own = _by_schema(at)
    hints = HINTS.get(at.path)
    if hints is None:
        return own
    drawn = st.sampled_from(list(hints.values))
    return drawn if hints.only or own is None else st.one_of(drawn, drawn, own)


@functools.cache
def boundary(at: Node) -> st.SearchStrategy[Any]:
    """Draw the minimum or the maximum of the schema; any value if it has neither."""
    schema = at.schema
    bounds = [schema[key] for key in ("minimum", "maximum") if key in schema]
    return st.sampled_from(bounds) if bounds else value(at)


@functools.cache
def outside(at: Node) -> st.SearchStrategy[Any]:
    """Draw a value that the schema refuses: beyond a bound, or of another type."""
    schema = at.schema
    wrong: list[Any] = [value - 1 for value in [schema.get("minimum")] if value is not None]
    wrong += [value + 1 for value in [schema.get("maximum")] if value is not None]
    if "enum" in schema:
        wrong.append("NoSuchWord")
    if "maxLength" in schema:
        wrong.append("a" * (schema["maxLength"] + 1))
    wrong.append({"not": "this"} if schema.get("type") != "object" else 7)
    return st.sampled_from(wrong)


@functools.cache
def key(at: Node) -> st.SearchStrategy[str]:
    """Keys of a map: hinted ones, and what its rules say of them."""
    hints = HINTS.get(f"{at.path}{{key}}")
    patterns = [match for rule in at.rules for match in KEY_RULE.findall(rule["rule"])]
    if patterns and hints is None:
        return _text(patterns[0], {})
    words = list(hints.values) if hints else ["one", "two", "three"]
    drawn = st.sampled_from(words)
    return st.one_of(drawn, drawn, _text(patterns[0], {})) if patterns else drawn


def _by_schema(at: Node) -> st.SearchStrategy[Any]:  # noqa: PLR0911 (one per type)
    schema = at.schema
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        return st.one_of(st.integers(0, 100), st.sampled_from(["1", "50%"]))
    match schema.get("type"):
        case "boolean":
            return st.booleans()
        case "integer" | "number":
            return _number(schema)
        case "string":
            return _text(schema.get("pattern"), schema)
        case "array":
            return _list(at)
    if at.values is not None:
        most = min(FEW, schema.get("maxProperties", FEW))
        return st.dictionaries(key(at), value(at.values), max_size=most)
    if at.is_open and not at.properties:
        return st.just({})
    required = set(schema.get("required", ()))
    known = {name: value(child) for name, child in at.properties.items()}
    return st.fixed_dictionaries(
        {name: one for name, one in known.items() if name in required},
        optional={name: one for name, one in known.items() if name not in required},
    )


def _number(schema: dict[str, Any]) -> st.SearchStrategy[int]:
    low, high = schema.get("minimum", 0), schema.get("maximum", 2**31 - 1)
    near = [low, high, *(schema[key] for key in ("default",) if key in schema)]
    return st.one_of(st.integers(low, min(high, low + 8)), st.sampled_from(near), st.integers(low, high))


def _text(pattern: str | None, schema: dict[str, Any]) -> st.SearchStrategy[str]:
    shortest, longest = schema.get("minLength", 0), min(LONGEST_TEXT, schema.get("maxLength", LONGEST_TEXT))
    if schema.get("format") == "date-time":
        return st.datetimes().map(lambda moment: moment.strftime("%Y-%m-%dT%H:%M:%SZ"))
    if pattern is None:
        return st.text(ASCII, min_size=shortest, max_size=longest)
    drawn = st.from_regex(pattern, fullmatch=True, alphabet=ASCII)
    return drawn.filter(lambda text: shortest <= len(text) <= longest)


def _list(at: Node) -> st.SearchStrategy[list[Any]]:
    assert at.items is not None
    fewest = at.schema.get("minItems", 0)
    keys = at.schema.get("x-kubernetes-list-map-keys", [])
    unique: Any = None
    if keys:
        unique = lambda item: tuple(item.get(name) for name in keys)  # noqa: E731
    elif at.schema.get("x-kubernetes-list-type") == "set":
        unique = repr
    most = min(max(FEW, fewest), at.schema.get("maxItems", FEW))
    return st.lists(value(at.items), min_size=fewest, max_size=most, unique_by=unique)
