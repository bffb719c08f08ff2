"""Kopf watches; its handlers say only "look at this group". It runs inside our loop, beside the controller's server.

What makes that safe (tests/reconcile/test_plane.py holds it in place):

- At its end kopf cancels every task that was created after it, also tasks of other code. `run_tasks(ignored=...)` only asks
  `task in ignored`, so it gets a collection that contains every task whose coroutine is not kopf's own.
- Kopf keeps its settings and credentials in context variables, so it is spawned inside a task of its own.
- In the main thread it takes SIGINT and SIGTERM; `after_spawn` lets the command line take them back.
- Asked for no identity, it asks the system for the user's name. An image whose user has no name then never watches anything
  (seen on a real cluster, once a second), so it gets one here.
- It writes nothing: `on.event` handlers keep no state in annotations, peering is off (equal priorities would pause
  every plane; the Lease decides), and it posts no Events.
"""

from __future__ import annotations

import asyncio
import inspect
import socket
import ssl
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import kopf
import structlog
from kopf._cogs.clients.errors import APIError, APISessionClosed
from kopf._core.engines.peering import Identity

from brokergroup_operator.api import names
from brokergroup_operator.reconcile.kinds import (
    BROKER_GROUP_OPERATIONS,
    BROKER_GROUP_STATES,
    BROKER_GROUPS,
    CONFIG_MAPS,
    PERSISTENT_VOLUME_CLAIMS,
    POD_DISRUPTION_BUDGETS,
    PODS,
    ROCKETMQ_CLUSTERS,
    SERVICES,
)
from brokergroup_operator.records.store import GroupKey

if TYPE_CHECKING:
    from brokergroup_operator.kube.resources import Resource
    from brokergroup_operator.reconcile.access import ClusterAccess

log = structlog.get_logger(__name__)

KOPF_FOLDER: Final = str(Path(inspect.getfile(kopf)).parent)
RESPAWN_SECONDS: Final = 1.0
STOP_TIMEOUT_SECONDS: Final = 10.0
# A run of kopf that lasted so long had its watches.
LASTED_SECONDS: Final = 20.0
# So long kopf may fail at once, start after start, before the process asks to be restarted.
FAILING_SECONDS: Final = 60.0
# What kopf ends with while the API cannot be reached, or refuses us: a restart of this process would change nothing.
# Not every OSError: a file that may not be read, or a disk that may not be written, is a fault of this process's own.
OUTAGES: Final = (
    APIError, APISessionClosed, kopf.LoginError, ConnectionError, TimeoutError, socket.gaierror, ssl.SSLError, aiohttp.ClientError,
)  # fmt: skip
# Children are found by their label; the group and its record by their name.
LABELLED: Final = (PODS, PERSISTENT_VOLUME_CLAIMS, SERVICES, CONFIG_MAPS, POD_DISRUPTION_BUDGETS)
NAMED: Final = (BROKER_GROUPS, BROKER_GROUP_STATES)


class TasksOfOthers(Collection["asyncio.Task[Any]"]):
    """Contains every task that kopf did not make, also future ones."""

    def __contains__(self, task: object) -> bool:
        coroutine = task.get_coro() if isinstance(task, asyncio.Task) else None
        code = getattr(coroutine, "cr_code", None)
        return code is None or not str(code.co_filename).startswith(KOPF_FOLDER)

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        return iter([task for task in asyncio.all_tasks() if task in self])

    def __len__(self) -> int:
        return sum(1 for _ in self)


def build_registry(
    access: ClusterAccess, on_change: Callable[[GroupKey], None], on_cluster_change: Callable[[GroupKey], None] | None
) -> kopf.OperatorRegistry:
    """The handlers; each only turns an event into a group's or a cluster's key."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def login(settings: kopf.OperatorSettings, **_: Any) -> Any:
        return access.kopf_credentials(settings)

    async def named(namespace: str | None, name: str | None, **_: Any) -> None:
        on_change(GroupKey(str(namespace), str(name)))

    async def labelled(namespace: str | None, labels: Any, **_: Any) -> None:
        on_change(GroupKey(str(namespace), str(labels.get(names.LABEL_BROKER_GROUP))))

    async def operation(namespace: str | None, spec: Any, **_: Any) -> None:
        on_change(GroupKey(str(namespace), str((spec.get("brokerGroupRef") or {}).get("name"))))

    kopf.on.event(*_selector(BROKER_GROUP_OPERATIONS), id=BROKER_GROUP_OPERATIONS.plural, registry=registry)(operation)
    if on_cluster_change is not None:
        _watch_clusters(registry, on_cluster_change)
    for resource in NAMED:
        kopf.on.event(*_selector(resource), id=resource.plural, registry=registry)(named)
    for resource in LABELLED:
        kopf.on.event(
            *_selector(resource),
            id=resource.plural,
            labels={names.LABEL_BROKER_GROUP: kopf.PRESENT},
            registry=registry,
        )(labelled)
    return registry


def _watch_clusters(registry: kopf.OperatorRegistry, on_change: Callable[[GroupKey], None]) -> None:
    """A cluster, and its groups: their status is part of its own."""

    async def group(namespace: str | None, labels: Any, **_: Any) -> None:
        if cluster := labels.get(names.LABEL_ROCKETMQ_CLUSTER):
            on_change(GroupKey(str(namespace), str(cluster)))

    async def cluster(namespace: str | None, name: str | None, **_: Any) -> None:
        on_change(GroupKey(str(namespace), str(name)))

    kopf.on.event(*_selector(BROKER_GROUPS), id="brokergroups-of-clusters", registry=registry)(group)
    kopf.on.event(*_selector(ROCKETMQ_CLUSTERS), id=ROCKETMQ_CLUSTERS.plural, registry=registry)(cluster)


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


class Watcher:
    """Runs kopf until stopped; when kopf ends by itself (a watch it cannot repair), it is started again."""

    def __init__(
        self,
        access: ClusterAccess,
        *,
        namespace: str | None,
        on_change: Callable[[GroupKey], None],
        on_cluster_change: Callable[[GroupKey], None] | None,
        identity: str,
        after_spawn: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._access = access
        self._namespace = namespace
        self._on_change = on_change
        self._on_cluster_change = on_cluster_change
        self._identity = identity
        self._after_spawn = after_spawn
        self._clock = clock
        self._running_since: float | None = None
        self._failing_since: float | None = None
        self._failure = ""
        self._stop_flag = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep_running(), name="kopf supervisor")

    async def stop(self) -> None:
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
        if isinstance(error, OUTAGES):
            self._failing_since = None
        elif lasted or self._failing_since is None:
            self._failing_since = now
        self._failure = repr(error)

    async def _keep_running(self) -> None:
        while not self._stop_flag.is_set():
            self._running_since = self._clock()
            kopf_task = asyncio.create_task(self._run_kopf(), name="kopf")
            try:
                await asyncio.wait({kopf_task})
            finally:
                kopf_task.cancel()
            if not self._stop_flag.is_set():
                error = None if kopf_task.cancelled() else kopf_task.exception()
                self._note_end(error)
                log.warning("watch.ended", error=repr(error), respawn_seconds=RESPAWN_SECONDS)
                await asyncio.sleep(RESPAWN_SECONDS)

    async def _run_kopf(self) -> None:
        tasks = await kopf.spawn_tasks(
            registry=build_registry(self._access, self._on_change, self._on_cluster_change),
            settings=build_settings(),
            identity=Identity(self._identity),
            clusterwide=self._namespace is None,
            namespaces=[] if self._namespace is None else [self._namespace],
            standalone=True,
            stop_flag=self._stop_flag,
        )
        if self._after_spawn is not None:
            self._after_spawn()
        await kopf.run_tasks(tasks, ignored=TasksOfOthers())
