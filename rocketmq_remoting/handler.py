"""The object that answers a server's requests and hears of its connections, and the answers that are not there yet."""

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
    """An answer that is not made yet, and that needs neither task nor future: who handles the request keeps it and gives it.

    Answers given in one turn of the event loop leave together in one write per connection.
    """

    __slots__ = ("_answer", "_given", "_taker")

    def __init__(self) -> None:
        self._answer: Answer = None
        self._given = False
        self._taker: Callable[[LaterAnswer, Answer], None] | None = None

    def give(self, answer: Answer) -> None:
        """The answer, once; what is given after that is not sent."""
        if self._given:
            return
        self._given = True
        if self._taker is None:
            self._answer = answer
        else:
            self._taker(self, answer)

    def deliver_to(self, taker: Callable[[LaterAnswer, Answer], None]) -> None:
        """Whom to call with the answer, at once if it was given already."""
        self._taker = taker
        if self._given:
            taker(self, self._answer)


class RemotingHandler(Protocol):
    """What a server (or a client whose peer asks back) does with requests."""

    def handle(
        self, request: RemotingCommand, connection: RemotingConnection
    ) -> Answer | LaterAnswer | Awaitable[Answer]:
        """The answer, now or later; None when there is none to send. Never called with an answer."""
        ...

    def connection_opened(self, connection: RemotingConnection) -> None:
        """A connection stands."""
        ...

    def connection_closed(self, connection: RemotingConnection) -> None:
        """It is gone, whoever closed it; called once for every ``connection_opened``."""
        ...


def not_supported(request: RemotingCommand) -> RemotingCommand:
    """Java's answer to a code nobody handles: code 3, remark with its leading space."""
    return request.answer(
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f" request type {int(request.code)} not supported"
    )


class InFlight:
    """Each is handed to ``on_answer`` when it is there, or to ``on_failure`` when making it raised; after that it is forgotten."""

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
        """Its answer is being made by a coroutine, task or future."""
        future = asyncio.ensure_future(answer)
        self._made.add(future)
        future.add_done_callback(lambda done: self._answer_made(request, done))

    def add_later(self, request: RemotingCommand, answer: LaterAnswer) -> None:
        """Its answer will be given, or was given already."""
        self._later[answer] = request
        answer.deliver_to(self._answer_given)

    async def wait(self) -> None:
        """Until there is none."""
        while self._made or self._later:
            if self._made:
                await asyncio.wait(set(self._made))
            else:
                self._none_later = self._none_later or asyncio.get_running_loop().create_future()
                await asyncio.wait({self._none_later})

    def cancel(self) -> None:
        """Give them up."""
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
        if request is None:  # it was given up
            return
        self._on_answer(request, answer)
        self._note_none_later()
        self._on_fewer()

    def _note_none_later(self) -> None:
        if self._none_later is not None and not self._later:
            if not self._none_later.done():
                self._none_later.set_result(None)
            self._none_later = None
