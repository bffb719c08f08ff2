"""Who may be evicted: by the budgets as the disruption controller counts them."""

from __future__ import annotations

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.kube.resources import POD_DISRUPTION_BUDGETS
from brokergroup_operator.reconcile import plan as plans
from brokergroup_operator.reconcile.render.children import build_disruption_budgets
from tests.reconcile import builders as b
from tests.reconcile import cases as c
from tests.reconcile.passes import run, told


def allowed(replicas: int, *, open_for_one: bool, master: bool, healthy: int) -> int:
    """disruptionsAllowed of the budget that selects such a pod, of which `healthy` are ready: minAvailable is a number of pods."""
    role = names.ROLE_MASTER if master else names.ROLE_SLAVE
    [budget] = [
        one
        for one in build_disruption_budgets(b.group(replicas=replicas), open_for_one=open_for_one)
        if one["spec"]["selector"]["matchLabels"][names.LABEL_ROLE] == role
    ]
    return max(0, healthy - int(budget["spec"]["minAvailable"]))


@pytest.mark.parametrize(
    ("replicas", "open_for_one", "master", "healthy", "expected"),
    [
        (3, True, False, 2, 1),
        (3, True, False, 1, 0),
        (3, False, False, 2, 0),
        (5, True, False, 4, 1),
        (2, True, False, 1, 1),
        (3, True, True, 1, 0),
        (1, False, True, 1, 0),
    ],
    ids=["one of two", "one is away", "not safe", "one of four", "the only slave", "the master", "a group of one"],
)
def test_who_may_go(replicas: int, open_for_one: bool, master: bool, healthy: int, expected: int) -> None:
    assert allowed(replicas, open_for_one=open_for_one, master=master, healthy=healthy) == expected


def test_no_pod_is_under_both() -> None:
    """The eviction API refuses a pod under two budgets altogether."""
    selectors = [
        one["spec"]["selector"]["matchLabels"] for one in build_disruption_budgets(b.group(), open_for_one=True)
    ]
    assert {selector[names.LABEL_ROLE] for selector in selectors} == {names.ROLE_MASTER, names.ROLE_SLAVE}


def test_the_slaves_budget_closes_when_the_group_is_not_safe() -> None:
    seen = c.live(c.settled(), 1, 2)
    [closed] = [
        action.object
        for action in run(seen).actions
        if isinstance(action, plans.ApplyObject) and action.resource == POD_DISRUPTION_BUDGETS
    ]
    assert (closed["metadata"]["name"], closed["spec"]["minAvailable"] > 100) == ("orders", True)


def test_budgets_can_be_switched_off() -> None:
    seen = c.wishing(c.settled(), disruptionBudget={"enabled": False})
    assert told(run(seen)) == ["delete PodDisruptionBudget orders", "delete PodDisruptionBudget orders.master"]
    assert told(run(b.changed(seen, disruption_budgets={}))) == []
    somebodys = {"ours": seen.disruption_budgets["orders"]}
    assert told(run(b.changed(seen, disruption_budgets=somebodys))) == []


def test_no_two_groups_share_a_budget() -> None:
    """`a` and `a-master` in one namespace would take each other's budget away, again and again."""
    found = [
        budget(group)
        for group in ("a", "a-master", "a-slave", "a-1")
        for budget in (names.disruption_budget_name, names.master_disruption_budget_name)
    ]
    assert len(set(found)) == len(found)
