"""Carries the addresses of Services to their pods, as kube-proxy does, and gives load balancers an address.

The sandbox's API hands out cluster addresses of 127.128.0.0/9, which are all local. A listener on each port of each Service passes
a connection on to a pod of the selector, from the client's own address, so that the pod sees which client calls. A node port is a
listener at the node's address. TCP only. With pods in network namespaces only calls from the host arrive here.
"""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from kube_sandbox.client import PODS, SERVICES, ApiError, ObjectKey, Reflector, key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from kube_sandbox.client import JsonObject, KubeClient


log = structlog.get_logger(__name__)
CONNECT_SECONDS = 2.0
AGAIN_SECONDS = 0.5
CHUNK_BYTES = 1 << 16
# The addresses that the sandbox's API hands out.
LOOPBACK_SERVICES = ipaddress.IPv4Network("127.128.0.0/9")


class ServiceCarrier:
    """Run ``run()`` as a task beside the kubelet; its end closes every listener and connection."""

    def __init__(
        self, api: KubeClient, *, node_ip: str, cluster_ips: ipaddress.IPv4Network = LOOPBACK_SERVICES
    ) -> None:
        self._api = api
        self._node_ip = node_ip
        self._cluster_ips = cluster_ips
        self._changed = asyncio.Event()
        self._services = Reflector(api, SERVICES, on_change=lambda _: self._changed.set())
        self._pods = Reflector(api, PODS)
        self._listeners: dict[tuple[str, int], tuple[ObjectKey, asyncio.Server]] = {}
        self._connections: set[asyncio.Task[None]] = set()
        self._turns = itertools.count()
        self._closing = False

    async def run(self) -> None:
        watches = [asyncio.create_task(part.run()) for part in (self._services, self._pods)]
        try:
            while True:
                self._changed.clear()
                settled = await self._listen()
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if settled else AGAIN_SECONDS):
                        await self._changed.wait()
        finally:
            self._closing = True
            for task in (*watches, *self._connections):
                task.cancel()
            for _, server in self._listeners.values():
                server.close()
            await asyncio.gather(*watches, *self._connections, return_exceptions=True)

    async def _listen(self) -> bool:
        """Listen at the addresses of all Services; return whether all of that could be done."""
        wanted = dict(self._wanted())
        for address in self._listeners.keys() - wanted.keys():
            self._listeners.pop(address)[1].close()
        settled = True
        for address, service in wanted.items():
            if address in self._listeners:
                continue
            try:
                server = await asyncio.start_server(self._accept(service, address[1]), *address)
            except OSError as error:
                log.warning("service not carried yet", service="/".join(service), address=address, error=str(error))
                settled = False
            else:
                self._listeners[address] = (service, server)
        for balanced in list(self._services.objects.values()):
            settled = await self._give_ingress(balanced) and settled
        return settled

    def _wanted(self) -> Iterator[tuple[tuple[str, int], ObjectKey]]:
        for key, service in self._services.objects.items():
            for host, number, port in addresses_of(service, node_ip=self._node_ip, cluster_ips=self._cluster_ips):
                if port.get("protocol", "TCP") == "TCP":
                    yield (host, number), key

    async def _give_ingress(self, service: JsonObject) -> bool:
        """Give a load balancer its cluster address as ingress; return whether that is done."""
        if service["spec"].get("type") != "LoadBalancer" or (service.get("status") or {}).get("loadBalancer"):
            return True
        namespace, name = key_of(service)
        status = {"status": {"loadBalancer": {"ingress": [{"ip": service["spec"]["clusterIP"]}]}}}
        try:
            await self._api.patch(SERVICES, name, status, namespace=namespace, subresource="status")
        except ApiError as error:
            log.warning("load balancer without an address yet", service=name, error=str(error))
            return False
        return True

    def _accept(
        self, service: ObjectKey, port: int
    ) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[None, None, None]]:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._connections.add(task)
            try:
                await self._carry(service, port, reader, writer)
            except asyncio.CancelledError:
                if not self._closing:
                    raise  # at the end all are cancelled, and asyncio would log each as an error
            finally:
                self._connections.discard(task)
                writer.close()

        return accept

    async def _carry(
        self, service: ObjectKey, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        found = self._endpoint(service, port)
        if found is None:
            _reset(writer)
            return
        caller, called = (writer.get_extra_info(name)[0] for name in ("peername", "sockname"))
        # A call from the host has the Service's own address as its source: not to be shown to the pod.
        source = None if caller == called else (caller, 0)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                beyond, back = await asyncio.open_connection(*found, local_addr=source)
        except (OSError, TimeoutError):
            _reset(writer)
            return
        try:
            pumps = [asyncio.create_task(_pump(reader, back)), asyncio.create_task(_pump(beyond, writer))]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
        finally:
            back.close()

    def _endpoint(self, key: ObjectKey, port: int) -> tuple[str, int] | None:
        """Address and port of a pod that the Service selects; several take turns."""
        service = self._services.objects.get(key)
        if service is None:
            return None
        entry = next((one for one in service["spec"]["ports"] if port in (one["port"], one.get("nodePort"))), None)
        pods = [pod for pod in self._pods.objects.values() if entry and is_endpoint(service, pod)]
        if not pods or entry is None:
            return None
        pod = pods[next(self._turns) % len(pods)]
        number = target_port(pod, entry.get("targetPort", entry["port"]))
        return None if number is None else (pod["status"]["podIP"], number)


def addresses_of(
    service: JsonObject, *, node_ip: str, cluster_ips: ipaddress.IPv4Network
) -> Iterator[tuple[str, int, JsonObject]]:
    """Yield host, number and entry of each port of a Service with a selector."""
    spec = service["spec"]
    for port in (spec.get("ports") or []) if spec.get("selector") else []:
        address = str(spec.get("clusterIP") or "None")
        if address != "None" and ipaddress.ip_address(address) in cluster_ips:
            yield spec["clusterIP"], port["port"], port
        if port.get("nodePort"):
            yield node_ip, port["nodePort"], port


def is_endpoint(service: JsonObject, pod: JsonObject) -> bool:
    """Whether a Service sends connections to the pod."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    if metadata["namespace"] != service["metadata"]["namespace"] or not status.get("podIP"):
        return False
    if status.get("phase") in ("Failed", "Succeeded"):
        return False
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions") or [])
    selected = (metadata.get("labels") or {}).items() >= service["spec"]["selector"].items()
    return selected and (ready or bool(service["spec"].get("publishNotReadyAddresses")))


def target_port(pod: JsonObject, target: str | int) -> int | None:
    """Return the number of a port that may be given by name."""
    if isinstance(target, int):
        return target
    ports = (port for container in pod["spec"]["containers"] for port in container.get("ports") or [])
    return next((int(port["containerPort"]) for port in ports if port.get("name") == target), None)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection like a refused one, as far as a listener can."""
    writer.transport.abort()
