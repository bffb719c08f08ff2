"""What the fence says of its broker's role: master, slave or alone. The preStop hook waits for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brokergroup_operator.api.failover_fields import MOST_HEARTBEAT_INTERVAL
from brokergroup_operator.controller.settings import PlaneSettings
from brokergroup_operator.fence.decide import FenceCore, LocalRole
from tests.fence.cores import RULES, master_heard_at, told


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
