"""VolumeSnapshots on the two nodes: a CSI driver with Kubernetes' own sidecars, and a group that is lost and begins anew with them.

The driver (tests/real/parts/csi/driver) keeps volumes as folders that both nodes share, and registers at both kubelets. Attacher,
provisioner, snapshotter and snapshot controller are upstream's, as processes of the machine, as everything of this cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import yaml

from brokergroup_operator.api.names import LABEL_BROKER_GROUP, LABEL_ROLE, ROLE_MASTER
from brokergroup_operator.demo.client import key_of, read_messages
from rocketmq_remoting.address import join_address
from tests.node.bench import CheckError, expect
from tests.node.cluster import condition, say
from tests.node.kubectl import get, kubectl, kubectl_run, until
from tests.node.load import QUEUES
from tests.node.places import kubeconfig, nodes, state_folder
from tests.node.processes import NodeError, end, start, wait_for
from tests.node.whole_cluster import SMALL_BROKERS
from tests.real.parts.go_programs import csi_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rocketmq_remoting.message_record import StoredMessage
    from tests.node.bench import Bench

DRIVER: Final = "folders.brokergroup.dev"
# Of the StorageClass, and of the VolumeSnapshotClass.
CLASS: Final = "folders"
LOST, ANEW, BACKUP = "ledger", "ledger-anew", "ledger-backup"
SIDECARS = ("csi-attacher", "csi-provisioner", "csi-snapshotter", "snapshot-controller")
READY_SECONDS, BACKUP_SECONDS, GONE_SECONDS = 240.0, 240.0, 120.0
VOLUMES_GONE_SECONDS = 30.0
STEADY_SECONDS = 5.0


@dataclass(frozen=True)
class Seen:
    """`acknowledged`: messages of the load that the snapshots must have; `lost`: those of them that the new group lacks."""

    acknowledged: int
    restored: int
    lost: list[str]


def lose_and_restore(bench: Bench, name_server: str) -> Seen:
    """Back a group of Java brokers up under load, delete it with its data, begin another with the snapshots, and count."""
    with served():
        try:
            return _lost_and_restored(bench, name_server)
        finally:
            for name in (LOST, ANEW):
                kubectl_run("delete", "brokergroup", name, "--ignore-not-found", "--timeout=60s", seconds=70)
            claims = ("persistentvolumeclaims", "-l", f"{LABEL_BROKER_GROUP} in ({LOST},{ANEW})")
            kubectl_run("delete", *claims, "--timeout=60s", seconds=70)
            kubectl_run("delete", "volumesnapshots", "--all", "--timeout=60s", seconds=70)
            forget_volumes()


def _lost_and_restored(bench: Bench, name_server: str) -> Seen:
    made(LOST, name_server)
    load = bench.load_on(LOST, name_server, master_of(LOST), "snapshots")
    topic = str(load.process.args[-1])  # type: ignore[index]
    time.sleep(STEADY_SECONDS)
    status = backed_up()
    time.sleep(STEADY_SECONDS)
    seen = load.stop()
    expect(not seen["lost"], f"{LOST}: acknowledged and lost before its deletion: {seen['lost'][:5]}")
    before = messages_of(LOST, topic)
    confirmed = int(status["result"]["backup"]["confirmOffset"])
    at_least = Counter(key_of(one) for one in before if one.physical_offset < confirmed)
    expect(len(at_least) >= 100, f"{len(at_least)} messages of the load were confirmed before the backup, expected 100")
    kubectl("delete", "brokergroup", LOST, f"--timeout={GONE_SECONDS:g}s", seconds=GONE_SECONDS + 10)
    until("its claims are gone", lambda: not claims_of(LOST), GONE_SECONDS)
    made(ANEW, name_server, bootstrap={"fromBackup": {"snapshot": {"name": BACKUP}}}, brokerName=LOST)
    return compared(before, at_least, messages_of(ANEW, topic))


def compared(before: list[StoredMessage], at_least: Counter[str], restored: list[StoredMessage]) -> Seen:
    """Raise CheckError unless the new group has the lost one's log up to one offset, each message as often, and not all of it."""
    found = Counter(key_of(one) for one in restored)
    last = max((one.physical_offset for one in restored), default=-1)
    expected = Counter(key_of(one) for one in before if one.physical_offset <= last)
    expect(found == expected, f"of {len(expected)} messages up to {last} the new group has {len(found)}")
    expect(len(found) < len(before), "no message came after the backup: the load did not go on")
    lost = sorted(key for key, times in at_least.items() if found[key] != times)
    return Seen(len(at_least), len(found), lost)


def made(name: str, name_server: str, **spec: Any) -> None:
    """Apply a group of three on volumes of the driver, its commit logs on volumes of their own, and wait until it is Ready."""
    volume = {"size": "2Gi", "storageClassName": CLASS}
    whole = {
        "replicas": 3,
        "nameServers": [name_server],
        "storage": {**volume, "commitLog": volume, "retention": {"whenDeleted": "Delete"}},
        **SMALL_BROKERS,
        **spec,
    }
    group = {"apiVersion": "brokergroup.dev/v1beta1", "kind": "BrokerGroup", "metadata": {"name": name}, "spec": whole}
    kubectl("apply", "-f", "-", stdin=yaml.safe_dump(group))
    began = time.monotonic()

    def is_ready() -> bool:
        found = get("brokergroup", name)
        stalled = condition(found, "Stalled")
        # A pod that waits for its volume stalls the group for a moment; a spec that can't be carried out for good.
        if (stalled.get("status"), stalled.get("reason")) == ("True", "InvalidSpec"):
            raise CheckError(f"{name} is Stalled: {stalled['message']}")
        status = found.get("status") or {}
        return condition(found, "Ready").get("status") == "True" and status.get("inSyncReplicas") == 3

    until(f"{name} is Ready with three in sync", is_ready, READY_SECONDS, 1.0)
    say(f"  {name}: ready after {time.monotonic() - began:.1f} s")


def backed_up() -> dict[str, Any]:
    """Ask for the Backup once the group is FailoverSafe, and return its status at its end. Raise CheckError if it fails."""
    safe = ("--for=condition=FailoverSafe", f"brokergroup/{LOST}", "--timeout=60s")
    kubectl("wait", *safe, seconds=70)
    spec = {"brokerGroupRef": {"name": LOST}, "type": "Backup", "backup": {"snapshot": {"className": CLASS}}}
    kind = {"apiVersion": "brokergroup.dev/v1beta1", "kind": "BrokerGroupOperation"}
    kubectl("create", "-f", "-", stdin=yaml.safe_dump({**kind, "metadata": {"name": BACKUP}, "spec": spec}))
    waited: list[str] = []

    def ended() -> dict[str, Any]:
        status: dict[str, Any] = get("brokergroupoperation", BACKUP).get("status") or {}
        message = (status.get("result") or {}).get("message", "")
        if message not in waited:
            waited.append(message)
            say(f"  backup: {message}")
        return status if status.get("completedAt") else {}

    status: dict[str, Any] = until("the backup has ended", ended, BACKUP_SECONDS)
    expect(status["phase"] == "Succeeded", f"the backup is {status['phase']}: {status['result']['message']}")
    snapshots = {one["metadata"]["name"]: one for one in get("volumesnapshots")["items"]}
    expect(sorted(snapshots) == [BACKUP, f"{BACKUP}-commitlog"], f"the VolumeSnapshots are {sorted(snapshots)}")
    return status


def forget_volumes() -> None:
    """Wait until the driver's volumes are gone; from those that stay take the finalizers, which nothing would take off later."""

    def volumes() -> list[str]:
        found = get("persistentvolumes")["items"]
        return [one["metadata"]["name"] for one in found if one["spec"].get("storageClassName") == CLASS]

    with contextlib.suppress(NodeError):
        until("the driver's volumes are gone", lambda: not volumes(), VOLUMES_GONE_SECONDS)
    for name in volumes():
        kubectl_run("delete", "persistentvolume", name, "--wait=false")
        kubectl_run("patch", "persistentvolume", name, "--type=merge", "-p", '{"metadata":{"finalizers":null}}')


def claims_of(group: str) -> list[str]:
    found = get("persistentvolumeclaims", "-l", f"{LABEL_BROKER_GROUP}={group}")["items"]
    return [one["metadata"]["name"] for one in found]


def master_of(group: str) -> str:
    """The address of its master, by the role label."""
    pods = get("pods", "-l", f"{LABEL_BROKER_GROUP}={group},{LABEL_ROLE}={ROLE_MASTER}")["items"]
    expect(len(pods) == 1, f"{group} has {len(pods)} pods with the role of the master, expected 1")
    return join_address(pods[0]["status"]["podIP"], 10911)


def messages_of(group: str, topic: str) -> list[StoredMessage]:
    return asyncio.run(read_messages(master_of(group), topic, QUEUES))


@contextlib.contextmanager
def served() -> Iterator[None]:
    """Serve the driver's classes and VolumeSnapshots until the block ends."""
    folder = csi_folder()
    objects = yaml.safe_dump_all(_objects())
    for file in sorted(folder.glob("*.yaml")):
        kubectl("apply", "--server-side", "-f", str(file))
    kubectl("wait", "--for=condition=Established", "customresourcedefinition/volumesnapshots.snapshot.storage.k8s.io")
    kubectl("apply", "-f", "-", stdin=objects)
    try:
        _start(folder)
        yield
    finally:
        kubectl("delete", "-f", "-", "--ignore-not-found", "--timeout=60s", stdin=objects, seconds=70)
        end(*SIDECARS, *(f"csi{node.number}" for node in nodes()))
        for node in nodes():
            (node.folder / "kubelet" / "plugins_registry" / "folders.sock").unlink(missing_ok=True)
        for file in sorted(folder.glob("*.yaml")):
            kubectl("delete", "-f", str(file), "--ignore-not-found", "--timeout=60s", seconds=70)


def _start(folder: Path) -> None:
    for node in nodes():
        options = {
            "folder": state_folder() / "csi",
            "socket": node.folder / "csi.sock",
            "node": node.name,
            "registry": node.folder / "kubelet" / "plugins_registry",
        }
        start(f"csi{node.number}", [str(folder / "driver"), *(f"--{key}={value}" for key, value in options.items())])
    # Both drivers see all volumes: one of them is asked.
    socket = nodes()[0].folder / "csi.sock"
    wait_for("csi1", "listening", socket.exists)
    for name in SIDECARS:
        address = [] if name == "snapshot-controller" else [f"--csi-address={socket}"]
        start(name, [str(folder / name), f"--kubeconfig={kubeconfig()}", *address])
    until("both kubelets know the driver", _is_registered, 60.0)


def _is_registered() -> bool:
    found = get("csinodes")["items"]
    known = [one for one in found if any(of["name"] == DRIVER for of in one["spec"].get("drivers") or [])]
    return len(known) == len(nodes())


def _objects() -> list[dict[str, Any]]:
    driver = {"attachRequired": True, "podInfoOnMount": False, "fsGroupPolicy": "File"}
    return [
        {"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": DRIVER}, "spec": driver},
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": CLASS},
            "provisioner": DRIVER,
            "volumeBindingMode": "Immediate",
        },
        {
            "apiVersion": "snapshot.storage.k8s.io/v1",
            "kind": "VolumeSnapshotClass",
            "metadata": {"name": CLASS},
            "driver": DRIVER,
            "deletionPolicy": "Delete",
        },
    ]
