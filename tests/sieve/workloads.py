"""The stories: each brings a group to its start, sets the mark, makes one change, and waits for its end."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import msgspec

from brokergroup_operator.api.backup_fields import SnapshotManifest
from brokergroup_operator.api.names import ANNOTATION_MANIFEST
from brokergroup_operator.kube.errors import NotFoundError
from brokergroup_operator.kube.resources import (
    BROKER_GROUP_OPERATIONS,
    BROKER_GROUPS,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    VOLUME_SNAPSHOTS,
)
from tests.reconcile.world import MANIFEST
from tests.sieve.retired_group import STRAGGLER_SECONDS, BrokerWithTopic, Clients
from tests.sieve.world import LONGEST_SECONDS, NAME, NAMESPACE
from tests.support.memory_api import BEGINNING_UNIX_SECONDS
from tests.support.snapshot_controller import SnapshotController, define
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from tests.sieve.world import World


def condition(group: dict[str, Any], kind: str) -> str:
    for one in group.get("status", {}).get("conditions", []):
        if one["type"] == kind:
            return str(one["status"])
    return "Unknown"


def ready_with(replicas: int) -> Any:
    def check(group: dict[str, Any]) -> bool:
        status = group.get("status", {})
        return (
            condition(group, "Ready") == "True"
            and len(status.get("members", [])) == replicas
            and status.get("inSyncReplicas") == replicas
        )

    return check


async def settled(world: World, replicas: int, **spec: Any) -> None:
    """Create a group of so many members, and wait until it is at rest."""
    await world.create_group(replicas=replicas, **spec)
    await world.settle(ready_with(replicas))


async def change(world: World, **spec: Any) -> None:
    await world.api.patch(BROKER_GROUPS, NAME, {"spec": spec}, namespace=NAMESPACE)


async def ask(world: World, name: str, kind: str, **section: Any) -> None:
    """Ask for an operation of the group."""
    spec = {"brokerGroupRef": {"name": NAME}, "type": kind, kind.lower(): section}
    metadata = {"name": name, "namespace": NAMESPACE}
    await world.api.create(BROKER_GROUP_OPERATIONS, {"metadata": metadata, "spec": spec})


async def create(world: World) -> None:
    """Create a group of three."""
    world.mark()
    await settled(world, 3)


async def failover(world: World) -> None:
    """Kill the master's process; its pod returns as a slave."""
    await settled(world, 3)
    world.mark()
    await world.node.kill_process((await world.group())["status"]["master"]["pod"])
    await world.settle(ready_with(3))


async def scale(world: World) -> None:
    """Scale from two to three."""
    await settled(world, 2)
    world.mark()
    await change(world, replicas=3)
    await world.settle(ready_with(3))


async def roll(world: World) -> None:
    """Change a setting that brokers read only at their start: every pod is recreated, the master's after a switchover."""
    await settled(world, 3)
    before = {life.uid for life in world.node.pods.values()}
    world.mark()
    await change(world, config={"mappedFileSizeCommitLog": "1048576"})
    await world.settle(
        lambda group: ready_with(3)(group) and not before & {life.uid for life in world.node.pods.values()}
    )


async def scale_in(world: World) -> None:
    """Scale from four to three: the last member leaves, its claim stays."""
    await settled(world, 4)
    world.mark()
    await change(world, replicas=3)
    await world.settle(ready_with(3))


async def operation(world: World) -> None:
    """Move the master to broker 3 by a BrokerGroupOperation."""
    await settled(world, 3)
    world.mark()
    await ask(world, "move", "Switchover", toBrokerId=3, deadlineSeconds=60)
    await world.settle(lambda group: ready_with(3)(group) and group["status"].get("master", {}).get("brokerId") == 3)


async def delete(world: World) -> None:
    """Delete the group with its data."""
    await settled(world, 3, storage={"retention": {"whenDeleted": "Delete"}})
    world.mark()
    await world.api.delete(BROKER_GROUPS, NAME, namespace=NAMESPACE)
    await world.settle(lambda group: not group)


async def retire(world: World) -> None:
    """Retire the group while clients send and read: no message is acknowledged and deleted unread, and the group goes."""
    world.node.new_broker = BrokerWithTopic
    await settled(world, 3, storage={"retention": {"whenDeleted": "Delete"}})
    # Under a master that it has seen elected nothing counts as read for 120 s.
    await world.restart_operator()
    await world.settle(ready_with(3))
    clients = Clients(world)
    world.loop.spawn("clients", clients.run())
    await asyncio.sleep(STRAGGLER_SECONDS)
    world.mark()
    await ask(world, "away", "Retire")
    await world.settle(lambda group: not group)
    found = await world.api.get(BROKER_GROUP_OPERATIONS, "away", namespace=NAMESPACE)
    assert found["status"]["phase"] == "Succeeded", found["status"]
    assert clients.acknowledged
    assert clients.refused or world.laws_broken, "the straggler met no closed group"


async def stop(world: World) -> None:
    """Hold the master's broker stopped, so that it hands over first, and start it again in its pod."""
    await settled(world, 3)
    master = (await world.group())["status"]["master"]["brokerId"]
    pods = await uids(world)
    world.mark()
    await change(world, maintenance={"stoppedBrokers": [master]})

    def is_stopped(group: dict[str, Any]) -> bool:
        states = {one["brokerId"]: one["state"] for one in group.get("status", {}).get("members", [])}
        return states.get(master) == "Stopped" and condition(group, "BrokersStopped") == "True"

    await world.settle(is_stopped)
    await change(world, maintenance={"stoppedBrokers": []})
    await world.settle(ready_with(3))
    assert await uids(world) == pods, "every pod stays"


async def uids(world: World) -> dict[str, str]:
    """Return the pods by name."""
    items = (await world.api.list(PODS, namespace=NAMESPACE)).items
    return {item["metadata"]["name"]: item["metadata"]["uid"] for item in items}


async def backup(world: World) -> None:
    """Copy broker 3's store to a claim, while its pod is stopped."""
    await world.create_group(replicas=3)
    await make_claim(world)
    await world.settle(ready_with(3))
    world.mark()
    await backed_up(world, claim={"name": "copies"})


async def snapshots(world: World) -> None:
    """Take a VolumeSnapshot of broker 3's claim, while its pod is stopped: in the end it has the manifest."""
    await define(world.api)
    driver = SnapshotController(world.api, NAMESPACE, now_seconds=lambda: BEGINNING_UNIX_SECONDS + world.loop.time())
    driver.uploads = {"night"}
    world.loop.spawn("driver", driver.run())
    await settled(world, 3)
    world.loop.spawn("upload", uploaded(world, driver))
    world.mark()
    await backed_up(world, snapshot={})
    (taken,) = (await world.api.list(VOLUME_SNAPSHOTS, namespace=NAMESPACE)).items
    assert taken["spec"] == {"source": {"persistentVolumeClaimName": f"{NAME}-3"}}, taken
    manifest = msgspec.json.decode(taken["metadata"]["annotations"][ANNOTATION_MANIFEST], type=SnapshotManifest)
    found = await world.api.get(BROKER_GROUP_OPERATIONS, "night", namespace=NAMESPACE)
    assert manifest.backup.operation == found["metadata"]["uid"]


async def uploaded(world: World, driver: SnapshotController) -> None:
    """End the upload once the member runs again: a Backup that keeps it stopped until then never ends."""

    async def runs_again() -> bool:
        with contextlib.suppress(NotFoundError):
            found = await world.api.get(BROKER_GROUP_OPERATIONS, "night", namespace=NAMESPACE)
            held = found.get("status", {}).get("result", {}).get("backup", {})
            return "cutAt" in held and ready_with(3)(await world.group())
        return False

    await eventually(runs_again, within_seconds=2 * LONGEST_SECONDS, every_seconds=0.5)
    driver.uploads.clear()


async def backed_up(world: World, **whereto: Any) -> None:
    """Ask for it, and wait until it has succeeded and the group has all its members again."""
    await ask(world, "night", "Backup", brokerId=3, **whereto)
    for _ in range(MOST_RESTS):
        # It may rest before it has begun: a lost event is made up for by the next list.
        await world.settle(ready_with(3))
        found = await world.api.get(BROKER_GROUP_OPERATIONS, "night", namespace=NAMESPACE)
        if "completedAt" in found.get("status", {}):
            break
    assert found.get("status", {}).get("phase") == "Succeeded", found
    await world.settle(ready_with(3))


# Each takes half a second at least: as long as anything may take until it rests.
MOST_RESTS = int(2 * LONGEST_SECONDS)


async def restore(world: World) -> None:
    """Begin a group of three with a backup."""
    await make_claim(world)
    world.node.backups[BACKUP.name] = BACKUP
    world.mark()
    source = {"name": "copies", "folder": BACKUP.name}
    await settled(world, 3, bootstrap={"fromBackup": {"claim": source}})


async def make_claim(world: World) -> None:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    metadata = {"name": "copies", "namespace": NAMESPACE}
    await world.api.create(PERSISTENT_VOLUME_CLAIMS, {"metadata": metadata, "spec": spec})


BACKUP = msgspec.structs.replace(MANIFEST, namespace=NAMESPACE, cluster_name="cl", bytes=5000)
STORIES = (create, scale, scale_in, roll, failover, operation, delete, retire, stop, backup, snapshots, restore)
WORKLOADS = {story.__name__.replace("_", "-"): story for story in STORIES}
