"""The subresources that are verbs or views rather than parts of an object: binding, eviction, scale.

kubernetes/pkg/registry/core/pod/storage (binding, eviction), apiextensions-apiserver's scale for custom resources.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kube_sandbox.api_server.errors import (
    GroupResource,
    bad_request,
    conflict,
    invalid,
    invalid_object,
    no_such_path,
    not_found,
    required,
    too_many_requests,
)
from kube_sandbox.api_server.json_values import JsonObject, clone, field_at
from kube_sandbox.api_server.requests import PLAIN_DELETION, Deletion, Selection, Write
from kube_sandbox.api_server.selectors import matches_label_selector
from kube_sandbox.api_server.store.metadata import timestamp

if TYPE_CHECKING:
    from kube_sandbox.api_server.http.targets import Target
    from kube_sandbox.api_server.resource_types import ResourceType
    from kube_sandbox.api_server.store.object_store import ObjectStore

SUCCESS: JsonObject = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def bind(store: ObjectStore, target: Target, binding: JsonObject, write: Write) -> JsonObject:
    """Assigns a pod to a node, once."""
    node = field_at(binding, "target.name")
    if not node:
        raise invalid_object("", "Binding", target.name, [required("target.name")])
    current = store.get(target.resource, target.namespace, target.name).obj
    what = GroupResource("", "pods/binding")
    if "deletionTimestamp" in current["metadata"]:
        raise conflict(what, target.name, f"pod {target.name} is being deleted, cannot be assigned to a host")
    assigned = field_at(current, "spec.nodeName")
    if assigned:
        raise conflict(what, target.name, f'pod {target.name} is already assigned to node "{assigned}"')
    uid = field_at(binding, "metadata.uid")
    if uid and uid != current["metadata"]["uid"]:
        why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {current['metadata']['uid']}"
        raise conflict(what, target.name, why)
    pod = clone(current)
    pod.setdefault("spec", {})["nodeName"] = node
    conditions = [entry for entry in field_at(pod, "status.conditions") or () if entry["type"] != "PodScheduled"]
    now = timestamp(store.clock())
    conditions.append({"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": now})
    pod.setdefault("status", {})["conditions"] = conditions
    store.replace_internally(target.resource, (target.namespace, target.name), pod, write)
    return SUCCESS


def evict(store: ObjectStore, target: Target, eviction: JsonObject, write: Write) -> JsonObject:
    """Deletes a pod unless a disruption budget forbids it; what it grants it takes off the budget at once."""
    pod = store.get(target.resource, target.namespace, target.name).obj
    budgets = store.resource("policy", "v1", "poddisruptionbudgets")
    for version in store.list_objects(budgets, Selection(namespace=target.namespace)).items:
        selector = field_at(version.obj, "spec.selector")
        if selector is None or not matches_label_selector(selector, pod["metadata"].get("labels") or {}):
            continue
        allowed = field_at(version.obj, "status.disruptionsAllowed") or 0
        if allowed < 1:
            name = version.obj["metadata"]["name"]
            cause = {"reason": "DisruptionBudget", "message": f"The disruption budget {name} does not allow it now"}
            raise too_many_requests("Cannot evict pod as it would violate the pod's disruption budget.", [cause])
        disrupted = {target.name: timestamp(store.clock())}
        granted = {"status": {"disruptionsAllowed": allowed - 1, "disruptedPods": disrupted}}
        if not write.dry_run:
            name = version.obj["metadata"]["name"]
            store.patch_merge(budgets, target.namespace, name, granted, Write(), subresource="status")
    options = eviction.get("deleteOptions") or {}
    preconditions = options.get("preconditions") or {}
    deletion = Deletion(
        grace_period_seconds=options.get("gracePeriodSeconds", PLAIN_DELETION.grace_period_seconds),
        uid=preconditions.get("uid"),
        resource_version=preconditions.get("resourceVersion"),
        dry_run=write.dry_run,
    )
    store.delete(target.resource, target.namespace, target.name, deletion)
    return SUCCESS


def read_scale(resource: ResourceType, obj: JsonObject) -> JsonObject:
    """The Scale view of a custom object."""
    paths = resource.scale
    if paths is None:
        raise no_such_path()
    replicas = field_at(obj, paths.spec_replicas)
    if replicas is None:
        raise not_found(GroupResource(resource.group, f"{resource.plural}/scale"), obj["metadata"]["name"])
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    status: JsonObject = {"replicas": field_at(obj, paths.status_replicas) or 0}
    selector = field_at(obj, paths.label_selector) if paths.label_selector else None
    if selector:
        status["selector"] = selector
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: obj["metadata"][key] for key in kept if key in obj["metadata"]},
        "spec": {"replicas": replicas},
        "status": status,
    }


def write_scale(store: ObjectStore, target: Target, scale: Any, write: Write) -> JsonObject:
    """Sets the replicas of a custom object through its Scale view."""
    resource = target.resource
    if resource.scale is None:
        raise no_such_path()
    replicas = field_at(scale, "spec.replicas")
    if type(replicas) is not int:
        raise bad_request(f"spec.replicas: expected a whole number, got {replicas!r}")
    if replicas < 0:
        complaint = invalid("spec.replicas", replicas, "should be a non-negative integer")
        raise invalid_object("autoscaling", "Scale", target.name, [complaint])
    obj = clone(store.get(resource, target.namespace, target.name).obj)
    wanted = field_at(scale, "metadata.resourceVersion")
    if wanted:
        obj["metadata"]["resourceVersion"] = wanted
    *parents, last = resource.scale.spec_replicas.split(".")
    inner = obj
    for part in parents:
        inner = inner.setdefault(part, {})
    inner[last] = replicas
    return read_scale(
        resource, store.update(resource, target.namespace, target.name, obj, write, subresource="scale").obj
    )
