"""Whoever is answered may act on it: what the answer says is in the record by then."""

from __future__ import annotations

import asyncio

from brokergroup_operator.controller.directory.group_directory import FixedDirectory
from controller_core.settings import ControllerSettings
from rocketmq_remoting.codes import RequestCode, ResponseCode
from tests.controller.conftest import StartPlane, record_of
from tests.controller.test_registering_master import SlowStore
from tests.support.fake_broker import FakeGroup, eventually


async def test_a_request_is_answered_and_brokers_are_told_only_when_it_is_committed(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    store = SlowStore()
    plane = await start_plane(store, directory=FixedDirectory(settings=ControllerSettings()))
    group.planes = [plane.address]
    first, second, _ = await group.three()
    await eventually(lambda: record_of(plane).change is None, what="nothing is left to tell")
    store.open.clear()
    answer = asyncio.create_task(first.ask(RequestCode.CONTROLLER_ELECT_MASTER, brokerId=2, designateElect="true"))
    await eventually(lambda: store.waiting, what="the election is being committed")
    told_before = list(group.journal)
    for _ in range(20):  # several ticks of the plane: what would be told is told in the first of them
        await asyncio.sleep(plane._settings.tick_seconds)
    assert not answer.done()
    assert group.journal == told_before
    assert not second.is_master
    store.open.set()
    assert (await answer).code == ResponseCode.SUCCESS
    assert record_of(plane).master_broker_id == 2
    await eventually(lambda: second.is_master, what="the elected one to be told")
