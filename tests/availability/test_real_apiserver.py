"""Three operator pods of a release for one namespace at a real kube-apiserver, with only the chart's Role.

The server's audit log has their requests; each operator's proxy has the times of its writes.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from brokergroup_operator.demo.our_sandbox import our_images
from brokergroup_operator.demo.processes import DemoProcesses
from brokergroup_operator.kube import KubernetesApi
from brokergroup_operator.kube.resources import BROKER_GROUPS, NAMESPACES
from kube_sandbox.client import KubeClient
from kube_sandbox.kubelet import ProcessKubelet
from kube_sandbox.sandbox import pod_network
from tests.availability.operator_pods import OperatorPods, operator_pods
from tests.availability.requests_seen import is_outside
from tests.e2e.house import NAMESPACE, House, WholeGroup, whole_group
from tests.real.clusters import install_kinds_and_rights
from tests.support.kube_apiserver import OPERATOR, OPERATOR_NAMESPACE, KubeApiserver, running_kube_apiserver

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(300),
    pytest.mark.real("kube-apiserver", "helm"),
]

FOREIGN_NAMESPACE = "elsewhere"


@dataclass
class Release:
    """Three operator pods, their groups, and the server that logs their requests."""

    server: KubeApiserver
    pods: OperatorPods
    group: WholeGroup


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeApiserver]:
    with running_kube_apiserver(tmp_path_factory.mktemp("kube-apiserver"), audit=True) as running:
        install_kinds_and_rights(running.client, watch__namespace=NAMESPACE, rbac__readNodes="false")
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def release(server: KubeApiserver, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Release]:
    """Start all, with a settled group of three in their namespace, and a group in another one, which they must ignore."""
    folder = tmp_path_factory.mktemp("release")
    async with (
        KubernetesApi.from_kubeconfig(server.kubeconfig) as api,
        KubeClient.from_kubeconfig(server.kubeconfig) as kubelet_api,
    ):
        data_dir = folder / "sandbox"
        kubelet = ProcessKubelet(
            kubelet_api,
            node_name="node-a",
            data_dir=data_dir,
            network=pod_network("loopback", data_dir),
            images=our_images(),
        )
        await kubelet.start()
        house = House(folder, DemoProcesses(folder / "logs"), api, server.kubeconfig)
        try:
            await api.create(NAMESPACES, {"metadata": {"name": FOREIGN_NAMESPACE}})
            foreign = {"metadata": {"name": "orders", "namespace": FOREIGN_NAMESPACE}}
            await api.create(BROKER_GROUPS, foreign | {"spec": {"implementation": "Python"}})
            async with (
                operator_pods(
                    house,
                    api_url=server.url,
                    tls=ssl.create_default_context(cafile=str(server.ca_file)),
                    token=server.tokens[OPERATOR],
                    lease_namespace=OPERATOR_NAMESPACE,
                ) as pods,
                whole_group(house, "orders", replicas=3) as group,
            ):
                await house.create_group("orders")
                await group.until_settled()
                yield Release(server, pods, group)
        finally:
            await house.processes.stop()
            await kubelet.stop()


@pytest.mark.parametrize("how", ["killed", "cut off"])
async def test_another_pod_takes_over(release: Release, how: str) -> None:
    pods, group = release.pods, release.group
    leader = await pods.until_all_live(group)
    epoch, master = group.seen.master_epoch, group.seen.master_id
    async with group.under_load():
        if how == "killed":
            since_seconds = await leader.kill()
        else:
            since_seconds = leader.proxy.passed[-1].sent_seconds
            leader.proxy.cut()
        successor = await pods.takeover(f"kube-apiserver: leader {how}", leader, since_seconds, group)
        leader.proxy.heal()
        await group.until_acknowledged()
    await group.verify()
    assert successor is not leader
    assert (group.seen.master_epoch, group.seen.master_id) == (epoch, master)
    assert pods.writes_without_the_lease() == []


async def test_nothing_outside_its_namespace_was_asked_for(release: Release) -> None:
    asked = release.server.audited(OPERATOR)
    assert asked, "the audit log is empty"
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{OPERATOR_NAMESPACE}/leases"
    paths = {str(entry["requestURI"]).partition("?")[0] for entry in asked}
    assert {path for path in paths if is_outside(path, NAMESPACE)} <= {leases, f"{leases}/brokergroup-operator"}
    # And the Role covers all its requests, except one for nodes, by which it learns that it may not read them.
    refused = {str(entry["requestURI"]) for entry in asked if entry["responseStatus"]["code"] == 403}
    assert all(path.startswith("/api/v1/nodes") for path in refused), refused
    foreign = await release.group.house.api.get(BROKER_GROUPS, "orders", namespace=FOREIGN_NAMESPACE)
    assert "status" not in foreign
    assert "finalizers" not in foreign["metadata"]
