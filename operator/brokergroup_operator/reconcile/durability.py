"""For callers that have not moved to brokergroup_operator.api.durability yet."""

from brokergroup_operator.api.durability import acknowledgement_rule, effective_durability

__all__ = ["acknowledgement_rule", "effective_durability"]
