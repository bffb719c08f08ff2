"""What a cluster's protection controller does: a claim that is being deleted goes once no pod uses it.

As in kubernetes/pkg/controller/volume/pvcprotection: a pod that no node has yet uses nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kube_sandbox.api_server.json_values import clone, field_at
from kube_sandbox.api_server.kinds.behaviours import CLAIM_FINALIZER
from kube_sandbox.api_server.kinds.builtin import CLAIMS, PODS
from kube_sandbox.api_server.requests import Write

if TYPE_CHECKING:
    from kube_sandbox.api_server.json_values import JsonObject
    from kube_sandbox.api_server.store.object_store import ObjectStore
    from kube_sandbox.api_server.store.storage import Change, ObjectKey, StorageKey


class ClaimProtection:
    """Notices at every commit which claims may be free by now, and takes the finalizer off when told to run."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._leaving: set[ObjectKey] = set()
        self._due: set[ObjectKey] = set()
        for name, version in store.storage.all(CLAIMS.storage_key):
            self._saw_claim(name, version.obj)
        store.storage.listeners.append(self.saw)

    @property
    def has_work(self) -> bool:
        return bool(self._due)

    def saw(self, key: StorageKey, name: ObjectKey, change: Change) -> None:
        """Called at every commit."""
        if key == PODS.storage_key and change.type == "DELETED":
            self._due |= {claim for claim in self._leaving if claim[0] == name[0]}
        elif key == CLAIMS.storage_key and change.type == "DELETED":
            self._leaving.discard(name)
            self._due.discard(name)
        elif key == CLAIMS.storage_key:
            self._saw_claim(name, change.version.obj)

    def _saw_claim(self, name: ObjectKey, claim: JsonObject) -> None:
        metadata = claim["metadata"]
        if "deletionTimestamp" in metadata and CLAIM_FINALIZER in (metadata.get("finalizers") or ()):
            self._leaving.add(name)
            self._due.add(name)

    def run(self) -> None:
        """Let each claim go that no pod uses; one in use is looked at again when a pod of its namespace has gone."""
        while self._due:
            name = self._due.pop()
            version = self._store.storage.get(CLAIMS.storage_key, name)
            if version is not None and not self._is_used(name):
                claim = clone(version.obj)
                finalizers = claim["metadata"].get("finalizers") or []
                claim["metadata"]["finalizers"] = [one for one in finalizers if one != CLAIM_FINALIZER]
                self._store.update(CLAIMS, *name, claim, Write(field_manager="pvc-protection-controller"))

    def _is_used(self, name: ObjectKey) -> bool:
        namespace, claim = name
        return any(
            (volume.get("persistentVolumeClaim") or {}).get("claimName") == claim
            for _, version in self._store.storage.all(PODS.storage_key, namespace)
            if field_at(version.obj, "spec.nodeName")
            for volume in version.obj["spec"].get("volumes") or ()
        )
