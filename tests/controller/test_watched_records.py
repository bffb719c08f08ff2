"""What the store's watch delivers is the plane's copy, without a read; what grants a role is read all the same."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from brokergroup_operator.controller.directory.group_directory import FixedDirectory
from brokergroup_operator.controller.plane import ControllerPlane
from brokergroup_operator.controller.settings import PlaneSettings
from brokergroup_operator.records.memory import MemoryRecordStore
from controller_core.decision import ControllerCode
from controller_core.model import BrokerGroupRecord, Replica
from controller_core.requests import AlterSyncStateSet, ReserveBrokerId
from tests.controller.conftest import KEY, group_of

if TYPE_CHECKING:
    from brokergroup_operator.records.store import GroupKey, StoredRecord

RECORD = BrokerGroupRecord(
    "cl", "bn", 2, {1: Replica(1, "a:1;1", "127.0.0.1:1", registered=True)}, 1, 1, frozenset({1}), 1
)


class CountingStore(MemoryRecordStore):
    """Counts the reads."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    async def read(self, key: GroupKey, *, deadline_seconds: float = 1.0) -> StoredRecord | None:
        self.reads += 1
        return await super().read(key, deadline_seconds=deadline_seconds)


async def test_a_record_that_the_watch_delivered_is_not_read_again() -> None:
    store, directory = CountingStore(), FixedDirectory()
    plane = ControllerPlane(
        store=store, directory=directory, settings=PlaneSettings(listen_host="127.0.0.1", listen_port=0)
    )
    directory.find(KEY.name)
    before = await store.commit(KEY, RECORD, None)
    assert before is not None
    first = await plane.load(KEY)
    assert first is not None
    assert store.reads == 1
    store.subscribe(plane.record_moved)
    after = await store.commit(KEY, replace(RECORD, sync_state_set_epoch=2), before)
    assert after is not None
    second = await plane.load(KEY)
    assert second is not None
    assert second.record is not None
    assert (second.record.sync_state_set_epoch, store.reads) == (2, 1)

    # The watch is behind: what was read or written here since is newer, and stays.
    group = group_of(plane)
    assert group.take_watched(before)
    assert group.record == after.record

    # What grants something reads the store, although the copy is good.
    await group.decide(ReserveBrokerId(cluster_name="cl", broker_name="bn", reserved_for="bn-2"))
    assert store.reads == 2


async def test_a_refusal_from_the_copy_counts_only_once_the_record_was_read_for_it() -> None:
    """The copy may be behind: a master that knows the newer set is not refused by the older one."""
    store, directory = CountingStore(), FixedDirectory()
    plane = ControllerPlane(
        store=store, directory=directory, settings=PlaneSettings(listen_host="127.0.0.1", listen_port=0)
    )
    directory.find(KEY.name)
    second = Replica(2, "b:1;1", "127.0.0.1:2", registered=True)
    record = replace(
        RECORD, next_broker_id=3, replicas={**RECORD.replicas, 2: second}, sync_state_set=frozenset({1, 2})
    )
    before = await store.commit(KEY, record, None)
    await plane.load(KEY)
    group = group_of(plane)
    moved = await store.commit(KEY, replace(record, sync_state_set_epoch=2), before)
    assert moved is not None
    wanted = AlterSyncStateSet(
        broker_name="bn",
        master_broker_id=1,
        master_epoch=1,
        sync_state_set=frozenset({1}),
        sync_state_set_epoch=2,
    )
    decision = await group.decide(wanted, linearizable=False)
    # By the copy the set epoch is from the future; by the record all fits, but no member is alive here.
    assert (decision.code, store.reads) == (ControllerCode.CONTROLLER_BROKER_NOT_ALIVE, 2)


async def test_another_life_of_the_object_is_read() -> None:
    """A record that was deleted and made again may have any version: the store says which one counts."""
    store, directory = CountingStore(), FixedDirectory()
    plane = ControllerPlane(
        store=store, directory=directory, settings=PlaneSettings(listen_host="127.0.0.1", listen_port=0)
    )
    directory.find(KEY.name)
    stored = await store.commit(KEY, RECORD, None)
    assert stored is not None
    await plane.load(KEY)
    group = group_of(plane)
    assert not group.take_watched(replace(stored, uid="another", version="900"))
