"""Kopf's thread and its supervisor: its identity, its end, when `/healthz` reports that no watch lives, and watched nodes."""

from __future__ import annotations

import asyncio
import getpass
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.kube.resources import CONFIG_MAPS, NODES, PODS
from brokergroup_operator.reconcile.access import ClusterAccess
from brokergroup_operator.reconcile.run import watch
from brokergroup_operator.reconcile.run.watch import FAILING_SECONDS, LASTED_SECONDS, Listener, Watcher, node_facts
from brokergroup_operator.reconcile.see.observed import is_draining
from brokergroup_operator.records.group_cache import GroupCache, group_of
from brokergroup_operator.records.store import GroupKey
from kube_sandbox.api_server.errors import StatusError

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.kube.client import KubernetesApi
    from brokergroup_operator.kube.resources import Resource
    from kube_sandbox.api_server.server import SandboxApiServer


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class EndingKopf:
    """Stands for kopf: each run ends when the test says so, with what the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._begun = asyncio.Event()
        monkeypatch.setattr(Watcher, "_run_kopf", self._run)
        monkeypatch.setattr(watch, "RESPAWN_SECONDS", 0.0)

    async def _run(self) -> None:
        self._end = asyncio.get_running_loop().create_future()
        self._begun.set()
        await self._end

    async def begins(self) -> None:
        await self._begun.wait()

    async def ends(self, error: Exception) -> None:
        """Returns when the next run has begun."""
        self._begun.clear()
        self._end.set_exception(error)
        await self._begun.wait()

    async def stop(self, watching: Watcher) -> None:
        self._end.set_result(None)
        await watching.stop()


async def with_ending_kopf(monkeypatch: pytest.MonkeyPatch) -> tuple[Clock, EndingKopf, Watcher]:
    clock, kopf = Clock(), EndingKopf(monkeypatch)
    watching = watcher(ClusterAccess(url="http://127.0.0.1:1"), clock, [])
    watching.start()
    await kopf.begins()
    return clock, kopf, watching


def watcher(access: ClusterAccess, clock: Clock, changes: list[GroupKey]) -> Watcher:
    return Watcher(
        access,
        namespace=None,
        listener=Listener(
            on_object=lambda resource, obj, _: changes.append(group_of(resource, obj)),
            on_listed=lambda: None,
            on_cluster=changes.append,
            on_node=lambda *_: None,
        ),
        identity="operator-0",
        clock=clock,
    )


class Ends:
    """Ends the runs of kopf, and knows whether one of them watches."""

    def __init__(self, sandbox: SandboxApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.errors: list[BaseException | None] = []
        self.moved = asyncio.Event()
        self.watched: set[str] = set()
        self.refused = ""
        note_end = Watcher._note_end

        def noted(watching: Watcher, error: BaseException | None) -> None:
            note_end(watching, error)
            self.errors.append(error)
            self.moved.set()

        monkeypatch.setattr(Watcher, "_note_end", noted)
        sandbox.before_request = self._seen

    def _seen(self, request: Any) -> None:
        if self.refused and request.path.endswith(self.refused):
            raise StatusError(403, "Forbidden", "no right to it")
        if "watch" in request.query:
            self.watched.add(request.path)
            self.moved.set()

    async def until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(120):
            while not done():
                self.moved.clear()
                await self.moved.wait()

    async def until_watched(self) -> None:
        await self.until(lambda: any("brokergroups" in path for path in self.watched))


def started(sandbox: SandboxApiServer, monkeypatch: pytest.MonkeyPatch) -> tuple[Ends, Watcher]:
    ends, watching = Ends(sandbox, monkeypatch), watcher(ClusterAccess(url=sandbox.url), Clock(), [])
    watching.start()
    return ends, watching


async def test_the_watch_runs_where_the_user_has_no_name(
    sandbox: SandboxApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image runs as 65532; kopf, asked for no identity, raised KeyError there once a second and watched nothing."""

    def no_name() -> str:
        raise KeyError("getpwuid(): uid not found: 65532")

    monkeypatch.setattr(getpass, "getuser", no_name)
    ends, watching = started(sandbox, monkeypatch)
    await ends.until(lambda: bool(ends.watched or ends.errors))
    await watching.stop()
    assert ends.errors == []


async def test_kopf_has_a_thread_that_ends_with_the_watch_and_leaves_signals_and_tasks_alone(
    sandbox: SandboxApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    ends, watching = started(sandbox, monkeypatch)
    await ends.until_watched()
    tasks = {task.get_name() for task in asyncio.all_tasks()}
    assert [thread.name for thread in threading.enumerate()].count("kopf") == 1
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
    assert {"kopf supervisor", "kopf"} <= tasks, "nothing else of kopf is in our loop"
    assert not [name for name in tasks if "watch-stream" in name or "observer" in name]
    await watching.stop()
    assert "kopf" not in [thread.name for thread in threading.enumerate()]
    assert ends.errors == []


async def test_a_thread_that_is_slow_to_return_is_waited_for(
    sandbox: SandboxApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kopf's loop has ended, and its thread has told ours, before the thread itself has: the watch has not stopped yet."""
    told = watch._settle
    returns = threading.Event()

    class SlowThread(threading.Thread):
        def run(self) -> None:
            super().run()
            if self.name == "kopf":
                returns.wait(60)

    def settle(ended: asyncio.Future[None], error: BaseException | None) -> None:
        told(ended, error)
        asyncio.get_running_loop().call_later(0.1, returns.set)

    ends = Ends(sandbox, monkeypatch)
    monkeypatch.setattr(watch, "_settle", settle)
    monkeypatch.setattr(threading, "Thread", SlowThread)
    watching = watcher(ClusterAccess(url=sandbox.url), Clock(), [])
    watching.start()
    await ends.until_watched()
    await watching.stop()
    assert returns.is_set()
    assert "kopf" not in [thread.name for thread in threading.enumerate()]


async def test_a_refusal_by_the_api_is_no_trouble(sandbox: SandboxApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is of a type that kopf has not made public. A restart of this process would bring no right."""
    monkeypatch.setattr(watch, "RESPAWN_SECONDS", 0.0)
    monkeypatch.setattr(watch, "END_SECONDS", 2.0)

    build_settings = watch.build_settings

    def impatient() -> Any:
        built = build_settings()
        built.networking.error_backoffs = (0.01,)
        return built

    monkeypatch.setattr(watch, "build_settings", impatient)
    ends, clock = Ends(sandbox, monkeypatch), Clock()
    ends.refused = "/pods"
    watching = watcher(ClusterAccess(url=sandbox.url), clock, [])
    watching.start()
    await ends.until(lambda: len(ends.errors) == 1)
    clock.now += 2 * FAILING_SECONDS
    await ends.until(lambda: len(ends.errors) == 2)
    assert None not in ends.errors, ends.errors
    assert watching.trouble() is None
    await watching.stop()


async def test_what_was_deleted_while_a_watch_had_expired_leaves_the_cache_with_the_next_list(
    sandbox: SandboxApiServer, api: KubernetesApi
) -> None:
    """Kopf lists again, and says nothing of what the list does not have (1.45.2)."""

    def config_map(name: str) -> dict[str, Any]:
        labels = {names.LABEL_BROKER_GROUP: "orders"}
        return {"metadata": {"name": name, "namespace": "default", "labels": labels}}

    key, cache, heard, listed_again = GroupKey("default", "orders"), GroupCache(), asyncio.Event(), asyncio.Event()

    def on_object(resource: Resource, obj: JsonObject, is_gone: bool) -> None:
        cache.hold(resource, obj, is_gone=is_gone)
        heard.set()

    async def until_there(names_of: set[str]) -> None:
        while not names_of <= cache.by_name(CONFIG_MAPS, key).keys():
            heard.clear()
            await heard.wait()

    def seen(request: Any) -> None:
        if request.path.endswith("/configmaps") and request.method == "GET" and "watch" not in request.query:
            listed_again.set()

    for name in ("one", "two"):
        await api.create(CONFIG_MAPS, config_map(name))
    access = ClusterAccess(url=sandbox.url)
    listener = Listener(on_object=on_object, on_listed=lambda: None)
    watching = Watcher(access, namespace=None, listener=listener, identity="operator-0")
    watching.start()
    async with asyncio.timeout(120):
        await until_there({"one", "two"})
        sandbox.before_request = seen
        sandbox.store.storage.close_watches()
        sandbox.store.delete(sandbox.store.resource("", "v1", "configmaps"), "default", "two")
        sandbox.store.storage.forget_past()
        await listed_again.wait()
        await api.create(CONFIG_MAPS, config_map("three"))
        await until_there({"three"})
        listed = await api.list(CONFIG_MAPS, label_selector=names.LABEL_BROKER_GROUP)
        cache.take_in(CONFIG_MAPS, listed.items, heard=cache.heard)
        assert sorted(cache.by_name(CONFIG_MAPS, key)) == ["one", "three"]
        await api.create(CONFIG_MAPS, config_map("four"))
        await until_there({"four"})
        assert sorted(cache.by_name(CONFIG_MAPS, key)) == ["four", "one", "three"]
    await watching.stop()


async def test_a_thread_that_does_not_end_is_left_behind_and_heard_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "STOP_TIMEOUT_SECONDS", 0.01)
    heard: list[GroupKey] = []
    begun, stuck, said = threading.Event(), threading.Event(), threading.Event()

    def build(_access: Any, listener: Listener) -> Any:
        return listener

    async def operate(_: Watcher, listener: Any, _flag: threading.Event) -> None:
        begun.set()
        stuck.wait()  # in this loop's only thread: nothing in it can be cancelled
        listener.on_object(PODS, {"metadata": {"namespace": "shop", "name": "late-1"}}, False)  # noqa: FBT003 - as kopf's thread does
        said.set()

    monkeypatch.setattr(watch, "build_registry", build)
    monkeypatch.setattr(Watcher, "_operate", operate)
    watching = watcher(ClusterAccess(url="http://127.0.0.1:1"), Clock(), heard)
    watching.start()
    await asyncio.to_thread(begun.wait)
    await watching.stop()
    stuck.set()
    await asyncio.to_thread(said.wait)
    for _ in range(5):
        await asyncio.sleep(0)
    assert heard == []


@pytest.mark.parametrize("error", [KeyError("getpwuid()"), PermissionError(30, "Read-only file system")])
async def test_a_watch_that_cannot_live_is_a_trouble_after_a_minute(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, kopf, watching = await with_ending_kopf(monkeypatch)
    while clock.now < 1000 + FAILING_SECONDS:
        await kopf.ends(error)
        assert watching.trouble() is None
        clock.now += 10
    await kopf.ends(error)
    assert repr(error) in (watching.trouble() or "")

    clock.now += LASTED_SECONDS
    assert watching.trouble() is None, "this run lasts"
    await kopf.ends(KeyError("once more"))
    assert watching.trouble() is None, "counted anew after a run that lasted"
    await kopf.stop(watching)


async def test_an_outage_of_the_api_is_no_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    """A restart would not end it, and would take the controller from all brokers."""
    clock, kopf, watching = await with_ending_kopf(monkeypatch)
    for _ in range(20):
        await kopf.ends(ConnectionRefusedError("the API server is away"))
        clock.now += 10
        assert watching.trouble() is None
    await kopf.stop(watching)


async def test_only_a_change_of_what_matters_is_news(api: KubernetesApi, sandbox: SandboxApiServer) -> None:
    """Also if the operator serves one namespace only."""
    await api.create(NODES, {"metadata": {"name": "node-1"}})
    cache, news = GroupCache(), asyncio.Queue[Any]()

    def on_node(name: str, node: dict[str, Any] | None) -> None:
        if cache.hold_node(name, node):
            news.put_nowait(node)

    watching = Watcher(
        ClusterAccess(url=sandbox.url),
        namespace="default",
        listener=Listener(on_object=lambda *_: None, on_listed=lambda: None, on_node=on_node),
        identity="operator-0",
    )
    watching.start()
    async with asyncio.timeout(120):
        assert not is_draining(await news.get())
        for label, cordoned in (("b", True), ("c", None)):
            await api.patch(NODES, "node-1", {"metadata": {"labels": {"a": label}}})
            await api.patch(NODES, "node-1", {"spec": {"unschedulable": cordoned}})
            assert is_draining(await news.get()) is bool(cordoned)
        await api.delete(NODES, "node-1")
        assert await news.get() is None
    assert news.empty()
    await watching.stop()


def test_a_heartbeat_changes_no_fact() -> None:
    def node(heartbeat: str) -> dict[str, Any]:
        ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": heartbeat, "lastTransitionTime": "t"}
        return {
            "metadata": {"name": "n", "resourceVersion": heartbeat},
            "status": {"conditions": [ready], "images": [1]},
        }

    assert node_facts(node("1")) == node_facts(node("2"))
    assert node_facts(node("1"))["status"]["conditions"] == [
        {"type": "Ready", "status": "True", "lastTransitionTime": "t"}
    ]
