"""Everything that is not about objects: health, version, discovery, OpenAPI."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from kube_sandbox.api_server.errors import StatusError, no_such_path
from kube_sandbox.api_server.http import discovery
from kube_sandbox.api_server.http.verbs import json_response

if TYPE_CHECKING:
    from kube_sandbox.api_server.json_values import JsonObject
    from kube_sandbox.api_server.store.registry import ResourceRegistry


class FixedDocuments:
    """The documents of one server."""

    def __init__(self, registry: ResourceRegistry, address: str) -> None:
        self._registry = registry
        self._address = address

    def answer(self, request: web.BaseRequest) -> web.Response | None:
        """The document at the request's path, None if objects are meant; 404 for a group or version not served."""
        parts = [part for part in request.path.split("/") if part]
        match parts:
            case ["healthz" | "readyz" | "livez", *_]:
                return web.Response(text="ok")
            case ["version"]:
                return json_response(discovery.VERSION)
            case ["openapi", *rest]:
                return self._openapi(request, rest)
            case ["api" | "apis", *rest] if len(rest) <= (1 if parts[0] == "api" else 2):
                return self._discovery(request, parts[0], rest)
        return None

    def _openapi(self, request: web.BaseRequest, rest: list[str]) -> web.Response:
        match rest:
            case ["v2"]:
                if "protobuf" in request.headers.get("Accept", "") and "json" not in request.headers["Accept"]:
                    message = "only the following media types are accepted: application/json"
                    raise StatusError(406, "NotAcceptable", message)
                info = {"title": "Kubernetes", "version": discovery.VERSION["gitVersion"]}
                return json_response({"swagger": "2.0", "info": info, "paths": {}, "definitions": {}})
            case ["v3"]:
                return json_response(discovery.openapi_index(self._registry))
            case ["v3", *path]:
                return _document_or_404(discovery.openapi_document(self._registry, "/".join(path)))
        raise no_such_path()

    def _discovery(self, request: web.BaseRequest, root: str, rest: list[str]) -> web.Response:
        registry = self._registry
        wanted = _aggregated_version(request.headers.get("Accept", ""))
        if not rest and wanted:
            return self._aggregated(root, wanted)
        match root, rest:
            case "api", []:
                return json_response(discovery.core_versions(self._address))
            case "api", [version]:
                return _document_or_404(discovery.resource_list(registry, "", version))
            case "apis", []:
                return json_response(discovery.group_list(registry))
            case "apis", [group]:
                return _document_or_404(discovery.group(registry, group))
        return _document_or_404(discovery.resource_list(registry, rest[0], rest[1]))

    def _aggregated(self, root: str, version: str) -> web.Response:
        groups = [name for name in self._registry.groups() if bool(name) == (root == "apis")]
        response = json_response(discovery.aggregated(self._registry, groups, version))
        kind = f"application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList"
        response.headers["Content-Type"] = kind
        return response


def _aggregated_version(accept: str) -> str:
    """The aggregated discovery version that the client prefers, empty if it wants the old documents."""
    for version in ("v2", "v2beta1"):
        if f"v={version};as=APIGroupDiscoveryList" in accept:
            return version
    return ""


def _document_or_404(document: JsonObject | None) -> web.Response:
    if document is None:
        raise no_such_path()
    return json_response(document)
