"""ElectMaster by a broker or an administrator never replaces a granted master by itself: a failover or a switchover does that."""

import asyncio
from dataclasses import replace

from brokergroup_operator.controller.change.fencing import FenceOutcome
from brokergroup_operator.controller.directory.group_directory import FixedDirectory, GroupBinding
from brokergroup_operator.observe.observer import Observer
from brokergroup_operator.observe.timeline import FailoverTimeline, Outcome
from brokergroup_operator.records.memory import MemoryRecordStore
from brokergroup_operator.records.store import DEFAULT_DEADLINE_SECONDS, GroupKey, StoredRecord
from controller_core.settings import ControllerSettings
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.errors import RemotingError
from tests.controller.conftest import StartPlane, record_of, snapshot_of
from tests.support.fake_broker import FakeGroup, eventually

STRICT = ControllerSettings(shrink_floor=True, min_in_sync_replicas=2)


class GatedStore(MemoryRecordStore):
    """Keeps readers waiting, while a test does something in between."""

    def __init__(self) -> None:
        super().__init__()
        self.open = asyncio.Event()
        self.open.set()
        self.waiting = 0

    async def read(self, key: GroupKey, *, deadline_seconds: float = DEFAULT_DEADLINE_SECONDS) -> StoredRecord | None:
        self.waiting += 1
        await self.open.wait()
        self.waiting -= 1
        return await super().read(key, deadline_seconds=deadline_seconds)


class KillingFencer:
    """Kills the fake broker, and remembers whom and when the record had which epoch."""

    def __init__(self, group: FakeGroup) -> None:
        self._group = group
        self.fenced: list[int] = []

    async def fence(
        self, binding: GroupBinding, broker_id: int, address: str, *, deadline_seconds: float
    ) -> FenceOutcome:
        self.fenced.append(broker_id)
        await self._group.brokers[broker_id].kill()
        return FenceOutcome(confirmed=True, how="killed")


class Notes(Observer):
    def __init__(self) -> None:
        self.closed: list[FailoverTimeline] = []
        self.withdrawn: list[FailoverTimeline] = []

    def failover_withdrawn(self, timeline: FailoverTimeline) -> None:
        self.withdrawn.append(timeline)

    def incident_closed(self, timeline: FailoverTimeline) -> None:
        self.closed.append(timeline)


async def test_a_master_that_falls_silent_while_a_caller_waits_for_the_store_is_fenced_first(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    """The caller found it alive; at the moment of the decision it is not. The answer must not be another master."""
    store, fencer = GatedStore(), KillingFencer(group)
    plane = await start_plane(store, directory=FixedDirectory(settings=STRICT), fencer=fencer)
    group.planes = [plane.address]
    first, second, _ = await group.three()
    await eventually(lambda: snapshot_of(plane).writable)
    store.open.clear()
    asking = asyncio.create_task(second.ask(RequestCode.CONTROLLER_ELECT_MASTER, brokerId=2, designateElect="false"))
    await eventually(lambda: store.waiting, what="the decision to wait for the store")
    first.silent = True
    await first.drop_connections()
    await eventually(lambda: 1 not in snapshot_of(plane).live, what="the master to be missed")
    store.open.set()
    try:
        async with asyncio.timeout(10):
            answer = await asking
    except RemotingError:
        answer = None
    assert fencer.fenced == [1] or answer is None or answer.code not in (0,), (
        "a new master before the old one was fenced"
    )
    await eventually(lambda: record_of(plane).master_epoch == 2 and snapshot_of(plane).writable)
    assert fencer.fenced == [1]
    assert not record_of(plane).unfenced


async def test_a_designated_member_that_comes_alive_in_between_does_not_take_office_undrained(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    """The trial said no (it was not alive), so no switchover was begun; when the store answers it would say yes."""
    store = GatedStore()
    plane = await start_plane(store, directory=FixedDirectory(settings=STRICT))
    group.planes = [plane.address]
    first, second, third = await group.three()
    await eventually(lambda: snapshot_of(plane).writable)
    second.silent = True
    await second.drop_connections()
    await eventually(lambda: 2 not in snapshot_of(plane).live)
    store.open.clear()
    asking = asyncio.create_task(third.ask(RequestCode.CONTROLLER_ELECT_MASTER, brokerId=2, designateElect="true"))
    await eventually(lambda: store.waiting, what="the decision to wait for the store")
    second.silent = False
    await eventually(lambda: 2 in snapshot_of(plane).live)
    group.journal.clear()
    store.open.set()
    async with asyncio.timeout(10):
        answer = await asking
    if answer.code == 0:
        assert "minInSyncReplicas=99 at 1" in group.journal, "the old master was not drained"
    else:
        assert record_of(plane).master_epoch == 1
        assert first.is_master


class LeavingDirectory(FixedDirectory):
    """Says that its groups are being deleted, from a moment on."""

    deleting = False

    def binding(self, key: GroupKey) -> GroupBinding | None:
        binding = super().binding(key)
        return replace(binding, deleting=self.deleting) if binding is not None else None

    def bindings(self) -> list[GroupBinding]:
        return [replace(binding, deleting=self.deleting) for binding in super().bindings()]


class DeletingFencer:
    """While it fences, the group's owner deletes it, and its members go."""

    def __init__(self, group: FakeGroup, directory: LeavingDirectory) -> None:
        self._group = group
        self._directory = directory

    async def fence(
        self, binding: GroupBinding, broker_id: int, address: str, *, deadline_seconds: float
    ) -> FenceOutcome:
        self._directory.deleting = True
        for broker in list(self._group.brokers.values()):
            await broker.kill()
        await asyncio.sleep(0.05)
        return FenceOutcome(confirmed=True, how="killed")


async def test_a_group_deleted_in_the_middle_of_a_failover_is_no_incident(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    notes, directory = Notes(), LeavingDirectory(settings=STRICT)
    plane = await start_plane(directory=directory, observer=notes, fencer=DeletingFencer(group, directory))
    group.planes = [plane.address]
    first, _, _ = await group.three()
    await eventually(lambda: snapshot_of(plane).writable)
    first.freeze()
    await eventually(lambda: notes.withdrawn, what="the failover to end")
    assert [timeline.outcome for timeline in notes.withdrawn] == [Outcome.CANCELLED]
    assert notes.closed == []
