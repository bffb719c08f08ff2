"""From an HTTP request to its target, the store's answer, and back: one function for each verb.

Paths and options: https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-uris.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast, get_args

import msgspec
import yaml
from aiohttp import web

from kube_sandbox.api_server import tables
from kube_sandbox.api_server.errors import (
    NoSuchPathError,
    StatusError,
    bad_request,
    method_not_allowed,
    not_found,
    unsupported_media_type,
)
from kube_sandbox.api_server.requests import Deletion, FieldValidation, PatchKind, Propagation, Selection, Write
from kube_sandbox.api_server.store.storage import Version, encode_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kube_sandbox.api_server.resource_types import ResourceRegistry, ResourceType
    from kube_sandbox.api_server.store.object_store import ObjectStore, Page
    from kube_sandbox.api_server.values import JsonObject

PATCH_KINDS: dict[str, PatchKind] = {
    "application/json-patch+json": "json",
    "application/merge-patch+json": "merge",
    "application/strategic-merge-patch+json": "strategic",
}
APPLY_PATCH = "application/apply-patch+yaml"
PROTOBUF = "application/vnd.kubernetes.protobuf"
_NAMESPACE_SUBRESOURCES = ("status", "finalize")
_decode = msgspec.json.Decoder().decode


@dataclass(frozen=True)
class Target:
    """A collection (no name), an object, or one of its subresources."""

    resource: ResourceType
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def find_target(registry: ResourceRegistry, path: str) -> Target:
    """Return the target of a path below /api or /apis; 404 for what is not served."""
    parts = [part for part in path.split("/") if part]
    if len(parts) >= 3 and parts[0] == "api":
        group, version, rest = "", parts[1], parts[2:]
    elif len(parts) >= 4 and parts[0] == "apis":
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        raise NoSuchPathError
    namespace = ""
    if rest[0] == "namespaces" and len(rest) >= 3 and not (not group and rest[2] in _NAMESPACE_SUBRESOURCES):
        namespace, rest = rest[1], rest[2:]
    resource = registry.find(group, version, rest[0])
    if resource is None or len(rest) > 3 or (namespace and not resource.namespaced):
        raise NoSuchPathError
    name, subresource = (*rest[1:], "", "")[:2]
    if name and resource.namespaced and not namespace:
        raise NoSuchPathError
    if subresource and subresource not in resource.subresources:
        raise not_found(resource.group_resource, name) if resource.custom else NoSuchPathError()
    return Target(resource, namespace, name, subresource)


async def read_list(store: ObjectStore, target: Target, request: web.BaseRequest) -> web.Response:
    """GET of a collection: everything at once, whatever `limit` says (a server may)."""
    page = store.list_objects(target.resource, selection(target, request.query))
    if tables.wants_table(request.headers.get("Accept", "")):
        return json_response(
            tables.table(target.resource, page.items, page.resource_version, now_seconds=store.clock())
        )
    return web.Response(body=_list_body(target.resource, page), content_type="application/json")


async def read_one(store: ObjectStore, target: Target, request: web.BaseRequest) -> web.Response:
    """GET of an object."""
    version = store.get(target.resource, target.namespace, target.name)
    return web.Response(body=render(store, target, request)(version), content_type="application/json")


async def create(store: ObjectStore, target: Target, request: web.BaseRequest) -> web.Response:
    """POST."""
    write = write_options(request)
    body = await read_object(request)
    if target.resource.namespaced and not target.namespace:
        raise method_not_allowed()
    return _written(store.create(target.resource, target.namespace, body, write), write)


async def update(store: ObjectStore, target: Target, request: web.BaseRequest) -> web.Response:
    """PUT."""
    write = write_options(request)
    body = await read_object(request)
    version = store.update(target.resource, target.namespace, target.name, body, write, subresource=target.subresource)
    return _written(version, write)


async def patch(store: ObjectStore, target: Target, request: web.BaseRequest) -> web.Response:
    """PATCH: JSON patch, merge patch, strategic merge patch or server-side apply."""
    write, content_type = write_options(request), request.content_type
    body = await read_body(request)
    where = (target.resource, target.namespace, target.name)
    if content_type in PATCH_KINDS:
        kind = PATCH_KINDS[content_type]
        version = store.patch(*where, body, write, kind=kind, subresource=target.subresource)
    elif content_type == APPLY_PATCH:
        if not request.query.get("fieldManager"):
            raise bad_request(
                'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch'
            )
        version = store.apply(*where, body, write, subresource=target.subresource)
    else:
        raise unsupported_media_type(content_type, (*PATCH_KINDS, APPLY_PATCH))
    return _written(version, write)


async def delete(store: ObjectStore, target: Target, request: web.BaseRequest) -> web.Response:
    """DELETE of an object: answers with the object if it is still there or its kind does so, else with a Status."""
    options = await deletion_options(request)
    version, gone = store.delete(target.resource, target.namespace, target.name, options)
    if not gone or target.resource.behaviour.returns_deleted_object:
        return web.Response(body=version.encoded, content_type="application/json")
    details = {**target.resource.group_resource.details(target.name), "uid": version.obj["metadata"]["uid"]}
    return json_response(
        {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
    )


async def delete_collection(store: ObjectStore, target: Target, request: web.BaseRequest) -> web.Response:
    """DELETE of a collection."""
    options = await deletion_options(request)
    wanted = selection(target, request.query)
    page = store.list_objects(target.resource, wanted)
    store.delete_collection(target.resource, wanted, options)
    return web.Response(body=_list_body(target.resource, page), content_type="application/json")


def render(store: ObjectStore, target: Target, request: web.BaseRequest) -> Callable[[Version], bytes]:
    """Return how this request shows a version of an object."""
    if not tables.wants_table(request.headers.get("Accept", "")):
        return lambda version: version.encoded
    return lambda version: encode_json(
        tables.table(target.resource, [version], version.resource_version, now_seconds=store.clock())
    )


def json_response(obj: Any, *, status: int = 200) -> web.Response:
    """Return an answer in JSON."""
    return web.Response(body=encode_json(obj), status=status, content_type="application/json")


def error_response(error: StatusError) -> web.Response:
    """Return the Status of a refusal."""
    return json_response(error.to_status(), status=error.code)


def _written(version: Version, write: Write) -> web.Response:
    """The written object, with the store's warnings as `Warning` headers."""
    response = web.Response(body=version.encoded, status=201 if write.created else 200, content_type="application/json")
    for warning in write.warnings:
        escaped = warning.replace("\\", "\\\\").replace('"', '\\"')
        response.headers.add("Warning", f'299 - "{escaped}"')
    return response


def _list_body(resource: ResourceType, page: Page) -> bytes:
    """A list whose items are the JSON that is kept with each version."""
    head: JsonObject = {
        "kind": resource.list_kind,
        "apiVersion": resource.api_version,
        "metadata": {"resourceVersion": str(page.resource_version)},
    }
    if resource.custom:
        head["metadata"]["continue"] = ""
    items = [version.encoded if resource.custom else version.encoded_as_item for version in page.items]
    return encode_json(head)[:-1] + b',"items":[' + b",".join(items) + b"]}"


async def read_body(request: web.BaseRequest) -> Any:
    """Return the decoded body, JSON or YAML, None if it is empty."""
    raw = await request.read()
    if not raw:
        return None
    if request.content_type == PROTOBUF:
        # `kubectl create namespace NAME` and its like send it; `kubectl create -f` and `apply -f` send JSON.
        raise unsupported_media_type(PROTOBUF, ("application/json", "application/yaml"))
    try:
        if request.content_type.endswith("yaml") and not raw.lstrip().startswith(b"{"):
            return yaml.safe_load(raw)
        return _decode(raw)
    except (yaml.YAMLError, msgspec.DecodeError, RecursionError) as error:
        raise bad_request(f"couldn't get version/kind; parse error: {error}") from error


async def read_object(request: web.BaseRequest) -> JsonObject:
    """Return the decoded body; 400 if it is no object."""
    body = await read_body(request)
    if not isinstance(body, dict):
        raise bad_request("the request body must be an object")
    return body


def is_true(text: str | None) -> bool:
    """Whether an option of the query is set."""
    return text in ("1", "true", "True")


def whole_number(query: Mapping[str, str], key: str) -> int | None:
    """Return a non-negative integer of the query, None where it is not given."""
    text = query.get(key, "")
    if text and not text.isdigit():
        raise bad_request(f"{key}: expected a whole number, got {text!r}")
    return int(text) if text else None


def selection(target: Target, query: Mapping[str, str]) -> Selection:
    """Return which objects list, watch and deletecollection mean; a named target selects itself."""
    fields = query.get("fieldSelector", "")
    if target.name:
        fields = f"{fields},metadata.name={target.name}" if fields else f"metadata.name={target.name}"
    return Selection(target.namespace, query.get("labelSelector", ""), fields)


def write_options(request: web.BaseRequest) -> Write:
    """Return dryRun, fieldManager, fieldValidation and force."""
    query = request.query
    dry_run = query.get("dryRun", "")
    if dry_run not in ("", "All"):
        raise bad_request(f'dryRun: Unsupported value: "{dry_run}": supported values: "All"')
    validation = query.get("fieldValidation", "") or "Warn"
    if validation not in get_args(FieldValidation):
        raise bad_request(f'fieldValidation: Unsupported value: "{validation}"')
    agent = request.headers.get("User-Agent", "").split("/", maxsplit=1)[0][:128]
    return Write(
        dry_run=bool(dry_run),
        field_manager=query.get("fieldManager", "") or agent or "unknown",
        field_validation=cast("FieldValidation", validation),
        force=is_true(query.get("force")),
    )


async def deletion_options(request: web.BaseRequest) -> Deletion:
    """Return the DeleteOptions of the body, or of the query where the body has none."""
    sent, query = await read_body(request), request.query
    body: JsonObject = sent if isinstance(sent, dict) else {}
    if body.get("gracePeriodSeconds") is None:
        body["gracePeriodSeconds"] = whole_number(query, "gracePeriodSeconds")
    propagation: Any = body.get("propagationPolicy") or query.get("propagationPolicy", "")
    if propagation not in get_args(Propagation):
        raise bad_request(f'propagationPolicy: Unsupported value: "{propagation}"')
    return Deletion.of(body, propagation=propagation, dry_run=bool(body.get("dryRun") or query.get("dryRun")))
