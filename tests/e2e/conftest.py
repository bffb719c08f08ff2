"""One house a test module: starting a sandbox, an operator and a group is most of a test's time on two cores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.e2e.house import House, WholeGroup, open_house, whole_group
from tests.e2e.java_house import open_java_house

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

REAL_PARTS = ("java", "rocketmq", "older-rocketmq", "netns", "kube-apiserver", "helm")
OPEN = {"sandbox": open_house, "kube-apiserver": open_java_house}
HOUSES = [
    "sandbox",
    pytest.param("kube-apiserver", marks=[pytest.mark.real(*REAL_PARTS), pytest.mark.timeout(900)]),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    """A sandbox with nothing in it."""
    async with open_house(tmp_path_factory.mktemp("house")) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=HOUSES)
async def any_house(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    """For stories that are told in both: the sandbox with Python replicas, a real API server with Java brokers."""
    async with OPEN[request.param](tmp_path_factory.mktemp("house")) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def group(house: House) -> AsyncIterator[WholeGroup]:
    """A settled group of three under one operator named `operator`, shared by the tests of a module."""
    async with whole_group(house, "orders", replicas=3) as watched:
        await house.start_operator()
        await house.create_group("orders")
        await watched.until_settled()
        yield watched
