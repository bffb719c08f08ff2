"""Keep a plugin from making an event loop that nobody closes.

looptime asks the policy for the current loop before every test, plain ones too. Until somebody has set one, Python makes a
new loop for whoever asks, and pytest reports it unclosed at the end. "No loop" is a setting as well.
"""

from __future__ import annotations

import asyncio

import pytest


@pytest.fixture(scope="session", autouse=True)
def _no_loop_outside_of_async_tests() -> None:
    asyncio.set_event_loop(None)
