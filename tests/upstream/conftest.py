"""The controllers that show an upstream issue: the Java one, which needs Java, and ours, which needs no real part."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.controller.directory.group_directory import FixedDirectory
from brokergroup_operator.controller.plane import ControllerPlane
from brokergroup_operator.controller.settings import PlaneSettings, SecuritySettings
from brokergroup_operator.records.memory import MemoryRecordStore
from tests.controller.conftest import stop_at_once
from tests.real.parts import install
from tests.support import virtual_time
from tests.upstream.java_controllers import JavaHost, start_jraft, wait_until_leading
from tests.upstream.lab import Controller, StartOurs, WireGroup

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytest_asyncio_loop_factories = virtual_time.pytest_asyncio_loop_factories

REAL_JAVA = pytest.mark.real("java", "rocketmq")
BOTH = [pytest.param("java", marks=REAL_JAVA), pytest.param("ours")]

# Short times: a test waits for events, not for timers. No test asserts on them.
QUICK = PlaneSettings(
    listen_host="127.0.0.1",
    listen_port=0,
    tick_seconds=0.01,
    heartbeat_timeout_seconds=0.6,
    startup_timeout_seconds=1.0,
    broker_rescan_seconds=0.2,
    reconnect_grace_seconds=0.3,
    role_change_deadline_seconds=1.0,
    leftover_fence_seconds=0.3,
    link_missing_seconds=0.1,
    incident_deadline_seconds=2.0,
    drain_deadline_seconds=0.5,
    # tests/security covers administrators; here every client may administer, as at a Java controller.
    security=SecuritySettings(open_admin=True),
)


@pytest.fixture(scope="session")
def java_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaHost]:
    """One Java controller for all tests: each uses its own group names."""
    host = JavaHost.start(tmp_path_factory.mktemp("java-controller"))
    yield host
    host.program.process.kill()


@pytest.fixture
def java_controller(java_host: JavaHost) -> Controller:
    """The Java controller on DLedger as tests use it."""

    async def restart() -> None:
        await asyncio.to_thread(java_host.restart)

    return Controller(java_host.program.address, "java", restart=restart)


@pytest.fixture(scope="session")
def jraft_controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    """A Java controller on jRaft."""
    program = start_jraft(tmp_path_factory.mktemp("jraft-controller"))
    try:
        yield Controller(wait_until_leading(program).address, "jraft")
    finally:
        program.process.kill()


@pytest.fixture(scope="session")
def older_jraft_controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    """A Java controller on jRaft, of the older pinned version."""
    folder = tmp_path_factory.mktemp("older-jraft-controller")
    program = start_jraft(folder, version=install.OLDER_CONTROLLER_VERSION)
    try:
        yield Controller(wait_until_leading(program).address, "older_jraft")
    finally:
        program.process.kill()


@pytest.fixture
async def start_ours() -> AsyncIterator[StartOurs]:
    """Starts our standalone controller."""
    planes: list[ControllerPlane] = []

    async def start(*, store: Any = None, directory: Any = None, fencer: Any = None, **changes: Any) -> Controller:
        directory = directory or FixedDirectory()
        store = store or MemoryRecordStore()
        plane = ControllerPlane(store=store, directory=directory, settings=replace(QUICK, **changes), fencer=fencer)
        planes.append(plane)
        await plane.start()

        async def restart() -> None:
            await planes[-1].stop()
            _, _, port = plane.address.rpartition(":")
            await start(store=store, directory=directory, fencer=fencer, **changes | {"listen_port": int(port)})

        return Controller(plane.address, "ours", restart=restart)

    yield start
    for plane in planes:
        await stop_at_once(plane)


@pytest.fixture
async def ours(start_ours: StartOurs) -> Controller:
    """Our controller with default settings."""
    return await start_ours()


def controller_of(request: pytest.FixtureRequest, kind: str) -> Controller:
    """Return the controller of this kind; only this one starts."""
    found: Controller = request.getfixturevalue("ours" if kind == "ours" else f"{kind}_controller")
    return found


@pytest.fixture(params=BOTH)
def controller(request: pytest.FixtureRequest) -> Controller:
    """The Java controller, then ours."""
    return controller_of(request, request.param)


@pytest.fixture(params=[pytest.param("jraft", marks=REAL_JAVA), *BOTH])
def all_controllers(request: pytest.FixtureRequest) -> Controller:
    """The Java controller on jRaft, then the one on DLedger, then ours."""
    return controller_of(request, request.param)


OLDER_JAVA = pytest.mark.real("java", "older-java-controller")


@pytest.fixture(params=[pytest.param("older_jraft", marks=OLDER_JAVA), pytest.param("jraft", marks=REAL_JAVA), *BOTH])
def all_controllers_and_an_older(request: pytest.FixtureRequest) -> Controller:
    """The older Java controller on jRaft, then those of `all_controllers`."""
    return controller_of(request, request.param)


@pytest.fixture
async def group(controller: Controller) -> AsyncIterator[WireGroup]:
    """A group at the controller under test."""
    async with WireGroup(controller) as group:
        yield group
