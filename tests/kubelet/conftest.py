"""The embedded API and a process kubelet with short back-offs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import structlog

from brokergroup_operator.kube import KubernetesApi
from kube_sandbox.api_server.server import SandboxApiServer
from kube_sandbox.client import KubeClient
from tests.kubelet.node_under_test import Node, remove_objects
from tests.support.kube_apiserver import KubeApiserver, running_kube_apiserver

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def kube_apiserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeApiserver]:
    """One for the whole run, and of these tests alone: their kubelet would run whatever pods others leave."""
    with running_kube_apiserver(tmp_path_factory.mktemp("kube-apiserver")) as server:
        yield server


@pytest.fixture(params=["sandbox", pytest.param("kube-apiserver", marks=pytest.mark.real("etcd", "kube-apiserver"))])
async def kubeconfig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Path]:
    """The same tests at the embedded API and at a real kube-apiserver."""
    if request.param == "kube-apiserver":
        yield request.getfixturevalue("kube_apiserver").kubeconfig
        return
    server = SandboxApiServer()
    await server.start()
    server.write_kubeconfig(tmp_path / "kubeconfig")
    yield tmp_path / "kubeconfig"
    await server.stop()


@pytest.fixture
async def api(kubeconfig: Path) -> AsyncIterator[KubernetesApi]:
    async with KubernetesApi.from_kubeconfig(kubeconfig) as api:
        yield api
        await remove_objects(api)


@pytest.fixture
async def client(kubeconfig: Path) -> AsyncIterator[KubeClient]:
    async with KubeClient.from_kubeconfig(kubeconfig) as client:
        yield client


@pytest.fixture
async def node(api: KubernetesApi, client: KubeClient, kubeconfig: Path, tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(api, client, kubeconfig, tmp_path / "node")
    with structlog.testing.capture_logs() as logged:
        await node.kubelet.start()
        yield node
        await node.kubelet.stop()
    assert [entry for entry in logged if entry["log_level"] == "error"] == []
