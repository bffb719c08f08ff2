"""A fork behaves like a run from the start, and reports every complaint about its end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.kube.resources import PODS
from tests.sieve.crossroads import AS_IT_SHOULD, BROKEN, DIVERGED, places, walk
from tests.sieve.perturbed_api import Fault, Perturbation
from tests.sieve.workloads import WORKLOADS
from tests.sieve.world import Outcome, World, told
from tests.support.draws import sample

if TYPE_CHECKING:
    from tests.sieve.crossroads import Crossroads

STORY = WORKLOADS["delete"]
CHOSEN = [
    Perturbation(Fault.KILLED_AFTER_WRITE, 2),
    Perturbation(Fault.REPLY_LOST, 7),
    Perturbation(Fault.STALE_READ, 11),
    Perturbation(Fault.EVENT_LATE, 5),
]
FAULTS = [one.fault for one in CHOSEN]
# The number of other forks, for their order: each place of these faults in the whole form.
OTHERS = 12


def gist(outcome: Outcome) -> object:
    """Return the end, the requests in order, and the complaints."""
    return (outcome.end, outcome.counts, outcome.laws_broken, outcome.asked)


@pytest.fixture(scope="module")
def reference() -> Outcome:
    return told(STORY)


@pytest.mark.sampled
def test_a_fork_lives_the_same_life_as_a_run_from_the_beginning(
    reference: Outcome, capfd: pytest.CaptureFixture[str]
) -> None:
    expected = {one: gist(told(STORY, one)) for one in CHOSEN}
    forked = {*CHOSEN, *sample(list(places(reference.counts, FAULTS)), OTHERS)}

    def judged(plan: Crossroads) -> list[str]:
        outcome = told(STORY, plan)
        found = gist(outcome)
        if plan.taken is None:
            return [] if found == gist(reference) else ["undisturbed, and another"]
        return [] if plan.taken not in expected or found == expected[plan.taken] else ["another life"]

    ended = walk(judged, forked, at_once=2, heading=str)
    assert set(ended) == forked
    assert set(ended.values()) == {AS_IT_SHOULD}, capfd.readouterr().out


def test_what_is_asked_while_a_run_is_taken_down_does_not_count() -> None:
    """Its tasks are cancelled in no certain order: two runs of one life asked different things then."""

    async def story(world: World) -> None:
        client = world._client
        assert client is not None

        async def asks_at_its_end() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await client.list(PODS, namespace="the-end")

        world.loop.spawn("test", asks_at_its_end())
        world.mark()
        await asyncio.sleep(1.0)

    outcome = told(story)
    assert not [path for _, path, _ in outcome.asked if "the-end" in path]
    assert not [what for what in outcome.counts.read if "the-end" in what]


def test_what_goes_wrong_in_a_fork_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    def judged(plan: Crossroads) -> list[str]:
        told(STORY, plan)
        if plan.taken == Perturbation(Fault.CONFLICT, 1):
            return ["it went wrong"]
        if plan.taken == Perturbation(Fault.CONFLICT, 2):
            raise LookupError("it broke")
        return []

    ended = walk(judged, [Perturbation(Fault.CONFLICT, number) for number in range(4)], at_once=2, heading=str)
    said = capfd.readouterr()
    assert {one.number: code for one, code in ended.items() if code != AS_IT_SHOULD} == {1: DIVERGED, 2: BROKEN}
    assert "write: 409 (number 1)\n    it went wrong" in said.out
    assert "write: 409 (number 2)" in said.err
    assert "LookupError: it broke" in said.err


def test_a_walk_that_is_not_as_before_is_no_verdict() -> None:
    with pytest.raises(RuntimeError, match="undisturbed"):
        walk(lambda _: ["other"], [], at_once=1, heading=str)
