"""Ports and networks for programs of tests, claimed for the whole machine: several test processes run at once.

A claim is an abstract socket, as for the sandbox's pod addresses: it ends with its process in any case.
"""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kube_sandbox.kubelet.network import hold_name

if TYPE_CHECKING:
    from collections.abc import Iterator

# Below Linux's range for ports of outgoing connections, which could otherwise take a port before its owner does.
# From 30000 on are Kubernetes' node ports.
FIRST_PORT, END_OF_PORTS = 20000, 30000
NETWORKS = 64
# Blocks of 127.32.0.0/12, below the addresses of the sandbox's pods and Services.
FIRST_BLOCK, BLOCKS = 32, 4000


class NoPlaceError(Exception):
    """All ports or networks of the tests are in use."""


def free_port(host: str = "127.0.0.1", *, neighbours: int = 0) -> int:
    """Return a port for a program of this test process, with as many ports below it; no other test process gets them.

    A program that can bind port 0 and report its port needs no claim. Java's cannot, and an operator that is
    restarted at its former address cannot either. A Java broker also uses its port minus two.
    """
    first = FIRST_PORT + os.getpid() * 37 % 8000  # neighbouring processes start at distant ports
    for port in itertools.chain(range(first, END_OF_PORTS), range(FIRST_PORT, first)):
        if _claim_ports(host, range(port - neighbours, port + 1)):
            return port
    raise NoPlaceError(f"no free port on {host} from {FIRST_PORT} to {END_OF_PORTS}")


def _claim_ports(host: str, ports: range) -> bool:
    """Claim all ports until this process ends, or none."""
    holds: list[socket.socket] = []
    for port in ports:
        hold = hold_name(f"brokergroup-tests-port-{port}")
        if hold is not None:
            holds.append(hold)
        if hold is None or not _can_bind(host, port):
            for one in holds:
                one.close()
            return False
    for one in holds:
        one.detach()  # open until this process ends
    return True


def _can_bind(host: str, port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def loopback_hosts(count: int) -> list[str]:
    """Return loopback addresses, at most 250, that no other test process gets; claimed until this process ends."""
    first = os.getpid() * 37
    for block in (number % BLOCKS for number in range(first, first + BLOCKS)):
        if (hold := hold_name(f"brokergroup-tests-hosts-{block}")) is not None:
            hold.detach()  # open until this process ends
            return [f"127.{FIRST_BLOCK + block // 250}.{block % 250}.{place}" for place in range(1, count + 1)]
    raise NoPlaceError(f"all {BLOCKS} blocks of loopback addresses of the tests are in use")


def fresh_hosts() -> Iterator[str]:
    """Yield such addresses, each once."""
    while True:
        yield from loopback_hosts(250)


@dataclass(frozen=True)
class PodNetworkPlace:
    """The bridge and the subnet of one process kubelet that gives each pod a network namespace."""

    bridge: str
    subnet: ipaddress.IPv4Network


@contextlib.contextmanager
def pod_network_place() -> Iterator[PodNetworkPlace]:
    """Claim one that no other test process has. The next kubelet on that bridge removes a dead process's leftovers."""
    for number in range(NETWORKS):
        with contextlib.ExitStack() as stack:
            hold = hold_name(f"brokergroup-tests-network-{number}")
            if hold is None:
                continue
            stack.callback(hold.close)
            yield PodNetworkPlace(f"bgtest{number}", ipaddress.IPv4Network(f"10.89.{number}.0/24"))
            return
    raise NoPlaceError(f"all {NETWORKS} pod networks of the tests are in use")
