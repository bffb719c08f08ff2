"""A Java master counts on another set than the record's, and goes on proposing from it: it is answered the record's set."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.controller.directory.group_directory import FixedDirectory
from controller_core.settings import ControllerSettings
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.controller_protocol import SyncStateSetBody
from tests.controller.conftest import StartPlane, record_of, snapshot_of
from tests.support.fake_broker import FakeBroker, FakeGroup, eventually

if TYPE_CHECKING:
    from brokergroup_operator.controller.plane import ControllerPlane

STRICT = ControllerSettings(shrink_floor=True, min_in_sync_replicas=2)


async def propose(master: FakeBroker, *members: int) -> int:
    """1001 under the epochs that the master knows; hands back the answer's code."""
    body = SyncStateSetBody(frozenset(members), master.set_epoch).encode()
    answer = await master.ask(
        RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
        body=body,
        masterBrokerId=master.broker_id,
        masterEpoch=master.epoch,
    )
    if answer.code == 0:
        master.set_epoch = SyncStateSetBody.decode(answer.body).sync_state_set_epoch
    return answer.code


async def two_of_three(plane: ControllerPlane, group: FakeGroup) -> FakeBroker:
    """The master of a group whose set is itself and 2, as 3 was away; the test says what it proposes from now on."""
    group.planes = [plane.address]
    master, _, _ = await group.three()
    await eventually(lambda: snapshot_of(plane).writable)
    await master._alter.acquire()
    assert await propose(master, 1, 2) == 0
    return master


@pytest.mark.parametrize("members", [(1, 3), (1, 2)], ids=["adds and drops", "nothing new"])
async def test_who_goes_on_counting_otherwise_is_answered_the_set_of_the_record(
    members: tuple[int, ...], start_plane: StartPlane, group: FakeGroup
) -> None:
    plane = await start_plane(directory=FixedDirectory(settings=STRICT), set_apart_seconds=0.1)
    master = await two_of_three(plane, group)
    set_epoch = master.set_epoch

    async def is_answered() -> bool:
        return await propose(master, *members) == 0

    await eventually(is_answered, what="the master to be told the set again")
    record = record_of(plane)
    assert (record.sync_state_set, record.sync_state_set_epoch, record.master_epoch) == (
        frozenset({1, 2}),
        set_epoch + 1,
        1,
    )
    assert await propose(master, 1, 2, 3) == 0


async def test_nothing_is_committed_for_a_master_that_only_may_not_shrink(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    plane = await start_plane(directory=FixedDirectory(settings=STRICT), set_apart_seconds=0.0)
    master = await two_of_three(plane, group)
    assert [await propose(master, 1) for _ in range(5)] == [2013] * 5
    assert record_of(plane).sync_state_set_epoch == master.set_epoch


async def test_the_set_grows_around_the_dead(start_plane: StartPlane, group: FakeGroup) -> None:
    """Else nobody could join a master of which the only other member is dead: it may neither drop it nor keep it."""
    plane = await start_plane(directory=FixedDirectory(settings=STRICT), set_apart_seconds=0.05)
    master = await two_of_three(plane, group)
    await group.brokers[2].kill()
    await eventually(lambda: 2 not in snapshot_of(plane).live, what="2 to be dead")
    assert await propose(master, 1, 2, 3) == 2006

    async def joins() -> bool:
        return await propose(master, 1, 2, 3) == 0

    await eventually(joins, what="3 to join")
    assert await propose(master, 1, 3) == 0
    assert (record_of(plane).sync_state_set, record_of(plane).master_epoch) == (frozenset({1, 3}), 1)


async def test_what_was_queued_is_refused_and_no_more(start_plane: StartPlane, group: FakeGroup) -> None:
    """Under other epochs it counts anew, and whatever is accepted ends it."""
    plane = await start_plane(directory=FixedDirectory(settings=STRICT), set_apart_seconds=0.0)
    master = await two_of_three(plane, group)
    assert await propose(master, 1, 3) == 2001
    assert await propose(master, 1, 2, 3) == 0
    assert await propose(master, 1, 2, 3) == 2013
    assert await propose(master, 1, 2) == 0
    assert await propose(master, 1, 2) == 2013
    assert record_of(plane).sync_state_set_epoch == master.set_epoch
