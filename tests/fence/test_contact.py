"""A master beside controllers that are cut off from the Kubernetes API: it dies before another is elected (ADR 8).

Fences, controllers and cuts in plain numbers. Each fence asks as watchman.py does: one controller, and all while that one is silent
or does not reach the API.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from brokergroup_operator.api.failover_fields import times_of
from brokergroup_operator.fence.contact import MET_SECONDS
from brokergroup_operator.fence.decide import FenceCore, LocalRole, Member, Told
from brokergroup_operator.fence.rules import FenceRules
from brokergroup_operator.fence.watchman import LONGEST_API_SILENCE_MILLISECONDS
from tests.support.draws import WHOLE, examples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

TICK = 0.05
PEERS_PERIOD = 0.1
MEETING_PERIOD = 5.0
API_PERIOD = 0.5
FOREVER = float("inf")
LONG_OUTAGE = 3600.0 if WHOLE else 120.0


def rules_of(timeout_milliseconds: int) -> FenceRules:
    times = times_of(timeout_milliseconds)
    return FenceRules(
        isolation_seconds=times.isolation_milliseconds / 1000,
        fence_timeout_seconds=times.fence_milliseconds / 1000,
        heartbeat_timeout_seconds=times.heartbeat_timeout_milliseconds / 1000,
        heartbeat_interval_seconds=times.heartbeat_interval_milliseconds / 1000,
    )


RULES = rules_of(3000)


def earliest_election_seconds(rules: FenceRules) -> float:
    """Return the earliest election after the cut: the last heartbeat left one interval before it."""
    return rules.heartbeat_timeout_seconds + rules.fence_timeout_seconds - rules.heartbeat_interval_seconds


def told(own: int, *, master: int = 1, epoch: int = 5, brokers: Iterable[int] = (1, 2, 3)) -> Told:
    members = tuple(Member(each, f"10.0.0.{each}:10911", in_sync=True, alive=True) for each in brokers)
    return Told(own_id=own, master_id=master, master_epoch=epoch, members=members)


@dataclass(eq=False)
class Plane:
    """A controller. ``reads_until``: when it loses the API; ``silence_of``: another course of its contact."""

    reads_until: float = FOREVER
    latency: float = 0.02
    phase: float = 0.0
    silence_of: Callable[[float], float] | None = None

    def silence(self, now: float) -> float:
        if self.silence_of is not None:
            return self.silence_of(now)
        answered = (min(now, self.reads_until) - self.latency - self.phase) // API_PERIOD
        return now - (answered * API_PERIOD + self.phase)


@dataclass
class Fence:
    """The fence of one broker, which reaches these controllers."""

    broker_id: int
    core: FenceCore
    planes: list[Plane]
    is_old: bool = False
    current: Plane | None = None
    controllers_due: float = 0.0
    peers_due: float = 0.0
    meeting_due: float = 0.0
    # The controllers that answered their last question.
    answering: list[Plane] = field(default_factory=list)
    round: int = 0
    killed_at: float | None = None

    def asks_controllers(self, now: float) -> None:
        if now < self.controllers_due:
            return
        self.controllers_due = now + self.core.rules.question_period_seconds
        asked = [self.current] if self.current in self.planes else list(self.planes)
        if self.current not in asked:
            self.current = None
        self.answering = [plane for plane in self.answering if plane in self.planes]
        self.round += 1
        skips = len(asked) > 1 and len(self.answering) > 1 and self.core.asks_half(now)
        skipped = self.answering[self.round % 2 :: 2] if skips else []
        self.answering += [plane for plane in self.planes if plane not in self.answering]
        for plane in (each for each in asked if each is not None and each not in skipped):
            silence = 0.0 if self.is_old else plane.silence(now)
            self.core.controller_answered(now, told(self.broker_id), asked_at=now, api_silence_seconds=silence)
            if silence < self.core.rules.asking_others_after_seconds:
                self.current = plane
            elif self.current is plane:
                self.current = None

    def whom_to_ask(self, now: float) -> tuple[Member, ...]:
        if now >= self.peers_due and (members := self.core.asks_others(now)):
            self.peers_due = now + PEERS_PERIOD
            return members
        if now >= self.meeting_due:
            self.meeting_due = now + MEETING_PERIOD
            return self.core.candidates()
        return ()


@dataclass
class Shop:
    """Three brokers, of which 1 is master, and what each fence hears."""

    rules: FenceRules = RULES
    now: float = 0.0
    fences: dict[int, Fence] = field(default_factory=dict)
    cut: set[frozenset[int]] = field(default_factory=set)

    def add(self, broker_id: int, planes: list[Plane], *, is_old: bool = False, again: bool = False) -> Fence:
        core = FenceCore(self.rules, started_at=self.now if again else self.now - 100.0, heard_before=again)
        made = Fence(broker_id, core, planes, is_old=is_old, controllers_due=self.now + 0.13 * broker_id)
        self.fences[broker_id] = made
        return made

    def run(self, until: float, *, tick: float = TICK) -> None:
        while self.now < until:
            self.now += tick
            for fence in self.fences.values():
                self._turn(fence)

    def _turn(self, fence: Fence) -> None:
        fence.asks_controllers(self.now)
        for member in fence.whom_to_ask(self.now):
            other = self.fences.get(member.broker_id)
            if other is None or frozenset((fence.broker_id, member.broker_id)) in self.cut:
                continue
            silence, contact = other.core.hears_none_for_seconds(self.now), other.core.no_contact_for_seconds(self.now)
            if silence is not None:
                without_number = other.is_old or fence.is_old
                fence.core.peer_answered(self.now, other.broker_id, silence, None if without_number else contact)
        if fence.core.look(self.now) is not None and fence.killed_at is None:
            fence.killed_at = self.now
            fence.core.killed(self.now)

    def separate(self, broker_id: int, *others: int) -> None:
        self.cut |= {frozenset((broker_id, other)) for other in others}

    @property
    def killed_at(self) -> float | None:
        return self.fences[1].killed_at


def shop(planes: list[Plane], *, rules: FenceRules = RULES, old: Iterable[int] = ()) -> Shop:
    """Return a shop in which each fence reaches each controller."""
    made = Shop(rules)
    for broker_id in (1, 2, 3):
        made.add(broker_id, list(planes), is_old=broker_id in set(old))
    return made


def in_outage(planes: list[Plane], at: float, *, rules: FenceRules = RULES, old: Iterable[int] = ()) -> Shop:
    """Return a shop in which all controllers have just lost the API."""
    made = shop(planes, rules=rules, old=old)
    made.run(at)
    for plane in planes:
        plane.reads_until = at
    return made


def cut_off_with_one_controller(at: float, made: Shop) -> None:
    """The first controller and the master lose all else."""
    alone, *others = made.fences[1].planes
    made.run(at)
    alone.reads_until = at
    made.fences[1].planes = [alone]
    for broker_id in (2, 3):
        made.fences[broker_id].planes = others
    made.separate(1, 2, 3)


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
def test_so_does_one_whose_fence_still_reaches_the_other_fences(
    timeout: int, at: float, latencies: list[float], phase: float
) -> None:
    """Those hear controllers that reach a slow API: what they report is old, and never as old as in an outage."""
    rules = rules_of(timeout)
    made = shop([Plane(phase=phase), *(Plane(latency=each, phase=0.5 - phase) for each in latencies)], rules=rules)
    made.run(at)
    near, *far = made.fences[1].planes
    near.reads_until, made.fences[1].planes = at, [near]
    for broker_id in (2, 3):
        made.fences[broker_id].planes, made.fences[broker_id].current = far, far[-1]
    made.run(at + earliest_election_seconds(rules) - 2 * TICK)
    assert made.killed_at is not None


def test_without_the_controllers_word_it_lives_as_with_a_controller_of_an_earlier_release() -> None:
    made = shop([Plane(silence_of=lambda _: 0.0), Plane()])
    cut_off_with_one_controller(6.0, made)
    made.run(60.0)
    assert made.killed_at is None


@pytest.mark.sampled
@pytest.mark.parametrize("old", [(), (2,), (2, 3), (1,), (1, 2, 3)])
def test_an_outage_of_the_api_kills_no_master(old: tuple[int, ...]) -> None:
    """An hour of it among the proofs, with controllers whose last reads lie apart, and pods of an earlier release."""
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


def test_the_loss_of_a_slave_in_sync_ends_the_excuse() -> None:
    """It can't be told from a slave on the other side of a cut (ADR 8, What it does not)."""
    planes = [Plane(), Plane()]
    made = in_outage(planes, 10.0)
    made.run(100.0)
    del made.fences[3]
    made.run(110.0)
    assert made.killed_at is not None
    assert RULES.left_after_excuse_seconds < made.killed_at - 100.0 < RULES.fence_timeout_seconds


def test_the_loss_of_a_member_that_is_not_in_sync_ends_no_excuse() -> None:
    """It can join the SyncStateSet only where its master reaches a controller in contact."""
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


def test_a_member_of_the_set_that_the_near_controller_has_not_heard_of_is_asked_for() -> None:
    """It lost the API long before the cut, and answers from a copy of that time: the set then was the master alone."""
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


@pytest.mark.parametrize("old", [(2,), (3,), (2, 3)])
def test_fences_of_an_earlier_release_on_the_other_side_excuse_nothing(old: tuple[int, ...]) -> None:
    made = shop([Plane(), Plane()], old=old)
    cut_off_with_one_controller(6.0, made)
    made.run(6.0 + earliest_election_seconds(RULES) - 2 * TICK)
    assert made.killed_at is not None


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
def test_so_whenever_its_fence_asks(timeout: int, twelfths: int) -> None:
    """Also in a long silence of the near controllers, of which half are asked then."""
    near, far, rules = [Plane(), Plane()], Plane(), rules_of(timeout)
    made = in_outage(near, 10.0, rules=rules)
    made.run(60.0 + twelfths / 12 * rules.question_period_seconds)
    made.fences[3].planes = [*near, far]
    made.run(made.now + rules.fence_timeout_seconds - 2 * TICK)
    assert made.killed_at is not None


@pytest.mark.parametrize("timeout", [500, 3000, 6000])
@pytest.mark.parametrize("twelfths", range(24))
def test_a_master_outlives_lost_questions_at_the_end_of_an_outage_of_the_api(timeout: int, twelfths: int) -> None:
    """The slaves' fences have heard that the API is back, and so ended its excuse."""
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
    """Two hours of it: NTP slews the other nodes' clocks, as fast as the kernel's discipline does it."""
    core, slower = FenceCore(RULES, started_at=-100.0), 1 - 500e-6
    core.controller_answered(0.0, told(1), asked_at=0.0, api_silence_seconds=0.2)
    for period in range(2 * 3600):
        now = 1.0 + period
        if runs:
            core.controller_answered(now, told(1), asked_at=now, api_silence_seconds=now + 0.2)
        for broker_id in (2, 3):
            core.peer_answered(now, broker_id, 0.1 if runs else slower * now, slower * now)
        assert core.look(now) is None


@pytest.mark.parametrize("broker_id", [1, 2])
def test_a_fence_that_starts_again_in_an_outage_of_the_api_kills_nothing(broker_id: int) -> None:
    """Its clock is what the controllers report, so it is past the bound at the first answer."""
    planes = [Plane(), Plane()]
    made = in_outage(planes, 10.0)
    made.run(100.0)
    made.add(broker_id, planes, again=True)
    made.run(200.0)
    assert made.killed_at is None
    no_contact = made.fences[broker_id].core.no_contact_for_seconds(made.now)
    assert no_contact == pytest.approx(190.0, abs=1.0)


def test_so_does_one_beside_controllers_that_began_after_it_and_never_reached_the_api() -> None:
    """Their silence has no length. What the other fences heard of the former controllers is old, and counts from its own start."""
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
    """It knows no other fence that it could ask."""
    core = FenceCore(RULES, started_at=0.0, heard_before=True)
    for period in range(40):
        now = period * 0.5
        core.controller_answered(now, None, asked_at=now, api_silence_seconds=LONGEST_API_SILENCE_MILLISECONDS / 1000)
        core.local_answered(now, LocalRole.MASTER, process_age_seconds=1000.0)
        assert core.look(now) is None


def test_a_fence_that_starts_again_in_the_cut_kills_once_another_answers_that_it_hears_the_api() -> None:
    near, far = Plane(), Plane()
    made = shop([near, far])
    made.run(10.0)
    near.reads_until = 10.0
    made.add(1, [near], again=True)
    made.run(10.0 + earliest_election_seconds(RULES) - 2 * TICK)
    assert made.killed_at is not None


def test_a_fence_of_a_new_pod_kills_nothing_before_it_has_heard_of_contact() -> None:
    """Nothing was granted to its broker: that takes a commit."""
    core = FenceCore(RULES, started_at=0.0)
    for period in range(200):
        now = 1.0 + period * 0.5
        core.controller_answered(now, told(1), asked_at=now, api_silence_seconds=100.0 + now)
        core.peer_answered(now, 2, 0.1, 0.1)
        core.peer_answered(now, 3, 0.1, 0.1)
        assert core.look(now) is None
    assert core.asks_others(now) == ()


def master_without_contact(*, for_seconds: float, words: dict[int, float | None]) -> FenceCore:
    """Return a fence whose controller lost the API at 0; the others answered at 0 that they hear one, and now these words."""
    core = FenceCore(RULES, started_at=-100.0)
    for broker_id in (2, 3):
        core.controller_answered(0.0, told(1), asked_at=0.0)
        core.peer_answered(0.0, broker_id, 0.0, 0.0)
    now = 0.5
    while now <= for_seconds:
        core.controller_answered(now, told(1), asked_at=now, api_silence_seconds=now)
        for broker_id, word in words.items():
            core.peer_answered(now, broker_id, 0.1, word)
        if core.look(now) is not None:
            return core
        now += 0.5
    return core


def test_after_the_kill_only_contact_that_is_younger_arms_it_again() -> None:
    """Its controller goes on naming the broker from its copy, and the broker's next process has no role."""
    core = master_without_contact(for_seconds=6.0, words={})
    assert core.look(6.0) is not None
    core.killed(6.0)
    for now in (6.5, 20.0, 100.0):
        core.controller_answered(now, told(1), asked_at=now, api_silence_seconds=now)
        assert core.look(now) is None
        assert core.look(now + 0.2) is None
    core.controller_answered(101.0, told(1), asked_at=101.0, api_silence_seconds=0.3)
    for broker_id in (2, 3):
        core.peer_answered(101.0, broker_id, 0.1, 0.1)
    assert core.look(101.1) is None
    for now in (103.0, 104.0, 105.0, 105.5):
        core.controller_answered(now, told(1), asked_at=now, api_silence_seconds=now - 100.7)
        verdict = core.look(now)
    assert verdict is not None
    assert "no controller that reached the Kubernetes API for 4.8 s" in verdict.why


@pytest.mark.parametrize(
    ("role", "dies"), [(LocalRole.MASTER, True), (LocalRole.SILENT, True), (LocalRole.UNKNOWN, True), (LocalRole.SLAVE, False)]
)  # fmt: skip
def test_a_broker_that_has_stepped_down_lives(role: LocalRole, *, dies: bool) -> None:
    core = master_without_contact(for_seconds=4.0, words={})
    assert core.asks_local(4.0)
    core.local_answered(4.1, role, process_age_seconds=100.0)
    core.controller_answered(4.8, told(1), asked_at=4.8, api_silence_seconds=4.8)
    assert (core.look(4.8) is not None) is dies


def test_a_slave_of_the_record_lives() -> None:
    core = FenceCore(RULES, started_at=-100.0)
    for now in range(20):
        core.controller_answered(now, told(2), asked_at=now, api_silence_seconds=now)
        core.peer_answered(now, 1, 0.1, 0.1)
        core.peer_answered(now, 3, 0.1, 0.1)
        assert core.look(now) is None


@pytest.mark.parametrize(
    ("word", "dies"),
    [(None, False), (0.3, True), (2.7, True), (2.95, False), (5.0, False), (2**32 / 1000, False)],
    ids=["an earlier release", "it hears one", "cut off later", "with us", "before us", "never any contact"],
)
def test_the_word_of_another_fence(word: float | None, *, dies: bool) -> None:
    core = FenceCore(RULES, started_at=-100.0)
    core.controller_answered(0.0, told(1), asked_at=0.0)
    for now, said in ((1.3, 1.3), (4.9, word)):
        core.controller_answered(now, told(1), asked_at=now, api_silence_seconds=now)
        core.peer_answered(now, 2, 0.1, None if word is None else said)
        core.peer_answered(now, 3, 0.1, now)
        verdict = core.look(now)
    assert (verdict is not None) is dies


def test_a_fence_that_never_answered_shows_no_cut() -> None:
    """The port is closed for datagrams, or a pod has no fence: an outage of the API would kill each such master."""
    core = FenceCore(RULES, started_at=-100.0)
    for period in range(200):
        now = period * 0.5
        core.controller_answered(now, told(1), asked_at=now, api_silence_seconds=now)
        core.peer_answered(now, 2, 0.1, now)
        assert core.look(now) is None


@pytest.mark.parametrize(("quiet_for", "dies"), [(MET_SECONDS + 10.0, False), (10.0, True)])
def test_a_fence_that_stopped_to_answer_long_before_shows_no_cut(quiet_for: float, *, dies: bool) -> None:
    """The members' port was closed since, or the pod was made anew without a fence, or with a Python broker."""
    planes = [Plane(), Plane()]
    made = shop(planes)
    made.run(20.0)
    made.separate(1, 2, 3)
    made.run(20.0 + quiet_for)
    for plane in planes:
        plane.reads_until = made.now
    made.run(made.now + 60.0)
    assert (made.killed_at is not None) is dies


def test_a_lost_datagram_makes_no_fence_an_old_one() -> None:
    """It answered in today's form: the earlier one alone, whose word is about controllers, excuses nothing."""
    core = master_without_contact(for_seconds=20.0, words={2: None, 3: None})
    assert core.look(20.0) is not None
    later = FenceCore(RULES, started_at=-100.0)
    later.peer_answered(-MET_SECONDS, 2, 0.1, 0.1)
    for period in range(20):
        now = period * 0.5
        later.controller_answered(now, told(1, brokers=(1, 2)), asked_at=now, api_silence_seconds=now)
        later.peer_answered(now, 2, 0.1, None)
        assert later.look(now) is None, "its image was put back"


def test_a_starved_fence_asks_before_it_kills() -> None:
    """It could ask nothing until past the bound. The answer that waited in its socket is older than that, the next one is not."""
    core = FenceCore(RULES, started_at=-100.0)
    core.controller_answered(0.0, told(1), asked_at=0.0, api_silence_seconds=0.4)
    for broker_id in (2, 3):
        core.peer_answered(-1.0, broker_id, 0.1, 0.1)
    core.woke(4.2, 4.2, starved_seconds=4.2)
    assert core.look(4.2) is None
    core.controller_answered(4.3, told(1), asked_at=4.3, api_silence_seconds=0.2)
    assert core.look(4.3 + 2.0) is None


@pytest.mark.parametrize("timeout", range(500, 20_001, 100))
def test_a_starved_fence_that_asks_first_is_still_in_time(timeout: int) -> None:
    rules = rules_of(timeout)
    assert rules.bound_seconds + rules.answering_seconds + 2 * TICK <= earliest_election_seconds(rules)
    assert rules.answering_seconds >= 4 * PEERS_PERIOD


@pytest.mark.parametrize("timeout", range(1500, 20_001, 500))
def test_fences_that_learn_of_a_contact_one_after_the_other_count_as_cut_off_together(timeout: int) -> None:
    """In a brownout: one has heard of the newest contact, the other asks its controllers a period later. With shorter timeouts the
    excuse before that lasts as long.
    """
    rules = rules_of(timeout)
    apart = rules.question_period_seconds + API_PERIOD
    assert rules.bound_seconds - rules.out_of_contact_seconds(rules.bound_seconds) > apart
    assert rules.left_after_excuse_seconds > apart


def test_a_broker_is_no_known_slave_by_the_word_of_a_controller_without_contact() -> None:
    """Its copy may be older than an election of this broker: an order to stop it waits."""
    core = FenceCore(RULES, started_at=-100.0)
    core.controller_answered(0.0, told(1, master=2), asked_at=0.0, api_silence_seconds=0.2)
    assert core.is_known_as_slave(0.1)
    core.controller_answered(2.0, told(1, master=2), asked_at=2.0, api_silence_seconds=2.2)
    assert not core.is_known_as_slave(2.1)


def test_in_a_long_outage_of_the_api_half_of_the_controllers_are_asked() -> None:
    """All fences ask all of them then. As often as before once the excuse has ended, and where it is no long outage yet."""
    made = shop([Plane(reads_until=10.0), Plane(reads_until=10.0)])
    core = made.fences[1].core
    made.run(9.0 + RULES.outage_seconds)
    assert not core.asks_half(made.now)
    made.run(40.0)
    assert core.asks_half(made.now)
    made.separate(1, 2)
    made.run(40.0 + 2 * RULES.question_period_seconds + PEERS_PERIOD)
    assert not core.asks_half(made.now)


def test_a_controllers_silence_counts_back_from_the_question() -> None:
    """A frozen controller answers as it wakes: its silence has grown, the question is as old as it is."""
    core = FenceCore(RULES, started_at=-100.0)
    core.controller_answered(4.0, told(1), asked_at=1.0, api_silence_seconds=3.2)
    assert core.no_contact_for_seconds(4.0) == pytest.approx(6.2)
    core.controller_answered(4.1, told(1), asked_at=4.0, api_silence_seconds=0.1)
    assert core.no_contact_for_seconds(4.1) == pytest.approx(0.2)
    core.controller_answered(4.2, told(1), asked_at=4.1, api_silence_seconds=50.0)
    assert core.no_contact_for_seconds(4.2) == pytest.approx(0.3), "of any controller"
