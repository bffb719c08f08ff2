"""Rules of BrokerGroupOperation.spec."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokergroup_operator.api.brokergroup_operation import OperationSpec, OperationType
from brokergroup_operator.api.rules.rule import Rule, immutable

if TYPE_CHECKING:
    from msgspec import Struct


def only_the_section_of(kind: OperationType) -> Rule:
    """A section says how an operation of its type is done: there without its type, it would be ignored; absent, guessed."""
    section = kind.value.lower()
    return Rule(
        f"(self.type == '{kind.value}') == has(self.{section})",
        f"{section} is for type {kind.value}: exactly the section of spec.type must be given",
        field_path=f".{section}",
    )


# On a whole object, by its type.
OBJECT_RULES: Final[dict[type[Struct], tuple[Rule, ...]]] = {
    OperationSpec: (
        *(only_the_section_of(kind) for kind in OperationType),
        Rule(
            "!has(self.elect) || self.elect.acknowledgeDataLoss == self.brokerGroupRef.name",
            "elect.acknowledgeDataLoss must be the name of the group: who elects a replica that may lack acknowledged"
            " messages says so in person",
            field_path=".elect.acknowledgeDataLoss",
        ),
    ),
}

# On a single field, by its object's type and its name on the wire.
FIELD_RULES: Final[dict[tuple[str, str], tuple[Rule, ...]]] = {
    ("BrokerGroupOperation", "spec"): (
        immutable("an operation is immutable: what else is wanted is another BrokerGroupOperation"),
    ),
}
