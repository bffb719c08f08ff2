"""The embedded API in a separate thread: the plugin blocks like any command, and so may its tests."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from tests.kubectl.bench import Bench
from tests.our_kinds import server_with_our_kinds

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kube_sandbox.api_server.server import SandboxApiServer

START_SECONDS = 60.0


@pytest.fixture(scope="session")
def sandbox_url() -> Iterator[str]:
    loop, started, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    servers: list[SandboxApiServer] = []

    async def serve() -> None:
        async with server_with_our_kinds() as server:
            servers.append(server)
            started.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert started.wait(START_SECONDS), "the embedded API did not start"
    yield servers[0].url
    loop.call_soon_threadsafe(stop.set)
    thread.join(START_SECONDS)
    loop.close()


@pytest.fixture
def bench(sandbox_url: str, tmp_path: Path) -> Iterator[Bench]:
    """A namespace of the test's own, and a kubeconfig whose context names it."""
    with Bench(sandbox_url, tmp_path) as made:
        yield made
