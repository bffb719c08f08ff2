"""When the fence kills a master that is cut off (ADR 8), with time as a plain number."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brokergroup_operator.fence.decide import FenceCore, Kill, LocalRole, Told
from tests.fence.cores import HEARS, RULES, TICK, earliest_election_seconds, first_kill, master_heard_at, told


def test_a_master_that_hears_a_controller_lives() -> None:
    core = master_heard_at(0.0)
    for period in range(100):
        core.controller_answered(period * 0.5, told(), asked_at=period * 0.5)
        assert first_kill(core, period * 0.5, period * 0.5 + 0.5) is None


def test_an_isolated_master_dies_at_its_timeout_and_only_once() -> None:
    core = master_heard_at(0.0)
    killed = first_kill(core, 0.0, 10.0)
    assert killed is not None
    assert killed == pytest.approx(2.5, abs=2 * TICK)
    core.killed(killed)
    assert first_kill(core, killed, 100.0) is None
    core.controller_answered(100.0, told(), asked_at=100.0)
    assert first_kill(core, 100.0, 110.0) is not None


@pytest.mark.parametrize(
    ("said", "peers", "killed_at"),
    [
        (told(master=2), None, None),
        # All operators are down, for any length of time.
        (told(), {2: 0.2, 3: -0.2}, None),
        # An unreachable member of the set may be on the other side; one that had left the set and was dead needs no word.
        (told(), {2: 0.0}, 2.5),
        (told(in_sync=(1, 2)), {2: 0.0}, None),
        (told(in_sync=(1, 2), alive=(1, 2, 3)), {2: 0.0}, 2.5),
        (told(alive=(1, 2)), {2: 0.0}, 2.5),
        (told(in_sync=(1,)), None, None),
    ],
    ids=["a slave", "no peer hears a controller", "a peer is unreachable", "it had left the set", "it may join the set",
         "it is in the set, and dead", "alone in its set"],
)  # fmt: skip
def test_an_isolated_broker_is_killed_only_where_another_could_be_elected(
    said: Told, peers: dict[int, float] | None, killed_at: float | None
) -> None:
    core = FenceCore(RULES, started_at=-100.0)
    core.controller_answered(0.0, said, asked_at=0.0)
    killed = first_kill(core, 0.0, 120.0, peers=peers)
    assert killed == (None if killed_at is None else pytest.approx(killed_at, abs=2 * TICK))


@pytest.mark.parametrize(
    ("said", "role", "killed"),
    [
        # It was elected after the last question to a controller: only the broker itself knows.
        (told(master=2), LocalRole.MASTER, True),
        (told(), LocalRole.SLAVE, False),
        (told(), LocalRole.SILENT, True),
        (told(), LocalRole.UNKNOWN, True),
        # It never heard a controller that it understands, which may speak only TLS: not every master is killed for that.
        (None, LocalRole.MASTER, False),
    ],
)
def test_the_brokers_own_word_decides_whether_it_is_a_master(
    said: Told | None, role: LocalRole, *, killed: bool
) -> None:
    core = FenceCore(RULES, started_at=0.0)
    if said is not None:
        core.controller_answered(0.0, said, asked_at=0.0)
        assert core.asks_local(2.0)
    core.local_answered(2.0, role, process_age_seconds=100.0)
    assert isinstance(core.look(2.6), Kill) is killed


def test_a_restart_of_all_operators_kills_no_broker() -> None:
    """The peers may hear the new operator a little earlier than this fence."""
    core = master_heard_at(0.0)
    assert first_kill(core, 0.0, 20.0, peers={2: 0.0, 3: 0.0}) is None
    assert first_kill(core, 20.0, 21.0, peers={2: HEARS, 3: 0.0}) is None
    core.controller_answered(21.0, told(), asked_at=21.0)
    assert first_kill(core, 21.0, 23.0) is None


def test_a_master_whose_peer_still_hears_a_controller_dies() -> None:
    core = master_heard_at(0.0)
    now = 0.0
    while now < 5.0:
        for broker_id, silence in ((2, 0.1), (3, now)):
            core.peer_answered(now, broker_id, silence)
        if core.look(now) is not None:
            break
        now += TICK
    assert now == pytest.approx(2.5, abs=2 * TICK)


def test_an_excuse_ends_with_the_peer() -> None:
    """After an outage of all controllers a peer dies: less than fenceTimeout is left."""
    core = master_heard_at(0.0)
    assert first_kill(core, 0.0, 60.0, peers={2: 0.0, 3: 0.0}) is None
    killed = first_kill(core, 60.0, 70.0, peers={2: 0.0})
    assert killed is not None
    assert killed - 60.0 < RULES.fence_timeout_seconds


def test_a_peer_that_was_cut_off_later_does_not_excuse_a_starved_fence() -> None:
    """Starved time is not counted; but a peer that heard a controller long after this fence did is no excuse.

    The peer was cut off 2.5 s later, so controllers still count it as alive when this fence's time is up, and may elect it.
    """
    core = master_heard_at(0.0)
    core.woke(1.5, 1.5, starved_seconds=1.5)
    assert RULES.fence_timeout_seconds < 2.5 < earliest_election_seconds(RULES)
    killed = first_kill(core, 1.5, 20.0, peers={2: 2.5, 3: 2.5})
    assert killed == pytest.approx(RULES.bound_seconds, abs=2 * TICK)


def test_the_heartbeat_that_was_not_sent_any_more_shortens_how_much_later_a_peer_may_be_cut_off() -> None:
    """With rare heartbeats a peer cut off `fenceTimeout` minus one interval later still counts as alive at the election."""
    rules = replace(RULES, heartbeat_interval_seconds=1.0)
    assert rules.blind_seconds(2.5) == 2.5 - (rules.fence_timeout_seconds - 1.0)
    core = FenceCore(rules, started_at=-100.0)
    core.controller_answered(0.0, told(), asked_at=0.0)
    killed = first_kill(core, 0.0, 10.0, peers={2: 1.25, 3: 1.25})
    assert killed is not None
    assert killed == pytest.approx(rules.isolation_seconds, abs=2 * TICK)
    core.controller_answered(20.0, told(), asked_at=20.0)
    assert first_kill(core, 20.0, 30.0, peers={2: 20.75, 3: 20.75}) is None


def test_a_peer_that_heard_a_controller_for_a_moment_is_no_excuse_again() -> None:
    """Its controllers already count this broker as silent, and elect the peer ``fenceTimeout`` after that, heard or not."""
    core = master_heard_at(0.0)
    assert first_kill(core, 0.0, 20.0, peers={2: 0.0, 3: 0.0}) is None
    killed = first_kill(core, 20.0, 60.0, peers={2: 20.1, 3: 0.0})
    assert killed is not None
    assert killed < 20.1 + RULES.fence_timeout_seconds


def test_a_word_that_was_read_late_excuses_from_the_moment_of_its_question_on() -> None:
    """A starved fence reads answers late: they excuse for no longer than if it had read them at once."""
    left = RULES.left_after_excuse_seconds
    core = master_heard_at(0.0)
    assert first_kill(core, 0.0, 60.0, peers={2: 0.0, 3: 0.0}) is None
    core.woke(61.3, 1.3, starved_seconds=1.3)
    for broker_id in (2, 3):
        core.peer_answered(60.4, broker_id, 60.4)
    assert core.look(61.3) is None
    assert first_kill(core, 61.3, 70.0) == pytest.approx(60.4 + left, abs=2 * TICK)


def test_what_is_forgiven_ends_before_another_can_be_elected() -> None:
    core = master_heard_at(0.0)
    for now in range(1, 4):
        core.woke(now, 0.9, starved_seconds=0.9)
        assert core.look(now) is None
    assert first_kill(core, 3.0, 20.0) == pytest.approx(RULES.bound_seconds, abs=2 * TICK)


@pytest.mark.parametrize(
    ("woke_at", "starved_seconds", "killed_at"),
    [
        (4.0, 0.01, 4.0),  # frozen for long: before any other fence is asked
        (1.5, 0.0, 2.5),  # a short freeze costs nothing
        # A busy machine is no freeze: the fence was runnable but got no processor time, so no peer could answer it.
        (1.5, 1.4, 2.5 + 1.4),
        # Half starved is half forgiven: in full, a pod stopped for seconds on a busy machine lived on.
        (3.0, 1.0, 3.5),
        (4.0, 1.4, 4.0),
        (6.0, 6.0, 6.0),  # starved throughout: beyond the bound nothing is forgiven
    ],
)
def test_a_stall_is_forgiven_as_far_as_the_fence_was_starved(
    woke_at: float, starved_seconds: float, killed_at: float
) -> None:
    core = master_heard_at(0.0)
    core.woke(woke_at, woke_at, starved_seconds=starved_seconds)
    assert isinstance(core.look(woke_at), Kill) is (killed_at == woke_at)
    assert first_kill(core, woke_at, 20.0) == pytest.approx(killed_at, abs=2 * TICK)


def test_a_stall_before_the_last_word_of_a_controller_is_nothing_to_forgive() -> None:
    core = master_heard_at(0.0)
    core.woke(1.5, 1.4, starved_seconds=1.4)
    core.controller_answered(2.0, told(), asked_at=2.0)
    assert first_kill(core, 2.0, 20.0) == pytest.approx(2.0 + 2.5, abs=2 * TICK)


def test_an_answer_that_waited_in_a_socket_is_as_old_as_its_question() -> None:
    core = master_heard_at(0.0)
    core.woke(6.0, 5.6, starved_seconds=5.6)
    core.controller_answered(6.0, told(), asked_at=0.4)
    assert isinstance(core.look(6.0), Kill)
    fresh = master_heard_at(0.0)
    fresh.woke(4.0, 3.6, starved_seconds=3.6)
    fresh.controller_answered(4.0, told(), asked_at=0.4)
    assert fresh.look(4.0) is None
    assert first_kill(fresh, 4.0, 20.0) == pytest.approx(0.4 + RULES.bound_seconds, abs=2 * TICK)
    assert fresh.hears_none_for_seconds(4.0) == pytest.approx(3.6)


def test_a_fence_that_never_heard_a_controller_kills_only_a_broker_that_says_it_is_master() -> None:
    """The fence restarted in an isolated pod; a pod that starts without controllers holds no master."""
    starting = FenceCore(RULES, started_at=0.0, heard_before=True)
    assert first_kill(starting, 0.0, 60.0) is None
    restarted = FenceCore(RULES, started_at=0.0, heard_before=True)
    restarted.local_answered(2.0, LocalRole.MASTER, process_age_seconds=100.0)
    assert restarted.look(2.6) is not None


def test_a_controller_that_does_not_know_the_group_is_a_controller() -> None:
    core = master_heard_at(0.0)
    core.controller_answered(2.0, None, asked_at=2.0)
    assert core.look(4.0) is None
