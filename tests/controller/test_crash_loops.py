"""A master that crashes again and again is passed over for longer and longer, while somebody else can lead (F38)."""

from functools import partial

import pytest

from brokergroup_operator.controller.directory.group_directory import FixedDirectory
from brokergroup_operator.controller.group.notes import CrashLoops
from controller_core.settings import ControllerSettings
from tests.controller.conftest import StartPlane, record_of, snapshot_of
from tests.support.fake_broker import FakeGroup, eventually

STRICT = ControllerSettings(shrink_floor=True, min_in_sync_replicas=2)


def _lost_at(*times_seconds: float) -> CrashLoops:
    loops = CrashLoops()
    for epoch, now_seconds in enumerate(times_seconds, start=1):
        loops.master_lost(1, epoch, now_seconds)
    return loops


@pytest.mark.parametrize(
    ("lost_at", "penalty_seconds"),
    [((0.0,), 0.0), ((0.0, 10.0), 60.0), ((0.0, 10.0, 20.0), 120.0), ((0.0, 1.0, 2.0, 3.0), 240.0)],
)
def test_the_penalty_doubles_with_each_loss(lost_at: tuple[float, ...], penalty_seconds: float) -> None:
    loops, last = _lost_at(*lost_at), lost_at[-1]
    if penalty_seconds:
        assert loops.penalised(last + penalty_seconds - 0.001) == {1}
    assert loops.penalised(last + penalty_seconds) == frozenset()


def test_a_loop_costs_at_most_one_election_a_minute() -> None:
    """It crashes ten seconds after each of its elections, and is elected whenever nobody passes it over."""
    loops, elections = CrashLoops(), list[float]()
    now_seconds, master = 0.0, 1
    while now_seconds < 3600.0:
        if master == 1 and now_seconds % 10.0 == 0.0:
            loops.master_lost(1, len(elections) + 1, now_seconds)
            master = 2 if loops.penalised(now_seconds) else 1
            elections.append(now_seconds)
        elif master == 2 and not loops.penalised(now_seconds):
            master = 1  # the worst case: the other one is lost the moment the penalty ends
            elections.append(now_seconds)
        now_seconds += 1.0
    assert len([at for at in elections if at > 60.0]) <= 60
    assert len(elections) < 20


def test_a_quiet_time_forgives() -> None:
    loops = _lost_at(0.0, 10.0)
    loops.master_lost(1, 3, 10.0 + 60.0 + 601.0)
    assert loops.penalised(10.0 + 60.0 + 601.0) == frozenset()


def test_one_loss_counts_once() -> None:
    loops = CrashLoops()
    for _ in range(5):
        loops.master_lost(1, 7, 1.0)
    assert loops.penalised(1.0) == frozenset()


async def test_a_looping_master_is_passed_over_among_equals(start_plane: StartPlane, group: FakeGroup) -> None:
    """Its process is back before anybody misses it, and an election among equals prefers the old master: once."""
    plane = await start_plane(directory=FixedDirectory(settings=STRICT))
    group.planes = [plane.address]
    await group.three()
    looping = group.master().broker_id
    masters = []

    def has_epoch_above(epoch: int) -> bool:
        return record_of(plane).master_epoch > epoch

    for _ in range(2):
        await eventually(lambda: record_of(plane).sync_state_set == {1, 2, 3}, what="all in sync")
        await eventually(lambda: snapshot_of(plane).writable)
        epoch = record_of(plane).master_epoch
        await group.brokers[looping].restarted()
        await eventually(partial(has_epoch_above, epoch), what="a new epoch")
        await eventually(lambda: snapshot_of(plane).writable)
        masters.append(record_of(plane).master_broker_id)
        if masters[-1] != looping:
            break
    assert masters[-1] != looping


async def test_a_looping_master_that_is_the_only_one_leads(start_plane: StartPlane, group: FakeGroup) -> None:
    plane = await start_plane(directory=FixedDirectory(settings=ControllerSettings()))
    group.planes = [plane.address]
    only = await group.broker(minimum=1)
    for _ in range(4):
        await eventually(lambda: snapshot_of(plane).writable)
        only = await only.restarted()
        await eventually(lambda: snapshot_of(plane).writable, what="it to lead again")
    assert record_of(plane).master_broker_id == 1
