"""A local copy of one kind, kept by list and watch; level-triggered, so a lost event only costs time."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing
from types import MappingProxyType
from typing import TYPE_CHECKING

import structlog

from kube_sandbox.client import ApiError, ApiUnavailableError, GoneError, JsonObject, KubeClient, WatchEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kube_sandbox.client import Resource

FIRST_BACKOFF_SECONDS = 0.05
LAST_BACKOFF_SECONDS = 2.0
WATCH_SECONDS = 60.0

log = structlog.get_logger(__name__)

ObjectKey = tuple[str, str]


def key_of(obj: JsonObject) -> ObjectKey:
    """Return ``(namespace, name)`` of an object; the namespace of a cluster-wide object is empty."""
    metadata = obj["metadata"]
    return (metadata.get("namespace", ""), metadata["name"])


class Reflector:
    """Run ``run()`` as a task and read ``objects``. ``on_change`` is called in the event loop and must not block.

    After a relist the differences come as watch events too; a DELETED then has the last object seen.
    """

    def __init__(
        self, api: KubeClient, resource: Resource, *, on_change: Callable[[WatchEvent], None] | None = None
    ) -> None:
        self._api = api
        self._resource = resource
        self._on_change = on_change
        self._objects: dict[ObjectKey, JsonObject] = {}
        self._resource_version = ""
        self._synced = asyncio.Event()
        self._last_error = "it has not answered yet"

    @property
    def objects(self) -> Mapping[ObjectKey, JsonObject]:
        """The objects by key. Do not change them."""
        return MappingProxyType(self._objects)

    async def wait_synced(self, timeout_seconds: float) -> None:
        """Wait for the first list; raises ApiUnavailableError with the API's last error."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._synced.wait()
        except TimeoutError as error:
            raise ApiUnavailableError(
                f"no list of {self._resource.plural} within {timeout_seconds:g} s: {self._last_error}"
            ) from error

    async def run(self) -> None:
        """List and watch until cancelled; retry with backoff."""
        backoff_seconds = FIRST_BACKOFF_SECONDS
        clock = asyncio.get_running_loop().time
        while True:
            started = clock()
            try:
                if not self._resource_version:
                    await self._relist()
                await self._follow()
            except ApiError as error:
                self._last_error = str(error)
                # Also 403 and 404: rights and kinds may be created later.
                if not isinstance(error, GoneError):
                    log.warning("reflector waits for the API", kind=self._resource.kind, error=str(error))
                if error.status is not None:
                    # The server refused the resourceVersion: list again.
                    self._resource_version = ""
            if clock() - started > LAST_BACKOFF_SECONDS:
                backoff_seconds = FIRST_BACKOFF_SECONDS
            await asyncio.sleep(backoff_seconds * random.uniform(0.5, 1.0))  # noqa: S311 (jitter, not a secret)
            backoff_seconds = min(backoff_seconds * 2, LAST_BACKOFF_SECONDS)

    async def _relist(self) -> None:
        objects, resource_version = await self._api.list(self._resource)
        found = {key_of(obj): obj for obj in objects}
        for key in self._objects.keys() - found.keys():
            self._take_in(WatchEvent("DELETED", self._objects[key]))
        for key, obj in found.items():
            known = self._objects.get(key)
            if known is not None and known["metadata"]["uid"] != obj["metadata"]["uid"]:
                # Deleted and created again between two lists: two events.
                self._take_in(WatchEvent("DELETED", known))
                known = None
            if known is None:
                self._take_in(WatchEvent("ADDED", obj))
            elif known["metadata"]["resourceVersion"] != obj["metadata"]["resourceVersion"]:
                self._take_in(WatchEvent("MODIFIED", obj))
        self._resource_version = resource_version
        self._synced.set()

    async def _follow(self) -> None:
        events = self._api.watch(self._resource, resource_version=self._resource_version, timeout_seconds=WATCH_SECONDS)
        async with aclosing(events):
            async for event in events:
                if event.type != "BOOKMARK":
                    self._take_in(event)
                self._resource_version = event.object["metadata"]["resourceVersion"]

    def _take_in(self, event: WatchEvent) -> None:
        if event.type == "DELETED":
            self._objects.pop(key_of(event.object), None)
        else:
            self._objects[key_of(event.object)] = event.object
        if self._on_change is not None:
            self._on_change(event)
