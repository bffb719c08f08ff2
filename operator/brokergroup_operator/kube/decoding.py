"""What the API server's bytes say: one JSON object an answer, one a line of a watch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import aiohttp


def decode(content: bytes) -> dict[str, Any]:
    """Any answer of the API is a JSON object; a proxy's plain text becomes the message of a ``Status``."""
    try:
        return msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return {"kind": "Status", "message": content[:500].decode(errors="replace")}


async def lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    # Not the stream's own line reader: it refuses lines longer than its buffer, and one object may be a megabyte.
    rest = b""
    async for chunk in stream.iter_any():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line.strip():
                yield line
