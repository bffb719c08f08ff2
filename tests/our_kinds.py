"""The embedded API with our kinds, for the tests of four packages."""

from __future__ import annotations

import contextlib
import functools
import json
from typing import TYPE_CHECKING, Any, TypeVar

from brokergroup_operator.api.definitions import generate
from brokergroup_operator.kube.client import KubernetesApi
from brokergroup_operator.kube.errors import AlreadyExistsError
from brokergroup_operator.kube.resources import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES
from kube_sandbox.api_server.server import SandboxApiServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

Api = TypeVar("Api", bound=KubernetesApi)
# The first kind in a process costs the embedded API seconds.
DEFINE_SECONDS = 60.0


@functools.cache
def _definitions() -> str:
    return json.dumps([generate.custom_resource_definition(kind) for kind in generate.KINDS])


def our_definitions() -> list[dict[str, Any]]:
    """Return the caller's copy of the types' CustomResourceDefinitions; generated once in a process, which takes a second."""
    found: list[dict[str, Any]] = json.loads(_definitions())
    return found


@contextlib.asynccontextmanager
async def server_with_kinds(definitions: Iterable[dict[str, Any]]) -> AsyncIterator[SandboxApiServer]:
    """Start a server on a free port, with these kinds and the namespace `default`."""
    server = SandboxApiServer()
    await server.start()
    try:
        async with KubernetesApi.from_url(server.url) as client:
            for definition in definitions:
                await client.create(CUSTOM_RESOURCE_DEFINITIONS, definition, timeout_seconds=DEFINE_SECONDS)
            with contextlib.suppress(AlreadyExistsError):
                await client.create(NAMESPACES, {"metadata": {"name": "default"}})
        yield server
    finally:
        await server.stop()


def server_with_our_kinds() -> contextlib.AbstractAsyncContextManager[SandboxApiServer]:
    return server_with_kinds(our_definitions())


@contextlib.asynccontextmanager
async def api_with_our_kinds(client_type: type[Api]) -> AsyncIterator[Api]:
    """Start such a server; yield a client of the type that the test needs."""
    async with server_with_our_kinds() as server, client_type.from_url(server.url) as client:
        yield client
