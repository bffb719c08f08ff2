"""A Java controller by docs/reference/controller.md: its answers, its liveness table, its traps.

It keeps a broker's first connection for ever (issue 11045), takes that connection's end for a death, elects at once and
raises the epoch in vain if no member is electable. `told` has the 1008 that it would send.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.controller_protocol import (
    BrokerMemberGroup,
    BrokerReplicasInfoBody,
    ElectMasterResponseBody,
    ElectMasterResponseHeader,
    GetMetaDataResponseHeader,
    GetReplicaInfoResponseHeader,
    ReplicaIdentity,
    ReplicasInfo,
    SyncStateSetBody,
    decode_broker_names,
)
from rocketmq_remoting.handler import not_supported
from rocketmq_remoting.serialization import decode_properties, encode_properties
from rocketmq_remoting.server import RemotingServer
from tests.support.quiet_handler import QuietHandler

if TYPE_CHECKING:
    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_remoting.connection import RemotingConnection

SCAN_SECONDS = 0.05


@dataclass
class Tables:
    """One broker set."""

    cluster: str
    next_id: int = 1
    replicas: dict[int, str] = field(default_factory=dict)
    codes: dict[int, str] = field(default_factory=dict)
    master: int | None = None
    master_epoch: int = 0
    members: frozenset[int] = frozenset()
    members_epoch: int = 0


class FakeJavaController(QuietHandler):
    """One member, and the leader."""

    def __init__(self, *, first_scan_seconds: float = SCAN_SECONDS) -> None:
        # Java's own is 5 s of leadership: so long brokers have to be heard before their master counts as lost.
        self._first_scan_seconds = first_scan_seconds
        self.sets: dict[str, Tables] = {}
        self.alive: dict[tuple[str, int], int] = {}  # (brokerName, id) -> the first connection it was heard on
        self.configuration = {"notifyBrokerRoleChanged": "true", "enableElectUncleanMaster": "false"}
        self.told: list[tuple[int, int]] = []
        self.asked: list[int] = []
        self.leads = True
        # As Java's: the leader by 1005 already, and 2007 to everything that needs its log, so many times.
        self.not_ready = 0
        self._server = RemotingServer(self)

    @property
    def address(self) -> str:
        return f"{self._server.host}:{self._server.port}"

    async def start(self, port: int = 0) -> None:
        await self._server.start("127.0.0.1", port)
        self._scan = asyncio.create_task(self._scan_for_ever())

    async def _scan_for_ever(self) -> None:
        """Replace a recorded master without heartbeats while another member has some."""
        await asyncio.sleep(self._first_scan_seconds)
        while True:
            for name, tables in list(self.sets.items()):
                others = any(self.is_alive(name, one) for one in tables.replicas)
                if tables.master is not None and not self.is_alive(name, tables.master) and others:
                    self._trigger(name, tables)
            await asyncio.sleep(SCAN_SECONDS)

    def _trigger(self, name: str, tables: Tables) -> None:
        """Up to three tries, and every hopeless one raises the epoch."""
        for _ in range(3):
            if self._elect(name, tables, -1, designate=False)[0] == ResponseCode.SUCCESS:
                return

    async def stop(self) -> None:
        self.leads = False  # what closes now means nothing
        self._scan.cancel()
        await asyncio.gather(self._scan, return_exceptions=True)
        await self._server.stop(grace_seconds=0.2)

    # ---- liveness

    def connection_closed(self, connection: RemotingConnection) -> None:
        for key, bound in list(self.alive.items()):
            if bound == connection.id:
                del self.alive[key]
                tables = self.sets.get(key[0])
                if self.leads and tables is not None and tables.master == key[1]:
                    self._trigger(key[0], tables)
                return  # only the first

    def is_alive(self, name: str, broker_id: int) -> bool:
        return (name, broker_id) in self.alive

    # ---- requests

    def handle(  # noqa: C901, PLR0911 - one case per request is the plainest table there is
        self, request: RemotingCommand, connection: RemotingConnection
    ) -> RemotingCommand:
        self.asked.append(int(request.code))
        fields = dict(request.ext_fields or {})
        name = fields.get("brokerName", "")
        if self.not_ready and request.code == RequestCode.CONTROLLER_GET_REPLICA_INFO:
            self.not_ready -= 1
            return request.answer(ResponseCode.CONTROLLER_NOT_LEADER, remark="The controller is not in leader state")
        match request.code:
            case RequestCode.BROKER_HEARTBEAT:
                self.alive.setdefault((name, int(fields["brokerId"])), connection.id)
                return request.answer(0, remark="Heart beat success")
            case RequestCode.CONTROLLER_GET_METADATA_INFO:
                address = self.address if self.leads else None
                header = GetMetaDataResponseHeader(
                    group="g", controller_leader_address=address, is_leader=True, peers=f"n0:{self.address};"
                )
                return request.answer(0, ext_fields=header.encode())
            case RequestCode.UPDATE_CONTROLLER_CONFIG:
                self.configuration |= decode_properties(request.body)
                return request.answer(0)
            case RequestCode.GET_CONTROLLER_CONFIG:
                return request.answer(0, body=encode_properties(self.configuration))
            case RequestCode.CONTROLLER_GET_SYNC_STATE_DATA:
                return request.answer(0, body=self._data(decode_broker_names(request.body)))
            case RequestCode.CONTROLLER_APPLY_BROKER_ID:
                return request.answer(self._apply(name, fields))
            case RequestCode.CONTROLLER_GET_NEXT_BROKER_ID:
                found = self.sets.get(name)
                return request.answer(0, ext_fields={"nextBrokerId": str(found.next_id if found else 1)})
            case RequestCode.CONTROLLER_ELECT_MASTER if name not in self.sets:
                return request.answer(ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED)
            case RequestCode.CONTROLLER_GET_REPLICA_INFO if name not in self.sets:
                return request.answer(ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST)
        if name not in self.sets:
            return request.answer(ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED)
        return self._of_known(request, name, self.sets[name], fields)

    def _of_known(self, request: RemotingCommand, name: str, tables: Tables, fields: dict[str, str]) -> RemotingCommand:
        match request.code:
            case RequestCode.CONTROLLER_GET_REPLICA_INFO:
                header = GetReplicaInfoResponseHeader(
                    master_broker_id=tables.master,
                    master_address=tables.replicas.get(tables.master or 0),
                    master_epoch=tables.master_epoch,
                )
                body = SyncStateSetBody(tables.members, tables.members_epoch).encode()
                return request.answer(0, ext_fields=header.encode(), body=body)
            case RequestCode.CONTROLLER_REGISTER_BROKER:
                tables.replicas[int(fields["brokerId"])] = fields["brokerAddress"]
                return request.answer(0, body=SyncStateSetBody(tables.members, tables.members_epoch).encode())
            case RequestCode.CONTROLLER_ELECT_MASTER:
                designate = fields.get("designateElect") == "true"
                code, told = self._elect(name, tables, int(fields.get("brokerId", "-1")), designate=designate)
                election = ElectMasterResponseHeader(
                    master_broker_id=tables.master,
                    master_address=tables.replicas.get(tables.master or 0),
                    master_epoch=tables.master_epoch,
                    sync_state_set_epoch=tables.members_epoch,
                )
                return request.answer(code, ext_fields=election.encode(), body=told)
            case RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET:
                return request.answer(self._alter(name, tables, fields, SyncStateSetBody.decode(request.body)))
            case RequestCode.CLEAN_BROKER_DATA:
                return request.answer(self._clean(name, tables, fields))
        return not_supported(request)

    def _apply(self, name: str, fields: dict[str, str]) -> int:
        broker_id, code = int(fields["appliedBrokerId"]), fields["registerCheckCode"]
        tables = self.sets.get(name)
        if tables is None:
            if broker_id != 1:
                return ResponseCode.CONTROLLER_BROKER_ID_INVALID
            tables = self.sets[name] = Tables(fields["clusterName"])
        elif broker_id in tables.replicas:
            same = tables.codes[broker_id] == code
            return ResponseCode.SUCCESS if same else ResponseCode.CONTROLLER_BROKER_ID_INVALID
        tables.replicas[broker_id] = code.partition(";")[0]
        tables.codes[broker_id] = code
        tables.next_id += 1
        return ResponseCode.SUCCESS

    def _elect(self, name: str, tables: Tables, caller: int, *, designate: bool) -> tuple[int, bytes | None]:
        chosen = caller if tables.master_epoch == 0 and caller != -1 else None
        if chosen is None:
            prefer = caller if designate else None
            chosen = self._policy(name, tables.members, tables.master, prefer)
            if chosen is None and self.configuration["enableElectUncleanMaster"] == "true":
                chosen = self._policy(name, frozenset(tables.replicas), tables.master, prefer)
        if chosen is not None and chosen == tables.master:
            body = ElectMasterResponseBody(sync_state_set=tables.members)
            return ResponseCode.CONTROLLER_MASTER_STILL_EXIST, body.encode()
        if chosen is None:
            if caller != -1:
                return ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, None
            tables.master = None
            tables.master_epoch += 1
            return ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE, None
        tables.master, tables.members = chosen, frozenset({chosen})
        tables.master_epoch += 1
        tables.members_epoch += 1
        if self.configuration["notifyBrokerRoleChanged"] == "true":
            self.told.append((chosen, tables.master_epoch))
        group = BrokerMemberGroup(cluster=tables.cluster, broker_name=name, broker_addrs=dict(tables.replicas))
        return ResponseCode.SUCCESS, ElectMasterResponseBody(
            broker_member_group=group, sync_state_set=tables.members
        ).encode()

    def _policy(self, name: str, members: frozenset[int], old: int | None, prefer: int | None) -> int | None:
        active = sorted(one for one in members if self.is_alive(name, one))
        if not active:
            return None
        if old in active and prefer in (None, old):
            return old
        if prefer is not None:
            return prefer if prefer in active else None
        return active[0]

    def _alter(  # noqa: PLR0911 - one return per check, in Java's order
        self, name: str, tables: Tables, fields: dict[str, str], body: SyncStateSetBody
    ) -> int:
        if body.sync_state_set == tables.members:
            return ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
        if tables.master is None or int(fields["masterBrokerId"]) != tables.master:
            return ResponseCode.CONTROLLER_INVALID_MASTER
        if int(fields["masterEpoch"]) != tables.master_epoch:
            return ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH
        if body.sync_state_set_epoch != tables.members_epoch:
            return ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH
        for one in body.sync_state_set:
            if one not in tables.replicas:
                return ResponseCode.CONTROLLER_INVALID_REPLICAS
            if not self.is_alive(name, one):
                return ResponseCode.CONTROLLER_BROKER_NOT_ALIVE
        if tables.master not in body.sync_state_set:
            return ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
        tables.members = body.sync_state_set
        tables.members_epoch += 1
        return ResponseCode.SUCCESS

    def _clean(self, name: str, tables: Tables, fields: dict[str, str]) -> int:
        if fields.get("isCleanLivingBroker") == "true":
            del self.sets[name]
            return ResponseCode.SUCCESS
        ids = [int(one) for one in fields["brokerControllerIdsToClean"].split(";")]
        if any(self.is_alive(name, one) for one in ids):
            return ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
        for one in ids:
            tables.replicas.pop(one, None)
            tables.codes.pop(one, None)
            tables.members -= {one}
        return ResponseCode.SUCCESS

    def _data(self, names: tuple[str, ...]) -> bytes:
        table: dict[str, ReplicasInfo] = {}
        for name in names:
            tables = self.sets.get(name)
            if tables is None:
                continue
            shown = {
                one: ReplicaIdentity(
                    broker_name=name, broker_id=one, broker_address=address, alive=self.is_alive(name, one)
                )
                for one, address in tables.replicas.items()
            }
            table[name] = ReplicasInfo(
                master_broker_id=tables.master,
                master_address=tables.replicas.get(tables.master or 0),
                master_epoch=tables.master_epoch,
                sync_state_set_epoch=tables.members_epoch,
                in_sync_replicas=tuple(one for key, one in shown.items() if key in tables.members),
                not_in_sync_replicas=tuple(one for key, one in shown.items() if key not in tables.members),
            )
        return BrokerReplicasInfoBody(replicas_info_table=table).encode()
