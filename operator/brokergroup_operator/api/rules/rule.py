"""One rule of a kind, as CEL, and the two that every kind may need."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """One entry of x-kubernetes-validations. `field_path` is relative to the object the rule is attached to."""

    rule: str
    message: str
    field_path: str = ""
    reason: str = "FieldValueInvalid"
    # In CEL: what is said instead of the message, with the value that breaks the rule.
    message_expression: str = ""


def immutable(message: str) -> Rule:
    """A rule for a field that is always present (it is required or has a default)."""
    return Rule("self == oldSelf", message)


def immutable_optional(name: str, message: str) -> Rule:
    """An optional field may neither appear, change nor vanish, so the rule sits on its parent."""
    return Rule(
        f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})",
        message,
        field_path=f".{name}",
    )
