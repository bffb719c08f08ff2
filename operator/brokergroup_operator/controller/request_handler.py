"""Answering the wire: one method for each controller request, and the promise that every request is answered in time.

Reference: ``controller-protocol.md`` §2 for what each request is, §3 for the codes. What is ours: 1009 and 1010 are refused, since
remote configuration is what the two worst RocketMQ vulnerabilities came through; nobody speaks for a pod but that pod, and no pod
for another group; an ElectMaster that would replace a master whose death is not established waits for the failover to establish it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.controller import wire
from brokergroup_operator.controller.group import PremiseGoneError
from brokergroup_operator.controller.heartbeats import Heartbeats
from brokergroup_operator.controller.speakers import belongs_to_a_pod, is_foreign, speaks_for
from brokergroup_operator.observe.group_view import GroupViewError
from brokergroup_operator.records.store import RecordStoreError
from controller_core.codes import ControllerCode
from controller_core.decision import Decision, ElectMasterAnswer, GetSyncStateDataAnswer
from controller_core.requests import (
    AlterSyncStateSet,
    ElectMaster,
    GetReplicaInfo,
    GetSyncStateData,
    Request,
)
from controller_core.settings import ControllerSettings
from controller_core.step import step
from rocketmq_remoting.bodies import decode_broker_names
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.errors import BodyError
from rocketmq_remoting.headers import GetMetaDataResponseHeader
from rocketmq_remoting.server import RemotingConnection, not_supported

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from brokergroup_operator.controller.directory import GroupDirectory, Peer
    from brokergroup_operator.controller.failover import Failover
    from brokergroup_operator.controller.group import Group
    from brokergroup_operator.controller.groups import Groups
    from brokergroup_operator.controller.settings import PlaneSettings
    from brokergroup_operator.controller.switchover import Switchover
    from brokergroup_operator.observe.observer import Observer
    from rocketmq_remoting.command import RemotingCommand

log = structlog.get_logger(__name__)

_CONFIGURATION = frozenset({RequestCode.UPDATE_CONTROLLER_CONFIG, RequestCode.GET_CONTROLLER_CONFIG})
# A request that waits for a failover leaves this much of its deadline for the decision afterwards.
_DECISION_SHARE_SECONDS = 0.5


class RequestHandler:
    """The ``RemotingHandler`` of the plane."""

    def __init__(
        self,
        *,
        groups: Groups,
        directory: GroupDirectory,
        failover: Failover,
        switchover: Switchover,
        settings: PlaneSettings,
        observer: Observer,
        on_connection_closed: Callable[[int, Iterable[Group]], None],
    ) -> None:
        self.advertise_address = settings.advertise_address
        self._groups = groups
        self._directory = directory
        self.heartbeats = Heartbeats(groups=groups, directory=directory, settings=settings)
        self._failover = failover
        self._switchover = switchover
        self._settings = settings
        self._observer = observer
        self._on_connection_closed = on_connection_closed
        self._routes: dict[int, Callable[[RemotingCommand, RemotingConnection], Awaitable[RemotingCommand]]] = {
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: self._decide,
            RequestCode.CONTROLLER_ELECT_MASTER: self._elect,
            RequestCode.CONTROLLER_REGISTER_BROKER: self._register,
            RequestCode.CONTROLLER_GET_REPLICA_INFO: self._decide,
            RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: self._sync_state_data,
            RequestCode.CLEAN_BROKER_DATA: self._decide,
            RequestCode.CONTROLLER_GET_NEXT_BROKER_ID: self._broker_id,
            RequestCode.CONTROLLER_APPLY_BROKER_ID: self._broker_id,
        }

    def connection_opened(self, connection: RemotingConnection) -> None:
        """Nothing is known of a connection before its first request."""

    def connection_closed(self, connection: RemotingConnection) -> None:
        """Its brokers may be dead."""
        self._on_connection_closed(connection.id, self.heartbeats.connection_closed(connection))

    def handle(
        self, request: RemotingCommand, connection: RemotingConnection
    ) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        """Heartbeats and metadata at once, everything else in a task of its own."""
        if request.code == RequestCode.BROKER_HEARTBEAT:
            return self._noted(request, self.heartbeats.take(request, connection))
        if request.code == RequestCode.CONTROLLER_GET_METADATA_INFO:
            return self._noted(request, self._metadata(request))
        if request.code in _CONFIGURATION:
            refusal = request.answer(
                ResponseCode.NO_PERMISSION, remark="the controller is configured by its own settings only"
            )
            return self._noted(request, refusal)
        if request.code not in self._routes:
            return self._noted(request, not_supported(request))
        return self._answer_in_time(request, connection)

    async def _answer_in_time(self, request: RemotingCommand, connection: RemotingConnection) -> RemotingCommand:
        """Supervision point: whatever happens to one request, its peer is answered and the plane goes on."""
        try:
            async with asyncio.timeout(self._settings.answer_deadline_seconds):
                answer = await self._routes[request.code](request, connection)
        except TimeoutError:
            answer = request.answer(
                ResponseCode.SYSTEM_ERROR,
                remark=f"not decided within {self._settings.answer_deadline_seconds} s, ask again",
            )
        except ForeignPeerError as error:
            answer = request.answer(ResponseCode.NO_PERMISSION, remark=str(error))
        except (RecordStoreError, PremiseGoneError, GroupViewError, BodyError) as error:
            answer = request.answer(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")
        except Exception as error:
            log.exception("request failed", code=request.code, peer=connection.peer_host)
            answer = request.answer(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")
        return self._noted(request, answer)

    def _noted(self, request: RemotingCommand, answer: RemotingCommand) -> RemotingCommand:
        self._observer.request_answered(request.code, answer.code)
        return answer

    def _metadata(self, request: RemotingCommand) -> RemotingCommand:
        """1005 (§2.4): every plane leads."""
        address = self.advertise_address
        peers = self._settings.peer_addresses or (address,)
        own = peers.index(address) if address in peers else 0
        header = GetMetaDataResponseHeader(
            group=self._settings.controller_group,
            controller_leader_id=f"n{own}",
            controller_leader_address=address,
            is_leader=True,
            peers="".join(f"n{index}:{peer};" for index, peer in enumerate(peers)),
        )
        return request.answer(ResponseCode.SUCCESS, ext_fields=header.encode())

    async def _decide(self, request: RemotingCommand, connection: RemotingConnection) -> RemotingCommand:
        """1001, 1004, 1011: decided by the core alone."""
        wanted = wire.DECODERS[request.code](request)
        group = self._group_of(request, connection)
        if group is None:
            return wire.encode_decision(request, _of_unknown_group(wanted))
        if isinstance(wanted, GetReplicaInfo):
            await group.load()
            decision = step(group.record_to_tell(), wanted, group.live(), group.binding.settings)
        elif isinstance(wanted, AlterSyncStateSet):
            await self._refuse_impostor(connection, group, wanted.master_broker_id)
            # 1001 is fenced by its epochs: the copy is enough to accept it, and a refusal asks the store anyway.
            decision = await group.decide(wanted, linearizable=False)
        else:
            await group.load()
            _refuse_to_forget_pods(group, wanted)
            decision = await group.decide(wanted)
        return wire.encode_decision(request, decision)

    async def _register(self, request: RemotingCommand, connection: RemotingConnection) -> RemotingCommand:
        """1003: a new process of a replica; what an earlier one said is not true any more."""
        wanted = wire.decode_register_broker(request)
        group = self._group_of(request, connection)
        if group is None:
            return wire.encode_decision(request, _of_unknown_group(wanted))
        await self._refuse_impostor(connection, group, wanted.broker_id, address=wanted.broker_address)
        decision = await group.decide(wanted)
        if decision.code == ControllerCode.SUCCESS and wanted.broker_id and connection.is_open:
            self.heartbeats.registered(group, wanted.broker_id, wanted.broker_address or "", connection)
        return wire.encode_decision(request, decision)

    async def _elect(self, request: RemotingCommand, connection: RemotingConnection) -> RemotingCommand:
        """1002: by a broker, "who is master?"; by an administrator, "make this one master"."""
        wanted = wire.decode_elect_master(request)
        group = self._group_of(request, connection)
        if group is None:
            return wire.encode_decision(request, _of_unknown_group(wanted))
        record = await group.load()
        caller = wanted.broker_id
        by_broker = caller is not None and not wanted.designate_elect
        if by_broker:
            await self._refuse_impostor(connection, group, caller)
        if (
            by_broker
            and caller is not None
            and record is not None
            and record.claimed_replica(caller)
            and connection.is_open
        ):
            self.heartbeats.sign_of_life(group, caller, connection)
        decision = await self._elect_safely(group, wanted)
        if decision.code in wire.SUCCEEDED_ELECTIONS and by_broker:
            group.answered_election()
        return wire.encode_decision(request, decision)

    async def _elect_safely(self, group: Group, wanted: ElectMaster) -> Decision:
        """Decide, but never replace a master without what a failover (fence) or a switchover (drain) does first."""
        record = group.record
        master = record.granted_master_id if record is not None else None
        if master is not None and not group.is_live(master):
            await self._failover.settle(group, self._settings.answer_deadline_seconds - _DECISION_SHARE_SECONDS)
            record = group.record
            if record is not None and record.granted_master_id == master and not group.is_live(master):
                return _not_yet(f"it is not established yet that the master {master} is dead")
        elif master is not None and wanted.designate_elect and wanted.broker_id not in (None, -1, master):
            trial = step(record, wanted, group.live(), group.binding.settings)
            if trial.code == ControllerCode.SUCCESS:
                return await self._switchover.decide(group, from_broker_id=master, election=wanted)
        return await self._failover.decide_for_caller(group, wanted)

    async def _broker_id(self, request: RemotingCommand, connection: RemotingConnection) -> RemotingCommand:
        """1012, 1013: which id, and may I have it; a pod finds the id that was reserved for it."""
        peer = await self._directory.peer(connection.peer_host)
        cluster_name, broker_name = wire.named_group(request)
        group = self._groups.find(broker_name, cluster_name=cluster_name, peer=peer)
        requester = peer.pod_name if peer is not None and group is not None and peer.group == group.key else None
        wanted: Request
        if request.code == RequestCode.CONTROLLER_GET_NEXT_BROKER_ID:
            wanted = wire.decode_get_next_broker_id(request, requester)
        else:
            wanted = wire.decode_apply_broker_id(request, requester)
        if group is None and broker_name:
            return request.answer(
                ResponseCode.SYSTEM_ERROR, remark=f"no BrokerGroup has brokerName {broker_name!r} in {cluster_name!r}"
            )
        if group is None:
            return wire.encode_decision(request, _of_unknown_group(wanted))
        _refuse_foreign(peer, group)
        return wire.encode_decision(request, await group.decide(wanted))

    async def _sync_state_data(self, request: RemotingCommand, connection: RemotingConnection) -> RemotingCommand:
        """1006: who is in sync and alive, for each name; no names is Java's code 1 (§2.3)."""
        broker_names = decode_broker_names(request.body)
        if not broker_names:
            return request.answer(ResponseCode.SYSTEM_ERROR, remark="not set any response code")
        peer = self._directory.known_peer(connection.peer_host)
        answers: dict[str, GetSyncStateDataAnswer] = {}
        for broker_name in broker_names:
            group = self._groups.find(broker_name, peer=peer)
            if group is None:
                continue
            record = await group.load()
            wanted = GetSyncStateData(broker_name=broker_name)
            decision = step(record, wanted, group.live(), group.binding.settings)
            if isinstance(decision.answer, GetSyncStateDataAnswer):
                answers[broker_name] = decision.answer
        return request.answer(ResponseCode.SUCCESS, body=wire.encode_sync_state_data(answers))

    async def _refuse_impostor(
        self, connection: RemotingConnection, group: Group, broker_id: int | None, *, address: str | None = None
    ) -> None:
        """A member that belongs to a pod is spoken for by that pod alone, and is where that pod is.

        Otherwise a neighbour's 1003 ends a healthy master's reign, and its 1001 makes a replica electable that lacks messages.
        """
        await group.load()
        if not belongs_to_a_pod(group, broker_id):
            return
        peer = await self._directory.peer(connection.peer_host)
        who = (
            f"pod {peer.namespace}/{peer.pod_name}" if peer is not None else f"{connection.peer_host}, no pod of ours,"
        )
        if broker_id is None or not speaks_for(peer, group, broker_id):
            raise ForeignPeerError(f"{who} does not speak for broker {broker_id} of group {group.key}")
        if address and address.rpartition(":")[0] != connection.peer_host:
            raise ForeignPeerError(f"{who} is at {connection.peer_host}, not at {address}")

    def _group_of(self, request: RemotingCommand, connection: RemotingConnection) -> Group | None:
        peer = self._directory.known_peer(connection.peer_host)
        cluster_name, broker_name = wire.named_group(request)
        group = self._groups.find(broker_name, cluster_name=cluster_name, peer=peer)
        if group is not None:
            _refuse_foreign(peer, group)
        return group


class ForeignPeerError(Exception):
    """A pod of one group asked for another: refused."""


def _refuse_to_forget_pods(group: Group, wanted: Request) -> None:
    """1011 is not authenticated, and forgets a living group as a whole if it says so: not one whose members are pods.

    Whoever may decide over those has the BrokerGroup for it. A pod's replica that is neither alive nor in sync may be forgotten.
    """
    record = group.record
    if record is None:
        return
    after = step(record, wanted, group.live(), group.binding.settings).record
    forgotten = [one for one in record.replicas if after is None or after.claimed_replica(one) is None]
    needed = sorted(
        one
        for one in forgotten
        if record.claimed_replica(one) is not None
        and belongs_to_a_pod(group, one)
        and (group.is_live(one) or one in record.sync_state_set)
    )
    if needed:
        raise ForeignPeerError(
            f"brokers {needed} of group {group.key} are pods, alive or in sync: their BrokerGroup rules them"
        )


def _refuse_foreign(peer: Peer | None, group: Group) -> None:
    if peer is not None and is_foreign(peer, group):
        raise ForeignPeerError(f"pod {peer.namespace}/{peer.pod_name} does not speak for group {group.key}")


def _of_unknown_group(wanted: Request) -> Decision:
    """What the core says where there is no record, and can be none."""
    return step(None, wanted, {}, ControllerSettings())


def _not_yet(why: str) -> Decision:
    """Java's answer to a broker when nobody can be elected (2012); it asks again."""
    return Decision(
        code=ControllerCode.CONTROLLER_ELECT_MASTER_FAILED,
        remark=f"Failed to elect a new master: {why}",
        answer=ElectMasterAnswer(),
        record=None,
        why=why,
    )
