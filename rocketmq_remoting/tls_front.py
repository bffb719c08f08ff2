"""The layer between a socket and a :class:`RemotingConnection` that may use TLS. The connection sees a transport either way.

asyncio's own TLS does not fit: ``loop.start_tls`` cannot take the byte that was already read, and peeking with ``MSG_PEEK`` needs
the socket before uvloop hands it over. A ``MemoryBIO`` needs neither, behaves the same under uvloop and asyncio, and lets the
server count, limit and time a connection including its handshake.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, cast

from rocketmq_remoting.errors import RemotingConnectError
from rocketmq_remoting.limits import PeerLog
from rocketmq_remoting.tls import CLIENT_HELLO, TlsChannel, TlsError, TlsMode

if TYPE_CHECKING:
    import ssl

    from rocketmq_remoting.connection import RemotingConnection
    from rocketmq_remoting.tls import ServerTls

peer_log = PeerLog(logging.getLogger(__name__))


class FrontTransport(asyncio.Transport):
    """The transport that the connection sees. It encrypts if there is a TLS channel."""

    def __init__(self, raw: asyncio.Transport) -> None:
        super().__init__()
        self.raw = raw
        self.channel: TlsChannel | None = None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the socket's information."""
        return self.raw.get_extra_info(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes, encrypted on a TLS connection. Before the end of the handshake nothing is sent: there is no request yet."""
        if self.channel is None:
            self.raw.write(data)
        elif self.channel.established and not self.raw.is_closing():
            self.channel.send(data)
            self.flush()

    def flush(self) -> None:
        """Send the channel's outgoing bytes."""
        if self.channel is not None and (outgoing := self.channel.outgoing()) and not self.raw.is_closing():
            self.raw.write(outgoing)

    def is_closing(self) -> bool:
        """Whether it is closed or closing."""
        return self.raw.is_closing()

    def close(self) -> None:
        """Send the written bytes and the TLS close notification, then close."""
        if self.channel is not None and self.channel.established and not self.raw.is_closing():
            self.channel.end()
            self.flush()
        self.raw.close()

    def abort(self) -> None:
        """Close at once."""
        self.raw.abort()

    def pause_reading(self) -> None:
        """Stop reading from the socket."""
        self.raw.pause_reading()

    def resume_reading(self) -> None:
        """Continue reading from the socket."""
        self.raw.resume_reading()


class _Front(asyncio.Protocol):
    """Passes the socket's events to the connection."""

    def __init__(self, connection: RemotingConnection) -> None:
        self.connection = connection
        self._transport: FrontTransport | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def transport(self) -> FrontTransport:
        assert self._transport is not None, "asyncio calls connection_made first"
        return self._transport

    def pause_writing(self) -> None:
        """Called by asyncio."""
        self.connection.pause_writing()

    def resume_writing(self) -> None:
        """Called by asyncio."""
        self.connection.resume_writing()

    def _receive(self, channel: TlsChannel, data: bytes) -> None:
        """Take bytes of a TLS connection: the handshake, then frames. Raises nothing into the event loop."""
        was_established = channel.established
        try:
            plain = channel.receive(data)
        except TlsError as error:
            self.transport.flush()  # the alert, which the peer can log
            self._failed(error)
            self.transport.raw.close()
            return
        self.transport.flush()
        if channel.established and not was_established:
            self._established(channel)
        if plain and not self.transport.is_closing():
            self.connection.data_received(plain)
        if channel.ended:
            self.transport.close()

    def _established(self, channel: TlsChannel) -> None:
        self._stop_timer()
        self.connection.secured(channel.peer_names(), channel.peer_validity(), channel.version())

    def _failed(self, error: TlsError) -> None:
        peer_log.warning("%r: closing: TLS failed: %s", self.connection, error)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class ServerFront(_Front):
    """The server's side: decides by the first byte between TLS and plain frames, as the mode allows."""

    def __init__(self, connection: RemotingConnection, tls: ServerTls) -> None:
        super().__init__(connection)
        self._tls = tls
        self._plain = False
        self._counted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio. The connection counts towards the limits from here on."""
        self._transport = FrontTransport(cast("asyncio.Transport", transport))
        self.connection.connection_made(self._transport)
        if self._tls.settings.mode is TlsMode.ENFORCING:  # a TLS client sends its hello at once
            self._start_timer()

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        if self._plain:
            self.connection.data_received(data)
        elif self.transport.channel is not None:
            self._receive(self.transport.channel, data)
        elif not self.transport.is_closing():
            self._first(data)

    def _first(self, data: bytes) -> None:
        if data[0] == CLIENT_HELLO:
            self._begin(data)
        elif self._tls.settings.mode is TlsMode.ENFORCING:
            peer_log.warning("%r: closing: plain bytes where TLS is enforced", self.connection)
            self.transport.abort()
        else:
            self._plain = True
            self.connection.data_received(data)

    def _begin(self, data: bytes) -> None:
        if self._tls.handshakes >= self._tls.settings.max_handshakes:
            peer_log.warning("%r: closing: %d handshakes are under way", self.connection, self._tls.handshakes)
            self.transport.abort()
            return
        self._tls.handshakes += 1
        self._counted = True
        if self._timer is None:
            self._start_timer()
        context = self._tls.context.get(asyncio.get_running_loop().time())
        self.transport.channel = TlsChannel(context, server_side=True)
        self._receive(self.transport.channel, data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self._handshake_over()
        self.connection.connection_lost(exc)

    def _established(self, channel: TlsChannel) -> None:
        self._handshake_over()
        super()._established(channel)

    def _failed(self, error: TlsError) -> None:
        self._handshake_over()
        super()._failed(error)

    def _handshake_over(self) -> None:
        self._stop_timer()
        if self._counted:
            self._counted = False
            self._tls.handshakes -= 1

    def _start_timer(self) -> None:
        deadline_seconds = self._tls.settings.handshake_timeout_seconds
        self._timer = asyncio.get_running_loop().call_later(deadline_seconds, self._too_slow)

    def _too_slow(self) -> None:
        peer_log.warning("%r: closing: no TLS handshake in time", self.connection)
        self.transport.abort()


class ClientFront(_Front):
    """The client's side: the connection begins after the handshake. The caller that connects awaits ``opened``."""

    def __init__(self, connection: RemotingConnection, context: ssl.SSLContext) -> None:
        super().__init__(connection)
        self._context = context
        self._error: TlsError | None = None
        self.opened: asyncio.Future[RemotingConnection] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self._transport = FrontTransport(cast("asyncio.Transport", transport))
        self._transport.channel = TlsChannel(self._context, server_side=False)
        self._transport.channel.begin()
        self._transport.flush()

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        assert self.transport.channel is not None
        self._receive(self.transport.channel, data)

    def _established(self, channel: TlsChannel) -> None:
        super()._established(channel)
        self.connection.connection_made(self.transport)
        if not self.opened.done():
            self.opened.set_result(self.connection)

    def _failed(self, error: TlsError) -> None:
        self._error = error
        super()._failed(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        channel = self.transport.channel
        if channel is not None and channel.established:
            self.connection.connection_lost(exc)
        elif not self.opened.done():
            why = self._error or exc or "the peer closed the connection"
            self.opened.set_exception(RemotingConnectError(f"TLS handshake failed: {why}", refused=False))
