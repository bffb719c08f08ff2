"""The client: every verb, an exception type for every error, no write sent twice, and a server under load.

The server that hangs up is a bare socket: it answers the first request, then reads the next one on the same kept-alive connection
and closes it, like an API server that dies after its commit. aiohttp would silently repeat that request.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from brokergroup_operator.kube import (
    AlreadyExistsError,
    ApiError,
    ApiUnavailableError,
    ConflictError,
    GoneError,
    InvalidError,
    KubernetesApi,
    NotFoundError,
    OutcomeUnknownError,
    PatchType,
    WebhookAwayError,
)
from brokergroup_operator.kube.client import MOST_READS_IN_FLIGHT, PAGE_OBJECTS
from brokergroup_operator.kube.errors import error_from_status, is_away
from brokergroup_operator.kube.reflector import Reflector
from brokergroup_operator.kube.resources import (
    BROKER_GROUPS,
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    NETWORK_POLICIES,
    NODES,
    PODS,
)
from brokergroup_operator.page.access import TOKEN_REVIEWS
from brokergroup_operator.records.kubernetes import GroupObjects, KubernetesRecordStore
from brokergroup_operator.records.store import GroupKey, RecordUnavailableError
from kube_sandbox.api_server.server import SandboxApiServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from brokergroup_operator.kube import JsonObject


NAMESPACE = "default"


def config_map(name: str, **data: str) -> JsonObject:
    metadata = {"name": name, "namespace": NAMESPACE, "labels": {"app": name}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


@pytest.fixture
async def server() -> AsyncIterator[SandboxApiServer]:
    server = SandboxApiServer()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def api(server: SandboxApiServer) -> AsyncIterator[KubernetesApi]:
    async with KubernetesApi.from_url(server.url) as api:
        yield api


async def test_create_get_and_delete(api: KubernetesApi) -> None:
    created = await api.create(CONFIG_MAPS, config_map("a", x="1"))
    found = await api.get(CONFIG_MAPS, "a", namespace=NAMESPACE)
    assert found == created
    with pytest.raises(AlreadyExistsError):
        await api.create(CONFIG_MAPS, config_map("a"))
    with pytest.raises(ConflictError):
        await api.delete(CONFIG_MAPS, "a", namespace=NAMESPACE, uid="another")
    await api.delete(CONFIG_MAPS, "a", namespace=NAMESPACE, uid=created["metadata"]["uid"])
    with pytest.raises(NotFoundError):
        await api.get(CONFIG_MAPS, "a", namespace=NAMESPACE)


async def test_replace_is_a_compare_and_set(api: KubernetesApi) -> None:
    first = await api.create(CONFIG_MAPS, config_map("a", x="1"))
    second = await api.replace(CONFIG_MAPS, {**first, "data": {"x": "2"}})
    assert second["metadata"]["resourceVersion"] != first["metadata"]["resourceVersion"]
    with pytest.raises(ConflictError):
        await api.replace(CONFIG_MAPS, {**first, "data": {"x": "3"}})


async def test_patches(api: KubernetesApi) -> None:
    await api.create(CONFIG_MAPS, config_map("a", x="1", y="1"))
    await api.patch(CONFIG_MAPS, "a", {"data": {"x": None}}, namespace=NAMESPACE)
    steps = [{"op": "replace", "path": "/data/y", "value": "2"}]
    found = await api.patch(CONFIG_MAPS, "a", steps, namespace=NAMESPACE, content_type=PatchType.JSON)
    assert found["data"] == {"y": "2"}


async def test_apply_owns_its_fields(api: KubernetesApi) -> None:
    mine: dict[str, Any] = {"metadata": {"name": "a", "namespace": NAMESPACE}, "data": {"x": "1"}}
    await api.apply(CONFIG_MAPS, mine, field_manager="one")
    mine["data"] = {"x": "2"}
    with pytest.raises(ConflictError):
        await api.apply(CONFIG_MAPS, mine, field_manager="two", force=False)
    taken = await api.apply(CONFIG_MAPS, mine, field_manager="two")
    assert taken["data"] == {"x": "2"}


async def test_lists_carry_kinds_and_honour_selectors(api: KubernetesApi) -> None:
    await api.create(CONFIG_MAPS, config_map("a"))
    await api.create(CONFIG_MAPS, config_map("b"))
    answer = await api.list(CONFIG_MAPS, label_selector="app=b")
    assert [item["metadata"]["name"] for item in answer.items] == ["b"]
    assert answer.items[0]["kind"] == "ConfigMap"
    assert answer.resource_version


async def test_watch_goes_on_from_a_list(api: KubernetesApi) -> None:
    await api.create(CONFIG_MAPS, config_map("before"))
    start = (await api.list(CONFIG_MAPS)).resource_version
    await api.create(CONFIG_MAPS, config_map("a"))
    await api.patch(CONFIG_MAPS, "a", {"data": {"x": "1"}}, namespace=NAMESPACE)
    await api.delete(CONFIG_MAPS, "a", namespace=NAMESPACE)
    seen = []
    async with aclosing(api.watch(CONFIG_MAPS, namespace=NAMESPACE, resource_version=start)) as events:
        async for event in events:
            if event.type != "BOOKMARK":
                seen.append((event.type, event.object["metadata"]["name"]))
            if len(seen) == 3:
                break
    assert seen == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]


async def test_a_version_that_is_too_old_is_gone(server: SandboxApiServer, api: KubernetesApi) -> None:
    first = await api.create(CONFIG_MAPS, config_map("a"))
    await api.create(CONFIG_MAPS, config_map("b"))
    server.store.storage.forget_past()
    events = api.watch(CONFIG_MAPS, resource_version=first["metadata"]["resourceVersion"])
    async with aclosing(events):
        with pytest.raises(GoneError):
            await anext(events)


async def test_a_bad_object_names_its_field(api: KubernetesApi) -> None:
    from brokergroup_operator.api.definitions.generate import KINDS, custom_resource_definition

    for kind in KINDS:
        await api.create(CUSTOM_RESOURCE_DEFINITIONS, custom_resource_definition(kind))
    group = {
        "apiVersion": "brokergroup.dev/v1beta1",
        "kind": "BrokerGroup",
        "metadata": {"name": "a", "namespace": NAMESPACE},
        "spec": {"replicas": -1},
    }
    with pytest.raises(InvalidError) as caught:
        await api.create(BROKER_GROUPS, group)
    assert any(message.startswith("spec.replicas: ") for message in caught.value.field_messages)


async def test_a_pod_is_bound_once(api: KubernetesApi) -> None:
    for name in ("one", "two"):
        await api.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a", "namespace": NAMESPACE},
        "spec": {"containers": [{"name": "main", "image": "x"}]},
    }
    await api.create(PODS, pod)
    await api.bind_pod("a", namespace=NAMESPACE, node_name="one")
    with pytest.raises(ConflictError):
        await api.bind_pod("a", namespace=NAMESPACE, node_name="two")
    assert (await api.get(PODS, "a", namespace=NAMESPACE))["spec"]["nodeName"] == "one"


async def test_a_namespaced_object_without_a_namespace_is_the_callers_mistake(api: KubernetesApi) -> None:
    with pytest.raises(ValueError, match="namespace is None"):
        await api.get(CONFIG_MAPS, "a")


async def test_a_closed_client_sends_nothing_and_opens_nothing(server: SandboxApiServer) -> None:
    """A poll that outlives its plane, as a fence's deletion may, must not open connections that nothing closes."""
    api = KubernetesApi.from_url(server.url)
    await api.create(CONFIG_MAPS, config_map("a"))
    await api.close()
    with pytest.raises(ApiUnavailableError, match="not sent, this client is closed"):
        await api.get(CONFIG_MAPS, "a", namespace=NAMESPACE)
    with pytest.raises(ApiUnavailableError, match="not sent, this client is closed"):
        await api.delete(CONFIG_MAPS, "a", namespace=NAMESPACE)
    async with aclosing(api.watch(CONFIG_MAPS, namespace=NAMESPACE, resource_version="1")) as events:
        with pytest.raises(ApiUnavailableError, match="not sent, this client is closed"):
            await anext(events)


OBJECT = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "n", "resourceVersion": "1"}}
ANSWER = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 16\r\n\r\n{"metadata": {}}'


class HangsUpOnTheSecondRequest:
    def __init__(self) -> None:
        self.requests: list[str] = []
        self.serving: set[asyncio.Task[None] | None] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.serving.add(asyncio.current_task())
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                lengths = [
                    line.split(":")[1] for line in head.lower().splitlines() if line.startswith("content-length:")
                ]
                await reader.readexactly(int(lengths[0]) if lengths else 0)
                self.requests.append(head.split("\r\n")[0])
                if len(self.requests) == 2:
                    return
                writer.write(ANSWER)
                await writer.drain()
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()
            await writer.wait_closed()


@asynccontextmanager
async def hanging_up() -> AsyncIterator[tuple[HangsUpOnTheSecondRequest, KubernetesApi]]:
    behaviour = HangsUpOnTheSecondRequest()
    server = await asyncio.start_server(behaviour.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        async with KubernetesApi.from_url(f"http://127.0.0.1:{port}") as api:
            yield behaviour, api
        await asyncio.gather(*(task for task in behaviour.serving if task is not None))


WRITES = {
    "replace": lambda api: api.replace(CONFIG_MAPS, OBJECT),
    "delete": lambda api: api.delete(CONFIG_MAPS, "a", namespace="n"),
    "create": lambda api: api.create(CONFIG_MAPS, OBJECT),
    "patch": lambda api: api.patch(CONFIG_MAPS, "a", {"data": {}}, namespace="n"),
}


@pytest.mark.parametrize("verb", WRITES)
async def test_a_write_on_a_dying_connection_is_unknown_and_not_repeated(verb: str) -> None:
    async with hanging_up() as (server, api):
        await api.get(CONFIG_MAPS, "a", namespace="n")
        with pytest.raises(OutcomeUnknownError, match="may or may not"):
            await WRITES[verb](api)
        assert len(server.requests) == 2


async def test_a_read_on_a_dying_connection_is_merely_unavailable() -> None:
    async with hanging_up() as (_, api):
        await api.get(CONFIG_MAPS, "a", namespace="n")
        with pytest.raises(ApiUnavailableError):
            await api.get(CONFIG_MAPS, "a", namespace="n")


async def test_a_write_that_never_left_is_unavailable_not_unknown() -> None:
    async with hanging_up() as (_, api):
        url = api.url
    async with KubernetesApi.from_url(url) as nobody_there:
        with pytest.raises(ApiUnavailableError):
            await nobody_there.replace(CONFIG_MAPS, OBJECT)


async def test_a_write_that_is_not_answered_in_time_is_unknown() -> None:
    asked, ended = asyncio.Event(), asyncio.Event()

    async def never_answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await reader.read()
        writer.close()
        await writer.wait_closed()
        ended.set()

    server = await asyncio.start_server(never_answers, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        async with KubernetesApi.from_url(f"http://127.0.0.1:{port}") as api:
            with pytest.raises(OutcomeUnknownError):
                await api.replace(CONFIG_MAPS, OBJECT, timeout_seconds=0.2)
            assert asked.is_set()
        async with asyncio.timeout(10):
            await ended.wait()


@pytest.mark.parametrize(
    ("status", "reason", "write", "expected"),
    [
        (400, "BadRequest", True, ApiError),
        (403, "Forbidden", True, ApiError),
        (404, "NotFound", False, NotFoundError),
        (409, "AlreadyExists", True, AlreadyExistsError),
        (409, "Conflict", True, ConflictError),
        (410, "Expired", False, GoneError),
        (422, "Invalid", True, InvalidError),
        (429, "TooManyRequests", True, ApiUnavailableError),
        (500, "InternalError", True, OutcomeUnknownError),
        (504, "Timeout", True, OutcomeUnknownError),
        (503, "ServiceUnavailable", False, ApiUnavailableError),
    ],
)
def test_type_of(status: int, reason: str, write: bool, expected: type[ApiError]) -> None:
    error = error_from_status("PUT /x", status, {"reason": reason, "message": "because"}, write=write)
    assert type(error) is expected
    assert error.status == status
    assert "PUT /x" in str(error)
    assert "because" in str(error)


def test_a_write_that_a_webhook_could_not_admit_was_not_done() -> None:
    said = (
        'Internal error occurred: failed calling webhook "policy.example": failed to call webhook: connection refused'
    )
    error = error_from_status("PATCH /x", 500, {"reason": "InternalError", "message": said}, write=True)
    assert type(error) is WebhookAwayError
    assert error.status == 500
    assert not is_away(error)


# What a load balancer, a proxy or a page to log in answers in an API server's place.
PAGE = b"<html><title>Sign in</title></html>"
READS = {
    "get": lambda api: api.get(CONFIG_MAPS, "a", namespace="n"),
    "list": lambda api: api.list(CONFIG_MAPS, namespace="n"),
}


@asynccontextmanager
async def in_front_of(status: int, body: bytes, **headers: str) -> AsyncIterator[tuple[KubernetesApi, list[str]]]:
    """Answer each request with this, and note it."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(f"{request.method} {request.path}")
        is_page = request.path == "/login"
        return web.Response(status=200 if is_page else status, body=PAGE if is_page else body, headers=headers)

    application = web.Application()
    application.router.add_route("*", "/{rest:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with KubernetesApi.from_url(f"http://127.0.0.1:{runner.addresses[0][1]}") as api:
            yield api, asked
    finally:
        await runner.cleanup()


NO_ANSWERS = [
    pytest.param(200, PAGE, id="a page"),
    pytest.param(200, b'{"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceV', id="cut off"),
    pytest.param(200, b'{"error": "session expired"}', id="another JSON"),
    pytest.param(302, b"", id="a redirect"),
]


@pytest.mark.parametrize(("status", "body"), NO_ANSWERS)
@pytest.mark.parametrize("verb", READS)
async def test_what_is_no_answer_of_an_api_server_is_no_object_and_no_empty_list(
    verb: str, status: int, body: bytes
) -> None:
    """A page with status 200 read as a list without objects: no pod, no claim, no group."""
    async with in_front_of(status, body, Location="/login") as (api, asked):
        with pytest.raises(ApiUnavailableError):
            await READS[verb](api)
        assert len(asked) == 1


@pytest.mark.parametrize(("status", "body"), NO_ANSWERS)
@pytest.mark.parametrize("verb", ["replace", "create", "patch"])
async def test_a_write_that_no_api_server_answers_is_unknown_and_goes_nowhere_else(
    verb: str, status: int, body: bytes
) -> None:
    async with in_front_of(status, body, Location="/login") as (api, asked):
        with pytest.raises(OutcomeUnknownError):
            await WRITES[verb](api)
        assert len(asked) == 1


@pytest.mark.parametrize("body", [b"default backend - 404", b'{"message": "no Route matched with those values"}'])
@pytest.mark.parametrize("verb", READS)
async def test_only_an_api_server_says_that_an_object_or_a_kind_is_not_there(verb: str, body: bytes) -> None:
    async with in_front_of(404, body) as (api, _):
        with pytest.raises(ApiUnavailableError):
            await READS[verb](api)


async def test_an_api_server_says_by_this_page_that_it_does_not_serve_a_kind() -> None:
    async with in_front_of(404, b"404 page not found\n") as (api, _):
        with pytest.raises(ApiUnavailableError):
            await READS["get"](api)
        with pytest.raises(NotFoundError):
            await READS["list"](api)


async def test_a_403_of_a_firewall_shows_no_empty_list() -> None:
    async with in_front_of(403, PAGE) as (api, _):
        with pytest.raises(ApiError):
            await GroupObjects(api).labelled(NETWORK_POLICIES, GroupKey("n", "a"))


@pytest.mark.parametrize("verb", WRITES)
async def test_a_write_to_a_load_balancer_without_a_backend_is_unknown(verb: str) -> None:
    async with in_front_of(404, b"default backend - 404") as (api, _):
        with pytest.raises(OutcomeUnknownError):
            await WRITES[verb](api)


async def test_a_record_is_not_missing_because_a_page_says_so() -> None:
    for status, body in ((404, b"default backend - 404"), (200, PAGE)):
        async with in_front_of(status, body) as (api, _):
            with pytest.raises(RecordUnavailableError):
                await KubernetesRecordStore(api).read(GroupKey("n", "a"), deadline_seconds=0.2)


@pytest.mark.parametrize("event", [b'{"type": "ADDED", "object": null}', b'{"type": "BOOKMARK", "object": []}', PAGE])
async def test_an_event_without_an_object_is_an_error_of_the_watch(event: bytes) -> None:
    """Any other exception would end the reflector for good."""
    async with (
        in_front_of(200, event + b"\n") as (api, _),
        aclosing(api.watch(CONFIG_MAPS, namespace="n", resource_version="1")) as events,
    ):
        with pytest.raises(ApiError):
            await anext(events)


async def test_a_review_needs_no_metadata() -> None:
    """It has no name, and a server may leave empty fields out (`omitzero`)."""
    review = b'{"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "status": {"authenticated": true}}'
    async with in_front_of(201, review) as (api, _):
        assert (await api.create(TOKEN_REVIEWS, {"spec": {"token": "t"}}))["status"] == {"authenticated": True}


async def test_a_watch_that_is_refused_says_when_to_come_again() -> None:
    async with (
        in_front_of(429, b'{"kind": "Status", "message": "busy"}', **{"Retry-After": "7"}) as (api, _),
        aclosing(api.watch(CONFIG_MAPS, namespace="n", resource_version="1")) as events,
    ):
        with pytest.raises(ApiUnavailableError) as refused:
            await anext(events)
    assert refused.value.retry_after_seconds == 7.0


def test_an_invalid_object_names_its_fields() -> None:
    causes = [{"field": "spec.replicas", "message": "Invalid value: 0: should be at least 1"}]
    error = error_from_status("POST /x", 422, {"reason": "Invalid", "details": {"causes": causes}}, write=True)
    assert isinstance(error, InvalidError)
    assert error.field_messages == ("spec.replicas: Invalid value: 0: should be at least 1",)


def test_a_patch_of_an_object_whose_name_is_anothers_by_now_is_a_conflict() -> None:
    """Kube-apiserver answers a PATCH with 422 where a PUT gets 409: the spec is valid, and no user has to act."""
    causes = [{"field": "metadata.uid", "message": 'Invalid value: "a": field is immutable'}]
    error = error_from_status("PATCH /x", 422, {"reason": "Invalid", "details": {"causes": causes}}, write=True)
    assert type(error) is ConflictError
    assert error.status == 409
    both = [*causes, {"field": "spec.replicas", "message": "Invalid value"}]
    error = error_from_status("PATCH /x", 422, {"reason": "Invalid", "details": {"causes": both}}, write=True)
    assert type(error) is InvalidError


def test_a_field_that_no_schema_declares_is_invalid_whatever_the_status() -> None:
    """Kube-apiserver 1.3x answers a server-side apply of such a field with a bare 500; retries would never end."""
    said = (
        "failed to create typed patch object (shop/bn-1; /v1, Kind=Pod): .spec.imaginary: field not declared in schema"
    )
    error = error_from_status("PATCH /x", 500, {"message": said}, write=True)

    assert type(error) is InvalidError
    assert ".spec.imaginary" in str(error)


class BusyServer:
    """Counts requests; refuses the first ``refusals`` of them; holds the others until it is released."""

    def __init__(self) -> None:
        self.refusals = 0
        self.asked_at_seconds: list[float] = []
        self.under_way = self.most_under_way = 0
        self.released = asyncio.Event()
        self.released.set()
        self.queries: list[dict[str, str]] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.asked_at_seconds.append(asyncio.get_running_loop().time())
        self.queries.append(dict(request.query))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await self.released.wait()
        finally:
            self.under_way -= 1
        if len(self.asked_at_seconds) <= self.refusals:
            return web.json_response({"kind": "Status", "message": "busy"}, status=429, headers={"Retry-After": "1"})
        if "limit" in request.query:
            start = int(request.query.get("continue", "0"))
            names = [f"m{number}" for number in range(start, min(start + int(request.query["limit"]), 600))]
            metadata = {"resourceVersion": "7"} | ({"continue": str(start + len(names))} if names[-1] != "m599" else {})
            items = [
                {"metadata": {"namespace": "n", "name": name, "uid": name, "resourceVersion": "1"}} for name in names
            ]
            return web.json_response({"metadata": metadata, "items": items})
        return web.json_response({"kind": "Status", "reason": "NotFound", "message": "no"}, status=404)


@pytest.fixture
async def busy() -> AsyncIterator[BusyServer]:
    busy = BusyServer()
    application = web.Application()
    application.router.add_get("/{rest:.*}", busy.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    busy.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield busy
    await runner.cleanup()


async def test_a_server_that_wants_to_be_left_alone_says_for_how_long(busy: BusyServer) -> None:
    busy.refusals = 1
    async with KubernetesApi.from_url(busy.url) as api:
        with pytest.raises(ApiUnavailableError) as refused:
            await api.get(CONFIG_MAPS, "a", namespace="n")
    assert refused.value.retry_after_seconds == 1.0


async def test_a_record_is_asked_for_again_when_the_server_wants_it(busy: BusyServer) -> None:
    """The client had retried every 20 ms, regardless of Retry-After."""
    busy.refusals = 1
    async with KubernetesApi.from_url(busy.url) as api:
        assert await KubernetesRecordStore(api).read(GroupKey("n", "a"), deadline_seconds=60.0) is None
    first_seconds, second_seconds = busy.asked_at_seconds
    assert second_seconds - first_seconds >= 1.0


async def test_requests_under_way_are_bounded(busy: BusyServer) -> None:
    busy.released.clear()
    async with KubernetesApi.from_url(busy.url) as api:
        asking = [
            asyncio.create_task(api.get(CONFIG_MAPS, f"m{number}", namespace="n", timeout_seconds=60.0))
            for number in range(3 * MOST_READS_IN_FLIGHT)
        ]
        while busy.under_way < MOST_READS_IN_FLIGHT:  # noqa: ASYNC110 - what the server sees is what is waited for
            await asyncio.sleep(0.01)
        with pytest.raises(ApiUnavailableError, match="not sent, too many requests were under way"):
            await api.get(CONFIG_MAPS, "late", namespace="n", timeout_seconds=0.1)
        busy.released.set()
        await asyncio.gather(*asking, return_exceptions=True)
    assert len(busy.asked_at_seconds) == 3 * MOST_READS_IN_FLIGHT
    assert busy.most_under_way == MOST_READS_IN_FLIGHT


async def test_a_list_comes_in_pages_and_is_taken_in_whole(busy: BusyServer) -> None:
    async with KubernetesApi.from_url(busy.url) as api:
        listed = await api.list(CONFIG_MAPS)
        assert (len(listed.items), listed.resource_version) == (600, "7")
        assert [query["limit"] for query in busy.queries] == [str(PAGE_OBJECTS)] * 3
        reflector = Reflector(api, CONFIG_MAPS)
        running = asyncio.create_task(reflector.run())
        await reflector.wait_synced(60.0)
        assert len(reflector.objects) == 600
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
