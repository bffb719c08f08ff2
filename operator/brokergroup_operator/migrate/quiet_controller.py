"""A controller that grants nothing: it counts heartbeats and names its configured leader, if any.

Brokers connect to it while another controller decides (shadow), or none does (during a cut-over). The first heartbeat of a broker
also proves that the broker uses a list with this address, and no longer an old one.

It answers every request that would grant or write with 2007, "not the leader" (docs/reference/controller.md), which a Java broker
logs and retries on its timer. 1005 names the leader, or no address without one: a broker then asks the next controller and keeps
its role.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from controller_core.liveness import HeartbeatTable
from controller_core.model import LiveReplica
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.controller_protocol import BrokerHeartbeatRequestHeader, GetMetaDataResponseHeader
from rocketmq_remoting.handler import not_supported
from rocketmq_remoting.server import RemotingServer

if TYPE_CHECKING:
    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_remoting.connection import RemotingConnection

NOT_LEADER_REMARK = "The controller is not in leader state"

_LEADERS_ONLY = frozenset(
    {
        RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
        RequestCode.CONTROLLER_ELECT_MASTER,
        RequestCode.CONTROLLER_REGISTER_BROKER,
        RequestCode.CONTROLLER_GET_REPLICA_INFO,
        RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
        RequestCode.CLEAN_BROKER_DATA,
        RequestCode.CONTROLLER_GET_NEXT_BROKER_ID,
        RequestCode.CONTROLLER_APPLY_BROKER_ID,
    }
)


@dataclass(frozen=True, slots=True, order=True)
class Heard:
    """A broker that sends heartbeats here, with the names in them."""

    cluster_name: str
    broker_name: str
    broker_id: int
    address: str


class QuietController:
    """The listener and the heartbeats it received. ``leader`` may be changed at any time."""

    def __init__(self, *, group_name: str = "brokergroup-operator", leader: str | None = None) -> None:
        self.leader = leader
        self._group_name = group_name
        # By broker name.
        self._tables: defaultdict[str, HeartbeatTable] = defaultdict(HeartbeatTable)
        self._heard: dict[tuple[str, int], tuple[Heard, int]] = {}
        self._server = RemotingServer(self)

    @property
    def address(self) -> str:
        """Return the listening address, with the actual port if 0 was requested."""
        return self._server.address

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises OSError if the address cannot be bound."""
        await self._server.start(host, port)

    async def stop(self) -> None:
        """Close every connection; at their next heartbeat brokers connect to the next listener."""
        await self._server.stop(grace_seconds=1.0)

    def heard(self, broker_name: str) -> dict[int, Heard]:
        """Return the brokers of a group with fresh heartbeats, by broker id."""
        live = self.live(broker_name)
        return {
            broker_id: heard
            for (name, broker_id), (heard, _) in self._heard.items()
            if name == broker_name and broker_id in live
        }

    def live(self, broker_name: str) -> dict[int, LiveReplica]:
        """Return the same as input of the state machine."""
        return self._tables[broker_name].live(asyncio.get_running_loop().time())

    def heartbeats(self, broker_name: str) -> int:
        """Return the number of a group's heartbeats so far."""
        return sum(count for (name, _), (_, count) in self._heard.items() if name == broker_name)

    # ---- RemotingHandler

    def connection_opened(self, connection: RemotingConnection) -> None:
        """Do nothing: a connection is unknown before its first heartbeat."""

    def connection_closed(self, connection: RemotingConnection) -> None:
        """Drop the brokers of this connection."""
        for table in self._tables.values():
            table.connection_closed(asyncio.get_running_loop().time(), connection.id)

    def handle(self, request: RemotingCommand, connection: RemotingConnection) -> RemotingCommand:
        """Answer at once."""
        if request.code == RequestCode.BROKER_HEARTBEAT:
            return self._count(request, connection)
        if request.code == RequestCode.CONTROLLER_GET_METADATA_INFO:
            header = GetMetaDataResponseHeader(
                group=self._group_name, controller_leader_address=self.leader, is_leader=False, peers=f"{self.address};"
            )
            return request.answer(ResponseCode.SUCCESS, ext_fields=header.encode())
        if request.code in _LEADERS_ONLY:
            return request.answer(ResponseCode.CONTROLLER_NOT_LEADER, remark=NOT_LEADER_REMARK)
        if request.code in (RequestCode.UPDATE_CONTROLLER_CONFIG, RequestCode.GET_CONTROLLER_CONFIG):
            return request.answer(ResponseCode.NO_PERMISSION, remark="this controller grants nothing yet")
        return not_supported(request)

    def _count(self, request: RemotingCommand, connection: RemotingConnection) -> RemotingCommand:
        header = BrokerHeartbeatRequestHeader.decode(request.ext_fields)
        if header.broker_id is None or not header.broker_name:
            return request.answer(ResponseCode.CONTROLLER_INVALID_REQUEST, remark="Heart beat with empty brokerId")
        heard = Heard(header.cluster_name or "", header.broker_name, header.broker_id, header.broker_addr or "")
        key = (header.broker_name, header.broker_id)
        self._heard[key] = (heard, self._heard.get(key, (heard, 0))[1] + 1)
        told = LiveReplica(
            broker_id=header.broker_id,
            epoch=header.epoch,
            max_offset=header.max_offset,
            confirm_offset=header.confirm_offset,
            election_priority=header.election_priority,
            address=heard.address,
        )
        now_seconds, timeout_seconds = asyncio.get_running_loop().time(), header.heartbeat_timeout_ms / 1000
        self._tables[header.broker_name].heartbeat(now_seconds, told, connection.id, timeout_seconds=timeout_seconds)
        return request.answer(ResponseCode.SUCCESS, remark="Heart beat success")
