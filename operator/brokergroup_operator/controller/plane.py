"""The controller plane: RocketMQ's controller on a TCP port, with the record store as its consensus.

Every plane answers every request and says of itself that it leads (1005). Two that decide at once are kept apart by the record
store's compare-and-set. A request's way, and that from a dead master to the next, are in docs/concepts/architecture.md.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.controller.change.executor import Executor
from brokergroup_operator.controller.change.failover import Failover
from brokergroup_operator.controller.change.group_verbs import GroupVerbs
from brokergroup_operator.controller.change.switchover import Drain, Switchover
from brokergroup_operator.controller.change.takeover import Takeover
from brokergroup_operator.controller.detect import master_watch, record_watch
from brokergroup_operator.controller.group.groups import Groups, ReceiverCheck
from brokergroup_operator.controller.peers.broker_calls import BrokerCalls
from brokergroup_operator.controller.peers.services import Planes, Services, is_running
from brokergroup_operator.controller.settings import PlaneSettings, open_client
from brokergroup_operator.controller.upkeep import keeper, links, metadata_guard, recovery_watch, silent_members
from brokergroup_operator.controller.wire.request_handler import RequestHandler
from brokergroup_operator.observe.group_view import GroupSnapshot
from brokergroup_operator.observe.observer import Observer
from brokergroup_operator.observe.timeline import Kind
from brokergroup_operator.records.store import GroupKey, RecordStore, RecordStoreError
from rocketmq_remoting.address import WILDCARDS
from rocketmq_remoting.limits import LineLimit
from rocketmq_remoting.server import RemotingServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from brokergroup_operator.controller.change.fencing import Fencer
    from brokergroup_operator.controller.detect.api_contact import ApiContact
    from brokergroup_operator.controller.directory.group_directory import GroupDirectory
    from brokergroup_operator.controller.group.group import Group

# After so long a tick lets requests pass, then goes on: a thousand masters that are lost at once are a second of looks.
LONGEST_TURN_SECONDS = 0.02

log = structlog.get_logger(__name__)


class ControllerPlane(GroupVerbs):
    """Store, directory, fencer and contact belong to the caller; planes may share a store. Without a fencer (outside Kubernetes) a
    silent master is replaced unfenced, and the incident says so. Without a contact the fences take each answer for one of a plane
    that can elect.
    """

    def __init__(
        self,
        *,
        store: RecordStore,
        directory: GroupDirectory,
        settings: PlaneSettings | None = None,
        fencer: Fencer | None = None,
        contact: ApiContact | None = None,
        observer: Observer | None = None,
    ) -> None:
        settings, observer = settings or PlaneSettings(), observer or Observer()
        security = settings.security
        self._store, self._directory = store, directory
        self._callbacks: list[Callable[[GroupKey], None]] = []
        self._loads: dict[GroupKey, asyncio.Task[None]] = {}
        self._unsubscribe: Callable[[], None] | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._stopping = False
        # Of groups whose look fails: at most 10 lines a minute.
        self._faults = LineLimit(10)
        self._guard = master_watch.PauseGuard(
            threshold_seconds=settings.pause_threshold_seconds, distrust_seconds=settings.heartbeat_timeout_seconds
        )
        groups = Groups(store=store, directory=directory, settings=settings, observer=observer, on_change=self._changed)
        self._client = open_client(security, settings.peer_addresses, directory)
        calls = BrokerCalls(
            self._client,
            settings,
            credentials_of=groups.credentials_at,
            dialled_at=groups.dialled_at,
            receiver_check=ReceiverCheck(groups, directory),
        )
        services = Services(
            settings=settings,
            observer=observer,
            calls=calls,
            planes=Planes(self._client, settings),
            api_silence_seconds=None if contact is None else contact.silence_seconds,
        )
        self._executor = executor = Executor(services)
        self._watch = master_watch.MasterWatch(services, directory=directory, guard=self._guard)
        recovery = record_watch.Recovery(services)
        failover = Failover(services, watch=self._watch, fencer=fencer, executor=executor, recovery=recovery)
        self._metadata = metadata_guard.MetadataGuard(services)
        switchover = Switchover(services, executor=executor, metadata=self._metadata, binding_now=directory.binding_now)
        super().__init__(services, groups=groups, failover=failover, switchover=switchover)
        self._drain = Drain(services, switchover)
        self._takeover = Takeover(services, executor)
        link_watch = links.Links(services, executor=executor, failover=failover)
        self._keeper = keeper.Keeper(services, executor=executor, links=link_watch, binding_now=directory.binding_now)
        self._silent_members = silent_members.SilentMembers(services)
        self._canary = recovery_watch.Canary(services)
        self._recovery_watch = recovery_watch.RecoveryWatch(services, self._canary)
        self.handler = RequestHandler(
            services,
            groups=groups,
            directory=directory,
            holdings=record_watch.HoldingsWatch(services, recovery=recovery, on_news=self._look_for_master),
            silent_members=self._silent_members,
            failover=failover,
            switchover=switchover,
            on_connection_closed=self._connection_closed,
        )
        self._server = RemotingServer(
            self.handler,
            limits=security.frame_limits,
            max_unknown_connections=security.max_unknown_connections,
            max_unknown_connections_per_host=security.max_unknown_connections_per_host,
            tls=security.tls,
        )

    @property
    def address(self) -> str:
        """Where it listens, with the real port if 0 was configured."""
        return self._server.address

    async def start(self) -> None:
        """Learn the groups, read their records, listen. Raise `OSError` if the address cannot be bound."""
        if not self._settings.advertise_address and self._settings.listen_host in WILDCARDS:
            raise ValueError(
                f"advertise_address is empty and listen_host is {self._settings.listen_host!r}: expected the host:port "
                "by which brokers reach this controller, since they are told it as the leader's address (1005)"
            )
        self._stopping = False
        self._unsubscribe = self._store.subscribe(self.record_moved)
        self._directory.on_gone.append(self._member_gone)
        self._directory.on_leaving.append(self._members_leaving)
        await self._directory.start()
        await self._server.start(self._settings.listen_host, self._settings.listen_port)
        self._planes.own_address = self._settings.advertise_address or self.address
        self._ticker = asyncio.create_task(self._tick_for_ever(), name="rmq:tick")

    async def stop(self) -> None:
        """Stop electing first, then listening: connections that this plane closes are no evidence of a death."""
        self._stopping = True
        changes = [group.master_change for group in self._groups if group.master_change is not None]
        if changes:  # a switchover that is cut off leaves a master behind that acknowledges nothing
            await asyncio.wait(changes, timeout=self._settings.last_change_seconds)
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        tasks = [task for task in (self._ticker, *(group.master_change for group in self._groups)) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._ticker = None
        self.handler.drain()
        self._server.stop_listening()
        await self._tasks.stop()
        await self._executor.stop()
        await asyncio.sleep(self._settings.drain_seconds)
        await self._server.stop(grace_seconds=1.0)
        await asyncio.gather(*(group.stop() for group in self._groups))
        await self._client.close()
        await self._directory.stop()

    # ---- GroupView, which says what each does

    def keys(self) -> list[GroupKey]:
        return [group.key for group in self._groups]

    def snapshot(self, key: GroupKey) -> GroupSnapshot | None:
        if (group := self._groups.get(key)) is None:
            return None
        silences = {one: silence for one, silence in group.unheard.silences.items() if not group.is_live(one)}
        masters_silence = silences.pop(group.granted_master_id or 0, None)
        return GroupSnapshot(
            key=group.key,
            record=group.record,
            live=group.live(),
            writable=group.writable,
            closed=group.binding.closed,
            in_progress=group.incidents.in_progress,
            is_changing=group.is_changing,
            last_failover=group.incidents.last.get(Kind.FAILOVER),
            last_switchover=group.incidents.last.get(Kind.SWITCHOVER),
            epoch_jump=group.holdings.epoch_jump,
            unlinked=group.links.unlinked & group.live().keys() if group.granted_master_id is not None else frozenset(),
            lost_links={one: lost for one, lost in group.links.lost.items() if group.is_live(one)},
            replication_speeds=group.links.speeds if group.is_live(group.granted_master_id or 0) else {},
            silences=silences,
            masters_silence=masters_silence,
            known_for_seconds=asyncio.get_running_loop().time() - group.met_seconds,
            metadata_diverged=self._metadata.differences(group),
            spared_on_testimony=group.silence.spared,
            member_facts=group.binding.member_facts,
            member_configuration=dict(group.configuration.said),
            certificates={one: found for one in group.live() if (found := group.members.certificates.get(one))},
            heartbeat_age_seconds={one: max(0.0, group.silent_for_seconds(one)) for one in group.table.entries()},
        )

    def subscribe(self, callback: Callable[[GroupKey], None]) -> Callable[[], None]:
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def record_moved(self, key: GroupKey, version: str | None) -> None:
        """The store reports this version of the group's record: take it, or read it again later."""
        if (group := self._groups.get(key)) is None:
            return
        group.patience.answered()
        try:
            delivered = self._store.watched(key)
        except RecordStoreError:  # the group's own read logs it
            delivered = None
        if delivered is None or not group.take_watched(delivered):
            group.distrust_copy(version)

    def _changed(self, group: Group) -> None:
        for callback in list(self._callbacks):
            callback(group.key)
        if not self._stopping:
            self._recovery_watch.look_at(group)

    def _connection_closed(self, connection_id: int, groups: Iterable[Group]) -> None:
        if self._stopping:
            return
        self._guard.distrusts(self._now_seconds)  # the first thing after a pause may be a closed connection, not a tick
        for group in groups:
            for broker_id in group.table.connection_closed(self._now_seconds, connection_id):
                self._failover.look_at(group)
                log.info("connection closed", group=str(group.key), broker_id=broker_id)
                group.changed()

    def _look_for_master(self, group: Group) -> None:
        if not self._stopping:
            self._failover.look_at(group)

    def _member_gone(self, key: GroupKey, broker_id: int) -> None:
        group = self._groups.get(key)
        if group is not None and not self._stopping:
            group.members.reported_dead[broker_id] = self._now_seconds
            self._failover.look_at(group)

    def _members_leaving(self, key: GroupKey) -> None:
        group = self._groups.get(key)
        if group is not None and not self._stopping:
            group.changed()
            self._drain.look_at(group)

    async def _tick_for_ever(self) -> None:
        while True:
            now_seconds = self._note_pause()
            self._groups.meet_all()
            for group in self._groups.due(now_seconds):
                try:
                    self._look_at(group, now_seconds)
                except (
                    Exception
                ):  # supervision point: what is wrong with one group must not end the ticks of all the others
                    if (left_out := self._faults.take(now_seconds)) is not None:
                        log.exception("group not looked at", group=str(group.key), left_out=left_out)
                if self._now_seconds - now_seconds >= LONGEST_TURN_SECONDS:
                    await asyncio.sleep(0)
                    now_seconds = self._note_pause()
            await asyncio.sleep(self._settings.tick_seconds)

    def _note_pause(self) -> float:
        """Restart every silence if this process was paused before now; return the time."""
        now_seconds = self._now_seconds
        if self._guard.tick(now_seconds):
            log.warning("this process was paused: every silence begins anew")
            for group in self._groups:
                group.table.restart_deadlines(now_seconds)
        return now_seconds

    def _look_at(self, group: Group, now_seconds: float) -> None:
        if not group.loaded and group.patience.is_over and not is_running(self._loads.get(group.key)):
            self._loads[group.key] = self._tasks.start(self._load(group), f"rmq:load {group.key}")
        self._failover.look_at(group)
        self._drain.look_at(group)
        self._metadata.look_at(group)
        self._silent_members.look_at(group)
        is_changing = self._takeover.look_at(group)
        if not is_changing:
            self._keeper.look_at(group)
            if group.loaded and (master := group.granted_master_id) is not None:
                group.rest(now_seconds, master, self._keeper.rests_until(group))
        self._recovery_watch.look_at(group)
        self._canary.look_at(group)
        group.incidents.close(older_than_seconds=self._settings.incident_deadline_seconds)

    @staticmethod
    async def _load(group: Group) -> None:
        try:
            await group.load()
        except RecordStoreError as error:
            log.warning("record not read yet", group=str(group.key), error=str(error))
