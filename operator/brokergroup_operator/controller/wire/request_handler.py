"""Answers the wire: each controller request is admitted and answered in time, as docs/reference/controller.md says."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from weakref import WeakSet

import structlog

from brokergroup_operator.api.versions import NO_IDS, SERVED
from brokergroup_operator.controller.access import authorization as access
from brokergroup_operator.controller.detect.record_watch import AdoptionDesk, DisputedSets, HoldingsWatch
from brokergroup_operator.controller.group.group import Group, PremiseGoneError
from brokergroup_operator.controller.peers.services import ASKED_NAME, ASKED_NAMESPACE, Part, Services
from brokergroup_operator.controller.settings import effective_configuration
from brokergroup_operator.controller.wire import codec
from brokergroup_operator.fence.watchman import (
    API_SILENCE,
    CONTROLLERS,
    LONGEST_API_SILENCE_MILLISECONDS,
    STOPPING_GROUPS,
)
from brokergroup_operator.observe.group_view import GroupViewError
from brokergroup_operator.records.store import GroupKey, RecordStoreError
from controller_core import requests
from controller_core.decision import ControllerCode, Decision, ElectMasterAnswer, GetSyncStateDataAnswer, refused
from controller_core.membership import ids_ahead
from controller_core.model import BrokerGroupRecord, LiveReplica
from controller_core.settings import ControllerSettings
from controller_core.step import step
from rocketmq_remoting import controller_protocol as protocol
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.errors import BodyError
from rocketmq_remoting.handler import not_supported
from rocketmq_remoting.limits import LineLimit
from rocketmq_remoting.serialization import encode_properties
from rocketmq_remoting.signature import ACCESS_KEY, SIGNATURE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from brokergroup_operator.controller.change.failover import Failover
    from brokergroup_operator.controller.change.switchover import Switchover
    from brokergroup_operator.controller.directory.group_directory import GroupBinding, GroupDirectory
    from brokergroup_operator.controller.directory.pods import Peer
    from brokergroup_operator.controller.group.groups import Groups
    from brokergroup_operator.controller.upkeep.silent_members import SilentMembers
    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_remoting.connection import RemotingConnection

    Route = Callable[[RemotingCommand, RemotingConnection], Awaitable[Decision | RemotingCommand]]

log = structlog.get_logger(__name__)

# Clients that are newer than 5.3.1 understand 1500.
_LAST_VERSION_WITHOUT_GO_AWAY = 475
# A request that waits for a failover leaves this much of its deadline for the decision afterwards.
_DECISION_SHARE_SECONDS = 0.5
# While the record was not read, ids up to this are listened to.
_MOST_IDS_BEFORE_THE_RECORD = 10_000
# A broker polls for one name, a container for a few dozen.
_MAX_NAMES_PER_CONNECTION = 100


class RequestHandler(Part):
    """The ``RemotingHandler`` of the plane."""

    def __init__(
        self,
        services: Services,
        *,
        groups: Groups,
        directory: GroupDirectory,
        holdings: HoldingsWatch,
        silent_members: SilentMembers,
        failover: Failover,
        switchover: Switchover,
        on_connection_closed: Callable[[int, Iterable[Group]], None],
    ) -> None:
        super().__init__(services)
        self._groups, self._directory, self._holdings = groups, directory, holdings
        self._failover, self._switchover, self._silent_members = failover, switchover, silent_members
        self._api_silence_seconds = services.api_silence_seconds
        self._on_connection_closed = on_connection_closed
        # At most 10 lines a minute, then one line with how many were left out.
        self._refusals = LineLimit(10)
        self._replays = access.ReplayGuard()
        self._new_names = access.NewNames(self._settings.security.max_new_names_per_host)
        self._disputed, self._adoption = DisputedSets(services), AdoptionDesk(services)
        self._connections: defaultdict[int, ConnectionNotes] = defaultdict(ConnectionNotes)
        self._draining = False
        self._routes: dict[int, Route] = {
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: self._alter_sync_state_set,
            RequestCode.CONTROLLER_ELECT_MASTER: self._elect,
            RequestCode.CONTROLLER_REGISTER_BROKER: self._register,
            RequestCode.CONTROLLER_GET_REPLICA_INFO: self._replica_info,
            RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: self._sync_state_data,
            RequestCode.CLEAN_BROKER_DATA: self._clean,
            RequestCode.CONTROLLER_GET_NEXT_BROKER_ID: self._broker_id,
            RequestCode.CONTROLLER_APPLY_BROKER_ID: self._broker_id,
        }

    def drain(self) -> None:
        """From now on callers that understand 1500 are sent to another controller; the others are served to the end."""
        self._draining = True

    def connection_opened(self, connection: RemotingConnection) -> None:
        """A pod is known by its address; other callers are unknown until they sign or show a certificate."""
        if self._directory.pods.peer_at(connection.peer_host) is not None:
            connection.peer_is_known()

    def connection_closed(self, connection: RemotingConnection) -> None:
        notes = self._connections.pop(connection.id, ConnectionNotes())
        self._on_connection_closed(connection.id, notes.groups)

    def handle(
        self, request: RemotingCommand, connection: RemotingConnection
    ) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        """Answer heartbeats, metadata and configuration at once, everything else in a task of its own."""
        begun_seconds = self._now_seconds
        try:
            if self._draining and not request.is_oneway and request.version > _LAST_VERSION_WITHOUT_GO_AWAY:
                answer = request.answer(ResponseCode.GO_AWAY, remark="this controller is stopping")
            elif request.code in self._routes:
                return self._answer_in_time(request, connection)
            elif request.code == RequestCode.BROKER_HEARTBEAT:
                answer = self._heartbeat(request, connection)
            elif request.code == RequestCode.CONTROLLER_GET_METADATA_INFO:
                answer = self._metadata(request)
            elif request.code in (RequestCode.UPDATE_CONTROLLER_CONFIG, RequestCode.GET_CONTROLLER_CONFIG):
                answer = self._configuration(request, connection)
            else:
                answer = not_supported(request)
        except access.NotPermittedError as error:
            answer = self._refused(request, connection, error)
        return self._noted(request, answer, begun_seconds)

    async def _answer_in_time(self, request: RemotingCommand, connection: RemotingConnection) -> RemotingCommand:
        """Supervision point: whatever one request raises, its caller is answered and the plane goes on."""
        begun_seconds = self._now_seconds
        try:
            async with asyncio.timeout(self._settings.answer_deadline_seconds):
                found = await self._routes[request.code](request, connection)
            answer = codec.encode_decision(request, found) if isinstance(found, Decision) else found
        except TimeoutError:
            remark = f"not decided within {self._settings.answer_deadline_seconds} s, ask again"
            answer = request.answer(ResponseCode.SYSTEM_ERROR, remark=remark)
        except access.NotPermittedError as error:
            answer = self._refused(request, connection, error)
        except Exception as error:
            if not isinstance(error, RecordStoreError | PremiseGoneError | GroupViewError | BodyError):
                log.exception("request failed", code=request.code, peer=connection.peer_host)
            answer = request.answer(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")
        return self._noted(request, answer, begun_seconds)

    def _noted(self, request: RemotingCommand, answer: RemotingCommand, begun_seconds: float) -> RemotingCommand:
        self._observer.request_answered(request.code, answer.code, self._now_seconds - begun_seconds)
        return answer

    def _refused(self, request: RemotingCommand, connection: RemotingConnection, error: Exception) -> RemotingCommand:
        left_out = self._refusals.take(self._now_seconds)
        if left_out:
            log.warning("more requests were refused", left_out=left_out)
        if left_out is not None:
            log.warning("request refused", code=request.code, peer=connection.peer_host, reason=str(error))
        return request.answer(ResponseCode.NO_PERMISSION, remark=str(error))

    def _heartbeat(self, request: RemotingCommand, connection: RemotingConnection) -> RemotingCommand:
        """904, the plane's hottest path (`make bench-controller`): the caller is looked up in what is known, not at the API."""
        header = protocol.BrokerHeartbeatRequestHeader.decode(request.ext_fields)
        peer = self._directory.pods.peer_at(connection.peer_host)
        group = self._groups.find(header.broker_name or "", cluster_name=header.cluster_name or "", peer=peer)
        if header.broker_id is None:
            return request.answer(ResponseCode.CONTROLLER_INVALID_REQUEST, remark="Heart beat with empty brokerId")
        if group is not None:
            # An unsigned one is checked only if anything that the last check went by has changed.
            ext_fields, judged_by = request.ext_fields or {}, (header.broker_id, peer, group.binding, group.record)
            notes, is_signed = self._connections[connection.id], ACCESS_KEY in ext_fields or SIGNATURE in ext_fields
            if is_signed or notes.allowed_by != judged_by:
                self._check(request, connection, peer, group, header.broker_id)
                if not is_signed:
                    notes.allowed_by = judged_by
            self._take_heartbeat(header, header.broker_id, group, connection, peer)
        return request.answer(ResponseCode.SUCCESS, remark="Heart beat success")

    def _take_heartbeat(
        self,
        header: protocol.BrokerHeartbeatRequestHeader,
        broker_id: int,
        group: Group,
        connection: RemotingConnection,
        peer: Peer | None,
    ) -> None:
        if not _may_exist(group, broker_id):
            return
        _, address, host = group.addresses.spelled(broker_id, header.broker_addr or "")
        now_seconds = self._now_seconds
        wished_seconds = group.binding.heartbeat_timeout_seconds or header.heartbeat_timeout_ms / 1000
        if not group.members.beats_regularly(broker_id, now_seconds):
            wished_seconds = max(wished_seconds, self._settings.startup_timeout_seconds)
        told = LiveReplica(
            broker_id, header.epoch, header.max_offset, header.confirm_offset, header.election_priority, address
        )
        known = group.table.entry(broker_id)
        if known is None or known.connection_id != connection.id:
            self._carries(group, broker_id, connection)
        came_back = group.table.heartbeat(now_seconds, told, connection.id, timeout_seconds=wished_seconds)
        at = self._broker_host(connection)
        group.addresses.heard_from(broker_id, at)
        group.heard(broker_id, header.epoch, came_back=came_back)
        self._holdings.heard(group, broker_id)
        requester = _pod_name(peer, group)
        if requester is not None and (host == at or group.binding.advertises(requester, address)):
            group.members.whereabouts[broker_id] = address
        self._adoption.heard(group, broker_id, address, requester)

    def _carries(self, group: Group, broker_id: int, connection: RemotingConnection) -> None:
        """Note that a member speaks over this connection, and which client certificate it showed."""
        self._connections[connection.id].groups.add(group)
        group.members.certificates[broker_id] = connection.certificate_validity

    def _configuration(self, request: RemotingCommand, connection: RemotingConnection) -> RemotingCommand:
        """1009, 1010."""
        caller, no_group = access.Caller(host=connection.peer_host), access.Subject(binding=None)
        access.authorize(caller, request.code, no_group, self._settings.security)
        shown = effective_configuration(self._settings, advertise_address=self._planes.own_address)
        return request.answer(ResponseCode.SUCCESS, body=encode_properties(shown))

    def _metadata(self, request: RemotingCommand) -> RemotingCommand:
        """1005: every plane leads."""
        peers, own = self._settings.peers_and_own_index(self._planes.own_address)
        header = protocol.GetMetaDataResponseHeader(
            group=self._settings.controller_group,
            controller_leader_id=f"n{own}",
            controller_leader_address=self._planes.own_address,
            is_leader=True,
            peers="".join(f"n{index}:{peer};" for index, peer in enumerate(peers)),
        )
        return request.answer(ResponseCode.SUCCESS, ext_fields=header.encode())

    async def _alter_sync_state_set(self, request: RemotingCommand, connection: RemotingConnection) -> Decision:
        """1001. Its epochs fence it, so the copy of the record is enough to accept it; before a refusal the store is read."""
        wanted = codec.decode_alter_sync_state_set(request)
        group, _ = await self._admit(request, connection, broker_id=wanted.master_broker_id)
        if group is None:
            return _of_unknown_group(wanted)
        decision = await group.decide(wanted, linearizable=False)
        return await self._disputed.answered(group, wanted, decision)

    async def _clean(self, request: RemotingCommand, connection: RemotingConnection) -> Decision:
        """1011."""
        wanted = codec.decode(requests.CleanBrokerData, request)
        group, _ = await self._admit(request, connection)
        if group is None:
            return _of_unknown_group(wanted)
        await group.load()
        access.refuse_to_forget_pods(group, wanted)
        return await group.decide(wanted)

    async def _replica_info(self, request: RemotingCommand, connection: RemotingConnection) -> Decision:
        """1004: a poll. A poll answered 2008 is remembered: an unmodified broker registers again on that answer alone."""
        wanted = codec.decode(requests.GetReplicaInfo, request)
        group, _ = await self._admit(request, connection)
        if group is None:
            decision = _of_unknown_group(wanted)
        else:
            await group.load()
            is_unknown = self._silent_members.must_register(group, self._broker_host(connection))
            told = None if is_unknown else group.changes.record_to_tell(group.record)
            decision = step(told, wanted, group.live(), group.binding.settings)
        if decision.code == ControllerCode.CONTROLLER_BROKER_METADATA_NOT_EXIST and connection.is_open:
            self._connections[connection.id].told_unknown(wanted.broker_name or "")
        return decision

    async def _register(self, request: RemotingCommand, connection: RemotingConnection) -> Decision | RemotingCommand:
        """1003: a new process of a replica."""
        wanted = codec.decode_register_broker(request)
        notes = self._connections.get(connection.id)
        if wanted.broker_id is None:
            return await self._register_without_id(request, connection)
        follows_a_poll = notes is not None and notes.registers_because_of_poll(wanted.broker_name or "")
        group, caller = await self._admit(request, connection, broker_id=wanted.broker_id)
        if group is None:
            return _of_unknown_group(wanted)
        access.refuse_elsewhere(caller, group, wanted)
        record = await group.load()
        if follows_a_poll and record is not None and record.granted_master_id == wanted.broker_id:
            # The master's process runs on: the group became known between its poll and this request. Its next poll is answered.
            return _of_unknown_group(wanted)
        known = record is not None and record.claimed_replica(wanted.broker_id) is not None
        with group.registrations.deciding(wanted.broker_id or 0, lambda: group.record):
            if known:
                # Before the decision: an election that begins right after it must not find what the lost process reported.
                self._new_process(group, wanted, connection)
            decision = await group.decide(replace(wanted, requester=_pod_name(caller.peer, group)))
        if decision.code == ControllerCode.SUCCESS:
            self._new_names.give_back(group.key)
            if not known:
                self._new_process(group, wanted, connection)
        return decision

    async def _register_without_id(self, request: RemotingCommand, connection: RemotingConnection) -> RemotingCommand:
        """The 1003 of a broker before 5.1.1. It logs the answer and asks again every 5 s; reported once for each connection."""
        group, _ = await self._admit(request, connection)
        left_out = self._refusals.take(self._now_seconds)
        if left_out is not None:
            log.warning("registration without a broker id", peer=connection.peer_host, reason=NO_IDS, left_out=left_out)
        if group is not None and connection.is_open and not self._connections[connection.id].told_too_old:
            self._connections[connection.id].told_too_old = True
            self._observer.broker_too_old(group.key, connection.peer_host)
        remark = f"no brokerId in the registration: {NO_IDS}; expected RocketMQ {SERVED}"
        return request.answer(ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, remark=remark)

    def _new_process(self, group: Group, wanted: requests.RegisterBroker, connection: RemotingConnection) -> None:
        """Note the new process, unless its connection has closed meanwhile: reports of the one before it do not count any more."""
        if not (wanted.broker_id and wanted.broker_address and connection.is_open):
            return
        self._carries(group, wanted.broker_id, connection)
        group.table.registered(self._now_seconds, wanted.broker_id, connection.id, address=wanted.broker_address)
        group.addresses.heard_from(wanted.broker_id, self._broker_host(connection))
        group.new_process(wanted.broker_id)

    async def _elect(self, request: RemotingCommand, connection: RemotingConnection) -> Decision:
        """1002: a broker asks for the master, or an administrator designates one."""
        wanted = codec.decode(requests.ElectMaster, request)
        by = None if wanted.designate_elect else wanted.broker_id
        group, _ = await self._admit(request, connection, broker_id=by, designate=wanted.designate_elect)
        if group is None:
            return _of_unknown_group(wanted)
        record = await group.load()
        if by is not None and record is not None and record.claimed_replica(by) and connection.is_open:
            # It lives, and its request may have overtaken its heartbeat.
            self._carries(group, by, connection)
            group.table.sign_of_life(self._now_seconds, by, connection.id)
        decision = await self._elect_safely(group, wanted)
        has_master = decision.code in (ControllerCode.SUCCESS, ControllerCode.CONTROLLER_MASTER_STILL_EXIST)
        if has_master and by is not None:
            # The caller takes its role from this answer: leave it the time before it is told by 1008.
            group.changes.leave_alone(self._settings.link_missing_seconds)
        return decision

    async def _elect_safely(self, group: Group, wanted: requests.ElectMaster) -> Decision:
        """Replace the record's master only through a failover, which fences it, or a switchover, which quiets it first
        (`tests/controller/test_change_of_master.py`).
        """
        record = group.record
        master = record.granted_master_id if record is not None else None
        if master is not None and not group.is_live(master):
            await self._failover.settle(group, self._settings.answer_deadline_seconds - _DECISION_SHARE_SECONDS)
            record = group.record
            if record is not None and record.granted_master_id == master and not group.is_live(master):
                # Java's answer to a broker if no member can be elected (2012); the broker asks again.
                why = f"it is not established yet that the master {master} is dead"
                code, remark = ControllerCode.CONTROLLER_ELECT_MASTER_FAILED, f"Failed to elect a new master: {why}"
                return refused(None, code, ElectMasterAnswer(), why, remark)
        elif master is not None and wanted.designate_elect and wanted.broker_id not in (None, -1, master):
            trial = step(record, wanted, group.live(), group.binding.settings)
            if trial.code == ControllerCode.SUCCESS:
                return await self._switchover.decide(group, from_broker_id=master, election=wanted)
        return await self._failover.decide_for_caller(group, wanted)

    async def _broker_id(self, request: RemotingCommand, connection: RemotingConnection) -> Decision | RemotingCommand:
        """1012, 1013: the next id, and its grant; a pod gets the id that was reserved for it."""
        group, caller = await self._admit(request, connection)
        requester = _pod_name(caller.peer, group)
        wanted: requests.Request
        if request.code == RequestCode.CONTROLLER_GET_NEXT_BROKER_ID:
            wanted = codec.decode(requests.GetNextBrokerId, request, requester=requester)
        else:
            wanted = codec.decode_apply_broker_id(request, requester)
        if group is not None:
            return await self._with_a_place(group, wanted, connection.peer_host)
        cluster_name, broker_name = codec.named_group(request)
        if not broker_name:
            return _of_unknown_group(wanted)
        remark = f"no BrokerGroup has brokerName {broker_name!r} in {cluster_name!r}"
        return request.answer(ResponseCode.SYSTEM_ERROR, remark=remark)

    async def _with_a_place(self, group: Group, wanted: requests.Request, host: str) -> Decision:
        """Decide; the first id of a name takes a place of the address's share. Raise `NotPermittedError` if none is left."""
        if not isinstance(wanted, requests.ApplyBrokerId) or await group.load() is not None:
            return await group.decide(wanted)
        if not self._new_names.begin(group.key, host, self._now_seconds):
            raise access.NotPermittedError(
                f"{host} has begun as many new names as it may; a broker must register under one first"
            )
        decision = await group.decide(wanted)
        if decision.record is None:
            self._new_names.give_back(group.key)
        return decision

    async def _sync_state_data(self, request: RemotingCommand, connection: RemotingConnection) -> RemotingCommand:
        """1006: the members in sync and alive, for each name; no names is Java's code 1."""
        broker_names = protocol.decode_broker_names(request.body)
        if not broker_names:
            return request.answer(ResponseCode.SYSTEM_ERROR, remark="not set any response code")
        peer = self._directory.pods.peer_at(connection.peer_host)
        fields = request.ext_fields or {}
        asked = self._groups.get(GroupKey(fields.get(ASKED_NAMESPACE, ""), fields.get(ASKED_NAME, "")))
        answers: dict[str, GetSyncStateDataAnswer] = {}
        stopping: list[str] = []
        for broker_name in broker_names:
            is_asked = asked is not None and asked.binding.broker_name == broker_name
            group = asked if is_asked else self._groups.find(broker_name, peer=peer)
            if group is None:
                continue
            record = await group.load()
            wanted = requests.GetSyncStateData(broker_name=broker_name)
            decision = step(record, wanted, group.live(), group.binding.settings)
            if isinstance(decision.answer, GetSyncStateDataAnswer):
                answers[broker_name] = decision.answer
            stopping += [broker_name] if group.is_leaving else []
        told = self._for_fences(stopping)
        return request.answer(ResponseCode.SUCCESS, ext_fields=told or None, body=codec.encode_sync_state_data(answers))

    def _for_fences(self, stopping: list[str]) -> dict[str, str]:
        """Return the fields for the pods' fences: groups that are being stopped, all controllers' addresses, and for how long this
        one has not reached the Kubernetes API. Java's clients ignore them.
        """
        listed = (STOPPING_GROUPS, stopping), (CONTROLLERS, self._settings.peer_addresses)
        told = {name: ";".join(values) for name, values in listed if values}
        if self._api_silence_seconds is not None:
            # Now, after all waiting: the fence counts back from its question, which is older.
            silence = min(self._api_silence_seconds() * 1000, LONGEST_API_SILENCE_MILLISECONDS)
            told[API_SILENCE] = str(math.ceil(silence))
        return told

    async def _admit(
        self,
        request: RemotingCommand,
        connection: RemotingConnection,
        *,
        broker_id: int | None = None,
        designate: bool = False,
    ) -> tuple[Group | None, access.Caller]:
        """Return the group that a request is about, and its caller. Raise `NotPermittedError` if it may not ask."""
        reading = request.code == RequestCode.CONTROLLER_GET_REPLICA_INFO
        host = connection.peer_host
        peer = self._directory.pods.peer_at(host) if reading else await self._directory.peer(host)
        if peer is not None:  # a pod may be younger than what was known when it connected
            connection.peer_is_known()
        cluster_name, broker_name = codec.named_group(request)
        group = self._groups.find(broker_name, cluster_name=cluster_name, peer=peer)
        if group is not None and broker_id is not None:
            await group.load()
        return group, self._check(request, connection, peer, group, broker_id, designate=designate)

    def _check(
        self,
        request: RemotingCommand,
        connection: RemotingConnection,
        peer: Peer | None,
        group: Group | None,
        broker_id: int | None,
        *,
        designate: bool = False,
    ) -> access.Caller:
        security = self._settings.security
        binding, pod = (group.binding, access.pod_of(group, broker_id)) if group is not None else (None, "")
        caller = access.identify(
            request,
            connection,
            host=self._broker_host(connection),
            peer=peer,
            binding=binding,
            settings=security,
            replays=self._replays,
        )
        access.authorize(caller, request.code, access.Subject(binding, broker_id, pod, designate), security)
        return caller

    def _broker_host(self, connection: RemotingConnection) -> str:
        """Return the caller's host as its broker registers it: a pod of both families connects from either of its addresses."""
        return self._directory.pods.broker_host(connection.peer_host)


def _pod_name(peer: Peer | None, group: Group | None) -> str | None:
    """Return the pod of this very group that asks, if it is one."""
    return peer.pod_name if peer is not None and group is not None and peer.group == group.key else None


def _of_unknown_group(wanted: requests.Request) -> Decision:
    """Return the core's answer without a record."""
    return step(None, wanted, {}, ControllerSettings())


def _may_exist(group: Group, broker_id: int) -> bool:
    """Whether the group can have such a member, known or to be adopted. Invented ids must not fill the tables."""
    record = group.record
    if record is not None and broker_id in record.replicas:
        return True
    if not group.loaded:
        return 0 <= broker_id <= _MOST_IDS_BEFORE_THE_RECORD
    return (
        0
        <= broker_id
        <= (record.next_broker_id if record is not None else 1) + ids_ahead(record, group.binding.settings)
    )


@dataclass(slots=True)
class ConnectionNotes:
    """What is kept of a connection until it closes."""

    # The groups whose members it carries, which its end reaches. Weakly: a connection may speak for any number of names.
    groups: WeakSet[Group] = field(default_factory=WeakSet)
    # What its last unsigned heartbeat was allowed by.
    allowed_by: tuple[int, Peer | None, GroupBinding, BrokerGroupRecord | None] | None = None
    # The names that a poll (1004) was told to be unknown (2008), until the broker registers.
    unknown: set[str] = field(default_factory=set)
    # Whether it was reported that its broker is before 5.1.1.
    told_too_old: bool = False

    def told_unknown(self, broker_name: str) -> None:
        if len(self.unknown) < _MAX_NAMES_PER_CONNECTION:
            self.unknown.add(broker_name)

    def registers_because_of_poll(self, broker_name: str) -> bool:
        """Whether a registration follows such a poll. Each counts once: a container starts its brokers again on its connection.

        A running broker registers on that answer alone. If the group became known in between, its 1003 would count as a new process
        of the recorded master and end its mastership (safety rule 6).
        """
        follows = broker_name in self.unknown
        self.unknown.discard(broker_name)
        return follows
