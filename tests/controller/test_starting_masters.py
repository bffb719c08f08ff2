"""A master that has registered and not opened its port yet: at a plane that never heard it, it is starting and not dead.

As a Java broker does: it registers, asks for its election and heartbeats to the plane it found, and opens its port afterwards;
the other planes learn of it from the record. On a real cluster one fresh group was told as six failovers.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.controller.directory.group_directory import FixedDirectory
from brokergroup_operator.observe.observer import Observer
from brokergroup_operator.observe.timeline import Step, Trigger
from brokergroup_operator.records.memory import MemoryRecordStore
from controller_core.settings import ControllerSettings
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.command import request
from rocketmq_remoting.server import RemotingServer
from tests.controller.conftest import StartPlane, record_of
from tests.support.fake_broker import NAME, FakeBroker, FakeGroup, eventually
from tests.support.places import free_port

if TYPE_CHECKING:
    from brokergroup_operator.controller.plane import ControllerPlane
    from brokergroup_operator.observe.timeline import FailoverTimeline

SETTINGS = ControllerSettings(min_in_sync_replicas=1)


class UnopenedPort(RemotingServer):
    """Its address is known, and connections to it are refused."""

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


class Told(Observer):
    """The masters that a plane believed lost, and how often it was asked what it hears."""

    def __init__(self) -> None:
        self.lost: list[FailoverTimeline] = []
        self.asked = 0

    def master_lost(self, timeline: FailoverTimeline) -> None:
        self.lost.append(timeline)

    def request_answered(self, request_code: int, response_code: int, duration_seconds: float | None = None) -> None:
        self.asked += request_code == RequestCode.CONTROLLER_GET_SYNC_STATE_DATA


async def _look_up(plane: str) -> None:
    """1004: the plane meets the group, and reads its record."""
    client = RemotingClient()
    fields = {"brokerName": NAME}
    await client.invoke(plane, request(RequestCode.CONTROLLER_GET_REPLICA_INFO, ext_fields=fields), timeout_seconds=3.0)
    await client.close()


async def _two_planes(
    start_plane: StartPlane, group: FakeGroup, **changes: object
) -> tuple[list[ControllerPlane], list[Told]]:
    store, told, ports = MemoryRecordStore(), [Told(), Told()], [free_port(), free_port()]
    peers = tuple(f"127.0.0.1:{port}" for port in ports)
    planes = [
        await start_plane(
            store,
            directory=FixedDirectory(settings=SETTINGS),
            observer=observer,
            listen_port=port,
            peer_addresses=peers,
            **changes,
        )
        for port, observer in zip(ports, told, strict=True)
    ]
    group.planes = list(peers)
    return planes, told


async def test_a_master_that_another_plane_hears_is_starting(start_plane: StartPlane, group: FakeGroup) -> None:
    """However long it takes: the plane that never heard it asks the others before it takes a closed port for a death."""
    (first, second), (heard, unheard) = await _two_planes(
        start_plane, group, startup_timeout_seconds=0.3, other_planes_patience_seconds=1000.0
    )
    await _look_up(second.address)
    master = StartingBroker(group, unheard_at={second.address})
    await master.start()
    await group.broker()
    await _look_up(second.address)
    before = heard.asked
    await eventually(lambda: heard.asked > before + 5, what="the second plane to doubt, again and again")
    assert (heard.lost, unheard.lost) == ([], [])
    assert record_of(first).master_epoch == 1
    assert group.master() is master


@pytest.mark.real_time
async def test_a_master_nobody_else_can_speak_for_is_given_its_start(start_plane: StartPlane, group: FakeGroup) -> None:
    """The plane that heard it has gone: it has as long as a start takes, counted from when the record named it; then it is dead."""
    (first, second), (_, unheard) = await _two_planes(start_plane, group, startup_timeout_seconds=1.0)
    await _look_up(second.address)
    master = StartingBroker(group, unheard_at={second.address})
    await master.start()
    await _look_up(second.address)
    named_seconds = time.monotonic()
    await first.stop()
    await eventually(lambda: unheard.lost, what="the master to be given up")
    assert unheard.lost[0].steps[Step.DETECTED] > named_seconds + 1.0
    assert unheard.lost[0].trigger is Trigger.CONNECTION_REFUSED
