"""A remoting client: one connection per address, opened when needed and again after it was lost.

Every call has a deadline. :class:`RemotingConnectError` means that the request was not sent, :class:`RemotingTimeoutError` and
:class:`RemotingConnectionLostError` that it may have been executed. Calls to one address share its connection, also while it is
being opened; it survives a single late answer (``RemotingConnection._note_timeout``). The client never retries.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import TYPE_CHECKING, Any, Final

from rocketmq_remoting.address import EXPECTED, heard_address, local_address
from rocketmq_remoting.codec import FrameLimits
from rocketmq_remoting.connection import RemotingConnection
from rocketmq_remoting.errors import RemotingConnectError
from rocketmq_remoting.limits import ConnectionSettings
from rocketmq_remoting.tls_front import ClientFront

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_remoting.handler import RemotingHandler
    from rocketmq_remoting.tls import ClientTls

_UNACKNOWLEDGED_MS: Final = 10_000
"""The kernel closes a connection whose peer has acknowledged no data for this time (TCP_USER_TIMEOUT)."""


class RemotingClient:
    """Sends requests to servers. ``on_connection_closed`` gets the address of every connection that ends.

    ``tls`` applies to all connections, or is a function that returns the TLS settings of an address (None: plain).
    """

    def __init__(
        self,
        *,
        local_host: str | None = None,
        connect_timeout_seconds: float = 3.0,
        request_handler: RemotingHandler | None = None,
        on_connection_closed: Callable[[str], None] | None = None,
        limits: FrameLimits | None = None,
        idle_timeout_seconds: float = 120.0,
        tls: ClientTls | Callable[[str], ClientTls | None] | None = None,
    ) -> None:
        self._tls = tls
        self._local_host = local_host
        self._connect_timeout_seconds = connect_timeout_seconds
        self._request_handler = request_handler
        self._on_connection_closed = on_connection_closed
        self._settings = ConnectionSettings(limits=limits or FrameLimits(), idle_timeout_seconds=idle_timeout_seconds)
        self._connections: dict[str, RemotingConnection] = {}
        self._connecting: dict[str, asyncio.Task[RemotingConnection]] = {}
        self._closed = False

    async def invoke(self, address: str, command: RemotingCommand, *, timeout_seconds: float) -> RemotingCommand:
        """Send a request to ``address`` (``host:port``); return its answer, whatever the code. The deadline includes connecting."""
        deadline_seconds = asyncio.get_running_loop().time() + timeout_seconds
        connection = await self._connection(address, timeout_seconds)
        return await connection.invoke(command, timeout_seconds=_left_seconds(deadline_seconds))

    async def invoke_oneway(self, address: str, command: RemotingCommand, *, timeout_seconds: float) -> None:
        """Send a request without an answer."""
        deadline_seconds = asyncio.get_running_loop().time() + timeout_seconds
        connection = await self._connection(address, timeout_seconds)
        await connection.send_oneway(command, timeout_seconds=_left_seconds(deadline_seconds))

    def is_connected(self, address: str) -> bool:
        """Whether a connection to ``address`` is open, as far as this side knows."""
        connection = self._connections.get(address)
        return connection is not None and connection.is_open

    def disconnect(self, address: str) -> None:
        """Close the connection to ``address``, if there is one; the next call opens a new one."""
        connection = self._connections.get(address)
        if connection is not None:
            connection.close()

    async def close(self) -> None:
        """Close every connection. Waiting calls raise RemotingConnectionLostError, later calls RemotingConnectError."""
        self._closed = True
        connecting = list(self._connecting.values())
        for task in connecting:
            task.cancel()
        await asyncio.gather(*connecting, return_exceptions=True)
        connections = list(self._connections.values())
        for connection in connections:
            connection.abort()
        await asyncio.gather(*(connection.wait_closed() for connection in connections))

    async def _connection(self, address: str, timeout_seconds: float) -> RemotingConnection:
        if self._closed:
            raise RemotingConnectError(f"{address}: the client is closed", refused=False)
        connection = self._connections.get(address)
        if connection is not None and connection.is_open:
            return connection
        task = self._connecting.get(address)
        if task is None:
            task = asyncio.create_task(self._connect(address), name=f"connect {address}")
            self._connecting[address] = task
            task.add_done_callback(lambda done: self._connect_ended(address, done))
        done, _ = await asyncio.wait([task], timeout=timeout_seconds)
        if not done:
            raise RemotingConnectError(f"{address}: not connected within {timeout_seconds} s", refused=False)
        if task.cancelled():
            raise RemotingConnectError(f"{address}: the client is closed", refused=False)
        return task.result()

    def _connect_ended(self, address: str, task: asyncio.Task[RemotingConnection]) -> None:
        del self._connecting[address]
        if not task.cancelled():
            task.exception()  # retrieved: every caller may have timed out before, and asyncio logs an unhandled error

    async def _connect(self, address: str) -> RemotingConnection:
        try:
            async with asyncio.timeout(self._connect_timeout_seconds):
                return await self._connect_to_any(address)
        except TimeoutError:
            message = f"{address}: not connected within {self._connect_timeout_seconds} s"
            raise RemotingConnectError(message, refused=False) from None

    async def _connect_to_any(self, address: str) -> RemotingConnection:
        """Try the addresses of the host name in turn. ``refused`` is true only if each of them refused."""
        host, port = _split(address)
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, ValueError) as error:  # ValueError: an invalid host name
            raise RemotingConnectError(f"{address}: {error}", refused=False) from error
        errors: list[OSError] = []
        for family, _, _, _, socket_address in found:
            try:
                return await self._connect_to(address, _with_zone(socket_address), port, family)
            except OSError as error:
                errors.append(error)
        refused = all(error.errno == errno.ECONNREFUSED for error in errors)
        raise RemotingConnectError(f"{address}: {'; '.join(map(str, errors))}", refused=refused)

    async def _connect_to(self, address: str, ip: str, port: int, family: int) -> RemotingConnection:
        own = local_address(self._local_host, is_v6=family == socket.AF_INET6)
        loop = asyncio.get_running_loop()
        made = self._make(address)
        tls = self._tls(address) if callable(self._tls) else self._tls
        front = made if tls is None else ClientFront(made, tls.context.get(loop.time()))
        transport, _ = await loop.create_connection(lambda: front, ip, port, family=family, local_addr=own)
        _watch_path(transport.get_extra_info("socket"))
        if isinstance(front, ClientFront):
            await _shake_hands(address, front)
        if not made.is_open:
            raise ConnectionResetError(errno.ECONNRESET, "closed immediately after it was opened")
        return made

    def _make(self, address: str) -> RemotingConnection:
        return RemotingConnection(
            handler=self._request_handler,
            settings=self._settings,
            on_opened=lambda connection: self._connections.__setitem__(address, connection),
            on_closed=lambda connection: self._lost(address, connection),
        )

    def _lost(self, address: str, connection: RemotingConnection) -> None:
        if self._connections.get(address) is connection:
            del self._connections[address]
        if self._on_connection_closed is not None:
            self._on_connection_closed(address)


def _split(address: str) -> tuple[str, int]:
    """Return host and port. Addresses come from peers' registrations, so an invalid one is a RemotingConnectError of the call."""
    found = heard_address(address)
    if found is None:
        raise RemotingConnectError(f"address {address!r}: expected {EXPECTED}", refused=False)
    return found.host, found.port


def _with_zone(found: tuple[Any, ...]) -> str:
    """Return the IP address of a ``getaddrinfo`` entry, with its zone if it is link-local."""
    ip = str(found[0])
    return f"{ip}%{found[3]}" if len(found) == 4 and found[3] and "%" not in ip else ip


def _left_seconds(deadline_seconds: float) -> float:
    return max(deadline_seconds - asyncio.get_running_loop().time(), 0.0)


async def _shake_hands(address: str, front: ClientFront) -> None:
    try:
        await front.opened
    except RemotingConnectError as error:
        raise RemotingConnectError(f"{address}: {error}", refused=False) from error
    except asyncio.CancelledError:
        front.transport.abort()
        raise


def _watch_path(sock: socket.socket | None) -> None:
    """Let the kernel detect a peer whose host is gone: it sends no RST, and one-way requests have no answer that could time out."""
    if sock is None or not hasattr(socket, "TCP_USER_TIMEOUT"):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)
