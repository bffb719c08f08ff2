"""When the fence kills: every case of ADR 8, with time as a plain number."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokergroup_operator.api.failover_fields import MOST_HEARTBEAT_INTERVAL
from brokergroup_operator.controller.settings import PlaneSettings
from brokergroup_operator.fence.decide import FenceCore, Kill, LocalRole, Member, Told
from brokergroup_operator.fence.rules import FenceRules

RULES = FenceRules(
    isolation_seconds=2.5, fence_timeout_seconds=2.0, heartbeat_timeout_seconds=3.0, heartbeat_interval_seconds=0.5
)
TICK = 0.05


def told(
    master: int = 1, *, own: int | None = 1, epoch: int = 5, in_sync: tuple[int, ...] = (1, 2, 3),
    alive: tuple[int, ...] | None = None,
) -> Told:  # fmt: skip
    """Return an answer about three replicas; alive are those in sync unless said otherwise."""
    living = in_sync if alive is None else alive
    members = tuple(
        Member(broker_id, f"10.0.0.{broker_id}:10911", in_sync=broker_id in in_sync, alive=broker_id in living)
        for broker_id in (1, 2, 3)
    )
    return Told(own_id=own, master_id=master, master_epoch=epoch, members=members)


def master_heard_at(now: float, *, in_sync: tuple[int, ...] = (1, 2, 3)) -> FenceCore:
    core = FenceCore(RULES, started_at=now - 100)
    core.controller_answered(now, told(in_sync=in_sync), asked_at=now)
    return core


HEARS = float("inf")


def first_kill(core: FenceCore, begin: float, end: float, *, peers: dict[int, float] | None = None) -> float | None:
    """Return the first kill over a span of ticks; ``peers`` answer each tick with the time since which they hear no controller."""
    now = begin
    while now < end:
        for member in core.asks_others(now):
            if peers is not None and member.broker_id in peers:
                core.peer_answered(now, member.broker_id, max(0.0, now - peers[member.broker_id]))
        if core.look(now) is not None:
            return now
        now += TICK
    return None


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
    ids=["a slave", "no controller for anybody", "a peer is unreachable", "it had left the set", "it may join the set",
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


def test_a_restart_of_all_operators_kills_nobody() -> None:
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


def test_starved_or_not_the_excuse_is_about_who_was_cut_off_when_we_were() -> None:
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


def test_a_peer_that_heard_a_controller_for_a_moment_excuses_nobody_again() -> None:
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


def test_a_frozen_broker_that_was_deposed_dies() -> None:
    core = master_heard_at(0.0)
    core.controller_answered(0.5, told(master=2, epoch=6), asked_at=0.5)
    assert core.asks_local(0.5)
    assert core.role_word == "master"
    core.local_answered(1.0, LocalRole.SILENT, process_age_seconds=100.0)
    assert core.look(1.5) is None
    core.local_answered(2.0, LocalRole.SILENT, process_age_seconds=101.0)
    assert core.look(2.1) is not None


def test_a_deposed_broker_that_is_starting_is_left_alone() -> None:
    """It died, so another master was elected, and its next process does not answer yet."""
    core = master_heard_at(0.0)
    core.controller_answered(0.5, told(master=2, epoch=6), asked_at=0.5)
    for now in range(1, 20):
        core.controller_answered(now, told(master=2, epoch=6), asked_at=now)
        core.local_answered(now, LocalRole.SILENT, process_age_seconds=now)
        assert core.look(now + 0.1) is None


def test_a_process_that_began_after_its_mastership_is_not_deposed_however_long_it_starts() -> None:
    """A Java master that died reads its log again for minutes, and its port is closed: its fence killed it after 31 s."""
    core = master_heard_at(0.0)
    core.controller_answered(0.5, told(master=2, epoch=6), asked_at=0.5)
    core.local_answered(0.6, LocalRole.SILENT, process_age_seconds=None)
    assert core.role_word == "master", "the process that was master may live"
    for now in range(1, 120):
        core.controller_answered(now, told(master=2, epoch=6), asked_at=now)
        core.local_answered(now, LocalRole.SILENT, process_age_seconds=now - 0.3)
        assert core.look(now + 0.1) is None, now
    core.controller_answered(120, told(master=2, epoch=6), asked_at=120)
    assert core.role_word == "slave", "nothing has to be handed over"
    assert not core.asks_local(120.0)


@pytest.mark.parametrize("started_at", [0.0, -0.1])
def test_a_process_that_may_have_been_master_is_deposed(started_at: float) -> None:
    core = master_heard_at(0.0)
    for now in (0.5, 1.5, 40.0, 41.5):
        core.controller_answered(now, told(master=2, epoch=6), asked_at=now)
        core.local_answered(now, LocalRole.SILENT, process_age_seconds=now - started_at)
    assert core.look(41.5) is not None


def test_a_frozen_broker_is_deposed_also_if_there_was_no_master_for_a_while() -> None:
    """No member could be elected when it fell silent; its successor came later, under the epoch after that."""
    core = master_heard_at(0.0)
    core.controller_answered(0.5, replace(told(epoch=6), master_id=None), asked_at=0.5)
    for now in (1.0, 2.5):
        core.local_answered(now, LocalRole.SILENT, process_age_seconds=100.0)
        assert core.look(now) is None, "it would gain nothing: no other one is master"
    core.controller_answered(9.0, told(master=2, epoch=7), asked_at=9.0)
    assert core.role_word == "master", "it has not stepped down"
    core.local_answered(9.2, LocalRole.SILENT, process_age_seconds=100.0)
    core.local_answered(10.2, LocalRole.SILENT, process_age_seconds=101.0)
    assert core.look(10.2) is not None


def test_a_controller_whose_record_is_old_keeps_no_deposed_broker_alive() -> None:
    """All controllers are asked at once when one is lost, and one of them may be cut off from the API."""
    core, now, verdict = master_heard_at(0.0), 0.5, None
    while now < 20.0 and verdict is None:
        core.controller_answered(now, told(master=2, epoch=6), asked_at=now)
        core.controller_answered(now + 0.1, told(), asked_at=now + 0.1)
        core.local_answered(now + 0.1, LocalRole.MASTER, process_age_seconds=100.0)
        verdict = core.look(now + 0.1)
        now += 0.5
    assert verdict is not None
    assert "broker 2 is master of epoch 6" in verdict.why
    heard_seconds = core.hears_none_for_seconds(now)
    assert heard_seconds is not None
    assert heard_seconds < 1.0, "it is a controller all the same"


def master_of_a_record_that_was_restored(before: Told) -> tuple[FenceCore, float]:
    """Return the fence of a broker that is master of epoch 7, where the record said this under a higher one; and the time."""
    core = FenceCore(RULES, started_at=-100.0)
    core.controller_answered(0.5, before, asked_at=0.5)
    now = 1.0
    while now < 60.0:
        core.controller_answered(now, told(epoch=7), asked_at=now)
        assert core.look(now) is None
        now += 0.5
    return core, now


def test_a_record_that_was_restored_with_a_lower_epoch_is_believed_in_the_end() -> None:
    """No broker may have been told the highest one. The fence took its broker for a slave as long as the pod lived, and an isolated
    master that doesn't answer was not killed.
    """
    core, now = master_of_a_record_that_was_restored(told(master=2, epoch=9))
    assert core.role_word == "master"
    assert first_kill(core, now, now + 10.0) is not None


@pytest.mark.parametrize("master", [1, 2])
def test_a_master_of_a_record_that_was_restored_is_deposed_like_any_other(master: int) -> None:
    core, now = master_of_a_record_that_was_restored(told(master=master, epoch=9))
    for later in (0.0, 0.5, 1.6):
        core.controller_answered(now + later, told(master=2, epoch=8), asked_at=now + later)
        core.local_answered(now + later, LocalRole.SILENT, process_age_seconds=200.0)
    assert core.look(now + 1.6) is not None


@pytest.mark.parametrize("until", [20.0, 60.0], ids=["not believed", "believed"])
def test_an_old_record_does_not_unmake_a_master(until: float) -> None:
    """It woke from a freeze unfenced: by the old word it was a slave. Its SIGTERM did not wait for the move of its role either."""
    core = FenceCore(RULES, started_at=-100.0)
    core.controller_answered(0.0, told(epoch=7), asked_at=0.0)
    now = 0.5
    while now < until:
        assert not core.controller_answered(now, told(master=2, epoch=6), asked_at=now), (
            "the others are asked beside it"
        )
        assert core.look(now) is None
        assert core.role_word == "master"
        assert not core.is_known_as_slave(now)
        now += 0.5
    assert core.look(until + 60.0) is not None, "it may be master, and heard no controller"


def test_the_higher_epoch_counts_again_once_it_is_heard() -> None:
    core = FenceCore(RULES, started_at=-100.0)
    core.controller_answered(0.0, told(epoch=7), asked_at=0.0)
    for now in range(1, 60):
        core.controller_answered(now, told(master=2, epoch=6), asked_at=now)
    assert core.controller_answered(60.0, told(epoch=7), asked_at=60.0)
    assert core.told == told(epoch=7)
    assert not core.controller_answered(60.5, told(master=2, epoch=6), asked_at=60.5)
    assert core.told == told(epoch=7)


def test_the_first_old_word_after_a_silence_is_not_believed() -> None:
    core = FenceCore(RULES, started_at=-100.0)
    core.controller_answered(0.0, told(master=2, epoch=7), asked_at=0.0)
    core.controller_answered(50.0, told(epoch=6), asked_at=50.0)
    assert core.told == told(master=2, epoch=7)


def test_a_master_that_has_stepped_down_is_a_slave_by_an_old_word_too() -> None:
    core = FenceCore(RULES, started_at=-100.0)
    core.controller_answered(0.0, told(epoch=7), asked_at=0.0)
    for now in range(1, 60):
        core.controller_answered(now, told(master=2, epoch=6), asked_at=now)
    assert core.asks_local(60.0)
    core.local_answered(60.0, LocalRole.SLAVE, process_age_seconds=500.0)
    assert core.role_word == "slave"


def test_an_old_record_is_not_believed_while_a_newer_one_is_heard() -> None:
    core = FenceCore(RULES, started_at=-100.0)
    for now in range(120):
        assert core.controller_answered(now, told(master=2, epoch=6), asked_at=now)
        assert not core.controller_answered(now + 0.5, told(), asked_at=now + 0.5)
        assert core.role_word == "slave"


def test_a_deposed_broker_that_steps_down_is_left_alone() -> None:
    core = master_heard_at(0.0)
    core.controller_answered(0.5, told(master=2, epoch=6), asked_at=0.5)
    core.local_answered(0.6, LocalRole.MASTER, process_age_seconds=100.0)
    assert core.look(0.7) is None
    core.local_answered(1.0, LocalRole.SLAVE, process_age_seconds=100.0)
    assert first_kill(core, 1.0, 20.0) is None
    core.controller_answered(20.0, told(master=2, epoch=6), asked_at=20.0)
    assert not core.asks_local(20.1)
    assert core.role_word == "slave"


def _stepped_down_at(now: float, *, in_sync: tuple[int, ...]) -> FenceCore:
    core = master_heard_at(now - 0.5)
    core.controller_answered(now - 0.1, told(master=2, epoch=6, in_sync=in_sync), asked_at=now - 0.1)
    core.local_answered(now, LocalRole.SLAVE, process_age_seconds=100.0, last_read_ms=5_000)
    return core


def _role_at(core: FenceCore, now: float, *, last_read_ms: int, in_sync: tuple[int, ...] = (1, 2, 3)) -> str:
    """Return what the preStop hook reads after both answers of this time."""
    core.controller_answered(now, told(master=2, epoch=6, in_sync=in_sync), asked_at=now)
    assert core.asks_local(now)
    core.local_answered(now, LocalRole.SLAVE, process_age_seconds=100.0, last_read_ms=last_read_ms)
    assert core.look(now) is None
    return core.role_word


def test_a_former_master_is_handed_over_when_it_is_linked_and_in_the_set() -> None:
    """A stopping Java slave that lost its first link stayed in the set, and each send waited for it for 3.9 s (measured)."""
    core = _stepped_down_at(1.0, in_sync=(2,))
    assert core.role_word == "master"
    assert _role_at(core, 1.2, last_read_ms=5_100, in_sync=(2, 3)) == "master", "linked, and not in the set yet"
    assert _role_at(core, 1.4, last_read_ms=5_100) == "master", "in the set, but its link has ended"
    assert _role_at(core, 1.6, last_read_ms=5_100) == "master"
    assert _role_at(core, 1.8, last_read_ms=5_800) == "slave"
    assert not core.asks_local(1.9)


def test_a_link_that_ended_before_it_was_in_the_set_hands_nothing_over() -> None:
    """The new master's 1001 is under way while the first link ends: it was read from since the last answer, and is over."""
    core = _stepped_down_at(1.0, in_sync=(2,))
    assert _role_at(core, 1.2, last_read_ms=5_100, in_sync=(2,)) == "master"
    core.controller_answered(1.3, told(master=2, epoch=6, in_sync=(2, 1)), asked_at=1.3)
    assert core.look(1.3) is None
    assert core.role_word == "master", "the link has not been seen since"
    assert _role_at(core, 1.4, last_read_ms=5_150) == "master", "it may have ended before this answer"
    assert _role_at(core, 1.6, last_read_ms=0) == "master", "a Java slave without a link"
    assert _role_at(core, 1.8, last_read_ms=5_800) == "master", "it dials again"
    assert _role_at(core, 2.0, last_read_ms=5_900) == "slave"


def test_a_former_master_that_leaves_the_set_again_is_waited_for() -> None:
    core = _stepped_down_at(1.0, in_sync=(1, 2))
    assert _role_at(core, 1.2, last_read_ms=5_100, in_sync=(2,)) == "master"
    assert _role_at(core, 1.4, last_read_ms=5_200) == "master"
    assert _role_at(core, 1.6, last_read_ms=5_300) == "slave"


def test_a_clock_that_jumps_back_holds_a_former_master_for_one_answer_more() -> None:
    core = _stepped_down_at(1.0, in_sync=(1, 2))
    assert _role_at(core, 1.2, last_read_ms=1_000) == "master"
    assert _role_at(core, 1.4, last_read_ms=1_200) == "slave"


def test_a_former_master_that_does_not_come_back_is_waited_for_no_longer_than_its_time() -> None:
    core = _stepped_down_at(1.0, in_sync=(2,))
    end = 1.0 + RULES.rejoining_seconds
    assert _role_at(core, end - 0.1, last_read_ms=5_000, in_sync=(2,)) == "master"
    core.local_answered(end, LocalRole.SILENT, process_age_seconds=100.0)
    assert core.look(end) is None
    assert core.role_word == "slave"


def test_a_broker_that_was_killed_has_nothing_to_hand_over() -> None:
    core = master_heard_at(0.0)
    core.killed(0.0)
    core.controller_answered(0.5, told(master=2, epoch=6), asked_at=0.5)
    assert core.role_word == "slave"


@pytest.mark.parametrize("ended_by", ["its death", "its election"])
def test_a_former_master_is_waited_for_no_more_after(ended_by: str) -> None:
    core = _stepped_down_at(1.0, in_sync=(2,))
    if ended_by == "its death":
        core.killed(1.0)
    else:
        core.controller_answered(1.5, told(epoch=7), asked_at=1.5)
    core.controller_answered(2.0, replace(told(epoch=8), master_id=None), asked_at=2.0)
    assert core.role_word == "slave"


def test_a_master_with_no_other_replica_alive_for_long_enough_is_alone() -> None:
    """The preStop hook waits for a new master: for a deleted group's last broker it waited 20 s in vain."""
    core = master_heard_at(0.0)
    for now in (1.0, 2.0, 4.9):
        core.controller_answered(now, told(in_sync=(1,)), asked_at=now)
        assert core.role_word == "master", "a controller that has just started may not have heard the others yet"
    core.controller_answered(5.0, told(in_sync=(1,)), asked_at=5.0)
    assert core.role_word == "alone"
    core.controller_answered(5.1, told(), asked_at=5.1)
    assert core.role_word == "master", "another one is there that can take over"
    core.controller_answered(6.0, told(in_sync=(1,)), asked_at=6.0)
    assert core.role_word == "master"


def test_a_master_is_not_called_alone_before_a_new_controller_can_have_heard_the_others() -> None:
    """Its SIGTERM would not wait for the move of its role: a drained node may have had the operator and the master."""
    heard_after_seconds = PlaneSettings().broker_rescan_seconds + MOST_HEARTBEAT_INTERVAL / 1000
    assert RULES.alone_seconds >= heard_after_seconds


def test_a_master_whose_whole_group_stops_is_alone_at_once() -> None:
    """In a deleted or hibernated group no member is elected, so the preStop hook has nothing to wait for."""
    core = master_heard_at(0.0)
    core.controller_answered(0.5, replace(told(), stops=True), asked_at=0.5)
    assert core.role_word == "alone"
    core.controller_answered(1.0, told(), asked_at=1.0)
    assert core.role_word == "master", "the stop was revoked"


@pytest.mark.parametrize("stops", [True, False], ids=["its group stops", "no other one is alive"])
def test_a_slave_is_a_slave(stops: bool) -> None:
    core = FenceCore(RULES, started_at=0.0)
    for now in range(10):
        core.controller_answered(now, replace(told(master=2, in_sync=(1,)), stops=stops), asked_at=now)
    assert core.role_word == "slave"


def test_a_broker_is_known_as_slave_by_an_answer_just_received_and_by_nothing_else() -> None:
    """An order to stop it waits for that: a fence that has just started, or is cut off, may have a master beside it."""
    core = FenceCore(RULES, started_at=0.0, heard_before=True)
    assert not core.is_known_as_slave(0.1), "no controller was heard"
    core.controller_answered(1.0, told(master=2), asked_at=1.0)
    assert core.is_known_as_slave(1.1)
    assert not core.is_known_as_slave(1.0 + RULES.asking_others_after_seconds), "it may have been elected meanwhile"
    core.controller_answered(5.0, None, asked_at=5.0)
    assert not core.is_known_as_slave(5.1), "the controller does not know the group"
    for unsure in (told(), told(master=2, own=None), replace(told(), master_id=None)):
        core.controller_answered(6.0, unsure, asked_at=6.0)
        assert not core.is_known_as_slave(6.1)
    deposed = master_heard_at(0.0)
    deposed.controller_answered(0.5, told(master=2, epoch=6), asked_at=0.5)
    assert not deposed.is_known_as_slave(0.6), "it has not stepped down"
    deposed.local_answered(0.7, LocalRole.SLAVE, process_age_seconds=100.0)
    assert not deposed.is_known_as_slave(0.8), "it is not linked to its new master"
    core.controller_answered(7.0, told(master=2), asked_at=7.0)
    core.killed(7.0)
    assert not core.is_known_as_slave(7.1)


def test_a_deposed_broker_that_never_steps_down_dies() -> None:
    core = master_heard_at(0.0)
    now = 0.5
    while now < 20.0:
        core.controller_answered(now, told(master=2, epoch=6), asked_at=now)
        core.local_answered(now, LocalRole.MASTER, process_age_seconds=100.0)
        if core.look(now) is not None:
            break
        now += 0.5
    assert 0.5 + RULES.deposed_master_seconds <= now < 10.0


def test_a_fence_that_never_heard_anybody_kills_only_a_broker_that_says_it_is_master() -> None:
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


def earliest_election_seconds(rules: FenceRules) -> float:
    """Return the earliest election after the cut: the last heartbeat left one interval before the cut."""
    return rules.heartbeat_timeout_seconds + rules.fence_timeout_seconds - rules.heartbeat_interval_seconds


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
def test_who_is_starved_for_less_than_the_bound_at_a_time_kills_nobody(rules: FenceRules, gaps: list[float]) -> None:
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
    cut_us=st.just(10.0),
    cut_other=st.floats(4.0, 20.0),
    isolation=st.floats(0.5, 10.0),
    fence_timeout=st.floats(0.1, 10.0),
    heartbeat=st.floats(0.5, 10.0),
    interval=st.floats(0.1, 5.0),
    starved=st.floats(0.0, 10.0),
)
def test_whoever_can_be_elected_finds_us_dead(
    cut_us: float,
    cut_other: float,
    isolation: float,
    fence_timeout: float,
    heartbeat: float,
    interval: float,
    starved: float,
) -> None:
    """Two replicas are cut off, the other possibly later: it is elected only after this broker's death, however starved.

    The controllers elect at ``cut_us - interval + heartbeat + fence_timeout`` at the earliest,
    and only a member heard within ``heartbeat``.
    """
    rules = FenceRules(isolation, fence_timeout, heartbeat, interval)
    # A kill comes at the first look after isolation or bound. The CRD refuses settings without time until the election, but not
    # settings with less than two looks: that stays open (docs/concepts/architecture.md).
    left = min(earliest_election_seconds(rules) - isolation, fence_timeout / 3)
    if 2 * interval > heartbeat or left <= 2 * TICK:
        return
    core = FenceCore(rules, started_at=0.0)
    core.controller_answered(cut_us, told(in_sync=(1, 2)), asked_at=cut_us)
    core.woke(cut_us + starved, starved, starved_seconds=starved)
    elected_at = cut_us + earliest_election_seconds(rules)
    other_is_live = cut_other + heartbeat > elected_at
    died_at = first_kill(core, cut_us, elected_at, peers={2: cut_other})
    if other_is_live:
        assert died_at is not None


@given(isolation=st.floats(0.5, 10.0), fence_timeout=st.floats(0.3, 10.0), heals=st.floats(0.0, 20.0))
def test_after_an_outage_of_all_who_is_heard_first_finds_us_dead(
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
