"""One node: containerd, kubelet and kube-proxy in a network namespace, its pods in cgroups of their own."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from pathlib import Path

import yaml

from tests.node.places import CLUSTER_DOMAIN, HOST_ADDRESS, POD_RANGE, POD_RANGE_6, Node, kubeconfig
from tests.node.processes import (
    NodeError,
    Process,
    command,
    command_line,
    end,
    kill_processes,
    process_of,
    start,
    started,
    wait_for,
)
from tests.real.parts import install

CGROUPS = Path("/sys/fs/cgroup")
# Of 1024 that any other process of this machine has: pods without requests have 2 within their node, and would get no time at
# all beside a busy test.
CPU_SHARES = "65536"
PAUSE_IMAGE = "localhost/pause:1"
# No AppArmor here, and to lower oom_score_adj is not permitted inside a container: without the two every sandbox fails.
CONTAINERD_TOML = """\
version = 2
root = "{store}"
state = "{folder}/containerd-state"
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "{runc}"
"""


def start_containerd(node: Node) -> None:
    """With the images of the cluster before, if that one left nothing but images."""
    clean_mark = node.store / "only-images"
    if not clean_mark.exists():
        shutil.rmtree(node.store, ignore_errors=True)
    clean_mark.unlink(missing_ok=True)
    make_cgroups(node)
    write_settings(node)
    start(f"containerd{node.number}", [*node.enter, "containerd", "--config", str(node.folder / "containerd.toml")])
    wait_for(f"containerd{node.number}", "answering", lambda: node.socket.exists() and answers(node))


def answers(node: Node) -> bool:
    try:
        ctr(node, "version")
    except NodeError:
        return False
    return True


def ctr(node: Node, *arguments: str, seconds: float = 180.0) -> str:
    """containerd's own client, in the namespace of the pods."""
    return command("ctr", "--address", str(node.socket), "--namespace", "k8s.io", *arguments, seconds=seconds)


def start_kubelet(node: Node) -> None:
    kubelet = {
        "kubeconfig": kubeconfig(node.name),
        "config": node.folder / "kubelet.yaml",
        "root-dir": node.folder / "kubelet",
        "cert-dir": node.folder / "kubelet-pki",
        "hostname-override": node.name,
        "node-ip": f"{node.address},{node.address_6}",
    }
    proxy = {
        "kubeconfig": kubeconfig("proxy"),
        "proxy-mode": "nftables",
        "conntrack-max-per-core": 0,
        "hostname-override": node.name,
        "healthz-bind-address": "127.0.0.1:10256",
        "metrics-bind-address": "127.0.0.1:10249",
        "cluster-cidr": f"{POD_RANGE},{POD_RANGE_6}",
    }
    for name, program, options in (("kubelet", "kubelet", kubelet), ("proxy", "kube-proxy", proxy)):
        arguments = [f"--{option}={value}" for option, value in options.items()]
        start(f"{name}{node.number}", [*node.enter, str(install.node_folder() / program), *arguments])


def make_cgroups(node: Node) -> None:
    """A root of its own in each hierarchy; in cpuset nothing runs before processors and memory are named."""
    if (CGROUPS / "cgroup.controllers").exists():
        raise NodeError("this machine has cgroup v2 alone: expected v1 or hybrid, where the nodes have been tried")
    for hierarchy in CGROUPS.iterdir():
        if hierarchy.is_dir() and not hierarchy.is_symlink():
            (hierarchy / node.namespace).mkdir(exist_ok=True)
    (CGROUPS / "cpu" / node.namespace / "cpu.shares").write_text(CPU_SHARES)
    for name in ("cpuset.cpus", "cpuset.mems"):
        (CGROUPS / "cpuset" / node.namespace / name).write_text((CGROUPS / "cpuset" / name).read_text())


def write_settings(node: Node) -> None:
    (node.folder / "cni").mkdir(parents=True, exist_ok=True)
    (node.folder / "cni" / "10-pods.conflist").write_text(json.dumps(cni_settings(node)), encoding="utf-8")
    (node.folder / "kubelet.yaml").write_text(yaml.safe_dump(kubelet_settings(node)), encoding="utf-8")
    text = CONTAINERD_TOML.format(
        folder=node.folder,
        store=node.store,
        socket=node.socket,
        pause=PAUSE_IMAGE,
        runc=shutil.which("runc") or "/usr/sbin/runc",
    )
    (node.folder / "containerd.toml").write_text(text, encoding="utf-8")


def cni_settings(node: Node) -> dict[str, object]:
    addresses = {
        "type": "host-local",
        "dataDir": str(node.folder / "addresses"),
        "ranges": [[{"subnet": node.pod_range}], [{"subnet": node.pod_range_6}]],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
    }
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": False, "hairpinMode": True}
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [{**bridge, "ipam": addresses}, {"type": "loopback"}]}


def kubelet_settings(node: Node) -> dict[str, object]:
    """Its defaults, but for what a machine of this kind cannot do."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{node.namespace}",
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "containerRuntimeEndpoint": f"unix://{node.socket}",
        "failSwapOn": False,
        "evictionHard": {},
        "enforceNodeAllocatable": ["pods"],
        "localStorageCapacityIsolation": False,
        "resolvConf": "",
        "clusterDomain": CLUSTER_DOMAIN,
        "clusterDNS": [HOST_ADDRESS],
        "podLogsDir": str(node.folder / "pod-logs"),
        "makeIPTablesUtilChains": False,
    }


def pod_processes(node: Node) -> list[Process]:
    """Return the processes in the node's cgroups: exactly those of its containers."""
    pids: set[int] = set()
    for file in CGROUPS.glob(f"*/{node.namespace}/**/cgroup.procs"):
        try:
            pids |= {int(line) for line in file.read_text().split()}
        except OSError:
            continue
    return [process for pid in sorted(pids) if (process := process_of(pid)) is not None]


def shims(node: Node) -> list[Process]:
    """containerd's helpers, one for each pod: they outlive containerd, and name its socket."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    ours = [pid for pid in pids if "containerd-shim" in (line := command_line(pid)) and str(node.socket) in line]
    return [process for pid in ours if (process := process_of(pid)) is not None]


def stop(node: Node) -> None:
    """kubelet and kube-proxy first, else they would begin again what is ended."""
    end(f"kubelet{node.number}", f"proxy{node.number}")
    kill_processes(pod_processes(node))
    only_images = started(f"containerd{node.number}") is not None and forget_containers(node)
    end(f"containerd{node.number}")
    kill_processes(pod_processes(node))
    kill_processes(shims(node))
    if only_images:
        for folder in ("sandboxes", "containers"):
            shutil.rmtree(node.store / "io.containerd.grpc.v1.cri" / folder, ignore_errors=True)
        (node.store / "only-images").touch()


def forget_containers(node: Node) -> bool:
    """Have containerd delete every container that ran; whether it did."""
    for task in ctr(node, "tasks", "list", "--quiet").split():
        # Its shim may have deleted it meanwhile.
        with contextlib.suppress(NodeError):
            ctr(node, "tasks", "delete", "--force", task)
    try:
        containers = ctr(node, "containers", "list", "--quiet").split()
        if containers:
            ctr(node, "containers", "delete", *containers)
    except NodeError as error:
        print(f"{node.name}: its images are unpacked anew the next time: {error}", file=sys.stderr)
        return False
    return True


def remove_cgroups(node: Node) -> None:
    """Remove the cgroups, children first."""
    for root in CGROUPS.glob(f"*/{node.namespace}"):
        folders = [folder for folder in root.glob("**/") if folder != root]
        for folder in [*sorted(folders, key=lambda path: len(path.parts), reverse=True), root]:
            folder.rmdir()
