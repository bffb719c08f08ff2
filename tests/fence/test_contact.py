"""How a fence decides by its controllers' contact with the Kubernetes API and by what its peers report of theirs (ADR 8)."""

from __future__ import annotations

import pytest

from brokergroup_operator.fence.contact import MET_SECONDS
from brokergroup_operator.fence.decide import FenceCore, LocalRole
from tests.fence.cores import TICK, earliest_election_seconds
from tests.fence.three_fences import PEERS_PERIOD, RULES, Plane, rules_of, shop, told


def test_a_fence_of_a_new_pod_kills_nothing_before_it_has_heard_of_contact() -> None:
    """No controller granted its broker a role: that takes a commit."""
    core = FenceCore(RULES, started_at=0.0)
    for period in range(200):
        now = 1.0 + period * 0.5
        core.controller_answered(now, told(1), asked_at=now, api_silence_seconds=100.0 + now)
        core.peer_answered(now, 2, 0.1, 0.1)
        core.peer_answered(now, 3, 0.1, 0.1)
        assert core.look(now) is None
    assert core.asks_others(now) == ()


def master_without_contact(*, for_seconds: float, words: dict[int, float | None]) -> FenceCore:
    """Return a fence whose controller lost the API at 0; the peers answered at 0 that they hear one, and now these words."""
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
    """The controller goes on naming the broker from its copy, and the broker's next process has no role."""
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
    ids=[
        "an earlier release",
        "in contact",
        "cut off later",
        "cut off with the master",
        "cut off before the master",
        "never in contact",
    ],
)
def test_a_master_lives_only_if_each_peer_lost_contact_as_long_ago(word: float | None, *, dies: bool) -> None:
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
def test_a_fence_that_stopped_answering_long_before_shows_no_cut(quiet_for: float, *, dies: bool) -> None:
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
    """The peer answered in today's form: the earlier form alone, which is about controllers, excuses nothing."""
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
    """It could not ask until past the bound. The answer that waited in its socket is older than that, the next one is not."""
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


def test_a_broker_is_no_known_slave_by_the_word_of_a_controller_without_contact() -> None:
    """The controller's copy may be older than an election of this broker: an order to stop the broker waits."""
    core = FenceCore(RULES, started_at=-100.0)
    core.controller_answered(0.0, told(1, master=2), asked_at=0.0, api_silence_seconds=0.2)
    assert core.is_known_as_slave(0.1)
    core.controller_answered(2.0, told(1, master=2), asked_at=2.0, api_silence_seconds=2.2)
    assert not core.is_known_as_slave(2.1)


def test_a_controllers_silence_counts_back_from_the_question() -> None:
    """A frozen controller answers as it wakes: its silence has grown since the fence asked."""
    core = FenceCore(RULES, started_at=-100.0)
    core.controller_answered(4.0, told(1), asked_at=1.0, api_silence_seconds=3.2)
    assert core.no_contact_for_seconds(4.0) == pytest.approx(6.2)
    core.controller_answered(4.1, told(1), asked_at=4.0, api_silence_seconds=0.1)
    assert core.no_contact_for_seconds(4.1) == pytest.approx(0.2)
    core.controller_answered(4.2, told(1), asked_at=4.1, api_silence_seconds=50.0)
    assert core.no_contact_for_seconds(4.2) == pytest.approx(0.3), "of any controller"
