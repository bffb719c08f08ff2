"""`Stalled` for what the API server refuses: it ends when a whole pass was carried out without a refusal, and with nothing less."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from brokergroup_operator.kube.errors import ApiError, ApiUnavailableError, InvalidError
from brokergroup_operator.observe.group_view import GroupUnknownError
from brokergroup_operator.reconcile import plan as plans
from brokergroup_operator.reconcile.act.refusals import NodePortTakenError
from brokergroup_operator.reconcile.other_groups import BrokerNames, RollingTurns
from brokergroup_operator.reconcile.reconciler import Reconciler
from brokergroup_operator.reconcile.see.foreign import NameTakenError
from tests.reconcile import builders as b

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.see.observed import Observed

REFUSED = InvalidError("Pod orders-1: spec.nonsense")
AWAY = ApiUnavailableError("no answer in time")


class Cluster:
    """One group, whose status is kept, and whose passes end as the test says: with an error, or carried out (None)."""

    def __init__(self) -> None:
        self.seen = b.settled()
        self.ends: list[Exception | None] = []
        self.events: list[str] = []

    async def look(self, _key: Any) -> None:
        """No watch has told anything yet: each pass reads."""

    async def fetch(self, _key: Any) -> Observed:
        return self.seen

    async def take(self, group_object: Any, **_: Any) -> Any:
        return group_object

    async def carry_out(self, _key: Any, plan: plans.Plan, _seen: Observed) -> int:
        for action in plan.actions:
            if isinstance(action, plans.WriteStatus):
                self.seen = replace(self.seen, group_object=self.seen.group_object | {"status": action.status})
                self.events += [note.reason for note in action.notes]
        end = self.ends.pop(0)
        if end is not None:
            raise end
        return 0

    def new_reconciler(self) -> Reconciler:
        turns = RollingTurns(1, wake=lambda _: None)
        return Reconciler(cast("Any", self), cast("Any", self), b.SETTINGS, turns, BrokerNames())

    async def passes(self, reconciler: Reconciler, *ends: Exception | None) -> list[str]:
        """What `Stalled` says after each."""
        told = []
        for end in ends:
            self.ends.append(end)
            with contextlib.suppress(ApiError):
                await reconciler.run_pass(b.KEY)
            told.append(self.stalled())
        return told

    def stalled(self) -> str:
        conditions = self.seen.group_object["status"]["conditions"]
        [found] = [one for one in conditions if one["type"] == "Stalled"]
        return str(found["reason"])


@pytest.mark.parametrize("cut_short", [AWAY, GroupUnknownError("not yet")], ids=["the API is away", "unknown yet"])
async def test_a_pass_that_was_cut_short_proves_nothing(cut_short: Exception) -> None:
    cluster = Cluster()
    told = await cluster.passes(cluster.new_reconciler(), REFUSED, REFUSED, cut_short, REFUSED, REFUSED, None, None)
    assert told == ["NothingStalled", *5 * ["InvalidSpec"], "NothingStalled"]
    assert cluster.events == ["InvalidSpec"]


async def test_a_group_that_the_controller_plane_does_not_know_is_looked_at_ever_more_seldom() -> None:
    """It was five times a second for as long as that lasted."""
    cluster = Cluster()
    reconciler = cluster.new_reconciler()

    async def pauses(*ends: Exception | None) -> list[float | None]:
        cluster.ends += ends
        return [(await reconciler.run_pass(b.KEY)).look_again_seconds for _ in ends]

    assert await pauses(*8 * [GroupUnknownError("not yet")]) == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    await pauses(None)
    assert await pauses(GroupUnknownError("not yet")) == [0.2]


@pytest.mark.parametrize(
    "error", [REFUSED, NodePortTakenError("port 30001 is orders-b's"), NameTakenError("Service orders is taken")]
)
async def test_the_next_plane_goes_on_from_what_the_status_says(error: Exception) -> None:
    cluster = Cluster()
    [_, reason] = await cluster.passes(cluster.new_reconciler(), error, error)
    assert reason != "NothingStalled"

    told = await cluster.passes(cluster.new_reconciler(), error, error, None, None)
    assert told == [reason, reason, reason, "NothingStalled"]
    assert cluster.events == [reason]


async def test_what_was_said_of_an_earlier_spec_is_not_held_against_the_present_one() -> None:
    cluster = Cluster()
    await cluster.passes(cluster.new_reconciler(), REFUSED, REFUSED)
    metadata = cluster.seen.group_object["metadata"] | {"generation": 4}
    cluster.seen = replace(cluster.seen, group_object=cluster.seen.group_object | {"metadata": metadata})
    assert await cluster.passes(cluster.new_reconciler(), None) == ["NothingStalled"]
