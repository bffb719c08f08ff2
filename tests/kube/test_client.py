"""The client: every verb, and no write is sent twice.

The server that hangs up is a bare socket: it answers the first request, then reads the next one on the same kept-alive connection
and closes it, like an API server that dies after its commit. aiohttp would silently repeat that request.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.kube import (
    AlreadyExistsError,
    ApiUnavailableError,
    ConflictError,
    GoneError,
    InvalidError,
    KubernetesApi,
    NotFoundError,
    OutcomeUnknownError,
    PatchType,
)
from brokergroup_operator.kube.resources import BROKER_GROUPS, CONFIG_MAPS, CUSTOM_RESOURCE_DEFINITIONS, NODES, PODS
from kube_sandbox.api_server.server import SandboxApiServer
from tests.kube.verbs import OBJECT, WRITES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from brokergroup_operator.kube import JsonObject

NAMESPACE = "default"


# ---- verbs


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


# ---- a connection that dies


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
