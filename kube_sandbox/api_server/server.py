"""HTTP in front of the object store: one handler for every path, on a loopback address, without TLS, and the streams of watches.

Several servers may run in one process, each with its own port and objects. A watch is a stream of JSON lines, with bookmarks, a
time limit, and 410 as an ERROR event:
https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from aiohttp import web

from kube_sandbox.api_server import discovery, subresources, verbs
from kube_sandbox.api_server.errors import NoSuchPathError, StatusError, bad_request, method_not_allowed, too_old
from kube_sandbox.api_server.kinds import model_schemas
from kube_sandbox.api_server.store.object_store import ObjectStore
from kube_sandbox.api_server.store.storage import Version, encode_json
from kube_sandbox.client import Connection, netloc, write_kubeconfig

if TYPE_CHECKING:
    from pathlib import Path

    from kube_sandbox.api_server.store.storage import Watch
    from kube_sandbox.api_server.subresources import LogProvider
    from kube_sandbox.api_server.verbs import Target


logger = logging.getLogger(__name__)


# Called before each request, for faults in tests: a hook may be a coroutine function (latency) or raise StatusError (a refusal).
RequestHook = Callable[[web.BaseRequest], Awaitable[None] | None]


class SandboxApiServer:
    """The embedded Kubernetes API at `url`. Tests in the same process may use its `store` directly."""

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        log_provider: LogProvider | None = None,
        store: ObjectStore | None = None,
        bookmark_interval_seconds: float = 5.0,
    ) -> None:
        self._host = host
        self._port = port
        self.store = store or ObjectStore()
        self.log_provider = log_provider
        self.before_request: RequestHook | None = None
        self._bookmark_interval_seconds = bookmark_interval_seconds
        self._runner: web.ServerRunner | None = None

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        return f"http://{netloc(self._host, self._port)}"

    @property
    def connection(self) -> Connection:
        """The kubelet's connection to this server."""
        return Connection(self.url)

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        models = {resource.behaviour.model for resource in self.store.registry} - {""}
        await asyncio.to_thread(model_schemas.load, models)  # a second of imports that would stop the loop later

        def run_background_soon() -> None:
            loop.call_soon(self.store.run_background)

        self.store.on_background_work = run_background_soon
        run_background_soon()  # work that a stop interrupted
        self._runner = web.ServerRunner(web.Server(self._answer, access_log=None), shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]
        logger.info("embedded Kubernetes API at %s", self.url)

    async def stop(self) -> None:
        """End running watches, then the listener. Objects stay, and `start` serves them again."""
        self.store.on_background_work = None
        self.store.storage.close_watches()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def write_kubeconfig(self, path: Path) -> None:
        """Write a kubeconfig for clients."""
        write_kubeconfig(path, {"server": self.url}, {})

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            if self.before_request is not None and (waiting := self.before_request(request)) is not None:
                await waiting
            registry, path = self.store.registry, request.path
            response: web.StreamResponse | None = discovery.document_at(registry, netloc(self._host, self._port), path)
            if response is None:
                response = await self._answer_target(request, verbs.find_target(registry, path))
        except StatusError as error:
            return verbs.error_response(error)
        except NoSuchPathError:
            return web.Response(text="404 page not found\n", status=404)
        return response

    async def _answer_target(self, request: web.BaseRequest, target: Target) -> web.StreamResponse:  # noqa: PLR0911
        store = self.store
        if target.subresource in subresources.VERBS:
            return await subresources.answer(store, target, request, self.log_provider)
        match request.method:
            case "GET" if verbs.is_true(request.query.get("watch")):
                return await WatchStream(store, target, request, self._bookmark_interval_seconds).answer(request)
            case "GET" if not target.name:
                return await verbs.read_list(store, target, request)
            case "GET":
                return await verbs.read_one(store, target, request)
            case "POST" if not target.name:
                return await verbs.create(store, target, request)
            case "PUT" if target.name:
                return await verbs.update(store, target, request)
            case "PATCH" if target.name:
                return await verbs.patch(store, target, request)
            case "DELETE" if target.name:
                return await verbs.delete(store, target, request)
            case "DELETE":
                return await verbs.delete_collection(store, target, request)
        raise method_not_allowed()


_DEFAULT_TIMEOUT_SECONDS = 1800.0


class WatchStream:
    """One running watch request."""

    def __init__(
        self, store: ObjectStore, target: Target, request: web.BaseRequest, bookmark_interval_seconds: float
    ) -> None:
        query = request.query
        since, timeout = query.get("resourceVersion", ""), verbs.whole_number(query, "timeoutSeconds")
        if since and not since.isdigit():
            raise bad_request(f'resourceVersion: Invalid value: "{since}": expected a whole number')
        self._initial_events = verbs.is_true(query.get("sendInitialEvents"))
        # None: begin with the present objects.
        self._since = int(since) if since not in ("", "0") and not self._initial_events else None
        self._bookmarks = verbs.is_true(query.get("allowWatchBookmarks"))
        self._timeout_seconds = float(timeout or _DEFAULT_TIMEOUT_SECONDS)
        self._store = store
        self._target = target
        self._render = verbs.render(store, target, request)
        self._bookmark_interval_seconds = bookmark_interval_seconds
        self._ready = asyncio.Event()
        self._bookmarked = 0

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Stream events until the time is up, the client goes, or the watch is closed."""
        selection = verbs.selection(self._target, request.query)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        initial: list[bytes] = []
        try:
            since = self._since
            if since is None:
                page = self._store.list_objects(self._target.resource, selection)
                since = page.resource_version
                initial = [self._line("ADDED", version) for version in page.items]
            if since > self._store.storage.revision:
                raise too_old(since, self._store.storage.revision)
            watch = self._store.watch(self._target.resource, selection, since=since)
        except StatusError as error:
            if error.code != 410:
                raise
            await response.prepare(request)
            await response.write(b'{"type":"ERROR","object":' + encode_json(error.to_status()) + b"}\n")
            return response
        watch.on_ready = self._ready.set
        try:
            await response.prepare(request)
            if self._initial_events:
                initial.append(self._bookmark(ends_initial_events=True))
            if initial:
                await response.write(b"".join(initial))
            await self._follow(watch, response)
        except ConnectionError:
            pass  # the client went away, which is how most watches end
        finally:
            watch.close()
        return response

    async def _follow(self, watch: Watch, response: web.StreamResponse) -> None:
        loop = asyncio.get_running_loop()
        ends_at, is_over = loop.time() + self._timeout_seconds, False
        self._ready.set()
        while not is_over:
            quiet = False
            try:
                async with asyncio.timeout_at(min(ends_at, loop.time() + self._bookmark_interval_seconds)):
                    await self._ready.wait()
            except TimeoutError:
                quiet = True
            self._ready.clear()
            is_over = watch.closed or loop.time() >= ends_at
            lines = [self._line(event.type, event.version) for event in watch.take()]
            moved = self._store.storage.revision != self._bookmarked
            if self._bookmarks and quiet and moved and not lines and not watch.closed:
                lines.append(self._bookmark())
            if lines:
                await response.write(b"".join(lines))

    def _line(self, kind: str, version: Version) -> bytes:
        return b'{"type":"' + kind.encode() + b'","object":' + self._render(version) + b"}\n"

    def _bookmark(self, *, ends_initial_events: bool = False) -> bytes:
        """An event that says: all changes up to this revision have been sent, so a watch may resume from it."""
        self._bookmarked = self._store.storage.revision
        resource = self._target.resource
        meta: dict[str, object] = {"resourceVersion": str(self._bookmarked), "creationTimestamp": None}
        if ends_initial_events:
            meta["annotations"] = {"k8s.io/initial-events-end": "true"}
        obj = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": meta}
        return b'{"type":"BOOKMARK","object":' + self._render(Version(obj, self._bookmarked)) + b"}\n"
