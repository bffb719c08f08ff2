"""One house a test module: starting a sandbox, an operator and a group is most of a test's time on two cores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest_asyncio

from tests.e2e.house import House, WholeGroup, open_house, whole_group

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pytest


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    """A sandbox with nothing in it."""
    async with open_house(tmp_path_factory.mktemp("house")) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def group(house: House) -> AsyncIterator[WholeGroup]:
    """A settled group of three under one operator named `operator`, shared by the tests of a module."""
    async with whole_group(house, "orders", replicas=3) as watched:
        await house.start_operator()
        await house.create_group("orders")
        await watched.until_settled()
        yield watched
