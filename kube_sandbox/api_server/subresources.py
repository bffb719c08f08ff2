"""The subresources that are verbs or views rather than parts of an object: binding, eviction, scale, log.

Semantics: kubernetes/pkg/registry/core/pod/storage (binding, eviction), apiextensions-apiserver (scale of custom resources).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from aiohttp import web

from kube_sandbox.api_server import verbs
from kube_sandbox.api_server.errors import (
    GroupResource,
    StatusError,
    bad_request,
    conflict,
    invalid,
    invalid_object,
    method_not_allowed,
    not_found,
    required,
    unsupported_media_type,
)
from kube_sandbox.api_server.requests import Deletion, Selection, Write, matches_label_selector
from kube_sandbox.api_server.store.metadata import timestamp
from kube_sandbox.api_server.store.writes import patched
from kube_sandbox.api_server.values import JsonObject, clone, field_at

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kube_sandbox.api_server.resource_types import ResourceType, ScalePaths
    from kube_sandbox.api_server.store.object_store import ObjectStore
    from kube_sandbox.api_server.verbs import Target

VERBS = frozenset(("binding", "eviction", "scale", "log"))
SUCCESS: JsonObject = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


class LogProvider(Protocol):
    """Where container logs come from: the kubelet's files. LookupError if there is none."""

    def __call__(
        self, namespace: str, pod: str, container: str, tail_lines: int | None, follow: bool, /
    ) -> AsyncIterator[bytes]: ...


async def answer(
    store: ObjectStore, target: Target, request: web.BaseRequest, log_provider: LogProvider | None
) -> web.StreamResponse:
    """Answer a request to one of `VERBS`."""
    write = verbs.write_options(request)
    match request.method, target.subresource:
        case "POST", "binding":
            return verbs.json_response(bind(store, target, await verbs.read_object(request), write), status=201)
        case "POST", "eviction":
            return verbs.json_response(evict(store, target, await verbs.read_object(request), write), status=201)
        case "GET", "log":
            return await _log(store, target, request, log_provider)
        case (("GET" | "PUT" | "PATCH"), "scale"):
            return await _scale(store, target, request, write)
    raise method_not_allowed()


def bind(store: ObjectStore, target: Target, binding: JsonObject, write: Write) -> JsonObject:
    """Assign a pod to a node; 409 if it has one."""
    node = field_at(binding, "target.name")
    if not node:
        raise invalid_object("", "Binding", target.name, [required("target.name")])
    pod = clone(store.get(target.resource, target.namespace, target.name).obj)
    what = GroupResource("", "pods/binding")
    if "deletionTimestamp" in pod["metadata"]:
        raise conflict(what, target.name, f"pod {target.name} is being deleted, cannot be assigned to a host")
    assigned = field_at(pod, "spec.nodeName")
    if assigned:
        raise conflict(what, target.name, f'pod {target.name} is already assigned to node "{assigned}"')
    uid = field_at(binding, "metadata.uid")
    if uid and uid != pod["metadata"]["uid"]:
        why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {pod['metadata']['uid']}"
        raise conflict(what, target.name, why)
    pod["spec"]["nodeName"] = node
    conditions = [entry for entry in field_at(pod, "status.conditions") or () if entry["type"] != "PodScheduled"]
    now = timestamp(store.clock())
    conditions.append({"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": now})
    pod.setdefault("status", {})["conditions"] = conditions
    store.replace_internally(target.resource, (target.namespace, target.name), pod, write)
    return SUCCESS


def evict(store: ObjectStore, target: Target, eviction: JsonObject, write: Write) -> JsonObject:
    """Delete a pod unless a disruption budget forbids it; a granted eviction is taken off the budget at once."""
    labels = store.get(target.resource, target.namespace, target.name).obj["metadata"].get("labels") or {}
    budgets = store.resource("policy", "v1", "poddisruptionbudgets")
    for version in store.list_objects(budgets, Selection(namespace=target.namespace)).items:
        selector, name = field_at(version.obj, "spec.selector"), version.obj["metadata"]["name"]
        if selector is None or not matches_label_selector(selector, labels):
            continue
        allowed = field_at(version.obj, "status.disruptionsAllowed") or 0
        if allowed < 1:
            cause = {"reason": "DisruptionBudget", "message": f"The disruption budget {name} does not allow it now"}
            message = "Cannot evict pod as it would violate the pod's disruption budget."
            raise StatusError(429, "TooManyRequests", message, {"causes": [cause]})
        disrupted = {target.name: timestamp(store.clock())}
        granted = {"status": {"disruptionsAllowed": allowed - 1, "disruptedPods": disrupted}}
        if not write.dry_run:
            store.patch(budgets, target.namespace, name, granted, Write(), subresource="status")
    deletion = Deletion.of(eviction.get("deleteOptions") or {}, dry_run=write.dry_run)
    store.delete(target.resource, target.namespace, target.name, deletion)
    return SUCCESS


async def _scale(store: ObjectStore, target: Target, request: web.BaseRequest, write: Write) -> web.Response:
    """The Scale view of a custom object, read or written."""
    resource, paths = target.resource, target.resource.scale
    assert paths is not None, "a kind without it does not serve the subresource"
    shown = _scale_of(resource, paths, store.get(resource, target.namespace, target.name).obj)
    if request.method == "GET":
        return verbs.json_response(shown)
    body = await verbs.read_body(request)
    if request.method == "PATCH":
        kind = verbs.PATCH_KINDS.get(request.content_type)
        if kind is None:
            raise unsupported_media_type(request.content_type, tuple(verbs.PATCH_KINDS))
        del shown["metadata"]["resourceVersion"]
        body = patched(kind, shown, body)
    obj = _scaled(paths, clone(store.get(resource, target.namespace, target.name).obj), body)
    version = store.update(resource, target.namespace, target.name, obj, write, subresource="scale")
    return verbs.json_response(_scale_of(resource, paths, version.obj))


def _scale_of(resource: ResourceType, paths: ScalePaths, obj: JsonObject) -> JsonObject:
    replicas = field_at(obj, paths.spec_replicas)
    if replicas is None:
        raise not_found(GroupResource(resource.group, f"{resource.plural}/scale"), obj["metadata"]["name"])
    status: JsonObject = {"replicas": field_at(obj, paths.status_replicas) or 0}
    selector = field_at(obj, paths.label_selector) if paths.label_selector else None
    if selector:
        status["selector"] = selector
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: obj["metadata"][key] for key in kept if key in obj["metadata"]},
        "spec": {"replicas": replicas},
        "status": status,
    }


def _scaled(paths: ScalePaths, obj: JsonObject, scale: Any) -> JsonObject:
    """The object with the replicas, and the resourceVersion if one is given, of the Scale."""
    replicas = field_at(scale, "spec.replicas")
    if type(replicas) is not int:
        raise bad_request(f"spec.replicas: expected a whole number, got {replicas!r}")
    if replicas < 0:
        complaint = invalid("spec.replicas", replicas, "should be a non-negative integer")
        raise invalid_object("autoscaling", "Scale", obj["metadata"]["name"], [complaint])
    if wanted := field_at(scale, "metadata.resourceVersion"):
        obj["metadata"]["resourceVersion"] = wanted
    *parents, last = paths.spec_replicas.split(".")
    inner = obj
    for part in parents:
        inner = inner.setdefault(part, {})
    inner[last] = replicas
    return obj


async def _log(
    store: ObjectStore, target: Target, request: web.BaseRequest, log_provider: LogProvider | None
) -> web.StreamResponse:
    pod = store.get(target.resource, target.namespace, target.name).obj
    query = request.query
    names = [container["name"] for container in field_at(pod, "spec.containers") or []]
    container = query.get("container", "") or (names[0] if len(names) == 1 else "")
    if not container:
        listed = " ".join(names)
        raise bad_request(f"a container name must be specified for pod {target.name}, choose one of: [{listed}]")
    if container not in names:
        raise bad_request(f"container {container} is not valid for pod {target.name}")
    if log_provider is None:
        raise bad_request(f'container "{container}" in pod "{target.name}": this API has no kubelet to read logs from')
    tail_lines, follow = verbs.whole_number(query, "tailLines"), verbs.is_true(query.get("follow"))
    try:
        chunks = log_provider(target.namespace, target.name, container, tail_lines, follow)
    except LookupError as error:  # the container never started
        raise bad_request(str(error)) from error
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    response.enable_chunked_encoding()
    await response.prepare(request)
    try:
        async for chunk in chunks:
            await response.write(chunk)
    except ConnectionError:
        pass  # the client went away
    return response
