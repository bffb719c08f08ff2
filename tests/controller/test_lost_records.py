"""The record goes back in time, or is gone, under a group that serves (safety rule 3, F28, F29): the group goes on above it."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from brokergroup_operator.controller.directory.group_directory import GroupBinding, Peer
from brokergroup_operator.controller.plane import ControllerPlane
from brokergroup_operator.observe.observer import Observer
from brokergroup_operator.records.memory import MemoryRecordStore
from brokergroup_operator.records.store import GroupKey, StoredRecord
from controller_core.model import BrokerGroupRecord
from controller_core.settings import ControllerSettings
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.controller_protocol import SyncStateSetBody
from tests.controller.conftest import KEY, StartPlane, group_of, record_of, snapshot_of
from tests.support.fake_broker import NAME, FakeBroker, FakeGroup, eventually
from tests.support.pods_directory import PodsDirectory

STRICT = ControllerSettings(shrink_floor=True, min_in_sync_replicas=2, expected_replicas=3)
WRITTEN = 100_000


class Notes(Observer):
    """Keeps what the plane told, and who was ever granted what."""

    def __init__(self) -> None:
        self.floors: list[int] = []
        self.jumps: list[int] = []
        self.adopted: list[int] = []
        self.granted: list[tuple[int, int]] = []

    def epoch_floor_raised(self, key: GroupKey, epoch: int, why: str) -> None:
        assert "rule 3" in why
        self.floors.append(epoch)

    def epoch_jump(self, key: GroupKey, epoch: int) -> None:
        self.jumps.append(epoch)

    def broker_adopted(self, key: GroupKey, broker_id: int) -> None:
        self.adopted.append(broker_id)

    def record_changed(
        self, key: GroupKey, before: BrokerGroupRecord | None, after: BrokerGroupRecord, why: str
    ) -> None:
        if after.granted_master_id is not None and (before is None or before.master_epoch != after.master_epoch):
            self.granted.append((after.master_epoch, after.granted_master_id))


class RestoredStore(MemoryRecordStore):
    """Somebody else's hand: an older copy put back, or the object deleted."""

    def restore(self, record: BrokerGroupRecord | None) -> None:
        if record is None:
            self._records.pop(KEY, None)
            self._tell(KEY, None)
            return
        stored = StoredRecord(record=record, version=str(next(self._versions)), uid=f"restored-{next(self._uids)}")
        self._records[KEY] = stored
        self._tell(KEY, stored.version)


async def _old_group(
    start_plane: StartPlane, group: FakeGroup, store: RestoredStore, notes: Notes, directory: PodsDirectory
) -> tuple[ControllerPlane, BrokerGroupRecord]:
    """A group at epoch 3, and its record as it was at epoch 1."""
    plane = await start_plane(store, directory=directory, observer=notes)
    group.planes = [plane.address]
    for number in range(3):
        host = f"127.64.9.{number + 1}"
        directory.introduce(host, Peer(namespace="standalone", pod_name=f"{NAME}-{number + 1}", group=KEY))
        await group.broker(host=host)
    await eventually(lambda: record_of(plane).sync_state_set == {1, 2, 3}, what="three in sync")
    older = record_of(plane)
    group.write(WRITTEN)

    def has_epoch(epoch: int) -> bool:
        return record_of(plane).master_epoch == epoch

    for epoch in (2, 3):
        dead = group.master()
        await dead.kill()
        await eventually(partial(has_epoch, epoch), what=f"epoch {epoch}")
        await dead.restarted(host=dead.host)
        await eventually(lambda: record_of(plane).sync_state_set == {1, 2, 3}, what="three in sync again")
    await eventually(lambda: all(one.epoch_file == 3 for one in group.brokers.values()), what="all to know epoch 3")
    return plane, older


def _directory() -> PodsDirectory:
    return PodsDirectory(settings=STRICT)


async def _goes_on(plane: ControllerPlane, group: FakeGroup, *, master: FakeBroker, above: int) -> None:
    await eventually(
        lambda: (
            (now := plane.snapshot(KEY)) is not None
            and now.record is not None
            and now.record.master_epoch > above
            and now.writable
            and now.record.sync_state_set == {1, 2, 3}
        ),
        what=f"the group to be whole again above epoch {above}",
    )
    record = record_of(plane)
    assert record.master_epoch > above
    assert record.master_broker_id == master.broker_id, "who acted as master has what was acknowledged last"
    assert group.master() is master
    assert sorted(record.replicas) == [1, 2, 3]
    assert record.next_broker_id == 4


async def test_a_record_restored_from_an_older_copy_is_continued_above_what_brokers_know(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    store, notes = RestoredStore(), Notes()
    plane, older = await _old_group(start_plane, group, store, notes, _directory())
    master = group.master()
    master.max_offset += 10  # what nobody else has reported yet
    store.restore(older)
    await _goes_on(plane, group, master=master, above=3)
    assert len(notes.floors) == 1
    assert notes.floors[0] > 3
    assert all(epoch <= 3 or master.broker_id == granted for epoch, granted in notes.granted)


async def test_a_set_that_was_restored_is_noticed_by_the_masters_next_proposal(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    """No epoch fell, so no heartbeat tells: but 3 is in the set again, and lacks what was acknowledged without it."""
    store, notes, directory = RestoredStore(), Notes(), _directory()
    plane = await start_plane(store, directory=directory, observer=notes)
    group.planes = [plane.address]
    for number in range(3):
        host = f"127.64.8.{number + 1}"
        directory.introduce(host, Peer(namespace="standalone", pod_name=f"{NAME}-{number + 1}", group=KEY))
        await group.broker(host=host)
    await eventually(lambda: record_of(plane).sync_state_set == {1, 2, 3}, what="three in sync")
    older = record_of(plane)
    master, third = group.master(), group.brokers[3]
    await third.kill()
    master.linked.discard(3)
    await master.propose_set()
    assert record_of(plane).sync_state_set == {1, 2}
    store.restore(older)
    body = SyncStateSetBody(frozenset({1}), master.set_epoch).encode()
    fields = {"masterBrokerId": 1, "masterEpoch": 1}
    answer = await master.ask(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, body=body, **fields)
    assert answer.code == ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH
    assert notes.floors == [], "one stray request ends no reign"
    await eventually_asked(master, body, fields, lambda: notes.floors)
    record = record_of(plane)
    assert 3 not in record.seats, "who was put back into the set by the restore is no successor"
    assert record.sync_state_set_epoch > master.set_epoch or record.master_epoch > 1
    await third.restarted(host=third.host)
    await _goes_on(plane, group, master=master, above=1)


async def eventually_asked(
    broker: FakeBroker, body: bytes, fields: dict[str, int], condition: Callable[[], object]
) -> None:
    """1001 again and again, as a Java master does, until something has come of it."""
    async with asyncio.timeout(15):
        while not condition():
            await broker.ask(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, body=body, **fields)
            await asyncio.sleep(0.05)


async def test_a_record_restored_while_no_plane_runs(start_plane: StartPlane, group: FakeGroup) -> None:
    """The fresh plane knows nothing but the old record, which names a master and a set of another time."""
    store, notes, directory = RestoredStore(), Notes(), _directory()
    plane, older = await _old_group(start_plane, group, store, notes, directory)
    master = group.master()
    await plane.stop()
    store.restore(older)
    later = Notes()
    second = await start_plane(store, directory=directory, observer=later)
    group.planes = [second.address]
    await _goes_on(second, group, master=master, above=3)
    assert later.granted == [(later.granted[0][0], master.broker_id)], "one election, and nobody on the old record"


async def test_a_record_that_was_deleted_is_made_again_from_the_brokers(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    """F29: ids, epochs and data are the brokers'; they are adopted by their heartbeats, and nobody asks for a new id."""
    store, notes = RestoredStore(), Notes()
    plane, _ = await _old_group(start_plane, group, store, notes, _directory())
    master = group.master()
    store.restore(None)
    await _goes_on(plane, group, master=master, above=3)
    assert sorted(notes.adopted) == [1, 2, 3]


async def test_brokers_that_come_back_to_a_deleted_record_keep_their_ids(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    """All of it was down: 1003 of an id that nobody knows is no 2010 for ever."""
    store, notes = RestoredStore(), Notes()
    plane, _ = await _old_group(start_plane, group, store, notes, _directory())
    brokers = [group.brokers[one] for one in (1, 2, 3)]
    for broker in brokers:
        await broker.kill()
    store.restore(None)
    best = max(brokers, key=lambda broker: (broker.epoch_file, broker.broker_id))
    best.max_offset += 10
    async with asyncio.timeout(20):
        await asyncio.gather(*(broker.restarted(host=broker.host) for broker in brokers))
    await eventually(lambda: snapshot_of(plane).writable, what="a master")
    record = record_of(plane)
    assert sorted(record.replicas) == [1, 2, 3]
    assert record.master_broker_id == best.broker_id, "whoever has the most data"
    assert record.master_epoch > 3
    assert sorted(notes.adopted) == [1, 2, 3]


async def test_nobody_is_elected_before_all_were_heard(start_plane: StartPlane, group: FakeGroup) -> None:
    """Two of three come back to a deleted record: the third may have more than both."""
    store, notes = RestoredStore(), Notes()
    plane, _ = await _old_group(start_plane, group, store, notes, _directory())
    brokers = [group.brokers[one] for one in (1, 2, 3)]
    for broker in brokers:
        await broker.kill()
    store.restore(None)
    granted = len(notes.granted)
    returning = [asyncio.create_task(broker.restarted(host=broker.host)) for broker in brokers[:2]]
    await eventually(lambda: (found := snapshot_of(plane).record) and sorted(found.replicas) == [1, 2])
    await eventually(lambda: all(1002 in group.brokers[one].tried for one in (1, 2)), what="both to ask")
    assert record_of(plane).granted_master_id is None
    assert len(notes.granted) == granted
    await brokers[2].restarted(host=brokers[2].host)
    async with asyncio.timeout(20):
        await asyncio.gather(*returning)
    await eventually(lambda: snapshot_of(plane).writable)


async def test_a_stranger_with_an_unknown_id_is_not_adopted(start_plane: StartPlane, group: FakeGroup) -> None:
    notes = Notes()
    plane = await start_plane(directory=_directory(), observer=notes)
    group.planes = [plane.address]
    stranger = FakeBroker(group, broker_id=5, epoch_file=9, max_offset=WRITTEN)
    registering = asyncio.create_task(stranger.start())
    await eventually(lambda: stranger.tried.count(1003) > 3, what="it to be refused again and again")
    registering.cancel()
    await asyncio.gather(registering, return_exceptions=True)
    await stranger.kill()
    assert notes.adopted == []
    assert snapshot_of(plane).record is None


async def test_made_up_ids_leave_nothing_behind(start_plane: StartPlane, group: FakeGroup) -> None:
    """A pod of the group may speak for ids that nobody holds, or nobody could be adopted: not for as many as it likes."""
    notes, directory = Notes(), _directory()
    plane = await start_plane(directory=directory, observer=notes)
    group.planes = [plane.address]
    host = "127.64.7.1"
    directory.introduce(host, Peer(namespace="standalone", pod_name=f"{NAME}-1", group=KEY))
    first = await group.broker(host=host)
    known = group_of(plane)
    for made_up in (-5, 2000, 2**40):
        await first.ask(RequestCode.BROKER_HEARTBEAT, brokerId=made_up, brokerAddr=first.address, epoch=1, maxOffset=1)
    for made_up in (100, 200, 300, 400, 500):
        await first.ask(RequestCode.BROKER_HEARTBEAT, brokerId=made_up, brokerAddr=first.address, epoch=1, maxOffset=1)
        await asyncio.sleep(0)
    await eventually(lambda: len(notes.adopted) == 3, what="three ids of one pod to be taken in")
    assert set(known.table.entries()) <= {1, 100, 200, 300, 400, 500}
    await first.ask(RequestCode.BROKER_HEARTBEAT, brokerId=600, brokerAddr=first.address, epoch=1, maxOffset=1)
    with pytest.raises(AssertionError, match="never happened"):
        await eventually(lambda: len(notes.adopted) > 3, within_seconds=0.5)


class AcceptingDirectory(PodsDirectory):
    """Its owner may accept an epoch."""

    accepted = 0

    def binding(self, key: GroupKey) -> GroupBinding | None:
        return self._changed(super().binding(key))

    def bindings(self) -> list[GroupBinding]:
        return [found for binding in super().bindings() if (found := self._changed(binding)) is not None]

    def find(self, broker_name: str, *, cluster_name: str = "", peer: Peer | None = None) -> GroupBinding | None:
        return self._changed(super().find(broker_name, cluster_name=cluster_name, peer=peer))

    def _changed(self, binding: GroupBinding | None) -> GroupBinding | None:
        if binding is None:
            return None
        return replace(binding, settings=replace(STRICT, accepted_epoch=self.accepted))


async def test_an_epoch_out_of_the_blue_stops_elections_until_it_is_accepted(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    """One poisoned broker is enough to report it; following it would make all the others deaf for ever (EpochJump)."""
    notes, directory = Notes(), AcceptingDirectory()
    plane = await start_plane(directory=directory, observer=notes)
    group.planes = [plane.address]
    first, _, third = await group.three()
    third.epoch_file = third.epoch = 50_000
    await eventually(lambda: snapshot_of(plane).epoch_jump == 50_000, what="the jump to be told")
    assert notes.jumps == [50_000]
    assert record_of(plane).master_epoch == 1
    assert snapshot_of(plane).writable, "a master that lives stays"
    await first.kill()
    await eventually(lambda: 1 not in snapshot_of(plane).live)
    with pytest.raises(AssertionError, match="never happened"):
        await eventually(lambda: record_of(plane).master_epoch > 1, within_seconds=1.0)
    again = asyncio.create_task(first.restarted())
    directory.accepted = 50_000
    await eventually(lambda: snapshot_of(plane).writable and record_of(plane).master_epoch > 50_000)
    async with asyncio.timeout(15):
        await again
    assert snapshot_of(plane).epoch_jump is None
    assert notes.floors


async def test_a_jump_that_nobody_reports_any_more_is_forgotten(start_plane: StartPlane, group: FakeGroup) -> None:
    notes = Notes()
    plane = await start_plane(directory=_directory(), observer=notes)
    group.planes = [plane.address]
    _, _, third = await group.three()
    third.epoch_file = third.epoch = 50_000
    await eventually(lambda: snapshot_of(plane).epoch_jump == 50_000)
    await third.kill()
    await eventually(lambda: snapshot_of(plane).epoch_jump is None, what="the others to be free again")
