"""A group that its owner woke tells one planned change of master; a master that was never put to sleep is lost like any other."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from brokergroup_operator.controller.directory.group_directory import FixedDirectory, GroupBinding
from brokergroup_operator.observe.timeline import Cause, Outcome, Trigger
from controller_core.settings import ControllerSettings
from rocketmq_remoting.codes import RequestCode
from tests.controller.conftest import QUICK, group_of, record_of, snapshot_of
from tests.controller.test_one_incident import Told
from tests.controller.test_unanswered_write import MuteStore
from tests.support.fake_broker import FakeBroker, FakeGroup, eventually

if TYPE_CHECKING:
    from collections.abc import Iterable

    from brokergroup_operator.controller.plane import ControllerPlane
    from brokergroup_operator.records.store import GroupKey
    from tests.controller.conftest import StartPlane

SETTINGS = ControllerSettings()


class SleepyDirectory(FixedDirectory):
    """Its groups are hibernated for as long as a test says so."""

    def __init__(self) -> None:
        super().__init__(settings=SETTINGS)
        self._awake: dict[GroupKey, GroupBinding] = {}
        self.hibernated = False

    def binding(self, key: GroupKey) -> GroupBinding | None:
        found = super().binding(key)
        if found is None or not self.hibernated:
            return found
        return self._awake.setdefault(key, replace(found, deleting=True, hibernated=True))

    def bindings(self) -> list[GroupBinding]:
        return [found for one in super().bindings() if (found := self.binding(one.key))]


async def sees(plane: ControllerPlane, directory: SleepyDirectory, *, hibernated: bool) -> None:
    """Change the owner's wish, and wait until the plane goes by it."""
    directory.hibernated = hibernated
    directory.revision += 1
    await eventually(lambda: group_of(plane).binding.hibernated is hibernated, what="the plane to know it")


async def sleep_and_wake(plane: ControllerPlane, directory: SleepyDirectory, brokers: Iterable[FakeBroker]) -> None:
    """The group was put to sleep, all its brokers are down, and the plane knows that its owner woke it."""
    await sees(plane, directory, hibernated=True)
    for each in brokers:
        await each.kill()
    await eventually(lambda: not snapshot_of(plane).live, what="all to be down")
    await sees(plane, directory, hibernated=False)


async def test_a_woken_master_that_is_heard_before_its_registration_was_not_lost(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    """With several planes the registration goes to one, and the others hear the heartbeats before they read the record."""
    directory, told = SleepyDirectory(), Told()
    plane = await start_plane(directory=directory, observer=told)
    group.planes = [plane.address]
    first, *others = await group.three()
    await sleep_and_wake(plane, directory, (*others, first))
    again = FakeBroker(group, broker_id=1, epoch_file=first.epoch_file, max_offset=first.max_offset)
    await again.heartbeat()
    await eventually(lambda: 1 in snapshot_of(plane).live, what="the woken process to be heard")
    for _ in range(10):
        await again.heartbeat()
        await asyncio.sleep(QUICK.tick_seconds)
    await again.start()
    await eventually(lambda: told.closed, what="the incident to be closed")
    seen = [(one.trigger, one.cause, one.outcome) for one in told.closed]
    assert seen == [(Trigger.WOKEN, Cause.HIBERNATION, Outcome.COMPLETED)]


async def test_a_woken_masters_own_election_that_the_store_did_not_answer_is_told_as_waking(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    """The write arrived: what ends the change has only the plan in the record to go by."""
    directory, told, store = SleepyDirectory(), Told(), MuteStore()
    plane = await start_plane(store, directory=directory, observer=told)
    group.planes = [plane.address]
    first, *others = await group.three()
    await sleep_and_wake(plane, directory, (*others, first))
    store.mute = True
    again = FakeBroker(group, broker_id=1, epoch_file=first.epoch_file, max_offset=first.max_offset)
    await again.start()
    await eventually(lambda: told.closed, what="the incident to be closed")
    assert store.unanswered == 1
    seen = [(one.trigger, one.cause, one.outcome) for one in told.closed]
    assert seen == [(Trigger.WOKEN, Cause.HIBERNATION, Outcome.COMPLETED)]


async def test_nobody_is_elected_before_a_woken_member_has_reported_its_log(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    """Else the first that registers begins an election that finds nobody, and the group tells two changes of master."""
    directory, told = SleepyDirectory(), Told()
    plane = await start_plane(directory=directory, observer=told)
    group.planes = [plane.address]
    first, *others = await group.three()
    await sleep_and_wake(plane, directory, (*others, first))
    second = FakeBroker(group, broker_id=2, epoch_file=first.epoch_file, max_offset=first.max_offset)
    await second.ask(RequestCode.CONTROLLER_REGISTER_BROKER, brokerId=2, brokerAddress=others[0].address)
    await eventually(lambda: 2 in snapshot_of(plane).live, what="the woken slave to be heard")
    for _ in range(10):
        await asyncio.sleep(QUICK.tick_seconds)
    assert record_of(plane).master_epoch == 1
    await second.heartbeat()
    await eventually(lambda: record_of(plane).master_broker_id == 2, what="the woken slave to be elected")
    await second.kill()
    assert [one.outcome for one in told.closed if one.outcome is Outcome.NO_ELIGIBLE_REPLICA] == []


async def test_a_master_that_was_not_put_to_sleep_after_all_is_lost_like_any_other(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    directory, told = SleepyDirectory(), Told()
    plane = await start_plane(directory=directory, observer=told)
    group.planes = [plane.address]
    first, *_ = await group.three()
    await sees(plane, directory, hibernated=True)
    await sees(plane, directory, hibernated=False)
    await eventually(lambda: not group_of(plane).waking.wakes, what="the master to be heard for long enough")
    await first.kill()
    await eventually(lambda: told.closed, what="the incident to be closed")
    assert [one.trigger for one in told.closed] != [Trigger.WOKEN]
    assert [one.cause for one in told.closed] != [Cause.HIBERNATION]
