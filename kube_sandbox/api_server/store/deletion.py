"""How objects leave: preconditions, grace periods and finalizers, and the controllers that clean up in the background.

As in k8s.io/apiserver/pkg/registry/rest/delete.go (BeforeDelete) and kubernetes/pkg/controller (garbagecollector,
volume/pvcprotection). The rest of a controller-manager is missing: no Deployments, no endpoints, no volume binder.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from kube_sandbox.api_server.errors import GroupResource, conflict
from kube_sandbox.api_server.kinds.builtin import (
    CLAIM_FINALIZER,
    CLAIMS,
    CUSTOM_RESOURCE_DEFINITIONS,
    DEFINITION_FINALIZER,
    NAMESPACES,
    PODS,
)
from kube_sandbox.api_server.requests import Deletion, Propagation, Selection, Write
from kube_sandbox.api_server.store.metadata import timestamp
from kube_sandbox.api_server.values import clone, field_at, shallow

if TYPE_CHECKING:
    from kube_sandbox.api_server.resource_types import ResourceType
    from kube_sandbox.api_server.store.object_store import ObjectStore
    from kube_sandbox.api_server.store.storage import Change, ObjectKey, StorageKey
    from kube_sandbox.api_server.values import JsonObject

    Place = tuple[StorageKey, ObjectKey]

FOREGROUND_FINALIZER = "foregroundDeletion"
ORPHAN_FINALIZER = "orphan"


def check_preconditions(resource: ResourceType, name: str, metadata: JsonObject, options: Deletion) -> None:
    """Raise 409 unless uid and resourceVersion of the object are those of the request, where it has them."""
    what = GroupResource(resource.group, resource.kind)
    if options.uid is not None and metadata["uid"] != options.uid:
        why = (
            f"the UID in the precondition ({options.uid}) does not match the UID in record ({metadata['uid']})."
            " The object might have been deleted and then recreated"
        )
        raise conflict(what, name, why)
    version = metadata["resourceVersion"]
    if options.resource_version is not None and version != options.resource_version:
        why = (
            f"the ResourceVersion in the precondition ({options.resource_version}) does not match the ResourceVersion"
            f" in record ({version}). The object might have been modified"
        )
        raise conflict(what, name, why)


def is_complete(resource: ResourceType, obj: JsonObject) -> bool:
    """Whether nothing holds an object that is marked for deletion any more."""
    metadata = obj["metadata"]
    return (
        "deletionTimestamp" in metadata
        and not metadata.get("finalizers")
        and not metadata.get("deletionGracePeriodSeconds", 0)
        and not resource.behaviour.is_held(obj)
    )


def begin(resource: ResourceType, obj: JsonObject, options: Deletion, now_seconds: float) -> JsonObject | None:
    """Return the object marked for deletion; None if it is marked already and the request is for nothing sooner."""
    grace = resource.behaviour.grace_period_seconds(obj, options.grace_period_seconds)
    marked = shallow(obj)
    meta = marked["metadata"]
    if options.propagation:
        # The garbage collector's finalizers follow the request.
        wanted = {"Foreground": [FOREGROUND_FINALIZER], "Orphan": [ORPHAN_FINALIZER]}.get(options.propagation, [])
        own = (FOREGROUND_FINALIZER, ORPHAN_FINALIZER)
        meta["finalizers"] = [name for name in meta.get("finalizers") or () if name not in own] + wanted
        if not meta["finalizers"]:
            del meta["finalizers"]
    if "deletionTimestamp" in meta and grace >= meta.get("deletionGracePeriodSeconds", 0):
        return None if meta == obj["metadata"] else marked
    if meta.get("generation", 0) > 0 and "deletionTimestamp" not in meta:
        meta["generation"] += 1
    meta["deletionTimestamp"] = timestamp(now_seconds + grace)
    meta["deletionGracePeriodSeconds"] = grace
    return resource.behaviour.mark_deleted(marked)


class Controllers:
    """Note at every commit what a cluster's controllers would have to do; `run` does it."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._controllers = (GarbageCollector(store), ClaimProtection(store))
        # Namespaces and definitions that are marked for deletion: they go once they are empty.
        self._leaving: set[Place] = set()
        store.storage.listeners.append(self._saw)

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
        """One round. An object that a kubelet or a finalizer still holds is looked at again after the next commit."""
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
        selection = Selection(namespace=key[1])
        left = 0
        for resource in self._store.registry:
            if resource.namespaced:
                self._store.delete_collection(resource, selection)
                left += len(self._store.list_objects(resource, selection).items)
        if not left:
            self._store.remove_now(NAMESPACES, key)

    def _empty_definition(self, key: ObjectKey, definition: JsonObject) -> None:
        finalizers = definition["metadata"].get("finalizers") or ()
        if DEFINITION_FINALIZER not in finalizers:
            return
        spec = definition["spec"]
        resource = self._store.registry.of_storage((spec["group"], spec["names"]["plural"]))
        if resource is not None:
            self._store.delete_collection(resource, Selection())
            if self._store.list_objects(resource).items:
                return
        kept = [name for name in finalizers if name != DEFINITION_FINALIZER]
        changed = {**definition, "metadata": {**definition["metadata"], "finalizers": kept}}
        self._store.update(CUSTOM_RESOURCE_DEFINITIONS, *key, changed)


class GarbageCollector:
    """Delete dependents whose last owner is gone; with foreground deletion before the owner, with orphaning not at all.

    The graph of owners and dependents is kept by listening to commits.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._places: dict[str, Place] = {}
        self._dependents: dict[str, set[Place]] = {}
        self._owners: dict[Place, set[str]] = {}
        self._due: deque[Place] = deque()
        store.storage.listeners.append(self._saw)

    @property
    def has_work(self) -> bool:
        return bool(self._due)

    def _saw(self, key: StorageKey, name: ObjectKey, change: Change) -> None:
        if change.type == "DELETED":
            self._saw_deletion((key, name), change.version.obj["metadata"]["uid"])
        else:
            self._saw_object((key, name), change.version.obj["metadata"])

    def _saw_object(self, place: Place, meta: JsonObject) -> None:
        self._places[meta["uid"]] = place
        owners = {owner["uid"] for owner in meta.get("ownerReferences") or ()}
        before = self._owners.get(place, set())
        for uid in before - owners:
            self._dependents.get(uid, set()).discard(place)
        for uid in owners - before:
            self._dependents.setdefault(uid, set()).add(place)
        self._owners[place] = owners
        waits = {FOREGROUND_FINALIZER, ORPHAN_FINALIZER} & {*(meta.get("finalizers") or ())}
        if owners - before or ("deletionTimestamp" in meta and waits):
            self._due.append(place)

    def _saw_deletion(self, place: Place, uid: str) -> None:
        if self._places.get(uid) == place:
            del self._places[uid]
        for owner in self._owners.pop(place, ()):
            self._dependents.get(owner, set()).discard(place)
            if owner in self._places:
                self._due.append(self._places[owner])
        self._due.extend(self._dependents.pop(uid, ()))

    def run(self) -> None:
        """Work until nothing is left to do."""
        while self._due:
            place = self._due.popleft()
            meta = self._metadata(place)
            if meta is None:
                continue
            finalizers = (meta.get("finalizers") or ()) if "deletionTimestamp" in meta else ()
            if ORPHAN_FINALIZER in finalizers:
                for dependent in tuple(self._dependents.get(meta["uid"], ())):
                    self._drop_references(dependent, {meta["uid"]})
                self._drop_finalizer(place, ORPHAN_FINALIZER)
            elif FOREGROUND_FINALIZER in finalizers:
                self._delete_dependents_first(place, meta["uid"])
            elif meta.get("ownerReferences") and "deletionTimestamp" not in meta:
                self._judge_dependent(place, meta)

    def _metadata(self, place: Place) -> JsonObject | None:
        version = self._store.storage.get(*place)
        return None if version is None else version.obj["metadata"]

    def _judge_dependent(self, place: Place, meta: JsonObject) -> None:
        """Drop references to owners that are gone or wait for this object; delete it if no owner is left."""
        gone: set[str] = set()
        waiting = False
        for reference in meta["ownerReferences"]:
            owner = self._owner(reference["uid"], place)
            waits = owner is not None and FOREGROUND_FINALIZER in (owner.get("finalizers") or ())
            if owner is None or (waits and "deletionTimestamp" in owner):
                gone.add(reference["uid"])
                waiting |= owner is not None
        if len(gone) < len({reference["uid"] for reference in meta["ownerReferences"]}):
            if gone:
                self._drop_references(place, gone)
            return
        resource = self._store.registry.of_storage(place[0])
        if resource is not None:
            propagation: Propagation = "Foreground" if waiting and self._dependents.get(meta["uid"]) else ""
            self._store.delete(resource, *place[1], Deletion(uid=meta["uid"], propagation=propagation))

    def _owner(self, uid: str, dependent: Place) -> JsonObject | None:
        """The owner's metadata, if it exists in the dependent's namespace or outside all namespaces."""
        place = self._places.get(uid)
        if place is None or (place[1][0] and place[1][0] != dependent[1][0]):
            return None
        return self._metadata(place)

    def _delete_dependents_first(self, place: Place, uid: str) -> None:
        blocking = False
        for dependent in tuple(self._dependents.get(uid, ())):
            meta = self._metadata(dependent)
            if meta is not None and "deletionTimestamp" not in meta:
                self._judge_dependent(dependent, meta)
            references = (self._metadata(dependent) or {}).get("ownerReferences") or ()
            blocking |= any(entry["uid"] == uid and entry.get("blockOwnerDeletion") for entry in references)
        if not blocking:
            self._drop_finalizer(place, FOREGROUND_FINALIZER)

    def _drop_references(self, place: Place, uids: set[str]) -> None:
        owners = (self._metadata(place) or {}).get("ownerReferences") or []
        self._change_metadata(place, "ownerReferences", [owner for owner in owners if owner["uid"] not in uids])

    def _drop_finalizer(self, place: Place, finalizer: str) -> None:
        finalizers = (self._metadata(place) or {}).get("finalizers") or []
        self._change_metadata(place, "finalizers", [name for name in finalizers if name != finalizer])

    def _change_metadata(self, place: Place, key: str, kept: list[Any]) -> None:
        resource, version = self._store.registry.of_storage(place[0]), self._store.storage.get(*place)
        if resource is None or version is None:
            return
        obj = clone(version.obj)
        obj["metadata"][key] = kept
        self._store.update(resource, *place[1], obj, Write(field_manager="garbage-collector"))


class ClaimProtection:
    """Take the finalizer off a claim that is being deleted once no pod with a node uses it."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._leaving: set[ObjectKey] = set()
        self._due: set[ObjectKey] = set()
        store.storage.listeners.append(self._saw)

    @property
    def has_work(self) -> bool:
        return bool(self._due)

    def _saw(self, key: StorageKey, name: ObjectKey, change: Change) -> None:
        if key == PODS.storage_key and change.type == "DELETED":
            self._due |= {claim for claim in self._leaving if claim[0] == name[0]}
        elif key == CLAIMS.storage_key:
            meta = change.version.obj["metadata"]
            leaves = "deletionTimestamp" in meta and CLAIM_FINALIZER in (meta.get("finalizers") or ())
            for noted in (self._leaving, self._due):
                (noted.add if leaves and change.type != "DELETED" else noted.discard)(name)

    def run(self) -> None:
        """Look at each claim that may be free; one in use is looked at again when a pod of its namespace has gone."""
        while self._due:
            name = self._due.pop()
            version = self._store.storage.get(CLAIMS.storage_key, name)
            if version is not None and not self._is_used(*name):
                claim = clone(version.obj)
                claim["metadata"]["finalizers"].remove(CLAIM_FINALIZER)
                self._store.update(CLAIMS, *name, claim, Write(field_manager="pvc-protection-controller"))

    def _is_used(self, namespace: str, claim: str) -> bool:
        return any(
            (volume.get("persistentVolumeClaim") or {}).get("claimName") == claim
            for _, version in self._store.storage.all(PODS.storage_key, namespace)
            if field_at(version.obj, "spec.nodeName")
            for volume in version.obj["spec"].get("volumes") or ()
        )
