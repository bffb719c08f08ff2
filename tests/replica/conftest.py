"""Fixtures of the end-to-end tests: a fake controller, a client, and a starter of replicas that stops them again."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from tests.controller.conftest import start_plane
from tests.replica.support import Client, FakeController, RunningReplica, Starter, start_replica
from tests.security.certificates import Authority, make_authority

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

__all__ = ["client", "controller", "start", "start_plane"]


@pytest.fixture
async def controller() -> AsyncIterator[FakeController]:
    fake = FakeController()
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    if shutil.which("openssl") is None:
        pytest.fail("this test needs the openssl program")
    return make_authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    each = Client()
    yield each
    await each.remoting.close()


@pytest.fixture
async def start(controller: FakeController, tmp_path: Path) -> AsyncIterator[Starter]:
    started: list[RunningReplica] = []

    async def starter(name: str, **keys: Any) -> RunningReplica:
        replica = await start_replica(tmp_path / name, controller.address, **keys)
        started.append(replica)
        return replica

    yield starter
    for replica in started:
        if not replica.task.done():
            await replica.stop()
