"""Folders, names and addresses of the two nodes.

One cluster at a time fits on a machine: bridge, namespaces and cgroups have fixed names, so that a run that was killed can be
cleaned up by the next one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tests.real.parts.steps import cache_folder

REPOSITORY = Path(__file__).resolve().parents[2]
NODES = (1, 2)
BRIDGE = "bgnode"
SUBNET = "192.168.77"
HOST_ADDRESS = f"{SUBNET}.1"
API_PORT = 26443
POD_RANGE = "10.244.0.0/16"
SERVICE_RANGE = "10.96.0.0/16"
# Nodes, pods and, on request, Services have IPv6 too; IPv4 is the first family.
SUBNET_6 = "fd77::"
HOST_ADDRESS_6 = f"{SUBNET_6}1"
POD_RANGE_6 = "fd77:244::/48"
SERVICE_RANGE_6 = "fd77:96::/112"
CLUSTER_DOMAIN = "cluster.local"
VOLUMES_PER_NODE = 24


def state_folder() -> Path:
    """Return the folder of the running cluster: `$BROKERGROUP_NODE_FOLDER`, else one in the cache of parts."""
    return Path(os.environ.get("BROKERGROUP_NODE_FOLDER") or cache_folder() / "node")


def etcd_folder() -> Path:
    """In memory where that is possible: what is tried here is not the one disk that etcd would share with the brokers' logs."""
    memory = Path("/dev/shm")
    return memory / "brokergroup-node-etcd" if memory.is_mount() else state_folder() / "etcd"


def images_folder() -> Path:
    """Images that were built from a checkout, by what they were built from; they outlive a cluster."""
    return cache_folder() / "node-images"


@dataclass(frozen=True)
class Node:
    """One of the nodes: a network namespace, a cgroup and a folder."""

    number: int

    @property
    def name(self) -> str:
        return f"node{self.number}"

    @property
    def namespace(self) -> str:
        """Return the name of its network namespace and of the cgroups of its pods."""
        return f"{BRIDGE}{self.number}"

    @property
    def link(self) -> str:
        """The end of its cable at the bridge."""
        return f"{BRIDGE}v{self.number}"

    @property
    def address(self) -> str:
        return f"{SUBNET}.{10 + self.number}"

    @property
    def address_6(self) -> str:
        return f"{SUBNET_6}{10 + self.number}"

    @property
    def pod_range(self) -> str:
        return f"10.244.{self.number}.0/24"

    @property
    def pod_range_6(self) -> str:
        return f"fd77:244:0:{self.number}::/64"

    @property
    def folder(self) -> Path:
        return state_folder() / self.name

    @property
    def store(self) -> Path:
        """containerd's images: they stay for the next cluster, for to unpack and to delete them takes a minute."""
        return images_folder() / self.name

    @property
    def volumes(self) -> Path:
        return state_folder() / "volumes" / self.name

    @property
    def socket(self) -> Path:
        """Where its containerd answers."""
        return self.folder / "containerd.sock"

    @property
    def enter(self) -> tuple[str, ...]:
        """Runs a command on its network. `ip netns exec` would hide the cgroups: it mounts a /sys of its own."""
        return ("nsenter", f"--net=/run/netns/{self.namespace}")


def nodes() -> list[Node]:
    return [Node(number) for number in NODES]


def kubeconfig(identity: str = "admin") -> Path:
    return state_folder() / f"{identity}.kubeconfig"
