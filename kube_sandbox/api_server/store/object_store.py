"""The API without sockets: each verb is a method that commits or raises.

A write reads the object, changes it (patch, defaults, what the server owns), validates it and commits it, without an await in
between, so that writes never interleave. Clock and seed are arguments: a simulation gets the same history twice.

Semantics follow k8s.io/apiserver/pkg/registry/generic/registry/store.go and registry/rest.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kube_sandbox.api_server.errors import (
    StatusError,
    already_exists,
    bad_request,
    invalid,
    invalid_object,
    not_found,
    unsupported_media_type,
)
from kube_sandbox.api_server.kinds.builtin import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES, builtin_resources
from kube_sandbox.api_server.kinds.custom_resources import custom_resource_types
from kube_sandbox.api_server.requests import (
    EVERYTHING,
    PLAIN_DELETION,
    Deletion,
    PatchKind,
    Selection,
    Write,
    selector_predicate,
)
from kube_sandbox.api_server.resource_types import ResourceRegistry
from kube_sandbox.api_server.store import deletion, metadata, writes
from kube_sandbox.api_server.store.field_managers import Author, lay_over, track_apply, track_update
from kube_sandbox.api_server.store.storage import Storage, Version, Watch
from kube_sandbox.api_server.store.writes import patched
from kube_sandbox.api_server.values import JsonObject, clone

if TYPE_CHECKING:
    from kube_sandbox.api_server.resource_types import ResourceType

CUSTOM_PATCH_TYPES = ("application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml")
Shape = Callable[[JsonObject], JsonObject]


@dataclass(frozen=True)
class Page:
    """The answer to a list request."""

    items: list[Version]
    resource_version: int


class ObjectStore:
    """All objects of one embedded API. Returned objects are shared with the store: do not change them."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.time,
        seed: int | None = None,
        history_length: int = 2_000,
    ) -> None:
        self.clock = clock
        self.registry = ResourceRegistry(builtin_resources())
        self.storage = Storage(history_length=history_length)
        self._random = random.Random(seed)  # noqa: S311  names and uids, nothing secret
        self._controllers = deletion.Controllers(self)
        # Called when there is work for `run_background`, at most once until the next call of that.
        self.on_background_work: Callable[[], None] | None = None
        self._background_asked = False
        self.storage.listeners.append(self._ask_for_background)
        for name in ("default", "kube-system", "kube-public", "kube-node-lease"):
            self.create(NAMESPACES, "", {"metadata": {"name": name}}, Write(trusted=True))

    def run_background(self) -> None:
        """Do what a cluster's controllers would do by now: garbage collection, emptying of namespaces."""
        self._background_asked = False
        self._controllers.run()

    def _ask_for_background(self, *_: object) -> None:
        if self._controllers.has_work and not self._background_asked and self.on_background_work is not None:
            self._background_asked = True
            self.on_background_work()

    def resource(self, group: str, version: str, plural: str) -> ResourceType:
        """Return the served resource of that name; LookupError if there is none."""
        found = self.registry.find(group, version, plural)
        if found is None:
            raise LookupError(f"no served resource {plural} in {group or 'core'}/{version}")
        return found

    def get(self, resource: ResourceType, namespace: str, name: str) -> Version:
        version = self.storage.get(resource.storage_key, (namespace, name))
        if version is None:
            raise not_found(resource.group_resource, name)
        return version

    def list_objects(self, resource: ResourceType, selection: Selection = EVERYTHING) -> Page:
        predicate = selector_predicate(selection.label_selector, selection.field_selector, resource.selectable_fields)
        found = self.storage.all(resource.storage_key, selection.namespace)
        chosen = [version for _, version in found if predicate is None or predicate(version.obj)]
        return Page(chosen, self.storage.revision)

    def watch(self, resource: ResourceType, selection: Selection = EVERYTHING, *, since: int) -> Watch:
        """Watch changes after `since`."""
        predicate = selector_predicate(selection.label_selector, selection.field_selector, resource.selectable_fields)
        return self.storage.watch(resource.storage_key, since=since, namespace=selection.namespace, predicate=predicate)

    def create(self, resource: ResourceType, namespace: str, body: JsonObject, write: Write | None = None) -> Version:
        write = write or Write()
        obj = clone(body)
        writes.check_body(resource, obj, namespace, "", write)
        new = obj["metadata"]
        if resource.namespaced:
            new["namespace"] = namespace
            self._check_namespace(resource, namespace, new.get("name", ""))
        metadata.prepare_create(
            new,
            uid=str(uuid.UUID(int=self._random.getrandbits(128), version=4)),
            now_seconds=self.clock(),
            random_source=self._random,
        )
        name = str(new.get("name", ""))
        if resource.behaviour.counts_generation:
            new["generation"] = 1
        resource.behaviour.prepare_create(obj)
        resource.behaviour.set_defaults(obj)
        writes.judge(resource, obj, None, "", self._others(resource, (namespace, name)))
        if self.storage.get(resource.storage_key, (namespace, name)) is not None:
            raise already_exists(resource.group_resource, name)
        write.created = True
        self._track(resource, obj, None, write, "")
        resource.behaviour.admit(obj, None)
        return self._commit(resource, (namespace, name), obj, write)

    def update(
        self,
        resource: ResourceType,
        namespace: str,
        name: str,
        body: JsonObject,
        write: Write | None = None,
        *,
        subresource: str = "",
    ) -> Version:
        write = write or Write()
        if not resource.behaviour.unconditional_update and not (body.get("metadata") or {}).get("resourceVersion"):
            complaint = invalid("metadata.resourceVersion", 0, "must be specified for an update")
            raise invalid_object(resource.group, resource.plural, name, [complaint])
        return self._change(resource, (namespace, name), lambda _: clone(body), write, subresource)

    def patch(
        self,
        resource: ResourceType,
        namespace: str,
        name: str,
        patch: Any,
        write: Write,
        *,
        kind: PatchKind = "merge",
        subresource: str = "",
    ) -> Version:
        if resource.custom and kind == "strategic":
            raise unsupported_media_type("application/strategic-merge-patch+json", CUSTOM_PATCH_TYPES)
        write.patch_kind = kind
        return self._change(
            resource, (namespace, name), lambda old: patched(kind, clone(old), patch), write, subresource
        )

    def apply(
        self, resource: ResourceType, namespace: str, name: str, body: Any, write: Write, *, subresource: str = ""
    ) -> Version:
        """Server-side apply: create the object, or merge the configuration into it."""
        if not isinstance(body, dict):
            raise bad_request(f"an applied configuration is an object, got {type(body).__name__}")
        configuration = self._applied_configuration(resource, namespace, name, clone(body), write, subresource)
        author = self._author(resource, write, subresource)
        if self.storage.get(resource.storage_key, (namespace, name)) is None:
            if subresource:
                raise not_found(resource.group_resource, name)
            write.applied = lay_over(resource.behaviour, {"metadata": {}}, configuration, author)
            return self.create(resource, namespace, configuration, write)

        def shape(live: JsonObject) -> JsonObject:
            write.applied = lay_over(resource.behaviour, clone(live), configuration, author)
            return write.applied.obj

        return self._change(resource, (namespace, name), shape, write, subresource)

    def _applied_configuration(
        self, resource: ResourceType, namespace: str, name: str, body: JsonObject, write: Write, subresource: str
    ) -> JsonObject:
        """The part of an applied body that its manager can own, checked for shape."""
        if (body.get("metadata") or {}).get("managedFields"):
            raise bad_request("metadata.managedFields must be nil")
        writes.check_declared(resource, body)
        writes.check_body(resource, body, namespace, name, write)
        body["metadata"]["name"] = name
        if resource.has_status:
            if subresource == "status":
                return {key: body[key] for key in ("apiVersion", "kind", "metadata", "status") if key in body}
            body.pop("status", None)
        return body

    def _author(self, resource: ResourceType, write: Write, subresource: str) -> Author:
        return Author(write.field_manager or "unknown", resource.api_version, subresource, self.clock())

    def _change(
        self, resource: ResourceType, key: tuple[str, str], shape: Shape, write: Write, subresource: str
    ) -> Version:
        """One read-modify-write; `shape` gets the object as this version shows it and returns a new one."""
        namespace, name = key
        current = self.get(resource, namespace, name)
        old = current.obj
        new = shape(old)
        writes.check_body(resource, new, namespace, name, write)
        writes.check_preconditions(resource, name, new["metadata"], old, write)
        new["metadata"].update({"name": name} | ({"namespace": namespace} if resource.namespaced else {}))
        metadata.prepare_update(new["metadata"], old["metadata"])
        resource.behaviour.set_defaults(new)
        resource.behaviour.admit(new, old)
        if subresource == "status":
            resource.behaviour.prepare_status_update(new, old)
        else:
            if resource.has_status:
                new.pop("status", None)
                new.update({"status": old["status"]} if "status" in old else {})
            resource.behaviour.prepare_update(new, old)
            if resource.behaviour.counts_generation and writes.content(new, resource) != writes.content(old, resource):
                new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
        writes.judge(resource, new, old, subresource, self._others(resource, key))
        metadata.tidy(new["metadata"])
        self._track(resource, new, old, write, subresource)
        return self._commit_change(resource, key, new, current, write)

    def _track(
        self, resource: ResourceType, new: JsonObject, old: JsonObject | None, write: Write, subresource: str
    ) -> None:
        author = self._author(resource, write, subresource)
        if write.applied is None:
            track_update(resource.behaviour, new, old, author, ignores_status=resource.has_status)
        else:
            track_apply(resource.behaviour, new, old, write.applied, author, force=write.force)

    def replace_internally(
        self, resource: ResourceType, key: tuple[str, str], obj: JsonObject, write: Write
    ) -> Version:
        """Commit an object that the server itself has changed where clients may not (a pod's node)."""
        return self._commit_change(resource, key, obj, self.get(resource, *key), write)

    def _commit_change(
        self, resource: ResourceType, key: tuple[str, str], new: JsonObject, current: Version, write: Write
    ) -> Version:
        metadata.tidy(new["metadata"])
        new["metadata"]["resourceVersion"] = current.obj["metadata"]["resourceVersion"]
        if writes.without_apply_times(new) == writes.without_apply_times(current.obj):
            return current
        if deletion.is_complete(resource, new) and not write.dry_run:
            gone = self.remove_now(resource, key)
            return Version(self._as_answered(new, gone), gone.resource_version)
        return self._commit(resource, key, new, write)

    def _commit(self, resource: ResourceType, key: tuple[str, str], obj: JsonObject, write: Write) -> Version:
        metadata.tidy(obj["metadata"])
        if write.dry_run:
            return Version(obj, self.storage.revision)
        version = self.storage.put(resource.storage_key, key, obj)
        if resource is CUSTOM_RESOURCE_DEFINITIONS:
            spec = version.obj["spec"]
            self.registry.replace_custom(spec["group"], spec["names"]["plural"], custom_resource_types(version.obj))
        return version

    def remove_now(self, resource: ResourceType, key: tuple[str, str]) -> Version:
        """Remove an object that nothing holds any more."""
        version = self.storage.remove(resource.storage_key, key)
        if resource is CUSTOM_RESOURCE_DEFINITIONS:
            spec = version.obj["spec"]
            gone = (spec["group"], spec["names"]["plural"])
            self.registry.replace_custom(*gone, [])
            self.storage.close_watches(gone)
        return version

    def delete(
        self, resource: ResourceType, namespace: str, name: str, options: Deletion = PLAIN_DELETION
    ) -> tuple[Version, bool]:
        """Return the object after the request, and whether it is gone (False: finalizers or a grace period hold it)."""
        current = self.get(resource, namespace, name)
        deletion.check_preconditions(resource, name, current.obj["metadata"], options)
        marked = deletion.begin(resource, current.obj, options, self.clock())
        if marked is not None and deletion.is_complete(resource, marked):
            if options.dry_run:
                return Version(marked, current.resource_version), True
            gone = self.remove_now(resource, (namespace, name))
            if resource.behaviour.marks_deletion:
                gone = Version(self._as_answered(marked, gone), gone.resource_version)
            return gone, True
        if marked is None or marked == current.obj:
            return current, False
        return self._commit(resource, (namespace, name), marked, Write(dry_run=options.dry_run)), False

    @staticmethod
    def _as_answered(marked: JsonObject, gone: Version) -> JsonObject:
        """The marked object under the revision of its removal, as the answer to a deletion shows it."""
        version = gone.obj["metadata"]["resourceVersion"]
        return {**marked, "metadata": {**marked["metadata"], "resourceVersion": version}}

    def delete_collection(
        self, resource: ResourceType, selection: Selection, options: Deletion = PLAIN_DELETION
    ) -> None:
        for version in self.list_objects(resource, selection).items:
            meta = version.obj["metadata"]
            self.delete(resource, meta.get("namespace", ""), meta["name"], options)

    def _check_namespace(self, resource: ResourceType, namespace: str, name: str) -> None:
        found = self.storage.get(NAMESPACES.storage_key, ("", namespace))
        if found is None:
            raise not_found(NAMESPACES.group_resource, namespace)
        if "deletionTimestamp" in found.obj["metadata"]:
            cause = {
                "reason": "NamespaceTerminating",
                "message": f"namespace {namespace} is being terminated",
                "field": "metadata.namespace",
            }
            what = resource.group_resource
            raise StatusError(
                403,
                "Forbidden",
                f'{what} "{name}" is forbidden: unable to create new content in namespace {namespace} because it is being'
                " terminated",
                what.details(name) | {"causes": [cause]},
            )

    def _others(self, resource: ResourceType, key: tuple[str, str]) -> Iterator[JsonObject]:
        yield from (version.obj for name, version in self.storage.all(resource.storage_key) if name != key)
