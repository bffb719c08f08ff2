"""The APIs with our kinds, for the tests that let the reconcile plane write: the embedded one and a kube-apiserver."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.kube.client import KubernetesApi
from brokergroup_operator.reconcile.access import ClusterAccess
from tests.our_kinds import server_with_our_kinds
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
    """One for the whole run: tests use namespaces of their own."""
    with running_kube_apiserver(tmp_path_factory.mktemp("kube-apiserver"), our_kinds=True) as server:
        yield server


@pytest.fixture(params=["sandbox", pytest.param("real", marks=pytest.mark.real("kube-apiserver"))])
def access(request: pytest.FixtureRequest) -> ClusterAccess:
    """The same test at both."""
    if request.param == "real":
        return ClusterAccess(kubeconfig=request.getfixturevalue("real_server").kubeconfig)
    return ClusterAccess(url=request.getfixturevalue("sandbox").url)


@pytest.fixture
async def api(sandbox: SandboxApiServer) -> AsyncIterator[KubernetesApi]:
    async with KubernetesApi.from_url(sandbox.url) as client:
        yield client
