"""Members that come back with less than they had (safety rule 2): out of their seats at once, and never master without the data."""

import asyncio

from brokergroup_operator.controller.directory.group_directory import FixedDirectory
from brokergroup_operator.controller.plane import ControllerPlane
from brokergroup_operator.observe.observer import Observer
from brokergroup_operator.records.memory import MemoryRecordStore
from brokergroup_operator.records.store import GroupKey
from controller_core.model import BrokerGroupRecord
from controller_core.settings import ControllerSettings
from tests.controller.conftest import StartPlane, record_of, snapshot_of
from tests.support.fake_broker import FakeBroker, FakeGroup, eventually

STRICT = ControllerSettings(shrink_floor=True, min_in_sync_replicas=2)
WRITTEN = 100_000


class Notes(Observer):
    """Keeps whose seats were lost, and every record."""

    def __init__(self) -> None:
        self.lost: list[int] = []
        self.masters: dict[int, int | None] = {}
        self.writes = 0

    def seat_lost(self, key: GroupKey, broker_id: int, why: str) -> None:
        assert "rule 2" in why
        self.lost.append(broker_id)

    def record_changed(
        self, key: GroupKey, before: BrokerGroupRecord | None, after: BrokerGroupRecord, why: str
    ) -> None:
        self.writes += 1
        self.masters[after.master_epoch] = after.master_broker_id


async def _three_with_data(
    start_plane: StartPlane, group: FakeGroup, notes: Notes, **changes: object
) -> tuple[ControllerPlane, list[FakeBroker]]:
    plane = await start_plane(directory=FixedDirectory(settings=STRICT), observer=notes, **changes)
    group.planes = [plane.address]
    brokers = await group.three()
    await eventually(lambda: snapshot_of(plane).writable)
    group.write(WRITTEN)
    await eventually(lambda: _marks(plane) == {1, 2, 3}, what="what all three hold to be written down")
    return plane, brokers


def _marks(plane: ControllerPlane) -> set[int]:
    record = record_of(plane)
    return {one for one, replica in record.replicas.items() if replica.held_offset == WRITTEN}


async def test_a_master_without_its_log_is_deposed_and_its_successor_told(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    """Its new process registers before anybody missed the old one: it is the last that may lead."""
    notes = Notes()
    plane, (first, _, _) = await _three_with_data(start_plane, group, notes, mark_pause_seconds=0.05)
    bare = await first.restarted(wiped=True)
    await eventually(lambda: snapshot_of(plane).writable and record_of(plane).master_broker_id != 1)
    assert set(notes.masters.values()) <= {1, None, 2, 3}
    assert group.master().broker_id in (2, 3)
    assert group.master().max_offset == WRITTEN
    assert not bare.is_master
    record = record_of(plane)
    assert [epoch for epoch, master in notes.masters.items() if master == 1] == [1]
    bare.max_offset = WRITTEN  # it has copied everything
    await eventually(lambda: record_of(plane).sync_state_set == {1, 2, 3}, what="it to be in sync again")
    assert record_of(plane).master_epoch == record.master_epoch


async def _two_planes_and_a_master_that_one_has_not_heard_of_late(
    start_plane: StartPlane, group: FakeGroup, notes: Notes
) -> FakeBroker:
    """The first plane has written down what all three hold; the second knows it from the record alone."""
    store = MemoryRecordStore()
    settings = {"store": store, "mark_pause_seconds": 0.05}
    directory = FixedDirectory(settings=STRICT)
    one = await start_plane(directory=directory, observer=notes, **settings)
    other = await start_plane(directory=directory, observer=notes, **settings)
    group.planes = [one.address, other.address]
    first, _, _ = await group.three()
    await eventually(lambda: snapshot_of(other).writable and snapshot_of(one).writable)
    first.unheard_at = {other.address}
    group.write(WRITTEN)
    await eventually(lambda: _marks(one) == _marks(other) == {1, 2, 3}, what="both planes to know what all three hold")
    first.silent, first.unheard_at = True, {one.address}
    return first


async def test_a_heartbeat_from_before_another_planes_mark_is_no_loss(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    """Seen on two real nodes: a living master was replaced 0.26 s after another plane had written down what it held."""
    notes = Notes()
    first = await _two_planes_and_a_master_that_one_has_not_heard_of_late(start_plane, group, notes)
    first.max_offset = 1  # as it was when this heartbeat was sent
    await first.heartbeat()
    first.max_offset = WRITTEN
    first.unheard_at = set()
    for _ in range(10):
        await first.heartbeat()
        await asyncio.sleep(0.05)
    assert notes.lost == []
    assert notes.masters == {0: None, 1: 1}


async def test_a_loss_of_what_only_another_plane_had_heard_is_told_by_the_next_heartbeat(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    notes = Notes()
    first = await _two_planes_and_a_master_that_one_has_not_heard_of_late(start_plane, group, notes)
    first.max_offset, first.silent = 1, False
    await eventually(lambda: 1 in notes.lost, what="the loss to be seen by the plane that hears of it")
    await eventually(lambda: notes.masters[max(notes.masters)] in (2, 3), what="another master")


async def test_a_member_without_its_log_loses_its_seat_and_is_taken_in_again(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    notes = Notes()
    plane, (_, _, third) = await _three_with_data(start_plane, group, notes, mark_pause_seconds=0.05)
    third.group.brokers[1].propose_set = _never  # type: ignore[method-assign]
    before = record_of(plane)
    bare = await third.restarted(wiped=True)
    await eventually(lambda: notes.lost == [3], what="the loss to be seen")
    await eventually(lambda: record_of(plane).sync_state_set == {1, 2})
    record = record_of(plane)
    assert (record.master_broker_id, record.master_epoch) == (1, before.master_epoch)
    assert record.sync_state_set_epoch > before.sync_state_set_epoch
    assert bare.broker_id == 3


async def _never() -> None:
    return


async def test_a_master_deposed_in_office_is_told_before_anybody_else(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    """Hole C: while a third replica is linked to it, what the two acknowledge is lost with its end."""
    notes = Notes()
    plane, (first, _, _) = await _three_with_data(start_plane, group, notes, mark_pause_seconds=0.05)
    group.journal.clear()
    first.epoch_file, first.max_offset = 0, 0  # the same process, an empty disk
    await eventually(lambda: snapshot_of(plane).writable and record_of(plane).master_broker_id != 1)
    assert notes.lost == [1]
    told = [line for line in group.journal if line.startswith("1008")]
    assert told[0] == "1008 to 1"
    assert set(told) == {"1008 to 1", "1008 to 2", "1008 to 3"}
    assert not first.is_master


async def test_the_last_to_return_leads_if_only_it_has_the_data(start_plane: StartPlane, group: FakeGroup) -> None:
    """All die; the first to come back has an empty disk. Nobody leads until somebody with the data is back."""
    notes = Notes()
    plane, brokers = await _three_with_data(start_plane, group, notes, mark_pause_seconds=0.05)
    for broker in brokers:
        await broker.kill()
    await eventually(lambda: snapshot_of(plane).live == {})
    returning = asyncio.create_task(brokers[0].restarted(wiped=True))
    await eventually(lambda: 1 in snapshot_of(plane).live and 1 in notes.lost, what="the empty disk to be seen")
    await eventually(lambda: record_of(plane).granted_master_id is None, what="the last master to be missed")
    epoch = record_of(plane).master_epoch
    others = [asyncio.create_task(broker.restarted()) for broker in brokers[1:]]
    async with asyncio.timeout(15):
        await asyncio.gather(returning, *others)
    await eventually(lambda: record_of(plane).granted_master_id in (2, 3), what="one with the data to lead")
    assert record_of(plane).master_epoch > epoch
    assert 1 not in [notes.masters[one] for one in notes.masters if one > 1]


async def test_marks_are_written_together_and_seldom(start_plane: StartPlane, group: FakeGroup) -> None:
    notes = Notes()
    plane, _ = await _three_with_data(start_plane, group, notes, mark_pause_seconds=0.05)
    await eventually(lambda: record_of(plane).sync_state_set == {1, 2, 3})
    before, heard = notes.writes, 0
    for number in range(1, 40):
        group.write(WRITTEN + number)
        heard += 1
        await asyncio.sleep(0.01)
    assert notes.writes == before, "a few bytes more are no news"
    assert heard == 39


async def test_an_election_asked_for_before_the_first_heartbeat_waits_for_it(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    """The 1002 of a starting broker overtakes its heartbeat; answered at once, it would be 2012 and 5 s of waiting."""
    notes = Notes()
    _, brokers = await _three_with_data(start_plane, group, notes, mark_pause_seconds=0.05)
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


async def test_two_heartbeats_that_overtake_each_other_cost_no_seat(start_plane: StartPlane, group: FakeGroup) -> None:
    """They are one-way, and made by several threads of a Java broker: the older one may come last."""
    notes = Notes()
    plane, (_, _, third) = await _three_with_data(start_plane, group, notes, mark_pause_seconds=0.05)
    third.silent = True
    third.max_offset = WRITTEN // 2
    await third.heartbeat()
    await eventually(lambda: snapshot_of(plane).live[3].doubted, what="the older report to be doubted")
    third.max_offset = WRITTEN
    third.silent = False
    await eventually(lambda: snapshot_of(plane).live[3].has_reported, what="the next one to decide")
    assert notes.lost == []
    assert 3 in record_of(plane).sync_state_set


async def test_less_that_is_said_twice_costs_the_seat(start_plane: StartPlane, group: FakeGroup) -> None:
    """As of a new process whose registration another controller took."""
    notes = Notes()
    _, (_, _, third) = await _three_with_data(start_plane, group, notes, mark_pause_seconds=0.05)
    third.max_offset = WRITTEN // 2
    await eventually(lambda: notes.lost == [3], what="the loss to be seen")
