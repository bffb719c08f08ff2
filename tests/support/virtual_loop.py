"""An event loop with its own time and its own network: thousands of lives of an operator in minutes, each the same twice.

Nothing waits: when all that could run has run, the clock jumps to the next timer. Listeners and connections are pairs of objects
in this process, so the product's servers and clients run as they are. Every task and connection belongs to the *process* (a
name in a context variable) it was begun in, which is what lets a test kill one: its sockets close, and nothing of it runs again.
It can be frozen as by SIGSTOP: what arrives waits in its sockets, its timers fire late. What stands before the slash in a process's
name is its node: links between nodes can be cut, and what was sent meanwhile arrives when they are mended.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import heapq
import itertools
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Coroutine

PROCESS: contextvars.ContextVar[str] = contextvars.ContextVar("process", default="test")
FIRST_EPHEMERAL_PORT = 20_000
# How long a message is on its way. Without it, who asks again at once would stop the clock.
TRAVEL_SECONDS = 0.0002
# Two messages of one connection arrive one after the other.
APART_SECONDS = 0.000_001
# A connection to where nothing answers is tried again so often.
SYN_AGAIN_SECONDS = 0.1
# A run takes a few thousand turns of the loop; one that takes so many spins.
MOST_TURNS = 30_000


def node_of(process: str) -> str:
    """What stands before the slash of a process's name: a node has one process after the other."""
    return process.partition("/")[0]


class NothingLeftError(RuntimeError):
    """No timer, nothing ready: the test waits for something that nobody will do."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop. `network` is what listens now; `kill` ends a process, `freeze` stops it for a while, `cut` parts two nodes.

    `most_turns`: a run that takes so many turns spins.
    """

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _timer_cancelled_count: int

    def __init__(self, *, most_turns: int = MOST_TURNS) -> None:
        super().__init__()
        self.now_seconds = 0.0
        self._most_turns = most_turns
        self._turns = 0
        self._ports = itertools.count(FIRST_EPHEMERAL_PORT)
        # Dicts for their order: a set of objects has another one in each run.
        self._tasks_of: dict[str, dict[asyncio.Task[Any], None]] = {}
        self._transports: dict[MemoryTransport, None] = {}
        # What the dead and the frozen would have done next.
        self._dead: dict[str, list[asyncio.Handle]] = {}
        self._frozen: dict[str, list[asyncio.Handle]] = {}
        self._cut: dict[frozenset[str], list[tuple[MemoryTransport, Callable[..., None], tuple[Any, ...]]]] = {}
        self.network: dict[tuple[str, int], MemoryServer] = {}
        # Other addresses of what listens: a Service's.
        self.aliases: dict[tuple[str, int], tuple[str, int]] = {}
        # From which address a node's connections come, if it binds none.
        self.hosts: dict[str, str] = {}
        # Hosts that nothing answers for: a connection to one is neither made nor refused.
        self.silent_hosts: set[str] = set()
        # How long a message between two nodes is on its way.
        self.travel_seconds: Callable[[], float] = lambda: TRAVEL_SECONDS
        self.set_task_factory(self._new_task)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self.now_seconds

    def _run_once(self) -> None:
        """One turn: when nothing is ready, the clock jumps to the next timer."""
        self._turns += 1
        if self._turns > self._most_turns:
            raise NothingLeftError(f"{self._most_turns} turns of the loop, and still at {self.now_seconds:.1f} s")
        timers, ready = self._scheduled, self._ready
        self._drop_cancelled_timers()
        if not ready:
            if not timers:
                raise NothingLeftError("nothing is ready and no timer is set")
            self.now_seconds = max(self.now_seconds, timers[0].when())
        while timers and timers[0].when() <= self.now_seconds:
            timer = heapq.heappop(timers)
            timer._scheduled = False  # type: ignore[attr-defined]
            ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled() and not ((self._dead or self._frozen) and self._is_held(handle)):
                handle._run()

    def _drop_cancelled_timers(self) -> None:
        timers = self._scheduled
        if self._timer_cancelled_count > len(timers) // 2 + 100:
            for timer in timers:
                timer._scheduled = not timer.cancelled()  # type: ignore[attr-defined]
            timers[:] = [timer for timer in timers if not timer.cancelled()]
            heapq.heapify(timers)
            self._timer_cancelled_count = 0
        while timers and timers[0].cancelled():
            self._timer_cancelled_count -= 1
            heapq.heappop(timers)._scheduled = False  # type: ignore[attr-defined]

    def _is_held(self, handle: asyncio.Handle) -> bool:
        """Whether its process is dead or frozen: then it is kept until that one wakes, or the run is over."""
        process = handle._context.get(PROCESS)  # type: ignore[attr-defined]
        held = self._frozen.get(process) if process in self._frozen else self._dead.get(process)
        if held is not None:
            held.append(handle)
        return held is not None

    def freeze(self, process: str) -> None:
        """As SIGSTOP."""
        if process not in self._dead:
            self._frozen.setdefault(process, [])

    def thaw(self, process: str) -> None:
        """As SIGCONT: what was ready goes on, then what lies in the sockets is read, then the timers fire that are overdue."""
        held = self._frozen.pop(process, [])
        if process not in self._dead:
            self._ready.extend(sorted(held, key=_order_after_a_freeze))

    def is_frozen(self, process: str) -> bool:
        """Whether it is stopped now."""
        return process in self._frozen

    def cut(self, one: str, other: str) -> None:
        """Nothing passes between two nodes until `mend`; connections stay, and new ones are not made."""
        self._cut.setdefault(frozenset((one, other)), [])

    def is_cut(self, one: str, other: str) -> bool:
        """Whether nothing passes between them now."""
        return frozenset((one, other)) in self._cut

    def mend(self, one: str, other: str) -> None:
        """What was sent meanwhile arrives now, in its order."""
        for transport, what, arguments in self._cut.pop(frozenset((one, other)), []):
            transport.send(what, *arguments)

    def hold(self, transport: MemoryTransport, what: Callable[..., None], arguments: tuple[Any, ...]) -> bool:
        """Whether the way is cut; then this waits until it is mended."""
        held = self._cut.get(frozenset((transport.node, transport.peer.node))) if self._cut else None
        if held is not None:
            held.append((transport, what, arguments))
        return held is not None

    def allow_more_turns(self) -> None:
        """For what comes after a run that may have used them up."""
        self._turns = 0

    def _new_task(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        context = options.get("context") or contextvars.copy_context()
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, **options)
        mine = self._tasks_of.setdefault(context.get(PROCESS, "test"), {})
        mine[task] = None
        task.add_done_callback(lambda done: mine.pop(done, None))
        return task

    def spawn(self, process: str, coro: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine as (part of) the process of this name."""
        context = contextvars.copy_context()
        context.run(PROCESS.set, process)
        return self.create_task(coro, context=context)

    def is_dead(self, process: str) -> bool:
        """Whether it was killed."""
        return process in self._dead

    def kill(self, process: str) -> None:
        """As SIGKILL: what it does stops where it is, and its peers see their connections end."""
        self._dead[process] = self._frozen.pop(process, [])
        for key in [key for key, server in self.network.items() if server.process == process]:
            self.network.pop(key).closed = True
        for transport in [one for one in self._transports if one.process == process]:
            transport.die()

    def finish(self) -> None:
        """Close the loop. What is left is cancelled, of the dead too: else the collector ends it somewhere in the next run."""
        held = [handle for handles in (*self._dead.values(), *self._frozen.values()) for handle in handles]
        self._dead.clear()
        self._frozen.clear()
        self.allow_more_turns()
        rest = self.create_task(_cancel_the_rest())
        for task in asyncio.all_tasks(self) - {rest}:
            task.cancel()
        self._ready.extend(held)  # a task whose next step is among them cannot end without it
        self.run_until_complete(rest)
        self.close()

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *arguments: Any
    ) -> asyncio.Future[Any]:
        """Here and now: a thread takes the machine's time, of which nothing here knows."""
        result = self.create_future()
        try:
            result.set_result(func(*arguments))
        except Exception as error:  # noqa: BLE001 (it is the caller's, as from a thread)
            result.set_exception(error)
        return result

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
        node = node_of(PROCESS.get())
        server = self.network.get(self.aliases.get(place, place))
        while place[0] in self.silent_hosts or (server is not None and frozenset((node, server.node)) in self._cut):
            await asyncio.sleep(SYN_AGAIN_SECONDS)
            server = self.network.get(self.aliases.get(place, place))
        if server is None:
            await asyncio.sleep(2 * self.travel_seconds())
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"nobody listens on {host}:{port}")
        own_host = self.hosts.get(node, "127.0.0.1")
        local = ((options.get("local_addr") or (own_host, 0))[0], next(self._ports))
        here = MemoryTransport(self, protocol_factory(), local, server.place, contextvars.copy_context())
        there = MemoryTransport(self, server.context.run(server.factory), server.place, local, server.context)
        here.peer, there.peer = there, here
        self._transports |= {here: None, there: None}
        self.call_soon(there.protocol.connection_made, there, context=there.context.copy())
        here.protocol.connection_made(here)
        return here, here.protocol

    def remove_reader(self, fd: Any) -> bool:
        """A listener of ours has no file."""
        return False if fd == -1 else super().remove_reader(fd)

    def forget(self, transport: MemoryTransport) -> None:
        self._transports.pop(transport, None)


def _order_after_a_freeze(handle: asyncio.Handle) -> int:
    """As an event loop does: callbacks that wait, then sockets, then timers; in each the order in which they came."""
    if isinstance(getattr(handle._callback, "__self__", None), MemoryTransport):  # type: ignore[attr-defined]
        return 1
    return 2 if isinstance(handle, asyncio.TimerHandle) else 0


async def _cancel_the_rest() -> None:
    while rest := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in rest:
            task.cancel()
        await asyncio.wait(rest, timeout=1.0)


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
        self.node = node_of(self.process)
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
        self.node = node_of(self.process)
        self._closing = False
        self._paused = False
        self._last_arrival_seconds = 0.0
        self._waiting: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closing:
            self.send(self.peer.arrive, bytes(data))

    def send(self, what: Callable[..., None], *arguments: Any) -> None:
        """Let something happen at the other end, after what was sent before it."""
        if self._loop.hold(self, what, arguments):
            return
        arrival_seconds = max(
            self._loop.time() + self._loop.travel_seconds(), self._last_arrival_seconds + APART_SECONDS
        )
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
            self.send(self.peer.lose)

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
            self.send(self.peer.lose)

    def _end(self) -> None:
        self._closing = True
        self._loop.forget(self)
        self._loop.call_soon(self.protocol.connection_lost, None, context=self.context.copy())
