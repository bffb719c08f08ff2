"""The store has written an election and says nothing in time: it is this plane's own election all the same."""

from dataclasses import replace

from brokergroup_operator.controller.directory.group_directory import FixedDirectory
from brokergroup_operator.controller.group.commits import UnansweredWrite, UnansweredWrites
from brokergroup_operator.observe.observer import Observer
from brokergroup_operator.observe.timeline import FailoverTimeline, Outcome
from brokergroup_operator.records.memory import MemoryRecordStore
from brokergroup_operator.records.store import (
    DEFAULT_DEADLINE_SECONDS,
    GroupKey,
    RecordUnavailableError,
    StoredRecord,
)
from controller_core.model import BrokerGroupRecord
from controller_core.requests import ElectMaster
from controller_core.settings import ControllerSettings
from controller_core.step import step
from tests.controller.conftest import StartPlane, record_of, snapshot_of
from tests.support.fake_broker import NAME, FakeGroup, eventually

STRICT = ControllerSettings(shrink_floor=True, min_in_sync_replicas=2)


class MuteStore(MemoryRecordStore):
    """Writes the next record of a higher epoch, and does not say so."""

    def __init__(self) -> None:
        super().__init__()
        self.mute = False
        self.unanswered = 0

    async def commit(
        self,
        key: GroupKey,
        record: BrokerGroupRecord | None,
        expected: StoredRecord | None,
        deadline_seconds: float = DEFAULT_DEADLINE_SECONDS,
    ) -> StoredRecord | None:
        written = await super().commit(key, record, expected, deadline_seconds)
        if (
            self.mute
            and record is not None
            and expected is not None
            and record.master_epoch > expected.record.master_epoch
        ):
            self.mute = False
            self.unanswered += 1
            assert written is not None
            raise RecordUnavailableError("no answer", write_id=written.write_id)
        return written


class Notes(Observer):
    """What is told of elections."""

    def __init__(self) -> None:
        self.closed: list[FailoverTimeline] = []
        self.epochs: list[int] = []

    def incident_closed(self, timeline: FailoverTimeline) -> None:
        self.closed.append(timeline)

    def record_changed(
        self, key: GroupKey, before: BrokerGroupRecord | None, after: BrokerGroupRecord, why: str
    ) -> None:
        self.epochs.append(after.master_epoch)


async def test_a_failover_whose_write_was_not_answered_is_no_cancelled_one(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    store, notes = MuteStore(), Notes()
    plane = await start_plane(store, directory=FixedDirectory(settings=STRICT), observer=notes)
    group.planes = [plane.address]
    first, second, third = await group.three()
    await eventually(lambda: snapshot_of(plane).writable)
    store.mute = True
    await first.kill()
    await eventually(lambda: second.is_master or third.is_master, what="another master")
    await eventually(lambda: notes.closed, what="the incident to be over")
    assert store.unanswered == 1
    (incident,) = notes.closed
    assert (incident.outcome, incident.epoch_after) == (Outcome.COMPLETED, 2)
    assert incident.to_broker_id == record_of(plane).master_broker_id
    assert notes.epochs.count(2) >= 1, "what a commit brings with it"
    assert record_of(plane).master_epoch == 2, "one epoch for one lost master"


def unanswered(epoch: int) -> tuple[UnansweredWrite, StoredRecord]:
    """An election, whoever wins it, and the store's record once the write has arrived."""
    before = BrokerGroupRecord(broker_name=NAME, cluster_name="c", master_epoch=epoch)
    after = BrokerGroupRecord(broker_name=NAME, cluster_name="c", master_epoch=epoch + 1)
    request = ElectMaster(broker_name=NAME)
    refused = step(before, request, {}, STRICT)
    write = UnansweredWrite(request, before, replace(refused, record=after), "ours")
    return write, StoredRecord(record=after, version="2", uid="u", write_id="ours")


def test_it_is_found_once_and_told_once() -> None:
    writes = UnansweredWrites()
    write, stored = unanswered(1)
    writes.note(write)
    assert writes.take(write.request, stored.record) is None, "the store has not been read yet"
    assert writes.find(stored) is write
    assert writes.find(stored) is None
    assert writes.take(ElectMaster(broker_name="another"), stored.record) is None
    assert writes.take(write.request, stored.record) is write.decision
    assert writes.take(write.request, stored.record) is None


def test_what_did_not_arrive_or_was_overwritten_is_forgotten() -> None:
    writes = UnansweredWrites()
    write, stored = unanswered(1)
    assert write.before is not None
    writes.note(write)
    assert writes.find(StoredRecord(record=write.before, version="1", uid="u", write_id="earlier")) is None
    assert writes.find(stored) is None, "it was looked for, and was not there"
    writes.note(write)
    assert writes.find(stored) is write
    _, moved_on = unanswered(2)
    assert writes.take(write.request, moved_on.record) is None


def test_the_same_record_written_by_another_plane_is_not_ours() -> None:
    """Seen on two real nodes: a busy API answered none of three planes in time, and each told of the one failover."""
    writes = UnansweredWrites()
    write, stored = unanswered(1)
    writes.note(write)
    assert writes.find(replace(stored, write_id="another plane's")) is None
    assert writes.take(write.request, stored.record) is None
