"""One connection to somebody who answers remoting requests: asked now and then, never waited for.

Plain sockets and a selector instead of asyncio: that alone is most of the 30 MiB a fence may take. TLS, where it is spoken,
lies between socket and frames (``wire.py``). A question that is not answered by its deadline closes the connection, so that a
half-open one is found out and not believed.
"""

from __future__ import annotations

import errno
import selectors
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from rocketmq_remoting.codec import FrameDecoder, FrameLimits, encode
from rocketmq_remoting.errors import RemotingError

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokergroup_operator.fence.addresses import AddressBook
    from brokergroup_operator.fence.wire import Wire
    from rocketmq_remoting.address import Address
    from rocketmq_remoting.command import RemotingCommand

_LIMITS: Final = FrameLimits(max_frame_bytes=256 * 1024)
_READ_BYTES: Final = 64 * 1024


class Line:
    """At most one question at a time. ``answered`` gets the answer, or None when there will be none."""

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
        """When the last question was asked."""
        self.not_understood: str | None = None
        """Why what the other side sent last could not be read (no frames, a certificate that is not believed)."""
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
        """Whether an answer is waited for."""
        return self._deadline is not None

    def ask(self, question: RemotingCommand, *, now: float, timeout_seconds: float) -> None:
        """Send a question; not while one is waited for."""
        self._opaque = (self._opaque + 1) % 2**31
        self.asked_at, self._deadline = now, now + timeout_seconds
        try:
            if self._socket is None:
                self._connect()
            self._wire.send(encode(question.with_opaque(self._opaque)))
            self._send()
        except (OSError, RemotingError):
            self._give_up()

    def expire(self, now: float) -> None:
        """Give the question up when its time is over."""
        if self._deadline is not None and now >= self._deadline:
            self._give_up()

    def close(self) -> None:
        """Let go of the connection; nobody is told."""
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
        """The selector says that the socket can be read or written."""
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
                self._answered(command)
        self._send()

    def _give_up(self) -> None:
        was_busy = self.is_busy
        self.close()
        if was_busy:
            self._answered(None)
