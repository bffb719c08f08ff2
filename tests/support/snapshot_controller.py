"""What an external-snapshotter and its CSI driver do for VolumeSnapshots, and an external-provisioner for claims made from them.

A story decides when it looks (`look`): a driver that is slow, fails or was killed is one that has not looked, or was told to fail.
With a folder of claims it copies them, so that the content of a snapshot is what was there at that moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from typing import TYPE_CHECKING, Any

from brokergroup_operator.api.times import rfc3339
from brokergroup_operator.kube.errors import AlreadyExistsError, NotFoundError
from brokergroup_operator.kube.resources import (
    CUSTOM_RESOURCE_DEFINITIONS,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    VOLUME_SNAPSHOTS,
)
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from brokergroup_operator.kube.client import KubernetesApi

_ANY = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
DEFINITION: dict[str, Any] = {
    "apiVersion": CUSTOM_RESOURCE_DEFINITIONS.api_version,
    "kind": CUSTOM_RESOURCE_DEFINITIONS.kind,
    # A group of k8s.io needs a word on its approval.
    "metadata": {
        "name": f"{VOLUME_SNAPSHOTS.plural}.{VOLUME_SNAPSHOTS.group}",
        "annotations": {"api-approved.kubernetes.io": "unapproved, a cut-down copy for tests"},
    },
    "spec": {
        "group": VOLUME_SNAPSHOTS.group,
        "scope": "Namespaced",
        "names": {"plural": VOLUME_SNAPSHOTS.plural, "singular": "volumesnapshot", "kind": VOLUME_SNAPSHOTS.kind},
        "versions": [
            {
                "name": VOLUME_SNAPSHOTS.version,
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": _ANY, "status": _ANY}}},
            }
        ],
    },
}
DEFINE_SECONDS = 60.0
LOOK_AGAIN_SECONDS = 0.05


async def define(api: KubernetesApi) -> None:
    """Install the kind, as its users do, and wait until it is served; without it an API server has no VolumeSnapshots."""
    with contextlib.suppress(AlreadyExistsError):
        await api.create(CUSTOM_RESOURCE_DEFINITIONS, DEFINITION, timeout_seconds=DEFINE_SECONDS)

    async def is_served() -> bool:
        try:
            await api.list(VOLUME_SNAPSHOTS)
        except NotFoundError:
            return False
        return True

    await eventually(is_served)


class SnapshotController:
    """Takes the snapshots of one namespace. `folder_of`: where a claim's volume is; `kept`: where the snapshots' contents go."""

    def __init__(
        self,
        api: KubernetesApi,
        namespace: str,
        *,
        now_seconds: Callable[[], float],
        folder_of: Callable[[dict[str, Any]], Path] | None = None,
        kept: Path | None = None,
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._now_seconds = now_seconds
        self._folder_of = folder_of
        self._kept = kept
        # The errors of tries that fail, by the snapshot's name; the snapshots that are not begun yet; and those that are cut, and
        # not ready before they are uploaded.
        self.fails: dict[str, str] = {}
        self.late: set[str] = set()
        self.uploads: set[str] = set()

    async def run(self) -> None:
        """Look again and again, until the task is cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_AGAIN_SECONDS)

    async def look(self) -> None:
        """Take each snapshot that waits, and make each volume that is asked for from one."""
        for one in (await self._api.list(VOLUME_SNAPSHOTS, namespace=self._namespace)).items:
            if not (one.get("status") or {}).get("readyToUse"):
                await self._take(one)
        if self._kept is None:
            return
        for claim in (await self._api.list(PERSISTENT_VOLUME_CLAIMS, namespace=self._namespace)).items:
            if claim["spec"].get("dataSource") and not claim["spec"].get("volumeName"):
                await self._provision(claim)

    async def _take(self, snapshot: dict[str, Any]) -> None:
        """As an external-snapshotter: cut first, ready in a later look; an error stays in the status until then."""
        name, status = snapshot["metadata"]["name"], snapshot.get("status") or {}
        if name in self.late:
            return
        if error := self.fails.get(name):
            if (status.get("error") or {}).get("message") != error:
                # Times are whole seconds: by these the next try is a later one.
                failed = {"message": error, "time": rfc3339(self._now_seconds() - 1.0)}
                await self._say(name, {"readyToUse": False, "error": failed})
            return
        if status.get("creationTime"):
            if name not in self.uploads:
                await self._say(name, {"readyToUse": True, "error": None})
            return
        source = snapshot["spec"]["source"]["persistentVolumeClaimName"]
        claim = await self._api.get(PERSISTENT_VOLUME_CLAIMS, source, namespace=self._namespace)
        if self._kept is not None and self._folder_of is not None:
            content = self._kept / snapshot["metadata"]["uid"]
            await asyncio.to_thread(_copy, self._folder_of(claim), content)
        size = claim["spec"]["resources"]["requests"]["storage"]
        now = rfc3339(self._now_seconds())
        await self._say(name, {"readyToUse": False, "creationTime": now, "restoreSize": size})

    async def _say(self, name: str, status: dict[str, Any]) -> None:
        with contextlib.suppress(NotFoundError):
            await self._api.patch(
                VOLUME_SNAPSHOTS, name, {"status": status}, namespace=self._namespace, subresource="status"
            )

    async def _provision(self, claim: dict[str, Any]) -> None:
        """Make the volume of a claim from its snapshot's content, and name it in the claim, as an external-provisioner."""
        assert self._kept is not None
        metadata = claim["metadata"]
        with contextlib.suppress(NotFoundError):
            source = await self._api.get(
                VOLUME_SNAPSHOTS, claim["spec"]["dataSource"]["name"], namespace=self._namespace
            )
            name = f"pvc-{metadata['uid']}"
            folder = self._kept / name
            await asyncio.to_thread(_copy, self._kept / source["metadata"]["uid"], folder)
            spec = {
                "capacity": claim["spec"]["resources"]["requests"],
                "accessModes": claim["spec"]["accessModes"],
                "persistentVolumeReclaimPolicy": "Retain",
                "hostPath": {"path": str(folder)},
            }
            with contextlib.suppress(AlreadyExistsError):
                kind = {"apiVersion": "v1", "kind": PERSISTENT_VOLUMES.kind}
                await self._api.create(PERSISTENT_VOLUMES, kind | {"metadata": {"name": name}, "spec": spec})
            change = {"metadata": {"uid": metadata["uid"]}, "spec": {"volumeName": name}}
            await self._api.patch(PERSISTENT_VOLUME_CLAIMS, metadata["name"], change, namespace=self._namespace)


def _copy(source: Path, target: Path) -> None:
    """Copy a volume's folder as a whole: one that was cut off is made anew."""
    aside = target.with_name(target.name + ".new")
    shutil.rmtree(aside, ignore_errors=True)
    shutil.copytree(source, aside)
    shutil.rmtree(target, ignore_errors=True)
    aside.rename(target)
