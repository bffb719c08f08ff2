"""The sandbox: the embedded Kubernetes API and the process kubelet in one process, ready for ``kubectl apply``.

``sandbox()`` is for a test in the same process; ``python -m kube_sandbox`` runs ``run_sandbox()``. The kubeconfig is written last,
when the API answers, the kinds are served and the node is Ready.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import structlog
import yaml

from kube_sandbox.client import CUSTOM_RESOURCE_DEFINITIONS, ApiUnavailableError, KubeClient

from .api_server.server import SandboxApiServer
from .kubelet.network import DEFAULT_BRIDGE, DEFAULT_SUBNET, LoopbackNetwork, NetworkNamespaces, PodNetwork
from .kubelet.process_kubelet import ProcessKubelet
from .real_api_server import ApiServerPrograms, RealApiServer
from .services import ServiceCarrier

if TYPE_CHECKING:
    import ipaddress
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
    from pathlib import Path

    from .kubelet.environment import ImageCatalogue

# libyaml, if PyYAML was built with it, reads long schemas in a tenth of the time.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
log = structlog.get_logger(__name__)

NetworkMode = Literal["loopback", "netns"]
NODE_NAME = "sandbox"
FIELD_MANAGER = "kube-sandbox"
_DEFINITIONS_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The parts of a running sandbox."""

    server: SandboxApiServer | RealApiServer
    kubelet: ProcessKubelet
    kubeconfig: Path


def pod_network(
    mode: NetworkMode, data_dir: Path, *, bridge: str = DEFAULT_BRIDGE, subnet: ipaddress.IPv4Network = DEFAULT_SUBNET
) -> PodNetwork:
    """Return the network of that name; namespaces have their address counter in the data folder."""
    if mode == "netns":
        return NetworkNamespaces(data_dir / "next-address", bridge=bridge, subnet=subnet)
    return LoopbackNetwork()


@asynccontextmanager
async def sandbox(  # noqa: PLR0913 (what a sandbox is made of, each with its default)
    *,
    data_dir: Path,
    images: ImageCatalogue,
    definitions: Iterable[dict[str, Any]] = (),
    host: str = "127.0.0.1",
    port: int = 0,
    network: PodNetwork | NetworkMode = "loopback",
    kubeconfig_path: Path | None = None,
    node_url: Callable[[str], Awaitable[str]] | None = None,
    programs: ApiServerPrograms | None = None,
) -> AsyncIterator[Sandbox]:
    """Run a sandbox that serves the CustomResourceDefinitions ``definitions`` beside the built-in kinds.

    ``node_url`` gets the API's URL and returns the one that the kubelet uses: a test that cuts nodes off puts a gate there.
    ``programs`` are a real kube-apiserver and etcd to run in place of the embedded API.
    """
    server: SandboxApiServer | RealApiServer = (
        SandboxApiServer(host=host, port=port)
        if programs is None
        else RealApiServer(data_dir / "api", programs, port=port)
    )
    await server.start()
    try:
        connection = server.connection
        if node_url is not None:
            connection = replace(connection, url=await node_url(server.url))
        async with KubeClient(connection) as api:
            await _apply_definitions(api, definitions)
            pods = pod_network(network, data_dir) if isinstance(network, str) else network
            kubelet = ProcessKubelet(api, node_name=NODE_NAME, data_dir=data_dir, network=pods, images=images)
            if isinstance(server, SandboxApiServer):
                server.log_provider = kubelet.log_provider
            await kubelet.start()
            carrier = None
            if isinstance(pods, LoopbackNetwork):  # pods in namespaces do not reach the Services' loopback addresses
                carrier = asyncio.create_task(ServiceCarrier(api, node_ip=pods.node_ip).run(), name="services")
            try:
                kubeconfig = kubeconfig_path or data_dir / "kubeconfig"
                unfinished = kubeconfig.with_name(f"{kubeconfig.name}.new")
                server.write_kubeconfig(unfinished)
                unfinished.replace(kubeconfig)
                yield Sandbox(server, kubelet, kubeconfig)
            finally:
                if carrier is not None:
                    carrier.cancel()
                    await asyncio.gather(carrier, return_exceptions=True)
                await kubelet.stop()
    finally:
        await server.stop()


async def run_sandbox(*, stop: asyncio.Event, **settings: Any) -> None:
    """Run ``sandbox(**settings)`` until ``stop`` is set; raises what broke the kubelet, if anything does."""
    async with sandbox(**settings) as running:
        log.info("sandbox is ready", api=running.server.url, kubeconfig=str(running.kubeconfig))
        stopped = asyncio.create_task(stop.wait())
        failed = asyncio.create_task(running.kubelet.failed())
        await asyncio.wait([stopped, failed], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if failed.done():
            raise failed.result()
        failed.cancel()


def read_definitions(folder: Path) -> list[dict[str, Any]]:
    """Return every document of the folder's ``*.yaml``."""
    documents: list[dict[str, Any]] = []
    for file in sorted(folder.glob("*.yaml")):
        documents += [document for document in yaml.load_all(file.read_bytes(), _LOADER) if document]
    return documents


async def _apply_definitions(api: KubeClient, definitions: Iterable[dict[str, Any]]) -> None:
    """Apply each definition, and again if the answer is late: on a busy machine the first ones may be."""
    async with asyncio.timeout(_DEFINITIONS_SECONDS):
        for definition in definitions:
            while True:
                try:
                    await api.apply(CUSTOM_RESOURCE_DEFINITIONS, definition, field_manager=FIELD_MANAGER)
                except ApiUnavailableError as error:
                    log.warning("definition not applied yet", error=str(error))
                    await asyncio.sleep(0.1)
                else:
                    break
