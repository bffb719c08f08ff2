"""Two planes over one record: what one of them heard before the other wrote a mark is no loss, whatever the mark says.

Each plane has a heartbeat table of its own. On a real cluster one plane raised the mark of a living master with the heartbeat that
it had just heard; the other, whose last heartbeat of that master was older, held that one against the new mark and deposed it.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.controller.directory.group_directory import FixedDirectory
from brokergroup_operator.observe.observer import Observer
from brokergroup_operator.records.memory import MemoryRecordStore
from controller_core.settings import ControllerSettings
from tests.controller.conftest import KEY, StartPlane, record_of, snapshot_of
from tests.support.fake_broker import FakeBroker, FakeGroup, eventually
from tests.support.places import free_port

if TYPE_CHECKING:
    from brokergroup_operator.controller.plane import ControllerPlane
    from brokergroup_operator.records.store import GroupKey, StoredRecord

STRICT = ControllerSettings(shrink_floor=True, min_in_sync_replicas=2)
WRITTEN = 5344
LONG_MS = 600_000


class Losses(Observer):
    """Whose seats a plane took away."""

    def __init__(self) -> None:
        self.lost: list[int] = []

    def seat_lost(self, key: GroupKey, broker_id: int, why: str) -> None:
        self.lost.append(broker_id)


async def _two_planes(
    start_plane: StartPlane, group: FakeGroup, store: MemoryRecordStore
) -> tuple[tuple[ControllerPlane, Losses], tuple[ControllerPlane, Losses], list[FakeBroker]]:
    """Both hear three members with empty logs; the first plane writes what they hold once, the second whenever it is news."""
    ports, losses = [free_port(), free_port()], [Losses(), Losses()]
    peers = tuple(f"127.0.0.1:{port}" for port in ports)
    first, second = [
        await start_plane(
            store,
            directory=FixedDirectory(settings=STRICT),
            observer=one,
            listen_port=port,
            peer_addresses=peers,
            mark_pause_seconds=pause_seconds,
        )
        for port, one, pause_seconds in zip(ports, losses, (1000.0, 0.0), strict=True)
    ]
    group.planes = list(peers)
    brokers = await group.three()
    await eventually(lambda: _settled(first) and _settled(second), what="both planes to know three members in sync")
    for broker in brokers:
        broker.heartbeat_timeout_ms = LONG_MS
        await _beats(broker, 3)
    return (first, losses[0]), (second, losses[1]), brokers


def _settled(plane: ControllerPlane) -> bool:
    snapshot = plane.snapshot(KEY)
    return bool(
        snapshot and snapshot.record and snapshot.record.sync_state_set == {1, 2, 3} and len(snapshot.live) == 3
    )


async def _beats(broker: FakeBroker, number: int) -> None:
    before = broker.beats
    await eventually(lambda: broker.beats >= before + number, what="some more heartbeats")


async def _held(store: MemoryRecordStore, broker_id: int) -> int:
    stored = await store.read(KEY, deadline_seconds=1.0)
    assert stored is not None
    assert stored.record is not None
    return stored.record.replicas[broker_id].held_offset


@pytest.mark.parametrize("role", ["master", "slave"])
async def test_what_was_heard_before_the_mark_was_raised_is_no_loss(
    start_plane: StartPlane, group: FakeGroup, role: str
) -> None:
    """The second plane's heartbeats of one member stay behind; it reports, because another member has news for it.

    A Java slave of a new group has no epoch in its file until the first message has come: what it tells is blank.
    """
    store = MemoryRecordStore()
    (first, _), (second, losses), brokers = await _two_planes(start_plane, group, store)
    late, other = (brokers[0], brokers[1]) if role == "master" else (brokers[2], brokers[1])
    if role == "slave":
        late.epoch_file = 0
        await _beats(late, 3)
    assert snapshot_of(second).live[late.broker_id].max_offset == 0
    late.unheard_at = {second.address}
    late.max_offset = WRITTEN

    async def marked(broker: FakeBroker) -> bool:
        return await _held(store, broker.broker_id) == WRITTEN

    await eventually(lambda: marked(late), what="the first plane to write down what the member holds")
    other.max_offset = WRITTEN
    await eventually(lambda: marked(other), what="the second plane to write down what the other member holds")
    assert losses.lost == []
    assert record_of(second).replicas[late.broker_id].held_offset == WRITTEN, "it knows the mark by now"
    late.unheard_at = set()
    await _beats(late, 5)
    record = record_of(first)
    assert (record.master_broker_id, record.master_epoch, record.sync_state_set) == (1, 1, frozenset({1, 2, 3}))


async def test_a_disk_emptied_while_only_another_plane_listened_is_found(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    """A plane that has never heard the member knows only the mark. What the member says after that is held to it."""
    store = MemoryRecordStore()
    (first, _), (second, losses), (master, _, third) = await _two_planes(start_plane, group, store)
    third.unheard_at = {second.address}
    third.max_offset = WRITTEN

    async def marked() -> bool:
        return await _held(store, 3) == WRITTEN

    await eventually(marked, what="the first plane to write down what the member holds")
    master.propose_set = _never  # type: ignore[method-assign]
    await third.kill()
    await first.stop()
    group.planes = [second.address]
    third.unheard_at = set()
    await group.broker(broker_id=3, heartbeat_seconds=0.05)
    await eventually(lambda: losses.lost == [3], what="the loss to be seen")


class SlowReads(MemoryRecordStore):
    """Reads wait while the gate is shut."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = 0

    async def read(self, key: GroupKey, *, deadline_seconds: float = 1.0) -> StoredRecord | None:
        self.waiting += 1
        await self.gate.wait()
        self.waiting -= 1
        return await super().read(key, deadline_seconds=deadline_seconds)


async def test_what_was_heard_before_another_plane_elected_raises_no_mark(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    """The election may cut the log of the broker that reported: a mark from before it would take a healthy member's seat."""
    store = SlowReads()
    plane = await start_plane(
        store, directory=FixedDirectory(settings=STRICT), mark_pause_seconds=0.0, record_deadline_seconds=60.0
    )
    group.planes = [plane.address]
    master, other, _ = await group.three()
    await eventually(lambda: _settled(plane), what="three members in sync")
    for broker in (master, other):
        broker.heartbeat_timeout_ms = LONG_MS
        await _beats(broker, 3)
    stored = await store.read(KEY, deadline_seconds=1.0)
    store.gate.clear()
    other.max_offset = WRITTEN
    await eventually(lambda: store.waiting, what="the plane to read the record for its report")
    other.silent = True
    assert stored is not None
    assert stored.record is not None
    elected = replace(stored.record, master_epoch=stored.record.master_epoch + 1)
    await store.commit(KEY, elected, stored, 1.0)
    store.gate.set()
    await eventually(lambda: master.epoch == elected.master_epoch, what="the new epoch to be told")
    assert await _held(store, 2) == -1


async def _never() -> None:
    return
