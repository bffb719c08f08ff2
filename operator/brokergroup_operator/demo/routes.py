"""A NameServer for one machine, so that clients find Python replicas without a JVM: `RouteServer` speaks, `RouteTable` knows.

It answers 103, 104, 105, 106, 901 and 904; any other request is code 3. Not for production, where NameServers are several. The
rules are Java's, since clients rely on them: an address has one id; of two brokers with one id the higher master epoch (the data
version's stateVersion) wins; topics are those that the master registered.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from rocketmq_remoting.broker_protocol import (
    BrokerData,
    BrokerMemberGroupBody,
    ClusterInfoBody,
    GetBrokerMemberGroupRequestHeader,
    GetRouteInfoRequestHeader,
    QueueData,
    RegisterBrokerBody,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    TopicRouteBody,
    UnRegisterBrokerRequestHeader,
    body_crc32,
)
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.controller_protocol import BrokerHeartbeatRequestHeader, BrokerMemberGroup
from rocketmq_remoting.errors import BodyError
from rocketmq_remoting.handler import not_supported
from rocketmq_remoting.server import RemotingServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_remoting.connection import RemotingConnection

SCAN_SECONDS: Final = 5.0
MASTER_ID: Final = 0
DEFAULT_TIMEOUT_SECONDS: Final = 120.0
Group = tuple[str, str]


class RouteServer:
    """The RemotingHandler of the NameServer's port, and its listener."""

    def __init__(self) -> None:
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
        """The address for ``spec.nameServers``."""
        return self._server.address

    async def start(self, host: str, port: int) -> None:
        """Listen. OSError if the address cannot be bound."""
        await self._server.start(host, port)
        self._scan = asyncio.create_task(self._scan_for_ever(), name="scan of routes")

    async def stop(self) -> None:
        """Stop listening."""
        if self._scan is not None:
            self._scan.cancel()
            await asyncio.gather(self._scan, return_exceptions=True)
        await self._server.stop(grace_seconds=0.1)

    def handle(self, request: RemotingCommand, connection: RemotingConnection) -> RemotingCommand:
        """Answer at once."""
        handler = self._handlers.get(request.code)
        return not_supported(request) if handler is None else handler(request, connection)

    def connection_opened(self, connection: RemotingConnection) -> None:
        """A broker is known by its registration only."""

    def connection_closed(self, connection: RemotingConnection) -> None:
        """Drop the brokers that registered over it, as Java's does (D.4)."""
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


class RegistrationRefusedError(Exception):
    """The registration is refused; the message says why."""


@dataclass
class Registration:
    """A broker's last registration."""

    group: Group
    address: str
    broker_id: int
    ha_address: str
    state_version: int
    timeout_seconds: float
    connection_id: int
    heard_seconds: float


@dataclass
class RouteTable:
    """All brokers, and the topics of each group; in memory, with the time as an argument."""

    registrations: dict[str, Registration] = field(default_factory=dict)
    topics: dict[Group, dict[str, QueueData]] = field(default_factory=dict)

    def register(
        self, header: RegisterBrokerRequestHeader, body: RegisterBrokerBody, *, connection_id: int, now_seconds: float
    ) -> Registration | None:
        """Add a registration; return the group's master for a slave. RegistrationRefusedError where Java refuses it."""
        new = _registration(header, body, connection_id=connection_id, now_seconds=now_seconds)
        holder = self._holder(new.group, new.broker_id)
        if holder is not None and holder.address != new.address:
            if holder.state_version > new.state_version:
                self.registrations.pop(new.address, None)
                return None
            del self.registrations[holder.address]
        wrapper = body.topic_config_serialize_wrapper
        if new.address not in self.registrations and len(wrapper.topic_config_table) == 1:
            raise RegistrationRefusedError("register broker failed: a first registration with exactly one topic")
        self.registrations[new.address] = new
        if new.broker_id == MASTER_ID:
            self.topics[new.group] = {
                name: QueueData(
                    broker_name=new.group[1],
                    read_queue_nums=topic.read_queue_nums,
                    write_queue_nums=topic.write_queue_nums,
                    perm=topic.perm,
                    topic_sys_flag=topic.topic_sys_flag,
                )
                for name, topic in wrapper.topic_config_table.items()
            }
            return None
        return self._holder(new.group, MASTER_ID)

    def unregister(self, address: str, broker_id: int) -> None:
        """104: drop the registration of this address and id only, so that a late request does not remove a new master."""
        known = self.registrations.get(address)
        if known is not None and known.broker_id == broker_id:
            self._forget([known])

    def heard(self, address: str, *, now_seconds: float) -> None:
        """904: note the heartbeat of a registered broker."""
        known = self.registrations.get(address)
        if known is not None:
            known.heard_seconds = now_seconds

    def connection_closed(self, connection_id: int) -> None:
        """Drop the registrations that came over this connection."""
        self._forget([each for each in self.registrations.values() if each.connection_id == connection_id])

    def expire(self, *, now_seconds: float) -> None:
        """Drop registrations whose broker has not sent a heartbeat within its own timeout."""
        late = [each for each in self.registrations.values() if now_seconds - each.heard_seconds > each.timeout_seconds]
        self._forget(late)

    def route(self, topic: str) -> TopicRouteBody | None:
        """105: return the route, None if no group has the topic."""
        groups = sorted(group for group, topics in self.topics.items() if topic in topics)
        if not groups:
            return None
        return TopicRouteBody(
            queue_datas=tuple(self.topics[group][topic] for group in groups),
            broker_datas=tuple(self._broker_data(group) for group in groups),
        )

    def cluster_info(self) -> ClusterInfoBody:
        """106: return all groups."""
        groups = sorted({each.group for each in self.registrations.values()})
        clusters = {cluster: frozenset(name for of, name in groups if of == cluster) for cluster, _ in groups}
        return ClusterInfoBody(
            broker_addr_table={group[1]: self._broker_data(group) for group in groups}, cluster_addr_table=clusters
        )

    def members(self, group: Group) -> dict[int, str]:
        """901: return a group's addresses by id."""
        found = [each for each in self.registrations.values() if each.group == group]
        return {each.broker_id: each.address for each in sorted(found, key=lambda each: each.broker_id)}

    def _broker_data(self, group: Group) -> BrokerData:
        return BrokerData(cluster=group[0], broker_name=group[1], broker_addrs=self.members(group))

    def _holder(self, group: Group, broker_id: int) -> Registration | None:
        found = (each for each in self.registrations.values() if (each.group, each.broker_id) == (group, broker_id))
        return next(found, None)

    def _forget(self, gone: Iterable[Registration]) -> None:
        for each in gone:
            del self.registrations[each.address]
            if not self.members(each.group):
                self.topics.pop(each.group, None)


def _registration(
    header: RegisterBrokerRequestHeader, body: RegisterBrokerBody, *, connection_id: int, now_seconds: float
) -> Registration:
    named = (header.cluster_name, header.broker_name, header.broker_addr, header.broker_id)
    cluster, name, address, broker_id = named
    if not cluster or not name or not address or broker_id is None or broker_id < 0:
        raise RegistrationRefusedError(
            f"clusterName, brokerName, brokerAddr, brokerId: expected all four, brokerId not below 0, found {named}"
        )
    timeout_ms = header.heartbeat_timeout_ms
    return Registration(
        group=(cluster, name),
        address=address,
        broker_id=broker_id,
        ha_address=header.ha_server_addr or "",
        state_version=body.topic_config_serialize_wrapper.data_version.state_version,
        timeout_seconds=DEFAULT_TIMEOUT_SECONDS if timeout_ms is None else timeout_ms / 1000,
        connection_id=connection_id,
        heard_seconds=now_seconds,
    )
