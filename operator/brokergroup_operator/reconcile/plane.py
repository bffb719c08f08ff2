"""The reconcile plane: what keeps pods, claims, Services and status as the BrokerGroups want them.

Watches and the controller plane's notices only put groups into a queue; passes do the work; nothing is remembered between
them. The failover path does not come through here. With leader election only the holder of the Lease watches and works.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.api import names
from brokergroup_operator.kube.errors import ApiError
from brokergroup_operator.observe.conditions import ConditionGauges
from brokergroup_operator.operations.runner import OperationRunner
from brokergroup_operator.operations.settings import OperationSettings
from brokergroup_operator.reconcile.apply import PlanApplier
from brokergroup_operator.reconcile.events import EventPoster
from brokergroup_operator.reconcile.fetch import GroupFetcher
from brokergroup_operator.reconcile.kinds import BROKER_GROUP_OPERATIONS, BROKER_GROUPS
from brokergroup_operator.reconcile.leader import LeaderElector
from brokergroup_operator.reconcile.node_watch import NodeWatch
from brokergroup_operator.reconcile.queue import ReconcileQueue
from brokergroup_operator.reconcile.reconciler import GroupPass, Reconciler
from brokergroup_operator.reconcile.safety_now import unsafe_now
from brokergroup_operator.reconcile.server_side_apply import ServerSideApplier
from brokergroup_operator.reconcile.turns import RollingTurns, key_of
from brokergroup_operator.reconcile.watch import Watcher

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.kube.client import KubernetesApi
    from brokergroup_operator.observe.circumstances import CircumstanceSink
    from brokergroup_operator.observe.group_view import GroupView
    from brokergroup_operator.reconcile.access import ClusterAccess
    from brokergroup_operator.reconcile.settings import ReconcileSettings

log = structlog.get_logger(__name__)
WAIT_FOR_KINDS_SECONDS = 0.5


class ReconcilePlane:
    """`start` returns once it is set going; `stop` ends it and leaves everything as it is.

    `after_watch_spawned` is called each time kopf has been started: in the main thread kopf takes over SIGINT and SIGTERM,
    and this is where the command line takes them back.
    """

    def __init__(
        self,
        api: KubernetesApi,
        access: ClusterAccess,
        view: GroupView,
        settings: ReconcileSettings,
        *,
        after_watch_spawned: Callable[[], None] | None = None,
        circumstances: CircumstanceSink | None = None,
        conditions: ConditionGauges | None = None,
    ) -> None:
        self._api = api
        self._access = access
        self._view = view
        self._settings = settings
        self._after_watch_spawned = after_watch_spawned
        self._circumstances = circumstances
        self._conditions = conditions or ConditionGauges()
        self._leading = asyncio.Event()
        self._look_at_all = asyncio.Event()
        self._main: asyncio.Task[None] | None = None
        self._watcher: Watcher | None = None
        self._elector: LeaderElector | None = None
        if settings.leader_election is not None:
            self._elector = LeaderElector(
                api, settings.leader_election, on_started=self._leading.set, on_stopped=self._lose_leadership
            )
            # A process that was frozen learns that it no longer leads at its next write, before its timers run.
            self._api = api.guarded(self._may_write_seconds)
        self._applier = ServerSideApplier(
            access,
            field_manager=names.FIELD_MANAGER_RECONCILE,
            timeout_seconds=settings.api_timeout_seconds,
            may_write_seconds=self._may_write_seconds,
        )

    @property
    def is_leading(self) -> bool:
        """Whether this plane does the reconciling now."""
        return self._leading.is_set()

    def trouble(self) -> str | None:
        """For `/healthz`: what only a restart of this process would end; None while there is nothing of that kind."""
        if self._main is not None and self._main.done() and not self._main.cancelled():
            return f"the reconcile plane has ended: {self._main.exception()!r}"
        return None if self._watcher is None else self._watcher.trouble()

    def _may_write_seconds(self) -> float:
        return math.inf if self._elector is None else self._elector.leads_for_seconds

    async def start(self) -> None:
        if self._elector is None:
            self._leading.set()
        else:
            self._elector.start()
        self._main = asyncio.create_task(self._run(), name="reconcile plane")

    async def stop(self) -> None:
        if self._main is not None:
            self._main.cancel()
            await asyncio.gather(self._main, return_exceptions=True)
        if self._elector is not None:
            await self._elector.stop()
            await self._api.close()
        self._applier.close()

    def _lose_leadership(self) -> None:
        log.warning("reconcile.leadership_lost")
        self._leading.clear()
        if self._main is not None and not self._main.cancelling():
            self._main.cancel()
            self._main = asyncio.create_task(self._run(after=self._main), name="reconcile plane")

    async def _run(self, *, after: asyncio.Task[None] | None = None) -> None:
        if after is not None:
            # Led, lost and led again in a moment: the first run must have ended before the second begins.
            await asyncio.wait({after})
        await self._leading.wait()
        groups = await self._wait_for_kinds()
        operations = OperationRunner(
            self._api,
            self._view,
            OperationSettings(api_timeout_seconds=self._settings.api_timeout_seconds, operator=self._settings.operator),
            unsafe_now=unsafe_now,
            wake=lambda key: queue.add(key),  # noqa: PLW0108 - the queue is made next
        )
        turns = RollingTurns(self._settings.max_groups_rolling, wake=lambda key: queue.add(key))  # noqa: PLW0108 - as above
        turns.restore(groups)
        queue = ReconcileQueue(GroupPass(self._reconciler(turns), operations).run, self._settings)
        watcher = Watcher(
            self._access,
            namespace=self._settings.namespace,
            on_change=queue.add,
            identity=self._settings.instance,
            after_spawn=self._after_watch_spawned,
        )
        self._watcher = watcher
        unsubscribe = self._view.subscribe(queue.add)
        watcher.start()
        nodes = NodeWatch(
            self._api, on_change=self._look_at_all.set, timeout_seconds=self._settings.api_timeout_seconds
        )
        node_watch = asyncio.create_task(nodes.run(), name="reconcile node watch")
        log.info("reconcile.started", namespace=self._settings.namespace or "(all)")
        try:
            await self._resync_for_ever(queue, turns)
        finally:
            unsubscribe()
            node_watch.cancel()
            await asyncio.gather(node_watch, return_exceptions=True)
            await queue.stop()
            await operations.stop()
            await self._applier.settle()
            self._watcher = None
            self._conditions.clear()
            await watcher.stop()

    def _reconciler(self, turns: RollingTurns) -> Reconciler:
        timeout_seconds = self._settings.api_timeout_seconds
        events = EventPoster(self._api, instance=self._settings.instance, timeout_seconds=timeout_seconds)
        fetcher = GroupFetcher(self._api, self._view, timeout_seconds=timeout_seconds)
        applier = PlanApplier(
            api=self._api,
            applier=self._applier,
            view=self._view,
            events=events,
            timeout_seconds=timeout_seconds,
            namespace=self._settings.namespace,
        )
        return Reconciler(
            fetcher, applier, self._settings, turns, circumstances=self._circumstances, conditions=self._conditions
        )

    async def _wait_for_kinds(self) -> list[JsonObject]:
        """Kopf serves only the kinds that exist when it starts. Hands back the groups there are."""
        while True:
            try:
                groups = await self._list_groups()
                await self._api.list(
                    BROKER_GROUP_OPERATIONS,
                    namespace=self._settings.namespace,
                    timeout_seconds=self._settings.api_timeout_seconds,
                )
            except ApiError as error:
                log.info("reconcile.waits_for_kinds", error=str(error))
            else:
                return groups
            await asyncio.sleep(WAIT_FOR_KINDS_SECONDS)

    async def _resync_for_ever(self, queue: ReconcileQueue, turns: RollingTurns) -> None:
        """Events can be lost; a look at every group from time to time makes up for it."""
        while True:
            self._look_at_all.clear()
            try:
                groups = await self._list_groups()
                turns.keep_only(groups)
                for group in groups:
                    queue.add(key_of(group))
            except ApiError as error:
                log.warning("reconcile.resync_failed", error=str(error))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._look_at_all.wait(), self._settings.resync_seconds)

    async def _list_groups(self) -> list[JsonObject]:
        listed = await self._api.list(
            BROKER_GROUPS, namespace=self._settings.namespace, timeout_seconds=self._settings.api_timeout_seconds
        )
        return list(listed.items)
