"""A change of master is one plan in the record: told by one plane, in one order, whatever is lost on the way (issue 16)."""

import asyncio

import pytest
from structlog.testing import capture_logs

from brokergroup_operator.controller.directory.group_directory import FixedDirectory
from brokergroup_operator.controller.upkeep.keeper import pause_after
from brokergroup_operator.observe.timeline import Step
from brokergroup_operator.records.memory import MemoryRecordStore
from brokergroup_operator.records.store import (
    DEFAULT_DEADLINE_SECONDS,
    GroupKey,
    RecordCorruptError,
    RecordRefusedError,
    RecordStoreError,
    RecordUnavailableError,
    StoredRecord,
)
from controller_core.model import BrokerGroupRecord
from controller_core.settings import ControllerSettings
from tests.controller.conftest import KEY, QUICK, StartPlane, group_of, record_of, snapshot_of
from tests.controller.test_failover import KillingFencer, Notes, frozen_master
from tests.support.fake_broker import FakeGroup, eventually

STRICT = ControllerSettings(shrink_floor=True, min_in_sync_replicas=2)


class SilentStore(MemoryRecordStore):
    """The next write of a higher epoch is done (or not), and from then on nothing is answered until ``speaks_again``."""

    def __init__(self, *, writes: bool) -> None:
        super().__init__()
        self.armed = False
        self.silent = False
        self._writes = writes

    async def read(self, key: GroupKey, *, deadline_seconds: float = DEFAULT_DEADLINE_SECONDS) -> StoredRecord | None:
        if self.silent:
            raise RecordUnavailableError("no answer")
        return await super().read(key, deadline_seconds=deadline_seconds)

    async def commit(
        self,
        key: GroupKey,
        record: BrokerGroupRecord | None,
        expected: StoredRecord | None,
        deadline_seconds: float = DEFAULT_DEADLINE_SECONDS,
    ) -> StoredRecord | None:
        if self.silent:
            raise RecordUnavailableError("no answer")
        raised = record is not None and expected is not None and record.master_epoch > expected.record.master_epoch
        if not (self.armed and raised):
            return await super().commit(key, record, expected, deadline_seconds)
        self.armed, self.silent = False, True
        written = await super().commit(key, record, expected, deadline_seconds) if self._writes else None
        raise RecordUnavailableError("no answer", write_id=written.write_id if written is not None else "lost")


@pytest.mark.parametrize("writes", [True, False], ids=["the write arrived", "the write was lost"])
async def test_nothing_is_restored_while_the_fate_of_a_commit_is_unknown(
    start_plane: StartPlane, group: FakeGroup, writes: bool
) -> None:
    """Fault a: the deposed master could acknowledge again, though another one was elected."""
    store = SilentStore(writes=writes)
    plane = await start_plane(store, directory=FixedDirectory(settings=STRICT))
    group.planes = [plane.address]
    first, second, _ = await group.three()
    await eventually(lambda: snapshot_of(plane).writable)
    store.armed = True
    moving = asyncio.create_task(plane.switch_master(KEY, to_broker_id=2))
    await eventually(lambda: store.silent, what="the commit without an answer")
    await asyncio.sleep(0.5)
    assert first.minimum == 99, "restored before anybody knew whether the commit had arrived"
    store.silent = False
    assert (await moving).epoch == 2
    assert group.journal.index("1 slave 2") < group.journal.index("minInSyncReplicas=2 at 1")
    assert second.is_master
    assert record_of(plane).master_epoch == 2, "one epoch, whether it was written once or twice"
    await eventually(lambda: first.minimum == 2, what="the minimum to be put back")
    await eventually(lambda: snapshot_of(plane).writable)


async def test_with_several_planes_only_the_one_that_carries_the_change_out_tells_of_it(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    """Fault b: another plane answered 1004 with the new epoch, and its keeper sent a 1008 of its own in the midst of it."""
    store = MemoryRecordStore()
    planes = [await start_plane(store, directory=FixedDirectory(settings=STRICT)) for _ in range(3)]
    group.planes = [plane.address for plane in planes]
    first, second, _ = await group.three()
    await eventually(lambda: all(snapshot_of(plane).writable for plane in planes), what="all to know")
    everybody = {1: 1, 2: 1, 3: 1}  # each plane tells each broker of the epoch before once
    await eventually(lambda: all(group_of(plane).changes.told == everybody for plane in planes), what="all to be told")
    group.journal.clear()
    first.role_change_waits = asyncio.Event()
    switching = asyncio.create_task(planes[0].switch_master(KEY, to_broker_id=2))
    await eventually(lambda: "1008 to 1" in group.journal, what="the old master to be told")
    told_by: dict[int, str] = {}
    for number, plane in enumerate(planes):
        second.group.planes = [plane.address]
        answer = await second.ask(1004)
        told_by[number] = (answer.ext_fields or {})["masterEpoch"]
    second.group.planes = [plane.address for plane in planes]
    await asyncio.sleep(0.2)
    tellings = [line for line in group.journal if line.startswith("1008")]
    assert (told_by, tellings) == ({0: "1", 1: "1", 2: "1"}, ["1008 to 1"])
    first.role_change_waits.set()
    assert (await switching).confirmed
    await eventually(lambda: second.sync_state_set == {1, 2, 3}, what="everybody in sync again")


@pytest.mark.real_time
async def test_a_fence_that_confirms_nothing_is_waited_for_in_full(start_plane: StartPlane, group: FakeGroup) -> None:
    """Fault c: the fence inside the pod counts on it, whatever the fence from outside found and however soon it said so."""
    notes, fencer = Notes(), KillingFencer(group, confirms=False)
    directory = FixedDirectory(settings=STRICT, fence_timeout_seconds=1.0)
    await frozen_master(group, await start_plane(directory=directory, observer=notes, fencer=fencer))
    await eventually(lambda: notes.closed, what="the incident to be closed")
    steps = notes.closed[0].steps
    assert steps[Step.DECIDED] - steps[Step.DETECTED] >= 1.0


class RefusingStore(MemoryRecordStore):
    """Refuses every election with this error, and counts how often it was asked."""

    def __init__(self, error: type[RecordStoreError]) -> None:
        super().__init__()
        self.error = error
        self.refusing = False
        self.asked = 0

    async def commit(
        self,
        key: GroupKey,
        record: BrokerGroupRecord | None,
        expected: StoredRecord | None,
        deadline_seconds: float = DEFAULT_DEADLINE_SECONDS,
    ) -> StoredRecord | None:
        if (
            self.refusing
            and record is not None
            and expected is not None
            and record.master_epoch > expected.record.master_epoch
        ):
            self.asked += 1
            raise self.error("the store does not want it")
        return await super().commit(key, record, expected, deadline_seconds)


@pytest.mark.parametrize("error", [RecordRefusedError, RecordCorruptError])
async def test_a_record_that_is_refused_ends_the_change_and_is_tried_again_less_and_less_often(
    start_plane: StartPlane, group: FakeGroup, error: type[RecordStoreError]
) -> None:
    """Fault f: it was retried for ever, with the change held: nothing else could be done for the group."""
    store = RefusingStore(error)
    plane = await start_plane(store, directory=FixedDirectory(settings=STRICT))
    group.planes = [plane.address]
    first, second, third = await group.three()
    await eventually(lambda: snapshot_of(plane).writable)
    store.refusing = True
    await first.kill()
    await eventually(lambda: store.asked, what="the election to be refused")
    inner = group_of(plane)
    await eventually(lambda: inner.master_change is None, what="the change to end", within_seconds=2.0)
    asked = store.asked
    await asyncio.sleep(0.5)
    assert store.asked - asked <= 2, "tried again without a pause"
    store.refusing = False
    await eventually(lambda: second.is_master or third.is_master, what="another master as soon as it may be")


async def test_a_member_that_never_answers_is_complained_of_once(start_plane: StartPlane, group: FakeGroup) -> None:
    """500 groups of such members filled the log with 26,000 warnings in 20 s."""
    plane = await start_plane(directory=FixedDirectory(settings=STRICT), role_change_deadline_seconds=0.05)
    group.planes = [plane.address]
    first, second, third = await group.three()
    await eventually(lambda: snapshot_of(plane).writable)
    third.role_change_waits = second.role_change_waits = asyncio.Event()
    with capture_logs() as lines:
        await first.kill()
        await eventually(lambda: group.journal.count("1008 to 3") > 5, what="it to be told again and again")
    complaints = [line for line in lines if line["event"] == "not taken" and line["broker_id"] == 3]
    assert [line["log_level"] for line in complaints if line["what"] == "role change"].count("warning") == 1
    third.role_change_waits.set()
    await eventually(lambda: snapshot_of(plane).writable, what="it to answer at last")


def test_what_is_told_in_vain_is_told_less_and_less_often() -> None:
    pauses = [pause_after(tries, QUICK) for tries in range(1, 40)]
    assert pauses == sorted(pauses)
    assert pauses[0] == QUICK.keeper_poll_seconds
    assert max(pauses[:10]) == QUICK.keeper_longest_retry_seconds, "one that starts is told soon after its port opens"
    assert pauses[-1] == QUICK.keeper_longest_pause_seconds


class CountingStore(MemoryRecordStore):
    """Notes each write in the journal of the brokers, so that both stand in one order."""

    def __init__(self, journal: list[str]) -> None:
        super().__init__()
        self._journal = journal

    async def commit(
        self,
        key: GroupKey,
        record: BrokerGroupRecord | None,
        expected: StoredRecord | None,
        deadline_seconds: float = DEFAULT_DEADLINE_SECONDS,
    ) -> StoredRecord | None:
        written = await super().commit(key, record, expected, deadline_seconds)
        self._journal.append("write")
        return written


@pytest.mark.parametrize(
    ("how", "writes"),
    [("killed", 1), ("frozen", 2), ("moved", 2)],
    ids=["a certain death", "a silent master", "a move"],
)
async def test_a_certain_death_costs_one_write_before_the_first_role_change(
    start_plane: StartPlane, group: FakeGroup, how: str, writes: int
) -> None:
    """The election's own commit carries the plan. Where a fence or 99 comes first, the plan is written before it."""
    store = CountingStore(group.journal)
    plane = await start_plane(store, directory=FixedDirectory(settings=STRICT), fencer=KillingFencer(group))
    group.planes = [plane.address]
    first, *_ = await group.three()
    await eventually(lambda: snapshot_of(plane).writable and record_of(plane).change is None, what="a group at rest")
    group.journal.clear()
    if how == "killed":
        await first.kill()
    elif how == "frozen":
        first.freeze()
    else:
        await plane.switch_master(KEY, to_broker_id=2)
    await eventually(lambda: any(line.startswith("1008") for line in group.journal), what="the first role change")
    told = next(index for index, line in enumerate(group.journal) if line.startswith("1008"))
    assert group.journal[:told].count("write") == writes
