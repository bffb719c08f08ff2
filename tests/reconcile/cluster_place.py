"""A namespace with one RocketMQCluster in it, and passes over that: for the tests of clusters."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from brokergroup_operator.kube.errors import AlreadyExistsError
from brokergroup_operator.kube.resources import (
    BROKER_GROUPS,
    CONFIG_MAPS,
    DEPLOYMENTS,
    EVENTS,
    POD_DISRUPTION_BUDGETS,
    ROCKETMQ_CLUSTERS,
    SECRETS,
    SERVICES,
    STATEFUL_SETS,
)
from brokergroup_operator.reconcile.clusters.cluster_pass import ClusterPass
from brokergroup_operator.reconcile.settings import ReconcileSettings
from brokergroup_operator.reconcile.tell.events import EventPoster
from brokergroup_operator.records.memory import MemoryRecordStore
from brokergroup_operator.records.store import GroupKey
from tests.reconcile.fake_view import FakeGroupView, led_by, with_members
from tests.reconcile.world import Namespaced, until_is

if TYPE_CHECKING:
    from brokergroup_operator.kube.client import KubernetesApi
    from brokergroup_operator.kube.resources import Resource
    from brokergroup_operator.reconcile.see.bundles import Servers
    from tests.support.scripted_acl import ScriptedAcl

SETTINGS = ReconcileSettings(controller_addresses=("127.0.0.1:9878",))
PARTS = (SERVICES, STATEFUL_SETS, DEPLOYMENTS, CONFIG_MAPS, POD_DISRUPTION_BUDGETS, BROKER_GROUPS)
# For groups whose brokers sign, as those of a cluster with users do.
SIGNED = {"security": {"credentialsSecretRef": {"name": "key"}}}
ACL: dict[str, Any] = {
    "users": [
        {"name": "shop", "passwordSecretRef": {"name": "shop-password"}},
        {"name": "admin", "passwordSecretRef": {"name": "admin", "key": "secret"}, "type": "Super"},
    ],
    "policies": [{"subject": "User:shop", "resource": "Topic:orders", "actions": ["Pub"]}],
}


def of_groups(**template: Any) -> dict[str, Any]:
    return {"brokerGroups": {"template": template}}


class Place(Namespaced):
    """A namespace with the cluster "shop" in it, and one pass after the other."""

    def __init__(
        self,
        api: KubernetesApi,
        namespace: str,
        settings: ReconcileSettings = SETTINGS,
        *,
        servers: Servers | None = None,
    ) -> None:
        super().__init__(api, GroupKey(namespace, "shop"))
        events = EventPoster(api, instance="operator-0")
        self.view = FakeGroupView(MemoryRecordStore())
        self.now_seconds = 0.0
        self.passes = ClusterPass(api, events, settings, self.view, clock=lambda: self.now_seconds, servers=servers)

    async def make(self, **spec: Any) -> None:
        metadata = {"name": self.key.name, "namespace": self.key.namespace}
        await self.api.create(ROCKETMQ_CLUSTERS, {"metadata": metadata, "spec": spec})

    async def made(self, **spec: Any) -> None:
        """Make the cluster, and run a pass."""
        await self.make(**spec)
        await self.run()

    async def secrets(self, name: str, **data: str) -> None:
        """Make this Secret; and that of the brokers' key, if it is not there."""
        with contextlib.suppress(AlreadyExistsError):
            key = secret(self, "key", accessKey="brokers", secretKey="planted-key")
            await self.api.create(SECRETS, key)
        if name != "key":
            await self.api.create(SECRETS, secret(self, name, **data))

    async def changed(self, spec: dict[str, Any]) -> None:
        """Change the cluster's spec, and run a pass."""
        await self.patch(ROCKETMQ_CLUSTERS, "shop", {"spec": spec})
        await self.run()

    async def run(self) -> float | None:
        return await self.passes.run(self.key)

    async def names(self, resource: Resource) -> list[str]:
        return sorted(
            one["metadata"]["name"] for one in await self.items(resource) if one["metadata"]["name"].startswith("shop")
        )

    async def metadata(self, *kinds: Resource) -> dict[str, dict[str, Any]]:
        """Return the metadata of these objects, or of all parts."""
        return {
            f"{kind.kind} {name}": (await self.get(kind, name))["metadata"]
            for kind in kinds or PARTS
            for name in await self.names(kind)
        }

    async def names_of_parts(self) -> list[str]:
        return list(await self.metadata())

    async def versions(self) -> dict[str, str]:
        """Each object's resourceVersion: without a write it stays."""
        found = await self.metadata(*PARTS, ROCKETMQ_CLUSTERS)
        return {name: metadata["resourceVersion"] for name, metadata in found.items()}

    async def status(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.get(ROCKETMQ_CLUSTERS, "shop"))["status"]
        return found

    async def condition(self, kind: str) -> tuple[str, str, str]:
        found = next(one for one in (await self.status())["conditions"] if one["type"] == kind)
        return found["status"], found["reason"], found["message"]

    async def events(self) -> list[str]:
        return [one["reason"] for one in await self.items(EVENTS) if one["involvedObject"]["kind"] == "RocketMQCluster"]

    async def pods_are_ready(self, resource: Resource, name: str, ready: int) -> None:
        """As the StatefulSet's or Deployment's controller says it."""
        await self.write_status(resource, name, replicas=ready, readyReplicas=ready, updatedReplicas=ready)

    async def group_is(self, name: str, answer: str) -> None:
        told = {"status": answer, "reason": "Told", "message": "", "lastTransitionTime": "2026-11-26T00:00:00Z"}
        conditions = [{"type": kind} | told for kind in ("Ready", "Available", "FailoverSafe")]
        master = {"brokerId": 1, "pod": f"{name}-1", "address": "10.0.0.1:10911", "epoch": 1}
        await self.write_status(BROKER_GROUPS, name, conditions=conditions, master=master)

    async def write_status(self, resource: Resource, name: str, **status: Any) -> None:
        generation = (await self.get(resource, name))["metadata"]["generation"]
        await self.patch(resource, name, {"status": {"observedGeneration": generation} | status}, subresource="status")

    def lead(self, name: str) -> GroupKey:
        """Let broker 1 lead this group."""
        key = GroupKey(self.key.namespace, name)
        self.view.snapshots[key] = led_by(key, 1, epoch=1)
        return key

    async def groups_are_up_to_date(self, *names_of_groups: str, **otherwise: dict[str, str]) -> None:
        """These groups say that all is well with them, and `otherwise` of a condition."""
        told = {"reason": "Told", "message": "", "lastTransitionTime": "2026-11-26T00:00:00Z", "status": "True"}
        kinds = ("Ready", "Available", "FailoverSafe", "UpToDate")
        conditions = [{"type": kind} | told | otherwise.get(kind, {}) for kind in kinds]
        for name in names_of_groups:
            await self.write_status(BROKER_GROUPS, name, conditions=conditions)

    async def all_servers_are_ready(self) -> None:
        await self.pods_are_ready(STATEFUL_SETS, "shop-nameserver", 2)
        await self.pods_are_ready(DEPLOYMENTS, "shop-proxy", 1)

    async def images(self) -> list[str]:
        """Return the images of the NameServers and of the Proxies, if there are any."""
        found = [await self.items(resource) for resource in (STATEFUL_SETS, DEPLOYMENTS)]
        return [one["spec"]["template"]["spec"]["containers"][0]["image"] for listed in found for one in listed]

    async def group_spec(self, name: str = "shop-0") -> dict[str, Any]:
        spec: dict[str, Any] = (await self.get(BROKER_GROUPS, name))["spec"]
        return spec

    async def stalls(self, reason: str, *told: str) -> None:
        """Assert that the cluster waits for a person for this reason, and that its message has these texts."""
        status, found, message = await self.condition("Stalled")
        assert (status, found) == ("True", reason)
        assert [one for one in told if one not in message] == [], message

    async def is_stalled(self) -> bool:
        return (await self.condition("Stalled"))[0] == "True"

    def broker_of(self, name: str, broker: ScriptedAcl | None = None) -> GroupKey:
        """Let broker 1 be the only member of this group, with these users."""
        key = GroupKey(self.key.namespace, name)
        self.view.snapshots[key] = with_members(key, (1,), live=(1,))
        if broker is not None:
            self.view.brokers[key, 1] = broker
        return key

    async def orphan(self) -> None:
        await self.delete(ROCKETMQ_CLUSTERS, "shop", propagation_policy="Orphan")
        await self.until_gone()

    async def until_gone(self) -> None:
        await until_is("the cluster is gone", [], lambda: self.names(ROCKETMQ_CLUSTERS))


def secret(place: Place, name: str, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": place.key.namespace}, "stringData": data}
