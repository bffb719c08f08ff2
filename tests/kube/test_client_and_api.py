"""The client's verbs against the embedded API: every verb, every refusal by its type."""

from __future__ import annotations

from contextlib import aclosing
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
    PatchType,
)
from brokergroup_operator.kube.resources import BROKER_GROUPS, CONFIG_MAPS, CUSTOM_RESOURCE_DEFINITIONS, NODES, PODS
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
        "apiVersion": "brokergroup.dev/v1alpha1",
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
