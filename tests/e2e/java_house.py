"""The houses with a real API: kube-apiserver and etcd with RBAC in force, the process kubelet with a network namespace for each
pod. The operator has only the chart's rights. One house has Java brokers and a NameServer, the other has
Python replicas, which start at a fraction of the cost.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from brokergroup_operator.demo.processes import DemoProcesses
from brokergroup_operator.kube.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES
from tests.e2e.house import NAMESPACE, House
from tests.real.clusters import Cluster, as_yaml, real_cluster
from tests.real.parts import install
from tests.real.parts.java import FAST_START

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
# A Java broker takes four times as long to start as a replica, and longer on a busy machine.
PATIENCE = 4.0
# A replica starts as in the sandbox; the API server beside it takes its share of the processors.
PATIENCE_WITH_REPLICAS = 2.0
# The real API server lets a claim grow only if its class allows it.
STORAGE_CLASS = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": "folders", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
    "provisioner": "brokergroup.dev/folders",
    "allowVolumeExpansion": True,
}
SIZE = {"storage": "1Gi"}


@dataclass
class ClusterHouse(House):
    """A cluster for one test module."""

    cluster: Cluster | None = None

    @property
    def node_folder(self) -> Path:
        return self.folder / "node"

    def pid_of(self, pod: str) -> int | None:
        """Return a pod's broker process; None while none is alive."""
        assert self.cluster is not None
        return self.cluster.kubelet.container_pid(NAMESPACE, pod, "broker")

    async def scale_group(self, name: str, replicas: int) -> None:
        """Scale by kubectl."""
        assert self.cluster is not None
        await self.cluster.kubectl("scale", f"brokergroup/{name}", f"--replicas={replicas}", "--namespace", NAMESPACE)


@asynccontextmanager
async def open_java_house(folder: Path) -> AsyncIterator[ClusterHouse]:
    """Start a house with only a NameServer."""
    async with real_cluster(folder) as cluster:
        await cluster.kubectl("apply", "-f", "-", stdin=as_yaml([STORAGE_CLASS]))
        house = house_of(cluster, PATIENCE)
        house.group_spec = java_spec(await start_name_server(cluster))
        house.older = {"version": install.OLDER_ROCKETMQ_VERSION}
        house.newer = {"version": install.ROCKETMQ_VERSION}
        try:
            yield house
        finally:
            await house.processes.stop()


@asynccontextmanager
async def open_replica_house(folder: Path) -> AsyncIterator[ClusterHouse]:
    """Start an empty house with the same API server; groups have Python replicas, as in the sandbox."""
    async with real_cluster(folder) as cluster:
        await cluster.kubectl("apply", "-f", "-", stdin=as_yaml([STORAGE_CLASS]))
        house = house_of(cluster, PATIENCE_WITH_REPLICAS)
        try:
            yield house
        finally:
            await house.processes.stop()


def house_of(cluster: Cluster, patience: float) -> ClusterHouse:
    """Return a house with the operator's rights and address, common to both."""
    return ClusterHouse(
        cluster.folder,
        DemoProcesses(cluster.folder / "logs"),
        cluster.api,
        cluster.admin_kubectl.kubeconfig,
        operator_arguments=cluster.operator_arguments,
        operator_host=cluster.node_ip,
        operator_kubeconfig=cluster.operator_kubeconfig,
        patience=patience,
        cluster=cluster,
    )


async def give_claim(house: House, name: str, folder: Path) -> None:
    """Make a volume of a folder of this host, with the claim that has it."""
    shared = {"accessModes": ["ReadWriteOnce"], "storageClassName": "by-hand"}
    volume = {"persistentVolumeReclaimPolicy": "Delete", "hostPath": {"path": str(folder)}, "capacity": SIZE, **shared}
    metadata = {"name": f"pv-{name}"}
    made = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": volume}
    await house.api.create(PERSISTENT_VOLUMES, made)
    await house.create(
        PERSISTENT_VOLUME_CLAIMS, name, {"resources": {"requests": SIZE}, "volumeName": f"pv-{name}", **shared}
    )


def java_spec(name_server: str) -> dict[str, Any]:
    """Return the spec of examples/rocketmq.yaml with this NameServer's address."""
    spec: dict[str, Any] = yaml.safe_load((EXAMPLES / "rocketmq.yaml").read_text(encoding="utf-8"))["spec"]
    return {**spec, "nameServers": [name_server], "jvm": {"extraArguments": list(FAST_START)}}


async def start_name_server(cluster: Cluster) -> str:
    """Start the NameServer pod of examples/nameserver.yaml; return its address."""
    await cluster.kubectl("apply", "-n", NAMESPACE, "-f", str(EXAMPLES / "nameserver.yaml"))
    return await cluster.name_server_address(NAMESPACE)
