"""A plane that the brokers do not know yet, as the third one after `replicaCount` 2 to 3: it hears none of them for minutes."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from brokergroup_operator.controller.directory.group_directory import FixedDirectory
from brokergroup_operator.controller.plane import ControllerPlane
from brokergroup_operator.observe.member_view import member_view
from brokergroup_operator.records.memory import MemoryRecordStore
from controller_core.settings import ControllerSettings
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.command import request
from tests.controller.conftest import KEY, StartPlane, record_of, snapshot_of
from tests.support.fake_broker import NAME, FakeBroker, FakeGroup, eventually
from tests.support.places import free_port

STRICT = ControllerSettings(shrink_floor=True, min_in_sync_replicas=2)
WATCHED_SECONDS = 20.0


@dataclass
class Scene:
    known: ControllerPlane
    unknown: ControllerPlane
    brokers: list[FakeBroker]


@pytest.fixture
async def scene(start_plane: StartPlane, group: FakeGroup) -> Scene:
    """Two planes that share a group of three brokers; only the first is known to the brokers."""
    store, ports = MemoryRecordStore(), [free_port() for _ in range(2)]
    peers = tuple(f"127.0.0.1:{port}" for port in ports)

    async def plane(port: int) -> ControllerPlane:
        return await start_plane(
            store,
            directory=FixedDirectory(settings=STRICT),
            listen_port=port,
            peer_addresses=peers,
            tick_seconds=0.05,
            unheard_check_seconds=0.2,
        )

    known = await plane(ports[0])
    group.planes = [known.address]
    brokers = await group.three()
    await eventually(lambda: snapshot_of(known).writable, what="the group to serve")
    unknown = await plane(ports[1])
    client = RemotingClient()
    question = request(RequestCode.CONTROLLER_GET_REPLICA_INFO, ext_fields={"brokerName": NAME})
    await client.invoke(unknown.address, question, timeout_seconds=3.0)
    await client.close()
    await eventually(lambda: snapshot_of(unknown).record is not None, what="the new plane to know the group")
    # Until then it could not have heard them, and doubts nothing.
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
    """Each doubt of a master that others hear ended with a signal, and each signal was a pass: ten a second, for minutes."""
    assert await _signals(scene.unknown, lambda: asyncio.sleep(WATCHED_SECONDS)) == 0


async def test_its_doubts_hold_no_configuration_up(scene: Scene) -> None:
    """While it doubted the master, which was nearly always, it said that a change of master was under way."""
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
    assert 1 not in now.silences, "nothing that is done about an unheard slave is done about a master"


async def test_it_does_not_say_so_of_a_master_that_denies_its_role(scene: Scene) -> None:
    scene.brokers[0].is_master = False
    await eventually(lambda: not snapshot_of(scene.unknown).writable, what="its word to count")


async def test_it_does_not_say_so_of_a_master_that_does_not_answer(scene: Scene) -> None:
    scene.brokers[0].answers_ha_status = False
    await eventually(lambda: not snapshot_of(scene.unknown).writable, what="its silence to count")
