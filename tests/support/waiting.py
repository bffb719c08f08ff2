"""The one way to wait: poll a condition, with a deadline that a busy machine meets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_SECONDS = 30.0


async def eventually(
    look: Callable[[], Any], what: str = "", *, within_seconds: float = PATIENCE_SECONDS, every_seconds: float = 0.01
) -> Any:
    """Return the first true result of ``look``, awaited if it is awaitable. AssertionError at the deadline."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + within_seconds
    while True:
        found = look()
        if isinstance(found, Awaitable):
            found = await found
        if found:
            return found
        assert clock() < deadline, f"not within {within_seconds:g} s: {what or look}"
        await asyncio.sleep(every_seconds)
