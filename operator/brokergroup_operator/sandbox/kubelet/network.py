"""Where a pod's address comes from. Every pod start gets a new one, as in a cluster: an address is never an identity.

Loopback mode needs no rights: all of 127.0.0.0/8 is local, so each pod gets an address of 127.64.0.0/10 and is told by
``POD_IP`` to bind it. The counter is kept on disk, so that a restarted kubelet goes on instead of handing out the addresses
of yesterday's brokers; it begins at a random place, and each address in use is held by an abstract socket, so that two
sandboxes on one machine never hand out the same one.
"""

from __future__ import annotations

import ipaddress
import random
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path

LOOPBACK_PODS = ipaddress.IPv4Network("127.64.0.0/10")


@dataclass(frozen=True, slots=True)
class PodAddress:
    """A pod's place in the network; ``command_prefix`` starts a program inside it."""

    ip: str
    command_prefix: tuple[str, ...] = ()
    network_namespace: str | None = None


class PodNetworkError(Exception):
    """A pod cannot be given its place in the network; the message says what is in the way."""


class AddressesUsedUpError(PodNetworkError):
    """Every address of the pods' network is in use."""


class PodNetwork(Protocol):
    """What the kubelet asks of a network."""

    @property
    def node_ip(self) -> str:
        """The node's own address, where pods reach the host."""

    async def open(self) -> None:
        """Make what all pods share, and remove what an earlier run left."""

    async def attach(self, pod_uid: str) -> PodAddress:
        """A fresh address for a pod that starts."""

    async def detach(self, pod_uid: str) -> None:
        """The pod is over; all its processes are gone."""

    async def close(self) -> None:
        """Remove everything made."""


class AddressCounter:
    """Hands out a network's addresses in turn, kept in a file: the next one is written before one is given out."""

    def __init__(self, network: ipaddress.IPv4Network, file: Path, *, skip_first: int = 1) -> None:
        self._network = network
        self._file = file
        self._first = skip_first
        self._count = network.num_addresses - 1 - skip_first  # the last one is the broadcast address

    def start_at_random(self) -> None:
        """Where nothing is written yet, begin anywhere."""
        if not self._file.exists():
            self._write(random.randrange(self._count))  # noqa: S311 (spreads sandboxes apart, no secret)

    def next_address(self, in_use: set[str]) -> str:
        """The next address that is not in use."""
        for _ in range(self._count):
            position = self._read() % self._count
            self._write((position + 1) % self._count)
            address = str(self._network[self._first + position])
            if address not in in_use:
                return address
        raise AddressesUsedUpError(f"all {self._count} addresses of {self._network} are in use by running pods")

    def _read(self) -> int:
        try:
            return int(self._file.read_text(encoding="ascii"))
        except FileNotFoundError:
            return 0

    def _write(self, position: int) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._file.with_suffix(".new")
        temporary.write_text(str(position), encoding="ascii")
        temporary.replace(self._file)


class LoopbackNetwork:
    """Pods on addresses of 127.64.0.0/10."""

    def __init__(self, state_file: Path, *, network: ipaddress.IPv4Network = LOOPBACK_PODS) -> None:
        self._counter = AddressCounter(network, state_file)
        self._held: dict[str, tuple[str, socket.socket]] = {}

    @property
    def node_ip(self) -> str:
        """Pods reach the host on the loopback address."""
        return "127.0.0.1"

    async def open(self) -> None:
        """Nothing is shared; only choose where to begin."""
        self._counter.start_at_random()

    async def attach(self, pod_uid: str) -> PodAddress:
        """The next address nobody on this machine holds."""
        in_use = {held for held, _ in self._held.values()}
        while True:
            address = self._counter.next_address(in_use)
            in_use.add(address)
            hold = hold_name(f"brokergroup-pod-{address}")
            if hold is not None:
                self._held[pod_uid] = (address, hold)
                return PodAddress(ip=address)

    async def detach(self, pod_uid: str) -> None:
        """Let go of the address."""
        held = self._held.pop(pod_uid, None)
        if held is not None:
            held[1].close()

    async def close(self) -> None:
        """Let go of all addresses."""
        for pod_uid in list(self._held):
            await self.detach(pod_uid)


def hold_name(name: str) -> socket.socket | None:
    """Claim a name on this machine, None if somebody has it: an abstract socket lives exactly as long as its process."""
    hold = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        hold.bind(f"\0{name}")
    except OSError:
        hold.close()
        return None
    return hold
