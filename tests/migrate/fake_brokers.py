"""Running brokers as a migration meets them: they heartbeat whom they list, poll, and change role by a Java broker's rules.

The two minutes between two looks at `controllerAddr` are `reread_seconds` here. `roles` is every role a broker ever took: what a
migration must not add to.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rocketmq_remoting import headers
from rocketmq_remoting.bodies import (
    BrokerData,
    BrokerRuntimeInfoBody,
    ClusterInfoBody,
    ElectMasterResponseBody,
    EpochCacheBody,
    EpochEntry,
    HARuntimeInfoBody,
    SyncStateSetBody,
    decode_properties,
    encode_properties,
)
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.command import RemotingCommand, request
from rocketmq_remoting.errors import RemotingError
from rocketmq_remoting.server import RemotingServer, not_supported

if TYPE_CHECKING:
    from rocketmq_remoting.connection import RemotingConnection

CLUSTER = "cl"
NAME = "bn"
BEAT_SECONDS = 0.03


@dataclass
class Believed:
    """What a broker believes of its group."""

    master: int | None = None
    epoch: int = 0
    members: frozenset[int] = frozenset()
    members_epoch: int = 0


@dataclass
class FakeBroker:
    """A broker that is RUNNING."""

    broker_id: int
    listed: str
    believes: Believed
    version: str = "V5_5_0"
    reread_seconds: float = 0.3
    reports_epoch: int | None = None
    roles: list[tuple[int | None, int]] = field(default_factory=list)
    cluster: str = CLUSTER
    looks_up: bool = False

    def __post_init__(self) -> None:
        self.used = self.listed.split(";")
        self._server = RemotingServer(self)
        self._client = RemotingClient(connect_timeout_seconds=0.5)
        self._task: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        return f"{self._server.host}:{self._server.port}"

    @property
    def is_master(self) -> bool:
        return self.believes.master == self.broker_id

    async def start(self) -> None:
        await self._server.start("127.0.0.1", 0)

    def run(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._client.close()
        await self._server.stop(grace_seconds=0.2)

    # ---- what it does

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        look_again_seconds = clock() + self.reread_seconds
        while True:
            if clock() >= look_again_seconds:
                for gone in set(self.used) - set(self.listed.split(";")):
                    self._client.disconnect(gone)
                self.used = self.listed.split(";")
                look_again_seconds = clock() + self.reread_seconds
            for controller in self.used:
                with contextlib.suppress(RemotingError):
                    await self._heartbeat(controller)
            with contextlib.suppress(RemotingError):
                await self._poll()
            await asyncio.sleep(BEAT_SECONDS)

    async def _heartbeat(self, controller: str) -> None:
        header = headers.BrokerHeartbeatRequestHeader(
            cluster_name=self.cluster,
            broker_name=NAME,
            broker_addr=self.address,
            broker_id=self.broker_id,
            epoch=self.believes.epoch,
            max_offset=100,
            confirm_offset=100,
            heartbeat_timeout_ms=1000,
        )
        command = request(RequestCode.BROKER_HEARTBEAT, ext_fields=header.encode(), oneway=True)
        await self._client.invoke_oneway(controller, command, timeout_seconds=0.5)

    async def _poll(self) -> None:
        leader = await self._leader()
        if leader is None:
            return
        answer = await self._ask(leader, RequestCode.CONTROLLER_GET_REPLICA_INFO)
        if answer.code != 0:
            return
        header = headers.GetReplicaInfoResponseHeader.decode(answer.ext_fields)
        body = SyncStateSetBody.decode(answer.body)
        epoch = header.master_epoch or 0
        if epoch > self.believes.epoch and header.master_broker_id is None:
            await self._elect(leader)
        elif epoch > self.believes.epoch:
            self.take(Believed(header.master_broker_id, epoch, body.sync_state_set, body.sync_state_set_epoch))
        elif (
            self.is_master
            and (epoch, header.master_broker_id) == (self.believes.epoch, self.broker_id)
            and body.sync_state_set_epoch > self.believes.members_epoch
        ):
            self.believes.members = body.sync_state_set
            self.believes.members_epoch = body.sync_state_set_epoch

    async def _elect(self, leader: str) -> None:
        answer = await self._ask(leader, RequestCode.CONTROLLER_ELECT_MASTER, brokerId=self.broker_id)
        if answer.code in (0, 2011):
            header = headers.ElectMasterResponseHeader.decode(answer.ext_fields)
            body = ElectMasterResponseBody.decode(answer.body)
            self.take(
                Believed(
                    header.master_broker_id,
                    header.master_epoch or 0,
                    body.sync_state_set,
                    header.sync_state_set_epoch or 0,
                )
            )

    def take(self, believed: Believed) -> None:
        self.believes = believed
        self.roles.append((believed.master, believed.epoch))

    async def _leader(self) -> str | None:
        for controller in self.used:
            with contextlib.suppress(RemotingError):
                answer = await self._ask(controller, RequestCode.CONTROLLER_GET_METADATA_INFO)
                header = headers.GetMetaDataResponseHeader.decode(answer.ext_fields)
                if header.controller_leader_address:
                    return header.controller_leader_address
        return None

    async def _ask(self, address: str, code: RequestCode, **fields: object) -> RemotingCommand:
        ext_fields = {"clusterName": self.cluster, "brokerName": NAME} | {
            name: str(value) for name, value in fields.items()
        }
        return await self._client.invoke(address, request(code, ext_fields=ext_fields), timeout_seconds=1.0)

    # ---- what it answers

    def connection_opened(self, connection: RemotingConnection) -> None:
        pass

    def connection_closed(self, connection: RemotingConnection) -> None:
        pass

    def handle(self, asked: RemotingCommand, connection: RemotingConnection) -> RemotingCommand:
        believes = self.believes
        match asked.code:
            case RequestCode.GET_BROKER_CONFIG:
                shown = {
                    "brokerName": NAME,
                    "brokerClusterName": self.cluster,
                    "brokerId": "0" if self.is_master else str(self.broker_id),
                    "controllerAddr": self.listed,
                    "fetchControllerAddrByDnsLookup": "true" if self.looks_up else "false",
                }
                return asked.answer(0, body=encode_properties(shown))
            case RequestCode.UPDATE_BROKER_CONFIG:
                self.listed = decode_properties(asked.body).get("controllerAddr", self.listed)
                return asked.answer(0)
            case RequestCode.GET_BROKER_RUNTIME_INFO:
                return asked.answer(0, body=BrokerRuntimeInfoBody(table={"brokerVersionDesc": self.version}).encode())
            case RequestCode.GET_BROKER_HA_STATUS:
                in_sync = len(believes.members) - 1 if self.is_master else 0
                return asked.answer(
                    0, body=HARuntimeInfoBody(master=self.is_master, in_sync_slave_nums=in_sync).encode()
                )
            case RequestCode.GET_BROKER_EPOCH_CACHE:
                epoch = believes.epoch if self.reports_epoch is None else self.reports_epoch
                body = EpochCacheBody(cluster_name=CLUSTER, broker_name=NAME, epoch_list=(EpochEntry(epoch=epoch),))
                return asked.answer(0, body=body.encode())
        return not_supported(asked)


class FakeNameServer:
    """106 only."""

    def __init__(self, brokers: list[FakeBroker]) -> None:
        self._brokers = brokers
        self.more: tuple[str, ...] = ()
        self._server = RemotingServer(self)

    @property
    def address(self) -> str:
        return f"{self._server.host}:{self._server.port}"

    async def start(self) -> None:
        await self._server.start("127.0.0.1", 0)

    async def stop(self) -> None:
        await self._server.stop(grace_seconds=0.2)

    def connection_opened(self, connection: RemotingConnection) -> None:
        pass

    def connection_closed(self, connection: RemotingConnection) -> None:
        pass

    def handle(self, asked: RemotingCommand, connection: RemotingConnection) -> RemotingCommand:
        if asked.code != RequestCode.GET_BROKER_CLUSTER_INFO:
            return not_supported(asked)
        addresses = {0 if one.is_master else one.broker_id: one.address for one in self._brokers}
        data = BrokerData(cluster=CLUSTER, broker_name=NAME, broker_addrs=addresses)
        body = ClusterInfoBody(
            broker_addr_table={NAME: data}, cluster_addr_table={CLUSTER: frozenset({NAME, *self.more})}
        )
        return asked.answer(0, body=body.encode())
