"""What a client may say besides the object itself: options of writes and deletions, and selectors.

Selectors: https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors. They are parsed once per
request and applied to each object.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from kube_sandbox.api_server.errors import bad_request
from kube_sandbox.api_server.values import JsonObject, field_at

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kube_sandbox.api_server.store.field_managers import Applied

Propagation = Literal["", "Background", "Foreground", "Orphan"]
FieldValidation = Literal["Ignore", "Warn", "Strict"]
PatchKind = Literal["json", "merge", "strategic"]
Predicate = Callable[[JsonObject], bool]
# Key, operator (in, notin, exists, absent) and values.
_Requirement = tuple[str, str, frozenset[str]]


@dataclass
class Write:
    """Options of one create, update, patch or apply; the store adds its notes."""

    dry_run: bool = False
    field_manager: str = ""
    field_validation: FieldValidation = "Warn"
    # Server-side apply only: take over fields that other managers own.
    force: bool = False
    # Whether the server itself writes: unknown fields are not looked for.
    trusted: bool = False
    # Set by the store: its warnings, whether the object was created (201 instead of 200), the patch or configuration in work.
    warnings: list[str] = field(default_factory=list)
    created: bool = False
    patch_kind: PatchKind | None = None
    applied: Applied | None = None


@dataclass(frozen=True)
class Deletion:
    """metav1.DeleteOptions."""

    grace_period_seconds: int | None = None
    uid: str | None = None
    resource_version: str | None = None
    propagation: Propagation = ""
    dry_run: bool = False

    @classmethod
    def of(cls, options: JsonObject, **other: Any) -> Deletion:
        """Read the grace period and the preconditions of DeleteOptions."""
        preconditions = options.get("preconditions") or {}
        uid, version = preconditions.get("uid"), preconditions.get("resourceVersion")
        return cls(options.get("gracePeriodSeconds"), uid, version, **other)


@dataclass(frozen=True)
class Selection:
    """Which objects of a collection list, watch and deletecollection mean."""

    namespace: str = ""
    label_selector: str = ""
    field_selector: str = ""


EVERYTHING = Selection()
PLAIN_DELETION = Deletion()

_KEY = r"[A-Za-z0-9](?:[-A-Za-z0-9_./]*[A-Za-z0-9])?"
_REQUIREMENT = re.compile(
    rf"^\s*(?:(?P<absent>!)\s*(?P<absent_key>{_KEY})|(?P<key>{_KEY})\s*(?:(?P<operator>==|=|!=)\s*(?P<value>[-A-Za-z0-9_.]*)"
    rf"|(?P<set_operator>\s(?:in|notin))\s*\((?P<values>[^()]*)\))?)\s*$"
)
_EXPRESSION_OPERATORS = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "absent"}


def selector_predicate(label_selector: str, field_selector: str, selectable: frozenset[str]) -> Predicate | None:
    """Return one predicate for both selectors, None when both are empty."""
    # Commas inside parentheses do not separate.
    parts = re.split(r",(?![^()]*\))", label_selector) if label_selector.strip() else []
    requirements = [_requirement(part, label_selector) for part in parts]
    fields = _parse_fields(field_selector)
    for path, _, _ in fields:
        if path not in selectable:
            raise bad_request(f"field label not supported: {path}")
    if not requirements and not fields:
        return None

    def matches(obj: JsonObject) -> bool:
        labels = obj["metadata"].get("labels") or {}
        return all(_fits(labels, *requirement) for requirement in requirements) and all(
            (_text(field_at(obj, path)) == value) is wanted for path, wanted, value in fields
        )

    return matches


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def matches_label_selector(selector: JsonObject, labels: Mapping[str, Any]) -> bool:
    """Whether a metav1.LabelSelector matches; the empty one matches everything."""
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(
        _fits(labels, entry["key"], _EXPRESSION_OPERATORS[entry["operator"]], frozenset(entry.get("values") or ()))
        for entry in selector.get("matchExpressions") or ()
    )


def _fits(labels: Mapping[str, Any], key: str, operator: str, values: frozenset[str]) -> bool:
    present = key in labels
    if operator in ("exists", "absent"):
        return present is (operator == "exists")
    return (present and labels[key] in values) is (operator == "in")


def _requirement(text: str, selector: str) -> _Requirement:
    found = _REQUIREMENT.match(text)
    if found is None:
        raise bad_request(f"unable to parse requirement: {text.strip()!r} in label selector {selector!r}")
    if found["absent"]:
        return found["absent_key"], "absent", frozenset()
    if found["operator"]:
        return found["key"], "notin" if found["operator"] == "!=" else "in", frozenset((found["value"],))
    if found["set_operator"]:
        values = frozenset(value.strip() for value in found["values"].split(","))
        return found["key"], found["set_operator"].strip(), values
    return found["key"], "exists", frozenset()


def _parse_fields(selector: str) -> tuple[tuple[str, bool, str], ...]:
    """Return (path, whether equal is wanted, value) for each part of a field selector."""
    parsed = []
    for part in filter(None, (piece.strip() for piece in selector.split(","))):
        found = re.match(r"^([^=!]+?)\s*(==|=|!=)\s*(.*)$", part)
        if found is None:
            raise bad_request(f"invalid field selector: {part!r} is not of the form path=value or path!=value")
        parsed.append((found[1], found[2] != "!=", found[3]))
    return tuple(parsed)
