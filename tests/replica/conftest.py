"""Fixtures of the tests of running replicas: a fake controller, a client, and the lab of both and of replicas."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.demo.routes import RouteServer
from tests.controller.conftest import start_plane
from tests.replica.stores import Stores
from tests.replica.support import Client, FakeController, Lab
from tests.security.certificates import Authority, make_authority
from tests.support.fake_broker import FakeGroup
from tests.support.fake_name_server import FakeNameServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

__all__ = ["start_plane"]


@pytest.fixture
async def controller() -> AsyncIterator[FakeController]:
    fake = FakeController()
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def name_server() -> AsyncIterator[FakeNameServer]:
    fake = FakeNameServer(FakeGroup())
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def routes() -> AsyncIterator[RouteServer]:
    server = RouteServer()
    await server.start("127.0.0.1", 0)
    yield server
    await server.stop()


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
async def lab(controller: FakeController, client: Client, tmp_path: Path) -> AsyncIterator[Lab]:
    made = Lab(controller, client, tmp_path)
    yield made
    for replica in made.started:
        if not replica.task.done():
            await replica.stop()


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    made = Stores(tmp_path)
    yield made
    made.close_all()
