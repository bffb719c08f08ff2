"""Volumes of claims: a folder each, made when the claim is bound and removed when the claim is deleted.

Here the kubelet stands in for the volume controllers. A claim is bound by its status alone (no PersistentVolume object),
which is what pods and people look at. It also does the one thing of theirs without which no claim could ever be deleted from
a bare kube-apiserver: taking off the ``kubernetes.io/pvc-protection`` finalizer once no pod uses the claim.
"""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.kube.errors import ApiError, NotFoundError
from brokergroup_operator.kube.reflector import Reflector
from brokergroup_operator.kube.resources import PERSISTENT_VOLUME_CLAIMS

from .folders import unique_name

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from brokergroup_operator.kube.client import JsonObject, KubernetesApi, WatchEvent

    from .folders import DataFolders

log = structlog.get_logger(__name__)

PROTECTION_FINALIZER = "kubernetes.io/pvc-protection"
RETRY_SECONDS = 0.2


class ClaimBinder:
    """Run ``run()`` as a task. ``folders_in_use`` and ``claims_in_use`` tell what running pods hold."""

    def __init__(
        self,
        api: KubernetesApi,
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
        self.reflector = Reflector(api, PERSISTENT_VOLUME_CLAIMS, on_change=self._changed)

    def folder_of(self, namespace: str, name: str) -> Path | None:
        """A bound claim's folder; None while it is not bound, or not there."""
        claim = self.reflector.objects.get((namespace, name))
        if claim is None or not _is_bound(claim):
            return None
        folder = self._folders.claim(claim)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def look_again(self) -> None:
        """A pod came or went: a claim may be free now."""
        self._wake.set()

    def _changed(self, event: WatchEvent) -> None:
        if event.type == "DELETED":
            self._deleted.add(self._folders.claim(event.object))
        self._wake.set()

    async def run(self) -> None:
        """Bind, unprotect and remove, whenever something changed."""
        watching = asyncio.create_task(self.reflector.run())
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                try:
                    await self._one_pass()
                except ApiError as error:
                    log.warning("claims wait for the API", error=str(error))
                    await asyncio.sleep(RETRY_SECONDS)
                    self._wake.set()
        finally:
            watching.cancel()

    async def _one_pass(self) -> None:
        for claim in list(self.reflector.objects.values()):
            if "deletionTimestamp" in claim["metadata"]:
                await self._unprotect(claim)
            elif not _is_bound(claim) or _has_grown(claim):
                await self._bind(claim)
        for folder in self._deleted - self._folders_in_use():
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            self._deleted.discard(folder)
            log.info("volume removed with its claim", folder=folder.name)

    async def _bind(self, claim: JsonObject) -> None:
        self._folders.claim(claim).mkdir(parents=True, exist_ok=True)
        spec, metadata = claim["spec"], claim["metadata"]
        requested = (spec.get("resources") or {}).get("requests") or {}
        status = {
            "phase": "Bound",
            "accessModes": spec.get("accessModes") or ["ReadWriteOnce"],
            "capacity": {"storage": requested.get("storage", "1Gi")},
        }
        patch = {"metadata": {"uid": metadata["uid"]}, "status": status}
        try:
            await self._api.patch(
                PERSISTENT_VOLUME_CLAIMS,
                metadata["name"],
                patch,
                namespace=metadata["namespace"],
                subresource="status",
            )
        except NotFoundError:
            return
        log.info("claim bound", claim=unique_name(claim))

    async def _unprotect(self, claim: JsonObject) -> None:
        metadata = claim["metadata"]
        finalizers = metadata.get("finalizers") or []
        if PROTECTION_FINALIZER not in finalizers or (metadata["namespace"], metadata["name"]) in self._claims_in_use():
            return
        kept = [finalizer for finalizer in finalizers if finalizer != PROTECTION_FINALIZER]
        patch = {
            "metadata": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"], "finalizers": kept}
        }
        try:
            await self._api.patch(PERSISTENT_VOLUME_CLAIMS, metadata["name"], patch, namespace=metadata["namespace"])
        except NotFoundError:
            return


def _has_grown(claim: JsonObject) -> bool:
    """A folder has no size of its own, so a claim that asks for more has it at once."""
    shown = ((claim.get("status") or {}).get("capacity") or {}).get("storage")
    asked = ((claim["spec"].get("resources") or {}).get("requests") or {}).get("storage", "1Gi")
    return bool(shown != asked)


def _is_bound(claim: JsonObject) -> bool:
    return (claim.get("status") or {}).get("phase") == "Bound"
