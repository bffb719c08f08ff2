"""A pass that finds nothing to do in what the watches said requests nothing; any other reads first, and decides by that."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.kube.resources import (
    BROKER_GROUP_STATES,
    BROKER_GROUPS,
    CONFIG_MAPS,
    PERSISTENT_VOLUME_CLAIMS,
    POD_DISRUPTION_BUDGETS,
    PODS,
    SERVICES,
)
from brokergroup_operator.kube.trimmed import trimmed_all
from brokergroup_operator.reconcile.access import ClusterAccess
from brokergroup_operator.reconcile.run.plane import ReconcilePlane
from brokergroup_operator.records.group_cache import LABELLED, MANAGERS, WATCHED, GroupCache
from brokergroup_operator.records.store import GroupKey
from tests.reconcile.world import SETTINGS, World, applier_for, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from brokergroup_operator.kube.client import KubernetesApi
    from brokergroup_operator.kube.resources import Resource
    from kube_sandbox.api_server.server import SandboxApiServer

KEY = GroupKey("default", "orders")


class CachedWorld(World):
    """A settled group of three, and a cache that has seen it."""

    cache: GroupCache

    async def fill(self) -> None:
        self.cache = GroupCache()
        for resource in WATCHED:
            selector = names.LABEL_BROKER_GROUP if resource in LABELLED else ""
            listed = await self.api.list(resource, namespace=KEY.namespace, label_selector=selector)
            self.cache.take_in(resource, await trimmed_all(listed.items, MANAGERS), heard=self.cache.heard)


class Requests:
    """What was requested, by method."""

    def __init__(self, sandbox: SandboxApiServer) -> None:
        self.reads: list[str] = []
        self.writes: list[str] = []
        sandbox.before_request = self._note

    def _note(self, request: Any) -> None:
        (self.reads if request.method == "GET" else self.writes).append(f"{request.method} {request.path}")


@pytest.fixture
async def world(sandbox: SandboxApiServer, api: KubernetesApi) -> AsyncIterator[CachedWorld]:
    applier = applier_for(ClusterAccess(url=sandbox.url))
    made = CachedWorld(api, applier, KEY)
    await made.bring_up(sandbox)
    await made.fill()
    yield made
    await applier.close()


async def test_a_settled_group_costs_no_request(world: CachedWorld, sandbox: SandboxApiServer) -> None:
    requests = Requests(sandbox)
    await world.run_pass()
    assert (requests.reads, requests.writes) == ([], [])


async def test_what_the_plane_lists_is_trimmed(world: CachedWorld, sandbox: SandboxApiServer) -> None:
    """Objects that were listed stay in the cache until a watch brings newer ones."""
    plane = ReconcilePlane(world.api, ClusterAccess(url=sandbox.url), world.view, SETTINGS)
    for resource in (BROKER_GROUPS, PODS, SERVICES):
        whole = (await world.api.list(resource)).items
        assert any(
            set(entry) > {"manager", "time", "fieldsV1"} for obj in whole for entry in obj["metadata"]["managedFields"]
        )
        for obj in await plane._list(resource):
            for entry in obj["metadata"].get("managedFields", []):
                assert entry["manager"] in MANAGERS
                assert set(entry) <= {"manager", "time", "fieldsV1"}


@pytest.mark.parametrize(
    "resource",
    [BROKER_GROUPS, BROKER_GROUP_STATES, PODS, PERSISTENT_VOLUME_CLAIMS, SERVICES, CONFIG_MAPS, POD_DISRUPTION_BUDGETS],
    ids=lambda resource: resource.plural,
)
async def test_what_a_cache_lacks_is_looked_for_and_not_made_again(
    world: CachedWorld, sandbox: SandboxApiServer, resource: Resource
) -> None:
    """Absence is what costs most to believe: a pod made twice, a claim taken to be lost, an id reserved anew."""
    world.cache.hold(resource, world.cache.all(resource, KEY)[0], is_gone=True)
    requests = Requests(sandbox)
    await world.run_pass()
    assert requests.reads != []
    assert requests.writes == []


async def test_what_a_cache_still_shows_is_not_deleted_nor_counted_on(
    world: CachedWorld, sandbox: SandboxApiServer
) -> None:
    """A spec of before asks for fewer members: only a read of the API may say so."""
    (group,) = world.cache.all(BROKER_GROUPS, KEY)
    older = group | {"spec": group["spec"] | {"replicas": 2}}
    older["metadata"] = group["metadata"] | {"resourceVersion": "1"}
    world.cache.hold(BROKER_GROUPS, older)
    requests = Requests(sandbox)
    await world.run_pass()
    assert requests.reads != []
    assert requests.writes == []


async def test_a_record_that_the_controller_plane_knows_to_be_newer_is_read(
    world: CachedWorld, sandbox: SandboxApiServer
) -> None:
    """Or the label of a new master, which its Service selects by, would wait for the watch."""
    await world.view.make_master(KEY, 3)
    requests = Requests(sandbox)
    await world.run_pass()
    assert any(path.startswith("PATCH") and "/pods/" in path for path in requests.writes)


async def test_nothing_is_concluded_before_every_kind_was_listed(world: CachedWorld, sandbox: SandboxApiServer) -> None:
    world.cache = GroupCache()
    requests = Requests(sandbox)
    await world.run_pass()
    assert requests.reads != []
    assert requests.writes == []


async def test_a_lost_pod_comes_back_once_the_cache_shows_it(world: CachedWorld, sandbox: SandboxApiServer) -> None:
    await world.api.delete(PODS, "orders-2", namespace=KEY.namespace)
    await world.stop_pod("orders-2")
    world.cache.hold(PODS, world.cache.by_name(PODS, KEY)["orders-2"], is_gone=True)
    requests = Requests(sandbox)
    await world.run_pass()
    assert any(path.startswith("PATCH") and path.endswith("/pods/orders-2") for path in requests.writes)


async def test_a_pod_deleted_between_the_planes_list_and_the_watchs_own_is_made_again_at_once(
    world: CachedWorld, sandbox: SandboxApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache has the pod from the plane's list; the watch lists after the deletion, and brings no event of it."""
    has_listed, was_deleted = asyncio.Event(), asyncio.Event()

    def wait_for_deletion(request: Any) -> Any:
        of_kopf = request.headers.get("User-Agent", "").startswith("kopf")
        return was_deleted.wait() if of_kopf and request.path.endswith("/pods") else None

    sandbox.before_request = wait_for_deletion
    plane = ReconcilePlane(
        world.api, ClusterAccess(url=sandbox.url), world.view, replace(SETTINGS, resync_seconds=600.0)
    )
    resync = plane._resync

    async def listed(*arguments: Any) -> None:
        await resync(*arguments)
        has_listed.set()

    monkeypatch.setattr(plane, "_resync", listed)
    await plane.start()
    try:
        await has_listed.wait()
        await world.api.delete(PODS, "orders-2", namespace=KEY.namespace)
        await world.stop_pod("orders-2")
        was_deleted.set()
        await until("orders-2 again", lambda: has_pod(world, "orders-2"))
    finally:
        was_deleted.set()
        await plane.stop()


async def has_pod(world: CachedWorld, name: str) -> bool:
    return any(pod["metadata"]["name"] == name for pod in (await world.api.list(PODS, namespace=KEY.namespace)).items)
