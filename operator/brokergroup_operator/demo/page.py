"""The demo's page: the operator's live page, and beside it buttons that strike the group.

The demo serves the page itself from its first moment on, and passes every question on to the operator, so that its address is
known before there is an operator. The buttons exist here and nowhere else: the operator's own page only reads. A strike needs
the CSRF token that only a page of this very address can read, and waits until the scripted part of the demo is over.
"""

from __future__ import annotations

import hmac
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import msgspec
from aiohttp import web

from brokergroup_operator.page.access import host_of, is_loopback_host
from brokergroup_operator.page.server import HEADERS, LONGEST_REQUEST_BYTES, static_file

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from brokergroup_operator.demo.strikes import Strikes

STATIC: Final = Path(__file__).parent / "static"
TOKEN_HEADER: Final = "X-Demo-Token"  # noqa: S105 - a header's name
STREAM_SILENCE_SECONDS: Final = 15.0


@dataclass(slots=True)
class DemoPage:
    """``start`` listens; ``operator_page`` (host:port) is where the operator serves its own."""

    operator_page: str
    # Set once there is a group to strike.
    strikes: Strikes | None = None
    _token: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    _runner: web.AppRunner | None = None
    _session: aiohttp.ClientSession | None = None

    async def start(self, host: str, port: int) -> None:
        """OSError when the address cannot be bound."""
        application = web.Application(middlewares=[self._guard], client_max_size=LONGEST_REQUEST_BYTES)
        application.router.add_get("/", self._index)
        application.router.add_get("/static/{name:[a-z_]+\\.(js|css|svg)}", self._static)
        application.router.add_get("/demo/demo.js", self._script)
        application.router.add_get("/demo/demo.css", self._style)
        application.router.add_get("/demo/state", self._state)
        application.router.add_post("/demo/strike", self._strike)
        application.router.add_get("/api/{rest:events|session}", self._pass_on)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=2.0, sock_read=STREAM_SILENCE_SECONDS)
        self._session = aiohttp.ClientSession(timeout=timeout)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()

    async def stop(self) -> None:
        """Stop listening."""
        if self._session is not None:
            await self._session.close()
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if not is_loopback_host(host_of(request.headers.get("Host", ""))):
            return web.Response(status=421, text="this page answers under localhost only\n", headers=HEADERS)
        response = await handler(request)
        if not response.prepared:
            response.headers.update(HEADERS)
        return response

    async def _index(self, request: web.Request) -> web.Response:  # noqa: ARG002
        page = static_file("index.html").body
        assert isinstance(page, bytes)
        ours = b'<link rel="stylesheet" href="/demo/demo.css">\n<script type="module" src="/demo/demo.js"></script>\n</head>'
        return web.Response(body=page.replace(b"</head>", ours, 1), content_type="text/html", charset="utf-8")

    async def _static(self, request: web.Request) -> web.Response:
        return static_file(request.match_info["name"])

    async def _script(self, request: web.Request) -> web.Response:  # noqa: ARG002
        return web.Response(body=(STATIC / "demo.js").read_bytes(), content_type="text/javascript", charset="utf-8")

    async def _style(self, request: web.Request) -> web.Response:  # noqa: ARG002
        return web.Response(body=(STATIC / "demo.css").read_bytes(), content_type="text/css", charset="utf-8")

    async def _state(self, request: web.Request) -> web.Response:  # noqa: ARG002
        shown: dict[str, Any] = {"token": self._token, "now": round(time.time() * 1000)}
        shown |= self.strikes.state() if self.strikes is not None else {"doing": "the cluster is coming up"}
        return web.json_response(shown)

    async def _strike(self, request: web.Request) -> web.Response:
        if not hmac.compare_digest(request.headers.get(TOKEN_HEADER, ""), self._token):
            return web.Response(status=403, text="the demo's token is missing: only its own page may strike\n")
        try:
            name = msgspec.json.decode(await request.read(), type=dict[str, str]).get("strike", "")
        except msgspec.DecodeError:
            return web.Response(status=400, text='expected {"strike": name}\n')
        why_not = "the cluster is coming up" if self.strikes is None else await self.strikes.strike(name)
        if why_not:
            return web.Response(status=409, text=f"{why_not}\n")
        return web.json_response({"struck": name})

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        assert self._session is not None
        address = f"http://{self.operator_page}{request.rel_url}"
        kept = {name: request.headers[name] for name in ("Last-Event-ID",) if name in request.headers}
        try:
            async with self._session.get(address, headers=kept) as answer:
                response = web.StreamResponse(status=answer.status, headers={**HEADERS, "X-Accel-Buffering": "no"})
                response.content_type = answer.content_type
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
                return response
        except (aiohttp.ClientError, TimeoutError, ConnectionError):
            # An empty stream: the browser comes back by itself, and the page says until then that it has no connection.
            return web.Response(body=b"retry: 500\n\n", content_type="text/event-stream")
