"""A gate between a node and its API: while it is shut it silently holds all traffic, in both directions."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from urllib.parse import urlsplit

_READ_BYTES = 65536


@dataclass
class Gate:
    """Forwards TCP connections to one address while it is open; connections made while it is shut wait."""

    open: asyncio.Event = field(default_factory=asyncio.Event)
    _server: asyncio.Server | None = None
    _target: tuple[str, int] = ("", 0)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _closed: bool = False

    async def start(self, url: str) -> str:
        """Start in front of the API at this URL; return the gate's URL."""
        parts = urlsplit(url)
        assert parts.port is not None
        self._target = ("127.0.0.1", parts.port)
        self.open.set()
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        return f"{parts.scheme}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """Stop forwarding."""
        self._closed = True
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # A transport closes one turn of the loop after `close()`.
        await asyncio.sleep(0.01)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._closed:
            # The connection was accepted in the turn in which the server closed.
            writer.close()
            return
        task = asyncio.create_task(self._join(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # Even if the task is cancelled before its first step.
        task.add_done_callback(lambda _: writer.close())

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._carry(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self.open.wait()
            # From the client's own address: the controller identifies a pod by it.
            caller = writer.get_extra_info("peername")[0]
            there_reader, there_writer = await asyncio.open_connection(*self._target, local_addr=(caller, 0))
        except OSError:
            return
        ways = [
            asyncio.create_task(self._pass_on(reader, there_writer)),
            asyncio.create_task(self._pass_on(there_reader, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Before any await: this task may be cancelled while it waits.
            there_writer.close()
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            with contextlib.suppress(OSError):
                await there_writer.wait_closed()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_READ_BYTES):
                await self.open.wait()
                writer.write(data)
                await writer.drain()
