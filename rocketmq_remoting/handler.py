"""What the owner of a server brings: one object that answers requests and hears of connections."""

from __future__ import annotations

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
