"""The embedded API and a process kubelet with short back-offs.

Also keeps pytest-asyncio from making an event loop that nobody closes: before its first test it asks for the current loop
to put it back later; on Python 3.11 that *creates* one, which the garbage collector then reports as unclosed, in whichever
test it happens to run. Saying "there is none" avoids it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import structlog

from brokergroup_operator.kube import KubernetesApi
from brokergroup_operator.sandbox.api_server.server import SandboxApiServer
from tests.kubelet.node_under_test import Node

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

asyncio.set_event_loop(None)


@pytest.fixture
async def server() -> AsyncIterator[SandboxApiServer]:
    server = SandboxApiServer()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def api(server: SandboxApiServer) -> AsyncIterator[KubernetesApi]:
    async with KubernetesApi.from_url(server.url) as api:
        yield api


@pytest.fixture
async def node(api: KubernetesApi, tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(api, tmp_path / "node")
    with structlog.testing.capture_logs() as logged:
        await node.kubelet.start()
        yield node
        await node.kubelet.stop()
    assert [entry for entry in logged if entry["log_level"] == "error"] == []
