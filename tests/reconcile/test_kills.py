"""The operator is killed before each write of a story, and another one goes on: the end is the same."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from brokergroup_operator.api import backup_fields, names
from brokergroup_operator.api.backup_fields import ClaimSnapshot, SnapshotManifest
from brokergroup_operator.kube.resources import (
    BROKER_GROUPS,
    CONFIG_MAPS,
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    VOLUME_SNAPSHOTS,
)
from brokergroup_operator.reconcile.access import ClusterAccess
from brokergroup_operator.records.store import GroupKey
from tests.reconcile import cases as c
from tests.reconcile.world import MANIFEST, World, applier_for
from tests.support.draws import sample
from tests.support.snapshot_controller import define

if TYPE_CHECKING:
    from brokergroup_operator.kube.client import KubernetesApi
    from kube_sandbox.api_server.server import SandboxApiServer

Story = Callable[[World], Awaitable[None]]
# How many of a story's writes `make test` kills the operator before.
KILLS = 2
TWO_KEYS = {"fileReservedTime": "24", "maxMessageSize": "100000"}
VOLUMES_GO = {"retention": {"whenScaled": "Delete"}}


async def settled(world: World, *, master: int | None = None, **spec: Any) -> None:
    """Create a group and let it settle: with brokers that run, or with the master that the test chooses."""
    world.brokers_run = master is None
    await world.create_group(**spec)
    await world.settle()
    if master is not None:
        await world.view.make_master(world.key, master)
        await world.settle()


async def end(world: World) -> None:
    """From here on the operator may be killed."""
    world.begin()
    await world.settle()


async def a_group_is_made(world: World) -> None:
    world.begin()
    await world.create_group()
    await world.settle()


def changed(wish: dict[str, Any], **before: Any) -> Story:
    """The spec of a group of running brokers changes."""

    async def story(world: World) -> None:
        await settled(world, **before)
        await world.patch_group({"spec": wish})
        await end(world)

    return story


def operated(kind: str, **section: Any) -> Story:
    async def story(world: World) -> None:
        await settled(world)
        await world.run_operation(kind, **section)
        await end(world)

    return story


async def a_master_is_elected(world: World) -> None:
    await world.create_group()
    await world.settle()
    await world.view.make_master(world.key, 2)
    await end(world)


async def things_break_and_the_spec_changes(world: World) -> None:
    await settled(world, master=1)
    await world.delete(PODS, "orders-2")
    await world.run_kubelet()
    await world.delete(CONFIG_MAPS, "orders-broker")
    wish = {"replicas": 4, "storage": {"size": "9Gi"}, "config": {"fileReservedTime": "24"}}
    await world.patch_group({"spec": wish})
    await end(world)


async def the_group_is_deleted_with_its_data(world: World) -> None:
    await settled(world, master=1, storage={"retention": {"whenDeleted": "Delete"}})
    await world.delete(BROKER_GROUPS, world.key.name)
    await end(world)


async def the_group_sleeps_and_wakes(world: World) -> None:
    await settled(world)
    await world.patch_group({"spec": {"maintenance": {"hibernated": True}}})
    await end(world)
    assert not [name for name in await world.everything() if name.startswith("Pod ")]
    await world.patch_group({"spec": {"maintenance": {"hibernated": False}}})
    await world.settle()


async def begun_with(world: World, backup: str, **source: Any) -> None:
    """A group begins with this backup, and its record says so."""
    world.begin()
    with pytest.MonkeyPatch.context() as patch:
        # The blocks follow from the group's uid, which is another in each run.
        patch.setattr(backup_fields, "EPOCH_BLOCKS", 1)
        patch.setattr(backup_fields, "BROKER_ID_BLOCKS", 1)
        await world.create_group(bootstrap={"fromBackup": source})
        await world.settle()
    stored = await world.view.store.read(world.key)
    assert stored is not None
    assert stored.record.restored_from == backup
    assert (stored.record.master_epoch, sorted(stored.record.replicas)) == (1041, [107, 108, 109])
    assert stored.record.replicas[107].reserved_for == "orders-1"


async def a_group_begins_with_a_backup(world: World) -> None:
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    metadata = {"name": "copies", "namespace": world.key.namespace}
    await world.api.create(PERSISTENT_VOLUME_CLAIMS, {"metadata": metadata, "spec": claim})
    await begun_with(world, "lost/nightly", claim={"name": "copies", "folder": "lost/nightly"})


async def a_group_begins_with_snapshots(world: World) -> None:
    await define(world.api)
    part = ClaimSnapshot(claim="lost-3", snapshot="nightly", size="1Gi")
    manifest = SnapshotManifest(backup=msgspec.structs.replace(MANIFEST, confirm_offset=4000), snapshots=[part])
    said = {names.ANNOTATION_MANIFEST: msgspec.json.encode(manifest).decode()}
    metadata = {"name": "nightly", "namespace": world.key.namespace, "annotations": said}
    await world.api.create(VOLUME_SNAPSHOTS, {"metadata": metadata, "spec": {}})
    await world.patch(VOLUME_SNAPSHOTS, "nightly", {"status": {"readyToUse": True}}, subresource="status")
    await begun_with(world, "nightly", snapshot={"name": "nightly"})
    claims = {
        one["metadata"]["name"]: one["spec"].get("dataSource") for one in await world.items(PERSISTENT_VOLUME_CLAIMS)
    }
    source = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "nightly"}
    assert claims == {"orders-1": source, "orders-108": None, "orders-109": None}
    # It grows as any other, and keeps its source.
    await world.patch(BROKER_GROUPS, world.key.name, {"spec": {"storage": {"size": "9Ti"}}})
    await world.settle()
    grown = await world.get(PERSISTENT_VOLUME_CLAIMS, "orders-1")
    assert (grown["spec"]["resources"]["requests"]["storage"], grown["spec"]["dataSource"]) == ("9Ti", source)


class Theatre:
    """One API server for all runs of a story, each in a namespace of its own."""

    def __init__(self, server: SandboxApiServer, api: KubernetesApi) -> None:
        self._server, self._api = server, api
        self._applier = applier_for(ClusterAccess(url=server.url))
        self._runs = 0

    async def told(self, story: Story, *, kill_at: int | None) -> tuple[dict[str, Any], list[str]]:
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
    c.table([
        ("a group is made", a_group_is_made, 15, 14),
        ("a master is elected", a_master_is_elected, 2, 14),
        ("things break and the spec changes", things_break_and_the_spec_changes, 8, 16),
        ("the group is deleted with its data", the_group_is_deleted_with_its_data, 12, 0),
        ("a new image is rolled out", changed({"image": "example.com/replica:2"}), 8, 14),
        ("a hot key and a cold one change", changed({"config": TWO_KEYS}), 12, 14),
        ("the group shrinks and its volumes go", changed({"replicas": 2}, replicas=4, storage=VOLUMES_GO), 8, 12),
        ("the group sleeps and wakes", the_group_sleeps_and_wakes, 10, 14),
        ("the master is rebuilt", operated("Rebuild", rebuild={"brokerId": 1}), 8, 14),
        ("a slave is decommissioned", operated("Decommission", decommission={"brokerId": 2}), 5, 15),
        ("a group begins with a backup", a_group_begins_with_a_backup, 15, 15),
        ("a group begins with snapshots", a_group_begins_with_snapshots, 15, 14),
    ]),
)  # fmt: skip
async def test_a_kill_before_any_write_changes_nothing_in_the_end(
    sandbox: SandboxApiServer, api: KubernetesApi, story: Story, at_least: int, objects: int
) -> None:
    theatre = Theatre(sandbox, api)
    expected, writes = await theatre.told(story, kill_at=None)
    assert len(writes) >= at_least, "the story does too little to prove anything"
    assert len(expected) == objects
    for number in sample(range(len(writes)), KILLS):
        end, _ = await theatre.told(story, kill_at=number)
        assert end == expected, f"killed before write {number}, {writes[number]}"
    await theatre.close()
