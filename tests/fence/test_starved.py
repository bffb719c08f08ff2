"""However starved the fence is, the old master is dead before another can be elected: properties over all settings."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brokergroup_operator.fence.decide import FenceCore
from brokergroup_operator.fence.rules import FenceRules
from tests.fence.cores import HEARS, TICK, earliest_election_seconds, first_kill, told

Stall = tuple[float, float, float]  # start, length, starved share

stalls = st.lists(
    st.tuples(st.floats(0.0, 2.0), st.floats(0.3, 8.0), st.floats(0.0, 1.0)), max_size=12
)  # fmt: skip


def run_starved(
    core: FenceCore, plan: list[Stall], *, until: float, cut: float, answer_seconds: float = 0.01
) -> float | None:
    """Run the loop of watchman.py in virtual time with stalls; a controller answers questions sent before the cut.

    Return the time of the broker's kill.
    """
    now, asked_at = 0.0, 0.0
    pending = list(plan)
    next_stall = pending[0][0] if pending else until
    while now < until:
        now += TICK
        if now >= next_stall and pending:
            _, stall, starved = pending.pop(0)
            now += stall
            core.woke(now, stall, starved_seconds=stall * starved)
            next_stall = now + pending[0][0] if pending else until
            if starved < 0.5 and core.look(now) is not None:
                return now
        if asked_at < cut and asked_at + answer_seconds <= now:
            core.controller_answered(now, told(), asked_at=asked_at)
        if core.look(now) is not None:
            return now
        if now - asked_at >= core.rules.question_period_seconds:
            asked_at = now
    return None


limits = st.builds(
    FenceRules, st.floats(0.5, 10.0), st.floats(0.1, 10.0), st.floats(0.5, 10.0), st.floats(0.1, 5.0)
).filter(
    lambda rules: (
        2 * rules.heartbeat_interval_seconds <= rules.heartbeat_timeout_seconds
        and rules.isolation_seconds < earliest_election_seconds(rules)
    )
)


@given(rules=limits, plan=stalls, cut=st.floats(0.0, 10.0))
def test_however_starved_the_first_look_after_the_bound_kills(rules: FenceRules, plan: list[Stall], cut: float) -> None:
    """And the bound lies before the first moment at which another member can be elected."""
    assert rules.bound_seconds < earliest_election_seconds(rules)
    core = FenceCore(rules, started_at=0.0)
    core.controller_answered(0.0, told(), asked_at=0.0)
    longest_stall = max((stall for _, stall, _ in plan), default=0.0)
    killed = run_starved(core, plan, until=cut + rules.bound_seconds + 100.0, cut=cut)
    assert killed is not None
    # The last contact was at the cut or before; the next look comes a tick, or a stall, after the bound.
    assert killed <= cut + rules.bound_seconds + longest_stall + 2 * TICK
    heard_for_seconds = core.hears_none_for_seconds(killed)
    assert heard_for_seconds is not None
    assert heard_for_seconds >= rules.isolation_seconds


@given(rules=limits, gaps=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12))
def test_a_fence_starved_for_less_than_the_bound_at_a_time_kills_no_broker(
    rules: FenceRules, gaps: list[float]
) -> None:
    """If the fence runs for two periods, controllers answer it: then a busy machine kills no broker."""
    period = rules.question_period_seconds
    stall = rules.bound_seconds - period - 4 * TICK
    if stall < 0.3:
        return
    core = FenceCore(rules, started_at=0.0)
    core.controller_answered(0.0, told(), asked_at=0.0)
    plan = [(2 * period + 4 * TICK + gap, stall, 1.0) for gap in gaps]
    until = sum(gap + stall for gap, stall, _ in plan) + 1.0
    assert run_starved(core, plan, until=until, cut=until) is None


@given(
    cut_here=st.just(10.0),
    cut_other=st.floats(4.0, 20.0),
    isolation=st.floats(0.5, 10.0),
    fence_timeout=st.floats(0.1, 10.0),
    heartbeat=st.floats(0.5, 10.0),
    interval=st.floats(0.1, 5.0),
    starved=st.floats(0.0, 10.0),
)
def test_a_member_that_can_be_elected_finds_the_old_master_dead(
    cut_here: float,
    cut_other: float,
    isolation: float,
    fence_timeout: float,
    heartbeat: float,
    interval: float,
    starved: float,
) -> None:
    """Two replicas are cut off, the other possibly later: it is elected only after this broker's death, however starved.

    The controllers elect at ``cut_here - interval + heartbeat + fence_timeout`` at the earliest,
    and only a member heard within ``heartbeat``.
    """
    rules = FenceRules(isolation, fence_timeout, heartbeat, interval)
    # A kill comes at the first look after isolation or bound. The CRD refuses settings without time until the election, but not
    # settings with less than two looks: that stays open (docs/concepts/architecture.md).
    left = min(earliest_election_seconds(rules) - isolation, fence_timeout / 3)
    if 2 * interval > heartbeat or left <= 2 * TICK:
        return
    core = FenceCore(rules, started_at=0.0)
    core.controller_answered(cut_here, told(in_sync=(1, 2)), asked_at=cut_here)
    core.woke(cut_here + starved, starved, starved_seconds=starved)
    elected_at = cut_here + earliest_election_seconds(rules)
    other_is_live = cut_other + heartbeat > elected_at
    died_at = first_kill(core, cut_here, elected_at, peers={2: cut_other})
    if other_is_live:
        assert died_at is not None


@given(isolation=st.floats(0.5, 10.0), fence_timeout=st.floats(0.3, 10.0), heals=st.floats(0.0, 20.0))
def test_after_an_outage_the_first_member_heard_finds_the_old_master_dead(
    isolation: float, fence_timeout: float, heals: float
) -> None:
    """Controllers that hear one replica again fence the other at once, and elect it ``fence_timeout`` later."""
    core = FenceCore(
        FenceRules(isolation, fence_timeout, heartbeat_timeout_seconds=10.0, heartbeat_interval_seconds=0.5),
        started_at=-1.0,
    )
    core.controller_answered(0.0, told(in_sync=(1, 2)), asked_at=0.0)
    heal_at = isolation + heals
    died_at = first_kill(core, 0.0, heal_at, peers={2: 0.0})
    if died_at is None:
        died_at = first_kill(core, heal_at, heal_at + fence_timeout, peers={2: HEARS})
    assert died_at is not None
