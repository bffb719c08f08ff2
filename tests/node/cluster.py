"""Start and stop the whole cluster, with our image on its nodes and a namespace without privileged pods.

    python -m tests.node.cluster up        leaves it up, prints the KUBECONFIG
    python -m tests.node.cluster down      ends all processes by pid, also those that a killed run left

`up` on a running cluster only updates our image.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import yaml

from tests.node import control_plane, images, machine, network, worker
from tests.node.kubectl import get, kubectl, kubectl_run, until
from tests.node.places import REPOSITORY, VOLUMES_PER_NODE, etcd_folder, images_folder, kubeconfig, nodes, state_folder
from tests.node.processes import NodeError, end, started
from tests.real.parts import install
from tests.real.parts.steps import PartError

PARTS = (
    *("root", "netns", "nft", "openssl", "kube-apiserver", "etcd", "helm", "node-packages", "node-programs", "pause"),
    *(
        "coredns",
        "kube-router",
        "csi",
        "base-image",
        "rocketmq",
        "rocketmq-proxy",
        "rocketmq-image",
        "rocketmq-python-client",
    ),
)
OPERATOR_NAMESPACE, GROUPS_NAMESPACE = "brokergroup-system", "default"
RESTRICTED = ("pod-security.kubernetes.io/enforce=restricted", "pod-security.kubernetes.io/enforce-version=latest")
STORAGE_CLASS = "local"


def say(text: str) -> None:
    """Print progress to stderr: standard output has only the verdict."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def is_up() -> bool:
    """Whether every program of it runs."""
    wanted = [
        *control_plane.PROGRAMS,
        *(f"{name}{node.number}" for node in nodes() for name in ("containerd", "kubelet", "proxy")),
    ]
    return all(started(name) is not None for name in wanted)


def up(operator: Path | None = None) -> Path:
    """Bring it up, or our image into the one that is up; hand back our image's archive. Raises NodeError."""
    bring_parts()
    archive = operator or images.operator_archive()
    if not is_up():
        down()
        machine.remember()
        say("starting control plane and nodes")
        network.lay()
        with ThreadPoolExecutor(2) as side_by_side:
            plane = side_by_side.submit(control_plane.start_all)
            for node in nodes():
                worker.start_containerd(node)
            images.bring(archive)
            plane.result()
        for node in nodes():
            worker.start_kubelet(node)
        make_storage()
        make_namespaces()
        until("both nodes are Ready", nodes_are_ready)
    else:
        images.bring(archive)
    say(f"up: {', '.join(node.name for node in nodes())}; our image has {images.image_mib(archive)} MiB")
    return archive


def bring_parts() -> None:
    """Install parts that are missing in the cache; the first time that takes many minutes."""
    absent = [name for name in PARTS if install.missing(name) is not None]
    failed = install.bring_all(absent) if absent else {}
    if failed:
        raise NodeError("; ".join(f"part {name}: {why}" for name, why in failed.items()))


def nodes_are_ready() -> bool:
    found = get("nodes")["items"]
    ready = [one for one in found if {"type": "Ready", "status": "True"}.items() <= condition(one, "Ready").items()]
    return len(ready) == len(nodes())


def condition(thing: dict[str, object], name: str) -> dict[str, str]:
    """A condition of an object; empty where it has none of that name."""
    status = thing.get("status") or {}
    found: list[dict[str, str]] = status.get("conditions") or []  # type: ignore[attr-defined]
    return next((one for one in found if one["type"] == name), {})


def make_storage() -> None:
    """Volumes on each node's own disk, as the cheapest clusters have them: a pod that has one stays on its node."""
    objects: list[dict[str, object]] = [
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": STORAGE_CLASS, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
            "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer",
        }
    ]
    for node in nodes():
        for number in range(1, VOLUMES_PER_NODE + 1):
            folder = node.volumes / str(number)
            folder.mkdir(parents=True, exist_ok=True)
            objects.append(volume(f"{node.name}-{number}", folder, node.name))
    kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))


def volume(name: str, folder: Path, node: str) -> dict[str, object]:
    on_node = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "20Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": STORAGE_CLASS,
            "persistentVolumeReclaimPolicy": "Retain",
            "local": {"path": str(folder)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [on_node]}]}},
        },
    }


def make_namespaces() -> None:
    """The operator's and the groups' own, both with PodSecurity `restricted` enforced."""
    for namespace in (OPERATOR_NAMESPACE, GROUPS_NAMESPACE):
        if kubectl_run("get", "namespace", namespace).returncode != 0:
            kubectl("create", "namespace", namespace)
        kubectl("label", "--overwrite", "namespace", namespace, *RESTRICTED)
        until(
            f"namespace {namespace} has its service account",
            partial(_has_service_account, namespace),
        )


def _has_service_account(namespace: str) -> bool:
    return kubectl_run("-n", namespace, "get", "serviceaccount", "default").returncode == 0


def down() -> list[str]:
    """End all; return changed settings of the machine. Also works after a killed run."""
    with ThreadPoolExecutor(len(nodes())) as side_by_side:
        list(side_by_side.map(worker.stop, nodes()))
    end(*control_plane.PROGRAMS)
    unmount()
    network.take_away()
    unmount_namespaces()
    for node in nodes():
        worker.remove_cgroups(node)
    left = machine.put_back()
    for folder in (etcd_folder(), state_folder()):
        shutil.rmtree(folder, ignore_errors=True)
    return left


def unmount() -> None:
    """Volumes and containers' roots below our folder; and the network namespaces of pods, which CNI keeps as files."""
    mounted = [line.split()[1] for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    ours = [path for path in mounted if path.startswith((f"{state_folder()}/", f"{images_folder()}/"))]
    others = machine.remembered().get("network namespace", {})
    pods = sorted({path for path in mounted if path.startswith("/run/netns/cni-") and Path(path).name not in others})
    for path in [*sorted(ours, reverse=True), *pods]:
        subprocess.run(["umount", "--lazy", path], capture_output=True, check=False)
    for path in pods:
        Path(path).unlink(missing_ok=True)


def unmount_namespaces() -> None:
    """`ip netns` makes a mount of its own folder with the first namespace, and leaves it."""
    folder = "/run/netns"
    if folder not in machine.remembered().get("mount", {folder: ""}) and not network.namespaces():
        subprocess.run(["umount", folder], capture_output=True, check=False)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("up", "down"))
    options = parser.parse_args(arguments)
    try:
        if options.what == "down":
            left = down()
            print("\n".join(left), file=sys.stderr)
            return 1 if left else 0
        up()
    except (NodeError, PartError) as error:
        print(f"make node: {error}", file=sys.stderr)
        return 1
    programs = f"{install.kubernetes_folder()}:{install.helm_program().parent}:{REPOSITORY / '.venv' / 'bin'}"
    print(
        f'export KUBECONFIG={kubeconfig()}\nexport PATH="{programs}:$PATH"   # kubectl and helm of these versions, and our plugin'
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
