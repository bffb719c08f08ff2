"""Where a pod's address comes from. Every pod start gets a new one, as in a cluster: an address is never an identity.

Loopback mode needs no rights: each pod gets a random address of 127.64.0.0/10 and binds it through ``POD_IP``. An abstract socket
holds each address in use, so that two sandboxes on one machine never hand out the same one.

As root a pod may have a network namespace on a bridge: for programs that bind a fixed port on the wildcard address, and for tests
that cut a pod off. Their addresses are few, so they come in turn, and the position is on disk: a restarted kubelet goes on.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import random
import socket
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

LOOPBACK_PODS = ipaddress.IPv4Network("127.64.0.0/10")


@dataclass(frozen=True, slots=True)
class PodAddress:
    """A pod's address; ``command_prefix`` starts a program in its network namespace."""

    ip: str
    command_prefix: tuple[str, ...] = ()


class PodNetworkError(Exception):
    """A pod cannot get an address or a namespace; the message says why."""


class AddressesUsedUpError(PodNetworkError):
    """Every address of the pods' network is in use."""


class LoopbackNetwork:
    """Pods on addresses of 127.64.0.0/10."""

    def __init__(self, network: ipaddress.IPv4Network = LOOPBACK_PODS) -> None:
        self._network = network
        self._held: dict[str, socket.socket] = {}

    @property
    def node_ip(self) -> str:
        """Pods reach the host on the loopback address."""
        return "127.0.0.1"

    async def open(self) -> None:
        """Nothing is to be made."""

    async def attach(self, pod_uid: str) -> PodAddress:
        """Return an address that no sandbox on this machine holds."""
        count = self._network.num_addresses - 2
        start = random.randrange(count)  # noqa: S311 (spreads sandboxes and starts apart, no secret)
        for offset in range(count):
            address = str(self._network[1 + (start + offset) % count])
            hold = hold_name(f"kube-sandbox-pod-{address}")
            if hold is not None:
                self._held[pod_uid] = hold
                return PodAddress(ip=address)
        raise AddressesUsedUpError(f"all {count} addresses of {self._network} are in use by running pods")

    async def detach(self, pod_uid: str) -> None:
        """Release the address."""
        if pod_uid in self._held:
            self._held.pop(pod_uid).close()

    async def close(self) -> None:
        """Release all addresses."""
        for pod_uid in list(self._held):
            await self.detach(pod_uid)


def hold_name(name: str) -> socket.socket | None:
    """Claim a name on this machine; None if another process has it. An abstract socket lives as long as its process."""
    hold = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        hold.bind(f"\0{name}")
    except OSError:
        hold.close()
        return None
    return hold


DEFAULT_BRIDGE = "bgk0"
DEFAULT_SUBNET = ipaddress.IPv4Network("10.88.0.0/24")
LONGEST_BRIDGE_NAME = 8  # an interface name has 15 characters; ours add a dot and a number
COMMAND_SECONDS = 10.0


class AddressCounter:
    """Hands out a network's addresses in turn. The position is in a file, written before an address is handed out."""

    def __init__(self, network: ipaddress.IPv4Network, file: Path) -> None:
        self._network = network
        self._file = file
        # The first one is the network's, the second one the bridge's, the last one the broadcast address.
        self._first, self._count = 2, network.num_addresses - 3

    def next_address(self, in_use: set[str]) -> str:
        """Return the next address that is not in use."""
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


class NetworkNamespaces:
    """Pods in namespaces ``<bridge>-<address>``; the host is the subnet's first address."""

    def __init__(
        self, state_file: Path, *, bridge: str = DEFAULT_BRIDGE, subnet: ipaddress.IPv4Network = DEFAULT_SUBNET
    ) -> None:
        if not 0 < len(bridge) <= LONGEST_BRIDGE_NAME:
            raise ValueError(f"bridge is {bridge!r}, expected a name of 1 to {LONGEST_BRIDGE_NAME} characters")
        self._bridge = bridge
        self._subnet = subnet
        self._counter = AddressCounter(subnet, state_file)
        self._addresses: dict[str, str] = {}
        self._hold: socket.socket | None = None

    @property
    def node_ip(self) -> str:
        """The bridge's address, where pods reach the host."""
        return str(self._subnet[1])

    async def open(self) -> None:
        """Remove what an earlier run left, make the bridge."""
        if os.geteuid() != 0:
            raise PodNetworkError("network namespaces need root; use the loopback network instead")
        self._hold = hold_name(f"kube-sandbox-bridge-{self._bridge}")
        if self._hold is None:
            raise PodNetworkError(f"bridge {self._bridge!r} is used by another kubelet: give this one another name")
        await self._remove_all()
        await self._check_subnet_is_free()
        await _ip(
            f"link add {self._bridge} type bridge",
            f"addr add {self.node_ip}/{self._subnet.prefixlen} dev {self._bridge}",
            f"link set {self._bridge} up",
        )

    async def attach(self, pod_uid: str) -> PodAddress:
        """Make a namespace with one interface, ``eth0``, and the next free address."""
        address = self._counter.next_address(set(self._addresses.values()))
        self._addresses[pod_uid] = address
        try:
            return await self._make(address)
        except PodNetworkError:
            # The next attempt takes another address, so nothing of this one may stay.
            with suppress(PodNetworkError):
                await self.detach(pod_uid)
            raise

    async def _make(self, address: str) -> PodAddress:
        namespace, link = self._names(address)
        await _ip(
            f"netns add {namespace}",
            f"link add {link} type veth peer name eth0 netns {namespace}",
            f"link set {link} master {self._bridge} up",
        )
        await _ip(
            "link set lo up",
            f"addr add {address}/{self._subnet.prefixlen} dev eth0",
            "link set eth0 up",
            f"route add default via {self.node_ip}",
            namespace=namespace,
        )
        # nsenter execs the program, so signals reach the container's own process.
        prefix = ("nsenter", f"--net=/run/netns/{namespace}", "--")
        return PodAddress(ip=address, command_prefix=prefix)

    async def detach(self, pod_uid: str) -> None:
        """Remove the namespace and its link."""
        address = self._addresses.pop(pod_uid, None)
        if address is not None:
            namespace, link = self._names(address)
            # Removing the namespace removes the link too, but only later.
            await _ip(f"link del {link}", f"netns del {namespace}")

    async def close(self) -> None:
        """Remove everything."""
        if self._hold is not None:
            await self._remove_all()
            self._addresses.clear()
            self._hold.close()
            self._hold = None

    def namespace_of(self, address: str) -> str:
        """Return the namespace of a pod of ours with this address."""
        return self._names(address)[0]

    def _names(self, address: str) -> tuple[str, str]:
        number = int(ipaddress.IPv4Address(address)) - int(self._subnet.network_address)
        return f"{self._bridge}-{address}", f"{self._bridge}.{number}"

    async def _remove_all(self) -> None:
        links = {link["ifname"] for link in await _ip_json("link", "show")}
        ours = [name for name in links if name.startswith(f"{self._bridge}.")]
        if ours:
            await _ip(*(f"link del {name}" for name in ours))
        namespaces = [entry["name"] for entry in await _ip_json("netns", "list")]
        left = [name for name in namespaces if name.startswith(f"{self._bridge}-")]
        if left:
            await _ip(*(f"netns del {name}" for name in left))
        if self._bridge in links:
            await _ip(f"link del {self._bridge}")

    async def _check_subnet_is_free(self) -> None:
        for link in await _ip_json("-4", "addr", "show"):
            for entry in link.get("addr_info", []):
                other = ipaddress.IPv4Network(f"{entry['local']}/{entry['prefixlen']}", strict=False)
                if other.overlaps(self._subnet):
                    raise PodNetworkError(
                        f"subnet {self._subnet} overlaps {other} of interface {link['ifname']}: give another subnet"
                    )


# What the kubelet needs of a network: open and close, and attach and detach for each pod start.
PodNetwork = LoopbackNetwork | NetworkNamespaces


async def _ip(*commands: str, namespace: str | None = None) -> None:
    where = () if namespace is None else ("-n", namespace)
    await _run("ip", *where, "-batch", "-", stdin="\n".join(commands))


async def _ip_json(*arguments: str) -> list[dict[str, Any]]:
    output = await _run("ip", "-j", *arguments)
    found: list[dict[str, Any]] = json.loads(output or "[]")
    return found


async def _run(*arguments: str, stdin: str = "") -> str:
    """Run a command and return its output; PodNetworkError if it cannot be started, takes too long, or fails."""
    what = f"{' '.join(arguments)} ({stdin!r})"
    # A file, not a pipe: uvloop raises RuntimeError if the command ends before the pipe is written.
    with tempfile.TemporaryFile() as commands:
        commands.write(stdin.encode())
        commands.seek(0)
        try:
            process = await asyncio.create_subprocess_exec(
                *arguments, stdin=commands, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
            )
        except OSError as error:
            raise PodNetworkError(f"{what}: {error}") from error
    try:
        async with asyncio.timeout(COMMAND_SECONDS):
            output, errors = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise PodNetworkError(f"{what}: no answer within {COMMAND_SECONDS:g} s") from None
    if process.returncode != 0:
        raise PodNetworkError(f"{what}: {errors.decode().strip()}")
    return output.decode()
