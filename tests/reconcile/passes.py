"""What one pass decides about a group: its plan, as short lines, and the status and conditions that it writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from brokergroup_operator.reconcile import plan as plans
from brokergroup_operator.reconcile.evaluate import evaluate
from tests.reconcile import builders as b

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.see.observed import Observed

SLAVES_BUDGET = "apply PodDisruptionBudget orders"


def lines_of(plan: plans.Plan) -> list[str]:
    """The plan's actions as short lines, without the status; and without the slaves' budget, which has tests of its own."""
    return [line for line in map(describe, plan.actions) if line not in {"status", SLAVES_BUDGET}]


def describe(action: plans.Action) -> str:  # noqa: PLR0911 (one per action)
    match action:
        case plans.ReserveBrokerId():
            return f"reserve {action.pod_name}"
        case plans.ApplyObject():
            return f"apply {action.resource.kind} {action.object['metadata']['name']}"
        case plans.BeginRestored():
            return f"begin with {action.restored.backup} as {action.restored.broker_id} above {action.restored.master_epoch}"
        case plans.SetRole():
            return f"role {action.pod} {action.role}"
        case plans.DeleteObject():
            return f"delete {action.resource.kind} {action.name}"
        case plans.SwitchMaster():
            return f"switch away from {action.from_broker_id}" + (f" to {to}" if (to := action.to_broker_id) else "")
        case plans.RemoveMember():
            return f"forget {action.broker_id}"
        case plans.SetBrokerConfig():
            return f"give {action.pod} {sorted(action.values.items())}"
        case plans.SetFinalizers():
            return f"finalizers {action.resource.kind} {action.name} {list(action.finalizers)}"
        case _:
            return "status"


def run(seen: Observed) -> plans.Plan:
    """Return the plan of one pass over what was seen."""
    return evaluate(seen, b.SETTINGS, now=b.NOW)


def status_of(seen: Observed) -> dict[str, Any]:
    """Return the status that the pass writes; it writes exactly one."""
    [written] = [action for action in run(seen).actions if isinstance(action, plans.WriteStatus)]
    return written.status


def conditions(seen: Observed) -> dict[str, dict[str, Any]]:
    """Return the conditions that the pass writes, by their type."""
    written = status_of(seen)["conditions"]
    found = {one["type"]: one for one in written}
    assert len(found) == len(written), "two conditions of one type"
    return found


def condition(seen: Observed, kind: str) -> tuple[str, str]:
    """Return the condition's status and reason."""
    found = conditions(seen)[kind]
    return found["status"], found["reason"]


def shown(seen: Observed, kind: str) -> tuple[str, str] | None:
    """Return the condition's status and reason; None if the group has no such condition."""
    return condition(seen, kind) if kind in conditions(seen) else None


def message(seen: Observed, kind: str) -> str:
    return str(conditions(seen)[kind]["message"])
