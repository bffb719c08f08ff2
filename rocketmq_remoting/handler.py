"""What the owner of a server brings: one object that answers requests and hears of connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from rocketmq_remoting.codes import ResponseCode
from rocketmq_remoting.command import RemotingCommand

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from rocketmq_remoting.connection import RemotingConnection

Answer = RemotingCommand | None


class RemotingHandler(Protocol):
    """What a server (or a client whose peer asks back) does with requests."""

    def handle(self, request: RemotingCommand, connection: RemotingConnection) -> Answer | Awaitable[Answer]:
        """The answer, now or later; None when there is none to send. Never called with an answer."""
        ...

    def connection_opened(self, connection: RemotingConnection) -> None:
        """A connection stands."""
        ...

    def connection_closed(self, connection: RemotingConnection) -> None:
        """It is gone, whoever closed it; called once for every ``connection_opened``."""
        ...


def not_supported(request: RemotingCommand) -> RemotingCommand:
    """Java's answer to a code nobody handles: code 3, remark with its leading space (controller-protocol.md §1.4)."""
    return request.answer(
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f" request type {int(request.code)} not supported"
    )
