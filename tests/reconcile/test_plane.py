"""The whole reconcile plane, with kopf and the official client, against the embedded API and against a kube-apiserver.

There is no kubelet and no controller plane: the tests say what those would. Nothing differs between the two servers but the
address.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any

from brokergroup_operator.api import names
from brokergroup_operator.kube.errors import NotFoundError
from brokergroup_operator.kube.resources import (
    BROKER_GROUP_STATES,
    BROKER_GROUPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    EVENTS,
    LEASES,
    NETWORK_POLICIES,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    ROCKETMQ_CLUSTERS,
    SERVICES,
)
from brokergroup_operator.observe.metrics import ConditionGauges, NotedGauge
from brokergroup_operator.reconcile.run import plane as plane_module
from brokergroup_operator.reconcile.run.queue import LONGEST_WAIT_SECONDS
from brokergroup_operator.reconcile.settings import LeaderElectionSettings
from kube_sandbox.api_server.errors import StatusError
from tests.reconcile.world import (
    SANDBOX,
    World,
    all_ready,
    make_ready,
    named,
    ready,
    refuse_network_policies,
    replaced,
    uids_of,
    until,
    until_gone,
    until_is,
    until_pods,
)

if TYPE_CHECKING:
    import pytest

    from brokergroup_operator.records.store import GroupKey
    from kube_sandbox.api_server.server import SandboxApiServer


async def test_a_group_comes_up_and_a_deleted_pod_comes_back_with_its_id(world: World) -> None:
    await ready(world)

    pods, claims = await named(world, PODS), await named(world, PERSISTENT_VOLUME_CLAIMS)
    assert sorted(pods) == sorted(claims) == ["orders-1", "orders-2", "orders-3"]
    group = await world.group()
    assert group["metadata"]["finalizers"] == [names.FINALIZER_BROKER_GROUP]
    assert group["status"]["master"]["pod"] == "orders-1"
    reasons = {event["reason"] for event in (await named(world, EVENTS)).values()}
    assert {"BrokerIdAssigned", "PodCreating"} <= reasons

    again = await lost_and_replaced(world, "orders-2")
    assert again["metadata"]["labels"][names.LABEL_BROKER_ID] == "2"
    assert (await named(world, PERSISTENT_VOLUME_CLAIMS))["orders-2"]["metadata"]["uid"] == (
        claims["orders-2"]["metadata"]["uid"]
    )
    state = await world.get(BROKER_GROUP_STATES, world.key.name)
    assert state["record"]["nextBrokerId"] == 4
    await until("Ready again", lambda: all_ready(world))


async def test_roles_move_with_the_record_and_two_services_select_by_them(world: World) -> None:
    await ready(world)
    await world.view.make_master(world.key, 3)

    async def roles() -> dict[str, str | None]:
        pods = await named(world, PODS)
        return {name: pod["metadata"]["labels"].get(names.LABEL_ROLE) for name, pod in pods.items()}

    await until_is("roles", {"orders-1": "slave", "orders-2": "slave", "orders-3": "master"}, roles)
    services = await named(world, SERVICES)
    assert chosen(services["orders-master"], await named(world, PODS)) == {"orders-3"}
    assert chosen(services["orders-slaves"], await named(world, PODS)) == {"orders-1", "orders-2"}


async def lost_and_replaced(world: World, pod: str) -> dict[str, Any]:
    """Lose this pod; return the next one of its name."""
    before = (await named(world, PODS))[pod]["metadata"]["uid"]
    await world.lose_pod(pod)
    return await replaced(world, pod, before=before)


def chosen(service: dict[str, Any], pods: dict[str, dict[str, Any]]) -> set[str]:
    """The pods that a Service's selector takes."""
    wanted = service["spec"]["selector"].items()
    return {name for name, pod in pods.items() if wanted <= pod["metadata"]["labels"].items()}


async def test_a_fence_is_lifted_once_the_pod_is_dead(world: World) -> None:
    await ready(world)
    fence = {"metadata": {"finalizers": [names.FINALIZER_FENCE]}}
    before = await world.patch(PODS, "orders-1", fence)
    await world.delete(PODS, "orders-1", grace_period_seconds=0)
    fenced = await world.get(PODS, "orders-1")
    assert fenced["metadata"]["finalizers"] == [names.FINALIZER_FENCE], "its container still runs"
    await world.stop_pod("orders-1")
    await replaced(world, "orders-1", before=before["metadata"]["uid"])


async def test_deletion_leaves_data_and_record_by_default(world: World) -> None:
    await ready(world)
    await world.delete(BROKER_GROUPS, world.key.name)
    await until_gone(world)
    assert sorted(await world.everything()) == [
        "BrokerGroupState orders",
        "PersistentVolumeClaim orders-1",
        "PersistentVolumeClaim orders-2",
        "PersistentVolumeClaim orders-3",
    ]


async def test_a_group_made_again_finds_its_ids_and_disks(world: World) -> None:
    await ready(world)
    claims = await uids_of(world, PERSISTENT_VOLUME_CLAIMS)
    await world.delete(BROKER_GROUPS, world.key.name)
    await until_gone(world)
    await world.create_group()
    await until("Ready", lambda: all_ready(world))
    state = await world.get(BROKER_GROUP_STATES, world.key.name)
    assert (state["record"]["nextBrokerId"], state["record"]["masterEpoch"]) == (4, 1)
    assert await uids_of(world, PERSISTENT_VOLUME_CLAIMS) == claims


@SANDBOX
async def test_nothing_is_written_about_a_group_at_rest(world: World, sandbox: SandboxApiServer) -> None:
    """Resyncs come and go; a group that is as it should be is left alone."""
    await ready(world, resync_seconds=0.05)
    reads: list[str] = []
    writes: list[str] = []

    def count(request: Any) -> None:
        (reads if request.method == "GET" else writes).append(f"{request.method} {request.path}")

    await asyncio.sleep(0.3)
    sandbox.before_request = count

    await until("five passes", lambda: sum(path.endswith("/persistentvolumeclaims") for path in reads) >= 5)
    assert writes == []


@SANDBOX
async def test_without_any_watch_the_resync_does_the_work(world: World, sandbox: SandboxApiServer) -> None:
    """All events may be lost: a pass decides by what the API holds."""

    def no_watch(request: Any) -> None:
        if "watch" in request.query:
            raise StatusError(503, "ServiceUnavailable", "no watch today")

    sandbox.before_request = no_watch
    await ready(world, resync_seconds=0.1)


@SANDBOX
async def test_the_plane_outlives_the_api_server(world: World, sandbox: SandboxApiServer) -> None:
    """Patroni #3344, #3462: half an API was worse than none."""
    await ready(world, backoff_maximum_seconds=0.5)
    await sandbox.stop()
    world.view.changed(world.key)
    await asyncio.sleep(0.5)
    await sandbox.start()
    await lost_and_replaced(world, "orders-3")


async def test_foreign_tasks_survive_the_stop_of_the_plane(world: World) -> None:
    """Kopf cancels what was born after it in its loop; the controller plane's tasks are born at any time."""
    plane = await ready(world)

    async def serve() -> None:
        await asyncio.Event().wait()

    foreign = asyncio.create_task(serve(), name="a connection of the controller plane")
    await plane.stop()

    assert not foreign.done()
    foreign.cancel()
    await asyncio.gather(foreign, return_exceptions=True)
    leftovers = [task.get_name() for task in asyncio.all_tasks() if "kopf" in str(task.get_coro())]
    assert leftovers == []
    assert "kopf" not in [thread.name for thread in threading.enumerate()]


@SANDBOX
async def test_a_plane_started_before_the_kinds_waits_for_them(world: World) -> None:
    definitions = (await world.api.list(CUSTOM_RESOURCE_DEFINITIONS)).items
    for item in definitions:
        await world.api.delete(CUSTOM_RESOURCE_DEFINITIONS, item["metadata"]["name"])
    await world.start_plane()
    await asyncio.sleep(0.2)
    for item in definitions:
        fresh = {"metadata": {"name": item["metadata"]["name"]}, "spec": item["spec"]}
        await world.api.create(CUSTOM_RESOURCE_DEFINITIONS, fresh)
    await make_ready(world)


def election(world: World, identity: str, *, retry_period_seconds: float = 1) -> LeaderElectionSettings:
    return LeaderElectionSettings(
        namespace=world.key.namespace,
        identity=identity,
        lease_duration_seconds=30,
        renew_deadline_seconds=20,
        retry_period_seconds=retry_period_seconds,
    )


async def test_one_of_two_planes_leads_and_the_other_follows_at_its_end(world: World) -> None:
    first = await world.start_plane(leader_election=election(world, "first"))

    await until("the first leads", lambda: first.is_leading)
    second = await world.start_plane(leader_election=election(world, "second"))
    await make_ready(world)
    assert not second.is_leading

    await first.stop()
    # Far sooner than the 30 s of the Lease: it was given back.
    await until("the second leads", lambda: second.is_leading)
    assert (await named(world, LEASES))["brokergroup-operator"]["spec"]["holderIdentity"].startswith("second_")


async def test_a_plane_that_fails_leaves_the_lease_to_another_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not after the 30 s of its Lease, nor once its pod is restarted: the other pod's plane keeps the groups meanwhile."""

    first = await world.start_plane(
        leader_election=election(world, "first", retry_period_seconds=0.2), resync_seconds=0.1
    )
    await make_ready(world)

    async def fails(*_: Any, **__: Any) -> None:
        raise KeyError("metadata")

    second = await world.start_plane(leader_election=election(world, "second", retry_period_seconds=0.2))
    monkeypatch.setattr(first, "_resync", fails)

    await until("the second leads", lambda: second.is_leading and not first.is_leading)
    assert "KeyError('metadata')" in (first.trouble() or "")
    assert second.trouble() is None
    await world.lose_pod("orders-2")

    await until_pods(world, "orders-1", "orders-2", "orders-3")


def values_of(gauge: NotedGauge) -> list[float]:
    return [one.value for family in gauge.collect() for one in family.samples]


async def test_the_conditions_are_metrics_while_it_reconciles(world: World) -> None:
    conditions = ConditionGauges()
    plane = await world.start_plane(conditions)
    await make_ready(world)

    async def is_as_written() -> bool:
        written = {kind: float(one["status"] == "True") for kind, one in (await world.conditions()).items()}
        measured = {one.labels["condition"]: one.value for family in conditions.collect() for one in family.samples}
        return measured == written and measured["Ready"] == 1

    await until("the metric says what the status says", is_as_written)
    assert (values_of(conditions.voting), values_of(conditions.lacking)) == ([3], [0])
    await world.delete(PODS, "orders-3")
    await until("one that stops is lacking", lambda: values_of(conditions.lacking) == [1])
    await world.stop_pod("orders-3")
    await world.patch_group({"spec": {"maintenance": {"hibernated": True}}})

    await until("no member that votes is wanted", lambda: values_of(conditions.voting) == [0])
    await plane.stop()
    assert [one for family in conditions.collect() for one in family.samples] == []


async def test_no_pass_begins_while_the_groups_master_changes(world: World) -> None:
    waits, told = asyncio.Event(), asyncio.Event()

    async def until_told(key: GroupKey, timeout_seconds: float) -> None:
        assert (key, timeout_seconds) == (world.key, LONGEST_WAIT_SECONDS)
        waits.set()
        await told.wait()

    world.view.wait_until_master_is_told = until_told  # type: ignore[method-assign]
    await world.start_plane()
    await world.create_group()
    await asyncio.wait_for(waits.wait(), 60)
    assert await named(world, SERVICES) == {}
    told.set()

    await until("the group's Services", lambda: named(world, SERVICES))


async def cluster_status(world: World) -> Any:
    found = await world.get(ROCKETMQ_CLUSTERS, "shop")
    return found.get("status")


async def test_clusters_are_kept_by_the_plane_that_keeps_the_groups(world: World) -> None:
    await world.start_plane()
    metadata = {"name": "shop", "namespace": world.key.namespace}
    spec = {"brokerGroups": {"template": {"replicas": 1, "implementation": "Python"}}}
    await world.api.create(ROCKETMQ_CLUSTERS, {"metadata": metadata, "spec": spec})
    await until("the cluster's status", lambda: cluster_status(world))

    async def of_its_group() -> bool:
        return bool((await cluster_status(world))["groups"][0]["ready"] == "False")

    await until("the status of its group in it", of_its_group)
    assert "version" not in (await named(world, BROKER_GROUPS))["shop-0"]["spec"]


# Not at the kube-apiserver: its kinds are other tests' too.
@SANDBOX
async def test_groups_are_kept_where_the_kind_of_clusters_is_missing_until_it_comes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator of this release under a chart of before: without kind and right for clusters it would have kept no group."""
    monkeypatch.setattr(plane_module, "WAIT_FOR_CLUSTERS_SECONDS", 0.0)
    name = f"{ROCKETMQ_CLUSTERS.plural}.{names.GROUP}"
    definition = await world.api.get(CUSTOM_RESOURCE_DEFINITIONS, name)
    await world.api.delete(CUSTOM_RESOURCE_DEFINITIONS, name)
    await ready(world, resync_seconds=0.2)
    await world.api.create(CUSTOM_RESOURCE_DEFINITIONS, {"metadata": {"name": name}, "spec": definition["spec"]})
    metadata = {"name": "shop", "namespace": world.key.namespace}

    async def made() -> bool:
        with contextlib.suppress(NotFoundError):
            await world.api.create(ROCKETMQ_CLUSTERS, {"metadata": metadata, "spec": {}})
            return True
        return False

    await until("the kind is served", made)
    await until("the cluster's status", lambda: cluster_status(world))


@SANDBOX
async def test_groups_are_kept_without_the_right_to_network_policies_until_it_comes(
    world: World, sandbox: SandboxApiServer
) -> None:
    """A role of before, where the chart makes none (rbac.create=false): every pass over every group ended in a refusal."""

    async def stalled() -> Any:
        return (await world.conditions())["Stalled"]

    async def is_said() -> bool:
        found = await stalled()
        return bool(found["status"] == "True" and "networkpolicies" in found["message"])

    async def is_made() -> bool:
        return "orders-brokers" in await named(world, NETWORK_POLICIES)

    async def is_over() -> bool:
        return bool((await stalled())["status"] == "False")

    sandbox.before_request = refuse_network_policies
    await ready(world, resync_seconds=0.2, backoff_maximum_seconds=0.5)
    assert (await stalled())["status"] == "False"
    await world.patch_group({"spec": {"network": {"policy": {}}}})
    await until("the condition names the right", is_said)
    await lost_and_replaced(world, "orders-3")
    sandbox.before_request = None
    await until("the policy is made", is_made)
    await until("the condition is over", is_over)


@SANDBOX
async def test_of_kinds_that_others_use_too_only_the_groups_own_are_listed(
    world: World, sandbox: SandboxApiServer
) -> None:
    """A Kubernetes cluster may have thousands of NetworkPolicies: the start needs only to know whether they can be read."""
    selectors: list[str] = []

    def note(request: Any) -> None:
        if request.method == "GET" and request.path.endswith("/networkpolicies"):
            selectors.append(request.query.get("labelSelector", ""))

    sandbox.before_request = note
    await ready(world)
    assert selectors
    assert [one for one in selectors if not one.startswith(names.LABEL_BROKER_GROUP)] == []
