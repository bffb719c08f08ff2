"""The sandbox: the embedded Kubernetes API and the process kubelet in one process, ready for ``kubectl apply``.

``sandbox()`` is for whoever shares the process (tests, the demo); ``run_sandbox()`` is what ``brokergroup sandbox`` runs. The
kubeconfig appears last, when the API answers, the kinds are served and the node is Ready: whoever waits for the file
may begin.
"""

from __future__ import annotations

import asyncio
import ipaddress
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import structlog
import yaml

from brokergroup_operator.api.generate import KINDS, custom_resource_definition
from brokergroup_operator.kube.client import KubernetesApi
from brokergroup_operator.kube.errors import ApiUnavailableError, OutcomeUnknownError
from brokergroup_operator.kube.resources import CUSTOM_RESOURCE_DEFINITIONS

from .api_server.errors import bad_request
from .api_server.server import LogProvider, SandboxApiServer
from .kubelet.images import ImageCatalogue
from .kubelet.logs import NoSuchLogError
from .kubelet.netns import DEFAULT_BRIDGE, DEFAULT_SUBNET, NetworkNamespaces
from .kubelet.network import LoopbackNetwork, PodNetwork
from .kubelet.process_kubelet import ProcessKubelet
from .route_server import RouteServer
from .services import ServiceCarrier

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

log = structlog.get_logger(__name__)

NetworkMode = Literal["loopback", "netns"]
NODE_NAME = "sandbox"
FIELD_MANAGER = "brokergroup-sandbox"
_DEFINITIONS_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Sandbox:
    """What runs."""

    server: SandboxApiServer
    kubelet: ProcessKubelet
    kubeconfig: Path


def pod_network(
    mode: NetworkMode,
    data_dir: Path,
    *,
    bridge: str = DEFAULT_BRIDGE,
    subnet: ipaddress.IPv4Network = DEFAULT_SUBNET,
) -> PodNetwork:
    """The network of that name, with its address counter in the data folder."""
    if mode == "netns":
        return NetworkNamespaces(data_dir / "next-address", bridge=bridge, subnet=subnet)
    return LoopbackNetwork(data_dir / "next-address")


@asynccontextmanager
async def sandbox(  # noqa: PLR0913 (what a sandbox is made of, each with its default)
    *,
    data_dir: Path,
    host: str = "127.0.0.1",
    port: int = 0,
    network: PodNetwork | None = None,
    images: ImageCatalogue | None = None,
    kubeconfig_path: Path | None = None,
    database: Path | None = None,
    crds: Path | None = None,
    node_url: Callable[[str], Awaitable[str]] | None = None,
) -> AsyncIterator[Sandbox]:
    """A running sandbox; ``crds`` is a folder of manifests, else our own kinds as this version has them.

    ``node_url`` is given where the API is and answers where the kubelet finds it: who cuts nodes off puts something in between.
    """
    server = SandboxApiServer(host=host, port=port, database=database)
    await server.start()
    try:
        url = server.url if node_url is None else await node_url(server.url)
        async with KubernetesApi.from_url(url) as api:
            await _apply_definitions(api, _own_definitions() if crds is None else _read_definitions(crds))
            kubelet_network = network or pod_network("loopback", data_dir)
            kubelet = ProcessKubelet(
                api,
                node_name=NODE_NAME,
                data_dir=data_dir,
                network=kubelet_network,
                images=images or ImageCatalogue.default(),
            )
            server.log_provider = _log_provider(kubelet)
            await kubelet.start()
            carrier = _carry_services(api, kubelet_network)
            try:
                kubeconfig = kubeconfig_path or data_dir / "kubeconfig"
                _write_kubeconfig(server, kubeconfig)
                yield Sandbox(server, kubelet, kubeconfig)
            finally:
                if carrier is not None:
                    carrier.cancel()
                    await asyncio.gather(carrier, return_exceptions=True)
                await kubelet.stop()
    finally:
        await server.stop()


async def run_sandbox(  # noqa: PLR0913 (one argument per option of the command)
    *,
    host: str,
    port: int,
    data_dir: Path,
    network_mode: NetworkMode,
    kubeconfig_path: Path,
    database: Path | None,
    stop: asyncio.Event,
    crds: Path | None = None,
    images: ImageCatalogue | None = None,
    bridge: str = DEFAULT_BRIDGE,
    subnet: str = str(DEFAULT_SUBNET),
    name_server: tuple[str, int] | None = None,
) -> None:
    """Run until ``stop`` is set, then end every process that was started. ``name_server`` is where routes are served, if at all."""
    network = pod_network(network_mode, data_dir, bridge=bridge, subnet=ipaddress.IPv4Network(subnet))
    async with (
        _routes(name_server),
        sandbox(
            data_dir=data_dir,
            host=host,
            port=port,
            network=network,
            images=images,
            kubeconfig_path=kubeconfig_path,
            database=database,
            crds=crds,
        ) as running,
    ):
        log.info("sandbox is ready", api=running.server.url, kubeconfig=str(running.kubeconfig), data=str(data_dir))
        await _stopped_or_failed(running.kubelet, stop)


def _carry_services(api: KubernetesApi, network: PodNetwork) -> asyncio.Task[None] | None:
    """Pods in namespaces of their own do not reach the loopback addresses of the sandbox's Services."""
    if not isinstance(network, LoopbackNetwork):
        return None
    return asyncio.create_task(ServiceCarrier(api, node_ip=network.node_ip).run(), name="services")


@asynccontextmanager
async def _routes(address: tuple[str, int] | None) -> AsyncIterator[None]:
    """A NameServer for brokers and clients on this machine."""
    if address is None:
        yield
        return
    routes = RouteServer()
    await routes.start(*address)
    log.info("routes are served", name_server=routes.address)
    try:
        yield
    finally:
        await routes.stop()


async def _stopped_or_failed(kubelet: ProcessKubelet, stop: asyncio.Event) -> None:
    stopped = asyncio.create_task(stop.wait())
    failed = asyncio.create_task(kubelet.failed())
    await asyncio.wait([stopped, failed], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if failed.done():
        raise failed.result()
    failed.cancel()


def _log_provider(kubelet: ProcessKubelet) -> LogProvider:
    """The kubelet's logs, its refusal in the API's words (``kubectl logs`` of a container that never started)."""

    def logs(
        namespace: str,
        pod: str,
        container: str,
        tail_lines: int | None,
        follow: bool,
    ) -> AsyncIterator[bytes]:
        try:
            return kubelet.log_provider(namespace, pod, container, tail_lines, follow)
        except NoSuchLogError as error:
            raise bad_request(str(error)) from error

    return logs


def _own_definitions() -> list[dict[str, Any]]:
    return [custom_resource_definition(kind) for kind in KINDS]


def _read_definitions(folder: Path) -> list[dict[str, Any]]:
    documents: list[dict[str, Any]] = []
    for file in sorted(folder.glob("*.yaml")):
        documents += [document for document in yaml.safe_load_all(file.read_text(encoding="utf-8")) if document]
    return documents


async def _apply_definitions(api: KubernetesApi, definitions: list[dict[str, Any]]) -> None:
    """Apply each until it is known to be applied: on a busy machine the first answers may come too late."""
    async with asyncio.timeout(_DEFINITIONS_SECONDS):
        for definition in definitions:
            while True:
                try:
                    await api.apply(CUSTOM_RESOURCE_DEFINITIONS, definition, field_manager=FIELD_MANAGER)
                except (ApiUnavailableError, OutcomeUnknownError) as error:
                    log.warning("definition not applied yet", error=str(error))
                    await asyncio.sleep(0.1)
                else:
                    break


def _write_kubeconfig(server: SandboxApiServer, path: Path) -> None:
    """All at once: whoever waits for the file must not read half of it."""
    temporary = path.with_name(path.name + ".new")
    server.write_kubeconfig(temporary)
    temporary.replace(path)
