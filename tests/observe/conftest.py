"""looptime asks for the current event loop around every test, and asyncio then makes one for a plain test that nobody closes."""

import asyncio
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def current_loop() -> Iterator[None]:
    """A current loop that somebody closes."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()
