"""The embedded API with our kinds, for the tests of four packages."""

from __future__ import annotations

import contextlib
import functools
import json
from typing import TYPE_CHECKING, Any, TypeVar

from brokergroup_operator.api.definitions import generate
from brokergroup_operator.kube.client import KubernetesApi
from brokergroup_operator.kube.resources import CUSTOM_RESOURCE_DEFINITIONS
from kube_sandbox.api_server.kinds import model_schemas
from kube_sandbox.api_server.kinds.builtin import CUSTOM_RESOURCE_DEFINITIONS as CRDS
from kube_sandbox.api_server.kinds.custom_resources import custom_resource_types
from kube_sandbox.api_server.server import SandboxApiServer
from kube_sandbox.api_server.store.object_store import ObjectStore
from kube_sandbox.api_server.values import shallow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from kube_sandbox.api_server.resource_types import ResourceType
    from kube_sandbox.api_server.values import JsonObject

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


@functools.cache
def _stored() -> tuple[tuple[JsonObject, tuple[ResourceType, ...]], ...]:
    """Each definition as the embedded API stores it, with the resource that it serves: judged and compiled once in a process."""
    store = ObjectStore()
    model_schemas.load({CRDS.behaviour.model})
    stored = [store.create(CRDS, "", definition).obj for definition in our_definitions()]
    return tuple((one, tuple(custom_resource_types(one))) for one in stored)


def define_our_kinds(store: ObjectStore) -> None:
    """Put our kinds into a store, as if its clients had created the definitions."""
    for stored, types in _stored():
        spec = stored["spec"]
        store.storage.put(CRDS.storage_key, ("", stored["metadata"]["name"]), shallow(stored))
        store.registry.replace_custom(spec["group"], spec["names"]["plural"], types)


@contextlib.asynccontextmanager
async def server_with_kinds(definitions: Iterable[dict[str, Any]]) -> AsyncIterator[SandboxApiServer]:
    """Start a server on a free port; a client creates these kinds."""
    async with _started(ObjectStore()) as server:
        async with KubernetesApi.from_url(server.url) as client:
            for definition in definitions:
                await client.create(CUSTOM_RESOURCE_DEFINITIONS, definition, timeout_seconds=DEFINE_SECONDS)
        yield server


@contextlib.asynccontextmanager
async def server_with_our_kinds() -> AsyncIterator[SandboxApiServer]:
    """Start a server on a free port that has our kinds."""
    store = ObjectStore()
    define_our_kinds(store)
    async with _started(store) as server:
        yield server


@contextlib.asynccontextmanager
async def _started(store: ObjectStore) -> AsyncIterator[SandboxApiServer]:
    server = SandboxApiServer(store=store)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def api_with_our_kinds(client_type: type[Api]) -> AsyncIterator[Api]:
    """Start such a server; yield a client of the type that the test needs."""
    async with server_with_our_kinds() as server, client_type.from_url(server.url) as client:
        yield client
