"""Brokers are asked what they run with (26): on a schedule, and after every change; and a leftover of a switchover is put right."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from brokergroup_operator.controller.directory.group_directory import FixedDirectory, GroupBinding
from brokergroup_operator.observe.observer import Observer
from controller_core.settings import ControllerSettings
from tests.controller.conftest import KEY, StartPlane, snapshot_of
from tests.support.fake_broker import FakeGroup, eventually

if TYPE_CHECKING:
    from brokergroup_operator.records.store import GroupKey

STRICT = ControllerSettings(shrink_floor=True, min_in_sync_replicas=2)
WATCHED = frozenset({"minInSyncReplicas", "fileReservedTime"})


class WatchingDirectory(FixedDirectory):
    """Its groups name what is read back."""

    def binding(self, key: GroupKey) -> GroupBinding | None:
        found = super().binding(key)
        return found and replace(found, watched_keys=WATCHED)

    def bindings(self) -> list[GroupBinding]:
        return [replace(found, watched_keys=WATCHED) for found in super().bindings()]

    def find(self, *names: object, **more: object) -> GroupBinding | None:
        found = super().find(*names, **more)  # type: ignore[arg-type]
        return found and replace(found, watched_keys=WATCHED)


class Put(Observer):
    """What was put back."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int]] = []

    def acknowledges_again(self, key: GroupKey, broker_id: int, minimum: int) -> None:
        self.told.append((broker_id, minimum))


async def test_what_somebody_else_changed_is_seen_on_the_schedule(start_plane: StartPlane, group: FakeGroup) -> None:
    plane = await start_plane(directory=WatchingDirectory(settings=STRICT), configuration_check_seconds=0.1)
    group.planes = [plane.address]
    first, _, _ = await group.three()
    await eventually(lambda: set(snapshot_of(plane).member_configuration) == {1, 2, 3}, what="all to be read")
    first.minimum, first.config = 1, {"fileReservedTime": "1", "unwatched": "x"}
    expected = {"minInSyncReplicas": "1", "fileReservedTime": "1"}
    await eventually(lambda: snapshot_of(plane).member_configuration[1] == expected, what="the change to be seen")
    await plane.set_broker_config(KEY, 1, {"minInSyncReplicas": "2"})
    await eventually(
        lambda: snapshot_of(plane).member_configuration.get(1, {}).get("minInSyncReplicas") == "2",
        what="what we changed to be read again",
    )


async def test_a_change_of_master_has_all_read_again(start_plane: StartPlane, group: FakeGroup) -> None:
    plane = await start_plane(directory=WatchingDirectory(settings=STRICT), configuration_check_seconds=3600.0)
    group.planes = [plane.address]
    first, second, third = await group.three()
    await eventually(lambda: set(snapshot_of(plane).member_configuration) == {1, 2, 3}, what="all to be read")
    third.config = {"fileReservedTime": "1"}
    await plane.switch_master(KEY)
    await eventually(
        lambda: snapshot_of(plane).member_configuration.get(3, {}).get("fileReservedTime") == "1",
        what="a slave that was not moved to be read",
    )
    assert {first.minimum, second.minimum} == {2}


async def test_an_old_master_that_did_not_answer_its_role_gets_its_minimum_back_when_it_does(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    """tests/core/traces/change_switchover_untold.txt: the change ends, and nobody holds the 99 any more."""
    put = Put()
    plane = await start_plane(
        directory=WatchingDirectory(settings=STRICT),
        observer=put,
        configuration_check_seconds=0.1,
        leftover_fence_seconds=0.2,
        role_change_deadline_seconds=0.3,
    )
    group.planes = [plane.address]
    first, _, _ = await group.three()
    first.role_change_waits = asyncio.Event()
    await plane.switch_master(KEY)
    await eventually(lambda: not snapshot_of(plane).is_changing, what="the change to end")
    assert first.minimum == 99
    first.role_change_waits.set()
    await eventually(lambda: first.minimum == 2, what="the minimum to be put back")
    assert put.told == [(1, 2)]
