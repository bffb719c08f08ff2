"""`kubectl delete --cascade=orphan`: nothing stops, nothing goes, and a group of the name takes it all back as it runs."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.api.pod_fence import FenceKeys
from brokergroup_operator.kube.client import PatchType
from brokergroup_operator.kube.errors import NotFoundError
from brokergroup_operator.kube.resources import (
    BROKER_GROUP_STATES,
    BROKER_GROUPS,
    CONFIG_MAPS,
    EVENTS,
    PERSISTENT_VOLUME_CLAIMS,
    POD_DISRUPTION_BUDGETS,
    PODS,
    SERVICES,
)
from tests.reconcile.world import (
    SANDBOX,
    all_ready,
    become_ready,
    before_the_first,
    delete,
    is_gone,
    named,
    orphan,
    orphan_at,
    ready,
    until,
    until_gone,
    until_is,
)

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.run.plane import ReconcilePlane
    from kube_sandbox.api_server.server import SandboxApiServer
    from tests.reconcile.world import World

OWNED = (PODS, SERVICES, CONFIG_MAPS, POD_DISRUPTION_BUDGETS)
KEPT = (*OWNED, PERSISTENT_VOLUME_CLAIMS, BROKER_GROUP_STATES)


async def uids(world: World) -> dict[str, str]:
    """Of everything of the group, and that none of it is going."""
    found = {}
    for resource in KEPT:
        for name, obj in (await named(world, resource)).items():
            assert "deletionTimestamp" not in obj["metadata"], f"{resource.kind} {name} is going"
            found[f"{resource.kind} {name}"] = obj["metadata"]["uid"]
    return found


async def with_uids(world: World, **settings: Any) -> tuple[ReconcilePlane, dict[str, str]]:
    """Make the group Ready; return the plane and the uids of everything."""
    return await ready(world, **settings), await uids(world)


async def owners(world: World) -> set[str]:
    """The uids of all owners of what a group owns; the empty text for an object without one."""
    found = [obj["metadata"] for resource in OWNED for obj in (await named(world, resource)).values()]
    return {uid for one in found for uid in [each["uid"] for each in one.get("ownerReferences") or []] or [""]}


async def group_uid(world: World) -> str:
    group = await world.group()
    return str(group["metadata"]["uid"])


@SANDBOX
@pytest.mark.parametrize("when_deleted", ["Retain", "Delete"])
@pytest.mark.parametrize("operator", ["there", "away"])
async def test_everything_stays_and_a_group_made_again_takes_it_back_as_it_runs(
    world: World, when_deleted: str, operator: str
) -> None:
    """`kubectl delete --cascade=orphan`, then apply. Reports: tidb-operator #1246, kaap #113."""
    plane = await ready(world)
    retention = {"storage": {"retention": {"whenDeleted": when_deleted}}}
    await world.patch_group({"spec": retention})
    before = await uids(world)
    record = (await named(world, BROKER_GROUP_STATES))["orders"]["record"]
    if operator == "away":
        await plane.stop()
    await delete(world, "Orphan")
    if operator == "away":
        await world.start_plane()
    await until("the group is gone", lambda: is_gone(world))
    assert await uids(world) == before
    assert await owners(world) == {""}

    await world.create_group(**retention)
    await until("Ready", lambda: all_ready(world))
    new = await group_uid(world)

    await until_is("everything has its owner again", {new}, lambda: owners(world))
    assert await uids(world) == before
    assert (await named(world, BROKER_GROUP_STATES))["orders"]["record"] == record
    said = {one["reason"]: one["message"] for one in (await named(world, EVENTS)).values()}
    assert "pods: orders-1, orders-2, orders-3; broker 1 stays master" in said["Orphaned"]
    assert "Pod orders-1" in said["TakenBack"]
    restarts = [one for one in (await named(world, EVENTS)).values() if one["reason"] in {"PodStopping", "PodCreating"}]
    assert len(restarts) == 3, "each pod was made once"


async def left_behind(world: World, **settings: Any) -> dict[str, str]:
    """A group of three that was orphaned: the uids of what it left."""
    _, before = await with_uids(world, **settings)
    await orphan(world)
    return before


async def taken_back(world: World, *, is_told: bool = True) -> None:
    """Everything has its owner again; with `is_told` the group's mark is off as well."""

    async def all_owned() -> bool:
        metadata = (await named(world, BROKER_GROUPS))["orders"]["metadata"]
        is_marked = names.ANNOTATION_TAKES_BACK in metadata.get("annotations", {})
        return await owners(world) == {metadata["uid"]} and not (is_told and is_marked)

    await until("everything has its owner again", all_owned)


@SANDBOX
async def test_a_group_that_took_an_orphaned_ones_things_back_is_deleted_like_any_other(world: World) -> None:
    await left_behind(world)
    await world.create_group()
    await taken_back(world)
    await until("Ready", lambda: all_ready(world))
    await delete(world, "Background")
    await until_gone(world)
    assert [one for resource in OWNED for one in await named(world, resource)] == []
    assert sorted(await named(world, PERSISTENT_VOLUME_CLAIMS)) == ["orders-1", "orders-2", "orders-3"]


@SANDBOX
async def test_orphaned_twice(world: World) -> None:
    before = await left_behind(world)
    await world.create_group()
    await taken_back(world, is_told=False)
    await orphan(world)
    assert await uids(world) == before
    assert await owners(world) == {""}


@SANDBOX
@pytest.mark.parametrize("written", ["brokergroups/orders", "pods/orders-1", "configmaps/orders-broker", "services/"])
async def test_a_group_that_is_orphaned_while_it_takes_things_back_takes_none_with_it(
    world: World, sandbox: SandboxApiServer, written: str
) -> None:
    """Deleted just before a write of the pass: what is written then names an owner that is gone, or about to go."""
    plane, before = await with_uids(world)
    await orphan(world)
    await plane.stop()
    await world.create_group()

    def writes(request: Any) -> bool:
        return request.method == "PATCH" and written in request.path

    async with before_the_first(sandbox, writes, lambda: orphan_at(sandbox, world, "brokergroups")):
        for _ in range(3):
            with contextlib.suppress(NotFoundError):
                await world.run_pass()
            sandbox.store.run_background()
    assert await is_gone(world)
    assert await uids(world) == before
    assert await owners(world) == {""}


@SANDBOX
async def test_the_fences_of_an_orphaned_group_obey_their_operator_again(world: World) -> None:
    """Their key is of the group before: no pod is restarted for another, and orders are signed with theirs."""
    keys = FenceKeys(b"r" * 32)

    async def keys_of_pods() -> dict[str, bytes | None]:
        return {name: keys.key_in(pod) for name, pod in (await named(world, PODS)).items()}

    _, before = await with_uids(world, fence_keys=keys)
    old_keys = await keys_of_pods()
    await orphan(world)
    await world.create_group()
    await taken_back(world)
    await until("Ready", lambda: all_ready(world))
    assert await uids(world) == before
    assert None not in old_keys.values()
    assert await keys_of_pods() == old_keys
    assert (await world.conditions())["UpToDate"]["reason"] == "AllUpToDate"


@SANDBOX
@pytest.mark.parametrize("maintenance", ["paused", "hibernated"])
async def test_a_group_at_rest_is_orphaned_too(world: World, maintenance: str) -> None:
    await ready(world)
    wish = {"spec": {"maintenance": {maintenance: True}, "storage": {"retention": {"whenDeleted": "Delete"}}}}
    await world.patch_group(wish)

    async def at_rest() -> bool:
        await world.run_kubelet()
        found = (await world.conditions()).get(maintenance.capitalize(), {})
        return bool(found.get("status") == "True")

    await until(maintenance, at_rest)
    before = await uids(world)
    await orphan(world)
    assert await uids(world) == before


@SANDBOX
async def test_a_fenced_pod_is_waited_for(world: World) -> None:
    """If it were released before, no controller would take off its finalizer."""
    plane = await ready(world)
    fence = {"metadata": {"finalizers": [names.FINALIZER_FENCE]}}
    await world.patch(PODS, "orders-1", fence)
    await plane.stop()
    await world.delete(PODS, "orders-1", grace_period_seconds=0)
    await delete(world, "Orphan")
    await world.run_pass()
    assert not await is_gone(world)
    await world.stop_pod("orders-1")
    for _ in range(3):
        await world.run_pass()
    assert await is_gone(world)
    assert sorted(await named(world, PODS)) == ["orders-2", "orders-3"]


@SANDBOX
async def test_what_still_names_the_group_is_freed_before_it_goes(world: World, sandbox: SandboxApiServer) -> None:
    """A pod that was made while the collector was at work has the owner that is about to go."""
    plane, before = await with_uids(world)
    uid = await group_uid(world)
    owner = {"apiVersion": names.API_VERSION, "kind": "BrokerGroup", "name": "orders", "uid": uid, "controller": True}
    await plane.stop()
    await delete(world, "Orphan")

    await until_is("the collector's work", {""}, lambda: owners(world))
    again = {"metadata": {"ownerReferences": [owner]}}
    await world.patch(PODS, "orders-2", again, content_type=PatchType.STRATEGIC)
    for _ in range(3):
        await world.run_pass()
    await until("the group is gone", lambda: is_gone(world))
    sandbox.store.run_background()
    assert await uids(world) == before


@SANDBOX
async def test_a_pass_that_had_read_the_group_before_gives_nothing_its_owner_back(
    world: World, sandbox: SandboxApiServer
) -> None:
    """Read, deleted and collected, listed: the owner that the pass would give back is about to go."""
    plane, before = await with_uids(world)
    await plane.stop()

    def lists_pods(request: Any) -> bool:
        return bool(request.method == "GET" and request.path.endswith("/pods"))

    async with before_the_first(sandbox, lists_pods, lambda: orphan_at(sandbox, world, "brokergroups")):
        await world.run_pass()
    assert await is_gone(world)
    assert await uids(world) == before
    assert await owners(world) == {""}


@SANDBOX
async def test_in_the_foreground_the_group_goes_last(world: World) -> None:
    """`--cascade=foreground`: the collector stops all pods at once, and the group stays until nothing of it is left."""
    await ready(world)
    await delete(world, "Foreground")

    async def stopping() -> bool:
        return all("deletionTimestamp" in pod["metadata"] for pod in (await named(world, PODS)).values())

    await until("all pods are stopping", stopping)
    assert len(await named(world, PODS)) == 3
    assert not await is_gone(world)

    await until_gone(world)
    assert [one for resource in OWNED for one in await named(world, resource)] == []
    assert sorted(await named(world, PERSISTENT_VOLUME_CLAIMS)) == ["orders-1", "orders-2", "orders-3"]
    assert sorted(await named(world, BROKER_GROUP_STATES)) == ["orders"]


@SANDBOX
async def test_a_rehearsed_deletion_does_nothing(world: World, sandbox: SandboxApiServer) -> None:
    _, before = await with_uids(world)
    for policy in ("Orphan", "Foreground", "Background"):
        orphan_at(sandbox, world, "brokergroups", dry_run=True, propagation=policy)
    group = await world.group()
    assert "deletionTimestamp" not in group["metadata"]
    assert group["metadata"]["finalizers"] == [names.FINALIZER_BROKER_GROUP]
    assert await uids(world) == before


async def test_without_a_collector_the_operator_frees_everything_itself(world: World) -> None:
    """A kube-apiserver alone keeps its own finalizer on the group, as one does whose controller-manager is away."""
    _, before = await with_uids(world)
    await delete(world, "Orphan")

    async def let_go() -> bool:
        group = (await named(world, BROKER_GROUPS)).get("orders")
        return group is None or names.FINALIZER_BROKER_GROUP not in group["metadata"].get("finalizers", [])

    await until("our finalizer is off", let_go)
    assert await owners(world) == {""}
    assert await uids(world) == before
    if not await is_gone(world):
        collected = {"metadata": {"finalizers": None}}
        await world.patch_group(collected)
    await until("the group is gone", lambda: is_gone(world))
    await world.create_group()
    await taken_back(world)
    assert await uids(world) == before


@SANDBOX
async def test_members_services_and_commit_logs_are_taken_back_too(world: World) -> None:
    """A member that is known by its Service's address keeps it, so its pod is what the spec wants."""
    spec: dict[str, Any] = {"network": {"addressing": "ServiceIP"}, "storage": {"commitLog": {"size": "1Gi"}}}
    await world.start_plane()
    await world.create_group(**spec)

    await become_ready(world)
    before = await uids(world)
    assert len([name for name in before if name.startswith("Service ")]) == 6
    assert len([name for name in before if name.startswith("PersistentVolumeClaim ")]) == 6
    await orphan(world)
    assert await uids(world) == before
    await world.create_group(**spec)
    await taken_back(world)
    await until("Ready", lambda: all_ready(world))
    assert await uids(world) == before


@SANDBOX
async def test_a_persons_objects_beside_it_say_nothing_of_an_orphaned_group(world: World) -> None:
    """A Service with every label of ours has no owner; the group is deleted plainly, and that Service stays."""
    await ready(world)
    labels = (await named(world, SERVICES))["orders-master"]["metadata"]["labels"]
    own = {"metadata": {"name": "orders-shop", "namespace": world.key.namespace, "labels": labels}}
    await world.api.create(SERVICES, {**own, "spec": {"ports": [{"port": 80}]}})
    await delete(world, "Background")
    await until_gone(world)
    assert list(await named(world, PODS)) == []
    assert list(await named(world, SERVICES)) == ["orders-shop"]
