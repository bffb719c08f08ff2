"""One house for each test module: starting a sandbox, an operator and a group takes most of a test's time on two cores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.e2e.house import House, WholeGroup, open_house, settled_group
from tests.e2e.java_house import ClusterHouse, open_java_house, open_replica_house

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

API_PARTS = ("netns", "kube-apiserver", "helm")
REAL_PARTS = ("java", "rocketmq", "older-rocketmq", *API_PARTS)
OPEN = {"sandbox": open_house, "kube-apiserver": open_java_house, "kube-apiserver-replicas": open_replica_house}
JAVA_MARKS = [pytest.mark.real(*REAL_PARTS), pytest.mark.timeout(900)]
JAVA = pytest.param("kube-apiserver", marks=JAVA_MARKS)
JAVA_BY_NIGHT = pytest.param("kube-apiserver", marks=[*JAVA_MARKS, pytest.mark.nightly])
REPLICAS = pytest.param("kube-apiserver-replicas", marks=[pytest.mark.real(*API_PARTS), pytest.mark.timeout(900)])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a story of `any_house` in the sandbox and at a real API server; there with Java brokers only if it is marked so.

    Three JVMs cost minutes of CPU: `java_brokers` marks stories that only they can show, such as shutdown, copying and
    handover; with `nightly=True` they run by day only in the sandbox.
    """
    if "any_house" in metafunc.fixturenames:
        java = metafunc.definition.get_closest_marker("java_brokers")
        at_the_api = REPLICAS if java is None else JAVA_BY_NIGHT if java.kwargs.get("nightly") else JAVA
        metafunc.parametrize("any_house", ["sandbox", at_the_api], indirect=True, scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    """An empty sandbox."""
    async with open_house(tmp_path_factory.mktemp("house")) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def java_house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ClusterHouse]:
    """Java brokers on a real API server."""
    async with open_java_house(tmp_path_factory.mktemp("house")) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def any_house(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    """The house of stories that run in several houses: see `pytest_generate_tests`."""
    async with OPEN[request.param](tmp_path_factory.mktemp("house")) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_group(house: House) -> AsyncIterator[WholeGroup]:
    """A group of three under one operator named `operator`, shared by the tests of a module."""
    await house.start_operator()
    async with settled_group(house, "orders") as watched:
        yield watched


@pytest_asyncio.fixture(loop_scope="module")
async def group(shared_group: WholeGroup) -> WholeGroup:
    """The group of the module, settled again after the test before."""
    await shared_group.until_settled()
    return shared_group
