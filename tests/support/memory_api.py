"""The Kubernetes API in memory, and a client of it: the embedded API without its sockets, for runs in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import msgspec
from multidict import CIMultiDict

from brokergroup_operator.kube.client import KubernetesApi, WatchEvent
from brokergroup_operator.kube.errors import GoneError, error_from_status
from brokergroup_operator.kube.settings import settings_from_url
from kube_sandbox.api_server import verbs
from kube_sandbox.api_server.errors import NoSuchPathError, StatusError
from kube_sandbox.api_server.kinds import model_schemas
from kube_sandbox.api_server.requests import Selection
from kube_sandbox.api_server.server import SandboxApiServer
from kube_sandbox.api_server.store.object_store import ObjectStore

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from brokergroup_operator.kube.resources import Resource
    from kube_sandbox.api_server.store.storage import Storage
    from kube_sandbox.api_server.verbs import Target

HALF_A_ROUND_TRIP_SECONDS = 0.0005
# The start of virtual time on the API's clock.
BEGINNING_UNIX_SECONDS = 1_700_000_000


class MemoryRequest:
    """The parts of an aiohttp request that `verbs` reads."""

    def __init__(self, method: str, path: str, query: dict[str, str], body: bytes, content_type: str) -> None:
        self.method, self.path, self.query, self.content_type = method, path, query, content_type
        self.headers: CIMultiDict[str] = CIMultiDict({"User-Agent": "operator", "Accept": "application/json"})
        self._body = body

    async def read(self) -> bytes:
        return self._body


class MemoryApiServer:
    """The embedded API without its sockets."""

    def __init__(self) -> None:
        self.store = ObjectStore(seed=1, clock=lambda: BEGINNING_UNIX_SECONDS + asyncio.get_running_loop().time())
        self._server = SandboxApiServer(store=self.store)
        model_schemas.load({resource.behaviour.model for resource in self.store.registry} - {""})
        loop = asyncio.get_running_loop()

        def run_background_soon() -> None:
            loop.call_soon(self.store.run_background)

        self.store.on_background_work = run_background_soon

    def target(self, path: str) -> Target:
        return verbs.find_target(self.store.registry, path)

    async def answer(self, request: MemoryRequest) -> tuple[int, Any]:
        """Return status and decoded body."""
        try:
            response: Any = await self._server._answer_target(request, self.target(request.path))  # type: ignore[arg-type]
        except StatusError as error:
            response = verbs.error_response(error)
        except NoSuchPathError:
            return 404, {"kind": "Status", "reason": "NotFound", "message": "404 page not found", "code": 404}
        return response.status, msgspec.json.decode(response.body)

    @contextlib.contextmanager
    def past(self, commits: int) -> Iterator[None]:
        """Within the block, reads see the collections as of this many commits ago."""
        storage = self.store.storage
        revision = max(1, storage.revision - commits)
        present, now = {}, storage.revision
        for key, collection in storage._collections.items():
            present[key] = collection.objects
            collection.objects = _as_of(storage, key, revision)
        storage.revision = revision
        try:
            yield
        finally:
            storage.revision = now
            for key, objects in present.items():
                storage._collections[key].objects = objects


def _as_of(storage: Storage, key: tuple[str, str], revision: int) -> dict[Any, Any]:
    collection = storage._collections[key]
    objects = dict(collection.objects)
    for change in reversed(collection.history):
        if change.version.resource_version <= revision:
            break
        name = (change.namespace, change.version.obj["metadata"]["name"])
        if change.before is None:
            objects.pop(name, None)
        else:
            objects[name] = change.before
    return objects


class MemoryApi(KubernetesApi):
    """A client without faults, for the kubelet and the test."""

    def __init__(self, server: MemoryApiServer) -> None:
        super().__init__(settings_from_url("http://memory"))
        self.server = server
        # (method, path, content type) of every request.
        self.asked: list[tuple[str, str, str]] = []

    async def _request(
        self,
        method: str,
        path: str,
        *,
        timeout_seconds: float | None,
        body: Any = None,
        content_type: str = "application/json",
        parameters: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        self.asked.append((method, path, content_type))
        await asyncio.sleep(HALF_A_ROUND_TRIP_SECONDS)
        encoded = b"" if body is None else msgspec.json.encode(body)
        status, decoded = await self.server.answer(MemoryRequest(method, path, parameters or {}, encoded, content_type))
        await asyncio.sleep(HALF_A_ROUND_TRIP_SECONDS)
        if status >= 400:
            raise error_from_status(f"{method} {path}", status, decoded, write=method != "GET")
        return dict(decoded)

    async def watch(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
        timeout_seconds: float = 60.0,
    ) -> AsyncGenerator[WatchEvent]:
        self.asked.append(("WATCH", resource.collection_path(namespace), ""))
        store, loop = self.server.store, asyncio.get_running_loop()
        served = self.server.target(resource.collection_path(namespace)).resource
        ready = asyncio.Event()
        try:
            watch = store.watch(
                served, Selection(namespace or "", label_selector, field_selector), since=int(resource_version)
            )
        except StatusError as error:
            raise GoneError(str(error), status=410) from error
        watch.on_ready = ready.set
        ready.set()
        ends_at = loop.time() + timeout_seconds
        try:
            while not watch.closed and loop.time() < ends_at:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(ends_at - loop.time()):
                        await ready.wait()
                ready.clear()
                await asyncio.sleep(HALF_A_ROUND_TRIP_SECONDS)
                for event in watch.take():
                    obj = msgspec.json.decode(event.version.encoded)
                    yield WatchEvent(event.type, obj)
        finally:
            watch.close()
