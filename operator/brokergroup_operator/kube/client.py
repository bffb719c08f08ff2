"""One method per verb of the Kubernetes API, over one aiohttp session. Every request has a deadline.

This layer sends no write twice. aiohttp would repeat a PUT or DELETE on a kept-alive connection that dies, and the API server
answers 409 to a repeated PUT that had succeeded: that reads like another writer's commit. So the repetition is switched off, and
a write without an answer raises ``OutcomeUnknownError``.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import aclosing
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

import aiohttp
import msgspec

from brokergroup_operator.json_object import JsonObject as JsonObject  # noqa: PLC0414, TC001 (many import it from here)
from brokergroup_operator.kube.answers import (
    decode,
    describe,
    json_object,
    kubernetes_object,
    lines,
    no_answer,
    refusal,
    transport_error,
)
from brokergroup_operator.kube.errors import (
    ApiError,
    ApiUnavailableError,
    NotFoundError,
    NotLeadingError,
    error_from_status,
)
from brokergroup_operator.kube.resources import PODS, Resource
from brokergroup_operator.kube.settings import (
    ConnectionSettings,
    settings_from_kubeconfig,
    settings_from_url,
    settings_in_cluster,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping
    from pathlib import Path
    from types import TracebackType


DEFAULT_TIMEOUT_SECONDS = 5.0
# Concurrent requests; further ones wait, within their own deadlines: an API server rejects a client that requests 10,000 records
# at once. Reads and writes have separate limits, so a commit does not wait behind the reads of a start.
MOST_READS_IN_FLIGHT = 64
MOST_WRITES_IN_FLIGHT = 64
# One page of a list: decoding it blocks the event loop for some 10 ms.
PAGE_OBJECTS = 250
# An API server's whole answer to a list of a kind that it does not serve. A load balancer's page has other words.
KIND_NOT_SERVED = "404 page not found"
# The server ends a watch at the requested time; the client waits this much longer before it gives the connection up.
WATCH_GRACE_SECONDS = 5.0


class PatchType(StrEnum):
    """The content types of PATCH."""

    JSON = "application/json-patch+json"
    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    APPLY = "application/apply-patch+yaml"


@dataclass(frozen=True, slots=True)
class ObjectList:
    """The answer to a list: the objects, and the resourceVersion from which to watch on."""

    items: list[JsonObject]
    resource_version: str


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """``type`` is ADDED, MODIFIED, DELETED or BOOKMARK. A server's ERROR is raised instead."""

    type: str
    object: JsonObject


class KubernetesApi:
    """The client. Use it as an async context manager, or call ``close()``. `timeout_seconds`: of requests that name none."""

    def __init__(
        self,
        settings: ConnectionSettings,
        *,
        may_write_seconds: Callable[[], float] = lambda: math.inf,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> None:
        self._settings = settings
        self._may_write_seconds = may_write_seconds
        self._timeout_seconds = timeout_seconds
        self._session: aiohttp.ClientSession | None = None
        self._closed = False
        self._reads = asyncio.Semaphore(MOST_READS_IN_FLIGHT)
        self._writes = asyncio.Semaphore(MOST_WRITES_IN_FLIGHT)

    @classmethod
    def from_kubeconfig(cls, path: Path | str, *, context: str | None = None) -> Self:
        """A client for one context of a kubeconfig file (its current context, unless named)."""
        return cls(settings_from_kubeconfig(path, context=context))

    @classmethod
    def from_url(cls, url: str, token: str | None = None, ca_file: Path | str | None = None) -> Self:
        """A client for a plain URL."""
        return cls(settings_from_url(url, token=token, ca_file=ca_file))

    @classmethod
    def in_cluster(cls) -> Self:
        """A client that uses the service account of the pod it runs in."""
        return cls(settings_in_cluster())

    def guarded(
        self, may_write_seconds: Callable[[], float], *, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    ) -> KubernetesApi:
        """Return a client of the same server that calls ``may_write_seconds`` before each write, for how long the write may take.

        A write that may not begin raises ``NotLeadingError``; one that has begun waits no longer than it may.
        """
        return KubernetesApi(self._settings, may_write_seconds=may_write_seconds, timeout_seconds=timeout_seconds)

    @property
    def url(self) -> str:
        """The API server's address."""
        return self._settings.url

    async def __aenter__(self) -> Self:
        self._open_session()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections for good; running requests fail, and later ones raise ``ApiUnavailableError`` unsent."""
        self._closed = True
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def get(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str | None = None,
        timeout_seconds: float | None = None,
    ) -> JsonObject:
        """Read one object, linearizably: no resourceVersion is sent, so the server asks etcd, not its cache."""
        return await self._object("GET", resource.object_path(name, namespace), timeout_seconds=timeout_seconds)

    async def list(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        timeout_seconds: float | None = None,
    ) -> ObjectList:
        """Read a collection, linearizably. Items carry apiVersion and kind, which the server leaves out of lists."""
        pages = self.pages(
            resource,
            namespace=namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            timeout_seconds=timeout_seconds,
        )
        items: list[JsonObject] = []
        resource_version = ""
        async with aclosing(pages):
            async for page in pages:
                items += page.items
                resource_version = page.resource_version
        return ObjectList(items, resource_version)

    async def pages(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        timeout_seconds: float | None = None,
    ) -> AsyncGenerator[ObjectList]:
        """Yield a collection page by page, so that a large one does not block the event loop. All pages show the same moment.

        ``timeout_seconds`` is for each page. ``GoneError`` when the server has forgotten that moment before the last page.
        """
        parameters = _parameters(labelSelector=label_selector, fieldSelector=field_selector, limit=str(PAGE_OBJECTS))
        while True:
            answer = await self._page(resource.collection_path(namespace), parameters, timeout_seconds)
            typed = [
                {"apiVersion": resource.api_version, "kind": resource.kind, **item} for item in answer["items"] or []
            ]
            metadata = answer["metadata"]
            yield ObjectList(typed, str(metadata.get("resourceVersion", "")))
            parameters["continue"] = str(metadata.get("continue") or "")
            if not parameters["continue"]:
                return

    async def _page(self, path: str, parameters: dict[str, str], timeout_seconds: float | None) -> JsonObject:
        try:
            answer = await self._object("GET", path, parameters=parameters, timeout_seconds=timeout_seconds)
        except ApiUnavailableError as error:
            if error.status == 404 and KIND_NOT_SERVED in str(error):
                raise NotFoundError(str(error), status=404) from error
            raise
        if "items" not in answer:
            raise no_answer(f"GET {path}", "a list", write=False)
        return answer

    async def create(
        self,
        resource: Resource,
        obj: Mapping[str, Any],
        *,
        namespace: str | None = None,
        field_manager: str = "",
        timeout_seconds: float | None = None,
    ) -> JsonObject:
        """Create an object, by default in the namespace of its metadata."""
        place = namespace or obj.get("metadata", {}).get("namespace")
        if resource.namespaced and not place:
            raise ValueError(f"{resource.kind}: namespace is {place!r}, expected the namespace to create it in")
        return await self._object(
            "POST",
            resource.collection_path(place),
            body={"apiVersion": resource.api_version, "kind": resource.kind, **obj},
            parameters=_parameters(fieldManager=field_manager),
            timeout_seconds=timeout_seconds,
        )

    async def replace(
        self,
        resource: Resource,
        obj: Mapping[str, Any],
        *,
        subresource: str = "",
        field_manager: str = "",
        timeout_seconds: float | None = None,
    ) -> JsonObject:
        """PUT an object; its ``metadata.resourceVersion`` and ``uid`` make this a compare-and-set."""
        return await self._object(
            "PUT",
            _path_of(resource, obj, subresource),
            body=obj,
            parameters=_parameters(fieldManager=field_manager),
            timeout_seconds=timeout_seconds,
        )

    async def patch(  # noqa: PLR0913 (the verb has these options)
        self,
        resource: Resource,
        name: str,
        patch: Any,
        *,
        namespace: str | None = None,
        content_type: str = PatchType.MERGE,
        subresource: str = "",
        field_manager: str = "",
        force: bool = False,
        dry_run: bool = False,
        timeout_seconds: float | None = None,
    ) -> JsonObject:
        """PATCH an object. With a resourceVersion in the patch's metadata it is a compare-and-set as well."""
        return await self._object(
            "PATCH",
            resource.object_path(name, namespace, subresource),
            body=patch,
            content_type=content_type,
            parameters=_parameters(
                fieldManager=field_manager, force="true" if force else "", dryRun="All" if dry_run else ""
            ),
            timeout_seconds=timeout_seconds,
        )

    async def apply(
        self,
        resource: Resource,
        obj: Mapping[str, Any],
        *,
        field_manager: str,
        force: bool = True,
        subresource: str = "",
        dry_run: bool = False,
        timeout_seconds: float | None = None,
    ) -> JsonObject:
        """Server-side apply: the object holds exactly the fields that ``field_manager`` is to own. A dry run only validates."""
        metadata = obj.get("metadata", {})
        return await self.patch(
            resource,
            metadata.get("name", ""),
            {"apiVersion": resource.api_version, "kind": resource.kind, **obj},
            namespace=metadata.get("namespace"),
            content_type=PatchType.APPLY,
            subresource=subresource,
            field_manager=field_manager,
            force=force,
            dry_run=dry_run,
            timeout_seconds=timeout_seconds,
        )

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str | None = None,
        grace_period_seconds: int | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
        propagation_policy: str = "",
        timeout_seconds: float | None = None,
    ) -> JsonObject:
        """DELETE an object. ``uid`` and ``resource_version`` are preconditions (else ``ConflictError``)."""
        options: JsonObject = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if grace_period_seconds is not None:
            options["gracePeriodSeconds"] = grace_period_seconds
        preconditions = _parameters(uid=uid or "", resourceVersion=resource_version or "")
        if preconditions:
            options["preconditions"] = preconditions
        if propagation_policy:
            options["propagationPolicy"] = propagation_policy
        return await self._request(
            "DELETE", resource.object_path(name, namespace), body=options, timeout_seconds=timeout_seconds
        )

    async def bind_pod(
        self,
        name: str,
        *,
        namespace: str,
        node_name: str,
        uid: str | None = None,
        timeout_seconds: float | None = None,
    ) -> JsonObject:
        """Bind a pod to a node, as the scheduler does. Raises ``ConflictError`` for a pod that has a node."""
        metadata: JsonObject = {"name": name, "namespace": namespace}
        if uid is not None:
            metadata["uid"] = uid
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata,
            "target": {"apiVersion": "v1", "kind": "Node", "name": node_name},
        }
        path = PODS.object_path(name, namespace, "binding")
        return await self._request("POST", path, body=binding, timeout_seconds=timeout_seconds)

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
        """Follow a collection from ``resource_version`` on, bookmarks included, until the server ends the watch."""
        parameters = _parameters(
            watch="true",
            allowWatchBookmarks="true",
            resourceVersion=resource_version,
            timeoutSeconds=str(max(1, round(timeout_seconds))),
            labelSelector=label_selector,
            fieldSelector=field_selector,
        )
        path = resource.collection_path(namespace)
        what = f"WATCH {path}"
        timeout = aiohttp.ClientTimeout(total=timeout_seconds + WATCH_GRACE_SECONDS)
        try:
            async with self._open_session().get(
                self.url + path, params=parameters, headers=self._headers(), timeout=timeout, allow_redirects=False
            ) as response:
                if response.status >= 300:
                    raise refusal(what, response, await response.read(), write=False)
                async for line in lines(response.content):
                    yield _watch_event(what, line)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ApiUnavailableError(f"{what}: {describe(error)}") from error

    async def raw(self, path: str, *, timeout_seconds: float | None = None) -> JsonObject:
        """GET any path that answers with a JSON object, such as ``/version`` or discovery."""
        return await self._request("GET", path, timeout_seconds=timeout_seconds)

    async def _object(self, method: str, path: str, **how: Any) -> JsonObject:
        """Send a request whose answer is an object or a list, and return that."""
        return kubernetes_object(await self._request(method, path, **how), f"{method} {path}", write=method != "GET")

    async def _request(
        self,
        method: str,
        path: str,
        *,
        timeout_seconds: float | None,
        body: Any = None,
        content_type: str = "application/json",
        parameters: dict[str, str] | None = None,
    ) -> JsonObject:
        headers = self._headers()
        if body is not None:
            headers["Content-Type"] = content_type
        what = f"{method} {path}"
        write = method != "GET"
        room = self._writes if write else self._reads
        timeout_seconds = self._timeout_seconds if timeout_seconds is None else timeout_seconds
        timeout_seconds = await _wait_for_room(room, what, timeout_seconds)
        try:
            if write:
                timeout_seconds = min(timeout_seconds, self._may_write_seconds())
                if timeout_seconds <= 0:
                    raise NotLeadingError(f"{what}: not sent, this process does not lead")
            async with self._open_session().request(
                method,
                self.url + path,
                params=parameters,
                data=None if body is None else msgspec.json.encode(body),
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=timeout_seconds),
                allow_redirects=False,  # no API server redirects; a proxy does, to its login page
            ) as response:
                content = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise transport_error(what, error, write=write) from error
        finally:
            room.release()
        if response.status >= 300:
            raise refusal(what, response, content, write=write)
        return json_object(content, what, write=write)

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json"}
        authorization = self._settings.authorization()
        if authorization is not None:
            headers["Authorization"] = authorization
        return headers

    def _open_session(self) -> aiohttp.ClientSession:
        if self._closed:
            # A poll that outlives its plane would otherwise open connections that nothing closes.
            raise ApiUnavailableError(f"{self.url}: not sent, this client is closed")
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=self._settings.connector(), auto_decompress=True)
            # aiohttp has no public switch for this; tests/kube/test_client.py holds it in place.
            self._session._retry_connection = False  # noqa: SLF001
        return self._session


async def _wait_for_room(room: asyncio.Semaphore, what: str, timeout_seconds: float) -> float:
    """Wait until a request may be sent; return the rest of its time. Raises ``ApiUnavailableError`` if none is left."""
    if not room.locked():
        await room.acquire()
        return timeout_seconds
    clock = asyncio.get_running_loop().time
    begun_seconds = clock()
    try:
        async with asyncio.timeout(timeout_seconds):
            await room.acquire()
    except TimeoutError as error:
        raise ApiUnavailableError(
            f"{what}: not sent, too many requests were under way for {timeout_seconds} s"
        ) from error
    return max(timeout_seconds - (clock() - begun_seconds), 0.001)


def _parameters(**values: str) -> dict[str, str]:
    return {name: value for name, value in values.items() if value}


def _path_of(resource: Resource, obj: Mapping[str, Any], subresource: str) -> str:
    metadata = obj.get("metadata", {})
    return resource.object_path(metadata.get("name", ""), metadata.get("namespace"), subresource)


def _watch_event(what: str, line: bytes) -> WatchEvent:
    event = decode(line)
    kind, found = str(event.get("type", "")), event.get("object")
    obj = found if isinstance(found, dict) else {}
    if kind == "ERROR":
        raise error_from_status(what, int(obj.get("code") or 500), obj, write=False)
    if kind not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK"):
        raise ApiError(f"{what}: event type is {kind!r}, expected ADDED, MODIFIED, DELETED, BOOKMARK or ERROR")
    return WatchEvent(kind, kubernetes_object(obj, what, write=False))
