"""Which groups a tick looks at: its cost is what is due in it, and it does not hold up requests."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from structlog.testing import capture_logs

from brokergroup_operator.controller import plane as plane_module
from brokergroup_operator.controller.directory.group_directory import FixedDirectory
from brokergroup_operator.controller.group.groups import DueGroups
from brokergroup_operator.controller.plane import ControllerPlane
from brokergroup_operator.controller.upkeep import keeper
from brokergroup_operator.controller.upkeep.links import Links
from tests.controller.conftest import QUICK, StartPlane, group_of
from tests.controller.world import KEY
from tests.support.waiting import eventually

if TYPE_CHECKING:
    import pytest

    from brokergroup_operator.controller.group.group import Group
    from tests.controller.world import World


@dataclass(eq=False)
class Resting:
    """As `DueGroups` sees a group."""

    rests_until_seconds: float = 0.0


def _taken(due: DueGroups, now_seconds: float) -> list[Resting]:
    return list(due.take(now_seconds))  # type: ignore[arg-type]


def test_a_group_stays_due_until_it_rests_and_comes_back_after_its_rest() -> None:
    due, group, other = DueGroups(), Resting(), Resting()
    for one in (group, other):
        due.add(one)  # type: ignore[arg-type]
    assert _taken(due, 1.0) == _taken(due, 1.1) == [group, other]
    group.rests_until_seconds = 3.0
    assert _taken(due, 2.9) == [other]
    assert _taken(due, 3.0) == [other, group]
    assert _taken(due, 3.1) == [other, group]


def test_a_group_that_is_woken_is_due_at_once_and_once() -> None:
    due, group = DueGroups(), Resting(3.0)
    due.add(group)  # type: ignore[arg-type]
    assert _taken(due, 1.0) == []
    group.rests_until_seconds = 0.0
    due.add(group)  # type: ignore[arg-type]
    assert _taken(due, 1.1) == [group]
    group.rests_until_seconds = 5.0
    for now_seconds in (1.2, 3.0, 4.9):  # the end of its first rest is not the end of its second
        assert _taken(due, now_seconds) == []
    assert _taken(due, 5.0) == [group]


async def test_a_tick_lets_others_run_between_two_groups(
    start_plane: StartPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand masters that are lost at once had blocked a plane for more than a second."""
    done: list[str] = []

    def look_at(_: ControllerPlane, group: Group, now_seconds: float) -> None:
        done.append(f"{group.key.name} at {now_seconds}")
        asyncio.get_running_loop().call_soon(done.append, "a request")

    monkeypatch.setattr(plane_module, "LONGEST_TURN_SECONDS", 0.0)
    monkeypatch.setattr(ControllerPlane, "_look_at", look_at)
    directory = FixedDirectory()
    for number in range(5):
        directory.find(f"orders-{number}")
    await start_plane(directory=directory)
    await eventually(lambda: len(done) >= 10, what="a tick")
    assert done[1:10:2] == ["a request"] * 5


async def test_a_group_that_is_declared_no_more_is_not_looked_at(start_plane: StartPlane, group: World) -> None:
    plane, _ = await group.serving()
    inner = group_of(plane)
    await eventually(lambda: inner.rests_until_seconds > 0.0, what="the group to rest")
    plane._groups._forget(inner.key)
    inner.look_soon()
    assert list(plane._groups.due(asyncio.get_running_loop().time())) == []
    assert plane._groups._due._due == {}


async def test_a_slave_that_falls_silent_ends_the_rest(group: World) -> None:
    """A rest may be longer than a heartbeat timeout."""
    plane, (_, second, _) = await group.serving(rest_seconds=60.0, small_rpc_deadline_seconds=0.01)
    inner, clock = group_of(plane), asyncio.get_running_loop().time
    second.silent = True

    def deadline_seconds(broker_id: int) -> float:
        entry = inner.table.entry(broker_id)
        assert entry is not None
        return entry.deadline_seconds

    await eventually(lambda: deadline_seconds(1) > deadline_seconds(2) + 0.1, what="heartbeats of the master alone")
    inner.rest(clock(), 1, math.inf)
    assert clock() < inner.rests_until_seconds <= deadline_seconds(2)


async def test_a_group_rests_while_its_brokers_are_asked_and_the_end_wakes_it(
    group: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of a thousand groups was looked at again at every tick until its repair had its answers."""
    plane, _ = await group.serving(small_rpc_deadline_seconds=0.01)
    inner, clock = group_of(plane), asyncio.get_running_loop().time
    asked, answered, woken = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def look(*_: object) -> bool:
        asked.set()
        await answered.wait()
        return False

    monkeypatch.setattr(Links, "_look", look)
    await asked.wait()
    await eventually(lambda: inner.rests_until_seconds > clock(), what="the group to rest")
    monkeypatch.setattr(inner, "look_soon", woken.set)
    answered.set()
    await asyncio.wait_for(woken.wait(), inner.rests_until_seconds - clock())


async def test_groups_that_settle_at_the_same_time_take_turns(group: World) -> None:
    """Each of a thousand was repaired ten times a second, and heartbeats waited."""
    plane, _ = await group.serving()
    inner = group_of(plane)
    begun_seconds, cares = asyncio.get_running_loop().time(), [keeper._Care() for _ in range(1000)]
    for care in cares:
        plane._keeper._ended(inner, care)
    due_after_seconds = [care.next_look_seconds - begun_seconds for care in cares]
    assert due_after_seconds[0] >= QUICK.keeper_poll_seconds
    for second in range(2):
        due = [one for one in due_after_seconds if second <= one < second + 1]
        assert 0 < len(due) <= keeper.MOST_REPAIRS_PER_SECOND + 1


async def test_a_look_that_fails_ends_no_ticks(group: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task of all ticks ended with it, unnoticed: from then on no silent master of any group was replaced."""
    plane, (first, *others) = await group.serving()
    looks = list[str]()

    def look_at(inner: Group) -> None:
        looks.append(str(inner.key))
        if len(looks) <= 3:
            raise ValueError("something is wrong with this group")

    monkeypatch.setattr(plane._drain, "look_at", look_at)
    with capture_logs() as logged:
        group_of(plane).look_soon()
        await eventually(lambda: len(looks) > 3, what="a look after those that fail")
    assert [line["group"] for line in logged if line["event"] == "group not looked at"] == [str(KEY)] * 3
    first.freeze()
    await eventually(lambda: any(one.is_master for one in others), what="the silent master to be replaced")
