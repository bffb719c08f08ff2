"""An event loop with its own time and its own network: thousands of lives of an operator in minutes, each the same twice.

Nothing waits: when all that could run has run, the clock jumps to the next timer. Listeners and connections are pairs of objects
in this process, so the product's servers and clients run as they are. Every task and connection belongs to the *process* (a
name in a context variable) it was begun in, which is what lets a test kill one: its tasks are cancelled, its sockets closed,
and nothing of it runs again.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import itertools
import selectors
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

PROCESS: contextvars.ContextVar[str] = contextvars.ContextVar("process", default="test")
FIRST_EPHEMERAL_PORT = 20_000
# How long a message is on its way. Without it, who asks again at once would stop the clock.
TRAVEL_SECONDS = 0.0002
# Two messages of one connection arrive one after the other.
APART_SECONDS = 0.000_001
# A run takes a few thousand turns of the loop; one that takes so many spins.
MOST_TURNS = 30_000


class NothingLeftError(RuntimeError):
    """No timer, nothing ready: the test waits for something that nobody will do."""


class _Jumping(selectors.SelectSelector):
    """A selector that sees no file; a wait for it is a jump of the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now_seconds = 0.0
        self.turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.turns += 1
        if self.turns > MOST_TURNS:
            raise NothingLeftError(f"{MOST_TURNS} turns of the loop, and still at {self.now_seconds:.1f} s")
        if timeout is None:
            raise NothingLeftError("nothing is ready and no timer is set")
        self.now_seconds += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop. `network` is what listens now; `kill` ends a process."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)
        self._ports = itertools.count(FIRST_EPHEMERAL_PORT)
        self._tasks_of: dict[str, set[asyncio.Task[Any]]] = {}
        self._transports: set[MemoryTransport] = set()
        self._dead: set[str] = set()
        self.network: dict[tuple[str, int], MemoryServer] = {}
        # Other addresses of what listens: a Service's.
        self.aliases: dict[tuple[str, int], tuple[str, int]] = {}
        self.set_task_factory(self._new_task)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._jumping.now_seconds

    def allow_more_turns(self) -> None:
        """For what comes after a run that may have used them up."""
        self._jumping.turns = 0

    def _new_task(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        context = options.get("context") or contextvars.copy_context()
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, **options)
        mine = self._tasks_of.setdefault(context.get(PROCESS, "test"), set())
        mine.add(task)
        task.add_done_callback(mine.discard)
        return task

    def spawn(self, process: str, coro: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine as (part of) the process of this name."""
        context = contextvars.copy_context()
        context.run(PROCESS.set, process)
        return self.create_task(coro, context=context)

    def is_dead(self, process: str) -> bool:
        """Whether it was killed."""
        return process in self._dead

    async def kill(self, process: str) -> None:
        """As SIGKILL: what it does stops where it is, and its peers see their connections end."""
        self._dead.add(process)
        for key in [key for key, server in self.network.items() if server.process == process]:
            self.network.pop(key).closed = True
        for transport in [one for one in self._transports if one.process == process]:
            transport.die()
        while tasks := [task for task in self._tasks_of.get(process, ()) if task is not asyncio.current_task()]:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=1.0)

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        """Hosts are addresses here."""
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        """Listen in memory."""
        place = (str(host), port or next(self._ports))
        if place in self.network:
            raise OSError(errno.EADDRINUSE, f"{place} is taken")
        server = MemoryServer(self, protocol_factory, place)
        self.network[place] = server
        return server

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        """Connect in memory; refused where nobody listens."""
        await asyncio.sleep(0)
        place = (str(host), port)
        server = self.network.get(self.aliases.get(place, place))
        if server is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"nobody listens on {host}:{port}")
        local = ((options.get("local_addr") or ("127.0.0.1", 0))[0], next(self._ports))
        here = MemoryTransport(self, protocol_factory(), local, server.place, contextvars.copy_context())
        there = MemoryTransport(self, server.context.run(server.factory), server.place, local, server.context)
        here.peer, there.peer = there, here
        self._transports |= {here, there}
        self.call_soon(there.protocol.connection_made, there, context=there.context.copy())
        here.protocol.connection_made(here)
        return here, here.protocol

    def remove_reader(self, fd: Any) -> bool:
        """A listener of ours has no file."""
        return False if fd == -1 else super().remove_reader(fd)

    def forget(self, transport: MemoryTransport) -> None:
        self._transports.discard(transport)


class _Listening:
    """What a server says of its socket."""

    def __init__(self, place: tuple[str, int]) -> None:
        self._place = place

    def getsockname(self) -> tuple[str, int]:
        return self._place

    def fileno(self) -> int:
        return -1


class MemoryServer:
    """A listener."""

    def __init__(self, loop: VirtualLoop, factory: Callable[[], asyncio.Protocol], place: tuple[str, int]) -> None:
        self._loop = loop
        self.factory = factory
        self.place = place
        self.context = contextvars.copy_context()
        self.process = PROCESS.get()
        self.closed = False

    @property
    def sockets(self) -> tuple[_Listening, ...]:
        return () if self.closed else (_Listening(self.place),)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._loop.network.pop(self.place, None)

    def is_serving(self) -> bool:
        return not self.closed

    async def wait_closed(self) -> None:
        return


class MemoryTransport(asyncio.Transport):
    """One end of a connection; what is written arrives in the next turn of the loop."""

    peer: MemoryTransport

    def __init__(
        self,
        loop: VirtualLoop,
        protocol: asyncio.Protocol,
        local: tuple[str, int],
        remote: tuple[str, int],
        context: contextvars.Context,
    ) -> None:
        super().__init__({"sockname": local, "peername": remote})
        self._loop = loop
        self.protocol = protocol
        self.context = context
        self.process = context.get(PROCESS, "test")
        self._closing = False
        self._paused = False
        self._last_arrival_seconds = 0.0
        self._waiting: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closing:
            self._send(self.peer.arrive, bytes(data))

    def _send(self, what: Callable[..., None], *arguments: Any) -> None:
        arrival_seconds = max(self._loop.time() + TRAVEL_SECONDS, self._last_arrival_seconds + APART_SECONDS)
        self._last_arrival_seconds = arrival_seconds
        self._loop.call_at(arrival_seconds, what, *arguments, context=self.peer.context.copy())

    def arrive(self, data: bytes) -> None:
        if self._closing:
            return
        if self._paused:
            self._waiting.append(data)
        else:
            self.protocol.data_received(data)

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        waiting, self._waiting = self._waiting, []
        for data in waiting:
            self._loop.call_soon(self.arrive, data, context=self.context.copy())

    def is_reading(self) -> bool:
        return not self._paused

    def is_closing(self) -> bool:
        return self._closing

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def close(self) -> None:
        if not self._closing:
            self._end()
            self._send(self.peer.lose)

    def abort(self) -> None:
        self.close()

    def lose(self) -> None:
        """The other end is gone."""
        if not self._closing:
            self._end()

    def die(self) -> None:
        """The process is gone: nobody here is told, the peer is."""
        if not self._closing:
            self._closing = True
            self._loop.forget(self)
            self._send(self.peer.lose)

    def _end(self) -> None:
        self._closing = True
        self._loop.forget(self)
        self._loop.call_soon(self.protocol.connection_lost, None, context=self.context.copy())
