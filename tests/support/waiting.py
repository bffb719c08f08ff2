"""The one way to wait: poll a condition, with a deadline that a busy machine meets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_SECONDS = 30.0


async def eventually(
    look: Callable[[], Any],
    what: str | Callable[[], Any] = "",
    *,
    within_seconds: float = PATIENCE_SECONDS,
    every_seconds: float = 0.01,
) -> Any:
    """Return the first true result of ``look``. AssertionError at the deadline, with ``what``, a text or a function that gives one.

    Either function may be a coroutine function.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + within_seconds
    while not (found := await _result(look)):
        if clock() >= deadline:
            raise AssertionError(
                f"not within {within_seconds:g} s: {what if isinstance(what, str) else await _result(what)}"
            )
        await asyncio.sleep(every_seconds)
    return found


async def _result(function: Callable[[], Any]) -> Any:
    found = function()
    return await found if isinstance(found, Awaitable) else found
