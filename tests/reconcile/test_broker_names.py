"""Two groups with one broker name at one NameServer: the older keeps it, the younger gets no members, and both are told apart."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from brokergroup_operator.reconcile import plan as plans
from brokergroup_operator.reconcile.broker_names import BrokerNames
from brokergroup_operator.reconcile.evaluate import evaluate
from brokergroup_operator.reconcile.see.observed import Observed
from brokergroup_operator.records.store import GroupKey
from tests.reconcile import builders as b
from tests.reconcile import cases as c

TAKEN = "spec.brokerName is 'orders', and group team-a/orders has that name at NameServer ns.infra:9876"


def group(namespace: str, name: str, created: int, **spec: Any) -> dict[str, Any]:
    metadata = {"namespace": namespace, "name": name, "creationTimestamp": f"2026-11-25T10:00:{created:02}Z"}
    return {"metadata": metadata, "spec": {"nameServers": ["ns.infra:9876"]} | spec}


@pytest.mark.parametrize(
    ("older", "younger", "is_taken"),
    [
        pytest.param(group("team-a", "orders", 1), group("team-b", "orders", 2), True, id="one name in two namespaces"),
        pytest.param(
            group("team-a", "first", 1, brokerName="orders"),
            group("team-a", "orders", 2),
            True,
            id="by spec.brokerName",
        ),
        pytest.param(
            group("team-a", "orders", 1),
            group("team-b", "orders", 2, brokerClusterName="Other"),
            True,
            id="a NameServer keeps one list whatever the cluster",
        ),
        pytest.param(
            group("team-a", "orders", 1, nameServers=["10.0.0.1:9876", "NS.infra.svc.cluster.local:9876"]),
            group("infra", "orders", 2, nameServers=["ns:9876"]),
            True,
            id="one NameServer by two names",
        ),
        pytest.param(
            group("team-a", "orders", 1, nameServers=["ns:9876"]),
            group("team-b", "orders", 2, nameServers=["ns:9876"]),
            False,
            id="a NameServer in each namespace",
        ),
        pytest.param(
            group("team-a", "orders", 1, nameServers=[]),
            group("team-b", "orders", 2, nameServers=[]),
            False,
            id="no NameServer",
        ),
        pytest.param(
            group("team-a", "orders", 1), group("team-b", "orders", 2, brokerName="team-b"), False, id="another name"
        ),
        pytest.param(group("team-a", "orders", 1), group("team-b", "orders", 1), True, id="of one second, by name"),
    ],
)
def test_the_older_keeps_the_name(older: dict[str, Any], younger: dict[str, Any], *, is_taken: bool) -> None:
    names = BrokerNames()
    names.keep_only([younger, older])
    one, other = (GroupKey(each["metadata"]["namespace"], each["metadata"]["name"]) for each in (older, younger))
    assert names.taken(one) == ""
    assert bool(names.taken(other)) is is_taken
    names.forget(one)
    assert names.taken(other) == ""


def test_what_is_said_names_field_value_and_what_was_expected() -> None:
    names = BrokerNames()
    names.keep_only([group("team-a", "orders", 1)])
    names.note(group("team-b", "orders", 2))
    assert names.taken(GroupKey("team-b", "orders")).startswith(TAKEN)
    assert "Expected another spec.brokerName" in names.taken(GroupKey("team-b", "orders"))
    names.note(group("team-b", "orders", 2, brokerName="theirs"))
    assert names.taken(GroupKey("team-b", "orders")) == ""


def stalled(seen: Observed) -> tuple[list[plans.Action], str, str]:
    """What is done beside the status, and what condition Stalled says."""
    plan = evaluate(dataclasses.replace(seen, broker_name_taken=TAKEN), b.SETTINGS, now=b.NOW)
    [written] = [action for action in plan.actions if isinstance(action, plans.WriteStatus)]
    [condition] = [one for one in written.status["conditions"] if one["type"] == "Stalled"]
    assert condition["status"] == "True"
    return [one for one in plan.actions if one is not written], condition["reason"], condition["message"]


def test_a_group_without_members_gets_none() -> None:
    done, reason, message = stalled(Observed(group=b.group(), group_object=b.group_object(), record=b.reserved(1)))
    assert done == []
    assert (reason, message) == ("InvalidSpec", TAKEN)


def test_a_group_that_lives_goes_on_and_says_so() -> None:
    seen = c.settled()
    lost = dict(seen.pods)
    lost.pop(sorted(lost)[0])
    done, reason, message = stalled(dataclasses.replace(seen, pods=lost))
    assert any(isinstance(one, plans.ApplyObject) and one.resource.kind == "Pod" for one in done)
    assert (reason, message) == ("NameTaken", TAKEN)
