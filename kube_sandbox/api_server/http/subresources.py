"""HTTP for binding, eviction, scale and logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from kube_sandbox.api_server.errors import bad_request, method_not_allowed, unsupported_media_type
from kube_sandbox.api_server.http import targets as http_targets
from kube_sandbox.api_server.http import verbs as http_verbs
from kube_sandbox.api_server.json_values import field_at
from kube_sandbox.api_server.patching import patches
from kube_sandbox.api_server.store import subresources

if TYPE_CHECKING:
    from kube_sandbox.api_server.http.targets import Target
    from kube_sandbox.api_server.server import LogProvider
    from kube_sandbox.api_server.store.object_store import ObjectStore

VERBS = frozenset(("binding", "eviction", "scale", "log"))


async def answer(
    store: ObjectStore, target: Target, request: web.BaseRequest, log_provider: LogProvider | None
) -> web.StreamResponse:
    """Answers a request to one of `VERBS`."""
    write = http_targets.write_options(request.query, request.headers.get("User-Agent", ""))
    match request.method, target.subresource:
        case "POST", "binding":
            done = subresources.bind(store, target, await http_verbs.read_object(request), write)
            return http_verbs.json_response(done, status=201)
        case "POST", "eviction":
            done = subresources.evict(store, target, await http_verbs.read_object(request), write)
            return http_verbs.json_response(done, status=201)
        case "GET", "log":
            return await _log(store, target, request, log_provider)
        case (("GET" | "PUT" | "PATCH"), "scale"):
            return await _scale(store, target, request)
    raise method_not_allowed()


async def _scale(store: ObjectStore, target: Target, request: web.BaseRequest) -> web.Response:
    shown = subresources.read_scale(target.resource, store.get(target.resource, target.namespace, target.name).obj)
    if request.method == "GET":
        return http_verbs.json_response(shown)
    write = http_targets.write_options(request.query, request.headers.get("User-Agent", ""))
    body = await http_verbs.read_body(request)
    if request.method == "PATCH":
        shown["metadata"].pop("resourceVersion", None)
        match request.content_type:
            case "application/json-patch+json":
                body = patches.json_patch(shown, body)
            case "application/merge-patch+json" | "application/strategic-merge-patch+json":
                body = patches.merge_patch(shown, body)
            case other:
                raise unsupported_media_type(other, (http_verbs.JSON_PATCH, http_verbs.MERGE_PATCH))
    return http_verbs.json_response(subresources.write_scale(store, target, body, write))


async def _log(
    store: ObjectStore, target: Target, request: web.BaseRequest, log_provider: LogProvider | None
) -> web.StreamResponse:
    pod = store.get(target.resource, target.namespace, target.name).obj
    query = request.query
    container = _container(pod["metadata"]["name"], field_at(pod, "spec.containers") or [], query.get("container", ""))
    if log_provider is None:
        raise bad_request(f'container "{container}" in pod "{target.name}": this API has no kubelet to read logs from')
    tail_lines = http_targets.whole_number(query, "tailLines")
    follow = http_targets.is_true(query.get("follow"))
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    response.enable_chunked_encoding()
    await response.prepare(request)
    try:
        async for chunk in log_provider(target.namespace, target.name, container, tail_lines, follow):
            await response.write(chunk)
    except ConnectionError:
        pass  # whoever followed the log has gone
    return response


def _container(pod: str, containers: list[dict[str, str]], wanted: str) -> str:
    names = [container["name"] for container in containers]
    if wanted:
        if wanted not in names:
            raise bad_request(f"container {wanted} is not valid for pod {pod}")
        return wanted
    if len(names) != 1:
        listed = " ".join(names)
        raise bad_request(f"a container name must be specified for pod {pod}, choose one of: [{listed}]")
    return names[0]
