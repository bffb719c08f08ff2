"""One TCP connection, in both directions: either side may send requests, and the response flag marks the answers.

A request of the peer goes to the handler, whose answer is written as soon as it exists: a slow one delays no other. An answer of
the peer goes to the call that waits for its opaque. Four rules limit what a peer costs:

* at most ``max_in_flight`` of its requests are handled at once; the rest stay unread in the socket,
* at most 64 frames of one connection are handled in one turn of the event loop,
* reading stops while the peer does not read our answers,
* the peer's bytes never raise into the event loop: bytes that are not a frame close the connection.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from typing import TYPE_CHECKING, Final, cast

import msgspec

from rocketmq_remoting.address import join_address, plain_host
from rocketmq_remoting.codec import FrameDecoder, encode
from rocketmq_remoting.codes import ResponseCode
from rocketmq_remoting.command import RESPONSE_FLAG, RemotingCommand
from rocketmq_remoting.errors import (
    BodyError,
    CommandEncodeError,
    FrameError,
    RemotingConnectionLostError,
    RemotingTimeoutError,
)
from rocketmq_remoting.handler import Answer, InFlight, LaterAnswer, RemotingHandler, not_supported
from rocketmq_remoting.limits import PeerLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rocketmq_remoting.limits import ConnectionSettings
    from rocketmq_remoting.tls import Validity


logger = logging.getLogger(__name__)
peer_log = PeerLog(logger)
_connection_ids = itertools.count(1)
_WRITE_AT_ONCE_BYTES: Final = 64 * 1024
_FRAMES_PER_TURN: Final = 64


class RemotingConnection(asyncio.Protocol):
    """One connection. ``id`` is unique in the process; peer host and port come from the socket.

    ``certificate_names`` are the names in the peer's verified certificate, ``certificate_validity`` its times (None without one).
    ``tls_version`` is empty without TLS.
    """

    def __init__(
        self,
        *,
        handler: RemotingHandler | None,
        settings: ConnectionSettings,
        on_opened: Callable[[RemotingConnection], None] | None = None,
        on_closed: Callable[[RemotingConnection], None] | None = None,
        on_known: Callable[[RemotingConnection], None] | None = None,
    ) -> None:
        self.id: int = next(_connection_ids)
        self.peer_host, self.peer_port = "", 0
        self.certificate_names: tuple[str, ...] = ()
        self.certificate_validity: Validity | None = None
        self.tls_version: str = ""
        self.is_known = False
        self._handler = handler
        self._settings = settings
        self._on_opened = on_opened
        self._on_closed = on_closed
        self._on_known = on_known
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._decoder = FrameDecoder(settings.limits)
        self._backlog: deque[RemotingCommand] = deque()
        self._undecoded = False
        self._turn: asyncio.Handle | None = None
        self._outgoing = bytearray()
        self._leaving: asyncio.Handle | None = None
        self._serving = False
        self._in_flight = InFlight(
            on_answer=self._send_answer, on_failure=self._send_failure, on_fewer=self._serve_more
        )
        self._pending = PendingRequests(self._loop)
        self._read_paused = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._closed = asyncio.Event()
        self._last_activity_seconds = self._loop.time()
        self._frame_begun_seconds: float | None = None
        self._held_bytes = 0
        self._silent_since_seconds: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<RemotingConnection {self.id} {join_address(self.peer_host, self.peer_port)}>"

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent over it."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def in_flight(self) -> int:
        """The number of the peer's requests that are not answered yet."""
        return len(self._in_flight) + len(self._backlog)

    def peer_is_known(self) -> None:
        """Called by the owner when it has recognised the peer. The full frame limit applies from now on."""
        if not self.is_known:
            self.is_known = True
            self._decoder.peer_is_known()
            if self._on_known is not None:
                self._on_known(self)

    def secured(
        self, certificate_names: tuple[str, ...], certificate_validity: Validity | None, tls_version: str
    ) -> None:
        """Called by the front when the TLS handshake is done."""
        self.certificate_names, self.tls_version = certificate_names, tls_version
        self.certificate_validity = certificate_validity
        if certificate_names:
            self.peer_is_known()

    def close(self) -> None:
        """Close the connection after sending what is already written."""
        if self._transport is not None:
            self._write_outgoing()
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once and drop unsent bytes."""
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> None:
        """Return when the connection is closed."""
        await self._closed.wait()

    async def wait_answered(self) -> None:
        """Return when no request of the peer is being handled."""
        await self._in_flight.wait()

    def cancel_in_flight(self) -> None:
        """Cancel the requests that are being handled. Only for a server that stops: a lost connection cancels nothing."""
        self._in_flight.cancel()

    # ------------------------------------------------------------------------------------------------------- asking

    async def invoke(self, command: RemotingCommand, *, timeout_seconds: float) -> RemotingCommand:
        """Send a request and return its answer, whatever the code. This connection chooses ``opaque``."""
        opaque = self._pending.take_opaque()
        frame = encode(command.with_opaque(opaque))
        answer = self._pending.wait_for(opaque)
        begun_seconds = self._loop.time()
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._write_when_writable(frame)
                return await answer
        except TimeoutError:
            self._note_timeout(begun_seconds)
            raise RemotingTimeoutError(
                f"{self._peer()}: no answer to code {int(command.code)} within {timeout_seconds} s"
            ) from None
        finally:
            self._pending.forget(opaque)

    async def send_oneway(self, command: RemotingCommand, *, timeout_seconds: float) -> None:
        """Send a request without an answer. Return when it is in the socket's buffer."""
        frame = encode(command.with_opaque(self._pending.take_opaque()))
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._write_when_writable(frame)
        except TimeoutError:
            raise RemotingTimeoutError(
                f"{self._peer()}: one-way code {int(command.code)} could not be written within {timeout_seconds} s"
            ) from None

    async def _write_when_writable(self, frame: bytes) -> None:
        await self._writable.wait()
        if self._transport is None or self._transport.is_closing():
            raise RemotingConnectionLostError(f"{self._peer()}: the connection is closed")
        self._write(frame)

    def _note_timeout(self, begun_seconds: float) -> None:
        """Close the connection at the second timeout in a row without a received byte: one late answer only means a slow peer.

        Java closes at the first timeout, which its controllers take for the death of a broker. Keeping the connection is safe
        because opaques are not reused soon: a late answer matches no request and is dropped.
        """
        if self._silent_since_seconds is None:
            self._silent_since_seconds = self._loop.time()
        elif begun_seconds >= self._silent_since_seconds:
            logger.warning("%s: two requests in a row timed out without a byte received, closing", self._peer())
            self.abort()

    # ----------------------------------------------------------------------------------------------------- protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.peer_host, self.peer_port = plain_host(str(peer[0])), int(peer[1])
        self._schedule_timer(self._settings.idle_timeout_seconds)
        if self._handler is not None:  # before on_opened, which counts unknown peers: the owner may recognise this one
            self._handler.connection_opened(self)
        if self._on_opened is not None:
            self._on_opened(self)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio. Turns bytes into commands, or closes the connection."""
        self._last_activity_seconds = self._loop.time()
        self._silent_since_seconds = None
        self._decode(data)

    def _decode(self, data: bytes) -> None:
        try:
            commands = self._decoder.feed(data, at_most=_FRAMES_PER_TURN)
        except FrameError as error:
            peer_log.warning("%s: closing: %s", self._peer(), error)
            self._undecoded = False
            self._receive(error.decoded_before)
            self.close()
            return
        buffered_bytes = self._decoder.buffered_bytes
        if buffered_bytes != self._held_bytes and not self._holds_within_budget():
            return
        self._undecoded = len(commands) == _FRAMES_PER_TURN
        if not buffered_bytes:
            self._frame_begun_seconds = None
        elif not self._undecoded:
            self._note_frame_begun(a_frame_ended=bool(commands))
        self._receive(commands)

    def _holds_within_budget(self) -> bool:
        """Report the buffered bytes to the budget. Close the connection and return False if they are too many."""
        if self._settings.budget is None:
            return True
        held, self._held_bytes = self._held_bytes, self._decoder.buffered_bytes
        too_much = self._settings.budget.change(self.peer_host, self._held_bytes - held)
        if too_much is not None:
            peer_log.warning("%s: closing: %s", self._peer(), too_much)
            self.abort()
        return too_much is None

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        if self._settings.budget is not None and self._held_bytes:
            self._settings.budget.change(self.peer_host, -self._held_bytes)
            self._held_bytes = 0
        self._decoder = FrameDecoder(self._settings.limits)  # drop the incomplete frame
        if self._timer is not None:
            self._timer.cancel()
        for handle in (self._turn, self._leaving):
            if handle is not None:
                handle.cancel()
        self._backlog.clear()
        self._writable.set()
        self._closed.set()
        reason = f": {exc}" if exc else ""
        self._pending.fail_all(RemotingConnectionLostError(f"{self._peer()}: connection lost{reason}"))
        if self._handler is not None:
            self._handler.connection_closed(self)
        if self._on_closed is not None:
            self._on_closed(self)

    def pause_writing(self) -> None:
        """Called by asyncio when the peer does not read. Reading from it stops, too."""
        self._writable.clear()
        self._balance_reading()

    def resume_writing(self) -> None:
        """Called by asyncio."""
        self._writable.set()
        self._serve_backlog()

    # ----------------------------------------------------------------------------------------------------- answering

    def _receive(self, commands: Iterable[RemotingCommand]) -> None:
        for command in commands:
            if not command.flag & RESPONSE_FLAG:
                self._backlog.append(command)
            elif not self._pending.resolve(command):
                logger.debug(
                    "%s: dropped the answer to opaque %d, which no request waits for", self._peer(), command.opaque
                )
        self._serve_backlog()

    def _serve_backlog(self) -> None:
        """Handle the waiting requests, up to the limits. Answers that exist at once leave in one write."""
        if self._serving:  # called from inside a handler: the outer call continues with the backlog
            return
        self._serving = True
        while self._backlog and self._may_serve():
            self._serve(self._backlog.popleft())
        self._serving = False
        if self._outgoing:
            self._write_outgoing()
        if not (self._backlog or self._undecoded or self._read_paused) and self._writable.is_set():
            return  # nothing waits, and nothing has: the peer is read on
        self._balance_reading()
        if self._undecoded and self._turn is None and not self._backlog and self._writable.is_set():
            self._turn = self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn = None
        if self._backlog or not self._undecoded:
            self._serve_backlog()
        elif self.is_open:
            self._decode(b"")

    def _may_serve(self) -> bool:
        transport, in_flight = self._transport, self._in_flight
        if (in_flight and len(in_flight) >= self._settings.max_in_flight) or not self._writable.is_set():
            return False
        return transport is not None and not transport.is_closing()

    def _write(self, data: bytes | bytearray) -> None:
        if data and self._transport is not None and not self._transport.is_closing():
            self._last_activity_seconds = self._loop.time()
            self._transport.write(data)

    def _send(self, frame: bytes) -> None:
        """Collect answers and write them once per turn of the event loop, or earlier if they are many."""
        self._outgoing += frame
        if len(self._outgoing) > _WRITE_AT_ONCE_BYTES:
            self._write_outgoing()
        elif not self._serving and self._leaving is None:
            self._leaving = self._loop.call_soon(self._write_outgoing)

    def _write_outgoing(self) -> None:
        self._leaving = None
        if self._outgoing:
            outgoing, self._outgoing = self._outgoing, bytearray()
            self._write(outgoing)

    def _serve(self, request: RemotingCommand) -> None:
        if self._handler is None:
            self._send_answer(request, not_supported(request))
            return
        try:
            result = self._handler.handle(request, self)
        except Exception as error:  # noqa: BLE001 - a handler's bug becomes an answer with code 1, not an error in the event loop
            self._send_failure(request, error)
            return
        if result is None or isinstance(result, RemotingCommand):
            self._send_answer(request, result)
            return
        if isinstance(result, LaterAnswer):
            self._in_flight.add_later(request, result)
        else:
            self._in_flight.add(request, result)

    def _serve_more(self) -> None:
        """Handle the next request in a later turn of the event loop: the caller that gives an answer must not enter a handler."""
        if (self._backlog or self._read_paused) and self._turn is None:
            self._turn = self._loop.call_soon(self._next_turn)

    def _send_failure(self, request: RemotingCommand, error: BaseException) -> None:
        """Answer as Java does when a processor throws: code 1, class and message."""
        if isinstance(error, BodyError):  # the peer's fault: no traceback
            peer_log.warning("%s: code %d: %s", self._peer(), request.code, error)
        else:
            logger.error("%s: handler of code %d failed", self._peer(), request.code, exc_info=error)
        self._send_answer(
            request, request.answer(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}"[:2048])
        )

    def _send_answer(self, request: RemotingCommand, answer: Answer) -> None:
        if answer is None or request.is_oneway or not self.is_open:
            return
        if answer.opaque != request.opaque or not answer.is_response:
            answer = msgspec.structs.replace(answer, opaque=request.opaque, flag=answer.flag | RESPONSE_FLAG)
        try:
            frame = encode(answer)
        except CommandEncodeError as error:
            logger.exception("%s: the answer to code %d does not fit the wire", self._peer(), request.code)
            frame = encode(request.answer(ResponseCode.SYSTEM_ERROR, remark=str(error)[:2048]))
        self._send(frame)

    def _balance_reading(self) -> None:
        """Read only while requests can be handled and answers written."""
        pause = bool(self._backlog) or self._undecoded or not self._writable.is_set()
        if pause == self._read_paused or self._transport is None or self._transport.is_closing():
            return
        self._read_paused = pause
        if pause:
            self._transport.pause_reading()
        else:
            if self._frame_begun_seconds is not None:  # the pause was on our side
                self._frame_begun_seconds = self._loop.time()
            self._transport.resume_reading()

    # -------------------------------------------------------------------------------------------------------- timers

    def _note_frame_begun(self, *, a_frame_ended: bool) -> None:
        first = self._frame_begun_seconds is None
        if a_frame_ended or first:
            self._frame_begun_seconds = self._loop.time()
        if first:
            self._schedule_timer(min(self._settings.frame_timeout_seconds, self._settings.idle_timeout_seconds))

    def _schedule_timer(self, delay_seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay_seconds, self._check_deadlines)

    def _check_deadlines(self) -> None:
        now_seconds = self._loop.time()
        left_seconds = self._last_activity_seconds + self._settings.idle_timeout_seconds - now_seconds
        if self._frame_begun_seconds is not None and not self._read_paused:
            frame_left_seconds = self._frame_begun_seconds + self._settings.frame_timeout_seconds - now_seconds
            left_seconds = min(left_seconds, frame_left_seconds)
        if left_seconds <= 0:
            logger.info("%s: closing: idle, or a frame did not arrive in time", self._peer())
            self.abort()
            return
        self._schedule_timer(left_seconds)

    def _peer(self) -> str:
        return f"{join_address(self.peer_host, self.peer_port)} (connection {self.id})"


_MAX_OPAQUE: Final = 2**31 - 1


class PendingRequests:
    """Our requests that wait for an answer, by opaque.

    Opaques repeat after 2^31 requests and skip those still in use, so a late answer never matches another request.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._next_opaque = 0
        self._futures: dict[int, asyncio.Future[RemotingCommand]] = {}

    def __len__(self) -> int:
        return len(self._futures)

    def take_opaque(self) -> int:
        """Return an unused opaque."""
        while True:
            opaque = self._next_opaque
            self._next_opaque = 0 if opaque == _MAX_OPAQUE else opaque + 1
            if opaque not in self._futures:
                return opaque

    def wait_for(self, opaque: int) -> asyncio.Future[RemotingCommand]:
        """Return a future for the answer. The caller must call :meth:`forget` in the end."""
        future: asyncio.Future[RemotingCommand] = self._loop.create_future()
        self._futures[opaque] = future
        return future

    def forget(self, opaque: int) -> None:
        """Remove the request, answered or not."""
        future = self._futures.pop(opaque)
        if future.done() and not future.cancelled():
            future.exception()  # retrieved, so that asyncio does not log it as unhandled

    def resolve(self, answer: RemotingCommand) -> bool:
        """Pass the answer to its request. Return False if none waits for it."""
        future = self._futures.get(answer.opaque)
        if future is None or future.done():
            return False
        future.set_result(answer)
        return True

    def fail_all(self, error: Exception) -> None:
        """Fail all waiting requests, because the connection is closed."""
        for future in self._futures.values():
            if not future.done():
                future.set_exception(error)
