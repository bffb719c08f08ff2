"""The node's own object, and what scheduler and volume controllers do elsewhere.

The Node is Ready from start to stop, with heartbeats. Pods without a node are bound to this one; with several process kubelets the
first binding wins and the others get 409. A claim is bound by its status alone; its volume is a folder, removed after the claim. A
claim that names a PersistentVolume is bound to that, a hostPath made by hand, which stays and is Released after the claim; one with
a ``dataSource`` waits until it names one. The finalizer ``kubernetes.io/pvc-protection`` is taken off once no pod uses the claim,
because a bare kube-apiserver has no controller for it.
"""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from kube_sandbox.client import (
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    ApiError,
    ApiUnavailableError,
    ConflictError,
    NotFoundError,
    Reflector,
)

from .files import unique_name
from .status import timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kube_sandbox.client import JsonObject, KubeClient, WatchEvent

    from .files import DataFolders

log = structlog.get_logger(__name__)

PODS_AT_MOST = 250
RETRY_SECONDS = 0.5
HEARTBEAT_SECONDS = 10.0


def default_labels(node_name: str) -> dict[str, str]:
    """Return the labels that every kubelet puts on its node, and one for this kind of kubelet."""
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return {
        "kubernetes.io/hostname": node_name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": machine,
        "kube-sandbox/kubelet": "process",
    }


class NodeRegistration:
    """``register()`` once, then run ``run()`` as a task."""

    def __init__(self, api: KubeClient, node_name: str, node_ip: str, labels: Mapping[str, str]) -> None:
        self._api = api
        self._name = node_name
        self._ip = node_ip
        self._labels = dict(labels)
        self._ready_since = timestamp(datetime.now(UTC))

    async def register(self) -> None:
        """Create the Node, or take over the one of an earlier run; retry until the API answers."""
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self._name, "labels": self._labels}}
        while True:
            try:
                with suppress(ConflictError):
                    await self._api.create(NODES, node)
                await self._post(ready=True)
            except ApiError as error:
                log.warning("node not registered yet", node=self._name, error=str(error))
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    async def run(self) -> None:
        """Post heartbeats; create the Node again if it was deleted."""
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            try:
                await self._post(ready=True)
            except NotFoundError:
                await self.register()
            except ApiError as error:
                log.warning("node heartbeat not posted", node=self._name, error=str(error))

    async def say_not_ready(self) -> None:
        """Post that the node is not ready, at an orderly stop."""
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
                "containerRuntimeVersion": "process://1",
                "kernelVersion": platform.release(),
                "kubeletVersion": "v1.35.4-process",
                "operatingSystem": "linux",
                "osImage": "local processes",
            },
        }


BIND_RETRY_SECONDS = 0.2


class Scheduler:
    """Call ``consider()`` with every pod; run ``run()`` as a task."""

    def __init__(self, api: KubeClient, node_name: str, node_labels: Mapping[str, str]) -> None:
        self._api = api
        self._node_name = node_name
        self._node_labels = node_labels
        self._queue: asyncio.Queue[JsonObject] = asyncio.Queue()

    def consider(self, pod: JsonObject) -> None:
        """Queue this pod if it has no node and its node selector fits ours."""
        spec = pod["spec"]
        selector = spec.get("nodeSelector") or {}
        if (
            not spec.get("nodeName")
            and "deletionTimestamp" not in pod["metadata"]
            and not spec.get("schedulingGates")
            and all(self._node_labels.get(key) == value for key, value in selector.items())
        ):
            self._queue.put_nowait(pod)

    async def run(self) -> None:
        """Bind the queued pods in order."""
        while True:
            metadata = (pod := await self._queue.get())["metadata"]
            try:
                await self._api.bind_pod(
                    metadata["name"], namespace=metadata["namespace"], node_name=self._node_name, uid=metadata["uid"]
                )
            except ApiUnavailableError as error:
                # A second binding is harmless: the API refuses it with 409.
                log.warning("pod not bound yet", pod=metadata["name"], error=str(error))
                await asyncio.sleep(BIND_RETRY_SECONDS)
                self._queue.put_nowait(pod)
            except ApiError as error:
                log.debug("pod not bound", pod=metadata["name"], error=str(error))  # gone, or another node's


PROTECTION_FINALIZER = "kubernetes.io/pvc-protection"
CLAIM_RETRY_SECONDS = 0.2


class ClaimBinder:
    """Run ``run()`` as a task. ``folders_in_use`` and ``claims_in_use`` return what running pods use."""

    def __init__(
        self,
        api: KubeClient,
        folders: DataFolders,
        *,
        folders_in_use: Callable[[], set[Path]],
        claims_in_use: Callable[[], set[tuple[str, str]]],
    ) -> None:
        self._api = api
        self._folders = folders
        self._folders_in_use = folders_in_use
        self._claims_in_use = claims_in_use
        self._wake = asyncio.Event()
        self._deleted: set[Path] = set()
        # PersistentVolumes that claims name, each with its claim's uid and its path, and those whose claim is gone.
        self._volumes: dict[str, tuple[str, Path]] = {}
        self._released: set[str] = set()
        self.reflector = Reflector(api, PERSISTENT_VOLUME_CLAIMS, on_change=self._changed)

    def folder_of(self, namespace: str, name: str) -> Path | None:
        """Return a bound claim's folder; None if the claim is not bound."""
        claim = self.reflector.objects.get((namespace, name))
        if claim is None or (claim.get("status") or {}).get("phase") != "Bound":
            return None
        if volume := claim["spec"].get("volumeName"):
            _, path = self._volumes.get(volume, ("", None))
            return path
        folder = self._folders.claim(claim)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def look_again(self) -> None:
        """Look at all claims again: after a pod has gone one may be free."""
        self._wake.set()

    def _changed(self, event: WatchEvent) -> None:
        if event.type == "DELETED" and (volume := event.object["spec"].get("volumeName")):
            self._released.add(volume)
            self._volumes.pop(volume, None)
        elif event.type == "DELETED":
            self._deleted.add(self._folders.claim(event.object))
        self._wake.set()

    async def run(self) -> None:
        """Bind claims, release deleted ones and remove their folders, after each change."""
        watching = asyncio.create_task(self.reflector.run())
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                try:
                    await self._one_pass()
                except ApiError as error:
                    log.warning("claims wait for the API", error=str(error))
                    await asyncio.sleep(CLAIM_RETRY_SECONDS)
                    self._wake.set()
        finally:
            watching.cancel()

    async def _one_pass(self) -> None:
        for claim in list(self.reflector.objects.values()):
            if "deletionTimestamp" in claim["metadata"]:
                await self._unprotect(claim)
            else:
                await self._bind(claim)
        for volume in sorted(self._released):
            with suppress(NotFoundError):
                await self._api.patch(
                    PERSISTENT_VOLUMES, volume, {"status": {"phase": "Released"}}, subresource="status"
                )
            self._released.discard(volume)
        for folder in self._deleted - self._folders_in_use():
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            self._deleted.discard(folder)
            log.info("volume removed with its claim", folder=folder.name)

    async def _bind(self, claim: JsonObject) -> None:
        """Bind a claim, also one that asks for more than before: a folder has no size."""
        spec, metadata = claim["spec"], claim["metadata"]
        if spec.get("dataSource") and not spec.get("volumeName"):
            return  # of a provisioner that knows the source: it makes the volume, and names it here
        requested = (spec.get("resources") or {}).get("requests") or {}
        status = {
            "phase": "Bound",
            "accessModes": spec.get("accessModes") or ["ReadWriteOnce"],
            "capacity": {"storage": requested.get("storage", "1Gi")},
        }
        if (volume := spec.get("volumeName")) and not await self._take_volume(volume, metadata):
            asyncio.get_running_loop().call_later(CLAIM_RETRY_SECONDS, self._wake.set)
            return
        if status.items() <= (claim.get("status") or {}).items():
            return
        if not volume:
            self._folders.claim(claim).mkdir(parents=True, exist_ok=True)
        patch = {"metadata": {"uid": metadata["uid"]}, "status": status}
        with suppress(NotFoundError):
            await self._api.patch(
                PERSISTENT_VOLUME_CLAIMS, metadata["name"], patch, namespace=metadata["namespace"], subresource="status"
            )
            log.info("claim bound", claim=unique_name(claim))

    async def _take_volume(self, name: str, claim: JsonObject) -> bool:
        """Bind the volume to this claim; False while there is none of this name, or another claim has it."""
        if name in self._volumes:
            uid, _ = self._volumes[name]
            return bool(uid == claim["uid"])
        try:
            volume = await self._api.get(PERSISTENT_VOLUMES, name)
        except NotFoundError:
            return False
        wanted = {key: claim[key] for key in ("namespace", "name", "uid")}
        reference = volume["spec"].get("claimRef") or {}
        if any(reference.get(key) not in (None, value) for key, value in wanted.items()):
            return False
        kind = {"kind": "PersistentVolumeClaim", "apiVersion": "v1"}
        await self._api.patch(PERSISTENT_VOLUMES, name, {"spec": {"claimRef": kind | wanted}})
        await self._api.patch(PERSISTENT_VOLUMES, name, {"status": {"phase": "Bound"}}, subresource="status")
        self._volumes[name] = claim["uid"], Path(volume["spec"]["hostPath"]["path"])
        return True

    async def _unprotect(self, claim: JsonObject) -> None:
        metadata = claim["metadata"]
        finalizers = metadata.get("finalizers") or []
        if PROTECTION_FINALIZER not in finalizers or (metadata["namespace"], metadata["name"]) in self._claims_in_use():
            return
        kept = [finalizer for finalizer in finalizers if finalizer != PROTECTION_FINALIZER]
        patch = {
            "metadata": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"], "finalizers": kept}
        }
        # The embedded API's own controller may be first, or a further event leads here again.
        with suppress(NotFoundError, ConflictError):
            await self._api.patch(PERSISTENT_VOLUME_CLAIMS, metadata["name"], patch, namespace=metadata["namespace"])
