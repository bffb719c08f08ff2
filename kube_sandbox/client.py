"""The kubelet's own client of the Kubernetes API: a method for each verb that it uses, and local copies of whole kinds.

The operator under test has another client. What judges an operator shares no code with it, so a mistake in one client shows.
"""

from __future__ import annotations

import asyncio
import base64
import random
import ssl
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

import aiohttp
import msgspec
import structlog
import yaml

from kube_sandbox.api_server.values import JsonObject as JsonObject  # noqa: PLC0414 (by this name elsewhere)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
    from types import TracebackType


DEFAULT_TIMEOUT_SECONDS = 5.0
# The server ends a watch at the time asked for. The client gives up this much later.
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
    def from_kubeconfig(cls, path: Path | str) -> Self:
        """A client for the file's current context."""
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
        """Whether ``/readyz`` answers 200; raises ApiError otherwise."""
        await self._request("GET", "/readyz")
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
        """Delete the object of this uid; ConflictError if the name belongs to another one."""
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": grace_period_seconds,
            "preconditions": {"uid": uid},
        }
        return await self._request("DELETE", resource.path(namespace, name), body=options)

    async def bind_pod(self, name: str, *, namespace: str, node_name: str, uid: str) -> JsonObject:
        """Bind a pod to a node, as the scheduler does; ConflictError if the pod has a node already."""
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
                    raise error_of(what, response.status, _decoded(await response.read()))
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
        what = f"{method} {path}"
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
            raise ApiUnavailableError(f"{what}: {error!r}") from error
        if response.status >= 400:
            raise error_of(what, response.status, _decoded(content))
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
        raise error_of(what, int(obj.get("code") or 500), obj)
    if kind not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK"):
        raise ApiError(f"{what}: event type is {kind!r}, expected ADDED, MODIFIED, DELETED, BOOKMARK or ERROR")
    return WatchEvent(kind, obj)


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind as the API serves it. The core group is the empty string."""

    group: str
    version: str
    plural: str
    kind: str

    @property
    def api_version(self) -> str:
        """``v1`` or ``group/version``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str = "", subresource: str = "") -> str:
        """Of the collection, of an object, or of its subresource; no namespace means all, or a cluster-wide kind."""
        parts = ["", "apis" if self.group else "api", self.api_version]
        parts += ["namespaces", namespace] if namespace else []
        return "/".join([*parts, self.plural, *filter(None, (name, subresource))])


PODS = Resource("", "v1", "pods", "Pod")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
SECRETS = Resource("", "v1", "secrets", "Secret")
SERVICES = Resource("", "v1", "services", "Service")
PERSISTENT_VOLUME_CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
PERSISTENT_VOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume")
EVENTS = Resource("", "v1", "events", "Event")
NODES = Resource("", "v1", "nodes", "Node")
CUSTOM_RESOURCE_DEFINITIONS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition"
)


class ApiError(Exception):
    """The API refused a request, or did not answer. ``status`` is the HTTP status, None without an answer."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class NotFoundError(ApiError):
    """404: no such object."""


class ConflictError(ApiError):
    """409: the name exists, or the object changed since it was read."""


class ApiUnavailableError(ApiError):
    """No answer, or 5xx and 429: the request can be sent again. The API may have carried out a write."""


def error_of(what: str, http_status: int, answer: dict[str, Any]) -> ApiError:
    """Return the error for a ``Status`` object; ``what`` names the request."""
    message = f"{what}: {http_status} {answer.get('reason', '')}: {answer.get('message', 'no message')}"
    causes = (answer.get("details") or {}).get("causes") or []
    if http_status == 422 and causes and all(cause.get("field") == "metadata.uid" for cause in causes):
        return ConflictError(message, status=http_status)  # the name belongs to another object by now
    unavailable = http_status >= 500 or http_status == 429
    kinds: dict[int, type[ApiError]] = {404: NotFoundError, 409: ConflictError}
    kind = ApiUnavailableError if unavailable else kinds.get(http_status, ApiError)
    return kind(message, status=http_status)


@dataclass(frozen=True, slots=True)
class Connection:
    """Address, TLS settings and token of an API."""

    url: str
    tls: ssl.SSLContext | None = None
    token: str = ""


def connection_of(path: Path) -> Connection:
    """Read the current context of a kubeconfig. Its certificate authority is inline (base64), or a file beside it."""
    document = yaml.safe_load(path.read_text(encoding="utf-8"))

    def named(section: str, name: str) -> JsonObject:
        found: JsonObject = next(entry for entry in document[section] if entry["name"] == name)
        return found

    context = named("contexts", document["current-context"])["context"]
    cluster = named("clusters", context["cluster"])["cluster"]
    user = named("users", context["user"])["user"] if context.get("user") else {}
    url, tls = str(cluster["server"]).rstrip("/"), None
    if url.startswith("https://"):
        inline, file = cluster.get("certificate-authority-data"), cluster.get("certificate-authority")
        tls = ssl.create_default_context(
            cafile=path.parent / file if file else None,
            cadata=base64.b64decode(inline).decode("ascii") if inline else None,
        )
    return Connection(url, tls, str(user.get("token", "")))


def write_kubeconfig(path: Path, cluster: JsonObject, user: JsonObject) -> None:
    """Write a kubeconfig with one context, readable by its owner only; JSON, which is YAML."""
    name = "kube-sandbox"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": "default"}}],
        "current-context": name,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_bytes(msgspec.json.encode(config))


def netloc(host: str, port: int) -> str:
    """``host:port``, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


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
                # Also 403 and 404: rights and kinds may be created later. 410: the resourceVersion is too old.
                if error.status != 410:
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
