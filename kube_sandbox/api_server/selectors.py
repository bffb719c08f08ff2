"""Label and field selectors, parsed once per request and then asked per object.

Grammar: https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors (equality and sets),
field selectors know `=`, `==` and `!=` only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kube_sandbox.api_server.errors import bad_request
from kube_sandbox.api_server.json_values import JsonObject, field_at

Predicate = Callable[[JsonObject], bool]

_KEY = r"[A-Za-z0-9](?:[-A-Za-z0-9_./]*[A-Za-z0-9])?"
_REQUIREMENT = re.compile(
    rf"^\s*(?:(?P<absent>!)\s*(?P<absent_key>{_KEY})|(?P<key>{_KEY})\s*(?:(?P<operator>==|=|!=)\s*(?P<value>[-A-Za-z0-9_.]*)"
    rf"|(?P<set_operator>\s(?:in|notin))\s*\((?P<values>[^()]*)\)|(?P<compare>[<>])\s*(?P<number>-?\d+))?)\s*$"
)


@dataclass(frozen=True)
class Requirement:
    """One comma-separated part of a label selector."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, Any]) -> bool:
        present = self.key in labels
        match self.operator:
            case "exists":
                return present
            case "absent":
                return not present
            case "in":
                return present and labels[self.key] in self.values
            case "notin":
                return not present or labels[self.key] not in self.values
            case _:
                return present and self._compares(str(labels[self.key]))

    def _compares(self, label: str) -> bool:
        (bound,) = self.values
        try:
            return int(label) > int(bound) if self.operator == ">" else int(label) < int(bound)
        except ValueError:
            return False


def _requirement(text: str, selector: str) -> Requirement:
    found = _REQUIREMENT.match(text)
    if found is None:
        raise bad_request(f"unable to parse requirement: {text.strip()!r} in label selector {selector!r}")
    if found["absent"]:
        return Requirement(found["absent_key"], "absent")
    key = found["key"]
    if found["operator"]:
        operator = "notin" if found["operator"] == "!=" else "in"
        return Requirement(key, operator, frozenset((found["value"],)))
    if found["set_operator"]:
        values = frozenset(value.strip() for value in found["values"].split(","))
        return Requirement(key, found["set_operator"].strip(), values)
    if found["compare"]:
        return Requirement(key, found["compare"], frozenset((found["number"],)))
    return Requirement(key, "exists")


def parse_labels(selector: str) -> tuple[Requirement, ...]:
    """The requirements of a label selector; commas inside parentheses do not separate."""
    if not selector.strip():
        return ()
    return tuple(_requirement(part, selector) for part in re.split(r",(?![^()]*\))", selector))


def parse_fields(selector: str) -> tuple[tuple[str, bool, str], ...]:
    """(path, wanted equal, value) for each part of a field selector."""
    parsed = []
    for part in filter(None, (piece.strip() for piece in selector.split(","))):
        found = re.match(r"^([^=!]+?)\s*(==|=|!=)\s*(.*)$", part)
        if found is None:
            raise bad_request(f"invalid field selector: {part!r} is not of the form path=value or path!=value")
        parsed.append((found[1], found[2] != "!=", found[3]))
    return tuple(parsed)


_EXPRESSION_OPERATORS = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "absent"}


def matches_label_selector(selector: JsonObject, labels: Mapping[str, Any]) -> bool:
    """A metav1.LabelSelector; the empty one matches everything."""
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(
        Requirement(
            entry["key"], _EXPRESSION_OPERATORS[entry["operator"]], frozenset(entry.get("values") or ())
        ).matches(labels)
        for entry in selector.get("matchExpressions") or ()
    )


def _field_text(obj: JsonObject, path: str) -> str:
    value = field_at(obj, path)
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def selector_predicate(label_selector: str, field_selector: str, selectable: frozenset[str]) -> Predicate | None:
    """One predicate for both selectors, None when both are empty: the common case stays free."""
    requirements = parse_labels(label_selector)
    fields = parse_fields(field_selector)
    for path, _, _ in fields:
        if path not in selectable:
            raise bad_request(f"field label not supported: {path}")
    if not requirements and not fields:
        return None

    def matches(obj: JsonObject) -> bool:
        labels = obj["metadata"].get("labels") or {}
        return all(requirement.matches(labels) for requirement in requirements) and all(
            (_field_text(obj, path) == value) is wanted for path, wanted, value in fields
        )

    return matches
