"""While no controller reaches the Kubernetes API, no fence kills its master; what ends this excuse (ADR 8)."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokergroup_operator.fence.decide import FenceCore, LocalRole
from brokergroup_operator.fence.watchman import LONGEST_API_SILENCE_MILLISECONDS
from tests.fence.three_fences import API_PERIOD, FOREVER, PEERS_PERIOD, RULES, Plane, in_outage, rules_of, shop, told
from tests.support.draws import WHOLE, examples

LONG_OUTAGE = 3600.0 if WHOLE else 120.0


@pytest.mark.sampled
@pytest.mark.parametrize("old", [(), (2,), (2, 3), (1,), (1, 2, 3)])
def test_an_outage_of_the_api_kills_no_master(old: tuple[int, ...]) -> None:
    """An outage of an hour among the proofs, with controllers whose last reads lie apart, and pods of an earlier release."""
    planes = [Plane(phase=0.1), Plane(latency=0.3, phase=0.3), Plane()]
    made = in_outage(planes, 20.0, old=old)
    made.run(30.0)
    made.run(LONG_OUTAGE, tick=0.1)
    for lag, plane in enumerate(planes):
        plane.reads_until, plane.phase = FOREVER, 0.1 * lag
        made.run(made.now + 3.0)
    made.run(LONG_OUTAGE + 100.0)
    assert [fence.killed_at for fence in made.fences.values()] == [None, None, None]


@pytest.mark.sampled
@settings(max_examples=examples(25, 100))
@given(
    gaps=st.lists(st.lists(st.floats(0.1, 16.0), min_size=3, max_size=8), min_size=2, max_size=3),
    timeout=st.sampled_from([500, 1000, 3000]),
)
def test_a_brownout_of_the_api_kills_no_master(gaps: list[list[float]], timeout: int) -> None:
    """Each controller reaches the API now and then: all fences know the youngest contact of any."""

    def course(steps: list[float]) -> Plane:
        contacts = [0.0, 6.0, *itertools.accumulate(steps, initial=6.5)]
        return Plane(silence_of=lambda now: now - max(each for each in contacts if each <= now))

    made = shop([course(steps) for steps in gaps], rules=rules_of(timeout))
    made.run(60.0)
    assert made.killed_at is None


@pytest.mark.parametrize("timeout", range(1500, 20_001, 500))
def test_fences_that_learn_of_a_contact_one_after_the_other_count_as_cut_off_together(timeout: int) -> None:
    """In a brownout one fence has heard of the newest contact, and a peer asks its controllers a period later. The excuse
    before that lasts as long with shorter timeouts.
    """
    rules = rules_of(timeout)
    apart = rules.question_period_seconds + API_PERIOD
    assert rules.bound_seconds - rules.out_of_contact_seconds(rules.bound_seconds) > apart
    assert rules.left_after_excuse_seconds > apart


def test_the_loss_of_a_slave_in_sync_ends_the_excuse() -> None:
    """The master cannot distinguish it from a slave on the other side of a cut (ADR 8, What it does not)."""
    planes = [Plane(), Plane()]
    made = in_outage(planes, 10.0)
    made.run(100.0)
    del made.fences[3]
    made.run(110.0)
    assert made.killed_at is not None
    assert RULES.left_after_excuse_seconds < made.killed_at - 100.0 < RULES.fence_timeout_seconds


def test_the_loss_of_a_member_that_is_not_in_sync_ends_no_excuse() -> None:
    """Such a member can join the SyncStateSet only where its master reaches a controller in contact."""
    core = FenceCore(RULES, started_at=-100.0)
    core.controller_answered(0.0, told(1), asked_at=0.0)
    for period in range(800):
        now = 0.1 * period
        lost, noticed = now >= 60.0, now >= 60.0 + RULES.heartbeat_timeout_seconds
        members = replace(told(1).members[2], in_sync=False, alive=not noticed)
        answer = replace(told(1), members=(*told(1).members[:2], members))
        core.controller_answered(now, answer, asked_at=now, api_silence_seconds=now)
        for broker_id in (2,) if lost else (2, 3):
            core.peer_answered(now, broker_id, 0.1, now)
        assert core.look(now) is None


def test_a_member_that_left_the_set_in_a_silence_is_not_asked_for() -> None:
    """The API answers writes, and reads too late to count: the same controller's answers, of which one took longer on its way."""
    core = FenceCore(RULES, started_at=-100.0)
    core.controller_answered(0.0, told(1), asked_at=0.0)
    for period in range(160):
        now = 0.5 * period
        left = replace(told(1).members[2], in_sync=now < 50.0, alive=now < 60.0)
        answer = replace(told(1), members=(*told(1).members[:2], left))
        core.controller_answered(now, answer, asked_at=now, api_silence_seconds=now + 0.3)
        for broker_id in (2, 3) if now < 60.0 else (2,):
            core.peer_answered(now, broker_id, 0.1, now)
        assert core.look(now) is None


@pytest.mark.parametrize("timeout", [500, 3000, 6000])
@pytest.mark.parametrize("twelfths", range(24))
def test_a_master_outlives_lost_questions_at_the_end_of_an_outage_of_the_api(timeout: int, twelfths: int) -> None:
    """The slaves' fences have heard that the API is back, and so ended the master's excuse."""
    planes, rules = [Plane(), Plane()], rules_of(timeout)
    made = in_outage(planes, 20.0, rules=rules)
    made.run(60.0 + twelfths / 12 * rules.question_period_seconds)
    for plane in planes:
        plane.reads_until = FOREVER
    made.fences[1].planes = []
    made.run(made.now + 2.5 * rules.question_period_seconds)
    made.fences[1].planes = planes
    made.run(made.now + 10.0)
    assert made.killed_at is None


@pytest.mark.parametrize("runs", [True, False], ids=["outage of the API", "outage of all operators"])
def test_clocks_that_run_apart_end_no_excuse(*, runs: bool) -> None:
    """Two hours of outage: NTP slews the other nodes' clocks, as fast as the kernel's discipline does it."""
    core, slower = FenceCore(RULES, started_at=-100.0), 1 - 500e-6
    core.controller_answered(0.0, told(1), asked_at=0.0, api_silence_seconds=0.2)
    for period in range(2 * 3600):
        now = 1.0 + period
        if runs:
            core.controller_answered(now, told(1), asked_at=now, api_silence_seconds=now + 0.2)
        for broker_id in (2, 3):
            core.peer_answered(now, broker_id, 0.1 if runs else slower * now, slower * now)
        assert core.look(now) is None


def test_in_a_long_outage_of_the_api_half_of_the_controllers_are_asked() -> None:
    """Each fence would ask all of them. It asks all again once the excuse has ended, and before the outage is a long one."""
    made = shop([Plane(reads_until=10.0), Plane(reads_until=10.0)])
    core = made.fences[1].core
    made.run(9.0 + RULES.outage_seconds)
    assert not core.asks_half(made.now)
    made.run(40.0)
    assert core.asks_half(made.now)
    made.separate(1, 2)
    made.run(40.0 + 2 * RULES.question_period_seconds + PEERS_PERIOD)
    assert not core.asks_half(made.now)


@pytest.mark.parametrize("broker_id", [1, 2])
def test_a_fence_that_starts_again_in_an_outage_of_the_api_kills_nothing(broker_id: int) -> None:
    """The fence counts what the controllers report, so it is past the bound at the first answer."""
    planes = [Plane(), Plane()]
    made = in_outage(planes, 10.0)
    made.run(100.0)
    made.add(broker_id, planes, again=True)
    made.run(200.0)
    assert made.killed_at is None
    no_contact = made.fences[broker_id].core.no_contact_for_seconds(made.now)
    assert no_contact == pytest.approx(190.0, abs=1.0)


def test_a_fence_that_starts_again_beside_new_controllers_without_the_api_kills_nothing() -> None:
    """Their silence has no length. What peers heard of former controllers is old, and counts from the fence's start."""
    planes = [Plane(), Plane()]
    made = in_outage(planes, 10.0)
    made.run(40.0)
    for plane in planes:
        plane.silence_of = lambda _: LONGEST_API_SILENCE_MILLISECONDS / 1000
    made.add(1, planes, again=True)
    made.run(100.0)
    assert made.killed_at is None
    made.separate(1, 2, 3)
    made.run(104.0)
    assert made.killed_at is not None, "they may hear a controller now"


def test_a_fence_that_starts_again_beside_controllers_that_know_no_group_kills_nothing() -> None:
    """The fence knows no peer that it could ask."""
    core = FenceCore(RULES, started_at=0.0, heard_before=True)
    for period in range(40):
        now = period * 0.5
        core.controller_answered(now, None, asked_at=now, api_silence_seconds=LONGEST_API_SILENCE_MILLISECONDS / 1000)
        core.local_answered(now, LocalRole.MASTER, process_age_seconds=1000.0)
        assert core.look(now) is None
