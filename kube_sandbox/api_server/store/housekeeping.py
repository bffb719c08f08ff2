"""What goes on in the background of a cluster: namespaces and definitions empty themselves before they go.

The rest of a controller-manager is not here: no Deployments, no endpoints, no volume binder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kube_sandbox.api_server.kinds.behaviours import DEFINITION_FINALIZER
from kube_sandbox.api_server.kinds.builtin import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES
from kube_sandbox.api_server.requests import Selection
from kube_sandbox.api_server.store.claim_protection import ClaimProtection
from kube_sandbox.api_server.store.garbage_collector import GarbageCollector

if TYPE_CHECKING:
    from kube_sandbox.api_server.json_values import JsonObject
    from kube_sandbox.api_server.store.object_store import ObjectStore
    from kube_sandbox.api_server.store.storage import Change, ObjectKey, StorageKey


class Housekeeping:
    """Notices at every commit what is to do, and does it when `run` is called."""

    def __init__(self, store: ObjectStore, *, garbage_collection: bool) -> None:
        self._store = store
        self._controllers = (GarbageCollector(store), ClaimProtection(store)) if garbage_collection else ()
        self._leaving: set[tuple[StorageKey, ObjectKey]] = set()
        store.storage.listeners.append(self._saw)
        for key in (NAMESPACES.storage_key, CUSTOM_RESOURCE_DEFINITIONS.storage_key):
            for name, version in store.storage.all(key):
                if "deletionTimestamp" in version.obj["metadata"]:
                    self._leaving.add((key, name))

    @property
    def has_work(self) -> bool:
        return bool(self._leaving) or any(controller.has_work for controller in self._controllers)

    def _saw(self, key: StorageKey, name: ObjectKey, change: Change) -> None:
        if key in (NAMESPACES.storage_key, CUSTOM_RESOURCE_DEFINITIONS.storage_key):
            if change.type == "DELETED":
                self._leaving.discard((key, name))
            elif "deletionTimestamp" in change.version.obj["metadata"]:
                self._leaving.add((key, name))

    def run(self) -> None:
        """One round; what waits for somebody else (a kubelet, a finalizer) is looked at again after the next commit."""
        for key, name in tuple(self._leaving):
            version = self._store.storage.get(key, name)
            if version is None:
                self._leaving.discard((key, name))
            elif key == NAMESPACES.storage_key:
                self._empty_namespace(name)
            else:
                self._empty_definition(name, version.obj)
        while any(controller.has_work for controller in self._controllers):
            for controller in self._controllers:
                controller.run()

    def _empty_namespace(self, key: ObjectKey) -> None:
        namespace = key[1]
        left = 0
        for resource in self._store.registry:
            if resource.namespaced and (resource.group, resource.plural) == resource.storage_key:
                selection = Selection(namespace=namespace)
                self._store.delete_collection(resource, selection)
                left += len(self._store.list_objects(resource, selection).items)
        if not left:
            self._store.remove_now(NAMESPACES, key)

    def _empty_definition(self, key: ObjectKey, definition: JsonObject) -> None:
        if DEFINITION_FINALIZER not in (definition["metadata"].get("finalizers") or ()):
            return
        spec = definition["spec"]
        resource = self._store.registry.of_storage((spec["group"], spec["names"]["plural"]))
        if resource is not None:
            self._store.delete_collection(resource, Selection())
            if self._store.list_objects(resource).items:
                return
        finalizers = [name for name in definition["metadata"]["finalizers"] if name != DEFINITION_FINALIZER]
        changed = {**definition, "metadata": {**definition["metadata"], "finalizers": finalizers}}
        self._store.update(CUSTOM_RESOURCE_DEFINITIONS, *key, changed)
