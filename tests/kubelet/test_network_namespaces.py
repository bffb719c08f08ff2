"""Pods in network namespaces of their own (root): standard ports, fresh addresses, nothing left behind."""

from __future__ import annotations

import ipaddress
import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from kube_sandbox.kubelet.network import NetworkNamespaces, PodNetworkError
from tests.kubelet.node_under_test import Node, is_ready, pod_object

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from brokergroup_operator.kube import KubernetesApi
    from kube_sandbox.client import KubeClient

pytestmark = pytest.mark.real("netns")

SUBNET = ipaddress.IPv4Network("10.88.241.0/28")
BRIDGE = "bgktest"
SERVE = "exec python3 -m http.server --bind 0.0.0.0 10911"
READY = {"readinessProbe": {"tcpSocket": {"port": 10911}, "periodSeconds": 1}}


def links_and_namespaces() -> list[str]:
    names = []
    for command in (["ip", "-j", "link"], ["ip", "-j", "netns"]):
        entries = json.loads(subprocess.run(command, check=True, capture_output=True).stdout or "[]")
        names += [entry.get("ifname") or entry["name"] for entry in entries]
    return [name for name in names if name.startswith(BRIDGE)]


@pytest.fixture
async def network(tmp_path: Path) -> AsyncIterator[NetworkNamespaces]:
    network = NetworkNamespaces(tmp_path / "next-address", bridge=BRIDGE, subnet=SUBNET)
    yield network
    await network.close()
    assert links_and_namespaces() == []


@pytest.fixture
async def node(
    api: KubernetesApi, client: KubeClient, kubeconfig: Path, tmp_path: Path, network: NetworkNamespaces
) -> AsyncIterator[Node]:
    node = Node(api, client, kubeconfig, tmp_path / "node", network)
    await node.kubelet.start()
    yield node
    await node.kubelet.stop()


async def test_two_pods_listen_on_the_same_port_and_reach_each_other_and_the_host(node: Node) -> None:
    await node.create(pod_object("a", SERVE, container=READY))
    await node.create(pod_object("b", SERVE, container=READY))
    a, b = await node.until("a", is_ready), await node.until("b", is_ready)
    addresses = [pod["status"]["podIP"] for pod in (a, b)]
    assert len(set(addresses)) == 2
    assert all(ipaddress.IPv4Address(address) in SUBNET for address in addresses)
    assert a["status"]["hostIP"] == "10.88.241.1"
    get = "import urllib.request, sys; print([urllib.request.urlopen(url).status for url in sys.argv[1:]])"
    urls = [f"http://{address}:10911/" for address in addresses]
    caller = {"command": ["python3", "-c", get], "args": urls}
    await node.create(pod_object("c", container=caller, restartPolicy="Never"))
    await node.until("c", lambda pod: pod["status"]["phase"] == "Succeeded")
    assert node.output("c") == "[200, 200]\n"


async def test_the_main_process_is_the_containers_own(node: Node) -> None:
    """SIGTERM must reach the program, not a wrapper around it."""
    script = "trap 'echo got SIGTERM; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    created = await node.create(pod_object("a", script))
    await node.until_output("a", "up")
    await node.delete("a")
    await node.until_gone("a", created["metadata"]["uid"])
    assert "got SIGTERM" in node.output("a")


async def test_addresses_are_fresh_and_namespaces_go_with_their_pods(node: Node) -> None:
    seen = []
    for _ in range(3):
        created = await node.create(pod_object("a"))
        pod = await node.until("a", is_ready)
        seen.append(pod["status"]["podIP"])
        await node.delete("a", 0)
        await node.until_gone("a", created["metadata"]["uid"])
    assert len(set(seen)) == 3


async def test_what_an_earlier_run_left_is_removed(tmp_path: Path, network: NetworkNamespaces) -> None:
    await network.open()
    await network.attach("uid")
    assert len(links_and_namespaces()) == 3
    assert network._hold is not None
    network._hold.close()  # as if the process had died
    network._hold = None
    again = NetworkNamespaces(tmp_path / "next-address", bridge=BRIDGE, subnet=SUBNET)
    await again.open()
    assert links_and_namespaces() == [BRIDGE]
    await again.close()


async def test_a_bridge_or_subnet_in_use_is_refused(tmp_path: Path, network: NetworkNamespaces) -> None:
    await network.open()
    with pytest.raises(PodNetworkError, match="used by another kubelet"):
        await NetworkNamespaces(tmp_path / "x", bridge=BRIDGE, subnet=SUBNET).open()
    other = NetworkNamespaces(tmp_path / "x", bridge="bgktes2", subnet=SUBNET)
    with pytest.raises(PodNetworkError, match=r"overlaps 10\.88\.241\.0/28"):
        await other.open()
    await other.close()
