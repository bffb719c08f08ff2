"""What a server calls: the handler of requests and connections, and answers that come later."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from rocketmq_remoting.codes import ResponseCode
from rocketmq_remoting.command import RemotingCommand

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rocketmq_remoting.connection import RemotingConnection


Answer = RemotingCommand | None


class LaterAnswer:
    """An answer that the handler gives later, without a task or a future: the handler keeps this object and calls ``give``.

    Answers given in one turn of the event loop leave in one write per connection.
    """

    __slots__ = ("_answer", "_given", "_taker")

    def __init__(self) -> None:
        self._answer: Answer = None
        self._given = False
        self._taker: Callable[[LaterAnswer, Answer], None] | None = None

    def give(self, answer: Answer) -> None:
        """Send the answer. Only the first call counts."""
        if self._given:
            return
        self._given = True
        if self._taker is None:
            self._answer = answer
        else:
            self._taker(self, answer)

    def deliver_to(self, taker: Callable[[LaterAnswer, Answer], None]) -> None:
        """Call ``taker`` with the answer: now if it was given already, else once it is."""
        self._taker = taker
        if self._given:
            taker(self, self._answer)


class RemotingHandler(Protocol):
    """Answers the requests of a server, or of a client whose peer sends requests back."""

    def handle(
        self, request: RemotingCommand, connection: RemotingConnection
    ) -> Answer | LaterAnswer | Awaitable[Answer]:
        """Return the answer, or one that comes later; None sends nothing. Only called with requests."""
        ...

    def connection_opened(self, connection: RemotingConnection) -> None:
        """A connection was opened."""
        ...

    def connection_closed(self, connection: RemotingConnection) -> None:
        """The connection is closed, from either side. Called once for each ``connection_opened``."""
        ...


def not_supported(request: RemotingCommand) -> RemotingCommand:
    """Return Java's answer to an unknown request code: code 3, remark with its leading space."""
    return request.answer(
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f" request type {int(request.code)} not supported"
    )


class InFlight:
    """Requests of the peer that are being handled. Each ends with ``on_answer``, or with ``on_failure`` if the handler raised."""

    def __init__(
        self,
        *,
        on_answer: Callable[[RemotingCommand, Answer], None],
        on_failure: Callable[[RemotingCommand, BaseException], None],
        on_fewer: Callable[[], None],
    ) -> None:
        self._on_answer = on_answer
        self._on_failure = on_failure
        self._on_fewer = on_fewer
        self._made: set[asyncio.Future[Answer]] = set()
        self._later: dict[LaterAnswer, RemotingCommand] = {}
        self._none_later: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._made) + len(self._later)

    def add(self, request: RemotingCommand, answer: Awaitable[Answer]) -> None:
        """Track a request whose answer a coroutine, task or future returns."""
        future = asyncio.ensure_future(answer)
        self._made.add(future)
        future.add_done_callback(lambda done: self._answer_made(request, done))

    def add_later(self, request: RemotingCommand, answer: LaterAnswer) -> None:
        """Track a request whose answer is given later, or was given already."""
        self._later[answer] = request
        answer.deliver_to(self._answer_given)

    async def wait(self) -> None:
        """Return when no request is being handled."""
        while self._made or self._later:
            if self._made:
                await asyncio.wait(set(self._made))
            else:
                self._none_later = self._none_later or asyncio.get_running_loop().create_future()
                await asyncio.wait({self._none_later})

    def cancel(self) -> None:
        """Cancel all of them."""
        for future in tuple(self._made):
            future.cancel()
        self._later.clear()
        self._note_none_later()

    def _answer_made(self, request: RemotingCommand, done: asyncio.Future[Answer]) -> None:
        self._made.discard(done)
        if not done.cancelled():
            error = done.exception()
            if error is not None:
                self._on_failure(request, error)
            else:
                self._on_answer(request, done.result())
        self._on_fewer()

    def _answer_given(self, later: LaterAnswer, answer: Answer) -> None:
        request = self._later.pop(later, None)
        if request is None:  # it was cancelled
            return
        self._on_answer(request, answer)
        self._note_none_later()
        self._on_fewer()

    def _note_none_later(self) -> None:
        if self._none_later is not None and not self._later:
            if not self._none_later.done():
                self._none_later.set_result(None)
            self._none_later = None
