"""The local copy follows the API through restarts, lost history and objects recreated under the same name."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.kube import ApiUnavailableError, KubernetesApi, Reflector, WatchEvent
from brokergroup_operator.kube.client import PAGE_OBJECTS, ObjectList
from brokergroup_operator.kube.errors import error_from_status
from brokergroup_operator.kube.resources import CONFIG_MAPS
from kube_sandbox.api_server.server import SandboxApiServer
from tests.support.virtual_loop import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

NAMESPACE = "default"
DEADLINE_SECONDS = 20.0


class Listener:
    """Records changes, and waits for expected ones."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []
        self._changed = asyncio.Event()

    def __call__(self, event: WatchEvent) -> None:
        self.heard.append((event.type, event.object["metadata"]["name"]))
        self._changed.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not holds():
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def following(api: KubernetesApi, **options: Any) -> AsyncIterator[tuple[Reflector, Listener]]:
    listener = Listener()
    reflector = Reflector(api, CONFIG_MAPS, on_change=listener, **options)
    task = asyncio.create_task(reflector.run())
    try:
        await reflector.wait_synced(DEADLINE_SECONDS)
        yield reflector, listener
    finally:
        task.cancel()
        await asyncio.wait([task])


def config_map(name: str, **data: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": NAMESPACE, "labels": {"app": name}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


async def test_it_follows() -> None:
    server = SandboxApiServer()
    await server.start()
    async with KubernetesApi.from_url(server.url) as api:
        await api.create(CONFIG_MAPS, config_map("before"))
        async with following(api, namespace=NAMESPACE) as (reflector, listener):
            assert reflector.objects[NAMESPACE, "before"]["data"] == {}
            await api.create(CONFIG_MAPS, config_map("a"))
            await api.patch(CONFIG_MAPS, "a", {"data": {"x": "1"}}, namespace=NAMESPACE)
            await listener.until(lambda: ("MODIFIED", "a") in listener.heard)
            assert reflector.objects[NAMESPACE, "a"]["data"] == {"x": "1"}
            await api.delete(CONFIG_MAPS, "a", namespace=NAMESPACE)
            await listener.until(lambda: ("DELETED", "a") in listener.heard)
            assert (NAMESPACE, "a") not in reflector.objects
    await server.stop()


async def test_it_outlives_the_api_and_tells_the_difference() -> None:
    """During an outage objects are deleted, changed, created and recreated under the same name, and the history is lost."""
    first = SandboxApiServer()
    await first.start()
    port = first.port
    async with KubernetesApi.from_url(first.url) as api:
        for name in ("gone", "remade", *(f"filler{number}" for number in range(10))):
            await api.create(CONFIG_MAPS, config_map(name))
        async with following(api) as (reflector, listener):
            await first.stop()
            listener.heard.clear()
            second = SandboxApiServer(port=port)  # a restored etcd: its versions are lower than the known ones
            await second.start()
            await api.create(CONFIG_MAPS, config_map("remade", x="2"))
            await api.create(CONFIG_MAPS, config_map("new"))
            await listener.until(lambda: ("ADDED", "new") in listener.heard)
            assert set(reflector.objects) == {(NAMESPACE, "remade"), (NAMESPACE, "new")}
            assert reflector.objects[NAMESPACE, "remade"]["data"] == {"x": "2"}
            assert ("DELETED", "gone") in listener.heard
            assert listener.heard.index(("DELETED", "remade")) < listener.heard.index(("ADDED", "remade"))
            await second.stop()


async def test_an_object_that_its_listener_cannot_take_in_ends_no_watch() -> None:
    """A client that may create pods with a group's label ended the watch of all pods, by 5000 digits in a pod's environment."""
    server, listener = SandboxApiServer(), Listener()
    await server.start()

    def hear(event: WatchEvent) -> None:
        if event.object["data"]:
            int(event.object["data"]["number"])
        listener(event)

    async with KubernetesApi.from_url(server.url) as api:
        await api.create(CONFIG_MAPS, config_map("listed", number="9" * 5000))
        reflector = Reflector(api, CONFIG_MAPS, on_change=hear)
        task = asyncio.create_task(reflector.run())
        await reflector.wait_synced(DEADLINE_SECONDS)
        await api.create(CONFIG_MAPS, config_map("watched", number="9" * 5000))
        await api.create(CONFIG_MAPS, config_map("plain"))
        await listener.until(lambda: ("ADDED", "plain") in listener.heard)
        assert {name for _, name in reflector.objects} >= {"listed", "watched", "plain"}
        task.cancel()
        await asyncio.wait([task])
    await server.stop()


async def test_it_waits_for_an_api_that_is_not_there_yet() -> None:
    placeholder = SandboxApiServer()
    await placeholder.start()
    port, url = placeholder.port, placeholder.url
    await placeholder.stop()
    async with KubernetesApi.from_url(url) as api:
        reflector = Reflector(api, CONFIG_MAPS)
        task = asyncio.create_task(reflector.run())
        server = SandboxApiServer(port=port)
        await server.start()
        await reflector.wait_synced(DEADLINE_SECONDS)
        task.cancel()
        await asyncio.wait([task])
        await server.stop()


async def test_who_waits_in_vain_is_told_what_the_api_said() -> None:
    server = SandboxApiServer()
    await server.start()
    unknown = replace(CONFIG_MAPS, plural="configmups")
    async with KubernetesApi.from_url(server.url) as api:
        reflector = Reflector(api, unknown)
        task = asyncio.create_task(reflector.run())
        with pytest.raises(ApiUnavailableError) as raised:
            await reflector.wait_synced(1.0)
        task.cancel()
        await asyncio.wait([task])
    await server.stop()
    assert str(raised.value).startswith(f"the Kubernetes API at {server.url} gave no list of configmups within 1 s: ")
    assert "404" in str(raised.value)


class Lists:
    """An API whose list has this many objects, in pages of the client's size; its watch delivers nothing."""

    def __init__(self, count: int) -> None:
        self.url = "http://api"
        items = [config_map(f"a-{number}") for number in range(count)]
        for item in items:
            item["metadata"]["managedFields"] = [{"manager": "a"}]
        self._pages = [items[at : at + PAGE_OBJECTS] for at in range(0, count, PAGE_OBJECTS)]

    async def pages(self, _resource: Any, **_options: Any) -> AsyncIterator[ObjectList]:
        for items in self._pages:
            yield ObjectList(items, "1")

    async def watch(self, _resource: Any, **_options: Any) -> AsyncIterator[WatchEvent]:
        await asyncio.Event().wait()
        yield WatchEvent("BOOKMARK", {})


async def test_the_loop_has_a_turn_after_each_few_objects_of_a_list() -> None:
    """At 10,000 groups a turn may take 50 ms (`make bench-controller`). The test counts work in a turn, as load changes times."""
    turn, done = 0, Counter[int]()

    async def count_turns() -> None:
        nonlocal turn
        while True:
            await asyncio.sleep(0)
            turn += 1

    def taken_in(_event: WatchEvent) -> None:
        done[turn] += 1

    api: Any = Lists(2 * PAGE_OBJECTS + 7)
    reflector = Reflector(api, CONFIG_MAPS, on_change=taken_in)
    tasks = [asyncio.create_task(count_turns()), asyncio.create_task(reflector.run())]
    await reflector.wait_synced(DEADLINE_SECONDS)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert len(reflector.objects) == 2 * PAGE_OBJECTS + 7
    assert done.total() == 2 * PAGE_OBJECTS + 7
    assert max(done.values()) <= 30
    assert not any("managedFields" in obj["metadata"] for obj in reflector.objects.values())


class Refused(Lists):
    """Its watch is refused with this status; lists and watches are noted, each with its time."""

    def __init__(self, status: int, *, retry_after_seconds: float) -> None:
        super().__init__(3)
        self.asked: list[tuple[str, float]] = []
        self._refusal = error_from_status("WATCH", status, {"message": "not now"}, write=False)
        self._refusal.retry_after_seconds = retry_after_seconds

    async def pages(self, _resource: Any, **_options: Any) -> AsyncIterator[ObjectList]:
        self.asked.append(("list", asyncio.get_running_loop().time()))
        async for page in super().pages(_resource, **_options):
            yield page

    async def watch(self, _resource: Any, **_options: Any) -> AsyncIterator[WatchEvent]:
        self.asked.append(("watch", asyncio.get_running_loop().time()))
        raise self._refusal
        yield


@pytest.mark.parametrize(("status", "lists_again"), [(429, False), (503, False), (410, True), (504, True)])
def test_an_api_server_that_has_no_room_for_a_watch_gets_no_list_instead(status: int, lists_again: bool) -> None:
    """It answers 429 while its watch cache is filled, after each start: each operator pod listed all objects again."""
    api: Any = Refused(status, retry_after_seconds=5.0)
    loop = VirtualLoop()

    async def for_a_minute() -> None:
        running = asyncio.create_task(Reflector(api, CONFIG_MAPS).run())
        await asyncio.sleep(60.0)
        running.cancel()
        await asyncio.wait([running])

    try:
        loop.run_until_complete(for_a_minute())
    finally:
        loop.close()
    kinds = [kind for kind, _ in api.asked]
    assert ("list" in kinds[1:]) == lists_again
    watched = [at for kind, at in api.asked if kind == "watch"]
    assert len(watched) > 5
    assert all(later - earlier >= 5.0 for earlier, later in itertools.pairwise(watched))
