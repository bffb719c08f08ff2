"""Kill the operator at each write of each kind of change: before it, at its lost answer, after it. The end state is the same."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.controller.plane import ControllerPlane
from brokergroup_operator.observe.timeline import FailoverTimeline, Outcome
from brokergroup_operator.records.memory import MemoryRecordStore
from brokergroup_operator.records.store import StoredRecord
from controller_core.model import BrokerGroupRecord
from tests.controller.conftest import record_of, snapshot_of
from tests.controller.world import KEY, Fencer, Notes, Record, Store, Stored, World, Write
from tests.support.fake_broker import FakeBroker, FakeGroup, eventually
from tests.support.pods_directory import PodsDirectory

if TYPE_CHECKING:
    from controller_core.model import Change

QUICK_TAKEOVER: dict[str, Any] = {
    "takeover_seconds": 0.3,
    "takeover_quieting_seconds": 0.5,
    "end_of_change_seconds": 0.2,
    "link_check_seconds": 0.05,
    "link_missing_longest_seconds": 0.1,
    "cure_after_seconds": 0.2,
}


class Killer(Store):
    """The store of a process that is killed at one write of a change of master; the next process uses `shared`."""

    def __init__(self, shared: MemoryRecordStore) -> None:
        super().__init__(shared)
        self.kill_at: int | None = None
        self.how = ""
        self.writes = 0
        self.killed = asyncio.Event()

    async def put(self, record: Record, expected: Stored, write: Write) -> Stored:
        if self.kill_at is None or not _moves_a_change(record, expected):
            return await write()
        self.writes += 1
        if self.writes != self.kill_at:
            return await write()
        stored = await write() if self.how != "before" else None
        self.reading.clear()
        self.writing.clear()
        self.killed.set()
        if self.how != "after":
            await asyncio.Event().wait()
        return stored

    def restore(self, record: BrokerGroupRecord) -> None:
        """Restore an older copy, as a person would."""
        assert self.shared is not None
        self.shared._records[KEY] = StoredRecord(record=record, version="restored-1", uid="restored")
        self._tell(KEY, "restored-1")


def _moves_a_change(record: Record, expected: Stored) -> bool:
    before: Change | None = expected.record.change if expected is not None else None
    return record is not None and record.change != before


async def crash(plane: ControllerPlane) -> None:
    """As SIGKILL: no task finishes, no connection says goodbye."""
    plane._stopping = True
    tasks: list[asyncio.Task[object]] = [plane._ticker] if plane._ticker is not None else []
    for group in plane._groups:
        tasks += [task for task in (group.master_change, *group._decisions) if task is not None]
    tasks += [*plane._executor.courses.running, *plane._executor.tails.running, *plane._tasks.running]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await plane._server.stop(grace_seconds=0.0)
    await plane._client.close()


@dataclass
class Scene:
    """A group, the plane that will be killed with its store, and the plane that continues."""

    group: FakeGroup
    plane: ControllerPlane
    killer: Killer
    write: int
    how: str

    def arm(self) -> None:
        """Count the writes of a change from now on."""
        self.killer.kill_at, self.killer.how = self.write, self.how


async def _kill_the_master(scene: Scene) -> None:
    scene.arm()
    await scene.group.master().kill()


async def _freeze_the_master(scene: Scene) -> None:
    scene.arm()
    scene.group.master().freeze()


async def _move_the_master(scene: Scene) -> None:
    scene.arm()
    moving = asyncio.create_task(scene.plane.switch_master(KEY, from_broker_id=1))
    moving.add_done_callback(lambda task: task.cancelled() or task.exception())


async def _drain_the_master(scene: Scene) -> None:
    scene.arm()
    await _its_pod_is_leaving(scene)


async def _its_pod_is_leaving(scene: Scene) -> None:
    directory = scene.plane._directory
    assert isinstance(directory, PodsDirectory)
    directory.report_leaving(KEY, scene.group.brokers[1].host)


async def _elect_the_third(scene: Scene) -> None:
    """Elect the third member: it is out of sync when the others die, so only a person may choose it."""
    group = scene.group
    group.brokers[3].ignored_ha_pushes = 1000
    group.brokers[1].linked.discard(3)
    await group.brokers[1].propose_set()
    await eventually(lambda: record_of(scene.plane).sync_state_set == {1, 2}, what="3 to leave the set")
    await group.brokers[2].kill()
    await group.brokers[1].kill()
    await eventually(lambda: record_of(scene.plane).granted_master_id is None, what="no master")
    await eventually(lambda: record_of(scene.plane).change is None, what="nothing under way")
    scene.arm()
    electing = asyncio.create_task(scene.plane.elect(KEY, to_broker_id=3, unclean=True))
    electing.add_done_callback(lambda task: task.cancelled() or task.exception())


async def _the_person_asks_again(scene: Scene) -> None:
    """Repeat the election if the group has no master; then restart the others."""
    await eventually(lambda: (now := scene.plane.snapshot(KEY)) and now.record and 3 in now.live, what="3 to be heard")
    if record_of(scene.plane).granted_master_id is None:
        await scene.plane.elect(KEY, to_broker_id=3, unclean=True)
    await eventually(lambda: scene.group.brokers[3].is_master, what="3 to be master")
    for one in (1, 2):
        await scene.group.brokers[one].restarted()


async def _restore_an_old_record(scene: Scene) -> None:
    """Restore a record that names another master and a past epoch."""
    older = record_of(scene.plane)
    dead = scene.group.master()
    await dead.kill()
    await eventually(lambda: record_of(scene.plane).master_epoch == 2, what="another master")
    await dead.restarted(host=dead.host, port=int(dead.address.rpartition(":")[2]))
    await eventually(lambda: _is_well(scene.group, scene.plane), what="three in sync again")
    scene.arm()
    scene.killer.restore(older)


async def _chain_a_slave(scene: Scene) -> None:
    scene.arm()
    scene.group.brokers[3].chained = True
    scene.group.brokers[1].linked.discard(3)
    await scene.group.brokers[1].propose_set()


Story = Callable[[Scene], Awaitable[None]]


@dataclass(frozen=True)
class Plot:
    """A cause of a change, and the number of the change's writes: its beginning, if it has one, its election, its end.

    `then`: what the next process has to do as well. `master`: the master at the end; None: undone before the election.
    """

    story: Story
    writes: int
    then: Story | None = None
    master: int | None = 2


STORIES: dict[str, Plot] = {
    "failover": Plot(_kill_the_master, 2),
    "fenced": Plot(_freeze_the_master, 3),
    "switchover": Plot(_move_the_master, 3, master=None),
    "drain": Plot(_drain_the_master, 3, then=_its_pod_is_leaving),
    "elect": Plot(_elect_the_third, 2, then=_the_person_asks_again, master=3),
    "recovery": Plot(_restore_an_old_record, 2),
    "cure": Plot(_chain_a_slave, 2, master=1),
}


@pytest.mark.parametrize("how", ["before", "unanswered", "after"])
@pytest.mark.parametrize(
    ("name", "write"), [(name, write) for name, plot in STORIES.items() for write in range(1, plot.writes + 1)]
)
async def test_wherever_the_operator_is_killed_the_end_is_the_same(
    group: World, name: str, write: int, how: str
) -> None:
    shared = MemoryRecordStore()
    killer = Killer(shared)
    fencer = Fencer(group)
    told = [Notes(), Notes()]
    plane, _ = await group.three_under(killer, fencer=fencer, observer=told[0], **QUICK_TAKEOVER)
    await eventually(lambda: snapshot_of(plane).writable and record_of(plane).change is None)
    since_seconds = time.time()
    plot = STORIES[name]
    scene = Scene(group, plane, killer, write, how)
    await plot.story(scene)
    await asyncio.wait_for(killer.killed.wait(), 15)
    await crash(plane)
    fresh = await group.plane(shared, fencer=fencer, observer=told[1], **QUICK_TAKEOVER)
    scene.plane = fresh
    if plot.then is not None:
        await plot.then(scene)
    elected = write > 2 or (write == 2 and how != "before")
    master = plot.master or (2 if elected else 1)  # undone before its election: the caller repeats the request
    try:
        await eventually(lambda: _is_well(group, fresh) and group.master().broker_id == master, within_seconds=30)
    except AssertionError as error:
        raise AssertionError(f"not {master} master, all in sync, nothing left: {_drawn(group, fresh)}") from error
    if name not in ("elect", "recovery"):  # these lose more than one master
        _judge_incidents(told, master, since_seconds)


def judged(told: Notes) -> list[FailoverTimeline]:
    return [one for one in told.closed if one.outcome is not Outcome.CANCELLED]


def _judge_incidents(told: list[Notes], master: int, since_seconds: float) -> None:
    """Check for one incident if the master changed: from one process, or from both under one id, by which readers merge."""
    incidents = [timeline for one in told for timeline in judged(one)]
    assert {(one.from_broker_id, one.to_broker_id, one.epoch_after) for one in incidents} == (
        {(1, master, 2)} if master != 1 else set()
    )
    assert len({one.incident_id for one in incidents}) == len({one.change_id for one in incidents}) == (master != 1)
    assert len(incidents) <= 1 + len(judged(told[0])), "the next process reports it once"
    assert len(judged(told[0])) <= 1
    for one in incidents:
        assert one.outcome is Outcome.COMPLETED
        assert since_seconds - 0.001 <= one.started_at_unix_seconds <= time.time()


def _alive(group: FakeGroup) -> list[FakeBroker]:
    return [broker for broker in group.brokers.values() if not broker.dead]


def _is_well(group: FakeGroup, plane: ControllerPlane) -> bool:
    snapshot = plane.snapshot(KEY)
    record = snapshot.record if snapshot is not None else None
    if snapshot is None or record is None or not snapshot.writable or record.change is not None:
        return False
    alive = _alive(group)
    masters = [broker.broker_id for broker in alive if broker.is_master]
    return (
        masters == [record.granted_master_id]
        and record.sync_state_set == {broker.broker_id for broker in alive}
        and all(broker.minimum == 2 for broker in alive)
        and all(broker.epoch == record.master_epoch for broker in alive)
    )


def _drawn(group: FakeGroup, plane: ControllerPlane) -> str:
    snapshot = plane.snapshot(KEY)
    drawn = snapshot.record.describe() if snapshot is not None and snapshot.record is not None else "no record"
    return f"{drawn}; {[(one.broker_id, one.is_master, one.epoch, one.minimum) for one in _alive(group)]}"
