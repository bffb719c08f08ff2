"""A log that cannot be read whole gives no verdict about lost messages, and says so."""

from __future__ import annotations

import asyncio

import pytest

from brokergroup_operator.demo.client import ReadbackError, read_keys


async def test_a_master_that_goes_while_its_log_is_read_is_told_as_that() -> None:
    async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        with pytest.raises(ReadbackError, match=f"{address}: topic demo not read to its end"):
            await read_keys(address, "demo", 1)
