"""Serves routes in the sandbox, so that real clients find Python replicas without a JVM: a NameServer for one machine.

It answers what brokers and clients need: 103, 104, 105, 106, 901, 904. Everything else is code 3. Not for production: it is one
process, where NameServers are several.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from brokergroup_operator.demo.routes.table import RegistrationRefusedError, RouteTable
from rocketmq_remoting.broker_protocol import (
    BrokerMemberGroupBody,
    GetBrokerMemberGroupRequestHeader,
    GetRouteInfoRequestHeader,
    RegisterBrokerBody,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    UnRegisterBrokerRequestHeader,
    body_crc32,
)
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.controller_protocol import BrokerHeartbeatRequestHeader, BrokerMemberGroup
from rocketmq_remoting.errors import BodyError
from rocketmq_remoting.handler import not_supported
from rocketmq_remoting.server import RemotingServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_remoting.connection import RemotingConnection

SCAN_SECONDS: Final = 5.0


class RouteServer:
    """The RemotingHandler of the NameServer's port, and its listener."""

    def __init__(self) -> None:
        """Nobody is registered."""
        self.table = RouteTable()
        self._handlers: dict[int, Callable[[RemotingCommand, RemotingConnection], RemotingCommand]] = {
            RequestCode.REGISTER_BROKER: self._register,
            RequestCode.UNREGISTER_BROKER: self._unregister,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._clusters,
            RequestCode.GET_BROKER_MEMBER_GROUP: self._members,
            RequestCode.BROKER_HEARTBEAT: self._heartbeat,
        }
        self._server = RemotingServer(self)
        self._scan: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """What goes into ``spec.nameServers``."""
        return self._server.address

    async def start(self, host: str, port: int) -> None:
        """Listen. OSError when the address cannot be bound."""
        await self._server.start(host, port)
        self._scan = asyncio.create_task(self._scan_for_ever(), name="scan of routes")

    async def stop(self) -> None:
        """Stop listening and forget everything."""
        if self._scan is not None:
            self._scan.cancel()
            await asyncio.gather(self._scan, return_exceptions=True)
        await self._server.stop(grace_seconds=0.1)

    def handle(self, request: RemotingCommand, connection: RemotingConnection) -> RemotingCommand:
        """Answer at once."""
        handler = self._handlers.get(request.code)
        return not_supported(request) if handler is None else handler(request, connection)

    def connection_opened(self, connection: RemotingConnection) -> None:
        """Nothing is known of it yet."""

    def connection_closed(self, connection: RemotingConnection) -> None:
        """A broker whose connection closes is gone, as at Java's (D.4)."""
        self.table.connection_closed(connection.id)

    async def _scan_for_ever(self) -> None:
        while True:
            await asyncio.sleep(SCAN_SECONDS)
            self.table.expire(now_seconds=_now_seconds())

    def _register(self, request: RemotingCommand, connection: RemotingConnection) -> RemotingCommand:
        header = RegisterBrokerRequestHeader.decode(request.ext_fields)
        if header.compressed:
            return request.answer(ResponseCode.SYSTEM_ERROR, remark="compressed=true: expected a plain body")
        if header.body_crc32 and header.body_crc32 != body_crc32(request.body or b""):
            return request.answer(ResponseCode.SYSTEM_ERROR, remark="crc32 not match")
        try:
            master = self.table.register(
                header,
                RegisterBrokerBody.decode(request.body),
                connection_id=connection.id,
                now_seconds=_now_seconds(),
            )
        except (BodyError, RegistrationRefusedError) as error:
            return request.answer(ResponseCode.SYSTEM_ERROR, remark=str(error))
        fields = RegisterBrokerResponseHeader()
        if master is not None:
            fields = RegisterBrokerResponseHeader(ha_server_addr=master.ha_address, master_addr=master.address)
        return request.answer(ResponseCode.SUCCESS, ext_fields=fields.encode())

    def _unregister(self, request: RemotingCommand, _connection: RemotingConnection) -> RemotingCommand:
        header = UnRegisterBrokerRequestHeader.decode(request.ext_fields)
        if header.broker_addr and header.broker_id is not None:
            self.table.unregister(header.broker_addr, header.broker_id)
        return request.answer(ResponseCode.SUCCESS)

    def _heartbeat(self, request: RemotingCommand, _connection: RemotingConnection) -> RemotingCommand:
        header = BrokerHeartbeatRequestHeader.decode(request.ext_fields)
        self.table.heard(header.broker_addr or "", now_seconds=_now_seconds())
        return request.answer(ResponseCode.SUCCESS)

    def _route(self, request: RemotingCommand, _connection: RemotingConnection) -> RemotingCommand:
        topic = GetRouteInfoRequestHeader.decode(request.ext_fields).topic or ""
        route = self.table.route(topic)
        if route is None:
            remark = f"No topic route info in name server for the topic: {topic}"
            return request.answer(ResponseCode.TOPIC_NOT_EXIST, remark=remark)
        return request.answer(ResponseCode.SUCCESS, body=route.encode())

    def _clusters(self, request: RemotingCommand, _connection: RemotingConnection) -> RemotingCommand:
        return request.answer(ResponseCode.SUCCESS, body=self.table.cluster_info().encode())

    def _members(self, request: RemotingCommand, _connection: RemotingConnection) -> RemotingCommand:
        header = GetBrokerMemberGroupRequestHeader.decode(request.ext_fields)
        cluster, name = header.cluster_name or "", header.broker_name or ""
        group = BrokerMemberGroup(cluster=cluster, broker_name=name, broker_addrs=self.table.members((cluster, name)))
        return request.answer(ResponseCode.SUCCESS, body=BrokerMemberGroupBody(broker_member_group=group).encode())


def _now_seconds() -> float:
    return asyncio.get_running_loop().time()
