"""What the API tells about itself: groups, versions, resources; both the old endpoints and the aggregated ones.

Of OpenAPI there is what kubectl looks for before it writes: that a PATCH takes `fieldValidation`, so that it leaves validation to
the server. Strategic merge patches are not named there, so kubectl computes them from its own types. Schemas are left out: `kubectl
explain` has nothing to print.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kube_sandbox.api_server.json_values import JsonObject
    from kube_sandbox.api_server.resource_types import ResourceType
    from kube_sandbox.api_server.store.registry import ResourceRegistry

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

#: kind of object that a subresource takes, and the verbs it knows
_SUBRESOURCES: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "scale": ("autoscaling", "v1", "Scale", ("get", "patch", "update")),
    "binding": ("", "v1", "Binding", ("create",)),
    "eviction": ("policy", "v1", "Eviction", ("create",)),
    "log": ("", "v1", "Pod", ("get",)),
}


def core_versions(server_address: str) -> JsonObject:
    """GET /api."""
    return {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": server_address}],
    }


def _group(name: str, versions: list[str]) -> JsonObject:
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def group_list(registry: ResourceRegistry) -> JsonObject:
    """GET /apis."""
    groups = [_group(name, versions) for name, versions in registry.groups().items() if name]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def group(registry: ResourceRegistry, name: str) -> JsonObject | None:
    """GET /apis/<group>."""
    versions = registry.groups().get(name)
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(name, versions)} if versions and name else None


def _in_version(registry: ResourceRegistry, group_name: str, version: str) -> list[ResourceType]:
    found = [resource for resource in registry if (resource.group, resource.version) == (group_name, version)]
    return sorted(found, key=lambda resource: resource.plural)


def resource_list(registry: ResourceRegistry, group_name: str, version: str) -> JsonObject | None:
    """GET /api/v1 and /apis/<group>/<version>."""
    resources = _in_version(registry, group_name, version)
    if not resources:
        return None
    entries: list[JsonObject] = []
    for resource in resources:
        entries.append(_resource_entry(resource))
        entries.extend(_subresource_entry(resource, name) for name in resource.subresources)
    group_version = f"{group_name}/{version}" if group_name else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": entries}


def _resource_entry(resource: ResourceType) -> JsonObject:
    entry: JsonObject = {
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(resource.verbs),
    }
    if resource.short_names:
        entry["shortNames"] = list(resource.short_names)
    if resource.categories:
        entry["categories"] = list(resource.categories)
    return entry


def _subresource_entry(resource: ResourceType, name: str) -> JsonObject:
    entry: JsonObject = {"name": f"{resource.plural}/{name}", "singularName": "", "namespaced": resource.namespaced}
    if name in _SUBRESOURCES:
        group_name, version, kind, verbs = _SUBRESOURCES[name]
        if name != "log":
            entry.update({"group": group_name, "version": version} if group_name else {})
        return {**entry, "kind": kind, "verbs": list(verbs)}
    return {**entry, "kind": resource.kind, "verbs": ["get", "patch", "update"]}


def aggregated(registry: ResourceRegistry, group_names: Iterable[str], version: str) -> JsonObject:
    """The same in one document (apidiscovery.k8s.io), which kubectl asks for first."""
    served = registry.groups()
    items = []
    for name in group_names:
        versions = [
            {
                "version": api_version,
                "freshness": "Current",
                "resources": [_aggregated_resource(r) for r in _in_version(registry, name, api_version)],
            }
            for api_version in served.get(name, [])
        ]
        items.append({"metadata": {"name": name} if name else {}, "versions": versions})
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"apidiscovery.k8s.io/{version}",
        "metadata": {},
        "items": items,
    }


def _response_kind(group_name: str, version: str, kind: str) -> JsonObject:
    return {"group": group_name, "version": version, "kind": kind}


def _aggregated_resource(resource: ResourceType) -> JsonObject:
    entry: JsonObject = {
        "resource": resource.plural,
        "responseKind": _response_kind(resource.group, resource.version, resource.kind),
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        "verbs": list(resource.verbs),
    }
    if resource.short_names:
        entry["shortNames"] = list(resource.short_names)
    if resource.categories:
        entry["categories"] = list(resource.categories)
    if resource.subresources:
        entry["subresources"] = [_aggregated_subresource(resource, name) for name in resource.subresources]
    return entry


def _aggregated_subresource(resource: ResourceType, name: str) -> JsonObject:
    own = (resource.group, resource.version, resource.kind, ("get", "patch", "update"))
    group_name, version, kind, verbs = _SUBRESOURCES.get(name, own)
    return {"subresource": name, "responseKind": _response_kind(group_name, version, kind), "verbs": list(verbs)}


def _openapi_path(resource: ResourceType) -> str:
    return f"apis/{resource.api_version}" if resource.group else f"api/{resource.version}"


def openapi_index(registry: ResourceRegistry) -> JsonObject:
    """GET /openapi/v3. The hash changes with what is served, so that clients' caches do."""
    paths = {}
    for path in sorted({_openapi_path(resource) for resource in registry}):
        digest = hashlib.sha256(f"{path} {registry.generation}".encode()).hexdigest()
        paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest}"}
    return {"paths": paths}


def openapi_document(registry: ResourceRegistry, path: str) -> JsonObject | None:
    """GET /openapi/v3/<path>."""
    resources = [resource for resource in registry if _openapi_path(resource) == path]
    if not resources:
        return None
    info = {"title": "Kubernetes", "version": VERSION["gitVersion"]}
    paths = {}
    for resource in resources:
        namespace = "namespaces/{namespace}/" if resource.namespaced else ""
        paths[f"/{path}/{namespace}{resource.plural}/{{name}}"] = {"patch": _patch_operation(resource)}
    return {"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": {}}}


def _patch_operation(resource: ResourceType) -> JsonObject:
    types = ("application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml")
    return {
        "parameters": [
            {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
            for name in ("dryRun", "fieldManager", "fieldValidation", "force")
        ],
        "requestBody": {"content": {content_type: {"schema": {"type": "object"}} for content_type in types}},
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-action": "patch",
        "x-kubernetes-group-version-kind": _response_kind(resource.group, resource.version, resource.kind),
    }
