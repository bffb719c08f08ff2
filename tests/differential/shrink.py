"""Find the shortest sequence that still differs: remove steps (Zeller's ddmin), then arguments."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.differential.language import Step

MOST_ATTEMPTS = 400
MOST_SECONDS = 40.0


async def shrink(steps: list[Step], fails: Callable[[list[Step]], Awaitable[bool]]) -> list[Step]:
    """Remove all that `fails` does not need; each attempt plays on a new group."""
    attempts, clock = 0, asyncio.get_running_loop().time
    deadline = clock() + MOST_SECONDS

    async def still_fails(candidate: list[Step]) -> bool:
        nonlocal attempts
        attempts += 1
        return attempts <= MOST_ATTEMPTS and clock() < deadline and bool(candidate) and await fails(candidate)

    size = max(len(steps) // 2, 1)
    while True:
        position, shorter = 0, False
        while position < len(steps):
            candidate = steps[:position] + steps[position + size :]
            if await still_fails(candidate):
                steps, shorter = candidate, True
            else:
                position += size
        if size == 1 and not shorter:
            break
        size = max(size // 2, 1)
    for index, step in enumerate(steps):
        for key, _ in step.arguments:
            if key in ("id", "name", "names"):
                continue
            plainer = steps[:index] + [step.without(key)] + steps[index + 1 :]
            if await still_fails(plainer):
                steps = plainer
    return steps
