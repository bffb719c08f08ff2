"""A cluster to run real brokers in: a kube-apiserver on etcd, and the process kubelet with a network namespace per pod.

RBAC is in force: the operator, a process of its own, has the rights that the chart gives it and no others.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import yaml

from brokergroup_operator.demo.our_sandbox import our_images
from brokergroup_operator.kube import KubernetesApi
from brokergroup_operator.kube.resources import PODS
from kube_sandbox.client import KubeClient
from kube_sandbox.kubelet import ImageCatalogue, ProcessKubelet
from kube_sandbox.kubelet.network import NetworkNamespaces
from tests.real.parts import helm, install
from tests.real.parts.process import RealProcess, start
from tests.support import waiting
from tests.support.kube_apiserver import OPERATOR, OPERATOR_NAMESPACE, running_kube_apiserver
from tests.support.places import free_port, pod_network_place

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.real.parts.kubectl import Kubectl

RIGHTS = {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}
eventually = partial(waiting.eventually, within_seconds=120.0, every_seconds=0.1)


@dataclass
class Cluster:
    """A running API and node; `api` and `kubectl` may do everything, the operator what its kubeconfig allows."""

    folder: Path
    api: KubernetesApi
    # The node's own client, of another type: what of kube_sandbox runs beside the kubelet asks by it.
    kubelet_api: KubeClient
    kubelet: ProcessKubelet
    node_ip: str
    bridge: str
    admin_kubectl: Kubectl
    operator_kubeconfig: Path
    operator_arguments: tuple[str, ...] = ()
    operator: RealProcess | None = None
    controller_port: int = 0

    @property
    def controller_address(self) -> str:
        """How brokers and mqadmin reach the operator."""
        return f"{self.node_ip}:{self.controller_port}"

    @property
    def incident_log(self) -> Path:
        return self.folder / "incidents.jsonl"

    def incidents(self) -> list[dict[str, Any]]:
        """The incident log, one entry per master lost."""
        if not self.incident_log.exists():
            return []
        return [json.loads(line) for line in self.incident_log.read_text(encoding="utf-8").splitlines()]

    def start_operator(self) -> RealProcess:
        """Start the operator, on the same address as before if there was one."""
        self.controller_port = self.controller_port or free_port(self.node_ip)
        command = [
            *(sys.executable, "-m", "brokergroup_operator.cli.main", "operator"),
            *("--kubeconfig", str(self.operator_kubeconfig), *self.operator_arguments),
            *("--listen", self.controller_address, "--controller-address", self.controller_address),
            *("--metrics-listen", f"127.0.0.1:{free_port()}", "--incident-log", str(self.incident_log)),
        ]
        self.operator = start("operator", command, log=self.folder / "operator.log")
        return self.operator

    def kill_operator(self) -> None:
        """Kill the operator by SIGKILL, without a shutdown."""
        if self.operator is not None:
            self.operator.kill()

    def pid_of(self, namespace: str, pod: str) -> int:
        """The broker process of a pod."""
        pid = self.kubelet.container_pid(namespace, pod, "broker")
        assert pid is not None, f"no process for pod {namespace}/{pod}"
        return pid

    async def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl, which has to succeed. In a thread: API and kubelet share the event loop of the test."""
        return await asyncio.to_thread(self.admin_kubectl.must, *arguments, stdin=stdin)

    async def name_server_address(self, namespace: str) -> str:
        """Wait until the pod `nameserver` is Ready; return its address."""

        async def address() -> str:
            status = (await self.api.get(PODS, "nameserver", namespace=namespace)).get("status", {})
            ready = [one["status"] for one in status.get("conditions", []) if one["type"] == "Ready"] == ["True"]
            return f"{status['podIP']}:9876" if ready else ""

        found: str = await eventually(address, lambda: self.story(namespace))
        return found

    async def story(self, namespace: str) -> str:
        """Return the state for a failure's message."""
        looks = [["get", "bg,bgs,pods", "-n", namespace, "-o", "wide"], ["get", "bg", "-n", namespace, "-o", "yaml"]]
        shown = [await asyncio.to_thread(self.admin_kubectl.run, *look) for look in looks]
        operator = self.operator.tail() if self.operator else "no operator"
        return "\n".join([*(done.stdout + done.stderr for done in shown), "--- operator", operator])


def images() -> ImageCatalogue:
    versions = (install.ROCKETMQ_VERSION, install.OLDER_ROCKETMQ_VERSION, install.NEWEST_ROCKETMQ_VERSION)
    return our_images(rocketmq_homes={version: install.rocketmq_home(version) for version in versions})


@asynccontextmanager
async def real_cluster(folder: Path) -> AsyncIterator[Cluster]:
    """A real kube-apiserver, its own: no other test's objects are in it."""
    async with AsyncExitStack() as stack:
        # It blocks the loop, on which nothing else runs yet.
        server = stack.enter_context(running_kube_apiserver(folder / "api"))
        install_kinds_and_rights(server.client)
        place = stack.enter_context(pod_network_place())
        api = await stack.enter_async_context(KubernetesApi.from_kubeconfig(server.kubeconfig))
        network = NetworkNamespaces(folder / "next-address", bridge=place.bridge, subnet=place.subnet)
        kubelet_api = await stack.enter_async_context(KubeClient.from_kubeconfig(server.kubeconfig))
        kubelet = ProcessKubelet(
            kubelet_api, node_name="node-a", data_dir=folder / "node", network=network, images=images()
        )
        await kubelet.start()
        cluster = Cluster(
            folder,
            api,
            kubelet_api,
            kubelet,
            network.node_ip,
            place.bridge,
            server.client,
            server.kubeconfig_of(OPERATOR),
            ("--leader-election-namespace", OPERATOR_NAMESPACE, "--identity", "brokergroup-operator-0"),
        )
        try:
            yield cluster
        finally:
            cluster.kill_operator()
            await kubelet.stop()


def install_kinds_and_rights(kubectl: Kubectl, **values: Any) -> None:
    """Install the objects of `helm install` except pods: no controller creates them here. `values`: see `helm.template`."""
    kubectl.must("create", "namespace", OPERATOR_NAMESPACE)
    objects = helm.rendered(OPERATOR_NAMESPACE, release="brokergroup-operator", **values)
    kinds = [item for item in objects if item["kind"] == "CustomResourceDefinition"]
    rights = [item for item in objects if item["kind"] in RIGHTS]
    kubectl.must("apply", "--server-side", "-f", "-", stdin=as_yaml([*kinds, *rights]))
    kubectl.wait_for_kinds()


def as_yaml(objects: list[dict[str, Any]]) -> str:
    return yaml.safe_dump_all(objects)
