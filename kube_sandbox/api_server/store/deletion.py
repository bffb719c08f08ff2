"""How objects leave: preconditions, grace periods and finalizers, and the controllers that clean up in the background.

As in k8s.io/apiserver/pkg/registry/rest/delete.go (BeforeDelete) and kubernetes/pkg/controller (garbagecollector,
volume/pvcprotection). The rest of a controller-manager is missing: no Deployments, no endpoints, no volume binder.
"""

from __future__ import annotations

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
from kube_sandbox.api_server.values import field_at, shallow

if TYPE_CHECKING:
    from collections.abc import Callable

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
    """Do what a cluster's controllers would do about deleted objects: the garbage collector, and those of namespaces and claims.

    A commit that may give them work sets `has_work`; `run` looks at all objects until nothing changes any more.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.has_work = False
        self._places: dict[str, Place] = {}
        store.storage.listeners.append(self._saw)

    def _saw(self, _key: StorageKey, _name: ObjectKey, change: Change) -> None:
        meta, before = change.version.obj["metadata"], change.before
        owners_before = before.obj["metadata"].get("ownerReferences") if before is not None else None
        gone = change.type == "DELETED" or "deletionTimestamp" in meta
        self.has_work |= gone or meta.get("ownerReferences") != owners_before

    def run(self) -> None:
        """What a kubelet or a finalizer still holds is looked at again after the next commit."""
        while self.has_work:
            self.has_work = False
            everything = list(self._store.storage.everything())
            self._places = {version.obj["metadata"]["uid"]: (key, name) for key, name, version in everything}
            for uid, place in self._places.items():
                meta = self._metadata(uid)
                if meta is not None and "deletionTimestamp" in meta:
                    self._go_on_with_deletion(place, meta)
                elif meta is not None and meta.get("ownerReferences"):
                    self._judge_dependent(place, meta)

    def _metadata(self, uid: str) -> JsonObject | None:
        """Metadata of the object with this uid, if it still exists."""
        version = self._store.storage.get(*self._places[uid]) if uid in self._places else None
        return version.obj["metadata"] if version is not None and version.obj["metadata"]["uid"] == uid else None

    def _go_on_with_deletion(self, place: Place, meta: JsonObject) -> None:
        (key, name), finalizers = place, meta.get("finalizers") or ()
        if ORPHAN_FINALIZER in finalizers:
            for dependent, below in self._dependents(meta["uid"]):
                self._keep(dependent, below, "ownerReferences", lambda owner: owner["uid"] != meta["uid"])
            self._drop_finalizer(place, meta, ORPHAN_FINALIZER)
        elif FOREGROUND_FINALIZER in finalizers:
            self._delete_dependents_first(place, meta)
        elif key == NAMESPACES.storage_key:
            self._empty_namespace(name)
        elif key == CUSTOM_RESOURCE_DEFINITIONS.storage_key and DEFINITION_FINALIZER in finalizers:
            self._empty_definition(place, meta)
        elif key == CLAIMS.storage_key and CLAIM_FINALIZER in finalizers and not self._is_used(*name):
            self._drop_finalizer(place, meta, CLAIM_FINALIZER)

    def _dependents(self, uid: str) -> list[tuple[Place, JsonObject]]:
        return [
            ((key, name), version.obj["metadata"])
            for key, name, version in self._store.storage.everything()
            if any(owner["uid"] == uid for owner in version.obj["metadata"].get("ownerReferences") or ())
        ]

    def _judge_dependent(self, place: Place, meta: JsonObject) -> None:
        """Drop references to owners that are gone or wait for this object; delete it if no owner is left."""
        owners = {reference["uid"]: self._metadata(reference["uid"]) for reference in meta["ownerReferences"]}
        gone, waiting = set(), False
        for uid, owner in owners.items():
            # An owner is in the same namespace or outside all namespaces.
            if owner is None or owner.get("namespace", "") not in ("", place[1][0]):
                gone.add(uid)
            elif "deletionTimestamp" in owner and FOREGROUND_FINALIZER in (owner.get("finalizers") or ()):
                gone.add(uid)
                waiting = True
        if len(gone) < len(owners):
            if gone:
                self._keep(place, meta, "ownerReferences", lambda owner: owner["uid"] not in gone)
            return
        resource = self._store.registry.of_storage(place[0])
        if resource is not None:
            propagation: Propagation = "Foreground" if waiting and self._dependents(meta["uid"]) else ""
            self._store.delete(resource, *place[1], Deletion(uid=meta["uid"], propagation=propagation))

    def _delete_dependents_first(self, place: Place, meta: JsonObject) -> None:
        for dependent, below in self._dependents(meta["uid"]):
            if "deletionTimestamp" not in below:
                self._judge_dependent(dependent, below)
        owners = [owner for _, below in self._dependents(meta["uid"]) for owner in below["ownerReferences"]]
        if not any(owner["uid"] == meta["uid"] and owner.get("blockOwnerDeletion") for owner in owners):
            self._drop_finalizer(place, meta, FOREGROUND_FINALIZER)

    def _empty_namespace(self, key: ObjectKey) -> None:
        selection = Selection(namespace=key[1])
        left = 0
        for resource in self._store.registry:
            if resource.namespaced:
                self._store.delete_collection(resource, selection)
                left += len(self._store.list_objects(resource, selection).items)
        if not left:
            self._store.remove_now(NAMESPACES, key)

    def _empty_definition(self, place: Place, meta: JsonObject) -> None:
        spec = self._store.get(CUSTOM_RESOURCE_DEFINITIONS, *place[1]).obj["spec"]
        resource = self._store.registry.of_storage((spec["group"], spec["names"]["plural"]))
        if resource is not None:
            self._store.delete_collection(resource, Selection())
        if resource is None or not self._store.list_objects(resource).items:
            self._drop_finalizer(place, meta, DEFINITION_FINALIZER)

    def _is_used(self, namespace: str, claim: str) -> bool:
        """Whether a pod with a node has the claim."""
        return any(
            (volume.get("persistentVolumeClaim") or {}).get("claimName") == claim
            for _, version in self._store.storage.all(PODS.storage_key, namespace)
            if field_at(version.obj, "spec.nodeName")
            for volume in version.obj["spec"].get("volumes") or ()
        )

    def _drop_finalizer(self, place: Place, meta: JsonObject, finalizer: str) -> None:
        self._keep(place, meta, "finalizers", lambda name: name != finalizer)

    def _keep(self, place: Place, meta: JsonObject, key: str, kept: Callable[[Any], bool]) -> None:
        """Update an object so that only these items of a list of its metadata are left."""
        resource, version = self._store.registry.of_storage(place[0]), self._store.storage.get(*place)
        if resource is not None and version is not None:
            items = [item for item in meta.get(key) or () if kept(item)]
            changed = {**version.obj, "metadata": {**version.obj["metadata"], key: items}}
            self._store.update(resource, *place[1], changed, Write(field_manager="garbage-collector"))
