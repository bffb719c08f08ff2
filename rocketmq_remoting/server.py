"""A remoting server: a listener whose connections pass their requests to one handler.

The protocol is in ``connection.py``. This module listens, limits the number of connections, and stops in order: no new
connections, answers to the requests that are being handled, then close.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from typing import TYPE_CHECKING

from rocketmq_remoting.address import join_address
from rocketmq_remoting.codec import FrameLimits
from rocketmq_remoting.connection import RemotingConnection
from rocketmq_remoting.limits import ByteBudget, ConnectionSettings, PeerLog
from rocketmq_remoting.tls import ServerTls, TlsMode
from rocketmq_remoting.tls_front import ServerFront

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from rocketmq_remoting.handler import RemotingHandler
    from rocketmq_remoting.tls import TlsServerSettings


peer_log = PeerLog(logging.getLogger(__name__))


class RemotingServer:
    """Serves one address. Handler tasks of a lost connection run to their end, and their answers are dropped.

    Unknown peers (``RemotingConnection.peer_is_known`` was not called) have a limit of their own, so they never displace known
    ones. ``max_unfinished_bytes`` limits the bytes of incomplete frames over all connections; a connection that exceeds it is
    closed. The constructor raises ``TlsConfigurationError`` if the TLS files cannot be used.
    """

    def __init__(  # noqa: PLR0913 - limits, each with its own default
        self,
        handler: RemotingHandler,
        *,
        limits: FrameLimits | None = None,
        idle_timeout_seconds: float = 120.0,
        frame_timeout_seconds: float = 15.0,
        max_in_flight: int = 1024,
        max_connections: int = 20_000,
        max_connections_per_host: int = 1024,
        max_unknown_connections: int | None = None,
        max_unfinished_bytes: int = 256 << 20,
        max_unfinished_bytes_per_host: int = 64 << 20,
        max_unknown_connections_per_host: int | None = None,
        tls: TlsServerSettings | None = None,
    ) -> None:
        self._handler = handler
        self._settings = ConnectionSettings(
            limits=limits or FrameLimits(),
            idle_timeout_seconds=idle_timeout_seconds,
            frame_timeout_seconds=frame_timeout_seconds,
            max_in_flight=max_in_flight,
            budget=ByteBudget(max_bytes=max_unfinished_bytes, max_bytes_per_host=max_unfinished_bytes_per_host),
        )
        self._max_connections = max_connections
        self._max_connections_per_host = max_connections_per_host
        self._max_unknown_connections = max_unknown_connections or max_connections
        self._max_unknown_connections_per_host = max_unknown_connections_per_host or max_connections_per_host
        self._tls = ServerTls(tls) if tls is not None and tls.mode is not TlsMode.DISABLED else None
        self._tls_files: asyncio.Task[None] | None = None
        self._connections: set[RemotingConnection] = set()
        self._per_host: Counter[str] = Counter()
        self._unknown: set[RemotingConnection] = set()
        self._unknown_per_host: Counter[str] = Counter()
        self._lost_in_flight: set[RemotingConnection] = set()
        self._listener: Listener | None = None
        self._host = ""
        self._port = 0

    @property
    def host(self) -> str:
        """The host it listens on."""
        return self._host

    @property
    def port(self) -> int:
        """The port it listens on: the chosen one if 0 was requested."""
        return self._port

    @property
    def address(self) -> str:
        """The listening address as ``host:port``."""
        return join_address(self._host, self._port)

    @property
    def connections(self) -> frozenset[RemotingConnection]:
        """The open connections."""
        return frozenset(self._connections)

    async def start(self, host: str, port: int) -> None:
        """Listen. Raise OSError if the address cannot be bound."""
        if self._listener is not None:
            raise RuntimeError(f"the server listens on {self.address} already")
        self._listener = await Listener.open(self._connection, host, port, backlog=1024)
        self._host, self._port = self._listener.host, self._listener.port
        if self._tls is not None:
            self._tls_files = asyncio.create_task(_watch_files(self._tls), name="tls files")

    def stop_listening(self) -> None:
        """Accept no more connections; open ones continue."""
        if self._listener is not None:
            self._listener.stop_accepting()

    async def stop(self, *, grace_seconds: float = 3.0) -> None:
        """Stop listening, wait at most ``grace_seconds`` for answers under way, then close every connection."""
        if self._listener is None:
            return
        if self._tls_files is not None:
            self._tls_files.cancel()
            await asyncio.gather(self._tls_files, return_exceptions=True)
            self._tls_files = None
        await self._listener.close()
        connections = [*self._connections, *self._lost_in_flight]
        await _within(grace_seconds, [connection.wait_answered() for connection in connections])
        for connection in connections:
            connection.close()
        await _within(grace_seconds, [connection.wait_closed() for connection in connections])
        for connection in connections:
            connection.abort()
            connection.cancel_in_flight()
        await asyncio.gather(*(connection.wait_closed() for connection in connections))
        await asyncio.gather(*(connection.wait_answered() for connection in connections))
        self._listener = None

    def _connection(self) -> asyncio.Protocol:
        connection = RemotingConnection(
            handler=self._handler,
            settings=self._settings,
            on_opened=self._opened,
            on_closed=self._lost,
            on_known=self._known,
        )
        return connection if self._tls is None else ServerFront(connection, self._tls)

    def _opened(self, connection: RemotingConnection) -> None:
        host = connection.peer_host
        self._connections.add(connection)
        self._per_host[host] += 1
        if not connection.is_known:
            self._unknown.add(connection)
            self._unknown_per_host[host] += 1
        too_many = self._too_many(connection)
        if too_many is not None:
            peer_log.warning("%r: closing: %s", connection, too_many)
            connection.abort()

    def _too_many(self, connection: RemotingConnection) -> str | None:
        host = connection.peer_host
        if len(self._connections) > self._max_connections:
            return f"{self._max_connections} connections is the limit"
        if self._per_host[host] > self._max_connections_per_host:
            return f"{self._max_connections_per_host} connections is the limit per host"
        if connection.is_known:
            return None
        if len(self._unknown) > self._max_unknown_connections:
            return f"{self._max_unknown_connections} connections is the limit of unknown peers"
        if self._unknown_per_host[host] > self._max_unknown_connections_per_host:
            return f"{self._max_unknown_connections_per_host} connections is the limit per unknown host"
        return None

    def _known(self, connection: RemotingConnection) -> None:
        if connection in self._unknown:
            self._unknown.remove(connection)
            _count_down(self._unknown_per_host, connection.peer_host)

    def _lost(self, connection: RemotingConnection) -> None:
        self._known(connection)
        self._connections.discard(connection)
        _count_down(self._per_host, connection.peer_host)
        self._lost_in_flight = {lost for lost in self._lost_in_flight if lost.in_flight}
        if connection.in_flight:
            self._lost_in_flight.add(connection)


def _count_down(counter: Counter[str], host: str) -> None:
    counter[host] -= 1
    if not counter[host]:
        del counter[host]


async def _watch_files(tls: ServerTls) -> None:
    """Reload changed TLS files regularly: a broken certificate is logged when it appears, not at the next connection."""
    while True:
        await asyncio.sleep(tls.settings.check_files_seconds)
        tls.context.refresh()


async def _within(deadline_seconds: float, waits: Sequence[Coroutine[None, None, None]]) -> None:
    """Wait for all of them, at most until the deadline."""
    if not waits:
        return
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    _, late = await asyncio.wait(tasks, timeout=deadline_seconds)
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)


_TURNS_FROM_ACCEPTED_TO_OPENED = 3
"""One turn makes the transport, the next calls ``connection_made``, one is spare."""


class Listener:
    """A listening address that loses no accepted connection when it closes.

    asyncio opens an accepted socket in two later turns of its loop, and no longer does so once its ``Server`` is closed
    (gh-109564): the socket then stays open until the garbage collector finds it. So this class stops accepting first, lets the
    accepted sockets open, and closes the server last. uvloop does not need it (``tests/remoting/test_hostile_peers.py``).
    """

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        self._accepts = True
        self.host, self.port = server.sockets[0].getsockname()[:2]

    @classmethod
    async def open(
        cls, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, *, backlog: int = 100
    ) -> Listener:
        """Listen; port 0 chooses a free port. Raise OSError if the address cannot be bound."""
        loop, both = asyncio.get_running_loop(), dual_stack_socket(host, port)
        if both is not None:
            return cls(await loop.create_server(factory, sock=both, backlog=backlog))
        return cls(await loop.create_server(factory, host, port, backlog=backlog))

    def stop_accepting(self) -> None:
        """Accept no more connections. The address is free some turns of the loop later."""
        if not self._accepts:
            return
        self._accepts = False
        loop = asyncio.get_running_loop()
        paused = [loop.remove_reader(each.fileno()) for each in self._server.sockets]
        self._close_after(_TURNS_FROM_ACCEPTED_TO_OPENED if any(paused) else 0)

    async def close(self) -> None:
        """Accept no more connections. Afterwards ``connection_made`` was called for every accepted one."""
        self.stop_accepting()
        for _ in range(_TURNS_FROM_ACCEPTED_TO_OPENED):
            await asyncio.sleep(0)
        self._server.close()

    def _close_after(self, turns: int) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(self._close_after, turns - 1)
        else:
            self._server.close()


def dual_stack_socket(host: str, port: int) -> socket.socket | None:
    """Return a socket for both IPv6 and IPv4 if the host is ``::``; None for any other host.

    asyncio would open ``::`` for IPv6 only. Without IPv6 in the kernel, the socket is an IPv4 one.
    """
    if host != "::":
        return None
    if socket.has_dualstack_ipv6():
        return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("0.0.0.0", port))  # noqa: S104 - what `::` means there
