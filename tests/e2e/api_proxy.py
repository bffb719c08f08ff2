"""An HTTP proxy between one operator and the API, by which a test kills that operator at an exact write or cuts it off.

So a test crashes an operator "between commit and notify" from outside: it recognises the committing write by method, path
and body; the operator dies before the write reaches the API (`BEFORE`), after the API has done it but before its answer is
sent (`DONE_UNANSWERED`), or after the answer was sent (`ANSWERED`). The product has no code for it.

The connections of an operator that is `cut` stay open without traffic: the worst kind of partition, because the operator
gets no error. `passed` logs the writes that reached the API, with times.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp import web

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Awaitable, Callable

READING = {"GET", "HEAD", "OPTIONS"}
# Headers of one connection, not of the message.
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "date", "server", "upgrade"}


class Moment(StrEnum):
    """The moment of a strike relative to the write."""

    BEFORE = "before it reaches the API"
    DONE_UNANSWERED = "done, and its answer lost"
    ANSWERED = "answered"


@dataclass(frozen=True)
class Write:
    """One request that changes an object."""

    method: str
    path: str
    body: Any
    field_manager: str = ""

    @property
    def kind(self) -> str:
        """Return the plural in its path, with the subresource: `pods`, `brokergroups/status`."""
        parts = self.path.strip("/").split("/")
        after_namespace = parts[parts.index("namespaces") + 2 :] if "namespaces" in parts else parts[-1:]
        return "/".join(after_namespace[:1] + after_namespace[2:])

    @property
    def name(self) -> str:
        """Return the object's name, from the path or from the body of a creation."""
        parts = self.path.strip("/").split("/")
        after_namespace = parts[parts.index("namespaces") + 2 :] if "namespaces" in parts else parts[-1:]
        if len(after_namespace) > 1:
            return after_namespace[1]
        return str(self.body.get("metadata", {}).get("name", "")) if isinstance(self.body, dict) else ""


@dataclass(frozen=True)
class Passed:
    """A write that the API answered; monotonic seconds of this process."""

    write: Write
    sent_seconds: float
    answered_seconds: float
    status: int


@dataclass
class Trap:
    """Waits for one write; `sprung` is set after the write came and the strike was made."""

    match: Callable[[Write], bool]
    moment: Moment
    strike: Callable[[], Awaitable[None]]
    sprung: asyncio.Event = field(default_factory=asyncio.Event)
    strike_task: asyncio.Task[None] | None = None


class ApiProxy:
    """Forwards all requests; at most one trap is set at a time."""

    def __init__(self, upstream: str, *, tls: ssl.SSLContext | None = None) -> None:
        self._upstream = upstream.rstrip("/")
        self._tls = tls
        self._connected = asyncio.Event()
        self._connected.set()
        self._session: aiohttp.ClientSession | None = None
        self._trap: Trap | None = None
        self.writes: list[Write] = []
        self.reads: list[str] = []
        self.passed: list[Passed] = []
        self.url = ""

    def cut(self) -> None:
        """Stop all traffic in both directions."""
        self._connected.clear()

    def heal(self) -> None:
        """End the cut; requests that the operator still waits for pass."""
        self._connected.set()

    def set_trap(self, match: Callable[[Write], bool], moment: Moment, strike: Callable[[], Awaitable[None]]) -> Trap:
        """Strike at the next write that matches."""
        self._trap = Trap(match, moment, strike)
        return self._trap

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ApiProxy]:
        """Serve for the length of a block."""
        application = web.Application(client_max_size=64 * 1024 * 1024)
        application.router.add_route("*", "/{path:.*}", self._pass_on)
        runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=1.0)
        async with aiohttp.ClientSession(auto_decompress=False) as self._session:
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            try:
                yield self
            finally:
                await runner.cleanup()

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        await self._connected.wait()
        write = self._noted(request, body)
        trap = self._caught(write)
        if trap is not None and trap.moment is Moment.BEFORE:
            return await _spring(trap)
        assert self._session is not None
        sent_seconds = time.monotonic()
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP}
        async with self._session.request(
            request.method,
            self._upstream + request.raw_path,
            data=body or None,
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None),
            ssl=self._tls or True,
        ) as answer:
            if write is not None:
                self.passed.append(Passed(write, sent_seconds, time.monotonic(), answer.status))
            await self._connected.wait()
            if trap is not None and trap.moment is Moment.DONE_UNANSWERED:
                await answer.read()
                return await _spring(trap)
            response = web.StreamResponse(status=answer.status, headers=_end_to_end(answer))
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await self._connected.wait()
                await response.write(chunk)
            await response.write_eof()
        if trap is not None:
            await _spring(trap)
        return response

    def _noted(self, request: web.Request, body: bytes) -> Write | None:
        if request.method in READING:
            self.reads.append(request.path)
            return None
        write = Write(request.method, request.path, _parsed(body), request.query.get("fieldManager", ""))
        self.writes.append(write)
        return write

    def _caught(self, write: Write | None) -> Trap | None:
        trap = self._trap
        if write is None or trap is None or not trap.match(write):
            return None
        self._trap = None
        return trap


async def _spring(trap: Trap) -> web.Response:
    """Strike in a separate task: the connection dies with the operator, and this handler with the connection."""
    trap.strike_task = asyncio.create_task(_strike(trap))
    await asyncio.shield(trap.strike_task)
    # Its reader is gone.
    return web.Response(status=503)


async def _strike(trap: Trap) -> None:
    await trap.strike()
    trap.sprung.set()


def _end_to_end(answer: aiohttp.ClientResponse) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name.lower() not in HOP_BY_HOP}


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body) if body else None
    except ValueError:
        return None
