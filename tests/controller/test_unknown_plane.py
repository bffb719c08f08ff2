"""A plane that the brokers do not know yet, like the third after `replicaCount` 2 to 3: it gets no heartbeats for minutes."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from brokergroup_operator.controller.plane import ControllerPlane
from brokergroup_operator.observe.member_view import member_view
from tests.controller.conftest import record_of, snapshot_of
from tests.controller.world import KEY, World, knows, look_up
from tests.support.fake_broker import FakeBroker, eventually

WATCHED_SECONDS = 20.0


@dataclass
class Scene:
    known: ControllerPlane
    unknown: ControllerPlane
    brokers: list[FakeBroker]


@pytest.fixture
async def scene(group: World) -> Scene:
    """Two planes that share a group of three brokers; only the first is known to the brokers."""
    known, unknown = await group.peers(2, tick_seconds=0.05, unheard_check_seconds=0.2)
    group.planes = [known.address]
    brokers = await group.three()
    await knows(known)
    await look_up(unknown)
    # Until then it could not have heard them, and suspects no member.
    await asyncio.sleep(10.0)
    return Scene(known, unknown, brokers)


async def _signals(plane: ControllerPlane, during: Callable[[], Awaitable[object]]) -> int:
    signals = 0

    def count(_key: object) -> None:
        nonlocal signals
        signals += 1

    unsubscribe = plane.subscribe(count)
    await during()
    unsubscribe()
    return signals


async def test_it_signals_no_change_while_nothing_changes(scene: Scene) -> None:
    """Each suspicion of a master that others hear ended in a signal and thus a pass: ten a second, for minutes."""
    assert await _signals(scene.unknown, lambda: asyncio.sleep(WATCHED_SECONDS)) == 0


async def test_its_doubts_hold_no_configuration_up(scene: Scene) -> None:
    """While it suspected the master, nearly always, it reported a change of master in progress."""
    for number in range(20):
        await scene.unknown.set_broker_config(KEY, 2, {"controllerAddr": f"10.0.0.{number}:9878"})
        await asyncio.sleep(0.03)
    assert scene.brokers[1].config == {"controllerAddr": "10.0.0.19:9878"}


async def test_it_says_what_the_master_says_of_itself(scene: Scene) -> None:
    now = snapshot_of(scene.unknown)
    assert now.live == {}
    assert now.writable, "the master answers as master, and its slaves are linked and answer"
    fact = member_view(record_of(scene.unknown), now, 1).fact()
    assert fact.startswith("not heard by this operator pod since")
    assert fact.endswith(f"but by {scene.known.address}")
    assert 1 not in now.silences, "steps against an unheard slave are never taken against a master"


async def test_it_says_for_how_long_it_has_known_the_group(scene: Scene) -> None:
    before = snapshot_of(scene.unknown).known_for_seconds
    await asyncio.sleep(5.0)
    assert snapshot_of(scene.unknown).known_for_seconds - before > 4.9


async def test_it_does_not_say_so_of_a_master_that_denies_its_role(scene: Scene) -> None:
    scene.brokers[0].is_master = False
    await eventually(lambda: not snapshot_of(scene.unknown).writable, what="its word to count")


async def test_it_does_not_say_so_of_a_master_that_does_not_answer(scene: Scene) -> None:
    scene.brokers[0].answers_ha_status = False
    await eventually(lambda: not snapshot_of(scene.unknown).writable, what="its silence to count")
