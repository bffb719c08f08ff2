"""Groups that want one broker name, in the reconcile plane: the first keeps it, a later one waits; one that lives says so."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from brokergroup_operator.api import names as fixed
from brokergroup_operator.reconcile import plan as plans
from brokergroup_operator.reconcile.evaluate import evaluate
from brokergroup_operator.reconcile.other_groups import BrokerNames
from brokergroup_operator.reconcile.see.observed import Observed
from brokergroup_operator.records.store import GroupKey
from tests.reconcile import builders as b
from tests.reconcile import cases as c

TAKEN = "spec.brokerName is 'orders', and group team-a/orders has that name at NameServer ns.infra:9876"
ONE, OTHER = GroupKey("team-a", "orders"), GroupKey("team-b", "orders")


def group(key: GroupKey, created: int, *, uid: str = "", **spec: Any) -> dict[str, Any]:
    metadata = {
        "namespace": key.namespace,
        "name": key.name,
        "uid": uid or f"uid-of-{key}",
        "creationTimestamp": f"2026-11-25T10:00:{created:02}Z",
    }
    return {"metadata": metadata, "spec": {"nameServers": ["ns.infra:9876"]} | spec}


class Woken(list[GroupKey]):
    """The groups that the table woke."""


@pytest.fixture
def woken() -> Woken:
    return Woken()


@pytest.fixture
def names(woken: Woken) -> BrokerNames:
    return BrokerNames(woken.append)


def test_the_older_keeps_the_name_until_it_is_gone(names: BrokerNames, woken: Woken) -> None:
    names.keep_only([group(OTHER, 2), group(ONE, 1)], ())
    assert names.taken(ONE) == ""
    assert names.taken(OTHER).startswith(TAKEN)
    assert woken == []
    names.forget(ONE)
    assert woken == [OTHER]
    assert names.taken(OTHER) == ""


def test_a_resync_that_finds_it_gone_wakes_the_next(names: BrokerNames, woken: Woken) -> None:
    names.keep_only([group(ONE, 1), group(OTHER, 2)], ())
    assert names.taken(OTHER)
    names.keep_only([group(OTHER, 2)], ())
    assert woken == [OTHER]


def test_another_name_server_sets_the_name_free(names: BrokerNames, woken: Woken) -> None:
    names.keep_only([group(ONE, 1), group(OTHER, 2)], ())
    assert names.taken(OTHER)
    names.note(group(ONE, 1, nameServers=["ns.elsewhere:9876"]), None)
    assert woken == [OTHER]
    assert names.taken(OTHER) == ""


def test_what_says_the_same_again_wakes_nobody(names: BrokerNames, woken: Woken) -> None:
    names.keep_only([group(ONE, 1), group(OTHER, 2)], ())
    assert names.taken(OTHER)
    assert names.taken(ONE) == ""
    woken.clear()
    names.note(group(ONE, 1, replicas=5), None)
    assert woken == []


def test_of_one_second_the_one_that_was_let_begin_keeps_it(names: BrokerNames) -> None:
    """Its finalizer may not have been read back when the other comes, whose uid is the lower one."""
    names.note(group(ONE, 1, uid="z"), None)
    assert names.taken(ONE) == ""
    names.note(group(OTHER, 1, uid="a"), None)
    names.note(group(ONE, 1, uid="z"), None)
    assert names.taken(OTHER).startswith(TAKEN)
    assert names.taken(ONE) == ""


def test_a_group_made_anew_on_its_kept_record_comes_behind_the_one_that_runs(names: BrokerNames) -> None:
    running = group(OTHER, 5)
    running["metadata"]["finalizers"] = [fixed.FINALIZER_BROKER_GROUP]
    names.keep_only([running, group(ONE, 9)], {ONE, OTHER})
    assert names.taken(OTHER) == ""
    assert "team-b/orders" in names.taken(ONE)


def test_a_kept_record_comes_before_age(names: BrokerNames) -> None:
    """The whole of a cluster was restored: nothing runs, all objects are new."""
    names.keep_only([group(ONE, 1), group(OTHER, 2)], {OTHER})
    assert names.taken(OTHER) == ""
    assert "team-b/orders" in names.taken(ONE)


def test_a_group_made_anew_under_the_name_of_the_holder_is_another_one(names: BrokerNames) -> None:
    names.note(group(ONE, 1, uid="first"), None)
    names.note(group(OTHER, 2), None)
    assert names.taken(ONE) == ""
    assert names.taken(OTHER)
    names.note(group(ONE, 9, uid="second"), None)
    assert names.taken(OTHER) == ""
    assert names.taken(ONE)


def judged(seen: Observed) -> tuple[list[plans.Action], dict[str, tuple[str, str, str]]]:
    """What is done beside the status, and each condition's status, reason and message."""
    plan = evaluate(dataclasses.replace(seen, broker_name_taken=TAKEN), b.SETTINGS, now=b.NOW)
    [written] = [action for action in plan.actions if isinstance(action, plans.WriteStatus)]
    conditions = {one["type"]: (one["status"], one["reason"], one["message"]) for one in written.status["conditions"]}
    return [one for one in plan.actions if one is not written], conditions


WAITING = {
    "a new group": Observed(group=b.group(), group_object=b.group_object()),
    "ids are reserved": Observed(group=b.group(), group_object=b.group_object(), record=b.reserved(1)),
    # What an older operator made of it: nothing of its brokers was ever registered, for it was not found by name.
    "its pods run unheard": b.changed(c.settled(), record=b.reserved(1, 2, 3), snapshot=None),
    "made anew, its record kept": Observed(
        group=b.group(),
        group_object={"metadata": b.group_object()["metadata"] | {"finalizers": []}, "spec": b.group_object()["spec"]},
        record=b.record(),
    ),
}


@pytest.mark.parametrize("case", list(WAITING))
def test_a_group_that_waits_gets_nothing_and_loses_nothing(case: str) -> None:
    done, conditions = judged(WAITING[case])
    assert done == []
    for kind, status in (("Stalled", "True"), ("Ready", "False"), ("Available", "False"), ("Reconciling", "False")):
        assert conditions[kind] == (status, "BrokerNameTaken", TAKEN), kind


def test_a_group_that_lives_goes_on_and_says_so() -> None:
    seen = c.settled()
    lost = dict(seen.pods)
    lost.pop(sorted(lost)[-1])
    done, conditions = judged(dataclasses.replace(seen, pods=lost))
    assert any(isinstance(one, plans.ApplyObject) and one.resource.kind == "Pod" for one in done)
    assert conditions["Stalled"] == ("True", "BrokerNameTaken", TAKEN)
    assert conditions["Available"][:2] == ("True", "MasterServesWrites"), "what was measured"


def test_a_whole_group_that_lives_is_not_ready_beside_being_stalled() -> None:
    done, conditions = judged(c.settled())
    assert done == []
    assert conditions["Ready"] == ("False", "BrokerNameTaken", TAKEN)
