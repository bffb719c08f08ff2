"""The Node object: made at the start, kept Ready by a heartbeat, told not Ready at the stop."""

from __future__ import annotations

import asyncio
import os
import platform
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.kube.errors import AlreadyExistsError, ApiError, NotFoundError
from brokergroup_operator.kube.resources import NODES

from .status import timestamp

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokergroup_operator.kube.client import JsonObject, KubernetesApi

log = structlog.get_logger(__name__)

PODS_AT_MOST = 250
RETRY_SECONDS = 0.5


def default_labels(node_name: str) -> dict[str, str]:
    """The labels every kubelet puts on its node, and one that tells what kind of kubelet this is."""
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return {
        "kubernetes.io/hostname": node_name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": machine,
        "brokergroup.dev/kubelet": "process",
    }


class NodeRegistration:
    """``register()`` once, then run ``run()`` as a task."""

    def __init__(
        self,
        api: KubernetesApi,
        node_name: str,
        node_ip: str,
        labels: Mapping[str, str],
        *,
        heartbeat_seconds: float,
    ) -> None:
        self._api = api
        self._name = node_name
        self._ip = node_ip
        self._labels = dict(labels)
        self._heartbeat_seconds = heartbeat_seconds
        self._ready_since = timestamp(datetime.now(UTC))

    async def register(self) -> None:
        """Make the Node, or take over the one of an earlier run; waits for an API that is not there yet."""
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self._name, "labels": self._labels}}
        while True:
            try:
                with suppress(AlreadyExistsError):
                    await self._api.create(NODES, node)
                await self._post(ready=True)
            except ApiError as error:
                log.warning("node not registered yet", node=self._name, error=str(error))
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    async def run(self) -> None:
        """Say every so often that the node is alive; make the Node again if somebody deleted it."""
        while True:
            await asyncio.sleep(self._heartbeat_seconds)
            try:
                await self._post(ready=True)
            except NotFoundError:
                await self.register()
            except ApiError as error:
                log.warning("node heartbeat not posted", node=self._name, error=str(error))

    async def say_not_ready(self) -> None:
        """The kubelet stops in an orderly way; nobody has to wait for the heartbeat to fail."""
        with suppress(ApiError):
            await self._post(ready=False)

    async def _post(self, *, ready: bool) -> None:
        patch = {"status": self._status(ready=ready)}
        await self._api.patch(NODES, self._name, patch, subresource="status")

    def _status(self, *, ready: bool) -> JsonObject:
        capacity = {
            "cpu": str(os.cpu_count() or 1),
            "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') // 1024}Ki",
            "pods": str(PODS_AT_MOST),
        }
        return {
            "capacity": capacity,
            "allocatable": capacity,
            "addresses": [{"type": "InternalIP", "address": self._ip}, {"type": "Hostname", "address": self._name}],
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True" if ready else "False",
                    "reason": "KubeletReady" if ready else "KubeletStopped",
                    "message": "process kubelet is running" if ready else "process kubelet has stopped",
                    "lastHeartbeatTime": timestamp(datetime.now(UTC)),
                    "lastTransitionTime": self._ready_since if ready else timestamp(datetime.now(UTC)),
                }
            ],
            "nodeInfo": {
                "architecture": self._labels.get("kubernetes.io/arch", ""),
                "bootID": "",
                "containerRuntimeVersion": "process://1",
                "kernelVersion": platform.release(),
                "kubeProxyVersion": "",
                "kubeletVersion": "v1.35.4-process",
                "machineID": "",
                "operatingSystem": "linux",
                "osImage": "local processes",
                "systemUUID": "",
            },
        }
