"""The OpenAPI v3 documents: as much as kubectl needs to validate on the server, to patch, and to explain.

Built-in kinds come from the client's models, custom ones from their definitions. The paths only carry what kubectl looks
for: which parameters a PATCH of a kind takes. Built-in kinds do not advertise strategic merge patches there, so kubectl
computes those from its own types.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from brokergroup_operator.sandbox.api_server import model_schemas
from brokergroup_operator.sandbox.api_server.discovery import VERSION
from brokergroup_operator.sandbox.api_server.json_values import JsonObject, clone

if TYPE_CHECKING:
    from brokergroup_operator.sandbox.api_server.registry import ResourceRegistry
    from brokergroup_operator.sandbox.api_server.resource_types import ResourceType

_PATCH_PARAMETERS = ("dryRun", "fieldManager", "fieldValidation", "force")


class OpenApiDocuments:
    """Documents by group version, made when asked for and kept until the registry changes."""

    def __init__(self, registry: ResourceRegistry) -> None:
        self._registry = registry
        self._generation = -1
        self._documents: dict[str, JsonObject] = {}

    def index(self) -> JsonObject:
        """GET /openapi/v3."""
        paths = {}
        for path in sorted({_path(resource) for resource in self._registry}):
            digest = hashlib.sha256(f"{path} {self._registry.generation}".encode()).hexdigest()
            paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest}"}
        return {"paths": paths}

    def document(self, path: str) -> JsonObject | None:
        """GET /openapi/v3/<path>."""
        if self._generation != self._registry.generation:
            self._documents.clear()
            self._generation = self._registry.generation
        if path not in self._documents:
            resources = [resource for resource in self._registry if _path(resource) == path]
            if not resources:
                return None
            self._documents[path] = _document(resources)
        return self._documents[path]


def _path(resource: ResourceType) -> str:
    return f"apis/{resource.api_version}" if resource.group else f"api/{resource.version}"


def _kind_of(resource: ResourceType) -> JsonObject:
    return {"group": resource.group, "version": resource.version, "kind": resource.kind}


def _document(resources: list[ResourceType]) -> JsonObject:
    schemas = model_schemas.components_of(["V1ObjectMeta", "V1ListMeta", "V1DeleteOptions", "V1Status"])
    paths: JsonObject = {}
    for resource in resources:
        name, added = _schemas(resource)
        schemas.update(added)
        schemas[name] = {**schemas[name], "x-kubernetes-group-version-kind": [_kind_of(resource)]}
        paths[_object_path(resource)] = {"patch": _patch_operation(resource, name)}
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": VERSION["gitVersion"]},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _schemas(resource: ResourceType) -> tuple[str, dict[str, JsonObject]]:
    """The name of the resource's schema and all schemas that it needs."""
    if not resource.custom:
        model = resource.behaviour.model
        return model_schemas.component_name(model), model_schemas.components_of([model])
    reversed_group = ".".join(reversed(resource.group.split(".")))
    name = f"{reversed_group}.{resource.version}.{resource.kind}"
    schema: Any = clone(resource.open_api_schema or {"type": "object"})
    properties = dict(schema.get("properties") or {})
    properties["apiVersion"] = {"type": "string"}
    properties["kind"] = {"type": "string"}
    meta_reference = f"#/components/schemas/{model_schemas.component_name('V1ObjectMeta')}"
    properties["metadata"] = {"allOf": [{"$ref": meta_reference}], "description": "Standard object metadata."}
    return name, {name: {**schema, "properties": properties}}


def _object_path(resource: ResourceType) -> str:
    namespace = "namespaces/{namespace}/" if resource.namespaced else ""
    return f"/{_path(resource)}/{namespace}{resource.plural}/{{name}}"


def _patch_operation(resource: ResourceType, schema_name: str) -> JsonObject:
    types = ["application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"]
    reference = {"schema": {"$ref": f"#/components/schemas/{schema_name}"}}
    return {
        "operationId": f"patch{resource.kind}",
        "parameters": [
            {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
            for name in _PATCH_PARAMETERS
        ],
        "requestBody": {"content": {content_type: {"schema": {"type": "object"}} for content_type in types}},
        "responses": {"200": {"description": "OK", "content": {"application/json": reference}}},
        "x-kubernetes-action": "patch",
        "x-kubernetes-group-version-kind": _kind_of(resource),
    }
