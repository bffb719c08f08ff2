"""The operator's client of the Kubernetes API, in memory, with one thing going wrong at one exact place.

A run counts what the operator does from a mark on: its reads, its writes, and the events that its watches are handed. A
`Perturbation` names one of them and what happens to it. Undisturbed, the same run does the same things in the same order (the
loop's time is virtual and the API in the same process), so every one of them can be reached by its number.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from multidict import CIMultiDict

from brokergroup_operator.kube.client import KubernetesApi, WatchEvent
from brokergroup_operator.kube.errors import GoneError, OutcomeUnknownError, error_from_status
from brokergroup_operator.kube.settings import settings_from_url
from brokergroup_operator.sandbox.api_server import http_targets, http_verbs, model_schemas
from brokergroup_operator.sandbox.api_server.errors import StatusError
from brokergroup_operator.sandbox.api_server.requests import Selection
from brokergroup_operator.sandbox.api_server.server import SandboxApiServer
from brokergroup_operator.sandbox.api_server.store import ObjectStore

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator

    from brokergroup_operator.kube.resources import Resource
    from brokergroup_operator.sandbox.api_server.http_targets import Target
    from brokergroup_operator.sandbox.api_server.storage import Storage

HALF_A_ROUND_TRIP_SECONDS = 0.0005
# When virtual time begins, by the API's clock.
BEGINNING_UNIX_SECONDS = 1_700_000_000
# A stale answer is this many commits behind.
STALE_COMMITS = 6


class Fault(Enum):
    """What goes wrong, and with what."""

    KILLED_BEFORE_WRITE = "write: the operator dies before it"
    KILLED_AFTER_WRITE = "write: done, and the operator dies"
    REPLY_LOST = "write: done, and its answer lost"
    CONFLICT = "write: 409"
    TOO_MANY_REQUESTS = "write: 429"
    SERVER_ERROR = "write: 500, not done"
    STALE_READ = "read: served from the past"
    READ_GONE = "read: 410"
    READ_TOO_MANY_REQUESTS = "read: 429"
    READ_SERVER_ERROR = "read: 500"
    EVENT_DROPPED = "event: dropped"
    EVENT_DOUBLED = "event: doubled"
    EVENT_LATE = "event: handed over after the next one"
    WATCH_EXPIRED = "event: 410 in its place"

    @property
    def target(self) -> str:
        """`write`, `read` or `event`."""
        return self.value.partition(":")[0]


STATUS_OF = {
    Fault.CONFLICT: (409, "Conflict"),
    Fault.TOO_MANY_REQUESTS: (429, "TooManyRequests"),
    Fault.SERVER_ERROR: (500, "InternalError"),
    Fault.READ_GONE: (410, "Expired"),
    Fault.READ_TOO_MANY_REQUESTS: (429, "TooManyRequests"),
    Fault.READ_SERVER_ERROR: (500, "InternalError"),
}


class Plan(Protocol):
    """What goes wrong in a run."""

    def fault_at(self, target: str, number: int) -> Fault | None:
        """What happens to the n-th read, write or event after the mark."""


@dataclass(frozen=True)
class Perturbation:
    """The n-th of its target (from 0) after the mark."""

    fault: Fault
    number: int

    def fault_at(self, target: str, number: int) -> Fault | None:
        """The fault, at its place."""
        return self.fault if (self.fault.target, self.number) == (target, number) else None

    def __str__(self) -> str:
        return f"{self.fault.value} (number {self.number})"


@dataclass
class Counts:
    """What the operator did since the mark, in order."""

    write: list[str] = field(default_factory=list)
    read: list[str] = field(default_factory=list)
    event: list[str] = field(default_factory=list)


class _Request:
    """What http_verbs reads of an aiohttp request."""

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
        return http_targets.find_target(self.store.registry, path)

    async def answer(self, request: _Request) -> tuple[int, Any]:
        """Status and decoded body."""
        try:
            response: Any = await self._server._answer_target(request, self.target(request.path))  # type: ignore[arg-type]
        except StatusError as error:
            response = http_verbs.error_response(error)
        return response.status, msgspec.json.decode(response.body)

    @contextlib.contextmanager
    def past(self, commits: int) -> Iterator[None]:
        """Inside, reads see the collections as they were so many commits ago."""
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
    """A client without faults: what the kubelet and the test use."""

    def __init__(self, server: MemoryApiServer) -> None:
        super().__init__(settings_from_url("http://memory"))
        self.server = server
        # (method, path, content type) of everything that was asked.
        self.asked: list[tuple[str, str, str]] = []

    async def _request(
        self,
        method: str,
        path: str,
        *,
        timeout_seconds: float,
        body: Any = None,
        content_type: str = "application/json",
        parameters: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        self.asked.append((method, path, content_type))
        await asyncio.sleep(HALF_A_ROUND_TRIP_SECONDS)
        encoded = b"" if body is None else msgspec.json.encode(body)
        status, decoded = await self.server.answer(_Request(method, path, parameters or {}, encoded, content_type))
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
                    await asyncio.wait_for(ready.wait(), ends_at - loop.time())
                ready.clear()
                await asyncio.sleep(HALF_A_ROUND_TRIP_SECONDS)
                for event in watch.take():
                    obj = msgspec.json.decode(store.as_seen(served, event.version).encoded)
                    yield WatchEvent(event.type, obj)
        finally:
            watch.close()


class PerturbedApi(MemoryApi):
    """The operator's client: counts from `mark` on, and does what the plan says. `kill` ends the operator."""

    def __init__(self, server: MemoryApiServer, kill: Callable[[], None], is_dead: Callable[[], bool]) -> None:
        super().__init__(server)
        self.counts: Counts | None = None
        self.plan: Plan | None = None
        self._kill = kill
        self._is_dead = is_dead

    def _fault(self, target: str, what: str) -> Fault | None:
        """Count one thing, and say what is to happen to it."""
        if self.counts is None:
            return None
        done: list[str] = getattr(self.counts, target)
        done.append(what)
        return None if self.plan is None else self.plan.fault_at(target, len(done) - 1)

    async def _request(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        if self._is_dead():
            raise OutcomeUnknownError(f"{method} {path}: nobody is there to ask")
        if path.endswith("/events"):  # telling is best effort, and what is told differs with what happens
            return await super()._request(method, path, **options)
        fault = self._fault("read" if method == "GET" else "write", f"{method} {path}")
        if fault in STATUS_OF:
            status, reason = STATUS_OF[fault]
            raise error_from_status(f"{method} {path}", status, {"reason": reason}, write=method != "GET")
        if fault is Fault.KILLED_BEFORE_WRITE:
            await self._die()
        if fault is Fault.STALE_READ:
            with self.server.past(STALE_COMMITS):
                status, decoded = await self.server.answer(
                    _Request(method, path, options.get("parameters") or {}, b"", "application/json")
                )
            if status >= 400:
                raise error_from_status(f"{method} {path}", status, decoded, write=False)
            return dict(decoded)
        answer = await super()._request(method, path, **options)
        if fault is Fault.KILLED_AFTER_WRITE:
            await self._die()
        if fault is Fault.REPLY_LOST:
            raise OutcomeUnknownError(f"{method} {path}: the answer was lost", status=None)
        return answer

    async def _die(self) -> None:
        self._kill()
        await asyncio.Event().wait()

    async def watch(self, resource: Resource, **options: Any) -> AsyncGenerator[WatchEvent]:
        late: WatchEvent | None = None
        async with contextlib.aclosing(super().watch(resource, **options)) as events:
            async for event in events:
                name = event.object["metadata"].get("name", "")
                fault = self._fault("event", f"{event.type} {resource.plural}/{name}")
                if fault is Fault.WATCH_EXPIRED:
                    raise GoneError(f"WATCH {resource.plural}: too old", status=410)
                if fault is Fault.EVENT_DROPPED:
                    continue
                if fault is Fault.EVENT_LATE:
                    late = event
                    continue
                yield event
                if fault is Fault.EVENT_DOUBLED:
                    yield event
                if late is not None:
                    yield late
                    late = None
