"""One method for each verb that a kubelet uses, over one aiohttp session. Every request has a deadline."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import aiohttp
import msgspec

from .errors import ApiError, ApiUnavailableError, OutcomeUnknownError, error_of
from .kubeconfig import Connection, connection_of
from .resources import PODS, Resource

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator
    from types import TracebackType

JsonObject = dict[str, Any]

DEFAULT_TIMEOUT_SECONDS = 5.0
# A watch is ended by the server at the time asked for; the client waits this much longer before it calls it dead.
WATCH_GRACE_SECONDS = 5.0
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """``type`` is ADDED, MODIFIED, DELETED or BOOKMARK. A server's ERROR is raised instead."""

    type: str
    object: JsonObject


class KubeClient:
    """Use it as an async context manager."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._session: aiohttp.ClientSession | None = None

    @classmethod
    def from_url(cls, url: str) -> Self:
        """For an API that asks nobody for a name."""
        return cls(Connection(url.rstrip("/")))

    @classmethod
    def from_kubeconfig(cls, path: Path | str) -> Self:
        """For the file's current context. KubeconfigError."""
        return cls(connection_of(Path(path)))

    async def __aenter__(self) -> Self:
        self._open_session()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def is_ready(self) -> bool:
        """Whether the API says that it is (``/readyz``)."""
        await self._request("GET", "/readyz")  # a Status above 400 while it is not
        return True

    async def get(self, resource: Resource, name: str, *, namespace: str | None = None) -> JsonObject:
        """Read one object."""
        return await self._request("GET", resource.path(namespace, name))

    async def list(self, resource: Resource) -> tuple[list[JsonObject], str]:
        """All objects of a kind, and the resourceVersion from which to watch on."""
        answer = await self._request("GET", resource.path())
        items = answer.get("items") or []
        # The server leaves both out of lists.
        typed = [{"apiVersion": resource.api_version, "kind": resource.kind, **item} for item in items]
        return typed, str(answer["metadata"].get("resourceVersion", ""))

    async def create(self, resource: Resource, obj: JsonObject) -> JsonObject:
        """Create an object, in the namespace that it names."""
        body = {"apiVersion": resource.api_version, "kind": resource.kind, **obj}
        return await self._request("POST", resource.path(obj["metadata"].get("namespace")), body=body)

    async def patch(
        self, resource: Resource, name: str, patch: JsonObject, *, namespace: str | None = None, subresource: str = ""
    ) -> JsonObject:
        """A merge patch. With a resourceVersion in the patch's metadata it is a compare-and-set."""
        path = resource.path(namespace, name, subresource)
        return await self._request("PATCH", path, body=patch, content_type=MERGE)

    async def apply(self, resource: Resource, obj: JsonObject, *, field_manager: str) -> JsonObject:
        """Server-side apply, by force."""
        path = resource.path(obj["metadata"].get("namespace"), obj["metadata"]["name"])
        parameters = {"fieldManager": field_manager, "force": "true"}
        return await self._request("PATCH", path, body=obj, content_type=APPLY, parameters=parameters)

    async def delete(
        self, resource: Resource, name: str, *, namespace: str, grace_period_seconds: int, uid: str
    ) -> JsonObject:
        """DELETE this very object (else ``ConflictError``)."""
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": grace_period_seconds,
            "preconditions": {"uid": uid},
        }
        return await self._request("DELETE", resource.path(namespace, name), body=options)

    async def bind_pod(self, name: str, *, namespace: str, node_name: str, uid: str) -> JsonObject:
        """Give a pod its node, as the scheduler does. A pod that has one already raises ``ConflictError``."""
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace, "uid": uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node_name},
        }
        return await self._request("POST", PODS.path(namespace, name, "binding"), body=binding)

    async def watch(
        self, resource: Resource, *, resource_version: str, timeout_seconds: float
    ) -> AsyncGenerator[WatchEvent]:
        """Follow a kind from ``resource_version`` on, bookmarks included, until the server ends the watch."""
        parameters = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(round(timeout_seconds)),
        }
        what = f"WATCH {resource.path()}"
        timeout = aiohttp.ClientTimeout(total=timeout_seconds + WATCH_GRACE_SECONDS)
        try:
            async with self._open_session().get(
                self._connection.url + resource.path(), params=parameters, headers=self._headers(), timeout=timeout
            ) as response:
                if response.status >= 400:
                    raise error_of(what, response.status, _decoded(await response.read()), write=False)
                async for line in _lines(response.content):
                    yield _event_of(what, line)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ApiUnavailableError(f"{what}: {error!r}") from error

    async def _request(
        self,
        method: str,
        path: str,
        *,
        body: JsonObject | None = None,
        content_type: str = "application/json",
        parameters: dict[str, str] | None = None,
    ) -> JsonObject:
        what, write = f"{method} {path}", method != "GET"
        try:
            async with self._open_session().request(
                method,
                self._connection.url + path,
                params=parameters,
                data=None if body is None else msgspec.json.encode(body),
                headers=self._headers() | ({} if body is None else {"Content-Type": content_type}),
                timeout=aiohttp.ClientTimeout(total=DEFAULT_TIMEOUT_SECONDS),
            ) as response:
                content = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            never_sent = isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
            kind = OutcomeUnknownError if write and not never_sent else ApiUnavailableError
            raise kind(f"{what}: {error!r}") from error
        if response.status >= 400:
            raise error_of(what, response.status, _decoded(content), write=write)
        return _decoded(content)

    def _headers(self) -> dict[str, str]:
        token = self._connection.token
        return {"Accept": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, ssl=self._connection.tls or True)
            self._session = aiohttp.ClientSession(connector=connector)
            # aiohttp would send a PUT or DELETE again on a kept-alive connection that dies, and its second answer is a conflict.
            self._session._retry_connection = False  # noqa: SLF001
        return self._session


async def _lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    # Not the stream's own line reader: it refuses lines longer than its buffer, and one object may be a megabyte.
    rest = b""
    async for chunk in stream.iter_any():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line.strip():
                yield line


def _decoded(content: bytes) -> JsonObject:
    """Any answer of the API is a JSON object; a proxy's plain text becomes the message of a ``Status``."""
    try:
        return msgspec.json.decode(content, type=JsonObject)
    except msgspec.DecodeError:
        return {"kind": "Status", "message": content[:500].decode(errors="replace")}


def _event_of(what: str, line: bytes) -> WatchEvent:
    event = _decoded(line)
    kind, obj = str(event.get("type", "")), event.get("object") or {}
    if kind == "ERROR":
        raise error_of(what, int(obj.get("code") or 500), obj, write=False)
    if kind not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK"):
        raise ApiError(f"{what}: event type is {kind!r}, expected ADDED, MODIFIED, DELETED, BOOKMARK or ERROR")
    return WatchEvent(kind, obj)
