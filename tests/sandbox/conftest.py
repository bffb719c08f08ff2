"""A server on its own port, a definition to play with, and small helpers for every test in this folder."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from kube_sandbox.api_server.kinds.builtin import CUSTOM_RESOURCE_DEFINITIONS
from kube_sandbox.api_server.server import SandboxApiServer
from kube_sandbox.api_server.store.object_store import ObjectStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from kube_sandbox.api_server.resource_types import ResourceType


class Clock:
    """Time that moves when a test says so."""

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
def thing() -> Callable[..., dict[str, Any]]:
    """Makes Things."""

    def make(name: str = "one", **spec: Any) -> dict[str, Any]:
        return {
            "apiVersion": "example.dev/v1",
            "kind": "Thing",
            "metadata": {"name": name},
            "spec": {"mode": "Small", **spec},
        }

    return make


@pytest.fixture
def until() -> Callable[..., Awaitable[Any]]:
    """Waits for a condition to give something true, which it returns; fails after a deadline."""

    async def wait(condition: Callable[[], Any], *, seconds: float = 10.0) -> Any:
        async with asyncio.timeout(seconds):
            while not (found := condition()):  # noqa: ASYNC110  the condition is anybody's state, nobody signals it
                await asyncio.sleep(0.01)
        return found

    return wait


@pytest.fixture
def things(store: ObjectStore) -> ResourceType:
    return store.resource("example.dev", "v1", "things")
