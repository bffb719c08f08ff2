"""The fence's connections to controllers and broker: one question at a time, without blocking, plain or over TLS.

Plain sockets and a selector instead of asyncio, which alone needs most of the 30 MiB that a fence may use. A question without an
answer at its deadline closes the connection, so a half-open connection is detected.
"""

from __future__ import annotations

import errno
import selectors
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from brokergroup_operator.fence.settings import FenceSettingsError, TlsSettings
from rocketmq_remoting.address import is_ip
from rocketmq_remoting.codec import FrameDecoder, FrameLimits, encode
from rocketmq_remoting.errors import RemotingError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocketmq_remoting.address import Address
    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_remoting.tls import TlsChannel


_LIMITS: Final = FrameLimits(max_frame_bytes=256 * 1024)
_READ_BYTES: Final = 64 * 1024


class Line:
    """A connection with at most one open question. ``answered`` gets the answer, or None if there will be none."""

    def __init__(
        self,
        address: Address,
        book: AddressBook,
        selector: selectors.BaseSelector,
        wire: Callable[[], Wire],
        answered: Callable[[RemotingCommand | None], None],
    ) -> None:
        self.address = address
        self.asked_at = 0.0
        """Time of the last question."""
        self.has_answered = False
        """Whether the last question had an answer."""
        self.not_understood: str | None = None
        """Why the peer's last bytes were unreadable (no frames, an untrusted certificate)."""
        self._book = book
        self._selector = selector
        self._answered = answered
        self._socket: socket.socket | None = None
        self._make_wire = wire
        self._wire = wire()
        self._decoder = FrameDecoder(_LIMITS)
        self._unsent = b""
        self._opaque = 0
        self._deadline: float | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a question is open."""
        return self._deadline is not None

    def ask(self, question: RemotingCommand, *, now: float, timeout_seconds: float) -> None:
        """Send a question; not while one is open."""
        self._opaque = (self._opaque + 1) % 2**31
        self.asked_at, self._deadline, self.has_answered = now, now + timeout_seconds, False
        try:
            if self._socket is None:
                self._connect()
            self._wire.send(encode(question.with_opaque(self._opaque)))
            self._send()
        except (OSError, RemotingError):
            self._give_up()

    def expire(self, now: float) -> None:
        """Abandon the question at its deadline."""
        if self._deadline is not None and now >= self._deadline:
            self._give_up()

    def close(self) -> None:
        """Close the connection without calling ``answered``."""
        if self._socket is not None:
            self._selector.unregister(self._socket)
            self._socket.close()
            self._socket = None
        self._decoder = FrameDecoder(_LIMITS)
        self._unsent = b""
        self._deadline = None

    def _connect(self) -> None:
        target = self._book.resolve(self.address)
        if target is None:
            raise OSError(errno.EHOSTUNREACH, f"no address for {self.address.host}")
        family = socket.AF_INET6 if ":" in target else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._selector.register(self._socket, selectors.EVENT_WRITE, self)
        self._socket.settimeout(0)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        failed = self._socket.connect_ex((target, self.address.port))
        if failed not in (0, errno.EINPROGRESS):
            raise OSError(failed, "connect")
        self._wire = self._make_wire()
        self._wire.begin()

    def on_ready(self, events: int) -> None:
        """Read or write: the selector reports the socket ready."""
        if self._socket is None:  # closed in this turn, after another controller's answer
            return
        try:
            if events & selectors.EVENT_WRITE:
                self._send()
            if events & selectors.EVENT_READ:
                self._read()
        except RemotingError as error:
            self.not_understood = str(error)
            with suppress(OSError):  # the TLS alert, by which the other side's log says it too
                self._send()
            self._give_up()
        except OSError:
            self._give_up()

    def _send(self) -> None:
        assert self._socket is not None
        failed = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if failed:
            raise OSError(failed, "connect or send")
        self._unsent += self._wire.outgoing()
        try:
            sent = self._socket.send(self._unsent) if self._unsent else 0
        except BlockingIOError:  # not connected yet, too
            sent = 0
        self._unsent = self._unsent[sent:]
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        self._selector.modify(self._socket, wanted, self)

    def _read(self) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            raise OSError(errno.ECONNRESET, "closed by the other side")
        for command in self._decoder.feed(self._wire.receive(data)):
            if command.is_response and command.opaque == self._opaque and self._deadline is not None:
                self._deadline = self.not_understood = None
                self.has_answered = True
                self._answered(command)
        self._send()

    def _give_up(self) -> None:
        was_busy = self.is_busy
        self.close()
        if was_busy:
            self._answered(None)


class Wire(Protocol):
    """The layer between one socket and its frames. After each call, ``outgoing`` returns the bytes to send."""

    def begin(self) -> None:
        """Start, once the socket is connected."""

    def send(self, data: bytes) -> None:
        """Send a whole frame as soon as possible."""

    def receive(self, data: bytes) -> bytes:
        """Return the frames' bytes in the received ones. Raises RemotingError if nothing more can be read."""

    def outgoing(self) -> bytes:
        """Return and forget the bytes to send now."""


class PlainWire:
    """Plain frames."""

    def __init__(self) -> None:
        self._outgoing = b""

    def begin(self) -> None:
        """Do nothing: there is no handshake."""

    def send(self, data: bytes) -> None:
        self._outgoing += data

    def receive(self, data: bytes) -> bytes:
        return data

    def outgoing(self) -> bytes:
        taken, self._outgoing = self._outgoing, b""
        return taken


class TlsWire:
    """Frames in TLS; frames to send wait for the end of the handshake."""

    def __init__(self, channel: TlsChannel) -> None:
        self._channel = channel
        self._waiting = b""

    def begin(self) -> None:
        self._channel.begin()

    def send(self, data: bytes) -> None:
        self._waiting += data
        self._seal()

    def receive(self, data: bytes) -> bytes:
        plain = self._channel.receive(data)
        self._seal()
        return plain

    def outgoing(self) -> bytes:
        return self._channel.outgoing()

    def _seal(self) -> None:
        if self._channel.established and self._waiting:
            self._channel.send(self._waiting)
            self._waiting = b""


def tls_wires(settings: TlsSettings, now_seconds: Callable[[], float]) -> Callable[[], Wire]:
    """Return a factory of TLS wires; each connection re-reads changed certificate files. Raises FenceSettingsError."""
    from rocketmq_remoting.tls import ClientTls, TlsChannel, TlsConfigurationError, TlsFiles  # noqa: PLC0415 (memory)

    try:
        tls = ClientTls(TlsFiles(certificate=settings.certificate, key=settings.key, ca=settings.authority))
    except TlsConfigurationError as error:
        raise FenceSettingsError(str(error)) from error
    return lambda: TlsWire(TlsChannel(tls.context.get(now_seconds()), server_side=False))


_REFRESH_SECONDS: Final = 10.0
_RETRY_SECONDS: Final = 0.5


class AddressBook:
    """IP addresses of a few host names, resolved in a thread without blocking; the last answer stays until a newer one.

    An isolated pod has no DNS either; a fence that waited for it would not kill.
    """

    def __init__(self, addresses: tuple[Address, ...]) -> None:
        self._numbers: dict[str, tuple[str, ...]] = {}
        self._names: list[str] = []
        self._changed = threading.Event()
        self._thread: threading.Thread | None = None
        self.set_names(addresses)

    def set_names(self, addresses: tuple[Address, ...]) -> None:
        """Resolve the names in these addresses from now on, soon, and no others."""
        self._names = sorted({address.host for address in addresses if not is_ip(address.host)})
        self._changed.set()
        if self._thread is not None or not self._names:
            return
        self._thread = threading.Thread(target=self._refresh_for_ever, name="names", daemon=True)
        self._thread.start()

    def resolve(self, address: Address) -> str | None:
        """Return the IP address of a host, None before the first answer."""
        return next(iter(self.resolve_all(address.host)), None)

    def resolve_all(self, host: str) -> tuple[str, ...]:
        """Return all IP addresses of a name: the pods behind a headless Service."""
        return (host,) if is_ip(host) else self._numbers.get(host, ())

    def _refresh_for_ever(self) -> None:
        while True:
            self._changed.clear()
            found = [self._look_up(name) for name in self._names]
            self._changed.wait(_REFRESH_SECONDS if all(found) else _RETRY_SECONDS)

    def _look_up(self, name: str) -> bool:
        try:
            found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except OSError:
            return False
        self._numbers[name] = tuple(dict.fromkeys(str(one[4][0]) for one in found))
        return True
