"""The embedded API with our kinds, for the tests that let the reconcile plane write."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml

from brokergroup_operator.api import generate
from brokergroup_operator.kube.client import KubernetesApi
from brokergroup_operator.kube.resources import CUSTOM_RESOURCE_DEFINITIONS
from brokergroup_operator.sandbox.api_server.server import SandboxApiServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def sandbox() -> AsyncIterator[SandboxApiServer]:
    server = SandboxApiServer()
    await server.start()
    try:
        async with KubernetesApi.from_url(server.url) as client:
            for text in generate.generated_files().values():
                await client.create(CUSTOM_RESOURCE_DEFINITIONS, yaml.safe_load(text))
        yield server
    finally:
        await server.stop()


@pytest.fixture
async def api(sandbox: SandboxApiServer) -> AsyncIterator[KubernetesApi]:
    async with KubernetesApi.from_url(sandbox.url) as client:
        yield client
