"""The APIs with our kinds, for the tests that let the reconcile plane write: the embedded one and a kube-apiserver."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.kube.client import KubernetesApi
from brokergroup_operator.kube.resources import NAMESPACES
from brokergroup_operator.reconcile.access import ClusterAccess
from brokergroup_operator.records.store import GroupKey
from tests.our_kinds import server_with_our_kinds
from tests.reconcile.cluster_place import Place
from tests.reconcile.world import KEY, World, applier_for
from tests.support.kube_apiserver import KubeApiserver, running_kube_apiserver

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from kube_sandbox.api_server.server import SandboxApiServer


@pytest.fixture
async def sandbox() -> AsyncIterator[SandboxApiServer]:
    async with server_with_our_kinds() as server:
        yield server


@pytest.fixture(scope="session")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeApiserver]:
    """One server for the whole run: each test uses its own namespace."""
    with running_kube_apiserver(tmp_path_factory.mktemp("kube-apiserver"), our_kinds=True) as server:
        yield server


@pytest.fixture(params=["sandbox", pytest.param("real", marks=pytest.mark.real("kube-apiserver"))])
def access(request: pytest.FixtureRequest) -> ClusterAccess:
    """Run the same test against both servers."""
    if request.param == "real":
        return ClusterAccess(kubeconfig=request.getfixturevalue("real_server").kubeconfig)
    return ClusterAccess(url=request.getfixturevalue("sandbox").url)


@pytest.fixture
async def api(sandbox: SandboxApiServer) -> AsyncIterator[KubernetesApi]:
    async with KubernetesApi.from_url(sandbox.url) as client:
        yield client


@pytest.fixture
async def namespace(access: ClusterAccess) -> AsyncIterator[tuple[KubernetesApi, str]]:
    """A client, and a namespace of the test's own."""
    async with access.own_client() as api:
        name = f"t-{uuid.uuid4().hex[:8]}"
        await api.create(NAMESPACES, {"metadata": {"name": name}})
        yield api, name


@pytest.fixture
async def world(access: ClusterAccess, namespace: tuple[KubernetesApi, str]) -> AsyncIterator[World]:
    """A namespace of the test's own, without a group; its planes are stopped at the end."""
    api, name = namespace
    made = World(api, applier_for(access), GroupKey(name, "orders"), access)
    yield made
    await made.close()


@pytest.fixture
def place(namespace: tuple[KubernetesApi, str]) -> Place:
    """A namespace of the test's own, without a cluster."""
    return Place(*namespace)


@pytest.fixture
async def sandbox_world(sandbox: SandboxApiServer, api: KubernetesApi) -> AsyncIterator[World]:
    """Passes over `default/orders` at the embedded API; the test creates the group."""
    made = World(api, applier_for(ClusterAccess(url=sandbox.url)), KEY)
    yield made
    await made.close()
