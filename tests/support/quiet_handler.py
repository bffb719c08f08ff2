"""The connection half of a `RemotingHandler`, for test handlers that only answer requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rocketmq_remoting.connection import RemotingConnection


class QuietHandler:
    """Ignores connections."""

    def connection_opened(self, connection: RemotingConnection) -> None:
        """No-op."""

    def connection_closed(self, connection: RemotingConnection) -> None:
        """No-op."""
