"""The stories: each brings a group to its start, sets the mark, makes one change, and waits for its end."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import msgspec

from brokergroup_operator.api.backup_fields import Manifest, SnapshotManifest
from brokergroup_operator.api.names import ANNOTATION_MANIFEST
from brokergroup_operator.kube.errors import NotFoundError
from brokergroup_operator.kube.resources import (
    BROKER_GROUP_OPERATIONS,
    BROKER_GROUPS,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    VOLUME_SNAPSHOTS,
)
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


async def create(world: World) -> None:
    """Create a group of three."""
    world.mark()
    await world.create_group(replicas=3)
    await world.settle(ready_with(3))


async def failover(world: World) -> None:
    """Kill the master's process; its pod returns as a slave."""
    await world.create_group(replicas=3)
    await world.settle(ready_with(3))
    world.mark()
    await world.node.kill_process((await world.group())["status"]["master"]["pod"])
    await world.settle(ready_with(3))


async def scale(world: World) -> None:
    """Scale from two to three."""
    await world.create_group(replicas=2)
    await world.settle(ready_with(2))
    world.mark()
    await world.api.patch(BROKER_GROUPS, NAME, {"spec": {"replicas": 3}}, namespace=NAMESPACE)
    await world.settle(ready_with(3))


async def roll(world: World) -> None:
    """Change a setting that brokers read only at their start: every pod is recreated, the master's after a switchover."""
    await world.create_group(replicas=3)
    await world.settle(ready_with(3))
    before = {life.uid for life in world.node.pods.values()}
    world.mark()
    await world.api.patch(
        BROKER_GROUPS, NAME, {"spec": {"config": {"mappedFileSizeCommitLog": "1048576"}}}, namespace=NAMESPACE
    )
    await world.settle(
        lambda group: ready_with(3)(group) and not before & {life.uid for life in world.node.pods.values()}
    )


async def scale_in(world: World) -> None:
    """Scale from four to three: the last member leaves, its claim stays."""
    await world.create_group(replicas=4)
    await world.settle(ready_with(4))
    world.mark()
    await world.api.patch(BROKER_GROUPS, NAME, {"spec": {"replicas": 3}}, namespace=NAMESPACE)
    await world.settle(ready_with(3))


async def operation(world: World) -> None:
    """Move the master to broker 3 by a BrokerGroupOperation."""
    await world.create_group(replicas=3)
    await world.settle(ready_with(3))
    world.mark()
    await world.api.create(
        BROKER_GROUP_OPERATIONS,
        {
            "metadata": {"name": "move", "namespace": NAMESPACE},
            "spec": {
                "brokerGroupRef": {"name": NAME},
                "type": "Switchover",
                "switchover": {"toBrokerId": 3, "deadlineSeconds": 60},
            },
        },
    )
    await world.settle(lambda group: ready_with(3)(group) and group["status"].get("master", {}).get("brokerId") == 3)


async def delete(world: World) -> None:
    """Delete the group with its data."""
    await world.create_group(replicas=3, storage={"retention": {"whenDeleted": "Delete"}})
    await world.settle(ready_with(3))
    world.mark()
    await world.api.delete(BROKER_GROUPS, NAME, namespace=NAMESPACE)
    await world.settle(lambda group: not group)


async def retire(world: World) -> None:
    """Retire the group while clients send and read: no message is acknowledged and deleted unread, and the group goes."""
    world.node.new_broker = BrokerWithTopic
    await world.create_group(replicas=3, storage={"retention": {"whenDeleted": "Delete"}})
    await world.settle(ready_with(3))
    # Under a master that it has seen elected nothing counts as read for 120 s.
    await world.restart_operator()
    await world.settle(ready_with(3))
    clients = Clients(world)
    world.loop.spawn("clients", clients.run())
    await asyncio.sleep(STRAGGLER_SECONDS)
    world.mark()
    spec = {"brokerGroupRef": {"name": NAME}, "type": "Retire", "retire": {}}
    await world.api.create(
        BROKER_GROUP_OPERATIONS, {"metadata": {"name": "away", "namespace": NAMESPACE}, "spec": spec}
    )
    await world.settle(lambda group: not group)
    found = await world.api.get(BROKER_GROUP_OPERATIONS, "away", namespace=NAMESPACE)
    assert found["status"]["phase"] == "Succeeded", found["status"]
    assert clients.acknowledged
    assert clients.refused or world.laws_broken, "the straggler met no closed group"


async def stop(world: World) -> None:
    """Hold the master's broker stopped, so that it hands over first, and start it again in its pod."""
    await world.create_group(replicas=3)
    await world.settle(ready_with(3))
    master = (await world.group())["status"]["master"]["brokerId"]
    pods = await uids(world)
    world.mark()
    wish = {"spec": {"maintenance": {"stoppedBrokers": [master]}}}
    await world.api.patch(BROKER_GROUPS, NAME, wish, namespace=NAMESPACE)

    def is_stopped(group: dict[str, Any]) -> bool:
        states = {one["brokerId"]: one["state"] for one in group.get("status", {}).get("members", [])}
        return states.get(master) == "Stopped" and condition(group, "BrokersStopped") == "True"

    await world.settle(is_stopped)
    await world.api.patch(BROKER_GROUPS, NAME, {"spec": {"maintenance": {"stoppedBrokers": []}}}, namespace=NAMESPACE)
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
    await backed_up(world, {"claim": {"name": "copies"}})


async def snapshots(world: World) -> None:
    """Take a VolumeSnapshot of broker 3's claim, while its pod is stopped: in the end it has the manifest."""
    await define(world.api)
    driver = SnapshotController(world.api, NAMESPACE, now_seconds=lambda: BEGINNING_UNIX_SECONDS + world.loop.time())
    driver.uploads = {"night"}
    world.loop.spawn("driver", driver.run())
    await world.create_group(replicas=3)
    await world.settle(ready_with(3))
    world.loop.spawn("upload", uploaded(world, driver))
    world.mark()
    await backed_up(world, {"snapshot": {}})
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


async def backed_up(world: World, whereto: dict[str, Any]) -> None:
    """Ask for it, and wait until it has succeeded and the group has all its members again."""
    spec = {"brokerGroupRef": {"name": NAME}, "type": "Backup", "backup": {**whereto, "brokerId": 3}}
    await world.api.create(
        BROKER_GROUP_OPERATIONS, {"metadata": {"name": "night", "namespace": NAMESPACE}, "spec": spec}
    )
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
    await world.create_group(replicas=3, bootstrap={"fromBackup": {"claim": source}})
    await world.settle(ready_with(3))


async def make_claim(world: World) -> None:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    await world.api.create(
        PERSISTENT_VOLUME_CLAIMS, {"metadata": {"name": "copies", "namespace": NAMESPACE}, "spec": spec}
    )


BACKUP = Manifest(
    name="lost/nightly",
    operation="op-uid",
    group="lost",
    namespace=NAMESPACE,
    cluster_name="cl",
    broker_name="lost",
    broker_id=3,
    next_broker_id=7,
    master_epoch=41,
    implementation="Python",
    store_epoch=40,
    offset=5000,
    bytes=5000,
)
WORKLOADS = {
    "create": create,
    "scale": scale,
    "scale-in": scale_in,
    "roll": roll,
    "failover": failover,
    "operation": operation,
    "delete": delete,
    "retire": retire,
    "stop": stop,
    "backup": backup,
    "snapshots": snapshots,
    "restore": restore,
}
