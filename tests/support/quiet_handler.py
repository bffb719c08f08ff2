"""The half of a `RemotingHandler` that hears of connections, for what a test lets answer requests and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rocketmq_remoting.connection import RemotingConnection


class QuietHandler:
    """Takes no notice of connections."""

    def connection_opened(self, connection: RemotingConnection) -> None:
        """Nothing."""

    def connection_closed(self, connection: RemotingConnection) -> None:
        """Nothing."""
