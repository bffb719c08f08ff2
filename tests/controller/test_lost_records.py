"""The record is an old copy or gone, or a stranger sets an epoch (safety rule 3, F28, F29): the group continues above it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.controller.directory.pods import Peer
from brokergroup_operator.records.memory import MemoryRecordStore
from brokergroup_operator.records.store import StoredRecord
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import request
from rocketmq_remoting.controller_protocol import NotifyBrokerRoleChangedRequestHeader, SyncStateSetBody
from tests.controller.conftest import group_of, record_of, snapshot_of
from tests.controller.world import KEY, LOOSE, STRICT, World
from tests.support.fake_broker import NAME, FakeBroker, FakeGroup, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokergroup_operator.controller.plane import ControllerPlane
    from controller_core.model import BrokerGroupRecord

THREE_EXPECTED = replace(STRICT, expected_replicas=3)
WRITTEN = 100_000


def granted_by(group: World) -> list[tuple[int, int]]:
    """Return epoch and master of each mastership that a plane granted."""
    return [
        (after.master_epoch, after.granted_master_id)
        for before, after in group.notes.records
        if after.granted_master_id is not None and (before is None or before.master_epoch != after.master_epoch)
    ]


async def three_pods(group: World, store: RestoredStore) -> tuple[ControllerPlane, BrokerGroupRecord]:
    """Start three brokers, each in a pod of its own; return their plane, and the record once all are in sync."""
    plane = await group.plane(store, settings=THREE_EXPECTED)
    for number in range(1, 4):
        host = f"127.64.9.{number}"
        group.directory.introduce(host, Peer(namespace="standalone", pod_name=f"{NAME}-{number}", group=KEY))
        await group.broker(host=host)
    await eventually(lambda: record_of(plane).sync_state_set == {1, 2, 3}, what="three in sync")
    return plane, record_of(plane)


class RestoredStore(MemoryRecordStore):
    """A store in which a person restores an older copy or deletes the object."""

    def restore(self, record: BrokerGroupRecord | None, *, of_etcd: bool = False) -> None:
        """`of_etcd`: the whole store went back, so it is the same object under its version of that time."""
        if record is None:
            self._records.pop(KEY, None)
            self._tell(KEY, None)
            return
        version, uid = str(next(self._versions)), f"restored-{next(self._uids)}"
        if of_etcd:
            version, uid = "1", self._records[KEY].uid
        stored = StoredRecord(record=record, version=version, uid=uid)
        self._records[KEY] = stored
        self._tell(KEY, stored.version)


async def _old_group(group: World, store: RestoredStore) -> tuple[ControllerPlane, BrokerGroupRecord]:
    """Start a group and take it to epoch 3; return it with its record of epoch 1."""
    plane, older = await three_pods(group, store)
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


async def _all_down(group: World) -> tuple[ControllerPlane, list[FakeBroker]]:
    """Return a group of epoch 3 whose brokers are all down and whose record was deleted."""
    store = RestoredStore()
    plane, _ = await _old_group(group, store)
    brokers = [group.brokers[one] for one in (1, 2, 3)]
    for broker in brokers:
        await broker.kill()
    store.restore(None)
    return plane, brokers


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
    assert record.master_broker_id == master.broker_id, "the acting master has the last acknowledged messages"
    assert group.master() is master
    assert sorted(record.replicas) == [1, 2, 3]
    assert record.next_broker_id == 4


async def test_a_record_restored_from_an_older_copy_is_continued_above_what_brokers_know(group: World) -> None:
    store = RestoredStore()
    plane, older = await _old_group(group, store)
    master = group.master()
    master.max_offset += 10  # data that no other member has reported yet
    store.restore(older)
    await _goes_on(plane, group, master=master, above=3)
    assert len(group.notes.floors) == 1
    assert group.notes.floors[0] > 3
    assert all(epoch <= 3 or master.broker_id == granted for epoch, granted in granted_by(group))


async def test_a_restore_of_all_of_etcd_is_noticed_in_an_idle_group(group: World) -> None:
    """It is the same object under a lower version: the plane went on by its copy, for hours, and the record was another one."""
    store = RestoredStore()
    plane, older = await _old_group(group, store)
    await eventually(lambda: record_of(plane).change is None, what="nothing to be left to write")
    store.restore(older, of_etcd=True)
    await _goes_on(plane, group, master=group.master(), above=3)
    assert len(group.notes.floors) == 1


async def test_a_set_that_was_restored_is_noticed_by_the_masters_next_proposal(group: World) -> None:
    """No epoch fell, so no heartbeat shows it; but 3 is back in the set and lacks messages acknowledged without it."""
    store = RestoredStore()
    plane, older = await three_pods(group, store)
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
    assert group.notes.floors == [], "one stray request deposes no master"
    await eventually_asked(master, body, fields, lambda: group.notes.floors)
    record = record_of(plane)
    assert 3 not in record.seats, "a member that the restore put back into the set is no successor"
    assert record.sync_state_set_epoch > master.set_epoch or record.master_epoch > 1
    await third.restarted(host=third.host)
    await _goes_on(plane, group, master=master, above=1)


async def eventually_asked(
    broker: FakeBroker, body: bytes, fields: dict[str, int], condition: Callable[[], object]
) -> None:
    """Repeat 1001, as a Java master does, until the condition holds."""
    async with asyncio.timeout(15):
        while not condition():
            await broker.ask(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, body=body, **fields)
            await asyncio.sleep(0.05)


async def test_a_record_restored_while_no_plane_runs(group: World) -> None:
    """The new plane knows only the old record, whose master and set are outdated."""
    store = RestoredStore()
    plane, older = await _old_group(group, store)
    master, granted = group.master(), len(granted_by(group))
    await plane.stop()
    store.restore(older)
    second = await group.plane(store, directory=group.directory)
    await _goes_on(second, group, master=master, above=3)
    # One election, and no plane on the old record.
    assert [granted_id for _, granted_id in granted_by(group)[granted:]] == [master.broker_id]


async def test_a_record_that_was_deleted_is_made_again_from_the_brokers(group: World) -> None:
    """F29: the brokers keep ids, epochs and data; the plane adopts them from heartbeats, and no broker requests a new id."""
    store = RestoredStore()
    plane, _ = await _old_group(group, store)
    master = group.master()
    store.restore(None)
    await _goes_on(plane, group, master=master, above=3)
    assert sorted(group.notes.adopted) == [1, 2, 3]


async def test_brokers_that_come_back_to_a_deleted_record_keep_their_ids(group: World) -> None:
    """After a full stop: a 1003 with an id that the record lacks does not get 2010 for ever."""
    plane, brokers = await _all_down(group)
    best = max(brokers, key=lambda broker: (broker.epoch_file, broker.broker_id))
    best.max_offset += 10
    async with asyncio.timeout(20):
        await asyncio.gather(*(broker.restarted(host=broker.host) for broker in brokers))
    await eventually(lambda: snapshot_of(plane).writable, what="a master")
    record = record_of(plane)
    assert sorted(record.replicas) == [1, 2, 3]
    assert record.master_broker_id == best.broker_id, "the member with the most data"
    assert record.master_epoch > 3
    assert sorted(group.notes.adopted) == [1, 2, 3]


async def test_nobody_is_elected_before_all_were_heard(group: World) -> None:
    """Two of three return to a deleted record: the third may have more data than both."""
    plane, brokers = await _all_down(group)
    granted = len(granted_by(group))
    returning = [asyncio.create_task(broker.restarted(host=broker.host)) for broker in brokers[:2]]
    await eventually(lambda: (found := snapshot_of(plane).record) and sorted(found.replicas) == [1, 2])
    await eventually(lambda: all(1002 in group.brokers[one].tried for one in (1, 2)), what="both to ask")
    assert record_of(plane).granted_master_id is None
    assert len(granted_by(group)) == granted
    await brokers[2].restarted(host=brokers[2].host)
    async with asyncio.timeout(20):
        await asyncio.gather(*returning)
    await eventually(lambda: snapshot_of(plane).writable)


async def test_a_stranger_with_an_unknown_id_is_not_adopted(group: World) -> None:
    plane = await group.plane(settings=THREE_EXPECTED)
    stranger = FakeBroker(group, broker_id=5, epoch_file=9, max_offset=WRITTEN)
    registering = asyncio.create_task(stranger.start())
    await eventually(lambda: stranger.tried.count(1003) > 3, what="it to be refused again and again")
    registering.cancel()
    await asyncio.gather(registering, return_exceptions=True)
    await stranger.kill()
    assert group.notes.adopted == []
    assert snapshot_of(plane).record is None


async def test_made_up_ids_leave_nothing_behind(group: World) -> None:
    """Adoption needs a pod of the group to claim ids that no member holds, but the number of such ids is limited."""
    plane = await group.plane(settings=THREE_EXPECTED)
    host = "127.64.7.1"
    group.directory.introduce(host, Peer(namespace="standalone", pod_name=f"{NAME}-1", group=KEY))
    first = await group.broker(host=host)
    known = group_of(plane)
    for made_up in (-5, 2000, 2**40):
        await first.ask(RequestCode.BROKER_HEARTBEAT, brokerId=made_up, brokerAddr=first.address, epoch=1, maxOffset=1)
    for made_up in (100, 200, 300, 400, 500):
        await first.ask(RequestCode.BROKER_HEARTBEAT, brokerId=made_up, brokerAddr=first.address, epoch=1, maxOffset=1)
        await asyncio.sleep(0)
    await eventually(lambda: len(group.notes.adopted) == 3, what="three ids of one pod to be taken in")
    assert set(known.table.entries()) <= {1, 100, 200, 300, 400, 500}
    await first.ask(RequestCode.BROKER_HEARTBEAT, brokerId=600, brokerAddr=first.address, epoch=1, maxOffset=1)
    with pytest.raises(AssertionError, match="not within"):
        await eventually(lambda: len(group.notes.adopted) > 3, within_seconds=0.5)


async def test_an_epoch_out_of_the_blue_stops_elections_until_it_is_accepted(group: World) -> None:
    """One corrupted broker can report such an epoch; if it were adopted, all others would refuse roles for ever (EpochJump)."""
    plane, (first, _, third) = await group.three_under(settings=THREE_EXPECTED)
    third.epoch_file = third.epoch = 50_000
    await eventually(lambda: snapshot_of(plane).epoch_jump == 50_000, what="the jump to be told")
    assert group.notes.jumps == [50_000]
    assert record_of(plane).master_epoch == 1
    assert snapshot_of(plane).writable, "a living master stays"
    await first.kill()
    await eventually(lambda: 1 not in snapshot_of(plane).live)
    with pytest.raises(AssertionError, match="not within"):
        await eventually(lambda: record_of(plane).master_epoch > 1, within_seconds=1.0)
    again = asyncio.create_task(first.restarted())
    group.directory.wish(settings=replace(THREE_EXPECTED, accepted_epoch=50_000))
    await eventually(lambda: snapshot_of(plane).writable and record_of(plane).master_epoch > 50_000)
    async with asyncio.timeout(15):
        await again
    assert snapshot_of(plane).epoch_jump is None
    assert group.notes.floors


async def test_a_jump_that_nobody_reports_any_more_is_forgotten(group: World) -> None:
    plane, (_, _, third) = await group.three_under(settings=THREE_EXPECTED)
    third.epoch_file = third.epoch = 50_000
    await eventually(lambda: snapshot_of(plane).epoch_jump == 50_000)
    await third.kill()
    await eventually(lambda: snapshot_of(plane).epoch_jump is None, what="the others to be free again")


# ---- A forged 1008 with an epoch far above the record's makes the broker ignore our roles, the group is not Available; the repair.

FROM_NOWHERE = 9000


async def be_told_by_a_stranger(broker: FakeBroker, *, master: int, address: str, above: int = FROM_NOWHERE) -> None:
    """Send a 1008 that no controller committed. A slave's epoch file keeps the epochs of its data, as in Java."""
    broker.keeps_epoch_file = True
    header = NotifyBrokerRoleChangedRequestHeader(
        master_address=address,
        master_broker_id=master,
        master_epoch=broker.epoch + above,
        sync_state_set_epoch=FROM_NOWHERE,
    )
    body = SyncStateSetBody(frozenset({master}), FROM_NOWHERE).encode()
    client = RemotingClient()
    told = request(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, ext_fields=header.encode(), body=body)
    await client.invoke(broker.address, told, timeout_seconds=3.0)
    broker.keeps_epoch_file = False
    await client.close()


async def test_a_master_that_a_stranger_deposed_is_not_said_to_be_writable_and_is_master_again(group: World) -> None:
    plane, (first, second, _) = await group.three_under(link_check_seconds=0.05)
    await eventually(lambda: second.asked, what="the first look")
    await eventually(lambda: snapshot_of(plane).writable, what="a group that serves")
    granted = record_of(plane).master_epoch
    await be_told_by_a_stranger(first, master=2, address=second.address)
    assert not first.is_master
    await eventually(lambda: not snapshot_of(plane).writable, what="the plane to believe the master's own word")
    assert record_of(plane).master_epoch == granted  # a single denial: the epoch is raised only if the denials continue
    await eventually(lambda: first.is_master, what="the master to be master again")
    record = record_of(plane)
    assert record.master_broker_id == 1
    assert record.master_epoch > FROM_NOWHERE
    await eventually(lambda: snapshot_of(plane).writable, what="Available again")
    await eventually(lambda: first.sync_state_set == {1, 2, 3}, what="all in sync again")


async def test_one_word_of_denial_in_a_change_of_roles_raises_nothing(group: World) -> None:
    """A failover asks the new master right after its role was sent: usually it costs one epoch."""
    plane, (first, *_) = await group.three_under(link_check_seconds=0.05)
    await first.kill()
    await eventually(lambda: snapshot_of(plane).writable and record_of(plane).master_epoch == 2)
    await eventually(lambda: snapshot_of(plane).unlinked == frozenset(), what="the slave to be linked")
    assert record_of(plane).master_epoch == 2


async def test_a_slave_that_a_stranger_made_deaf_follows_again_and_leads_when_it_is_elected(group: World) -> None:
    plane, (first, second, third) = await group.serving(link_check_seconds=0.05)
    await be_told_by_a_stranger(third, master=2, address=second.address)
    first.linked.discard(3)
    await eventually(lambda: 3 in first.linked, what="the slave to be linked again")
    await plane.switch_master(KEY, to_broker_id=3)
    await eventually(lambda: third.is_master, what="the deaf one to lead")
    await eventually(lambda: snapshot_of(plane).writable, what="Available again")
    assert record_of(plane).granted_master_id == 3


async def test_a_master_without_slaves_is_asked_too(group: World) -> None:
    plane = await group.plane(settings=LOOSE, link_check_seconds=0.05)
    only = await group.broker()
    await eventually(lambda: snapshot_of(plane).writable, what="a group that serves")
    await be_told_by_a_stranger(only, master=9, address="127.0.0.1:1")
    await eventually(lambda: not snapshot_of(plane).writable, what="the plane to believe the master's own word")
    await eventually(lambda: only.is_master and snapshot_of(plane).writable, what="the master to be master again")


@pytest.mark.parametrize("above", [25_000, 2**31 - 10])
async def test_a_master_that_is_told_an_epoch_beyond_reach_is_replaced(group: World, above: int) -> None:
    plane, (first, second, _) = await group.serving(link_check_seconds=0.05)
    await be_told_by_a_stranger(first, master=2, address=second.address, above=above)
    await eventually(lambda: not snapshot_of(plane).writable, what="the plane to believe the master's own word")
    await eventually(lambda: snapshot_of(plane).writable, what="a master that says so")
    if above > 10**6:  # a third jump may reach a nearer epoch if no other member was heard for a moment
        assert record_of(plane).granted_master_id != 1
    assert group.master().broker_id == record_of(plane).granted_master_id
    assert group.master().epoch == record_of(plane).master_epoch


async def test_the_epochs_of_a_master_that_denies_for_ever_are_not_used_up(group: World) -> None:
    """Each jump is 10,000 of 2^31 epochs and a write: one a second used them up within three days."""
    plane = await group.plane(settings=LOOSE, link_check_seconds=0.05)
    only = await group.broker()
    await eventually(lambda: snapshot_of(plane).writable, what="a group that serves")
    await be_told_by_a_stranger(only, master=9, address="127.0.0.1:1", above=2**31 - 10)
    await asyncio.sleep(40.0)  # of virtual time
    jumps = record_of(plane).master_epoch // LOOSE.max_epoch_jump
    assert 2 <= jumps <= 6, "after 1, 2, 4, 8 and 16 s"
