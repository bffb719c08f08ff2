"""The reconcile plane: what keeps pods, claims, Services and status as the BrokerGroups want them.

What watches and the controller plane say puts groups into a queue; passes do the work. Between passes only what the watches said
last is kept (`GroupCache`). The failover path does not come through here. With leader election only the holder of the Lease watches
and works. A fault that ends the work gives the Lease back at once; the plane asks for it again after a pause, which grows.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import traceback
from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.api import names
from brokergroup_operator.kube import resources
from brokergroup_operator.kube.errors import ApiError, ApiUnavailableError, Backoff
from brokergroup_operator.kube.server_side_apply import ServerSideApplier
from brokergroup_operator.kube.trimmed import trimmed_all
from brokergroup_operator.observe.metrics import ConditionGauges
from brokergroup_operator.reconcile.act.apply import PlanApplier
from brokergroup_operator.reconcile.clusters.cluster_pass import ClusterPass
from brokergroup_operator.reconcile.operations.runner import OperationRunner
from brokergroup_operator.reconcile.other_groups import BrokerNames, HostPorts, RollingTurns, key_of
from brokergroup_operator.reconcile.reconciler import GroupPass, Reconciler
from brokergroup_operator.reconcile.run.leader import LeaderElector
from brokergroup_operator.reconcile.run.queue import ReconcileQueue
from brokergroup_operator.reconcile.run.watch import LASTED_SECONDS, Listener, Watcher
from brokergroup_operator.reconcile.see.bundles import HandshakingServers
from brokergroup_operator.reconcile.see.fetch import GroupFetcher
from brokergroup_operator.reconcile.see.observed import is_draining
from brokergroup_operator.reconcile.see.served_certificates import CertificatesAside, VerifiedHandshake
from brokergroup_operator.reconcile.see.servers_aside import ServersAside
from brokergroup_operator.reconcile.tell.events import EventPoster
from brokergroup_operator.records.group_cache import LABELLED, MANAGERS, WATCHED, GroupCache
from brokergroup_operator.records.serialize import has_registered

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.kube.client import KubernetesApi
    from brokergroup_operator.observe.group_view import GroupView
    from brokergroup_operator.observe.incidents import CircumstanceSink
    from brokergroup_operator.reconcile.access import ClusterAccess
    from brokergroup_operator.reconcile.settings import ReconcileSettings
    from brokergroup_operator.records.store import GroupKey

log = structlog.get_logger(__name__)
WAIT_FOR_KINDS_SECONDS, LONGEST_WAIT_FOR_KINDS_SECONDS = 0.5, 5.0
WAIT_FOR_CLUSTERS_SECONDS = 5.0
# After a fault. Not before the Lease's duration has passed either: another pod takes it meanwhile.
PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0


class ReconcilePlane:
    """`start` returns once it is set going; `stop` ends it and leaves everything as it is."""

    def __init__(
        self,
        api: KubernetesApi,
        access: ClusterAccess,
        view: GroupView,
        settings: ReconcileSettings,
        *,
        circumstances: CircumstanceSink | None = None,
        conditions: ConditionGauges | None = None,
    ) -> None:
        self._api = api
        self._access = access
        self._view = view
        self._settings = settings
        self._circumstances = circumstances
        self._conditions = conditions or ConditionGauges()
        self._leading = asyncio.Event()
        self._look_at_all = asyncio.Event()
        self._main: asyncio.Task[None] | None = None
        self._run: asyncio.Task[None] | None = None
        # Whether this plane has cancelled it. Its own `cancelling()` also counts time limits that expire inside.
        self._cancels_run = False
        # On the loop's clock; None while it waits for the Lease.
        self._serving_since: float | None = None
        # The last fault that ended the work, and whether the pause after it is not over.
        self._fault: BaseException | None = None
        self._pauses = False
        self._campaign: asyncio.Future[None] | None = None
        self._watcher: Watcher | None = None
        self._elector: LeaderElector | None = None
        if settings.leader_election is not None:
            self._elector = LeaderElector(
                api, settings.leader_election, on_started=self._leading.set, on_stopped=self._lose_leadership
            )
            # A process that was frozen learns that it no longer leads at its next write, before its timers run.
            self._api = api.guarded(self._may_write_seconds, timeout_seconds=settings.api_timeout_seconds)
        self._applier = ServerSideApplier(
            access.official_client,
            field_manager=names.FIELD_MANAGER_RECONCILE,
            timeout_seconds=settings.api_timeout_seconds,
            may_write_seconds=self._may_write_seconds,
        )

    @property
    def is_leading(self) -> bool:
        return self._leading.is_set()

    def trouble(self) -> str | None:
        """For `/healthz`: what only a restart of this process would end; None while there is nothing of that kind."""
        if self._main is not None and self._main.done() and not self._main.cancelled():
            return f"the reconcile plane has ended: {self._main.exception()!r}"
        if self._fault is not None and not self._is_over_the_fault():
            return f"the reconcile plane failed: {self._fault!r}"
        return None if self._watcher is None else self._watcher.trouble()

    def _is_over_the_fault(self) -> bool:
        """Whether a run has lasted since, or the pause is over and this pod follows: then another one may have the Lease."""
        return self._has_lasted() if self._serving_since is not None else not self._pauses

    def _has_lasted(self) -> bool:
        """Whether the present run has served for so long that no fault of before can have been in its way."""
        since = self._serving_since
        return since is not None and asyncio.get_running_loop().time() - since >= LASTED_SECONDS

    def _may_write_seconds(self) -> float:
        return math.inf if self._elector is None else self._elector.leads_for_seconds

    async def start(self) -> None:
        self._main = asyncio.create_task(self._keep_running(), name="reconcile plane")

    async def stop(self) -> None:
        if self._main is not None:
            self._main.cancel()
            await asyncio.gather(self._main, return_exceptions=True)
        if self._elector is not None:
            await self._elector.stop()
            await self._api.close()
        await self._applier.close()

    def _lose_leadership(self) -> None:
        log.warning("reconcile.leadership_lost")
        self._leading.clear()
        self._cancel_run()

    def _cancel_run(self) -> None:
        """Once: a second cancellation would cut short what the run does at its end."""
        if self._run is not None and not self._cancels_run:
            self._cancels_run = self._run.cancel()

    async def _keep_running(self) -> None:
        """One run at a time, however often the Lease comes and goes: the next begins when the last has ended."""
        backoff = Backoff(PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        self._ask_for_lease()
        while True:
            fault = await self._one_run()
            lasted, self._serving_since = self._has_lasted(), None
            if fault is None:
                continue
            if lasted:
                backoff.reset()
            self._fault, self._pauses = fault, True
            await self._pause(fault, backoff)
            self._pauses = False
            self._ask_for_lease()

    def _ask_for_lease(self) -> None:
        if self._elector is None:
            self._leading.set()
        else:
            self._campaign = self._elector.start()

    async def _one_run(self) -> BaseException | None:
        """Wait for the Lease and serve until it is lost. Return the fault that ended the run or the election sooner."""
        self._run, self._cancels_run = asyncio.create_task(self._serve_when_leading(), name="reconcile run"), False
        supervised = [self._run, *([] if self._campaign is None else [self._campaign])]
        try:
            await asyncio.wait(supervised, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._cancel_run()
            await asyncio.wait({self._run})
        if self._run.cancelled() and not self._cancels_run:
            return asyncio.CancelledError("a run that was not cancelled")
        faults = (one.exception() for one in supervised if one.done() and not one.cancelled())
        return next((fault for fault in faults if fault is not None), None)

    async def _pause(self, fault: BaseException, backoff: Backoff) -> None:
        """Give the Lease back, and wait for at least as long as it lasts: another pod takes it meanwhile."""
        election = self._settings.leader_election
        pause_seconds = backoff.next_seconds(0.0 if election is None else election.lease_duration_seconds)
        # As text: a traceback that the log renders itself would show the values of variables, keys among them.
        stack = "".join(traceback.format_exception(fault))
        log.error("reconcile.ended", error=repr(fault), again_seconds=round(pause_seconds, 1), stack=stack)
        if self._elector is not None:
            self._leading.clear()
            await self._elector.stop()
        await asyncio.sleep(pause_seconds)

    async def _serve_when_leading(self) -> None:
        await self._leading.wait()
        self._serving_since = asyncio.get_running_loop().time()
        while True:
            await self._serve()

    async def _serve(self) -> None:
        """Until it is cancelled, or the kind RocketMQCluster is there, which was not when it began."""

        def wake(key: GroupKey) -> None:
            queue.add(key)  # it is made below

        groups, registered = await self._wait_for_kinds()
        # A chart of before brings neither kind nor right. The kinds of one release are defined one after the other.
        with_clusters = await self._may_read(
            resources.ROCKETMQ_CLUSTERS,
            for_seconds=WAIT_FOR_CLUSTERS_SECONDS,
            otherwise="upgrade the chart to serve them",
        )
        # Chart value rbac.readNodes.
        with_nodes = await self._may_read(
            resources.NODES, for_seconds=0.0, otherwise="at a drain a master leaves by its own preStop"
        )
        # With rbac.create false the role may be an earlier release's, which has no right to these.
        unread = {
            one
            for one in resources.MAY_LACK
            if not await self._may_read(one, for_seconds=0.0, otherwise="groups with spec.network.policy are Stalled")
        }
        namespace, cache = self._settings.namespace, GroupCache(frozenset(unread))
        servers = ServersAside(HandshakingServers(self._settings.authority_file))
        # Brokers show their client certificates to these controllers, which verify them by the same authorities.
        served = CertificatesAside(VerifiedHandshake(self._settings.authority_file))
        controllers = self._settings.controller_addresses
        fetcher = GroupFetcher(
            self._api, self._view, cache=cache, servers=servers, served=served, controllers=controllers
        )
        events = EventPoster(self._api, instance=self._settings.instance)
        operations = OperationRunner(
            self._api,
            self._view,
            operator=self._settings.operator,
            settings=self._settings,
            read=fetcher.fetch_for_operations,
            post=events.post,
            wake=wake,
        )
        turns = RollingTurns(self._settings.max_groups_rolling, wake=wake)
        turns.restore(groups)
        broker_names = BrokerNames(wake=wake)
        broker_names.keep_only(groups, registered)
        host_ports = HostPorts()
        host_ports.keep_only(groups)
        reconciler = Reconciler(
            fetcher,
            PlanApplier(api=self._api, applier=self._applier, view=self._view, events=events, namespace=namespace),
            self._settings,
            turns,
            broker_names,
            host_ports=host_ports,
            circumstances=self._circumstances,
            conditions=self._conditions,
        )
        until_told = self._view.wait_until_master_is_told
        queue = ReconcileQueue(GroupPass(reconciler, operations).run, self._settings, until_master_is_told=until_told)
        cluster_pass = ClusterPass(self._api, events, self._settings, self._view, servers=servers)
        clusters = ReconcileQueue(cluster_pass.run, self._settings, until_master_is_told=None)
        watcher = Watcher(
            self._access,
            namespace=namespace,
            listener=self._listener(cache, queue, clusters if with_clusters else None, with_nodes=with_nodes),
            identity=self._settings.instance,
        )
        self._watcher = watcher
        unsubscribe = self._view.subscribe(queue.signal)
        watcher.start()
        log.info("reconcile.started", namespace=namespace or "(all)")
        try:
            await self._resync_for_ever(
                lambda: self._resync(cache, queue, turns, broker_names),
                clusters if with_clusters else None,
                cache.unread,
            )
        finally:
            unsubscribe()
            await asyncio.gather(queue.stop(), clusters.stop())
            await operations.stop()
            await asyncio.gather(servers.stop(), served.stop())
            await self._applier.settle()
            self._watcher = None
            self._conditions.clear()
            await watcher.stop()

    def _listener(
        self, cache: GroupCache, queue: ReconcileQueue, clusters: ReconcileQueue | None, *, with_nodes: bool
    ) -> Listener:
        """What the watches say: into the cache first, then the pass that may look there."""

        def on_object(resource: resources.Resource, obj: JsonObject, is_gone: bool) -> None:
            for key in cache.hold(resource, obj, is_gone=is_gone):
                queue.add(key)

        def on_node(name: str, node: JsonObject | None) -> None:
            is_new = cache.node(name) is None
            # A new node has no pods yet, but at a start of the operator every node is new.
            if cache.hold_node(name, node) and (not is_new or (node is not None and is_draining(node))):
                log.info("node.changed", node=name)
                self._look_at_all.set()

        return Listener(
            on_object=on_object,
            on_listed=self._look_at_all.set,
            on_cluster=None if clusters is None else clusters.add,
            on_node=on_node if with_nodes else None,
            unread=cache.unread,
        )

    async def _wait_for_kinds(self) -> tuple[list[JsonObject], set[GroupKey]]:
        """Kopf serves only the kinds that exist when it starts. Hands back the groups there are, and which have registered."""
        groups = await self._listed_at_last(resources.BROKER_GROUPS)
        states = await self._listed_at_last(resources.BROKER_GROUP_STATES)
        await self._listed_at_last(resources.BROKER_GROUP_OPERATIONS)
        return groups, _registered(states)

    async def _may_read(self, resource: resources.Resource, *, for_seconds: float, otherwise: str) -> bool:
        """Whether a kind can be read that groups do not wait for; log what follows where it can't."""
        try:
            await self._listed_at_last(resource, for_seconds=for_seconds)
        except ApiError as error:
            log.info("reconcile.does_without", kind=resource.plural, error=str(error), otherwise=otherwise)
            return False
        return True

    async def _listed_at_last(self, resource: resources.Resource, *, for_seconds: float = math.inf) -> list[JsonObject]:
        """List the kind as soon as the API lets us; raise its refusal after so long. While the API is away it is asked again."""
        deadline_seconds = asyncio.get_running_loop().time() + for_seconds
        backoff = Backoff(WAIT_FOR_KINDS_SECONDS, LONGEST_WAIT_FOR_KINDS_SECONDS)
        while True:
            try:
                return await self._list(resource)
            except ApiError as error:
                is_away = isinstance(error, ApiUnavailableError)
                if not is_away and asyncio.get_running_loop().time() >= deadline_seconds:
                    raise
                log.info("reconcile.waits_for_kinds", error=str(error))
                retry_after_seconds = error.retry_after_seconds
            await asyncio.sleep(backoff.next_seconds(retry_after_seconds))

    async def _resync_for_ever(
        self,
        resync: Callable[[], Awaitable[None]],
        clusters: ReconcileQueue | None,
        unread: frozenset[resources.Resource],
    ) -> None:
        """Events can be lost: a list of everything from time to time makes up for it, and a look at every group and cluster.

        It ends once clusters, or a kind that was unread, can be read: kopf follows only the kinds that it was started with.
        """
        while True:
            self._look_at_all.clear()
            try:
                await resync()
                if await self._look_at_clusters(clusters) or await self._may_read_now(unread):
                    return
            except ApiError as error:
                log.warning("reconcile.resync_failed", error=str(error))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.resync_seconds):
                    await self._look_at_all.wait()

    async def _resync(
        self, cache: GroupCache, queue: ReconcileQueue, turns: RollingTurns, broker_names: BrokerNames
    ) -> None:
        """What is listed here is dropped at the end: the cache has it already."""
        groups = await self._listed(cache, queue, resources.BROKER_GROUPS)
        states = await self._listed(cache, queue, resources.BROKER_GROUP_STATES)
        turns.keep_only(groups)
        broker_names.keep_only(groups, _registered(states))
        for resource in WATCHED:
            if resource not in {resources.BROKER_GROUPS, resources.BROKER_GROUP_STATES, *cache.unread}:
                await self._listed(cache, queue, resource)
        for key in map(key_of, groups):
            queue.add(key)

    async def _listed(self, cache: GroupCache, queue: ReconcileQueue, resource: resources.Resource) -> list[JsonObject]:
        """List a kind into the cache, and queue the groups of which the watches had said something else."""
        heard = cache.heard
        found = await self._list(resource)
        for key in cache.take_in(resource, found, heard=heard):
            queue.add(key)
        return found

    async def _look_at_clusters(self, clusters: ReconcileQueue | None) -> bool:
        """Queue them all; True where there is no queue for them, and they can be read now."""
        try:
            found = await self._list(resources.ROCKETMQ_CLUSTERS)
        except ApiError:
            if clusters is None:
                return False
            raise
        if clusters is None:
            log.info("reconcile.clusters_came")
            return True
        for cluster in found:
            clusters.add(key_of(cluster))
        return False

    async def _may_read_now(self, unread: frozenset[resources.Resource]) -> bool:
        """Whether the role has the right to one of these kinds by now."""
        for resource in unread:
            with contextlib.suppress(ApiError):
                await self._list(resource)
                log.info("reconcile.right_came", kind=resource.plural)
                return True
        return False

    async def _list(self, resource: resources.Resource) -> list[JsonObject]:
        """Trimmed page by page: whole, the pods of 1,000 groups take 165 MB. Of a kind that others use too, the groups' own."""
        label_selector = names.LABEL_BROKER_GROUP if resource in LABELLED else ""
        pages = self._api.pages(resource, namespace=self._settings.namespace, label_selector=label_selector)
        async with contextlib.aclosing(pages):
            return [obj async for page in pages for obj in await trimmed_all(page.items, MANAGERS)]


def _registered(states: Iterable[JsonObject]) -> set[GroupKey]:
    return {key_of(state) for state in states if has_registered(state.get("record") or {})}
