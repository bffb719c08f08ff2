"""Errors of a remoting connection. The type says what the caller should do:

* :class:`FrameError`: the peer's bytes are not a frame. The connection is closed without an answer.
* :class:`CommandEncodeError`: our command does not fit the wire format. Nothing was sent, the connection stays usable.
* :class:`BodyError`: the frame was valid, its body is not what the request code requires. The connection stays usable.
* :class:`RemotingConnectError`: there is no connection, so the request was not sent. It is safe to retry elsewhere.
* :class:`RemotingTimeoutError`, :class:`RemotingConnectionLostError`: the peer may have executed the request. Check before
  retrying a request that is not idempotent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rocketmq_remoting.command import RemotingCommand


class RemotingError(Exception):
    """Any failure of the remoting layer."""


class FrameError(RemotingError):
    """The peer's bytes are not a frame: close the connection.

    ``decoded_before`` holds the commands of the same read before the bad frame. They are processed, as in Java.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.decoded_before: tuple[RemotingCommand, ...] = ()


class CommandEncodeError(RemotingError):
    """A command of ours cannot be encoded: a value exceeds the range of its field on the wire."""


class RemotingConnectError(RemotingError):
    """No connection to the address within the deadline. ``refused``: the host answered that nothing listens there."""

    def __init__(self, message: str, *, refused: bool) -> None:
        super().__init__(message)
        self.refused = refused


class RemotingTimeoutError(RemotingError):
    """The request was written and not answered within the deadline. The peer may have executed it."""


class RemotingConnectionLostError(RemotingError):
    """The connection closed between request and answer. The peer may have executed the request."""


class BodyError(RemotingError):
    """The body of a valid frame is not what its code requires. Such a request is answered with code 1, as in Java."""
