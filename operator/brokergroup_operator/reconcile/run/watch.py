"""Runs kopf in a thread and loop of its own, the embedding that its documentation describes, and starts it again when it ends.

Kopf cancels every task of its loop at its end, and takes the process's signals in the main thread: neither reaches ours from a
thread of its own. What its handlers say is passed to our loop. Asked for no identity, kopf asks the system for the
user's name, and an image whose user has none would never watch anything, so it gets one.

Not `kopf.index`: kopf counts the objects that are not indexed yet, and wakes every one of them for each that is, so the start of
300 groups took 46 s of processor time instead of 13 (ADR 16). Kopf writes nothing: `on.event` handlers keep no state in
annotations, peering is off (equal priorities would pause every plane; the Lease decides), and it posts no Events.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, ParamSpec

import aiohttp
import kopf
import structlog

from brokergroup_operator.api import names
from brokergroup_operator.kube.resources import BROKER_GROUPS, NODES, ROCKETMQ_CLUSTERS
from brokergroup_operator.records.group_cache import LABELLED, WATCHED
from brokergroup_operator.records.store import GroupKey

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.kube.resources import Resource
    from brokergroup_operator.reconcile.access import ClusterAccess


P = ParamSpec("P")
log = structlog.get_logger(__name__)

RESPAWN_SECONDS: Final = 1.0
STOP_TIMEOUT_SECONDS: Final = 10.0
CLOSE_SECONDS: Final = 0.1
# Kopf itself waits for 5 s for tasks of handlers.
END_SECONDS: Final = 8.0
CANCEL_AGAIN_SECONDS: Final = 1.0
# A run of kopf that lasted so long had its watches.
LASTED_SECONDS: Final = 20.0
# So long kopf may fail at once, start after start, before the process asks to be restarted.
FAILING_SECONDS: Final = 60.0
# What kopf ends with while the API cannot be reached: a restart of this process would change nothing.
# Not every OSError: a file that may not be read, or a disk that may not be written, is a fault of this process's own.
OUTAGES: Final = (kopf.LoginError, ConnectionError, TimeoutError, socket.gaierror, ssl.SSLError, aiohttp.ClientError)


class Watcher:
    """Runs kopf until stopped; when kopf ends by itself (a watch it cannot repair), it is started again.

    The listener is called in the loop in which this was started.
    """

    def __init__(
        self,
        access: ClusterAccess,
        *,
        namespace: str | None,
        listener: Listener,
        identity: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._access = access
        self._namespace = namespace
        self._listener = listener
        self._identity = identity
        self._clock = clock
        self._running_since: float | None = None
        self._failing_since: float | None = None
        self._failure = ""
        self._stopping = asyncio.Event()
        # Of the present run of kopf.
        self._stop_flag = threading.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep_running(), name="kopf supervisor")

    async def stop(self) -> None:
        """End kopf; after a bounded time without waiting for it: what a thread left behind hears goes nowhere."""
        self._stopping.set()
        self._stop_flag.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=STOP_TIMEOUT_SECONDS)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def trouble(self) -> str | None:
        """Why no watch lives and none will without a restart of this process; None while one lives, or the API is away."""
        now = self._clock()
        if self._failing_since is None or now - self._failing_since < FAILING_SECONDS:
            return None
        if self._running_since is not None and now - self._running_since >= LASTED_SECONDS:
            return None
        return f"no watch for {now - self._failing_since:.0f} s: {self._failure}"

    def _note_end(self, error: BaseException | None) -> None:
        now = self._clock()
        lasted = self._running_since is not None and now - self._running_since >= LASTED_SECONDS
        self._running_since = None
        if is_outage(error):
            self._failing_since = None
        elif lasted or self._failing_since is None:
            self._failing_since = now
        self._failure = repr(error)

    async def _keep_running(self) -> None:
        while not self._stopping.is_set():
            self._running_since = self._clock()
            kopf_task = asyncio.create_task(self._run_kopf(), name="kopf")
            try:
                await asyncio.wait({kopf_task})
            finally:
                kopf_task.cancel()
            if not self._stopping.is_set():
                error = None if kopf_task.cancelled() else kopf_task.exception()
                self._note_end(error)
                log.warning("watch.ended", error=repr(error), respawn_seconds=RESPAWN_SECONDS)
                await asyncio.sleep(RESPAWN_SECONDS)

    async def _run_kopf(self) -> None:
        """One run of kopf, in its thread; raises what it ended with."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        self._stop_flag = threading.Event()

        registry = build_registry(self._access, self._in_loop(loop))

        def run() -> None:
            error: BaseException | None = None
            try:
                asyncio.run(self._operate(registry, self._stop_flag))
            except BaseException as caught:  # noqa: BLE001 - it is raised in our loop
                error = caught
            _in(loop, lambda: _settle(ended, error))

        thread = threading.Thread(target=run, name="kopf", daemon=True)
        thread.start()
        await asyncio.wait({ended})
        # It has told us so, and may still be about to return.
        await asyncio.to_thread(thread.join, END_SECONDS)
        ended.result()

    def _in_loop(self, loop: asyncio.AbstractEventLoop) -> Listener:
        """The listener, called in our loop; no more once this is stopped."""

        def passed_on(call: Callable[P, None]) -> Callable[P, None]:
            def in_loop(*arguments: P.args, **named: P.kwargs) -> None:
                _in(loop, lambda: None if self._stopping.is_set() else call(*arguments, **named))

            return in_loop

        listener = self._listener
        return Listener(
            on_object=passed_on(listener.on_object),
            on_listed=passed_on(listener.on_listed),
            on_cluster=None if listener.on_cluster is None else passed_on(listener.on_cluster),
            on_node=None if listener.on_node is None else passed_on(listener.on_node),
            unread=listener.unread,
        )

    async def _operate(self, registry: kopf.OperatorRegistry, stop_flag: threading.Event) -> None:
        tasks = await kopf.spawn_tasks(
            registry=registry,
            settings=build_settings(),
            identity=self._identity,  # type: ignore[arg-type]  # kopf's own type of text
            clusterwide=self._namespace is None,
            namespaces=[] if self._namespace is None else [self._namespace],
            standalone=True,
            stop_flag=stop_flag,
        )
        # Kopf cancels every task of its loop that is not named here.
        ignored = {task for task in (asyncio.current_task(),) if task is not None}
        running = asyncio.create_task(kopf.run_tasks(tasks, ignored=ignored), name="kopf run")
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            await _ended(running)
        finally:
            # A thread of this loop waits for it; the loop's end waits for that thread.
            stop_flag.set()
            # Aiohttp closes TLS connections some turns of the loop after their session.
            await asyncio.sleep(CLOSE_SECONDS)
        for task in tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error


async def _ended(running: asyncio.Task[None]) -> None:
    """Wait until kopf has ended, once one of its root tasks has. The loop has no tasks but kopf's and the caller.

    A watch that is cancelled in the moment in which its own helper is goes on (kopf 1.45.2, `stream`): kopf then waits for it for
    ever, with most watches gone. So what is left is cancelled again.
    """
    done, _ = await asyncio.wait({running}, timeout=END_SECONDS)
    while not done:
        log.warning("watch.does_not_end")
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        done, _ = await asyncio.wait({running}, timeout=CANCEL_AGAIN_SECONDS)
    if not running.cancelled():
        running.exception()


def is_outage(error: BaseException | None) -> bool:
    """Whether the API was away or refused us. Kopf's errors for refusals are not public; aiohttp's error is their cause."""
    return isinstance(error, OUTAGES) or (error is not None and isinstance(error.__cause__, aiohttp.ClientError))


def _in(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """Call it in that loop, soon. A loop that is closed has no more use for it."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(call)


def _settle(ended: asyncio.Future[None], error: BaseException | None) -> None:
    if ended.done():
        return
    if error is None:
        ended.set_result(None)
    else:
        ended.set_exception(error)


@dataclass(frozen=True, kw_only=True)
class Listener:
    """What is called with what the watches say. Without `on_cluster` or `on_node` those kinds are not watched."""

    # The object, and whether it is gone.
    on_object: Callable[[Resource, JsonObject, bool], None]
    # Every watch has listed its kind, and again with each list from then on. A watch says nothing of what was deleted before its
    # list, so a list that is older may have what is gone.
    on_listed: Callable[[], None]
    on_cluster: Callable[[GroupKey], None] | None = None
    on_node: Callable[[str, JsonObject | None], None] | None = None
    # Kinds that the operator may not list; they are not watched either.
    unread: frozenset[Resource] = frozenset()


def build_registry(access: ClusterAccess, listener: Listener) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()
    followed = [resource for resource in WATCHED if resource not in listener.unread]
    kinds = (*followed, *([ROCKETMQ_CLUSTERS] if listener.on_cluster else []), *([NODES] if listener.on_node else []))
    watched, listed = {kind.plural for kind in kinds}, set[str]()

    def on_list(plural: str) -> None:
        listed.add(plural)
        if plural in watched <= listed:
            listener.on_listed()

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> Any:
        return access.kopf_credentials(on_list)

    for resource in followed:
        _watch_objects(registry, resource, listener)
    if listener.on_cluster is not None:
        _watch_clusters(registry, listener.on_cluster)
    if listener.on_node is not None:
        _watch_nodes(registry, listener.on_node)
    return registry


def _watch_objects(registry: kopf.OperatorRegistry, resource: Resource, listener: Listener) -> None:
    async def event(type: str | None, body: kopf.Body, **_: Any) -> None:  # noqa: A002 - kopf's name
        listener.on_object(resource, dict(body), type == "DELETED")

    kopf.on.event(*_selector(resource), id=resource.plural, registry=registry)(event)


def _watch_clusters(registry: kopf.OperatorRegistry, on_change: Callable[[GroupKey], None]) -> None:
    """A cluster, and its groups: their status is part of its own."""

    async def group(namespace: str | None, labels: Any, **_: Any) -> None:
        if cluster := labels.get(names.LABEL_ROCKETMQ_CLUSTER):
            on_change(GroupKey(str(namespace), str(cluster)))

    async def cluster(namespace: str | None, name: str | None, **_: Any) -> None:
        on_change(GroupKey(str(namespace), str(name)))

    kopf.on.event(*_selector(BROKER_GROUPS), id="brokergroups-of-clusters", registry=registry)(group)
    kopf.on.event(*_selector(ROCKETMQ_CLUSTERS), id=ROCKETMQ_CLUSTERS.plural, registry=registry)(cluster)


def _watch_nodes(registry: kopf.OperatorRegistry, on_node: Callable[[str, JsonObject | None], None]) -> None:
    async def event(type: str | None, name: str | None, body: kopf.Body, **_: Any) -> None:  # noqa: A002 - kopf's name
        on_node(str(name), None if type == "DELETED" else node_facts(body))

    kopf.on.event(*_selector(NODES), id=NODES.plural, registry=registry)(event)


def node_facts(node: Any) -> JsonObject:
    """Return what passes read of a node, which is large: in its own form, without what changes with each of its heartbeats."""
    metadata, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
    labels = metadata.get("labels") or {}
    return {
        "metadata": {
            "name": metadata["name"],
            "labels": {key: labels[key] for key in (names.LABEL_ZONE,) if key in labels},
        },
        "spec": {key: spec[key] for key in ("unschedulable", "taints") if key in spec},
        "status": {
            "conditions": [
                {key: value for key, value in one.items() if key != "lastHeartbeatTime"}
                for one in status.get("conditions") or []
            ],
            "nodeInfo": {"bootID": (status.get("nodeInfo") or {}).get("bootID", "")},
        },
    }


def _selector(resource: Resource) -> tuple[str, str, str]:
    return resource.group, resource.version, resource.plural


def build_settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True
    settings.posting.enabled = False
    # We know our kinds and namespaces; following all CRDs and namespaces would need more rights and buy nothing.
    settings.scanning.disabled = True
    settings.persistence.finalizer = f"{names.GROUP}/kopf"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=names.GROUP)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=names.GROUP)
    settings.networking.error_backoffs = (0.2, 0.5, 1, 2, 3, 5)
    settings.networking.request_timeout = 10.0
    # An integer: the API server refuses "300.0".
    settings.watching.server_timeout = 300
    settings.process.ultimate_exiting_timeout = None
    for resource in LABELLED:
        settings.watching.label_selectors[_selector(resource)] = names.LABEL_BROKER_GROUP
    return settings
