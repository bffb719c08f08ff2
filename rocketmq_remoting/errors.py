"""What can go wrong on a remoting connection, told by type.

The type carries the caller's policy:

* :class:`FrameError`: the peer sent something that is not a frame. The connection is closed, there is never an error
  answer.
* :class:`CommandEncodeError`: our own command does not fit the wire. A bug or an oversized value on our side; nothing was
  sent and the connection stays usable.
* :class:`BodyError`: the frame was good, its body is not what the code promises. The connection stays usable.
* :class:`RemotingConnectError`: there is no connection, so the request was surely not sent. Safe to repeat elsewhere.
* :class:`RemotingTimeoutError`, :class:`RemotingConnectionLostError`: the request may have been executed. Ask before
  repeating anything that is not idempotent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rocketmq_remoting.command import RemotingCommand


class RemotingError(Exception):
    """Any failure of the remoting layer."""


class FrameError(RemotingError):
    """The bytes of the peer are not a frame: close the connection.

    ``decoded_before`` holds the good commands of the same read that preceded the bad frame; Java processes them too.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.decoded_before: tuple[RemotingCommand, ...] = ()


class CommandEncodeError(RemotingError):
    """A command of ours cannot be written: a value is out of the range of its field on the wire."""


class RemotingConnectError(RemotingError):
    """No connection to the address within the deadline. ``refused`` is true when the peer's host answered: no listener."""

    def __init__(self, message: str, *, refused: bool) -> None:
        super().__init__(message)
        self.refused = refused


class RemotingTimeoutError(RemotingError):
    """The request was written, no answer came within the deadline. The peer may have executed it."""


class RemotingConnectionLostError(RemotingError):
    """The connection closed between request and answer. The peer may have executed the request."""


class BodyError(RemotingError):
    """The body of a good frame is not what its code promises. Java answers such a request with code 1, so may we."""
