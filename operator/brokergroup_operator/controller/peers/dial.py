"""Whether anything listens at an address: a connection is opened and closed, and nothing is said over it.

How it fails tells something, so nothing is caught here: a host that refuses runs and has no such program, one that does not
answer in time may be off, cut off or only busy.
"""

from __future__ import annotations

import asyncio
import contextlib

from rocketmq_remoting.address import EXPECTED, heard_address


async def dial(address: str, *, deadline_seconds: float) -> None:
    """Connect to `host:port`. Raises ``ConnectionRefusedError``, ``TimeoutError`` after the deadline, any other ``OSError`` where
    there is no way to the host, and ``ValueError`` for an address that is none.
    """
    found = heard_address(address)
    if found is None:
        raise ValueError(f"address {address!r}, expected {EXPECTED}")
    async with asyncio.timeout(deadline_seconds):
        _, writer = await asyncio.open_connection(found.host, found.port)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
