"""What makes a sandbox ours: our kinds, our images as local programs, and routes for brokers and clients on this machine."""

from __future__ import annotations

import os
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from brokergroup_operator.api.definitions.generate import KINDS, custom_resource_definition
from brokergroup_operator.demo.routes.server import RouteServer
from kube_sandbox.kubelet import Image, ImageCatalogue
from kube_sandbox.real_api_server import ApiServerPrograms

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

log = structlog.get_logger(__name__)
OUR_IMAGES = ("brokergroup-operator", "brokergroup-replica", "rocketmq-replica")


def our_definitions() -> list[dict[str, Any]]:
    """Our kinds as this version has them."""
    return [custom_resource_definition(kind) for kind in KINDS]


def our_images(rocketmq_homes: Mapping[str, Path] | None = None) -> ImageCatalogue:
    """Our own image as the programs beside the running interpreter; RocketMQ's in the versions that are here.

    ``rocketmq_homes`` are folders with ``lib/`` in them, as in the image ``apache/rocketmq``, by version.
    """
    programs = Image(path=(Path(sys.executable).parent,))
    images = {f"*{name}:*": programs for name in OUR_IMAGES}
    for version, home in (installed_rocketmq_homes() if rocketmq_homes is None else rocketmq_homes).items():
        images[f"*apache/rocketmq:{version}"] = Image(environment={"ROCKETMQ_HOME": str(home)})
    return ImageCatalogue(images)


def installed_rocketmq_homes() -> dict[str, Path]:
    """RocketMQ's versions in the cache of real parts (tests/real/parts/install.py), by version."""
    return {
        lib.parent.name.removeprefix("rocketmq-"): lib.parent
        for lib in sorted(_cache().glob("rocketmq-*/lib"))
        if lib.is_dir()
    }


def installed_api_server() -> ApiServerPrograms:
    """kube-apiserver and etcd of that cache, the newest of each, or those in PATH; ApiServerProgramsError where there are none."""
    folders = [sorted(_cache().glob(f"{name}-v*"))[-1:] for name in ("etcd", "kubernetes")]
    return ApiServerPrograms.find(folder for found in folders for folder in found)


def _cache() -> Path:
    return Path(os.environ.get("BROKERGROUP_CACHE") or Path.home() / ".cache" / "brokergroup-operator")


@asynccontextmanager
async def served_routes(address: tuple[str, int] | None) -> AsyncIterator[None]:
    """A NameServer at this address for the length of a block; none where there is no address."""
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
