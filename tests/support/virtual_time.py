"""Which tests run in virtual time (`virtual_loop.py`): each in a loop of its own, with its own clock and its own network.

How busy the machine is changes nothing there, and a test that waits for a minute takes no time. A folder says so in its
conftest: `pytest_asyncio_loop_factories = virtual_time.pytest_asyncio_loop_factories`. What needs the machine's own clock, its
sockets or threads says `@pytest.mark.real_time`; real parts need them anyway.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from tests.support.virtual_loop import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

# More than any test takes: one that takes so many spins.
MOST_TURNS: Final = 3_000_000
REAL_MARKERS: Final = ("real_time", "real", "java_brokers")
# A Kubernetes API in a process of its own, on real sockets.
REAL_FIXTURES: Final = frozenset({"api"})


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop of one test, as pytest-asyncio asks for it."""
    is_real = any(item.get_closest_marker(name) is not None for name in REAL_MARKERS)
    if is_real or REAL_FIXTURES.intersection(getattr(item, "fixturenames", ())):
        return {"real": asyncio.new_event_loop}
    return {"virtual": lambda: VirtualLoop(most_turns=MOST_TURNS)}
