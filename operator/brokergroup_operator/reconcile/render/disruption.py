"""The disruption budgets of a group: which pods may be evicted, as the API server decides it. Pure.

Two budgets that share no pod (one under two budgets cannot be evicted at all):

- the slaves': all but one must stay, while the group is FailoverSafe; all must stay while it is not.
- the master's: it stays. When its node is drained, mastership moves (`mastership.py`); then it is a slave like the others.

A learner (role label `learner`) is under neither: nothing rests on it, so it may be evicted at any time.

`minAvailable` and not `maxUnavailable`: the latter counts against the replicas of the owner's scale subresource, which are
those of the whole group, while each budget sees only its part of the pods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokergroup_operator.api import names
from brokergroup_operator.reconcile import identity

if TYPE_CHECKING:
    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.brokergroup import BrokerGroup

# More than any group has members: no pod may be evicted.
NO_EVICTION: Final = 1000


def build_disruption_budgets(group: BrokerGroup, *, open_for_one: bool, learning: int = 0) -> list[JsonObject]:
    """Both, the slaves' first. `learning`: how many members are learners, which are under neither."""
    slaves = group.spec.replicas - 1 - learning
    kept = max(0, slaves - 1) if open_for_one else NO_EVICTION
    return [
        _budget(group, names.disruption_budget_name(identity.name_of(group)), names.ROLE_SLAVE, kept),
        _budget(group, names.master_disruption_budget_name(identity.name_of(group)), names.ROLE_MASTER, NO_EVICTION),
    ]


def _budget(group: BrokerGroup, name: str, role: str, minimum: int) -> JsonObject:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": identity.object_metadata(group, name, identity.child_labels(group)),
        "spec": {
            "minAvailable": minimum,
            # A pod that is not ready gives nothing that its claim does not keep: it must not hold a drain up.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": identity.selector_labels(group) | {names.LABEL_ROLE: role}},
        },
    }
