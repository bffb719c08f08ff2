"""Before a plane kills a master it asks the other planes, and waits for a starting master or for the plane that runs a change."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import AsyncMock

import pytest

from brokergroup_operator.controller.change.takeover import PROBES, Takeover
from brokergroup_operator.controller.detect import master_watch
from brokergroup_operator.controller.peers.services import HeardElsewhere, Planes, Services, dial
from brokergroup_operator.controller.settings import PlaneSettings
from brokergroup_operator.observe.observer import Observer
from brokergroup_operator.observe.timeline import Cause, Step, Trigger
from brokergroup_operator.records.memory import MemoryRecordStore
from brokergroup_operator.records.store import GroupKey
from controller_core.settings import ControllerSettings
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.controller_protocol import BrokerReplicasInfoBody, ReplicaIdentity, ReplicasInfo
from rocketmq_remoting.handler import not_supported
from rocketmq_remoting.server import RemotingServer
from tests.controller.conftest import record_of, snapshot_of
from tests.controller.world import KEY, Fencer, Notes, World, knows, look_up
from tests.support.fake_broker import NAME, FakeBroker, FakeGroup, eventually
from tests.support.places import free_port
from tests.support.quiet_handler import QuietHandler

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from brokergroup_operator.controller.change.executor import Executor
    from brokergroup_operator.controller.group.group import Group
    from brokergroup_operator.controller.plane import ControllerPlane
    from controller_core.model import Change
    from rocketmq_remoting.command import RemotingCommand


class StuckPlane(QuietHandler):
    """Answers for ever that every member is alive, or does not answer at all."""

    def __init__(self, *, answers: bool = True) -> None:
        self._answers = answers
        self.asked = 0

    async def handle(self, command: RemotingCommand, connection: object) -> RemotingCommand | None:
        if command.code != RequestCode.CONTROLLER_GET_SYNC_STATE_DATA:
            return not_supported(command)
        self.asked += 1
        if not self._answers:
            return None
        members = tuple(ReplicaIdentity(broker_name=NAME, broker_id=one, alive=True) for one in (1, 2, 3))
        return command.answer(0, body=BrokerReplicasInfoBody({NAME: ReplicasInfo(in_sync_replicas=members)}).encode())


@asynccontextmanager
async def serving(handler: StuckPlane) -> AsyncIterator[str]:
    server = RemotingServer(handler)
    await server.start("127.0.0.1", 0)
    yield f"127.0.0.1:{server.port}"
    await server.stop(grace_seconds=0.0)


def only_the_failover_asks(*planes: ControllerPlane) -> None:
    """Switch off the other questions to planes: about a frozen former master, now a slave, and about a slave that is late."""
    for plane in planes:
        plane._silent_members.look_at = lambda *_: None  # type: ignore[method-assign]


async def _three_planes(group: World, **changes: Any) -> tuple[list[ControllerPlane], list[Fencer], list[Notes]]:
    fencers, asked = [Fencer(group) for _ in range(3)], [Notes() for _ in range(3)]
    planes = await group.peers(3, observers=asked, fencers=fencers, **changes)
    only_the_failover_asks(*planes)
    group.planes.reverse()  # requests go to the last, heartbeats to all
    await group.three()
    await knows(*planes)
    return planes, fencers, asked


async def test_a_master_that_only_one_plane_does_not_hear_is_left_alone(group: World) -> None:
    """However long it lasts: two of three planes hear the master, so the third plane is the one cut off."""
    planes, fencers, asked = await _three_planes(group, other_planes_patience_seconds=0.2)
    master = group.master()
    master.answers_ha_status = False  # the path from the deaf plane to the master is cut too
    master.unheard_at = {planes[0].address}
    await eventually(lambda: snapshot_of(planes[0]).spared_on_testimony, what="the master to be left alone")
    before = asked[1].testimonies
    await eventually(lambda: asked[1].testimonies > before + 10, what="the doubt to go on for longer than the patience")
    assert [fencer.fenced for fencer in fencers] == [[], [], []]
    assert record_of(planes[0]).master_epoch == 1
    assert snapshot_of(planes[0]).spared_on_testimony == 1, "one silence counts once"
    master.answers_ha_status, master.unheard_at = True, set()
    await eventually(lambda: 1 in snapshot_of(planes[0]).live, what="the master to be heard again")
    assert snapshot_of(planes[1]).writable


async def test_a_master_that_no_plane_hears_is_replaced(group: World) -> None:
    planes, fencers, _ = await _three_planes(group)
    master = group.master()
    master.freeze()
    await eventually(lambda: record_of(planes[0]).master_epoch == 2, what="a new master")
    await knows(*planes)
    assert sorted(one for fencer in fencers for one in fencer.fenced)[:1] == [1]
    assert record_of(planes[0]).master_epoch == 2, "one epoch for one lost master"
    assert not any(record_of(plane).unfenced for plane in planes)


async def _beside(group: World, other: str, **settings: Any) -> tuple[ControllerPlane, Fencer]:
    """Start a plane with this one as its peer; the three brokers know only the first."""
    fencer, own = Fencer(group), f"127.0.0.1:{free_port()}"
    port = int(own.rpartition(":")[2])
    plane, _ = await group.three_under(fencer=fencer, listen_port=port, peer_addresses=(own, other), **settings)
    return plane, fencer


async def test_a_plane_with_a_stuck_view_does_not_keep_a_frozen_master_in_office_for_ever(group: World) -> None:
    async with serving(StuckPlane()) as stuck:
        plane, fencer = await _beside(group, stuck, other_planes_patience_seconds=1.2)
        group.master().freeze()
        await eventually(lambda: snapshot_of(plane).spared_on_testimony, what="the other plane to be believed")
        assert fencer.fenced == []
        await eventually(lambda: fencer.fenced == [1], what="the patience to end")
        await eventually(lambda: snapshot_of(plane).writable and record_of(plane).master_epoch == 2)
        incident = snapshot_of(plane).last_failover
        assert incident is not None
        assert any("for too long" in line for line in incident.evidence)


async def test_a_plane_that_says_nothing_costs_its_deadline_and_no_more(group: World) -> None:
    mute = StuckPlane(answers=False)
    async with serving(mute) as address:
        plane, _ = await _beside(group, address, other_planes_deadline_seconds=0.05)
        only_the_failover_asks(plane)
        group.master().freeze()
        await eventually(lambda: snapshot_of(plane).writable and record_of(plane).master_epoch == 2)
        assert mute.asked == 1
        assert snapshot_of(plane).spared_on_testimony == 0


async def test_a_master_is_silent_only_once_it_could_have_been_heard_as_master(group: World) -> None:
    """A plane that had been cut off learned of a new master, counted the whole cut as that master's silence, and killed it.

    Seen on two nodes: its connections to the other planes were still down, so none of them could vouch for the master.
    """
    store, own = MemoryRecordStore(), f"127.0.0.1:{free_port()}"
    fencers = [Fencer(group), Fencer(group)]
    other = await group.plane(store, fencer=fencers[0])
    cut_off = await group.plane(
        store,
        fencer=fencers[1],
        listen_port=int(own.rpartition(":")[2]),
        peer_addresses=(own, f"127.0.0.1:{free_port()}"),
        other_planes_deadline_seconds=0.05,
    )
    only_the_failover_asks(other, cut_off)
    group.planes = [other.address, own]
    await group.three()
    master = group.master()
    successor = next(broker for broker in group.brokers.values() if broker is not master)
    assert successor.broker_id is not None
    successor.unheard_at = {own}
    await eventually(lambda: successor.broker_id not in snapshot_of(cut_off).live, what="the cut")
    await other.switch_master(
        KEY, from_broker_id=1, to_broker_id=successor.broker_id, deadline_seconds=5.0, cause=Cause.PLANNED_SWITCHOVER
    )
    await eventually(lambda: record_of(cut_off).granted_master_id == successor.broker_id, what="the news")
    await eventually(lambda: record_of(cut_off).change is None, what="the end of the change")
    await asyncio.sleep(0.3)
    successor.unheard_at = set()
    await asyncio.sleep(1.5)
    assert [fencer.fenced for fencer in fencers] == [[], []]
    assert record_of(cut_off).master_epoch == 2


async def test_a_certain_death_asks_nobody(group: World) -> None:
    planes, _, asked = await _three_planes(group)
    await group.master().kill()
    await eventually(lambda: record_of(planes[0]).master_epoch == 2, what="a new master")
    assert [observer.testimonies for observer in asked] == [0, 0, 0]


async def test_a_port_that_is_closed_a_moment_after_the_connections_is_probed_again_soon(
    group: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a killed process: the kernel closes its newest sockets first, and its listener last."""
    plane, (first, *_) = await group.three_under()
    dialled: list[float] = []

    async def listens_twice(address: str, *, deadline_seconds: float) -> None:
        dialled.append(asyncio.get_running_loop().time())
        if len(dialled) > 2:
            await dial(address, deadline_seconds=deadline_seconds)

    monkeypatch.setattr(master_watch, "dial", listens_twice)
    await first.kill()
    await eventually(lambda: record_of(plane).master_epoch == 2, what="a new master")
    assert [later - earlier for earlier, later in itertools.pairwise(dialled)] == pytest.approx([0.0005, 0.001])


async def test_who_hears_asks_the_others_and_not_itself() -> None:
    first, second = StuckPlane(), StuckPlane()
    async with serving(first) as one, serving(second) as two:
        client = RemotingClient()
        planes = Planes(client, PlaneSettings(peer_addresses=(one, two), advertise_address=one))
        async with asyncio.timeout(5):
            testimony = await planes.who_hears(KEY, NAME, 2)
            assert testimony == HeardElsewhere(hearing=(two,), planes=2)
            assert (await planes.who_hears(KEY, NAME, 4)).hearing == ()
            another = GroupKey(KEY.namespace, "another group")
            assert (await planes.who_hears(another, another.name, 2)).hearing == ()
        assert (first.asked, second.asked) == (0, 3)
        await client.close()


@pytest.mark.parametrize(
    ("hearing", "planes", "silent_for_seconds", "protected"),
    [
        (0, 1, 0.0, False),
        (0, 3, 0.0, False),
        (1, 3, 9.0, True),  # a minority, within the patience
        (1, 3, 11.0, False),
        (1, 2, 9.0, True),
        (1, 2, 11.0, False),  # one of two is no majority
        (2, 3, 9999.0, True),  # a majority, for as long as it is one
    ],
)
def test_how_long_the_word_of_other_planes_counts(
    hearing: int, planes: int, silent_for_seconds: float, protected: bool
) -> None:
    testimony = HeardElsewhere(hearing=tuple(f"plane-{number}" for number in range(hearing)), planes=planes)
    assert testimony.protects(silent_for_seconds, 10.0) is protected


# ---- A master that has registered but not opened its port is starting, not dead, for a plane that never heard from it.


class UnopenedPort(RemotingServer):
    """An address that is known and refuses connections."""

    async def start(self, host: str, port: int) -> None:
        pass


class StartingBroker(FakeBroker):
    """Registers and heartbeats; its port stays closed."""

    def __init__(self, group: FakeGroup, *, unheard_at: set[str]) -> None:
        super().__init__(group)
        self._server = UnopenedPort(self)
        self.unheard_at = unheard_at

    @property
    def address(self) -> str:
        return f"{self.host}:10911"


async def _two_planes(group: World, **changes: Any) -> tuple[list[ControllerPlane], list[Notes]]:
    notes = [Notes(), Notes()]
    settings = ControllerSettings(min_in_sync_replicas=1)
    return await group.peers(2, observers=notes, settings=settings, **changes), notes


async def test_a_master_that_another_plane_hears_is_starting(group: World) -> None:
    """However long the start takes: a plane that never heard the master asks the others before a closed port counts as death."""
    (first, second), (heard, unheard) = await _two_planes(
        group, startup_timeout_seconds=0.3, other_planes_patience_seconds=1000.0
    )
    await look_up(second)
    master = StartingBroker(group, unheard_at={second.address})
    await master.start()
    await group.broker()
    await look_up(second)
    before = heard.testimonies
    await eventually(lambda: heard.testimonies > before + 5, what="the second plane to doubt, again and again")
    assert (heard.lost, unheard.lost) == ([], [])
    assert record_of(first).master_epoch == 1
    assert group.master() is master


@pytest.mark.usefixtures("loop_clock")
async def test_a_master_nobody_else_can_speak_for_is_given_its_start(group: World) -> None:
    """The plane that heard the master is gone: it counts as dead only when a start's time has passed since the record named it."""
    (first, second), (_, unheard) = await _two_planes(group, startup_timeout_seconds=1.0)
    await look_up(second)
    master = StartingBroker(group, unheard_at={second.address})
    await master.start()
    await look_up(second)
    named_seconds = asyncio.get_running_loop().time()
    await first.stop()
    await eventually(lambda: unheard.lost, what="the master to be given up")
    assert unheard.lost[0].steps[Step.DETECTED] > named_seconds + 1.0
    assert unheard.lost[0].trigger is Trigger.CONNECTION_REFUSED


# ---- Before a plane takes a change over, it probes the plane that carries it out.

SETTINGS = cast("PlaneSettings", SimpleNamespace(probe_seconds=0.2, takeover_from_living_seconds=15.0))
GROUP = cast("Group", SimpleNamespace(changes=SimpleNamespace(unmoved_seconds=5.0)))
CHANGE = cast("Change", SimpleNamespace(carried_out_by="operator-0:9878", is_told=False))


@pytest.mark.parametrize(
    ("answers", "lives", "asked"),
    [
        ([None], True, 1),
        ([TimeoutError(), None], True, 2),
        ([TimeoutError()] * PROBES, False, PROBES),
        ([ConnectionRefusedError()], False, 1),
        ([TimeoutError(), OSError("no route")], False, 2),
    ],
    ids=["listens", "late once", "never answers", "refuses", "no way to it"],
)
async def test_a_plane_that_misses_one_probe_is_not_taken_for_dead(
    answers: list[Exception | None], lives: bool, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = list(answers)

    async def open_connection(host: str, port: int) -> tuple[Any, Any]:
        assert (host, port) == ("operator-0", 9878)
        answer = left.pop(0)
        if answer is not None:
            raise answer
        return None, SimpleNamespace(close=lambda: None, wait_closed=AsyncMock())

    monkeypatch.setattr(asyncio, "open_connection", open_connection)
    planes: Any = SimpleNamespace(own_address="operator-1:9878")
    services = Services(settings=SETTINGS, observer=Observer(), calls=planes, planes=planes)
    takeover = Takeover(services, cast("Executor", None))
    assert await takeover._is_carried_out(GROUP, CHANGE) is lives
    assert len(answers) - len(left) == asked
