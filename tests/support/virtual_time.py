"""Which tests run in virtual time (`virtual_loop.py`): each in a loop of its own, with its own clock and its own network.

How busy the machine is changes nothing there, and a test that waits for a minute takes no time. A folder says so in its
conftest: `pytest_asyncio_loop_factories = virtual_time.pytest_asyncio_loop_factories`. What needs the machine's own clock, its
sockets or threads says `@pytest.mark.real_time`; real parts need them anyway. Each of these marks may stand on a parameter too:
pytest-asyncio asks for the factories before there are parameters, so the factory looks when the loop is made.
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
    del item  # the function, without parameters
    return {"by mark": _loop_of_the_test}


# The test that is set up, noted by tests/conftest.py.
test_now: pytest.Item | None = None


def _loop_of_the_test() -> asyncio.AbstractEventLoop:
    if test_now is None:
        raise RuntimeError(
            "virtual_time.test_now is not set: expected tests/conftest.py to note the test before its loop"
        )
    is_real = any(test_now.get_closest_marker(name) is not None for name in REAL_MARKERS)
    if is_real or REAL_FIXTURES.intersection(getattr(test_now, "fixturenames", ())):
        return asyncio.new_event_loop()
    return VirtualLoop(most_turns=MOST_TURNS)
