"""A plane whose election's write got no answer in time owns that election as soon as the record shows it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from brokergroup_operator.controller.group.notes import UnansweredWrite, UnansweredWrites
from brokergroup_operator.observe.timeline import Outcome
from brokergroup_operator.records.store import DEFAULT_DEADLINE_SECONDS, GroupKey, RecordUnavailableError, StoredRecord
from controller_core.model import BrokerGroupRecord
from controller_core.requests import ElectMaster
from controller_core.step import step
from tests.controller.conftest import record_of, snapshot_of
from tests.controller.world import KEY, STRICT, MuteStore, Record, Store, Stored, World, Write, raises_epoch
from tests.support.fake_broker import NAME, eventually


class SilentStore(Store):
    """Writes the next election (or not); from then on it answers nothing until `silent` is cleared."""

    armed = silent = False

    def __init__(self, *, writes: bool) -> None:
        super().__init__()
        self._writes = writes

    async def read(self, key: GroupKey, *, deadline_seconds: float = DEFAULT_DEADLINE_SECONDS) -> Stored:
        if self.silent:
            raise RecordUnavailableError("no answer")
        return await super().read(key, deadline_seconds=deadline_seconds)

    async def put(self, record: Record, expected: Stored, write: Write) -> Stored:
        if self.silent:
            raise RecordUnavailableError("no answer")
        if not (self.armed and raises_epoch(record, expected)):
            return await write()
        self.armed, self.silent = False, True
        written = await write() if self._writes else None
        raise RecordUnavailableError("no answer", write_id=written.write_id if written is not None else "lost")


@pytest.mark.parametrize("writes", [True, False], ids=["the write arrived", "the write was lost"])
async def test_nothing_is_restored_while_the_fate_of_a_commit_is_unknown(group: World, writes: bool) -> None:
    """Fault a: the deposed master could acknowledge again although another one had been elected."""
    store = SilentStore(writes=writes)
    plane, (first, second, _) = await group.serving(store)
    store.armed = True
    moving = asyncio.create_task(plane.switch_master(KEY, to_broker_id=2))
    await eventually(lambda: store.silent, what="the commit without an answer")
    await asyncio.sleep(0.5)
    assert first.minimum == 99, "restored before the plane knew whether the commit had arrived"
    store.silent = False
    assert (await moving).epoch == 2
    assert group.journal.index("1 slave 2") < group.journal.index("minInSyncReplicas=2 at 1")
    assert second.is_master
    assert record_of(plane).master_epoch == 2, "one epoch, whether it was written once or twice"
    await eventually(lambda: first.minimum == 2, what="the minimum to be put back")
    await eventually(lambda: snapshot_of(plane).writable)


async def test_a_failover_whose_write_was_not_answered_is_no_cancelled_one(group: World) -> None:
    store = MuteStore()
    plane, (first, second, third) = await group.serving(store)
    store.mute = True
    await first.kill()
    await eventually(lambda: second.is_master or third.is_master, what="another master")
    incident = await group.incident()
    assert store.unanswered == 1
    assert (incident.outcome, incident.epoch_after) == (Outcome.COMPLETED, 2)
    assert incident.to_broker_id == record_of(plane).master_broker_id
    assert 2 in group.notes.masters, "the commit's effects follow"
    assert record_of(plane).master_epoch == 2, "one epoch for one lost master"


class LateStore(Store):
    """Takes the next election after the next read: its writer has no answer by then, and that read does not show it."""

    is_slow = False
    late: Write | None = None

    async def put(self, record: Record, expected: Stored, write: Write) -> Stored:
        if not self.is_slow or expected is None or not raises_epoch(record, expected):
            return await write()
        self.is_slow, self.late = False, write
        raise RecordUnavailableError("no answer", write_id=f"write-{int(expected.version) + 1}")

    async def read(self, key: GroupKey, *, deadline_seconds: float = DEFAULT_DEADLINE_SECONDS) -> Stored:
        found, late = await super().read(key, deadline_seconds=deadline_seconds), self.late
        if late is not None:
            self.late = None
            await late()
        return found


async def test_a_failover_whose_write_arrives_after_the_next_read_is_no_cancelled_one(group: World) -> None:
    """etcd may commit a write that its client gave up on. Else no plane notifies brokers for 3 s: each takes it for another's."""
    store = LateStore()
    _, (first, second, third) = await group.serving(store)
    store.is_slow = True
    await first.kill()
    await eventually(lambda: second.is_master or third.is_master, what="another master")
    incident = await group.incident()
    assert (incident.outcome, incident.epoch_after) == (Outcome.COMPLETED, 2)
    assert group.notes.withdrawn == []


def _unanswered(epoch: int) -> tuple[UnansweredWrite, StoredRecord]:
    """Return an election whose write got no answer, and the store's record after the write arrived."""
    before = BrokerGroupRecord(broker_name=NAME, cluster_name="c", master_epoch=epoch)
    after = BrokerGroupRecord(broker_name=NAME, cluster_name="c", master_epoch=epoch + 1)
    request, replaced = ElectMaster(), StoredRecord(record=before, version="1", uid="u", write_id="earlier")
    refused = step(before, request, {}, STRICT)
    write = UnansweredWrite(request, replaced, replace(refused, record=after), "ours")
    return write, StoredRecord(record=after, version="2", uid="u", write_id="ours")


def test_an_unanswered_write_is_found_once_and_taken_once() -> None:
    writes = UnansweredWrites()
    write, stored = _unanswered(1)
    writes.note(write)
    assert writes.take(write.request, stored.record) is None, "the store has not been read yet"
    assert writes.find(stored) is write
    assert writes.find(stored) is None
    assert writes.take(ElectMaster(broker_id=9), stored.record) is None
    assert writes.take(write.request, stored.record) is write.decision
    assert writes.take(write.request, stored.record) is None


def test_an_overwritten_write_is_forgotten() -> None:
    writes = UnansweredWrites()
    write, stored = _unanswered(1)
    for gone in (None, replace(stored, write_id="another plane's")):
        writes.note(write)
        assert writes.find(gone) is None
        assert writes.find(stored) is None, "another write came first"
    writes.note(write)
    assert writes.find(write.replaced) is None
    assert writes.find(stored) is write, "a slow store has taken it since that look"
    _, moved_on = _unanswered(2)
    assert writes.take(write.request, moved_on.record) is None


def test_the_same_record_written_by_another_plane_is_no_write_of_this_plane() -> None:
    """Seen on two real nodes: a busy API answered none of three planes in time, and each reported the one failover."""
    writes = UnansweredWrites()
    write, stored = _unanswered(1)
    writes.note(write)
    assert writes.find(replace(stored, write_id="another plane's")) is None
    assert writes.take(write.request, stored.record) is None
