"""One function per HTTP verb: read the request, ask the store, shape the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast, get_args

import msgspec
import yaml
from aiohttp import web

from kube_sandbox.api_server.errors import (
    StatusError,
    bad_request,
    method_not_allowed,
    unsupported_media_type,
)
from kube_sandbox.api_server.http import targets as http_targets
from kube_sandbox.api_server.store.storage import Version, encode_json
from kube_sandbox.api_server.tables import rows as tables

if TYPE_CHECKING:
    from collections.abc import Callable

    from kube_sandbox.api_server.http.targets import Target
    from kube_sandbox.api_server.json_values import JsonObject
    from kube_sandbox.api_server.requests import Write
    from kube_sandbox.api_server.resource_types import ResourceType
    from kube_sandbox.api_server.store.object_store import ObjectStore, Page

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
PROTOBUF = "application/vnd.kubernetes.protobuf"
_decode = msgspec.json.Decoder().decode


def json_response(obj: Any, *, status: int = 200) -> web.Response:
    return web.Response(body=encode_json(obj), status=status, content_type="application/json")


def error_response(error: StatusError) -> web.Response:
    return json_response(error.to_status(), status=error.code)


def version_response(version: Version, write: Write) -> web.Response:
    """The written object, with the store's warnings as `Warning` headers."""
    response = web.Response(body=version.encoded, status=201 if write.created else 200, content_type="application/json")
    for warning in write.warnings:
        escaped = warning.replace("\\", "\\\\").replace('"', '\\"')
        response.headers.add("Warning", f'299 - "{escaped}"')
    return response


async def read_body(request: web.BaseRequest) -> Any:
    """The decoded body, None if it is empty. YAML is accepted as kube-apiserver accepts it."""
    raw = await request.read()
    if not raw:
        return None
    if request.content_type == PROTOBUF:
        # `kubectl create namespace NAME` and its like send it; `kubectl create -f` and `apply -f` send JSON.
        raise unsupported_media_type(PROTOBUF, ("application/json", "application/yaml"))
    if request.content_type.endswith("yaml") and not raw.lstrip().startswith(b"{"):
        try:
            return yaml.safe_load(raw)
        except (yaml.YAMLError, RecursionError) as error:
            raise bad_request(f"error converting YAML to JSON: {error}") from error
    try:
        return _decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise bad_request(f"couldn't get version/kind; json parse error: {error}") from error


async def read_object(request: web.BaseRequest) -> JsonObject:
    body = await read_body(request)
    if not isinstance(body, dict):
        raise bad_request("the request body must be an object")
    return body


def list_metadata(page: Page) -> JsonObject:
    return {"resourceVersion": str(page.resource_version)}


def list_body(resource: ResourceType, page: Page) -> bytes:
    """A list whose items are the JSON that is kept with each version."""
    head: JsonObject = {"kind": resource.list_kind, "apiVersion": resource.api_version, "metadata": list_metadata(page)}
    if resource.custom:
        head["metadata"].setdefault("continue", "")
    if resource.custom:
        items = b",".join([version.encoded for version in page.items])
    else:
        items = b",".join([version.encoded_as_item for version in page.items])
    return encode_json(head)[:-1] + b',"items":[' + items + b"]}"


def included_object(request: web.BaseRequest) -> tables.IncludeObject:
    wanted = request.query.get("includeObject", "") or "Metadata"
    if wanted not in get_args(tables.IncludeObject):
        raise bad_request(f"includeObject: expected None, Metadata or Object, got {wanted!r}")
    return cast("tables.IncludeObject", wanted)


async def read_list(store: ObjectStore, target: Target, request: web.BaseRequest) -> web.Response:
    page = read_page(store, target, request)
    match tables.wanted_view(request.headers.get("Accept", "")):
        case "Table":
            shown = tables.table(
                target.resource,
                page.items,
                list_metadata=list_metadata(page),
                include=included_object(request),
                now_seconds=store.clock(),
            )
            return json_response(shown)
        case "PartialObjectMetadata":
            items = [tables.partial_metadata(version.obj) for version in page.items]
            head = {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1"}
            return json_response({**head, "metadata": list_metadata(page), "items": items})
    return web.Response(body=list_body(target.resource, page), content_type="application/json")


async def read_one(store: ObjectStore, target: Target, request: web.BaseRequest) -> web.Response:
    version = store.get(target.resource, target.namespace, target.name)
    match tables.wanted_view(request.headers.get("Accept", "")):
        case "Table":
            shown = tables.table(
                target.resource,
                [version],
                list_metadata={"resourceVersion": str(version.resource_version)},
                include=included_object(request),
                now_seconds=store.clock(),
            )
            return json_response(shown)
        case "PartialObjectMetadata":
            return json_response(tables.partial_metadata(version.obj))
    return web.Response(body=version.encoded, content_type="application/json")


def watch_render(store: ObjectStore, target: Target, request: web.BaseRequest) -> Callable[[Version], bytes]:
    """How a watch shows each version; a Table tells its columns once."""
    view = tables.wanted_view(request.headers.get("Accept", ""))
    include = included_object(request)
    told_columns = False

    def as_table(version: Version) -> bytes:
        nonlocal told_columns
        shown = tables.table(
            target.resource,
            [version],
            list_metadata={"resourceVersion": str(version.resource_version)},
            include=include,
            now_seconds=store.clock(),
            with_columns=not told_columns,
        )
        told_columns = True
        return encode_json(shown)

    if view == "Table":
        return as_table
    if view == "PartialObjectMetadata":
        return lambda version: encode_json(tables.partial_metadata(version.obj))
    return lambda version: version.encoded


def read_page(store: ObjectStore, target: Target, request: web.BaseRequest) -> Page:
    """Everything at once, whatever `limit` says: a server may."""
    return store.list_objects(target.resource, http_targets.selection(target, request.query))


async def create(store: ObjectStore, target: Target, request: web.BaseRequest) -> web.Response:
    write = http_targets.write_options(request.query, request.headers.get("User-Agent", ""))
    body = await read_object(request)
    if target.resource.namespaced and not target.namespace:
        raise method_not_allowed()
    version = store.create(target.resource, target.namespace, body, write)
    return version_response(version, write)


async def update(store: ObjectStore, target: Target, request: web.BaseRequest) -> web.Response:
    write = http_targets.write_options(request.query, request.headers.get("User-Agent", ""))
    body = await read_object(request)
    version = store.update(target.resource, target.namespace, target.name, body, write, subresource=target.subresource)
    return version_response(version, write)


async def patch(store: ObjectStore, target: Target, request: web.BaseRequest) -> web.Response:
    write = http_targets.write_options(request.query, request.headers.get("User-Agent", ""))
    body = await read_body(request)
    write.patched = request.content_type in (JSON_PATCH, MERGE_PATCH)
    where = (target.resource, target.namespace, target.name)
    match request.content_type:
        case "application/json-patch+json":
            version = store.patch_json(*where, body, write, subresource=target.subresource)
        case "application/merge-patch+json":
            version = store.patch_merge(*where, body, write, subresource=target.subresource)
        case "application/strategic-merge-patch+json":
            version = store.patch_strategic(*where, body, write, subresource=target.subresource)
        case "application/apply-patch+yaml":
            if not request.query.get("fieldManager"):
                raise bad_request(
                    'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch'
                )
            version = store.apply(*where, body, write, subresource=target.subresource)
        case other:
            raise unsupported_media_type(other, (JSON_PATCH, MERGE_PATCH, STRATEGIC_MERGE_PATCH, APPLY_PATCH))
    return version_response(version, write)


async def delete(store: ObjectStore, target: Target, request: web.BaseRequest) -> web.Response:
    body = await read_body(request)
    options = http_targets.deletion_options(request.query, body if isinstance(body, dict) else {})
    version, gone = store.delete(target.resource, target.namespace, target.name, options)
    if not gone or target.resource.behaviour.returns_deleted_object:
        return web.Response(body=version.encoded, content_type="application/json")
    meta = version.obj["metadata"]
    details = {**target.resource.group_resource.details(target.name), "uid": meta["uid"]}
    return json_response(
        {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
    )


async def delete_collection(store: ObjectStore, target: Target, request: web.BaseRequest) -> web.Response:
    body = await read_body(request)
    options = http_targets.deletion_options(request.query, body if isinstance(body, dict) else {})
    page = read_page(store, target, request)
    store.delete_collection(target.resource, http_targets.selection(target, request.query), options)
    return web.Response(body=list_body(target.resource, page), content_type="application/json")
