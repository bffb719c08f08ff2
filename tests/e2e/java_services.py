"""Services in the Java house, where no kube-proxy runs.

The kernel redirects a pod's connection to a pod that the Service selects, as with kube-proxy: the broker sees the calling
pod's address. For clients on the host the sandbox's own relay does it. The rules are in the pods' namespaces and the addresses
on the tests' bridge, so they end with them.
"""

from __future__ import annotations

import asyncio
import ipaddress
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from brokergroup_operator.kube.reflector import Reflector
from brokergroup_operator.kube.resources import PODS, SERVICES
from kube_sandbox.services import ServiceCarrier, addresses_of, is_endpoint, target_port
from tests.support.kube_apiserver import SERVICE_CIDR

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from tests.real.clusters import Cluster

CLUSTER_IPS = ipaddress.IPv4Network(SERVICE_CIDR)
COMMAND_SECONDS = 20.0
# A Service without a pod refuses connections.
TABLE = """add table ip services
add chain ip services calls {{ type nat hook output priority -100; }}
add chain ip services nobody {{ type filter hook output priority 0; }}
flush table ip services
{calls}
add rule ip services nobody ct state new ip daddr {cluster_ips} reject
"""


class PodRules:
    """Keeps the rules in each pod's namespace, and the Services' addresses on the bridge, in step with the API."""

    def __init__(self, cluster: Cluster) -> None:
        self._changed = asyncio.Event()
        self._node_ip, self._bridge = cluster.node_ip, cluster.bridge
        self._services = Reflector(cluster.api, SERVICES, on_change=lambda _: self._changed.set())
        self._pods = Reflector(cluster.api, PODS, on_change=lambda _: self._changed.set())
        self._given: dict[str, str] = {}
        self._held: set[str] = set()

    async def run(self) -> None:
        watches = [asyncio.create_task(one.run()) for one in (self._services, self._pods)]
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                await self._hold_addresses()
                await self._give_rules()
        finally:
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)

    async def _hold_addresses(self) -> None:
        wanted = {host for one in self._services.objects.values() for host, _, _ in self._addresses_of(one)}
        wanted.discard(self._node_ip)
        for verb, addresses in (("del", self._held - wanted), ("add", wanted - self._held)):
            for address in addresses:
                assert await _run("ip", "address", verb, f"{address}/32", "dev", self._bridge)
        self._held = wanted

    def _addresses_of(self, service: dict[str, Any]) -> Iterator[tuple[str, int, dict[str, Any]]]:
        return addresses_of(service, node_ip=self._node_ip, cluster_ips=CLUSTER_IPS)

    async def _give_rules(self) -> None:
        pods = {ip: pod for pod in self._pods.objects.values() if (ip := _own_ip(pod))}
        rules = TABLE.format(calls="\n".join(self._calls(pods.values())), cluster_ips=CLUSTER_IPS)
        for ip in pods:
            # A pod that ends meanwhile has no namespace any more.
            if self._given.get(ip) != rules and await self._in_namespace(ip, "nft", "-f", "-", stdin=rules):
                self._given[ip] = rules

    async def _in_namespace(self, ip: str, *command: str, stdin: str) -> bool:
        return await _run("ip", "netns", "exec", f"{self._bridge}-{ip}", *command, stdin=stdin)

    def _calls(self, pods: Iterable[dict[str, Any]]) -> Iterator[str]:
        for service in self._services.objects.values():
            for host, number, port in self._addresses_of(service):
                behind = next((pod for pod in pods if is_endpoint(service, pod)), None)
                found = target_port(behind, port.get("targetPort", port["port"])) if behind else None
                if behind and found:
                    called = f"ip daddr {host} {port.get('protocol', 'TCP').lower()} dport {number}"
                    yield f"add rule ip services calls {called} dnat to {behind['status']['podIP']}:{found}"


def _own_ip(pod: dict[str, Any]) -> str:
    """Return the pod's IP unless it has ended."""
    status = pod.get("status") or {}
    return "" if status.get("phase") in {"Failed", "Succeeded"} else str(status.get("podIP") or "")


async def _run(*command: str, stdin: str = "") -> bool:
    process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE)
    async with asyncio.timeout(COMMAND_SECONDS):
        await process.communicate(stdin.encode())
    return process.returncode == 0


@asynccontextmanager
async def carried_services(cluster: Cluster) -> AsyncIterator[None]:
    """Carry all Services for the length of a block."""
    carrier = ServiceCarrier(cluster.kubelet_api, node_ip=cluster.node_ip, cluster_ips=CLUSTER_IPS)
    tasks = [asyncio.create_task(one.run()) for one in (carrier, PodRules(cluster))]
    try:
        yield
    finally:
        broken = [task.exception() for task in tasks if task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not broken, broken
