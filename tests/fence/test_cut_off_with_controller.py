"""A master that is cut off together with a controller dies before another is elected (ADR 8)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from brokergroup_operator.fence.decide import FenceCore
from tests.fence.cores import TICK, earliest_election_seconds
from tests.fence.three_fences import RULES, Plane, cut_off_with_one_controller, in_outage, rules_of, shop, told
from tests.support.draws import examples


@pytest.mark.sampled
@settings(max_examples=examples(25, 100))
@given(
    timeout=st.integers(5, 200).map(lambda tenths: tenths * 100),
    at=st.floats(5.5, 8.0),
    latency=st.floats(0.0, 0.4),
    phase=st.floats(0.0, 0.5),
)
def test_a_master_that_is_cut_off_with_a_controller_dies_before_another_is_elected(
    timeout: int, at: float, latency: float, phase: float
) -> None:
    rules = rules_of(timeout)
    made = shop([Plane(latency=latency, phase=phase), Plane()], rules=rules)
    cut_off_with_one_controller(at, made)
    assert made.killed_at is None
    made.run(at + earliest_election_seconds(rules) - 2 * TICK)
    assert made.killed_at is not None
    assert made.fences[2].killed_at is made.fences[3].killed_at is None


@pytest.mark.sampled
@settings(max_examples=examples(25, 100))
@given(
    timeout=st.integers(5, 200).map(lambda tenths: tenths * 100),
    at=st.floats(5.5, 8.0),
    latencies=st.lists(st.floats(0.0, 0.9), min_size=1, max_size=2),
    phase=st.floats(0.0, 0.5),
)
@example(timeout=500, at=6.0, latencies=[0.6], phase=0.3)
@example(timeout=3000, at=6.4, latencies=[0.02, 0.7], phase=0.4)
def test_a_cut_off_master_whose_fence_reaches_its_peers_dies_before_another_is_elected(
    timeout: int, at: float, latencies: list[float], phase: float
) -> None:
    """The peers hear controllers that reach a slow API: what the peers report is old, and never as old as in an outage."""
    rules = rules_of(timeout)
    made = shop([Plane(phase=phase), *(Plane(latency=each, phase=0.5 - phase) for each in latencies)], rules=rules)
    made.run(at)
    near, *far = made.fences[1].planes
    near.reads_until, made.fences[1].planes = at, [near]
    for broker_id in (2, 3):
        made.fences[broker_id].planes, made.fences[broker_id].current = far, far[-1]
    made.run(at + earliest_election_seconds(rules) - 2 * TICK)
    assert made.killed_at is not None


def test_a_master_cut_off_with_a_controller_of_an_earlier_release_lives() -> None:
    made = shop([Plane(silence_of=lambda _: 0.0), Plane()])
    cut_off_with_one_controller(6.0, made)
    made.run(60.0)
    assert made.killed_at is None


@pytest.mark.parametrize("old", [(2,), (3,), (2, 3)])
def test_fences_of_an_earlier_release_on_the_other_side_excuse_nothing(old: tuple[int, ...]) -> None:
    made = shop([Plane(), Plane()], old=old)
    cut_off_with_one_controller(6.0, made)
    made.run(6.0 + earliest_election_seconds(RULES) - 2 * TICK)
    assert made.killed_at is not None


def test_a_member_of_the_set_that_the_near_controller_has_not_heard_of_is_asked_for() -> None:
    """The controller lost the API long before the cut, and answers from a copy of that time: the set then was the master alone."""
    core = FenceCore(RULES, started_at=-100.0)
    core.controller_answered(0.0, told(1, brokers=(1, 2)), asked_at=0.0, api_silence_seconds=0.2)
    core.peer_answered(0.0, 2, 0.1, 0.2)
    alone, joined = told(1, brokers=(1, 2)).members
    old_copy = replace(told(1), members=(alone, replace(joined, in_sync=False, alive=False)))
    now, verdict = 0.0, None
    while verdict is None and now < 20.0:
        now += 0.5
        core.controller_answered(now, old_copy, asked_at=now, api_silence_seconds=30.0 + now)
        verdict = core.look(now)
    assert [member.broker_id for member in core.asks_others(now)] == [2]
    assert now < earliest_election_seconds(RULES)


def test_a_slave_that_reaches_the_other_side_first_finds_the_master_dead() -> None:
    """The far controller hears the slave again, and elects it after ``fenceTimeout``."""
    near, far = Plane(), Plane()
    made = shop([near])
    made.run(10.0)
    near.reads_until = 10.0
    made.run(60.0)
    assert made.killed_at is None, "no controller hears another that could be elected"
    made.fences[3].planes = [near, far]
    made.run(60.0 + RULES.fence_timeout_seconds - 2 * TICK)
    assert made.killed_at is not None


@pytest.mark.parametrize("timeout", [500, 3000, 6000])
@pytest.mark.parametrize("twelfths", range(24))
def test_a_slave_that_reaches_the_other_side_finds_the_master_dead_whenever_its_fence_asks(
    timeout: int, twelfths: int
) -> None:
    """Also in a long silence of the near controllers: the fence then asks half of them."""
    near, far, rules = [Plane(), Plane()], Plane(), rules_of(timeout)
    made = in_outage(near, 10.0, rules=rules)
    made.run(60.0 + twelfths / 12 * rules.question_period_seconds)
    made.fences[3].planes = [*near, far]
    made.run(made.now + rules.fence_timeout_seconds - 2 * TICK)
    assert made.killed_at is not None


def test_a_fence_that_starts_again_in_the_cut_kills_once_a_peer_reports_the_api() -> None:
    near, far = Plane(), Plane()
    made = shop([near, far])
    made.run(10.0)
    near.reads_until = 10.0
    made.add(1, [near], again=True)
    made.run(10.0 + earliest_election_seconds(RULES) - 2 * TICK)
    assert made.killed_at is not None
