"""The real parts as fixtures. A test that asks for one also carries the marker that names the part."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from rocketmq_remoting.client import RemotingClient
from tests.real.parts import install
from tests.real.parts.java import JavaProgram, start_name_server
from tests.real.parts.prometheus import Prometheus, start_prometheus
from tests.support.java_rig import JavaRig
from tests.support.kube_apiserver import KubeApiserver, running_kube_apiserver

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def with_kinds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeApiserver]:
    """A real kube-apiserver with our kinds, one for the whole run: tests use namespaces of their own."""
    with running_kube_apiserver(tmp_path_factory.mktemp("kube-apiserver"), our_kinds=True) as server:
        yield server


@pytest.fixture
def namespace(with_kinds: KubeApiserver) -> str:
    """A namespace of the test's own: without a controller-manager none is ever emptied."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    with_kinds.must("create", "namespace", name)
    return name


@pytest.fixture(scope="session")
def rocketmq_home() -> Path:
    """The folder whose lib/ holds the Java jars."""
    return install.rocketmq_home()


@pytest.fixture
def java_name_server(tmp_path: Path) -> Iterator[JavaProgram]:
    """A real NameServer, listening."""
    name_server = start_name_server(tmp_path / "namesrv")
    try:
        yield name_server.wait_until_listening()
    finally:
        name_server.process.kill()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[JavaRig]:
    """A NameServer and brokers, ended after the test."""
    rig = JavaRig(tmp_path)
    yield rig
    rig.stop()


@pytest.fixture
async def client() -> AsyncIterator[RemotingClient]:
    client = RemotingClient()
    yield client
    await client.close()


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Callable[[list[str]], Prometheus]]:
    """Starts a real Prometheus that scrapes the `host:port` targets given."""
    started: list[Prometheus] = []

    def start(targets: list[str]) -> Prometheus:
        started.append(start_prometheus(tmp_path / f"prometheus-{len(started)}", targets=targets))
        return started[-1]

    yield start
    for program in started:
        program.process.stop()
