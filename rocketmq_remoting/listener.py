"""A listening address that loses no connection when it closes.

asyncio makes a connection of an accepted socket in two later turns of its loop, and cannot any more once its ``Server`` is closed
(gh-109564): the socket then stays open until the garbage collector finds it. So accepting ends first, what was accepted opens, and
only then the server is closed. uvloop does both in one turn and needs none of it (``tests/remoting/test_stop.py``).
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_TURNS_FROM_ACCEPTED_TO_OPENED = 3
"""One makes the transport, the next calls ``connection_made``, one to spare."""


class Listener:
    """One address; whoever connects gets a protocol of the factory."""

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        self._accepts = True
        self.host, self.port = server.sockets[0].getsockname()[:2]

    @classmethod
    async def open(
        cls, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, *, backlog: int = 100
    ) -> Listener:
        """Listen; port 0 takes a free one. OSError when the address cannot be bound."""
        loop, both = asyncio.get_running_loop(), dual_stack_socket(host, port)
        if both is not None:
            return cls(await loop.create_server(factory, sock=both, backlog=backlog))
        return cls(await loop.create_server(factory, host, port, backlog=backlog))

    def stop_accepting(self) -> None:
        """Take no more connections; the address is free some turns later."""
        if not self._accepts:
            return
        self._accepts = False
        loop = asyncio.get_running_loop()
        paused = [loop.remove_reader(each.fileno()) for each in self._server.sockets]
        self._close_after(_TURNS_FROM_ACCEPTED_TO_OPENED if any(paused) else 0)

    async def close(self) -> None:
        """Take no more connections. Afterwards every one that was taken has had its ``connection_made``."""
        self.stop_accepting()
        for _ in range(_TURNS_FROM_ACCEPTED_TO_OPENED):
            await asyncio.sleep(0)
        self._server.close()

    def _close_after(self, turns: int) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(self._close_after, turns - 1)
        else:
            self._server.close()


def dual_stack_socket(host: str, port: int) -> socket.socket | None:
    """Return a socket that hears IPv6 and IPv4, for the host ``::``; None for any other host, which asyncio opens itself.

    asyncio opens ``::`` for IPv6 alone. Where the kernel has no IPv6 at all, the socket is IPv4's.
    """
    if host != "::":
        return None
    if socket.has_dualstack_ipv6():
        return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("0.0.0.0", port))  # noqa: S104 - what `::` means there
