"""The sandbox for our operator: our kinds, our images as local programs, and NameServers for brokers and clients."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
import yaml

from brokergroup_operator.api.definitions.generate import KINDS, custom_resource_definition
from brokergroup_operator.demo.processes import DemoProcessError
from brokergroup_operator.demo.routes import RouteServer
from brokergroup_operator.kube.resources import PODS
from kube_sandbox.kubelet import Image, ImageCatalogue
from kube_sandbox.real_api_server import ApiServerPrograms
from rocketmq_remoting.address import join_address

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from brokergroup_operator.demo.processes import DemoProcesses
    from brokergroup_operator.kube import JsonObject, KubernetesApi

log = structlog.get_logger(__name__)
_NAME_SERVER_PORT = 9876
_READY_SECONDS = 60.0
_POLL_SECONDS = 0.1
OUR_IMAGES = ("brokergroup-operator", "brokergroup-replica", "rocketmq-replica")


def our_definitions() -> list[dict[str, Any]]:
    """Return the CustomResourceDefinitions of our kinds."""
    return [custom_resource_definition(kind) for kind in KINDS]


def our_images(rocketmq_homes: Mapping[str, Path] | None = None) -> ImageCatalogue:
    """Return our image as the programs beside the running interpreter, and RocketMQ's in the installed versions.

    ``rocketmq_homes``: folders with ``lib/`` in them, as in the image ``apache/rocketmq``, by version.
    """
    programs = Image(path=(Path(sys.executable).parent,))
    images = {f"*{name}:*": programs for name in OUR_IMAGES}
    for version, home in (installed_rocketmq_homes() if rocketmq_homes is None else rocketmq_homes).items():
        images[f"*apache/rocketmq:{version}"] = Image(environment={"ROCKETMQ_HOME": str(home)})
    return ImageCatalogue(images)


def installed_rocketmq_homes() -> dict[str, Path]:
    """Return the folders of RocketMQ in the cache of real parts (tests/real/parts/install.py), by version."""
    return {
        lib.parent.name.removeprefix("rocketmq-"): lib.parent
        for lib in sorted(_cache().glob("rocketmq-*/lib"))
        if lib.is_dir()
    }


def installed_api_server() -> ApiServerPrograms:
    """Return the newest kube-apiserver and etcd of that cache, or those in PATH. ApiServerProgramsError if there are none."""
    folders = [sorted(_cache().glob(f"{name}-v*"))[-1:] for name in ("etcd", "kubernetes")]
    return ApiServerPrograms.find(folder for found in folders for folder in found)


def _cache() -> Path:
    return Path(os.environ.get("BROKERGROUP_CACHE") or Path.home() / ".cache" / "brokergroup-operator")


@asynccontextmanager
async def served_routes(address: tuple[str, int] | None) -> AsyncIterator[None]:
    """Serve routes at this address for the length of a block; no NameServer without an address."""
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


async def start_name_server(api: KubernetesApi, manifest: Path, processes: DemoProcesses) -> str:
    """Create the manifest's NameServer pod for Java brokers and clients, and wait until it is ready; return `podIP:9876`."""
    documents = yaml.safe_load_all(await asyncio.to_thread(manifest.read_text))
    [pod] = [document for document in documents if document["kind"] == "Pod"]
    pod["metadata"]["namespace"] = "default"
    await api.create(PODS, pod)
    name = pod["metadata"]["name"]
    seen: JsonObject = {}
    try:
        async with asyncio.timeout(_READY_SECONDS):
            while not _is_ready(seen):
                processes.check()
                await asyncio.sleep(_POLL_SECONDS)
                seen = await api.get(PODS, name, namespace="default")
    except TimeoutError:
        raise DemoProcessError(
            f"pod {name} was not ready within {_READY_SECONDS:.0f} s: {seen.get('status')}"
        ) from None
    return join_address(str(seen["status"]["podIP"]), _NAME_SERVER_PORT)


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
