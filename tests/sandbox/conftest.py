"""A server on its own port, a store without one, and a definition to play with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from kube_sandbox.api_server.kinds.builtin import CUSTOM_RESOURCE_DEFINITIONS
from kube_sandbox.api_server.server import SandboxApiServer
from kube_sandbox.api_server.store.object_store import ObjectStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kube_sandbox.api_server.resource_types import ResourceType


class Clock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def definition() -> dict[str, Any]:
    made: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "crds" / "things.yaml").read_text())
    return made


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock, definition: dict[str, Any]) -> ObjectStore:
    """A store without sockets that serves Things."""
    made = ObjectStore(clock=clock, seed=7)
    made.create(CUSTOM_RESOURCE_DEFINITIONS, "", definition)
    return made


@pytest.fixture
async def server(definition: dict[str, Any]) -> AsyncIterator[SandboxApiServer]:
    """A running server that serves Things."""
    running = SandboxApiServer(bookmark_interval_seconds=0.2)
    running.store.create(CUSTOM_RESOURCE_DEFINITIONS, "", definition)
    await running.start()
    try:
        yield running
    finally:
        await running.stop()


@pytest.fixture
def kubeconfig(server: SandboxApiServer, tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    server.write_kubeconfig(path)
    return path


@pytest.fixture
def things(store: ObjectStore) -> ResourceType:
    return store.resource("example.dev", "v1", "things")
