"""A master that is silent at one controller plane only: the other planes are asked before anybody is killed (fault F14)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from brokergroup_operator.controller.change.fencing import FenceOutcome
from brokergroup_operator.controller.directory.group_directory import FixedDirectory, GroupBinding
from brokergroup_operator.controller.peers.services import HeardElsewhere, Planes
from brokergroup_operator.controller.plane import ControllerPlane
from brokergroup_operator.controller.settings import PlaneSettings
from brokergroup_operator.observe.observer import Observer
from brokergroup_operator.observe.timeline import Cause
from brokergroup_operator.records.memory import MemoryRecordStore
from brokergroup_operator.records.store import GroupKey
from controller_core.settings import ControllerSettings
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.command import RemotingCommand
from rocketmq_remoting.controller_protocol import BrokerReplicasInfoBody, ReplicaIdentity, ReplicasInfo
from rocketmq_remoting.handler import not_supported
from rocketmq_remoting.server import RemotingServer
from tests.controller.conftest import KEY, StartPlane, record_of, snapshot_of
from tests.support.fake_broker import NAME, FakeGroup, eventually
from tests.support.places import free_port
from tests.support.quiet_handler import QuietHandler

STRICT = ControllerSettings(shrink_floor=True, min_in_sync_replicas=2)


class KillingFencer:
    """Kills the fake broker, and remembers whom."""

    def __init__(self, group: FakeGroup) -> None:
        self._group = group
        self.fenced: list[int] = []

    async def fence(
        self, binding: GroupBinding, broker_id: int, address: str, *, deadline_seconds: float
    ) -> FenceOutcome:
        self.fenced.append(broker_id)
        await self._group.brokers[broker_id].kill()
        return FenceOutcome(confirmed=True, how="killed")


class Asked(Observer):
    """Counts the questions of other planes."""

    def __init__(self) -> None:
        self.testimonies = 0

    def request_answered(self, request_code: int, response_code: int, duration_seconds: float | None = None) -> None:
        self.testimonies += request_code == RequestCode.CONTROLLER_GET_SYNC_STATE_DATA


class StuckPlane(QuietHandler):
    """Says of everybody, for ever, that it is alive; or says nothing at all."""

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
    """A plane's care for silent members asks the others too: of a frozen master once it is a slave, of a slave that is late."""
    for plane in planes:
        plane._silent_members.look_at = lambda *_: None  # type: ignore[method-assign]


async def _three_planes(
    start_plane: StartPlane, group: FakeGroup, **changes: object
) -> tuple[list[ControllerPlane], list[KillingFencer], list[Asked]]:
    store, ports = MemoryRecordStore(), [free_port() for _ in range(3)]
    peers = tuple(f"127.0.0.1:{port}" for port in ports)
    fencers, asked = [KillingFencer(group) for _ in ports], [Asked() for _ in ports]
    planes = [
        await start_plane(
            store,
            directory=FixedDirectory(settings=STRICT),
            fencer=fencer,
            observer=observer,
            listen_port=port,
            peer_addresses=peers,
            **changes,
        )
        for port, fencer, observer in zip(ports, fencers, asked, strict=True)
    ]
    only_the_failover_asks(*planes)
    group.planes = list(reversed(peers))  # requests go to the last, heartbeats to all
    await group.three()
    await eventually(
        lambda: all((now := plane.snapshot(KEY)) and now.writable for plane in planes), what="all planes to know it"
    )
    return planes, fencers, asked


async def test_a_master_that_only_one_plane_does_not_hear_is_left_alone(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    """However long it lasts: two of three planes hear it, so it is the one plane that is cut off."""
    planes, fencers, asked = await _three_planes(start_plane, group, other_planes_patience_seconds=0.2)
    master = group.master()
    master.answers_ha_status = False  # the way from the deaf plane to it is cut as well
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


async def test_a_master_that_no_plane_hears_is_replaced(start_plane: StartPlane, group: FakeGroup) -> None:
    planes, fencers, _ = await _three_planes(start_plane, group)
    master = group.master()
    master.freeze()
    await eventually(lambda: record_of(planes[0]).master_epoch == 2, what="a new master")
    await eventually(lambda: all(snapshot_of(plane).writable for plane in planes), what="all planes to hear it")
    assert sorted(one for fencer in fencers for one in fencer.fenced)[:1] == [1]
    assert record_of(planes[0]).master_epoch == 2, "one epoch for one lost master"
    assert not any(record_of(plane).unfenced for plane in planes)


async def test_a_plane_with_a_stuck_view_does_not_keep_a_frozen_master_in_office_for_ever(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    stuck, fencer = StuckPlane(), KillingFencer(group)
    async with serving(stuck) as stuck_address:
        own = f"127.0.0.1:{free_port()}"
        plane = await start_plane(
            directory=FixedDirectory(settings=STRICT),
            fencer=fencer,
            listen_port=int(own.rpartition(":")[2]),
            peer_addresses=(own, stuck_address),
            other_planes_patience_seconds=1.2,
        )
        group.planes = [plane.address]
        await group.three()
        group.master().freeze()
        await eventually(lambda: snapshot_of(plane).spared_on_testimony, what="the other plane to be believed")
        assert fencer.fenced == []
        await eventually(lambda: fencer.fenced == [1], what="the patience to end")
        await eventually(lambda: snapshot_of(plane).writable and record_of(plane).master_epoch == 2)
        incident = snapshot_of(plane).last_failover
        assert incident is not None
        assert any("for too long" in line for line in incident.evidence)


async def test_a_plane_that_says_nothing_costs_its_deadline_and_no_more(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    mute, fencer = StuckPlane(answers=False), KillingFencer(group)
    async with serving(mute) as mute_address:
        own = f"127.0.0.1:{free_port()}"
        plane = await start_plane(
            directory=FixedDirectory(settings=STRICT),
            fencer=fencer,
            listen_port=int(own.rpartition(":")[2]),
            peer_addresses=(own, mute_address),
            other_planes_deadline_seconds=0.05,
        )
        only_the_failover_asks(plane)
        group.planes = [plane.address]
        await group.three()
        group.master().freeze()
        await eventually(lambda: snapshot_of(plane).writable and record_of(plane).master_epoch == 2)
        assert mute.asked == 1
        assert snapshot_of(plane).spared_on_testimony == 0


async def test_a_master_is_silent_only_once_it_could_have_been_heard_as_master(
    start_plane: StartPlane, group: FakeGroup
) -> None:
    """A plane that was cut off learned who is master now, found it silent for as long as the cut, and killed it.

    Seen on two nodes: the connections to the other planes were not mended yet, so none of them could speak for it.
    """
    store, own = MemoryRecordStore(), f"127.0.0.1:{free_port()}"
    fencers = [KillingFencer(group), KillingFencer(group)]
    other = await start_plane(store, directory=FixedDirectory(settings=STRICT), fencer=fencers[0])
    cut_off = await start_plane(
        store,
        directory=FixedDirectory(settings=STRICT),
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
    await asyncio.sleep(3.0)
    assert [fencer.fenced for fencer in fencers] == [[], []]
    assert record_of(cut_off).master_epoch == 2


async def test_a_certain_death_asks_nobody(start_plane: StartPlane, group: FakeGroup) -> None:
    planes, _, asked = await _three_planes(start_plane, group)
    await group.master().kill()
    await eventually(lambda: record_of(planes[0]).master_epoch == 2, what="a new master")
    assert [observer.testimonies for observer in asked] == [0, 0, 0]


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
