"""Committed objects, one counter of revisions, and recent changes for watchers.

The counter stands for etcd's revision: each commit takes the next number as the object's resourceVersion. Changes are kept per
resource and bounded, as in kube-apiserver's watch cache: a watch from an older revision gets 410 and the client lists again.
"""

from __future__ import annotations

import functools
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import msgspec

from kube_sandbox.api_server.errors import too_old

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kube_sandbox.api_server.requests import Predicate
    from kube_sandbox.api_server.values import JsonObject

StorageKey = tuple[str, str]
ObjectKey = tuple[str, str]
ChangeType = Literal["ADDED", "MODIFIED", "DELETED"]

encode_json = msgspec.json.Encoder().encode


class Version:
    """One committed state of one object. `obj` never changes; its JSON is made once, for all readers and watchers."""

    def __init__(self, obj: JsonObject, resource_version: int) -> None:
        self.obj = obj
        self.resource_version = resource_version

    @functools.cached_property
    def encoded(self) -> bytes:
        return encode_json(self.obj)

    @functools.cached_property
    def encoded_as_item(self) -> bytes:
        """The JSON as an item of a list of a built-in kind, which names its kind only once."""
        return encode_json({key: value for key, value in self.obj.items() if key not in ("apiVersion", "kind")})


@dataclass(frozen=True, slots=True)
class Change:
    """One commit, as history keeps it and a watcher sees it. Selectors need `before`: an object may come into the selection."""

    type: ChangeType
    namespace: str
    version: Version
    before: Version | None


class Watch:
    """One subscription: a queue that commits fill and its owner drains with `take`."""

    def __init__(self, storage: Storage, key: StorageKey, namespace: str, predicate: Predicate | None) -> None:
        self._storage = storage
        self._key = key
        self._namespace = namespace
        self._predicate = predicate
        self._pending: deque[Change] = deque()
        self.on_ready: Callable[[], None] | None = None
        self.closed = False

    def offer(self, change: Change) -> None:
        """Queue a commit; a watcher that is too far behind is closed and must list again."""
        if self._namespace and change.namespace != self._namespace:
            return
        event = self._seen_as(change)
        if event is None:
            return
        if len(self._pending) >= self._storage.most_pending:
            self.close()
        else:
            self._pending.append(event)
        if self.on_ready is not None:
            self.on_ready()

    def _seen_as(self, change: Change) -> Change | None:
        """The event for this selection: an object that comes into it is ADDED, one that leaves it DELETED."""
        if self._predicate is None:
            return change
        was = change.before is not None and self._predicate(change.before.obj)
        is_now = change.type != "DELETED" and self._predicate(change.version.obj)
        if is_now:
            return replace(change, type="MODIFIED" if was else "ADDED")
        return replace(change, type="DELETED") if was else None

    def take(self) -> list[Change]:
        """Return the events since the last call."""
        taken = list(self._pending)
        self._pending.clear()
        return taken

    def close(self) -> None:
        self.closed = True
        self._storage.forget_watch(self._key, self)
        if self.on_ready is not None:
            self.on_ready()


class _Collection:
    """The objects of one resource, their recent changes and their watchers."""

    def __init__(self, forgotten_up_to: int) -> None:
        self.objects: dict[ObjectKey, Version] = {}
        self.history: deque[Change] = deque()
        self.forgotten_up_to = forgotten_up_to
        self.watches: list[Watch] = []


class Storage:
    """All collections of one API."""

    def __init__(self, *, history_length: int = 2_000, most_pending: int = 10_000) -> None:
        self.revision = 1
        self.most_pending = most_pending
        self._history_length = history_length
        self._collections: dict[StorageKey, _Collection] = {}
        self._start_revision = 1
        # Called at every commit, before watchers get it.
        self.listeners: list[Callable[[StorageKey, ObjectKey, Change], None]] = []

    def _collection(self, key: StorageKey) -> _Collection:
        found = self._collections.get(key)
        if found is None:
            found = self._collections[key] = _Collection(self._start_revision)
        return found

    def get(self, key: StorageKey, name: ObjectKey) -> Version | None:
        return self._collection(key).objects.get(name)

    def all(self, key: StorageKey, namespace: str = "") -> list[tuple[ObjectKey, Version]]:
        """Return objects in etcd's order: by namespace, then name."""
        objects = self._collection(key).objects
        names = (name for name in objects if name[0] == namespace) if namespace else iter(objects)
        return [(name, objects[name]) for name in sorted(names)]

    def everything(self) -> Iterator[tuple[StorageKey, ObjectKey, Version]]:
        for key, collection in list(self._collections.items()):
            for name, version in list(collection.objects.items()):
                yield key, name, version

    def put(self, key: StorageKey, name: ObjectKey, obj: JsonObject) -> Version:
        """Commit an object; the caller must not change it afterwards."""
        self.revision += 1
        obj["metadata"]["resourceVersion"] = str(self.revision)
        version = Version(obj, self.revision)
        collection = self._collection(key)
        before = collection.objects.get(name)
        collection.objects[name] = version
        self._tell(key, name, Change("MODIFIED" if before else "ADDED", name[0], version, before))
        return version

    def remove(self, key: StorageKey, name: ObjectKey) -> Version:
        """Commit a deletion; watchers get the last state under the deletion's own revision."""
        collection = self._collection(key)
        before = collection.objects[name]
        self.revision += 1
        last = dict(before.obj)
        last["metadata"] = {**before.obj["metadata"], "resourceVersion": str(self.revision)}
        version = Version(last, self.revision)
        del collection.objects[name]
        self._tell(key, name, Change("DELETED", name[0], version, before))
        return version

    def _tell(self, key: StorageKey, name: ObjectKey, change: Change) -> None:
        for listener in self.listeners:
            listener(key, name, change)
        collection = self._collection(key)
        collection.history.append(change)
        if len(collection.history) > self._history_length:
            collection.forgotten_up_to = collection.history.popleft().version.resource_version
        for watch in tuple(collection.watches):
            watch.offer(change)

    def watch(self, key: StorageKey, *, since: int, namespace: str = "", predicate: Predicate | None = None) -> Watch:
        """Return a watch of everything after revision `since`; 410 if changes since then are forgotten."""
        collection = self._collection(key)
        if since < collection.forgotten_up_to:
            raise too_old(since, collection.forgotten_up_to)
        watch = Watch(self, key, namespace, predicate)
        for change in collection.history:
            if change.version.resource_version > since:
                watch.offer(change)
        collection.watches.append(watch)
        return watch

    def forget_watch(self, key: StorageKey, watch: Watch) -> None:
        watches = self._collection(key).watches
        if watch in watches:
            watches.remove(watch)

    def forget_past(self) -> None:
        """Drop all history, as a compaction would: a watch that resumes from before gets 410."""
        for collection in self._collections.values():
            collection.history.clear()
            collection.forgotten_up_to = self.revision
        self._start_revision = self.revision

    def close_watches(self, key: StorageKey | None = None) -> None:
        """End running watches, of one resource or of all."""
        for collection_key, collection in self._collections.items():
            if key is None or key == collection_key:
                for watch in tuple(collection.watches):
                    watch.close()
