"""One evaluation derives each fact of a group once: repairs, order, rollout and status read the view, and derive nothing again."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from brokergroup_operator.reconcile.evaluate import evaluate
from brokergroup_operator.reconcile.plan import WriteStatus
from tests.reconcile import builders as b

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from brokergroup_operator.reconcile.see.observed import Observed

MEMBERS = 3
OF_THE_GROUP, OF_EACH_MEMBER = 1, MEMBERS
# The function that derives it, and how often one evaluation of a settled group of three may call it.
ALLOWED = {
    "reconcile/see/members.py:membership": OF_THE_GROUP,
    "reconcile/see/members.py:carried": OF_THE_GROUP,
    "reconcile/see/members.py:wanted_learners": OF_THE_GROUP,
    "reconcile/see/members.py:never_masters": OF_THE_GROUP,
    "reconcile/see/members.py:learning": OF_THE_GROUP,
    "reconcile/see/members.py:standings": OF_THE_GROUP,
    "reconcile/see/members.py:_standing": OF_EACH_MEMBER,
    "reconcile/see/observed.py:going_claims": OF_EACH_MEMBER,
    "reconcile/render/broker_config.py:broker_properties": OF_THE_GROUP,
    "reconcile/render/broker_config.py:render": 2,  # the whole broker.conf, and what only a start reads of it
    "reconcile/decide/rollout.py:wanted_pod": OF_EACH_MEMBER,
    # The group's own is of the revision in its status.
    "reconcile/render/pods.py:build_pod": OF_EACH_MEMBER + OF_THE_GROUP,
    "reconcile/render/pods.py:pod_revision": OF_EACH_MEMBER + OF_THE_GROUP,
    "reconcile/decide/configuration_drift.py:drifted_keys": OF_THE_GROUP,
    "reconcile/see/foreign.py:made_here": 5,  # once for each kind that has an owner
}


def calls_of(work: Callable[[], object]) -> Counter[str]:
    """Return how often each Python function was called, by the end of its path and its name."""
    counted: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            path = frame.f_code.co_filename.rpartition("brokergroup_operator/")[2]
            counted[f"{path}:{frame.f_code.co_qualname}"] += 1

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return counted


@pytest.fixture(scope="module")
def settled() -> Observed:
    """A group of three with the status that it should have: nothing is to do."""
    seen = b.settled()
    (written,) = evaluate(seen, b.SETTINGS, now=b.NOW).actions
    assert isinstance(written, WriteStatus)
    return replace(seen, group_object=seen.group_object | {"status": written.status})


@pytest.mark.parametrize("function", ALLOWED)
def test_an_evaluation_derives_each_fact_once(settled: Observed, function: str) -> None:
    seen = replace(settled, group=msgspec.structs.replace(settled.group))  # as the next pass reads it
    plans = []
    counted = calls_of(lambda: plans.append(evaluate(seen, b.SETTINGS, now=b.NOW)))
    assert plans[0].actions == ()
    assert 0 < counted[function] <= ALLOWED[function]
