"""Where an HTTP server of the operator listens: `::` hears IPv6 and IPv4."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from rocketmq_remoting.server import dual_stack_socket

if TYPE_CHECKING:
    import ssl


async def listen(
    runner: web.AppRunner, host: str, port: int, *, tls: ssl.SSLContext | None = None, backlog: int = 128
) -> None:
    """Serve at this address; port 0 takes a free one. OSError when it cannot be bound."""
    both = dual_stack_socket(host, port)
    site: web.BaseSite
    if both is not None:
        site = web.SockSite(runner, both, ssl_context=tls, backlog=backlog)
    else:
        site = web.TCPSite(runner, host, port, ssl_context=tls, backlog=backlog)
    await site.start()
