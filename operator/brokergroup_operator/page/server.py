"""Serves the page: static files, one stream of server-sent events a viewer, and logging in. Everything else is refused.

What a stream sends, each as one event with JSON:

``hello``  the viewer's name, and which operator pod serves it
``rows``   overview lines that are new since the version that the browser has; null: the group is gone
``group``  the whole document of the opened group, when it has changed; null: there is none
``node``   the answer for the opened node
``beat``   the clock, and how old the oldest fact is; at least every ``BEAT_SECONDS``
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from aiohttp import web

from brokergroup_operator.page.access import Sessions, Viewer, host_of, is_loopback_host
from brokergroup_operator.page.board import key_of, now_milliseconds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from brokergroup_operator.page.board import Board
    from brokergroup_operator.records.store import GroupKey

STATIC: Final = Path(__file__).parent / "static"
BEAT_SECONDS: Final = 3.0
# A viewer that takes nothing for so long is cut off; it comes back by itself.
STALLED_SECONDS: Final = 20.0
MOST_VIEWERS: Final = 256
NODE_SECONDS: Final = 1.0
COOKIE: Final = "brokergroup-page"
LONGEST_REQUEST_BYTES: Final = 32_768

CONTENT_TYPES: Final = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none';"
        " form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cache-Control": "no-store",
}
LOCAL_VIEWER: Final = Viewer("any user of this machine")


@dataclass(slots=True)
class _Stream:
    """What one viewer has been sent."""

    viewer: Viewer
    version: int
    boot: str
    group: GroupKey | None
    node: str
    last_group: bytes = b""
    last_node: bytes = b""
    node_at_seconds: float = 0.0
    beat_at_seconds: float = 0.0


@dataclass(slots=True)
class PageServer:
    """The routes over a board. ``sessions`` None: no token is asked for, and only a loopback's name is answered."""

    board: Board
    identity: str
    sessions: Sessions | None = None
    secure_cookie: bool = False
    on_viewers: Callable[[frozenset[GroupKey], int], None] = lambda _keys, _count: None
    _streams: set[int] = field(default_factory=set)
    _opened: dict[int, GroupKey | None] = field(default_factory=dict)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _nodes: int = 0
    _is_stopping: bool = False
    # Made once for all viewers between two changes: (what, its version) -> bytes.
    _encoded: dict[Any, bytes] = field(default_factory=dict)

    def application(self) -> web.Application:
        """The aiohttp application."""
        application = web.Application(middlewares=[self._guard], client_max_size=LONGEST_REQUEST_BYTES)
        application.router.add_get("/", self._index)
        application.router.add_get("/static/{name:[a-z_]+\\.(js|css|svg)}", self._static)
        application.router.add_get("/api/events", self._events)
        application.router.add_get("/api/session", self._session)
        application.router.add_post("/api/session", self._log_in)
        application.router.add_delete("/api/session", self._log_out)
        return application

    def publish(self) -> None:
        """Wake every stream: the board has news."""
        self._encoded.clear()
        self._news.set()
        self._news = asyncio.Event()

    def stop(self) -> None:
        """End every stream."""
        self._is_stopping = True
        self._news.set()

    @property
    def has_opened(self) -> bool:
        """Whether a viewer looks at more than the overview."""
        return self._nodes > 0 or any(key is not None for key in self._opened.values())

    @property
    def viewers(self) -> int:
        """How many streams there are."""
        return len(self._streams)

    # ---- access

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if self.sessions is None and not is_loopback_host(host_of(request.headers.get("Host", ""))):
            return _told(421, "This page answers under localhost only: forward a port, or have it ask for tokens")
        try:
            response = await handler(request)
        except web.HTTPException as error:
            return _told(error.status, error.reason)
        if not response.prepared:
            response.headers.update(HEADERS)
        return response

    async def _viewer(self, request: web.Request) -> Viewer | None:
        if self.sessions is None:
            return LOCAL_VIEWER
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return await self.sessions.viewer_of_token(token.strip())
        return await self.sessions.viewer_of_session(request.cookies.get(COOKIE, ""))

    async def _session(self, request: web.Request) -> web.Response:
        viewer = await self._viewer(request)
        return web.json_response({"viewer": viewer.name if viewer else None, "asks": self.sessions is not None})

    async def _log_in(self, request: web.Request) -> web.StreamResponse:
        # A form of another site cannot send JSON without asking first (CORS), and this server never answers that question.
        if request.content_type != "application/json" or self.sessions is None:
            return _told(400, "expected application/json with the member token")
        try:
            token = msgspec.json.decode(await request.read(), type=dict[str, str]).get("token", "")
        except msgspec.DecodeError:
            return _told(400, "expected JSON with the member token")
        found = await self.sessions.log_in(token.strip())
        if found is None:
            return _told(401, "This token opens nothing here: it is unknown, has ended, or may list no BrokerGroups")
        session_id, viewer = found
        response = web.json_response({"viewer": viewer.name, "asks": True})
        response.set_cookie(COOKIE, session_id, httponly=True, samesite="Strict", secure=self.secure_cookie, path="/")
        return response

    async def _log_out(self, request: web.Request) -> web.Response:
        if self.sessions is not None:
            self.sessions.log_out(request.cookies.get(COOKIE, ""))
        response = web.json_response({"viewer": None, "asks": self.sessions is not None})
        response.del_cookie(COOKIE, path="/")
        return response

    # ---- what

    async def _index(self, request: web.Request) -> web.StreamResponse:  # noqa: ARG002
        return static_file("index.html")

    async def _static(self, request: web.Request) -> web.StreamResponse:
        return static_file(request.match_info["name"])

    async def _events(self, request: web.Request) -> web.StreamResponse:
        viewer = await self._viewer(request)
        if viewer is None:
            return _told(401, "a token is needed")
        if len(self._streams) >= MOST_VIEWERS:
            refused = _told(503, f"{MOST_VIEWERS} viewers are looking already; try again later")
            refused.headers["Retry-After"] = "10"
            return refused
        response = web.StreamResponse(
            headers={**HEADERS, "Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
        )
        stream = self._new_stream(request, viewer)
        self._streams.add(id(stream))
        self._nodes += bool(stream.node)
        self._opened[id(stream)] = stream.group
        self._tell_viewers()
        try:
            await response.prepare(request)
            await self._send_for_ever(request, response, stream)
        except (ConnectionError, TimeoutError):
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._streams.discard(id(stream))
            self._nodes -= bool(stream.node)
            self._opened.pop(id(stream), None)
            self._tell_viewers()
        return response

    def _new_stream(self, request: web.Request, viewer: Viewer) -> _Stream:
        since = request.headers.get("Last-Event-ID") or request.query.get("since", "")
        boot, _, version = since.partition(":")
        known = boot == self.board.boot and version.isdecimal()
        group = key_of(request.query.get("group", ""))
        if group is not None and not viewer.may_see(group.namespace):
            group = None
        return _Stream(
            viewer, int(version) if known else 0, self.board.boot, group, request.query.get("node", "")[:253]
        )

    def _tell_viewers(self) -> None:
        opened = frozenset(key for key in self._opened.values() if key is not None)
        self.on_viewers(opened, len(self._streams))

    async def _send_for_ever(self, request: web.Request, response: web.StreamResponse, stream: _Stream) -> None:
        hello = {"now": now_milliseconds(), "viewer": stream.viewer.name, "operator": self.identity}
        await _write(response, _event("hello", hello))
        while not self._is_stopping:
            news = self._news
            if stream.boot != self.board.boot:
                return  # this process knows no such version (it was started anew): the browser comes back and gets all
            while await self._send_rows(response, stream):
                pass
            await self._send_opened(response, stream)
            now_seconds = asyncio.get_running_loop().time()
            if now_seconds - stream.beat_at_seconds >= BEAT_SECONDS:
                stream.beat_at_seconds = now_seconds
                if await self._viewer(request) != stream.viewer:
                    return  # the token was revoked, or opens other namespaces now: it comes back and is asked
                await _write(response, self._beat())
            await self._wait(news)

    async def _wait(self, news: asyncio.Event) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BEAT_SECONDS):
                await news.wait()

    async def _send_rows(self, response: web.StreamResponse, stream: _Stream) -> bool:
        """Whether there are more."""
        at = ("rows", stream.version, stream.viewer.namespaces)
        before = stream.version
        if before == self.board.version:
            return False
        reached, document = self.board.rows_after(before, stream.viewer.may_see)
        if at not in self._encoded:
            self._encoded[at] = _event("rows", document, event_id=f"{self.board.boot}:{reached}")
        stream.version = reached
        await _write(response, self._encoded[at])
        return reached != self.board.version

    async def _send_opened(self, response: web.StreamResponse, stream: _Stream) -> None:
        if stream.group is not None:
            at = ("group", stream.group)
            if at not in self._encoded:
                self._encoded[at] = _event("group", self.board.group(stream.group))
            if self._encoded[at] != stream.last_group:
                stream.last_group = self._encoded[at]
                await _write(response, stream.last_group)
        now_seconds = asyncio.get_running_loop().time()
        if stream.node and now_seconds - stream.node_at_seconds >= NODE_SECONDS:
            stream.node_at_seconds = now_seconds
            told = _event("node", self.board.node(stream.node, stream.viewer.may_see))
            if told != stream.last_node:
                stream.last_node = told
                await _write(response, told)

    def _beat(self) -> bytes:
        oldest = self.board.oldest_sighting()
        return _event("beat", {"now": now_milliseconds(), "oldest": None if oldest is None else round(oldest * 1000)})


def _event(name: str, document: Any, *, event_id: str = "") -> bytes:
    """JSON has no raw line breaks, so one data line holds it all."""
    head = f"event: {name}\n" + (f"id: {event_id}\n" if event_id else "")
    return head.encode() + b"data: " + msgspec.json.encode(document) + b"\n\n"


async def _write(response: web.StreamResponse, data: bytes) -> None:
    """TimeoutError where the viewer takes nothing any more."""
    async with asyncio.timeout(STALLED_SECONDS):
        await response.write(data)


def static_file(name: str) -> web.Response:
    """A file of the page; 404 for another name."""
    path = STATIC / name
    if not path.is_file():
        return _told(404, "no such file")
    return web.Response(body=path.read_bytes(), content_type=CONTENT_TYPES[path.suffix], charset="utf-8")


def _told(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=f"{text}\n", headers=HEADERS)
