"""The nodes' network: a bridge, with a network namespace for each node behind its own cable.

Pods of a node are behind its own bridge `cni0`, inside its namespace; the others reach them by a route over the node's address,
as in a flat network; each has IPv4 and IPv6. The machine has an address on the bridge, so that its clients reach pods and pods
reach the API server.
"""

from __future__ import annotations

import ipaddress
import json
from pathlib import Path

from tests.node.places import BRIDGE, HOST_ADDRESS, HOST_ADDRESS_6, Node, nodes
from tests.node.processes import NodeError, command


def links() -> set[str]:
    return {entry["ifname"] for entry in json.loads(command("ip", "-json", "link"))}


def namespaces() -> set[str]:
    """Those that `ip netns` knows; CNI's for the pods are among them."""
    folder = Path("/run/netns")
    return {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()


def refuse_taken_ranges() -> None:
    """A machine that has a route into our addresses would answer in place of a pod."""
    ours = [ipaddress.ip_network(f"{HOST_ADDRESS}/24", strict=False)]
    ours += [ipaddress.ip_network(f"{HOST_ADDRESS_6}/64", strict=False)]
    ours += [ipaddress.ip_network(one) for node in nodes() for one in (node.pod_range, node.pod_range_6)]
    routes = [route for family in ("-4", "-6") for route in json.loads(command("ip", family, "-json", "route"))]
    for route in routes:
        if route["dst"] == "default" or route["dev"] == BRIDGE:
            continue
        taken = ipaddress.ip_network(route["dst"], strict=False)
        if any(taken.version == network.version and taken.overlaps(network) for network in ours):
            raise NodeError(f"this machine routes {route['dst']} to {route['dev']}: expected {ours} to be free")


def lay() -> None:
    """Make what is not there yet."""
    refuse_taken_ranges()
    if BRIDGE not in links():
        command("ip", "link", "add", BRIDGE, "type", "bridge")
    command("ip", "addr", "replace", f"{HOST_ADDRESS}/24", "dev", BRIDGE)
    command("ip", "addr", "replace", f"{HOST_ADDRESS_6}/64", "dev", BRIDGE, "nodad")
    command("ip", "link", "set", BRIDGE, "up")
    for node in nodes():
        lay_node(node)


def lay_node(node: Node) -> None:
    if node.namespace not in namespaces():
        command("ip", "netns", "add", node.namespace)
    if node.link not in links():
        command("ip", "link", "add", node.link, "type", "veth", "peer", "name", "eth0", "netns", node.namespace)
    command("ip", "link", "set", node.link, "master", BRIDGE, "up")
    command(*node.enter, "ip", "link", "set", "lo", "up")
    command(*node.enter, "ip", "addr", "replace", f"{node.address}/24", "dev", "eth0")
    command(*node.enter, "ip", "addr", "replace", f"{node.address_6}/64", "dev", "eth0", "nodad")
    command(*node.enter, "ip", "link", "set", "eth0", "up")
    command(*node.enter, "ip", "route", "replace", "default", "via", HOST_ADDRESS)
    command(*node.enter, "ip", "route", "replace", "default", "via", HOST_ADDRESS_6)
    command(*node.enter, "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
    command("ip", "route", "replace", node.pod_range, "via", node.address)
    command("ip", "route", "replace", node.pod_range_6, "via", node.address_6)
    for other in nodes():
        if other != node:
            command(*node.enter, "ip", "route", "replace", other.pod_range, "via", other.address)
            command(*node.enter, "ip", "route", "replace", other.pod_range_6, "via", other.address_6)


def cut(node: Node) -> None:
    """Pull the node's cable."""
    command("ip", "link", "set", node.link, "down")


def heal(node: Node) -> None:
    command("ip", "link", "set", node.link, "up")


def take_away() -> None:
    """The routes go with the bridge."""
    there = namespaces()
    for node in nodes():
        if node.link in links():
            command("ip", "link", "delete", node.link)
        if node.namespace in there:
            command("ip", "netns", "delete", node.namespace)
    if BRIDGE in links():
        command("ip", "link", "delete", BRIDGE)
