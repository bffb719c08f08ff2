"""Members that return with less data than before (safety rule 2) lose their seats at once, and never become master that way."""

import asyncio

from brokergroup_operator.controller.plane import ControllerPlane
from tests.controller.conftest import record_of, snapshot_of
from tests.controller.world import World, knows
from tests.support.fake_broker import FakeBroker, eventually

WRITTEN = 100_000


async def _three_with_data(group: World) -> tuple[ControllerPlane, list[FakeBroker]]:
    plane, brokers = await group.serving(mark_pause_seconds=0.05)
    group.write(WRITTEN)
    await eventually(lambda: _marks(plane) == {1, 2, 3}, what="what all three hold to be written down")
    return plane, brokers


def _marks(plane: ControllerPlane) -> set[int]:
    record = record_of(plane)
    return {one for one, replica in record.replicas.items() if replica.held_offset == WRITTEN}


async def test_a_master_without_its_log_is_deposed_and_its_successor_told(group: World) -> None:
    """Its new process registers before a plane missed the old one; it must not lead."""
    plane, (first, _, _) = await _three_with_data(group)
    bare = await first.restarted(wiped=True)
    await eventually(lambda: snapshot_of(plane).writable and record_of(plane).master_broker_id != 1)
    assert set(group.notes.masters.values()) <= {1, None, 2, 3}
    assert group.master().broker_id in (2, 3)
    assert group.master().max_offset == WRITTEN
    assert not bare.is_master
    record = record_of(plane)
    assert [epoch for epoch, master in group.notes.masters.items() if master == 1] == [1]
    bare.max_offset = WRITTEN  # it has copied all data
    await eventually(lambda: record_of(plane).sync_state_set == {1, 2, 3}, what="it to be in sync again")
    assert record_of(plane).master_epoch == record.master_epoch


async def _two_planes_and_a_master_that_one_has_not_heard_of_late(group: World) -> FakeBroker:
    """The first plane has recorded the data marks of all three; the second knows them only from the record."""
    one, other = await group.several(2, mark_pause_seconds=0.05)
    first, _, _ = await group.three()
    await knows(one, other)
    first.unheard_at = {other.address}
    group.write(WRITTEN)
    await eventually(lambda: _marks(one) == _marks(other) == {1, 2, 3}, what="both planes to know what all three hold")
    first.silent, first.unheard_at = True, {one.address}
    return first


async def test_a_heartbeat_from_before_another_planes_mark_is_no_loss(group: World) -> None:
    """Seen on two real nodes: a living master was replaced 0.26 s after another plane had recorded its data mark."""
    first = await _two_planes_and_a_master_that_one_has_not_heard_of_late(group)
    first.max_offset = 1  # the state when this heartbeat was sent
    await first.heartbeat()
    first.max_offset = WRITTEN
    first.unheard_at = set()
    for _ in range(10):
        await first.heartbeat()
        await asyncio.sleep(0.05)
    assert group.notes.seats_lost == []
    assert group.notes.masters == {0: None, 1: 1}


async def test_a_loss_of_what_only_another_plane_had_heard_is_told_by_the_next_heartbeat(group: World) -> None:
    first = await _two_planes_and_a_master_that_one_has_not_heard_of_late(group)
    first.max_offset, first.silent = 1, False
    await eventually(lambda: 1 in group.notes.seats_lost, what="the loss to be seen by the plane that hears of it")
    await eventually(lambda: [*group.notes.masters.values()][-1] in (2, 3), what="another master")


async def test_a_member_without_its_log_loses_its_seat_and_is_taken_in_again(group: World) -> None:
    plane, (_, _, third) = await _three_with_data(group)
    third.group.brokers[1].propose_set = _never  # type: ignore[method-assign]
    before = record_of(plane)
    bare = await third.restarted(wiped=True)
    await eventually(lambda: group.notes.seats_lost == [3], what="the loss to be seen")
    await eventually(lambda: record_of(plane).sync_state_set == {1, 2})
    record = record_of(plane)
    assert (record.master_broker_id, record.master_epoch) == (1, before.master_epoch)
    assert record.sync_state_set_epoch > before.sync_state_set_epoch
    assert bare.broker_id == 3


async def _never() -> None:
    return


async def test_a_master_deposed_in_office_is_told_before_anybody_else(group: World) -> None:
    """Hole C: while a third replica is linked to it, all that the two acknowledge is lost when it ends."""
    plane, (first, _, _) = await _three_with_data(group)
    group.journal.clear()
    first.epoch_file, first.max_offset = 0, 0  # the same process, an empty disk
    await eventually(lambda: snapshot_of(plane).writable and record_of(plane).master_broker_id != 1)
    assert group.notes.seats_lost == [1]
    told = [line for line in group.journal if line.startswith("1008")]
    assert told[0] == "1008 to 1"
    assert set(told) == {"1008 to 1", "1008 to 2", "1008 to 3"}
    assert not first.is_master


async def test_the_last_to_return_leads_if_only_it_has_the_data(group: World) -> None:
    """All members die; the first to return has an empty disk. No member leads until one with the data is back."""
    plane, brokers = await _three_with_data(group)
    for broker in brokers:
        await broker.kill()
    await eventually(lambda: snapshot_of(plane).live == {})
    returning = asyncio.create_task(brokers[0].restarted(wiped=True))
    await eventually(lambda: 1 in snapshot_of(plane).live, what="the empty disk to be heard")
    await eventually(lambda: 1 in group.notes.seats_lost, what="the empty disk to be seen")
    await eventually(lambda: record_of(plane).granted_master_id is None, what="the last master to be missed")
    epoch = record_of(plane).master_epoch
    others = [asyncio.create_task(broker.restarted()) for broker in brokers[1:]]
    async with asyncio.timeout(15):
        await asyncio.gather(returning, *others)
    await eventually(lambda: record_of(plane).granted_master_id in (2, 3), what="one with the data to lead")
    assert record_of(plane).master_epoch > epoch
    assert 1 not in [group.notes.masters[one] for one in group.notes.masters if one > 1]


async def test_marks_are_written_together_and_seldom(group: World) -> None:
    plane, _ = await _three_with_data(group)
    await eventually(lambda: record_of(plane).sync_state_set == {1, 2, 3})
    before, heard = len(group.notes.records), group.master().beats
    for number in range(1, 40):
        group.write(WRITTEN + number)
        await asyncio.sleep(0.01)
    assert len(group.notes.records) == before, "a few bytes more are no news"
    assert group.master().beats > heard + 3


async def test_an_election_asked_for_before_the_first_heartbeat_waits_for_it(group: World) -> None:
    """A starting broker's 1002 overtakes its heartbeat; an immediate answer would be 2012, and cost 5 s."""
    _, brokers = await _three_with_data(group)
    for broker in brokers:
        await broker.kill()
    late = FakeBroker(group, broker_id=2, epoch_file=brokers[1].epoch_file, max_offset=WRITTEN)
    beat = late.heartbeat
    late.heartbeat = _never  # type: ignore[method-assign]
    starting = asyncio.create_task(late.start())
    await eventually(lambda: 1002 in late.tried, what="the question")
    await asyncio.sleep(0.1)
    await beat()
    late.heartbeat = beat  # type: ignore[method-assign]
    async with asyncio.timeout(15):
        await starting
    assert late.is_master
    assert late.tried.count(1002) == 1, "the first question was answered with a master"


async def test_two_heartbeats_that_overtake_each_other_cost_no_seat(group: World) -> None:
    """Heartbeats are one-way and come from several threads of a Java broker: the older one may arrive last."""
    plane, (_, _, third) = await _three_with_data(group)
    third.silent = True
    third.max_offset = WRITTEN // 2
    await third.heartbeat()
    await eventually(lambda: snapshot_of(plane).live[3].doubted, what="the older report to be doubted")
    third.max_offset = WRITTEN
    third.silent = False
    await eventually(lambda: snapshot_of(plane).live[3].has_reported, what="the next one to decide")
    assert group.notes.seats_lost == []
    assert 3 in record_of(plane).sync_state_set


async def test_less_that_is_said_twice_costs_the_seat(group: World) -> None:
    """As from a new process that registered at another controller."""
    _, (_, _, third) = await _three_with_data(group)
    third.max_offset = WRITTEN // 2
    await eventually(lambda: group.notes.seats_lost == [3], what="the loss to be seen")
