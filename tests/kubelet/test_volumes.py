"""A claim that names a PersistentVolume: it is bound to that one, its data outlives it, and another claim may have it then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.kube.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES
from tests.kubelet.node_under_test import NAMESPACE, Node, pod_object
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

VOLUME = "by-hand"
SIZE = {"storage": "1Gi"}
OF_BOTH = {"accessModes": ["ReadWriteOnce"], "storageClassName": "by-hand"}
MOUNT = {"volumeMounts": [{"name": "v", "mountPath": "/data"}]}


async def make_volume(node: Node, path: Path) -> None:
    spec = {"capacity": SIZE, "hostPath": {"path": str(path)}, "persistentVolumeReclaimPolicy": "Retain", **OF_BOTH}
    made = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": VOLUME}, "spec": spec}
    await node.api.create(PERSISTENT_VOLUMES, made)


async def make_claim(node: Node, name: str) -> dict[str, Any]:
    spec = {"resources": {"requests": SIZE}, "volumeName": VOLUME, **OF_BOTH}
    metadata = {"name": name, "namespace": NAMESPACE}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}
    return await node.api.create(PERSISTENT_VOLUME_CLAIMS, claim)


async def phase_of(node: Node, claim: str) -> str:
    found = await node.api.get(PERSISTENT_VOLUME_CLAIMS, claim, namespace=NAMESPACE)
    return str((found.get("status") or {}).get("phase"))


async def run_in(node: Node, name: str, claim: str, script: str) -> None:
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]
    await node.create(pod_object(name, script, container=MOUNT, restartPolicy="Never", volumes=volumes))
    pod = await node.until(name, lambda pod: pod["status"].get("phase") in {"Succeeded", "Failed"})
    assert pod["status"]["phase"] == "Succeeded"
    await node.delete(name, 0)
    await node.until_gone(name, pod["metadata"]["uid"])


@pytest.mark.parametrize("first", ["the volume", "the claim"])
async def test_its_data_goes_on_under_another_claim(node: Node, tmp_path: Path, first: str) -> None:
    path = tmp_path / "disk"
    path.mkdir()
    if first == "the volume":
        await make_volume(node, path)
    claim = await make_claim(node, "old")
    if first == "the claim":
        await make_volume(node, path)

    async def bound(name: str) -> bool:
        return await phase_of(node, name) == "Bound"

    await eventually(lambda: bound("old"))
    volume = await node.api.get(PERSISTENT_VOLUMES, VOLUME)
    assert volume["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"]
    await run_in(node, "writer", "old", "echo 7 > /data/number")

    await make_claim(node, "new")
    await node.api.delete(PERSISTENT_VOLUME_CLAIMS, "old", namespace=NAMESPACE)

    async def released() -> bool:
        return bool((await node.api.get(PERSISTENT_VOLUMES, VOLUME))["status"]["phase"] == "Released")

    await eventually(released)
    # It is given to no other claim before its reference to the old one is taken off.
    assert await phase_of(node, "new") == "Pending"
    free = {"name": "new", "uid": None, "resourceVersion": None}
    await node.api.patch(PERSISTENT_VOLUMES, VOLUME, {"spec": {"claimRef": free}})
    await eventually(lambda: bound("new"))
    await run_in(node, "reader", "new", "test $(cat /data/number) = 7")
    assert (path / "number").read_text() == "7\n"


async def test_a_claim_that_is_made_from_a_snapshot_waits_for_its_volume(node: Node, tmp_path: Path) -> None:
    """An empty folder in place of the snapshot's content would be taken for that."""
    path = tmp_path / "disk"
    path.mkdir()
    (path / "number").write_text("7\n")
    source = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "nightly"}
    spec = {"resources": {"requests": SIZE}, "dataSource": source, **OF_BOTH}
    metadata = {"name": "new", "namespace": NAMESPACE}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}
    await node.api.create(PERSISTENT_VOLUME_CLAIMS, claim)
    other = {**claim, "metadata": {**metadata, "name": "other"}, "spec": {**spec, "dataSource": None}}
    await node.api.create(PERSISTENT_VOLUME_CLAIMS, other)

    async def bound(name: str) -> bool:
        return await phase_of(node, name) == "Bound"

    await eventually(lambda: bound("other"))
    assert not await bound("new")
    await make_volume(node, path)
    change = {"spec": {"volumeName": VOLUME}}
    await node.api.patch(PERSISTENT_VOLUME_CLAIMS, "new", change, namespace=NAMESPACE)
    await eventually(lambda: bound("new"))
    await run_in(node, "reader", "new", "test $(cat /data/number) = 7")
