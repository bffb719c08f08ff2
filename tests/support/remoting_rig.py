"""Remoting connections for tests: a recording handler, a server whose loop must log no error, a transport in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from rocketmq_remoting.codec import FrameDecoder
from rocketmq_remoting.connection import RemotingConnection
from rocketmq_remoting.handler import not_supported
from rocketmq_remoting.limits import ConnectionSettings
from rocketmq_remoting.server import RemotingServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

    from rocketmq_remoting.command import RemotingCommand

HOST = "127.0.0.1"
ECHO, LATER, FAIL, FAIL_LATER, SILENT = 1, 2, 3, 4, 5


class Handler:
    """Answers by code; LATER requests wait until the test opens the gate of their body. Records requests and connections."""

    def __init__(self) -> None:
        self.seen: list[RemotingCommand] = []
        self.asked_over: list[RemotingConnection] = []
        self.gates: defaultdict[bytes, asyncio.Event] = defaultdict(asyncio.Event)
        self.opened: list[RemotingConnection] = []
        self.closed: list[RemotingConnection] = []

    @property
    def open_count(self) -> int:
        return len(self.opened) - len(self.closed)

    def handle(
        self, request: RemotingCommand, connection: RemotingConnection
    ) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        self.seen.append(request)
        self.asked_over.append(connection)
        if request.code == FAIL:
            raise ValueError("broken at once")
        if request.code == SILENT:
            return None
        if request.code in (LATER, FAIL_LATER):
            return self._later(request) if request.code == LATER else self._fail_later()
        if request.code == ECHO:
            return request.answer(0, remark=request.remark, ext_fields=request.ext_fields, body=request.body)
        return not_supported(request)

    async def _later(self, request: RemotingCommand) -> RemotingCommand:
        await self.gates[request.body or b""].wait()
        return request.answer(0, body=request.body)

    async def _fail_later(self) -> RemotingCommand:
        await asyncio.sleep(0)
        raise KeyError("broken later")

    def connection_opened(self, connection: RemotingConnection) -> None:
        self.opened.append(connection)

    def connection_closed(self, connection: RemotingConnection) -> None:
        self.closed.append(connection)


@contextlib.asynccontextmanager
async def serving(handler: Any = None, **settings: Any) -> AsyncIterator[tuple[RemotingServer, Any]]:
    """Serve with a handler; no error may reach the event loop, and every opened connection must be closed at the end."""
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    handler = handler or Handler()
    server = RemotingServer(handler, **settings)
    await server.start(HOST, 0)
    try:
        yield server, handler
    finally:
        await server.stop(grace_seconds=1)
    assert not server.connections
    assert not isinstance(handler, Handler) or handler.open_count == 0
    assert reported == []


class FakeTransport(asyncio.Transport):
    """Records the calls to it."""

    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.1", 40000)})
        self.writes: list[bytes] = []
        self.reading = True
        self.closing = False

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        assert not self.closing, "written after it was closed"
        self.writes.append(bytes(data))

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    abort = close

    def answers(self) -> list[tuple[int, int]]:
        """Return (opaque, code) of each answer."""
        return [(each.opaque, each.code) for each in FrameDecoder().feed(b"".join(self.writes))]


def connected(handler: Any, **settings: Any) -> tuple[RemotingConnection, FakeTransport]:
    connection = RemotingConnection(handler=handler, settings=ConnectionSettings(**settings))
    transport = FakeTransport()
    connection.connection_made(transport)
    return connection, transport
