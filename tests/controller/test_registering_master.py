"""While a new process of the master registers, nobody tells it what was true for the process before it (rule 6)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from brokergroup_operator.controller.directory.group_directory import FixedDirectory
from brokergroup_operator.records.memory import MemoryRecordStore
from controller_core.settings import ControllerSettings
from tests.controller.conftest import StartPlane, snapshot_of
from tests.support.fake_broker import FakeGroup, eventually

if TYPE_CHECKING:
    from brokergroup_operator.records.store import GroupKey, StoredRecord
    from controller_core.model import BrokerGroupRecord


class SlowStore(MemoryRecordStore):
    """Keeps writers waiting, while a test does something in between."""

    def __init__(self) -> None:
        super().__init__()
        self.open = asyncio.Event()
        self.open.set()
        self.waiting = 0

    async def commit(
        self,
        key: GroupKey,
        record: BrokerGroupRecord | None,
        expected: StoredRecord | None,
        deadline_seconds: float = 1.0,
    ) -> StoredRecord | None:
        self.waiting += 1
        await self.open.wait()
        self.waiting -= 1
        return await super().commit(key, record, expected, deadline_seconds)


async def test_it_is_not_told_the_epoch_of_the_process_before_it(start_plane: StartPlane, group: FakeGroup) -> None:
    store = SlowStore()
    plane = await start_plane(store, directory=FixedDirectory(settings=ControllerSettings()))
    group.planes = [plane.address]
    first, *_ = await group.three()
    assert first.epoch == 1
    await plane.stop()
    await first.kill()
    # The next plane knows of no death: its record says that broker 1 is master, and then its new process registers.
    plane = await start_plane(store, directory=FixedDirectory(settings=ControllerSettings()))
    group.planes = [plane.address]
    await eventually(
        lambda: len(snapshot_of(plane, plane.keys()[0]).live) == 2 if plane.keys() else 0, what="two are heard"
    )
    port = int(first.address.rpartition(":")[2])
    told_before = group.journal.count("1008 to 1")
    store.open.clear()
    restarting = asyncio.create_task(first.restarted(host=first.host, port=port))
    await eventually(lambda: store.waiting, what="the registration is being committed")
    for _ in range(20):  # several ticks of the plane: what would be told is told in the first of them
        await asyncio.sleep(plane._settings.tick_seconds)
    assert group.journal.count("1008 to 1") == told_before
    store.open.set()
    again = await restarting
    await eventually(lambda: again.epoch >= 2, what="a new epoch for the new process")
    assert not [line for line in group.journal if line == "1 master 1"][1:]
