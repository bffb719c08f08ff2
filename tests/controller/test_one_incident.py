"""One change of master is one incident, whichever plane carried it out: the others saw the loss too, and say nothing of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.controller.change.fencing import FenceOutcome
from brokergroup_operator.controller.directory.group_directory import FixedDirectory, GroupBinding
from brokergroup_operator.observe.events import EventObserver, GroupEvent
from brokergroup_operator.observe.observer import Observer, ObserverGroup
from brokergroup_operator.observe.timeline import Outcome
from brokergroup_operator.records.memory import MemoryRecordStore
from brokergroup_operator.records.store import (
    DEFAULT_DEADLINE_SECONDS,
    GroupKey,
    RecordUnavailableError,
    StoredRecord,
)
from controller_core.plan import Phase
from controller_core.requests import RegisterBroker
from controller_core.settings import ControllerSettings
from controller_core.step import step
from rocketmq_remoting.codes import RequestCode
from tests.controller.conftest import KEY, StartPlane, record_of, snapshot_of
from tests.support.fake_broker import CLUSTER, NAME, FakeGroup, eventually
from tests.support.places import free_port

if TYPE_CHECKING:
    from brokergroup_operator.controller.plane import ControllerPlane
    from brokergroup_operator.observe.timeline import FailoverTimeline
    from controller_core.model import BrokerGroupRecord

STRICT = ControllerSettings(shrink_floor=True, min_in_sync_replicas=2)
# Where one of three is lost, nothing is acknowledged any more: its incident stays open.
ALL_THREE = ControllerSettings(shrink_floor=True, min_in_sync_replicas=3)
FAILOVER_REASONS = ("MasterLost", "FailoverStarted", "FailoverCompleted", "FailoverCancelled")


class Told(Observer):
    """Everything that one plane tells: incidents and Events."""

    def __init__(self) -> None:
        self.closed: list[FailoverTimeline] = []
        self.events: list[GroupEvent] = []
        self.withdrawn = 0

    def incident_closed(self, timeline: FailoverTimeline) -> None:
        self.closed.append(timeline)

    def failover_withdrawn(self, timeline: FailoverTimeline) -> None:
        self.withdrawn += 1

    def post(self, event: GroupEvent) -> None:
        self.events.append(event)


# A fence takes its time: one that another plane began beside it would be seen.
FENCE_SECONDS = 0.1


class SlowFencer:
    """Kills the fake broker, after all planes have begun; a second kill of it is confirmed as well."""

    def __init__(self, group: FakeGroup, *, planes: int) -> None:
        self._group = group
        self._planes = planes
        self.begun = 0
        self.running = 0
        self.most_at_once = 0

    async def fence(
        self, binding: GroupBinding, broker_id: int, address: str, *, deadline_seconds: float
    ) -> FenceOutcome:
        self.begun += 1
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)
        try:
            await eventually(lambda: self.begun >= self._planes, what="all planes to fence")
            await asyncio.sleep(FENCE_SECONDS)
            await self._group.brokers[broker_id].kill()
        finally:
            self.running -= 1
        return FenceOutcome(confirmed=True, how="killed")


async def _three_planes(
    start_plane: StartPlane, group: FakeGroup, fencer: SlowFencer
) -> tuple[list[ControllerPlane], list[Told]]:
    store, told, ports = MemoryRecordStore(), [Told() for _ in range(3)], [free_port() for _ in range(3)]
    peers = tuple(f"127.0.0.1:{port}" for port in ports)
    planes = [
        await start_plane(
            store,
            directory=FixedDirectory(settings=STRICT),
            fencer=fencer,
            observer=ObserverGroup([observer, EventObserver(observer)]),
            listen_port=port,
            peer_addresses=peers,
        )
        for port, observer in zip(ports, told, strict=True)
    ]
    group.planes = list(peers)
    await group.three()
    await eventually(
        lambda: all((now := plane.snapshot(KEY)) and now.writable for plane in planes), what="all planes to know it"
    )
    return planes, told


@pytest.mark.parametrize("how", ["frozen", "killed"])
async def test_three_planes_see_one_loss_and_one_tells_it(start_plane: StartPlane, group: FakeGroup, how: str) -> None:
    fencer = SlowFencer(group, planes=1)
    planes, told = await _three_planes(start_plane, group, fencer)
    for one in told:
        one.events.clear()
    master = group.master()
    if how == "frozen":
        master.freeze()
    else:
        await master.kill()
    await eventually(lambda: any(one.closed for one in told), what="the incident to be closed")
    await eventually(
        lambda: all(snapshot_of(plane).writable and snapshot_of(plane).in_progress is None for plane in planes),
        what="every plane to be done with it",
    )
    incidents = [timeline for one in told for timeline in one.closed]
    assert [(one.outcome, one.from_broker_id, one.epoch_after) for one in incidents] == [(Outcome.COMPLETED, 1, 2)]
    reasons = [event.reason for one in told for event in one.events if event.reason in FAILOVER_REASONS]
    assert reasons == ["MasterLost", "FailoverStarted", "FailoverCompleted"]
    shown = [snapshot_of(plane).last_failover for plane in planes]
    assert [one for one in shown if one is not None] == incidents
    if how == "frozen":
        # One after the other may be two: a heartbeat that arrives late, on a busy machine, ends the first.
        assert fencer.most_at_once == 1, "the plan was in the record before the fence: no other plane began one"


class EndRefused(MemoryRecordStore):
    """Does not answer the next `left` writes that would take a change of master out of the record, or mark it as told."""

    left = 0

    async def commit(
        self,
        key: GroupKey,
        record: BrokerGroupRecord | None,
        expected: StoredRecord | None,
        deadline_seconds: float = DEFAULT_DEADLINE_SECONDS,
    ) -> StoredRecord | None:
        before = expected.record.change if expected is not None else None
        after = record.change if record is not None else None
        ends = before is not None and before.phase is Phase.TELLING and (after is None or after.is_told)
        if ends and self.left:
            self.left -= 1
            raise RecordUnavailableError("no answer in time")
        return await super().commit(key, record, expected, deadline_seconds)


async def test_an_end_that_the_store_did_not_take_is_written_by_the_plane_that_told_of_it(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    """Else another plane, that finds the change unmoved, takes it over and tells of it again."""
    store, told = EndRefused(), Told()
    plane = await start_plane(store, directory=FixedDirectory(settings=STRICT), observer=told)
    group.planes = [plane.address]
    await group.three()
    await eventually(lambda: snapshot_of(plane).writable, what="a group that serves")
    store.left = 2
    await group.master().kill()
    await eventually(lambda: told.closed, what="the incident to be closed")
    await eventually(lambda: not store.left, what="the end of the change to be refused")
    await eventually(lambda: (stored := store.watched(KEY)) and stored.record.change is None, what="the change to end")
    assert [(one.outcome, one.epoch_after) for one in told.closed] == [(Outcome.COMPLETED, 2)]


class LateView(MemoryRecordStore):
    """One plane's view of a store that another plane writes to: its watch says nothing while it is late."""

    def __init__(self, shared: MemoryRecordStore) -> None:
        super().__init__()
        self._shared, self.late = shared, False
        self._seen: dict[GroupKey, StoredRecord | None] = {}
        shared.subscribe(self._moved)

    def _moved(self, key: GroupKey, version: str | None) -> None:
        if not self.late:
            self._tell(key, version)

    def watched(self, key: GroupKey) -> StoredRecord | None:
        if not self.late:
            self._seen[key] = self._shared.watched(key)
        return self._seen.get(key)

    async def read(self, key: GroupKey, *, deadline_seconds: float = DEFAULT_DEADLINE_SECONDS) -> StoredRecord | None:
        return await self._shared.read(key, deadline_seconds=deadline_seconds)

    async def commit(
        self,
        key: GroupKey,
        record: BrokerGroupRecord | None,
        expected: StoredRecord | None,
        deadline_seconds: float = DEFAULT_DEADLINE_SECONDS,
    ) -> StoredRecord | None:
        return await self._shared.commit(key, record, expected, deadline_seconds)


async def test_a_masters_new_process_that_registers_elsewhere_and_asks_here_is_one_incident(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    """Issue 30, b: one kill was told with no incident. The plane that elected had not read yet that the master was lost."""
    shared = MemoryRecordStore()
    view, told = LateView(shared), Told()
    plane = await start_plane(view, directory=FixedDirectory(settings=STRICT), observer=told)
    group.planes = [plane.address]
    first, *_ = await group.three()
    await eventually(lambda: snapshot_of(plane).writable, what="the group to be known")
    view.late = True
    before = await shared.read(KEY)
    assert before is not None
    registered = RegisterBroker(cluster_name=CLUSTER, broker_name=NAME, broker_id=1, broker_address=first.address)
    await shared.commit(KEY, step(before.record, registered, {}, STRICT).record, before)
    answer = await first.ask(RequestCode.CONTROLLER_ELECT_MASTER, brokerId=1, designateElect="false")
    view.late = False
    assert (answer.code, (answer.ext_fields or {}).get("masterEpoch")) == (0, "2")
    closed = await eventually(lambda: told.closed, what="the incident")
    assert [(one.from_broker_id, one.epoch_after, one.outcome) for one in closed] == [(1, 2, Outcome.COMPLETED)]


class MuteAfterTold(LateView):
    """Writes that all were told of a change, and answers nothing from then on until `mute` is cleared."""

    mute = False

    async def read(self, key: GroupKey, *, deadline_seconds: float = DEFAULT_DEADLINE_SECONDS) -> StoredRecord | None:
        if self.mute:
            raise RecordUnavailableError("no answer in time")
        return await super().read(key, deadline_seconds=deadline_seconds)

    async def commit(
        self,
        key: GroupKey,
        record: BrokerGroupRecord | None,
        expected: StoredRecord | None,
        deadline_seconds: float = DEFAULT_DEADLINE_SECONDS,
    ) -> StoredRecord | None:
        if self.mute:
            raise RecordUnavailableError("no answer in time")
        written = await super().commit(key, record, expected, deadline_seconds)
        if record is not None and record.change is not None and record.change.is_told:
            self.mute = self.late = True
            raise RecordUnavailableError("no answer in time", write_id=written.write_id if written else "")
        return written


@pytest.mark.parametrize("again", [False, True], ids=["another master", "the same master again"])
async def test_a_change_that_another_plane_supersedes_while_the_store_is_mute_is_still_an_incident(
    start_plane: StartPlane, group: FakeGroup, again: bool
) -> None:
    """The other plane read that all were told and left the incident to this one, which never read that its write had landed.

    Or (`again`) read it, and then waited for ten minutes because the next election had the same winner.
    """
    shared = MemoryRecordStore()
    view, told = MuteAfterTold(shared), Told()
    plane = await start_plane(
        view,
        directory=FixedDirectory(settings=ALL_THREE),
        observer=told,
        end_of_change_seconds=0.5,
        incident_deadline_seconds=600.0,
    )
    group.planes = [plane.address]
    first, *_ = await group.three()
    await eventually(lambda: snapshot_of(plane).writable and record_of(plane).change is None, what="a group at rest")
    await first.kill()
    await eventually(lambda: view.mute, what="the write that all were told")
    assert not told.closed
    before = await shared.read(KEY)
    assert before is not None
    winner = before.record.master_broker_id or 0
    elected = replace(
        before.record,
        master_broker_id=winner if again else 5 - winner,
        master_epoch=3,
        change=None,
        change_id=before.record.change_id + 1,
    )
    await shared.commit(KEY, elected, before)
    view.mute = view.late = False
    plane.record_moved(KEY, None)
    await eventually(lambda: told.closed or told.withdrawn, what="the change to end")
    assert [(one.from_broker_id, one.epoch_after, one.outcome) for one in told.closed] == [(1, 2, Outcome.COMPLETED)]


async def test_a_change_that_a_plane_supersedes_which_dies_before_it_tells_is_still_an_incident(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    store, told = MemoryRecordStore(), Told()
    plane = await start_plane(
        store,
        directory=FixedDirectory(settings=ALL_THREE),
        observer=told,
        end_of_change_seconds=600.0,
        incident_deadline_seconds=600.0,
    )
    group.planes = [plane.address]
    first, *_ = await group.three()
    await eventually(lambda: snapshot_of(plane).writable, what="a group that serves")
    await first.kill()
    await eventually(lambda: (last := snapshot_of(plane).last_failover) and last.epoch_after == 2, what="the failover")
    before = await store.read(KEY)
    assert before is not None
    assert before.record.change is not None
    assert before.record.change.phase is Phase.TELLING
    another = 5 - (before.record.master_broker_id or 0)
    elected = replace(before.record, master_broker_id=another, master_epoch=3, change=None)
    await store.commit(KEY, elected, before)
    await eventually(lambda: told.closed or told.withdrawn, what="the change to end")
    assert [(one.from_broker_id, one.epoch_after, one.outcome) for one in told.closed] == [(1, 2, Outcome.COMPLETED)]
