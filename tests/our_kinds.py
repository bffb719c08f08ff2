"""The embedded API with our kinds in it: what the tests of four packages start from."""

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
    from collections.abc import AsyncIterator

Api = TypeVar("Api", bound=KubernetesApi)
# The first kind of a process costs the embedded API seconds.
DEFINE_SECONDS = 60.0


@functools.cache
def _definitions() -> str:
    return json.dumps([generate.custom_resource_definition(kind) for kind in generate.KINDS])


def our_definitions() -> list[dict[str, Any]]:
    """The CustomResourceDefinitions as the types say now, the caller's own; made once in a process, for that takes it a second."""
    found: list[dict[str, Any]] = json.loads(_definitions())
    return found


@contextlib.asynccontextmanager
async def server_with_our_kinds() -> AsyncIterator[SandboxApiServer]:
    """A server on a port of its own, with the kinds as the types say now, and the namespace `default`."""
    server = SandboxApiServer()
    await server.start()
    try:
        async with KubernetesApi.from_url(server.url) as client:
            for definition in our_definitions():
                await client.create(CUSTOM_RESOURCE_DEFINITIONS, definition, timeout_seconds=DEFINE_SECONDS)
            with contextlib.suppress(AlreadyExistsError):
                await client.create(NAMESPACES, {"metadata": {"name": "default"}})
        yield server
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def api_with_our_kinds(client_type: type[Api]) -> AsyncIterator[Api]:
    """A client, of the type that the test needs, of such a server."""
    async with server_with_our_kinds() as server, client_type.from_url(server.url) as client:
        yield client
