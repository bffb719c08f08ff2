"""Selects tests that run in virtual time (`virtual_loop.py`), each in its own loop with its own clock and network.

The machine's load has no effect there, and a wait of a minute takes no time. A folder selects it in its
conftest: `pytest_asyncio_loop_factories = virtual_time.pytest_asyncio_loop_factories`. A test that needs the machine's clock,
sockets or threads has `@pytest.mark.real_time`; real parts always need them. Each of these marks may be on a parameter too:
pytest-asyncio requests the factories before there are parameters, so the factory decides when it creates the loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from tests.support.virtual_loop import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

# More than any test takes: a test with this many turns spins.
MOST_TURNS: Final = 3_000_000
REAL_MARKERS: Final = ("real_time", "real", "java_brokers")
# A Kubernetes API in a process of its own, on real sockets.
REAL_FIXTURES: Final = frozenset({"api"})


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Return the loop factory of one test for pytest-asyncio."""
    del item  # the function, without parameters
    return {"by mark": _loop_of_the_test}


# The test in set-up, set by tests/conftest.py.
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
