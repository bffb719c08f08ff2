"""A watch as a stream of JSON lines, with bookmarks, a time limit, and 410 as an ERROR event.

https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web

from kube_sandbox.api_server import verbs
from kube_sandbox.api_server.errors import StatusError, bad_request, too_old
from kube_sandbox.api_server.store.storage import Version, encode_json

if TYPE_CHECKING:
    from kube_sandbox.api_server.store.object_store import ObjectStore
    from kube_sandbox.api_server.store.storage import Watch
    from kube_sandbox.api_server.verbs import Target

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

    async def answer(self, request: web.BaseRequest, stopping: asyncio.Event) -> web.StreamResponse:
        """Stream events until the time is up, the client goes, or the server stops."""
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
            await self._follow(watch, response, stopping)
        except ConnectionError:
            pass  # the client went away, which is how most watches end
        finally:
            watch.close()
        return response

    async def _follow(self, watch: Watch, response: web.StreamResponse, stopping: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self._timeout_seconds
        self._ready.set()
        stop = asyncio.ensure_future(stopping.wait())
        stop.add_done_callback(lambda _: self._ready.set())
        try:
            while not stopping.is_set():
                remaining = ends_at - loop.time()
                quiet = not await self._is_ready_within(min(remaining, self._bookmark_interval_seconds))
                self._ready.clear()
                closed = watch.closed
                lines = [self._line(event.type, event.version) for event in watch.take()]
                over = loop.time() >= ends_at
                moved = self._store.storage.revision != self._bookmarked
                if self._bookmarks and quiet and moved and not lines and not closed:
                    lines.append(self._bookmark())
                if lines:
                    await response.write(b"".join(lines))
                if over or closed:
                    return
        finally:
            stop.cancel()

    async def _is_ready_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                return await self._ready.wait()
        except TimeoutError:
            return False

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
