"""The operator dies before its n-th write, for every n, and is started again: the end is the same (Sieve's oracle).

A story runs once undisturbed, which gives the reference end state and the number of writes; then once more for each
write, with a kill in front of it. `make test` kills before a sample of the writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.kube.resources import (
    BROKER_GROUPS,
    CONFIG_MAPS,
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
)
from brokergroup_operator.reconcile.access import ClusterAccess
from brokergroup_operator.records.store import GroupKey
from tests.reconcile.world import World, applier_for
from tests.support.draws import sample

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from brokergroup_operator.kube.client import KubernetesApi
    from kube_sandbox.api_server.server import SandboxApiServer


async def a_group_is_made(world: World) -> None:
    world.begin()
    await world.create_group()
    await world.settle()


async def a_master_is_elected(world: World) -> None:
    await world.create_group()
    await world.settle()
    await world.view.make_master(world.key, 2)
    world.begin()
    await world.settle()


async def things_break_and_the_spec_changes(world: World) -> None:
    await world.create_group()
    await world.settle()
    await world.view.make_master(world.key, 1)
    await world.settle()
    await world.api.delete(PODS, "orders-2", namespace=world.key.namespace)
    await world.run_kubelet()
    await world.api.delete(CONFIG_MAPS, "orders-broker", namespace=world.key.namespace)
    wish = {"spec": {"replicas": 4, "storage": {"size": "9Gi"}, "config": {"fileReservedTime": "24"}}}
    await world.patch_group(wish)
    world.begin()
    await world.settle()


async def the_group_is_deleted_with_its_data(world: World) -> None:
    await world.create_group(storage={"retention": {"whenDeleted": "Delete"}})
    await world.settle()
    await world.view.make_master(world.key, 1)
    await world.settle()
    await world.api.delete(BROKER_GROUPS, world.key.name, namespace=world.key.namespace)
    world.begin()
    await world.settle()


async def _running(world: World, **spec: Any) -> None:
    world.brokers_run = True
    await world.create_group(**spec)
    await world.settle()


async def _change(world: World, **spec: Any) -> None:
    await world.patch_group({"spec": spec})


async def a_new_image_is_rolled_out(world: World) -> None:
    await _running(world)
    await _change(world, image="example.com/replica:2")
    world.begin()
    await world.settle()


async def a_hot_key_and_a_cold_one_change(world: World) -> None:
    await _running(world)
    await _change(world, config={"fileReservedTime": "24", "maxMessageSize": "100000"})
    world.begin()
    await world.settle()


async def the_group_shrinks_and_its_volumes_go(world: World) -> None:
    await _running(world, replicas=4, storage={"retention": {"whenScaled": "Delete"}})
    await _change(world, replicas=2)
    world.begin()
    await world.settle()


async def the_group_sleeps_and_wakes(world: World) -> None:
    await _running(world)
    await _change(world, maintenance={"hibernated": True})
    world.begin()
    await world.settle()
    asleep = await world.everything()
    assert not [name for name in asleep if name.startswith("Pod ")]
    await _change(world, maintenance={"hibernated": False})
    await world.settle()


async def the_master_is_rebuilt(world: World) -> None:
    await _running(world)
    await world.run_operation("Rebuild", rebuild={"brokerId": 1})
    world.begin()
    await world.settle()


async def a_slave_is_decommissioned(world: World) -> None:
    await _running(world)
    await world.run_operation("Decommission", decommission={"brokerId": 2})
    world.begin()
    await world.settle()


async def a_group_begins_with_a_backup(world: World) -> None:
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    metadata = {"name": "copies", "namespace": world.key.namespace}
    await world.api.create(PERSISTENT_VOLUME_CLAIMS, {"metadata": metadata, "spec": claim})
    world.begin()
    source = {"name": "copies", "folder": "lost/nightly"}
    await world.create_group(bootstrap={"fromBackup": {"claim": source}})
    await world.settle()
    stored = await world.view.store.read(world.key)
    assert stored is not None
    assert stored.record.restored_from == "lost/nightly"
    assert (stored.record.master_epoch, sorted(stored.record.replicas)) == (1041, [7, 8, 9])
    assert stored.record.replicas[7].reserved_for == "orders-1"


# How many of a story's writes `make test` kills the operator before.
KILLS = 2


class Theatre:
    """One API server for all runs of a story, each in a namespace of its own."""

    def __init__(self, server: SandboxApiServer, api: KubernetesApi) -> None:
        self._server, self._api = server, api
        self._applier = applier_for(ClusterAccess(url=server.url))
        self._runs = 0

    async def told(
        self, story: Callable[[World], Awaitable[None]], *, kill_at: int | None
    ) -> tuple[dict[str, Any], list[str]]:
        self._runs += 1
        namespace = f"run-{self._runs}"
        await self._api.create(NAMESPACES, {"metadata": {"name": namespace}})
        world = World(self._api, self._applier, GroupKey(namespace, "orders"))
        self._server.before_request = world.observe
        world.planned_kill = kill_at
        await story(world)
        assert kill_at is None or world.was_killed, f"the story made fewer than {kill_at} writes"
        return await world.everything(), world.writes

    async def close(self) -> None:
        await self._applier.close()


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("story", "at_least", "objects"),
    [
        (a_group_is_made, 15, 13),
        (a_master_is_elected, 2, 13),
        (things_break_and_the_spec_changes, 8, 15),
        (the_group_is_deleted_with_its_data, 12, 0),
        (a_new_image_is_rolled_out, 8, 13),
        (a_hot_key_and_a_cold_one_change, 12, 13),
        (the_group_shrinks_and_its_volumes_go, 8, 11),
        (the_group_sleeps_and_wakes, 10, 13),
        (the_master_is_rebuilt, 8, 13),
        (a_slave_is_decommissioned, 5, 14),
        (a_group_begins_with_a_backup, 15, 14),
    ],
)
async def test_a_kill_before_any_write_changes_nothing_in_the_end(
    sandbox: SandboxApiServer,
    api: KubernetesApi,
    story: Callable[[World], Awaitable[None]],
    at_least: int,
    objects: int,
) -> None:
    theatre = Theatre(sandbox, api)
    expected, writes = await theatre.told(story, kill_at=None)
    assert len(writes) >= at_least, "the story does too little to prove anything"
    assert len(expected) == objects

    for number in sample(range(len(writes)), KILLS):
        end, _ = await theatre.told(story, kill_at=number)
        assert end == expected, f"killed before write {number}, {writes[number]}"
    await theatre.close()
