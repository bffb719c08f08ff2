"""The controller planes of `tests/controller`."""

from tests.controller.conftest import client, start_plane
from tests.support import virtual_time

pytest_asyncio_loop_factories = virtual_time.pytest_asyncio_loop_factories

__all__ = ["client", "start_plane"]
