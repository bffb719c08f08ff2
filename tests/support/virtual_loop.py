"""An event loop with virtual time and network: thousands of operator runs in minutes, each repeatable.

No call blocks: when no callback is ready, the clock jumps to the next timer. Listeners and connections are pairs of objects
in this process, so the product's servers and clients run unchanged. Every task and connection belongs to the *process* (a
name in a context variable) that started it, so a test can kill a process: its sockets close, and none of its tasks runs again.
A test can freeze it as by SIGSTOP: data waits in its sockets, its timers fire late. The part before the slash in a process's
name is its node: a test can cut the link between two nodes, and data sent meanwhile arrives when it mends the link.
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
# A message's transit time. Without it an immediate retry would stop the clock.
TRAVEL_SECONDS = 0.0002
# The gap between two messages of one connection.
APART_SECONDS = 0.000_001
# The retry interval of a connection to an address without an answer.
SYN_AGAIN_SECONDS = 0.1
# A run takes a few thousand turns of the loop; one with this many turns spins.
MOST_TURNS = 30_000


def node_of(process: str) -> str:
    """Return the part before the slash of a process's name: a node runs one process after the other."""
    return process.partition("/")[0]


class NothingLeftError(RuntimeError):
    """No timer and no ready callback: the test waits for an event that cannot happen."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop. `network` has the listeners; `kill` ends a process, `freeze` stops it for a while, `cut` separates two nodes.

    `most_turns`: a run with this many turns spins.
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
        # Dicts for their order: a set of objects has another order in each run.
        self._tasks_of: dict[str, dict[asyncio.Task[Any], None]] = {}
        self._transports: dict[MemoryTransport, None] = {}
        # The pending callbacks of dead and frozen processes.
        self._dead: dict[str, list[asyncio.Handle]] = {}
        self._frozen: dict[str, list[asyncio.Handle]] = {}
        self._cut: dict[frozenset[str], list[tuple[MemoryTransport, Callable[..., None], tuple[Any, ...]]]] = {}
        self.network: dict[tuple[str, int], MemoryServer] = {}
        # Other addresses of listeners, such as a Service's.
        self.aliases: dict[tuple[str, int], tuple[str, int]] = {}
        # The source address of a node's connections without a bound one.
        self.hosts: dict[str, str] = {}
        # Hosts without an answer: a connection to one is neither made nor refused.
        self.silent_hosts: set[str] = set()
        # The transit time of a message between two nodes.
        self.travel_seconds: Callable[[], float] = lambda: TRAVEL_SECONDS
        self.set_task_factory(self._new_task)

    def time(self) -> float:
        """Return virtual seconds since the loop's creation."""
        return self.now_seconds

    def _run_once(self) -> None:
        """Run one turn; if no callback is ready, the clock jumps to the next timer."""
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
        """Whether a callback's process is dead or frozen; then it is kept until the process wakes or the run ends."""
        process = handle._context.get(PROCESS)  # type: ignore[attr-defined]
        held = self._frozen.get(process) if process in self._frozen else self._dead.get(process)
        if held is not None:
            held.append(handle)
        return held is not None

    def freeze(self, process: str) -> None:
        """Stop a process as by SIGSTOP."""
        if process not in self._dead:
            self._frozen.setdefault(process, [])

    def thaw(self, process: str) -> None:
        """Continue a process as by SIGCONT: first ready callbacks, then data in its sockets, then overdue timers."""
        held = self._frozen.pop(process, [])
        if process not in self._dead:
            self._ready.extend(sorted(held, key=_order_after_a_freeze))

    def is_frozen(self, process: str) -> bool:
        """Whether the process is stopped now."""
        return process in self._frozen

    def cut(self, one: str, other: str) -> None:
        """Stop all traffic between two nodes until `mend`; open connections stay, new ones are not made."""
        self._cut.setdefault(frozenset((one, other)), [])

    def is_cut(self, one: str, other: str) -> bool:
        """Whether the link between them is cut now."""
        return frozenset((one, other)) in self._cut

    def mend(self, one: str, other: str) -> None:
        """End a cut; data sent meanwhile arrives now, in order."""
        for transport, what, arguments in self._cut.pop(frozenset((one, other)), []):
            transport.send(what, *arguments)

    def hold(self, transport: MemoryTransport, what: Callable[..., None], arguments: tuple[Any, ...]) -> bool:
        """Whether the link is cut; then the callback is kept until `mend`."""
        held = self._cut.get(frozenset((transport.node, transport.peer.node))) if self._cut else None
        if held is not None:
            held.append((transport, what, arguments))
        return held is not None

    def allow_more_turns(self) -> None:
        """Allow more turns for the steps after a run that may have used them up."""
        self._turns = 0

    def _new_task(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        context = options.get("context") or contextvars.copy_context()
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, **options)
        mine = self._tasks_of.setdefault(context.get(PROCESS, "test"), {})
        mine[task] = None
        task.add_done_callback(lambda done: mine.pop(done, None))
        return task

    def spawn(self, process: str, coro: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine as part of the process of this name."""
        context = contextvars.copy_context()
        context.run(PROCESS.set, process)
        return self.create_task(coro, context=context)

    def is_dead(self, process: str) -> bool:
        """Whether the process was killed."""
        return process in self._dead

    def kill(self, process: str) -> None:
        """End a process as by SIGKILL: its tasks stop where they are, and its peers' connections end."""
        self._dead[process] = self._frozen.pop(process, [])
        for key in [key for key, server in self.network.items() if server.process == process]:
            self.network.pop(key).closed = True
        for transport in [one for one in self._transports if one.process == process]:
            transport.die()

    def finish(self) -> None:
        """Close the loop. Cancel remaining tasks, also of dead processes: else the garbage collector ends them in the next run."""
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
        """Run the function at once: a thread would take real time, which this loop does not know."""
        result = self.create_future()
        try:
            result.set_result(func(*arguments))
        except Exception as error:  # noqa: BLE001 (it is the caller's, as from a thread)
            result.set_exception(error)
        return result

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        """Return the host itself: hosts are addresses here."""
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
        """Connect in memory; refused without a listener."""
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
        """No-op: a listener of this loop has no file descriptor."""
        return False if fd == -1 else super().remove_reader(fd)

    def forget(self, transport: MemoryTransport) -> None:
        self._transports.pop(transport, None)


def _order_after_a_freeze(handle: asyncio.Handle) -> int:
    """Return the order of a real event loop: waiting callbacks, sockets, timers; each in order of arrival."""
    if isinstance(getattr(handle._callback, "__self__", None), MemoryTransport):  # type: ignore[attr-defined]
        return 1
    return 2 if isinstance(handle, asyncio.TimerHandle) else 0


async def _cancel_the_rest() -> None:
    while rest := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in rest:
            task.cancel()
        await asyncio.wait(rest, timeout=1.0)


class _Listening:
    """A server's socket."""

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
    """One end of a connection; written data arrives in the next turn of the loop."""

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
        """Schedule a call at the other end, after all earlier ones."""
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
        """End this connection because the other end is gone."""
        if not self._closing:
            self._end()

    def die(self) -> None:
        """End this connection because its own process is gone: only the peer gets a notification."""
        if not self._closing:
            self._closing = True
            self._loop.forget(self)
            self.send(self.peer.lose)

    def _end(self) -> None:
        self._closing = True
        self._loop.forget(self)
        self._loop.call_soon(self.protocol.connection_lost, None, context=self.context.copy())
