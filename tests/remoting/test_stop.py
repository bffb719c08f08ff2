"""A server that stops leaves no connection behind, in whichever turn of the event loop it was accepted."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

import pytest
import uvloop

from rocketmq_remoting.handler import not_supported
from rocketmq_remoting.server import RemotingServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_remoting.connection import RemotingConnection

LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])


class Handler:
    """Counts what opens and closes."""

    def __init__(self) -> None:
        self.opened = self.closed = 0

    def handle(self, request: RemotingCommand, connection: RemotingConnection) -> RemotingCommand:
        return not_supported(request)

    def connection_opened(self, connection: RemotingConnection) -> None:
        self.opened += 1

    def connection_closed(self, connection: RemotingConnection) -> None:
        self.closed += 1


@pytest.mark.filterwarnings("error::ResourceWarning")
@pytest.mark.parametrize("turns", range(6))
@LOOPS
def test_a_connection_of_the_very_last_turn_is_closed(
    new_loop: Callable[[], asyncio.AbstractEventLoop], turns: int
) -> None:
    handler = Handler()

    async def accept_and_stop() -> socket.socket:
        server = RemotingServer(handler)
        await server.start("127.0.0.1", 0)
        peer = socket.create_connection(("127.0.0.1", server.port), timeout=5)  # the kernel accepts it without the loop
        for _ in range(turns):
            await asyncio.sleep(0)
        await server.stop(grace_seconds=1)
        return peer

    with asyncio.Runner(loop_factory=new_loop) as runner:
        peer = runner.run(accept_and_stop())
    with peer:
        peer.settimeout(1)
        with contextlib.suppress(ConnectionResetError):  # as good an end as the other
            assert peer.recv(1) == b""
    assert handler.opened == handler.closed
