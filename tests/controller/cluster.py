"""A cluster for these tests: the embedded API with our kinds, a directory that watches it, groups, pods and their states."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.controller.directory.group_directory import GroupBinding
from brokergroup_operator.controller.directory.kubernetes_directory import KubernetesDirectory
from brokergroup_operator.kube.client import KubernetesApi
from brokergroup_operator.kube.resources import BROKER_GROUPS, PODS, SECRETS
from brokergroup_operator.records.store import GroupKey
from tests.our_kinds import api_with_our_kinds
from tests.support.fake_broker import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ORDERS: Final = GroupKey("default", "orders")
BINDING: Final = GroupBinding(key=ORDERS, cluster_name="DefaultCluster", broker_name="orders")
# Where `create_pod` puts the pod, and its broker.
HOST: Final = "127.64.1.1"
ADDRESS: Final = f"{HOST}:10911"
SECOND: Final = "127.64.1.2"
# A Service's address by which a pod is known.
SERVICE: Final = "127.150.1.1:10911"
# A group with the Secret of `create_secret`.
OF_KEYS: Final = {"credentialsSecretRef": {"name": "keys"}}
RUNNING: Final[dict[str, Any]] = {"running": {}}
TERMINATED: Final = {"terminated": {"exitCode": 137}}


@pytest.fixture
async def api() -> AsyncIterator[KubernetesApi]:
    async with api_with_our_kinds(KubernetesApi) as opened:
        yield opened


@pytest.fixture
async def directory(api: KubernetesApi) -> AsyncIterator[KubernetesDirectory]:
    started = KubernetesDirectory(api)
    await started.start()
    yield started
    await started.stop()


def known(directory: KubernetesDirectory, key: GroupKey = ORDERS) -> GroupBinding:
    """Return the group's entry in the directory, which must have one."""
    binding = directory.binding(key)
    assert binding is not None, f"the directory does not know {key}"
    return binding


@dataclass(frozen=True)
class Cluster:
    """An API, and a directory that watches it."""

    api: KubernetesApi
    directory: KubernetesDirectory

    @property
    def binding(self) -> GroupBinding:
        return known(self.directory)

    async def meets(self, host: str = HOST) -> None:
        await eventually(lambda: self.directory.pods.peer_at(host), what=f"the pod at {host} to be met")

    async def misses(self, host: str = HOST) -> None:
        await eventually(lambda: self.directory.pods.peer_at(host) is None, what=f"no pod at {host}")

    async def sees_leaving(self, *hosts: str) -> None:
        await eventually(lambda: self.binding.leaving_hosts == set(hosts), what=f"{hosts} to be leaving")


@pytest.fixture
def cluster(api: KubernetesApi, directory: KubernetesDirectory) -> Cluster:
    return Cluster(api, directory)


@pytest.fixture
async def quick(api: KubernetesApi) -> AsyncIterator[Cluster]:
    """A cluster whose directory retries missing objects without a pause."""
    directory = KubernetesDirectory(api, missing_seconds=0.05)
    await directory.start()
    yield Cluster(api, directory)
    await directory.stop()


def group_object(
    name: str = "orders", *, namespace: str = "default", begun: bool = False, **spec: Any
) -> dict[str, Any]:
    """Return a BrokerGroup. `begun`: it has the finalizer that the reconcile plane adds before it creates the first child."""
    held = {"finalizers": [names.FINALIZER_BROKER_GROUP]} if begun else {}
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.BROKER_GROUP_KIND,
        "metadata": {"namespace": namespace, "name": name} | held,
        "spec": {"implementation": "Python", **spec},
    }


async def create_group(api: KubernetesApi, name: str = "orders", **more: Any) -> None:
    await api.create(BROKER_GROUPS, group_object(name, **more), timeout_seconds=60.0)


async def create_pod(
    api: KubernetesApi,
    name: str = "orders-1",
    *,
    address: str = HOST,
    broker_id: int | None = None,
    node: str = "node-1",
    known_by: str | None = None,
    host_network: bool = False,
    group: str = "orders",
    annotations: dict[str, str] | None = None,
    fence: dict[str, Any] | None = None,
    metadata: dict[str, Any] | None = None,
    spec: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Create a running pod of a group at this address. `fence`: fields of its fence container, if it has one."""
    labels = {names.LABEL_BROKER_GROUP: group} | ({names.LABEL_BROKER_ID: str(broker_id)} if broker_id else {})
    noted = ({names.ANNOTATION_ADDRESS: known_by} if known_by else {}) | (annotations or {})
    containers: list[dict[str, Any]] = [{"name": "broker", "image": "replica"}]
    if fence is not None:
        containers.append({"name": names.CONTAINER_FENCE, "image": "replica", **fence})
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": "default", "name": name, "labels": labels, "annotations": noted} | (metadata or {}),
        "spec": {"containers": containers, "nodeName": node, "hostNetwork": host_network} | (spec or {}),
    }
    # The first pod of a process costs the embedded API seconds: it builds the pod's schema then.
    await api.create(PODS, pod, timeout_seconds=60.0)
    return await set_status(api, name, address=address, state=RUNNING)


async def set_status(
    api: KubernetesApi, name: str, *, address: str = HOST, state: dict[str, Any], restarts: int = 0
) -> dict[str, Any]:
    status = {
        "phase": "Running",
        "podIP": address,
        "containerStatuses": [
            {
                "name": "broker",
                "image": "replica",
                "imageID": "",
                "ready": False,
                "restartCount": restarts,
                "state": state,
            }
        ],
    }
    return await api.patch(
        PODS, name, {"status": status}, namespace="default", subresource="status", timeout_seconds=60.0
    )


async def delete_pod(api: KubernetesApi, name: str = "orders-1", *, grace_period_seconds: int = 0) -> None:
    """With no grace period as by `kubectl delete pod --force`."""
    await api.delete(PODS, name, namespace="default", grace_period_seconds=grace_period_seconds)


async def let_go(api: KubernetesApi) -> None:
    """Remove the finalizers of `orders-1`, as the reconcile plane or a person does."""
    await api.patch(PODS, "orders-1", {"metadata": {"finalizers": []}}, namespace="default")


async def is_dying(api: KubernetesApi, name: str = "orders-1") -> bool:
    return "deletionTimestamp" in (await api.get(PODS, name, namespace="default"))["metadata"]


def pod_object(broker_id: int, node: str = "", **labels: str) -> dict[str, Any]:
    own = {names.LABEL_BROKER_GROUP: "orders", names.LABEL_BROKER_ID: str(broker_id), **labels}
    return {"metadata": {"name": f"orders-{broker_id}", "labels": own}, "spec": {"nodeName": node}}


async def create_secret(api: KubernetesApi, name: str = "keys", **entries: str) -> None:
    data = {key: base64.b64encode(value.encode()).decode() for key, value in entries.items()}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": "default", "name": name}, "data": data}
    await api.create(SECRETS, secret, timeout_seconds=60.0)
