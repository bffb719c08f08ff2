"""Rules of the kinds that look at more than one field, or at the previous object, as CEL: all of them, from a file for each part.

They are part of the CRD, so the API server refuses a bad object with a message that names the field; no webhook can be
down and no certificate can expire (docs/concepts/architecture.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokergroup_operator.api.rules import (
    cluster_rules,
    failover_rules,
    group_rules,
    key_rules,
    operation_rules,
    pod_rules,
    record_rules,
    storage_rules,
)

if TYPE_CHECKING:
    from msgspec import Struct

    from brokergroup_operator.api.rules.rule import Rule

_PARTS: Final = (
    group_rules,
    failover_rules,
    pod_rules,
    key_rules,
    storage_rules,
    operation_rules,
    record_rules,
    cluster_rules,
)

# Rules on a whole object, by its type.
OBJECT_RULES: Final[dict[type[Struct], tuple[Rule, ...]]] = {
    kind: rules for part in _PARTS for kind, rules in part.OBJECT_RULES.items()
}
# Rules on a single field, by its object's type and its name on the wire.
FIELD_RULES: Final[dict[tuple[str, str], tuple[Rule, ...]]] = {
    place: rules for part in _PARTS for place, rules in part.FIELD_RULES.items()
}
