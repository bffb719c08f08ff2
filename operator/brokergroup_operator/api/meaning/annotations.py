"""What annotations of a BrokerGroup say, and no wish of the spec does: a person's word in one situation, and whose the group is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokergroup_operator.api import bounds, names

if TYPE_CHECKING:
    from brokergroup_operator.api.bounds import JsonObject


class AnnotationError(Exception):
    """The annotation does not say what it should; the message names it, its value and what was expected."""


def accepted_epoch(obj: JsonObject) -> int | None:
    """Up to which epoch a person accepts a jump (docs/concepts/architecture.md, rule 3); None where nobody said.

    Raises AnnotationError.
    """
    text = (obj["metadata"].get("annotations") or {}).get(names.ANNOTATION_ACCEPT_EPOCH)
    if text is None:
        return None
    digits = text.isascii() and text.isdecimal() and len(text) <= len(str(bounds.JAVA_INT_MAX))
    if not digits or int(text) > bounds.JAVA_INT_MAX:
        raise AnnotationError(
            f"annotation {names.ANNOTATION_ACCEPT_EPOCH} is {text[:32]!r}, expected a number up to {bounds.JAVA_INT_MAX}"
        )
    return int(text)


def operator_of(group_object: JsonObject) -> str | None:
    """Which operator reconciles the group, as `namespace/name` of its Lease; None where none has taken it yet."""
    text = (group_object["metadata"].get("annotations") or {}).get(names.ANNOTATION_OPERATOR)
    return str(text) if text else None
