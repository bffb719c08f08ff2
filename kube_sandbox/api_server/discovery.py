"""The documents that are not about objects: health, version, groups and resources, and what kubectl needs of OpenAPI.

OpenAPI says only that a PATCH takes `fieldValidation`, so that kubectl leaves validation to the server. There are no schemas,
so `kubectl explain` has nothing to print, and kubectl computes strategic merge patches from its own types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from kube_sandbox.api_server.errors import NoSuchPathError
from kube_sandbox.api_server.store.object_store import CUSTOM_PATCH_TYPES
from kube_sandbox.api_server.verbs import json_response

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kube_sandbox.api_server.resource_types import ResourceRegistry, ResourceType
    from kube_sandbox.api_server.values import JsonObject

VERSION: JsonObject = {
    "major": "1",
    "minor": "35",
    "gitVersion": "v1.35.4+kube-sandbox",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "2026-01-01T00:00:00Z",
    "goVersion": "none",
    "compiler": "none",
    "platform": "linux/amd64",
}
# The kind of object that a subresource takes, and its verbs.
_SUBRESOURCES: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "scale": ("autoscaling", "v1", "Scale", ("get", "patch", "update")),
    "binding": ("", "v1", "Binding", ("create",)),
    "eviction": ("policy", "v1", "Eviction", ("create",)),
    "log": ("", "v1", "Pod", ("get",)),
}


def document_at(  # noqa: PLR0911 (one return a document)
    registry: ResourceRegistry, server_address: str, path: str
) -> web.Response | None:
    """Return the document at a path, None if objects are meant; 404 for a group or version that is not served."""
    match [part for part in path.split("/") if part]:
        case ["healthz" | "readyz" | "livez", *_]:
            return web.Response(text="ok")
        case ["version"]:
            return json_response(VERSION)
        case ["openapi", "v3"]:
            # The hash changes with what is served, so that clients' caches follow.
            served = sorted({_openapi_path(resource) for resource in registry})
            urls = {name: f"/openapi/v3/{name}?hash={registry.generation}" for name in served}
            return json_response({"paths": {name: {"serverRelativeURL": url} for name, url in urls.items()}})
        case ["openapi", "v3", *rest]:
            return _or_404(_openapi_document(registry, "/".join(rest)))
        case ["api"]:
            cidrs = [{"clientCIDR": "0.0.0.0/0", "serverAddress": server_address}]
            return json_response({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": cidrs})
        case ["api", version]:
            return _or_404(_resource_list(registry, "", version))
        case ["apis"]:
            groups = [_group(name, versions) for name, versions in registry.groups().items() if name]
            return json_response({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        case ["apis", group]:
            versions = registry.groups().get(group)
            return _or_404({"kind": "APIGroup", "apiVersion": "v1", **_group(group, versions)} if versions else None)
        case ["apis", group, version]:
            return _or_404(_resource_list(registry, group, version))
    return None


def _or_404(document: JsonObject | None) -> web.Response:
    if document is None:
        raise NoSuchPathError
    return json_response(document)


def _group(name: str, versions: list[str]) -> JsonObject:
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def _resource_list(registry: ResourceRegistry, group: str, version: str) -> JsonObject | None:
    found = [resource for resource in registry if (resource.group, resource.version) == (group, version)]
    if not found:
        return None
    found.sort(key=lambda resource: resource.plural)
    entries = [entry for resource in found for entry in _entries(resource)]
    return {
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": found[0].api_version, "resources": entries
    }  # fmt: skip


def _entries(resource: ResourceType) -> Iterator[JsonObject]:
    """The entry of a resource, then those of its subresources."""
    entry: JsonObject = {"name": resource.plural, "singularName": resource.singular, "namespaced": resource.namespaced}
    entry |= {"kind": resource.kind, "verbs": ALL_VERBS}
    if resource.short_names:
        entry["shortNames"] = resource.short_names
    if resource.categories:
        entry["categories"] = resource.categories
    yield entry
    for name in resource.subresources:
        group, version, kind, verbs = _SUBRESOURCES.get(name, ("", "", resource.kind, ("get", "patch", "update")))
        below = {"name": f"{resource.plural}/{name}", "singularName": "", "namespaced": resource.namespaced}
        yield {**below, "kind": kind, "verbs": verbs} | ({"group": group, "version": version} if group else {})


def _openapi_path(resource: ResourceType) -> str:
    return f"apis/{resource.api_version}" if resource.group else f"api/{resource.version}"


def _openapi_document(registry: ResourceRegistry, path: str) -> JsonObject | None:
    paths = {}
    for resource in registry:
        if _openapi_path(resource) == path:
            namespace = "namespaces/{namespace}/" if resource.namespaced else ""
            paths[f"/{path}/{namespace}{resource.plural}/{{name}}"] = {"patch": _patch_operation(resource)}
    info = {"title": "Kubernetes", "version": VERSION["gitVersion"]}
    return {"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": {}}} if paths else None


def _patch_operation(resource: ResourceType) -> JsonObject:
    kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    return {
        "parameters": [
            {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
            for name in ("dryRun", "fieldManager", "fieldValidation", "force")
        ],
        "requestBody": {"content": {name: {"schema": {"type": "object"}} for name in CUSTOM_PATCH_TYPES}},
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-action": "patch",
        "x-kubernetes-group-version-kind": kind,
    }
