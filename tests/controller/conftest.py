"""Controller planes, and scripted brokers that speak to them."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest

from brokergroup_operator.controller.change.fencing import Fencer
from brokergroup_operator.controller.detect.api_contact import ApiContact
from brokergroup_operator.controller.directory.group_directory import FixedDirectory
from brokergroup_operator.controller.group.group import Group
from brokergroup_operator.controller.plane import ControllerPlane
from brokergroup_operator.controller.settings import PlaneSettings, SecuritySettings
from brokergroup_operator.observe.group_view import GroupSnapshot, GroupView
from brokergroup_operator.observe.observer import Observer
from brokergroup_operator.records.memory import MemoryRecordStore
from brokergroup_operator.records.store import GroupKey, RecordStore
from controller_core.model import BrokerGroupRecord
from rocketmq_remoting.client import RemotingClient
from tests.controller.cluster import api, cluster, directory, quick
from tests.controller.world import KEY, World
from tests.support import virtual_time
from tests.support.fake_name_server import FakeNameServer

pytest_asyncio_loop_factories = virtual_time.pytest_asyncio_loop_factories

__all__ = ["api", "cluster", "directory", "quick"]

StartPlane = Callable[..., Awaitable[ControllerPlane]]

# Short times: a test waits for events, not for timers. No test asserts on them.
QUICK = PlaneSettings(
    security=SecuritySettings(open_admin=True),
    listen_host="127.0.0.1",
    listen_port=0,
    tick_seconds=0.01,
    heartbeat_timeout_seconds=0.6,
    startup_timeout_seconds=3.0,
    broker_rescan_seconds=0.2,
    reconnect_grace_seconds=0.3,
    role_change_deadline_seconds=2.0,
    leftover_fence_seconds=0.3,
    link_missing_seconds=0.1,
    incident_deadline_seconds=2.0,
    drain_deadline_seconds=0.5,
)


@pytest.fixture
async def start_plane() -> AsyncIterator[StartPlane]:
    planes: list[ControllerPlane] = []

    async def start(
        store: RecordStore | None = None,
        *,
        directory: FixedDirectory | None = None,
        fencer: Fencer | None = None,
        contact: ApiContact | None = None,
        observer: Observer | None = None,
        **changes: object,
    ) -> ControllerPlane:
        plane = ControllerPlane(
            store=store or MemoryRecordStore(),
            directory=directory or FixedDirectory(),
            settings=replace(QUICK, **changes),  # type: ignore[arg-type]
            fencer=fencer,
            contact=contact,
            observer=observer,
        )
        planes.append(plane)
        await plane.start()
        return plane

    yield start
    for plane in planes:
        await stop_at_once(plane)


@pytest.fixture
async def group(start_plane: StartPlane) -> AsyncIterator[World]:
    """Scripted brokers of one group and the planes over them; the test starts both."""
    started = World(start_plane)
    yield started
    await started.stop()


@pytest.fixture
async def name_server(group: World) -> AsyncIterator[FakeNameServer]:
    """A NameServer of the group; the test starts it."""
    made = FakeNameServer(group)
    yield made
    await made.stop()


@pytest.fixture
async def client() -> AsyncIterator[RemotingClient]:
    """A caller that is no broker."""
    made = RemotingClient()
    yield made
    await made.close()


@pytest.fixture
async def loop_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stamp the steps of incidents with the time of the test's loop."""
    monkeypatch.setattr(time, "monotonic", asyncio.get_running_loop().time)


async def stop_at_once(plane: ControllerPlane) -> None:
    """Stop planes without their 5 s wait for a change of master: after a test its brokers are gone."""
    plane._settings = replace(plane._settings, last_change_seconds=0.0)
    await plane.stop()


def snapshot_of(plane: GroupView, key: GroupKey = KEY) -> GroupSnapshot:
    """Return the plane's snapshot of a group that it knows."""
    snapshot = plane.snapshot(key)
    assert snapshot is not None, f"the plane does not know {key}"
    return snapshot


def record_of(plane: GroupView, key: GroupKey = KEY) -> BrokerGroupRecord:
    """Return the plane's copy of a record that must exist."""
    record = snapshot_of(plane, key).record
    assert record is not None, f"the plane knows no record of {key}"
    return record


def group_of(plane: ControllerPlane, key: GroupKey = KEY) -> Group:
    """Return the plane's own state of a group that it knows."""
    found = plane._groups.get(key)
    assert found is not None, f"the plane does not know {key}"
    return found
