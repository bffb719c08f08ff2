"""What a cluster's garbage collector does: dependents follow their owners.

Decisions as in kubernetes/pkg/controller/garbagecollector: a dependent goes when the last of its owners is gone; with
foreground deletion the owner waits for dependents that block it; with orphaning the dependents lose the reference.
Unlike the real one it never lags: it has done its work when `ObjectStore.run_background` returns. It can be turned off, as a
kube-apiserver without controller-manager has none.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from kube_sandbox.api_server.json_values import clone
from kube_sandbox.api_server.requests import Deletion, Write
from kube_sandbox.api_server.store.deletion import FOREGROUND_FINALIZER, ORPHAN_FINALIZER

if TYPE_CHECKING:
    from kube_sandbox.api_server.json_values import JsonObject
    from kube_sandbox.api_server.store.object_store import ObjectStore
    from kube_sandbox.api_server.store.storage import Change, ObjectKey, StorageKey

Place = tuple["StorageKey", "ObjectKey"]


class GarbageCollector:
    """Keeps the graph of owners and dependents by listening to commits; acts when told to run."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._places: dict[str, Place] = {}
        self._dependents: dict[str, set[Place]] = {}
        self._owners: dict[Place, set[str]] = {}
        self._due: deque[Place] = deque()
        for key, name, version in store.storage.everything():
            self._saw_object((key, name), version.obj)
        store.storage.listeners.append(self.saw)

    @property
    def has_work(self) -> bool:
        return bool(self._due)

    def saw(self, key: StorageKey, name: ObjectKey, change: Change) -> None:
        """Called at every commit."""
        place = (key, name)
        if change.type == "DELETED":
            self._saw_deletion(place, change.version.obj)
        else:
            self._saw_object(place, change.version.obj)

    def _saw_object(self, place: Place, obj: JsonObject) -> None:
        meta = obj["metadata"]
        self._places[meta["uid"]] = place
        owners = {owner["uid"] for owner in meta.get("ownerReferences") or ()}
        before = self._owners.get(place, set())
        for uid in before - owners:
            self._dependents.get(uid, set()).discard(place)
        for uid in owners - before:
            self._dependents.setdefault(uid, set()).add(place)
        if owners:
            self._owners[place] = owners
        else:
            self._owners.pop(place, None)
        finalizers = meta.get("finalizers") or ()
        if owners - before or (
            "deletionTimestamp" in meta and {FOREGROUND_FINALIZER, ORPHAN_FINALIZER} & {*finalizers}
        ):
            self._due.append(place)

    def _saw_deletion(self, place: Place, obj: JsonObject) -> None:
        uid = obj["metadata"]["uid"]
        if self._places.get(uid) == place:
            del self._places[uid]
        for owner in self._owners.pop(place, ()):
            self._dependents.get(owner, set()).discard(place)
            if owner in self._places:
                self._due.append(self._places[owner])
        self._due.extend(self._dependents.pop(uid, ()))

    def run(self) -> None:
        """Works until nothing is left to do."""
        while self._due:
            key, name = self._due.popleft()
            version = self._store.storage.get(key, name)
            if version is not None:
                self._attend((key, name), version.obj)

    def _attend(self, place: Place, obj: JsonObject) -> None:
        meta = obj["metadata"]
        finalizers = meta.get("finalizers") or ()
        if "deletionTimestamp" in meta and ORPHAN_FINALIZER in finalizers:
            self._orphan_dependents(place, meta["uid"])
        elif "deletionTimestamp" in meta and FOREGROUND_FINALIZER in finalizers:
            self._delete_dependents_first(place, meta["uid"])
        elif meta.get("ownerReferences") and "deletionTimestamp" not in meta:
            self._judge_dependent(place, meta)

    def _judge_dependent(self, place: Place, meta: JsonObject) -> None:
        solid, gone = [], []
        waiting = False
        for reference in meta["ownerReferences"]:
            owner = self._owner(reference["uid"], place)
            if owner is None:
                gone.append(reference["uid"])
            elif self._waits_for_dependents(owner):
                waiting = True
                gone.append(reference["uid"])
            else:
                solid.append(reference["uid"])
        if solid and gone:
            self._drop_references(place, set(gone))
        elif not solid:
            has_dependents = bool(self._dependents.get(meta["uid"]))
            self._delete(place, meta["uid"], "Foreground" if waiting and has_dependents else "")

    def _owner(self, uid: str, dependent: Place) -> JsonObject | None:
        """The owner if it exists where it may own: in the dependent's namespace, or outside all namespaces."""
        place = self._places.get(uid)
        if place is None or (place[1][0] and place[1][0] != dependent[1][0]):
            return None
        version = self._store.storage.get(*place)
        return version.obj if version is not None else None

    @staticmethod
    def _waits_for_dependents(owner: JsonObject) -> bool:
        meta = owner["metadata"]
        return "deletionTimestamp" in meta and FOREGROUND_FINALIZER in (meta.get("finalizers") or ())

    def _delete_dependents_first(self, place: Place, uid: str) -> None:
        blocking = False
        for dependent in tuple(self._dependents.get(uid, ())):
            version = self._store.storage.get(*dependent)
            if version is None:
                continue
            meta = version.obj["metadata"]
            if "deletionTimestamp" not in meta:
                self._judge_dependent(dependent, meta)
            still_there = self._store.storage.get(*dependent)
            references = still_there.obj["metadata"].get("ownerReferences") or () if still_there else ()
            blocking |= any(entry["uid"] == uid and entry.get("blockOwnerDeletion") for entry in references)
        if not blocking:
            self._drop_finalizer(place, FOREGROUND_FINALIZER)

    def _orphan_dependents(self, place: Place, uid: str) -> None:
        for dependent in tuple(self._dependents.get(uid, ())):
            self._drop_references(dependent, {uid})
        self._drop_finalizer(place, ORPHAN_FINALIZER)

    # -- effects: ordinary writes, as the real controller's are ----------------------------------------------------

    def _delete(self, place: Place, uid: str, propagation: Any) -> None:
        resource = self._store.registry.of_storage(place[0])
        if resource is not None:
            self._store.delete(resource, *place[1], Deletion(uid=uid, propagation=propagation))

    def _change_metadata(self, place: Place, key: str, kept: list[Any]) -> None:
        resource = self._store.registry.of_storage(place[0])
        version = self._store.storage.get(*place)
        if resource is None or version is None:
            return
        obj = clone(self._store.as_seen(resource, version).obj)
        obj["metadata"][key] = kept
        self._store.update(resource, *place[1], obj, Write(field_manager="garbage-collector"))

    def _drop_references(self, place: Place, uids: set[str]) -> None:
        version = self._store.storage.get(*place)
        if version is not None:
            owners = version.obj["metadata"].get("ownerReferences") or []
            self._change_metadata(place, "ownerReferences", [owner for owner in owners if owner["uid"] not in uids])

    def _drop_finalizer(self, place: Place, finalizer: str) -> None:
        version = self._store.storage.get(*place)
        if version is not None:
            finalizers = version.obj["metadata"].get("finalizers") or []
            self._change_metadata(place, "finalizers", [name for name in finalizers if name != finalizer])
