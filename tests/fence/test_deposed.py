"""When the fence kills a broker that was deposed, and which record it believes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brokergroup_operator.fence.decide import FenceCore, LocalRole, Told
from tests.fence.cores import RULES, first_kill, master_heard_at, told


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
