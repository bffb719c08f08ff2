"""A small world around the reconcile plane: the embedded API, a fake controller plane, and a kubelet that only writes status."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from brokergroup_operator.api import names
from brokergroup_operator.api.backup_fields import Manifest
from brokergroup_operator.kube import resources
from brokergroup_operator.kube.errors import NotFoundError
from brokergroup_operator.kube.resources import BROKER_GROUPS, PERSISTENT_VOLUME_CLAIMS, PODS
from brokergroup_operator.kube.server_side_apply import ServerSideApplier
from brokergroup_operator.reconcile.act.apply import PlanApplier
from brokergroup_operator.reconcile.other_groups import BrokerNames, RollingTurns
from brokergroup_operator.reconcile.reconciler import Passed, Reconciler
from brokergroup_operator.reconcile.run.plane import ReconcilePlane
from brokergroup_operator.reconcile.see.fetch import GroupFetcher
from brokergroup_operator.reconcile.settings import ReconcileSettings
from brokergroup_operator.reconcile.tell.events import EventPoster
from brokergroup_operator.records.group_cache import GroupCache
from brokergroup_operator.records.store import GroupKey
from kube_sandbox.api_server.errors import StatusError
from kube_sandbox.api_server.requests import Deletion
from tests.reconcile.fake_view import FakeGroupView, PatientRecordStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from aiohttp import web

    from brokergroup_operator.kube.client import KubernetesApi
    from brokergroup_operator.kube.resources import Resource
    from brokergroup_operator.observe.metrics import ConditionGauges
    from brokergroup_operator.reconcile.access import ClusterAccess
    from brokergroup_operator.reconcile.see.bundles import Servers
    from brokergroup_operator.reconcile.see.served_certificates import ServedCertificates
    from kube_sandbox.api_server.server import SandboxApiServer

SETTINGS = ReconcileSettings(controller_addresses=("127.0.0.1:9878",), resync_seconds=1.0)
# The group of tests that have a server of their own.
KEY = GroupKey("default", "orders")
# A story whose end does not depend on the server is run at the embedded one only.
SANDBOX = pytest.mark.parametrize("access", ["sandbox"], indirect=True)
WRITES = {"POST", "PUT", "PATCH", "DELETE"}
KINDS = (
    resources.BROKER_GROUPS, resources.BROKER_GROUP_STATES, resources.PODS, resources.PERSISTENT_VOLUME_CLAIMS, resources.SERVICES,
    resources.CONFIG_MAPS, resources.POD_DISRUPTION_BUDGETS, resources.NETWORK_POLICIES,
)  # fmt: skip
# Of a backup that a group begins with.
MANIFEST = Manifest(
    name="lost/nightly", operation="op-uid", group="lost", namespace="shop", cluster_name="DefaultCluster", broker_name="lost",
    broker_id=3, next_broker_id=7, master_epoch=41, implementation="Python", store_epoch=40, offset=5000, bytes=4096,
)  # fmt: skip
# What two runs of the same story may differ in; the revision is a hash of what is compared anyway, and of the owner's uid.
VOLATILE = {
    "uid", "namespace", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "lastTransitionTime",
    "managedFields", "clusterIP", "clusterIPs", "brokergroup.dev/last-write", "brokergroup.dev/revision",
    "brokergroup.dev/operation", "brokergroup.dev/group-uid", "podUID", "since", "endpoints", "startedAt",
}  # fmt: skip


async def until(what: str, check: Callable[[], Any], *, deadline_seconds: float = 60.0) -> Any:
    """Wait until `check`, a function or coroutine function, is true; return its result, or fail with `what` after the deadline."""
    loop = asyncio.get_running_loop()
    end = loop.time() + deadline_seconds
    while True:
        result = check()
        if inspect.isawaitable(result):
            result = await result
        if result:
            return result
        assert loop.time() < end, f"{what}: not within {deadline_seconds} s"
        await asyncio.sleep(0.02)


async def until_is(what: str, expected: Any, read: Callable[[], Awaitable[Any]]) -> None:
    """Wait until what is read is as expected."""

    async def is_so() -> bool:
        return bool(await read() == expected)

    await until(what, is_so)


@contextlib.asynccontextmanager
async def before_the_first(
    server: SandboxApiServer, when: Callable[[Any], bool], act: Callable[[], Any]
) -> AsyncIterator[None]:
    """Do this right before the server handles the first such request, which must come."""
    done: list[str] = []

    async def look(request: Any) -> None:
        if not done and when(request):
            done.append(request.path)
            if inspect.isawaitable(result := act()):
                await result

    server.before_request = look
    yield
    server.before_request = None
    assert done, "no such request came"


def orphan_at(server: SandboxApiServer, kept: Namespaced, plural: str, **how: Any) -> None:
    """Delete the group or cluster, with the policy Orphan if nothing else is said, and let the server's collector work."""
    things = server.store.resource(names.GROUP, names.VERSION, plural)
    server.store.delete(things, kept.key.namespace, kept.key.name, Deletion(**{"propagation": "Orphan"} | how))
    server.store.run_background()


def refuse_network_policies(request: web.BaseRequest) -> None:
    """Refuse every request for NetworkPolicies, as an API server does if the operator's role has no right to them."""
    if "/networkpolicies" in request.path:
        raise StatusError(403, "Forbidden", "cannot list resource networkpolicies")


def applier_for(access: ClusterAccess) -> ServerSideApplier:
    return ServerSideApplier(access.official_client, field_manager=names.FIELD_MANAGER_RECONCILE, timeout_seconds=5)


class KilledError(Exception):
    """The operator was killed at the planned write."""


class Namespaced:
    """The objects of the namespace of `key`."""

    def __init__(self, api: KubernetesApi, key: GroupKey) -> None:
        self.api, self.key = api, key

    async def get(self, resource: Resource, name: str) -> dict[str, Any]:
        return await self.api.get(resource, name, namespace=self.key.namespace)

    async def items(self, resource: Resource) -> list[dict[str, Any]]:
        return (await self.api.list(resource, namespace=self.key.namespace)).items

    async def patch(self, resource: Resource, name: str, patch: Any, **options: Any) -> dict[str, Any]:
        return await self.api.patch(resource, name, patch, namespace=self.key.namespace, **options)

    async def delete(self, resource: Resource, name: str, **options: Any) -> None:
        await self.api.delete(resource, name, namespace=self.key.namespace, **options)


class World(Namespaced):
    """Passes without queue and kopf, so that every run of a story makes the same writes in the same order."""

    def __init__(
        self, api: KubernetesApi, applier: ServerSideApplier, key: GroupKey, access: ClusterAccess | None = None
    ) -> None:
        super().__init__(api, key)
        self.applier, self.access = applier, access
        self.planes: list[ReconcilePlane] = []
        self.view = FakeGroupView(PatientRecordStore(api))
        # Of a newly started operator; a test puts other groups in.
        self.turns = RollingTurns(SETTINGS.max_groups_rolling, wake=lambda _key: None)
        # What passes look at first; empty, they read.
        self.cache = GroupCache()
        self.settings = SETTINGS
        # Of what a test says that servers show; else they are asked.
        self.servers: Servers | None = None
        # What brokers serve, as a test says; else none is asked.
        self.served: ServedCertificates | None = None
        self.writes: list[str] = []
        self.planned_kill: int | None = None
        # Whether brokers run in the pods, as a real kubelet would have it; else the test chooses the master.
        self.brokers_run = False
        self.was_killed = False
        self._kill_at: int | None = None
        self._pass: asyncio.Task[Passed] | None = None

    async def start_plane(self, conditions: ConditionGauges | None = None, **settings: Any) -> ReconcilePlane:
        """Start a plane of the group's namespace; `close` stops it."""
        assert self.access is not None
        values = {"controller_addresses": ("127.0.0.1:9878",), "namespace": self.key.namespace} | settings
        plane = ReconcilePlane(self.api, self.access, self.view, ReconcileSettings(**values), conditions=conditions)
        self.planes.append(plane)
        await plane.start()
        return plane

    async def close(self) -> None:
        for plane in self.planes:
            await plane.stop()
        await self.applier.close()

    def observe(self, request: web.BaseRequest) -> None:
        if self._pass is None or request.method not in WRITES or request.path.endswith("/events"):
            return
        if self._kill_at is not None and len(self.writes) >= self._kill_at:
            self._pass.cancel()
            raise StatusError(503, "ServiceUnavailable", "the operator is dead")
        self.writes.append(f"{request.method} {request.path}")

    def begin(self) -> None:
        """From here on writes are counted, and the planned kill is armed."""
        self.writes.clear()
        self._kill_at = self.planned_kill

    def new_reconciler(self) -> Reconciler:
        """Return the reconciler of a newly started operator."""
        return Reconciler(
            GroupFetcher(self.api, self.view, cache=self.cache, servers=self.servers, served=self.served),
            PlanApplier(
                api=self.api,
                applier=self.applier,
                view=self.view,
                events=EventPoster(self.api, instance="test"),
            ),
            self.settings,
            self.turns,
            BrokerNames(),
        )

    async def run_pass(self) -> None:
        """One pass of a newly started operator; `KilledError` if it was killed."""
        self._pass = asyncio.create_task(self.new_reconciler().run_pass(self.key))
        try:
            await asyncio.wait({self._pass})
        finally:
            task, self._pass = self._pass, None
        if task.cancelled():
            raise KilledError
        task.result()

    async def run_round(self) -> None:
        """One pass, and what kubelets and brokers make of it."""
        await self.run_pass()
        await self.run_kubelet()
        await self.run_brokers()

    async def settle(self) -> None:
        """Passes until one writes nothing; a killed operator is started again and lives on."""
        for _ in range(80):
            before = len(self.writes)
            try:
                await self.run_pass()
            except KilledError:
                self._kill_at = None
                self.was_killed = True
                continue
            await self.run_kubelet()
            moved = await self.run_brokers() if self.brokers_run else False
            if len(self.writes) == before and not moved:
                return
        raise AssertionError(f"no rest after 80 passes, last writes: {self.writes[-10:]}")

    async def run_kubelet(self) -> None:
        """New pods run and are ready, on bound claims; deleted ones stop."""
        for claim in await self.items(PERSISTENT_VOLUME_CLAIMS):
            if claim.get("status", {}).get("phase") != "Bound":
                await self._bind(claim)
        for pod in await self.items(PODS):
            name = pod["metadata"]["name"]
            if names.LABEL_COPIES_FOR in pod["metadata"]["labels"]:
                await self._end_copy(pod)
            elif pod["metadata"].get("deletionTimestamp"):
                await self.stop_pod(name)
            elif not (pod["spec"].get("nodeName")):
                await self.api.bind_pod(name, namespace=self.key.namespace, node_name="node-1")
                await self._report(name, phase="Running", state={"running": {}}, ready="True")

    async def _end_copy(self, pod: dict[str, Any]) -> None:
        """A pod that copies a backup ends with this manifest."""
        said = {"exitCode": 0, "message": msgspec.json.encode(MANIFEST).decode()}
        status = {"phase": "Succeeded", "containerStatuses": [{"name": "copy", "state": {"terminated": said}}]}
        name, namespace = pod["metadata"]["name"], self.key.namespace
        if pod.get("status", {}).get("phase") != "Succeeded":
            await self.api.patch(PODS, name, {"status": status}, namespace=namespace, subresource="status")

    async def run_brokers(self) -> bool:
        """Members with a running pod register, follow the master and are in sync. Return whether that changed the record."""
        stored = await self.view.store.read(self.key)
        if stored is None:
            return False
        pods = {item["metadata"]["name"]: item for item in await self.items(PODS)}
        by_pod = {one.reserved_for: one.broker_id for _, one in sorted(stored.record.replicas.items())}
        group = await self.group()
        await self.view.live(
            self.key,
            [broker_id for name, broker_id in by_pod.items() if name in pods],
            hibernated=group["spec"].get("maintenance", {}).get("hibernated", False),
        )
        after = await self.view.store.read(self.key)
        return after is not None and after.record != stored.record

    async def _bind(self, claim: dict[str, Any]) -> None:
        name = claim["metadata"]["name"]
        await self.patch(PERSISTENT_VOLUME_CLAIMS, name, {"spec": {"volumeName": f"volume-of-{name}"}})
        await self.patch(PERSISTENT_VOLUME_CLAIMS, name, {"status": {"phase": "Bound"}}, subresource="status")

    async def lose_pod(self, name: str) -> None:
        """Delete the pod, and end it as its kubelet would."""
        await self.delete(PODS, name)
        await self.stop_pod(name)

    async def stop_pod(self, name: str) -> None:
        await self._report(name, phase="Running", state={"terminated": {"exitCode": 137}}, ready="False")
        try:
            await self.delete(PODS, name, grace_period_seconds=0)
        except NotFoundError:
            return

    async def _report(self, name: str, *, phase: str, state: dict[str, Any], ready: str) -> None:
        broker = {
            "name": "broker",
            "state": state,
            "ready": ready == "True",
            "restartCount": 0,
            "image": "",
            "imageID": "",
        }
        status = {
            "phase": phase,
            "podIP": f"127.64.0.{name.rpartition('-')[2]}",
            "conditions": [{"type": "Ready", "status": ready}],
            "containerStatuses": [broker],
        }
        await self.patch(PODS, name, {"status": status}, subresource="status")

    async def group(self) -> dict[str, Any]:
        """Return the group's object as the API server has it."""
        return await self.get(BROKER_GROUPS, self.key.name)

    async def patch_group(self, patch: dict[str, Any], **options: Any) -> dict[str, Any]:
        return await self.patch(BROKER_GROUPS, self.key.name, patch, **options)

    async def conditions(self) -> dict[str, dict[str, Any]]:
        """Return the group's conditions by type; empty before its first status."""
        return {one["type"]: one for one in (await self.group()).get("status", {}).get("conditions", [])}

    async def bring_up(self, server: SandboxApiServer, **spec: Any) -> None:
        """Bring the group up by passes; its brokers are in sync at once, its kubelet only writes status."""
        self.brokers_run = True
        server.before_request = self.observe
        await self.create_group(**spec)
        await self.settle()

    async def create_group(self, **spec: Any) -> None:
        metadata = {"name": self.key.name, "namespace": self.key.namespace}
        group = {"metadata": metadata, "spec": {"implementation": "Python"} | spec}
        await self.api.create(BROKER_GROUPS, group | {"apiVersion": names.API_VERSION, "kind": names.BROKER_GROUP_KIND})

    async def run_operation(self, kind: str, **section: Any) -> None:
        """Create an operation that the operations plane has set Running."""
        asked = {
            "apiVersion": names.API_VERSION,
            "kind": names.BROKER_GROUP_OPERATION_KIND,
            "metadata": {"name": kind.lower(), "namespace": self.key.namespace},
            "spec": {"brokerGroupRef": {"name": self.key.name}, "type": kind} | section,
        }
        made = await self.api.create(resources.BROKER_GROUP_OPERATIONS, asked)
        status = {"phase": "Running", "startedAt": str(made["metadata"]["creationTimestamp"])}
        await self.patch(resources.BROKER_GROUP_OPERATIONS, kind.lower(), {"status": status}, subresource="status")

    async def everything(self) -> dict[str, Any]:
        """Return all objects of all our kinds, without what differs from run to run."""
        result = {}
        for resource in KINDS:
            for item in await self.items(resource):
                result[f"{resource.kind} {item['metadata']['name']}"] = stable(item)
        return result


def stable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: stable(item) for key, item in value.items() if key not in VOLATILE}
    if isinstance(value, list):
        return [stable(item) for item in value]
    return value


async def named(world: World, resource: Resource) -> dict[str, dict[str, Any]]:
    return {item["metadata"]["name"]: item for item in await world.items(resource)}


async def all_ready(world: World) -> bool:
    await world.run_kubelet()
    return (await world.conditions()).get("Ready", {}).get("status") == "True"


async def make_ready(world: World) -> None:
    await world.create_group()
    await become_ready(world)


async def ready(world: World, **settings: Any) -> ReconcilePlane:
    """Start a plane, and create a group that becomes Ready."""
    plane = await world.start_plane(**settings)
    await make_ready(world)
    return plane


async def become_ready(world: World) -> None:
    """Wait for three pods, make the first member master, and wait until the group is Ready."""

    await until_pods(world, "orders-1", "orders-2", "orders-3")
    await world.view.make_master(world.key, 1)
    await until("Ready", lambda: all_ready(world))


async def delete(world: World, policy: str) -> None:
    await world.delete(BROKER_GROUPS, world.key.name, propagation_policy=policy)


async def is_gone(world: World) -> bool:
    return world.key.name not in await named(world, BROKER_GROUPS)


async def until_gone(world: World) -> None:
    """Let the pods of a deleted group end, and wait until its object is gone."""

    async def gone() -> bool:
        await world.run_kubelet()
        return await is_gone(world)

    await until("the group is gone", gone)


async def orphan(world: World) -> None:
    """Delete the group with the policy Orphan, and wait until its object is gone."""
    await delete(world, "Orphan")
    await until("the group is gone", lambda: is_gone(world))


async def until_pods(world: World, *names_of_pods: str) -> None:
    """Wait until these are the group's pods."""
    await until_is("pods", sorted(names_of_pods), lambda: sorted_names(world, PODS))


async def sorted_names(world: World, resource: Resource) -> list[str]:
    return sorted(await named(world, resource))


async def uids_of(world: World, resource: Resource) -> dict[str, str]:
    """Return the uids of all objects of the kind, by name."""
    return {name: obj["metadata"]["uid"] for name, obj in (await named(world, resource)).items()}


async def replaced(world: World, pod: str, *, before: str) -> dict[str, Any]:
    """Wait for a pod of this name with another uid than `before`, and return it."""

    async def another() -> Any:
        found = (await named(world, PODS)).get(pod)
        return found if found and found["metadata"]["uid"] != before else None

    again: dict[str, Any] = await until(f"a new {pod}", another)
    return again
