"""Falling asleep step by step, and waking."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from brokergroup_operator.api import names
from brokergroup_operator.kube.resources import PODS
from brokergroup_operator.reconcile import plan as plans
from brokergroup_operator.reconcile.evaluate import evaluate
from tests.reconcile import builders as b
from tests.reconcile import cases as c
from tests.reconcile.passes import condition, run, told

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.see.observed import Observed

ASLEEP: dict[str, Any] = {"maintenance": {"hibernated": True}}


def quiet(seen: Observed) -> Observed:
    """The master has been told to acknowledge nothing, and that is noted."""

    def note(pod: dict[str, Any]) -> None:
        values = json.loads(pod["metadata"]["annotations"][names.ANNOTATION_HOT_CONFIG]) | {"minInSyncReplicas": "99"}
        pod["metadata"]["annotations"][names.ANNOTATION_HOT_CONFIG] = json.dumps(values)

    return c.with_pods(seen, note, "orders-1")


def test_the_master_is_quiet_before_anybody_stops() -> None:
    assert told(run(c.settled(**ASLEEP))) == ["give orders-1 [('minInSyncReplicas', '99')]"]


def test_then_it_stops_before_its_slaves_so_that_nobody_shrinks_the_set() -> None:
    seen = quiet(c.settled(**ASLEEP))
    assert told(run(seen)) == ["delete Pod orders-1"]
    assert told(run(c.going(seen, "orders-1"))) == []
    stopped = c.live(c.without_pods(seen, "orders-1"), 2, 3)
    assert told(run(stopped)) == ["delete Pod orders-2", "delete Pod orders-3"]


def test_a_master_that_does_not_answer_is_not_waited_for() -> None:
    assert told(run(c.live(c.settled(**ASLEEP), 2, 3))) == ["delete Pod orders-1"]
    assert told(run(c.not_ready(c.settled(**ASLEEP), "orders-1"))) == ["delete Pod orders-1"]


def test_asleep_nothing_is_made_and_everything_is_kept() -> None:
    seen = c.live(c.without_pods(c.settled(**ASLEEP), "orders-1", "orders-2", "orders-3"))
    assert told(run(seen)) == []
    assert condition(seen, "Hibernated") == ("True", "NothingRuns")
    assert condition(seen, "Reconciling") == ("False", "Stable")
    assert condition(seen, "Stalled") == ("False", "NothingStalled")
    lost = replace(seen, claims=b.without(seen.claims, "orders-2"))
    assert not [line for line in told(run(lost)) if line.startswith("reserve")], "a lost volume is made up for at wake"


def test_it_wakes_all_at_once_and_the_last_master_first() -> None:
    seen = c.live(c.without_pods(c.settled(), "orders-1", "orders-2", "orders-3"))
    seen = c.live(c.seen_with(seen, b.record(master=2)))
    made = [
        action.object["metadata"]["name"]
        for action in evaluate(seen, b.SETTINGS, now=b.NOW).actions
        if isinstance(action, plans.ApplyObject) and action.resource == PODS
    ]
    assert made == ["orders-2", "orders-1", "orders-3"]


def test_who_changes_his_mind_half_way_gets_a_master_that_acknowledges() -> None:
    assert told(run(quiet(c.settled()))) == ["give orders-1 [('minInSyncReplicas', '2')]"]


def test_paused_and_hibernated_stops_nobody() -> None:
    assert told(run(c.settled(maintenance={"hibernated": True, "paused": True}))) == []
