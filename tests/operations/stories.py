"""Operations from their beginning to their end, with the reconcile plane, kubelet and snapshot driver beside them."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

import msgspec

from brokergroup_operator.api.backup_fields import SnapshotManifest
from brokergroup_operator.api.names import ANNOTATION_MANIFEST
from brokergroup_operator.kube.resources import PERSISTENT_VOLUME_CLAIMS, PODS, VOLUME_SNAPSHOTS
from tests.operations.world import CLAIM, World
from tests.support.snapshot_controller import SnapshotController, define

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Story = Callable[[World], Awaitable[None]]


async def restarted(world: World, *numbers: int) -> None:
    """The reconcile plane restarts these members while the operation runs, one after the other."""
    status = await world.status_of_one()
    if status["phase"] == "Running":
        for pod in await world.items(PODS):
            name, created = pod["metadata"]["name"], pod["metadata"]["creationTimestamp"]
            if int(name[-1]) in numbers and created < status["startedAt"]:
                await world.delete_pod(name)
                await world.create_member(int(name[-1]))


async def running_backup(world: World) -> dict[str, Any] | None:
    """Return what the status has of a backup that runs."""
    status = await world.status_of_one()
    return status["result"].get("backup") if status["phase"] == "Running" else None


async def backup(world: World) -> None:
    claim = {"metadata": {"name": "copies", "namespace": world.key.namespace}, "spec": CLAIM}
    await world.api.create(PERSISTENT_VOLUME_CLAIMS, claim)

    async def others() -> None:
        """The reconcile plane, and the kubelet of the copying pod."""
        if (held := await running_backup(world)) is None:
            return
        pods = {one["metadata"]["name"]: one for one in await world.items(PODS)}
        copying = pods.get("orders-backup")
        if "takenAt" in held:
            if copying is None:  # it may still read the claim
                await world.create_member(held["brokerId"])
        elif held["pod"] in pods:
            if "comparedAt" in held:
                await world.delete_pod(held["pod"])
        elif copying is not None and copying.get("status", {}).get("phase") != "Succeeded":
            await world.end_copy(copying)

    _, result = await world.ended("Backup", {"claim": {"name": "copies"}}, hands=others)
    assert result["backup"]["offset"] == 90
    assert {one["metadata"]["name"] for one in await world.items(PODS)} == {"orders-1", "orders-2", "orders-3"}


async def backup_by_snapshots(world: World) -> None:
    """The driver is late, then fails once, and uploads until the member runs again; it was killed in between.

    Each look of it is the first one of its process.
    """
    await define(world.api)
    driver = SnapshotController(world.api, world.key.namespace, now_seconds=time.time)
    looks = itertools.count()

    async def others() -> None:
        """The reconcile plane, and the driver."""
        if (held := await running_backup(world)) is None:
            return
        pods = {one["metadata"]["name"] for one in await world.items(PODS)}
        driver.uploads = set() if "cutAt" in held and held["pod"] in pods else {"one"}
        if "cutAt" in held:
            await world.create_member(held["brokerId"])
        elif held["pod"] in pods and "comparedAt" in held:
            await world.end_pod(held["pod"])
        if await world.items(VOLUME_SNAPSHOTS):
            driver.late, driver.fails = ({"one"}, {}) if (look := next(looks)) < 2 else (set(), {"one": "busy"})
            if look > 3:
                driver.fails = {}
            await driver.look()

    _, result = await world.ended("Backup", {"snapshot": {"className": "fast"}}, hands=others)
    assert (result["backup"]["snapshots"], result["backup"]["claim"]) == (["one"], "")
    assert await world.items(PODS), "no pod has copied"
    assert {one["metadata"]["name"] for one in await world.items(PODS)} == {"orders-1", "orders-2", "orders-3"}
    (snapshot,) = await world.items(VOLUME_SNAPSHOTS)
    assert snapshot["spec"] == {"source": {"persistentVolumeClaimName": "orders-3"}, "volumeSnapshotClassName": "fast"}
    assert "ownerReferences" not in snapshot["metadata"], "it outlives its operation and its group"
    manifest = msgspec.json.decode(snapshot["metadata"]["annotations"][ANNOTATION_MANIFEST], type=SnapshotManifest)
    assert manifest.backup.operation == (await world.asked("one"))["metadata"]["uid"]
    assert manifest.backup.taken_at == result["backup"]["takenAt"] == snapshot["status"]["creationTime"]
    assert [(one.claim, one.snapshot, one.size) for one in manifest.snapshots] == [("orders-3", "one", "1Gi")]
