"""The tests' scripted NameServer. The one of `tests/simulate` differs: its entries end with their connections."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from rocketmq_remoting.broker_protocol import (
    BrokerData,
    BrokerMemberGroupBody,
    ClusterInfoBody,
    GetBrokerMemberGroupRequestHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    UnRegisterBrokerRequestHeader,
)
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.controller_protocol import BrokerMemberGroup
from rocketmq_remoting.handler import not_supported
from rocketmq_remoting.server import RemotingServer
from tests.support.quiet_handler import QuietHandler

if TYPE_CHECKING:
    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_remoting.connection import RemotingConnection
    from tests.support.fake_broker import FakeGroup


class FakeNameServer(QuietHandler):
    """Notes registrations (103) and unregistrations (104); answers with the group's brokers (106), and the test's route (901).

    `answers`: until it is set, 104 waits. `routed`: the master's address for 901; None: 901 is unknown.
    """

    def __init__(self, group: FakeGroup) -> None:
        self._group = group
        self._server = RemotingServer(self)
        self.answers = asyncio.Event()
        self.answers.set()
        self.routed: str | None = None
        self.registered: dict[str, RegisterBrokerRequestHeader] = {}
        self.registered_bodies: dict[str, dict[str, Any]] = {}
        self.unregistered: list[str] = []
        # Other groups of the cluster.
        self.others: frozenset[str] = frozenset()

    @property
    def address(self) -> str:
        return f"{self._server.host}:{self._server.port}"

    async def start(self) -> str:
        """Return its address."""
        await self._server.start("127.0.0.1", 0)
        return self.address

    async def stop(self) -> None:
        await self._server.stop(grace_seconds=0.0)

    async def handle(self, command: RemotingCommand, connection: RemotingConnection) -> RemotingCommand:
        match command.code:
            case RequestCode.GET_BROKER_MEMBER_GROUP if self.routed is not None:
                return self._route(command, self.routed)
            case RequestCode.GET_BROKER_CLUSTER_INFO:
                return self._clusters(command)
            case RequestCode.REGISTER_BROKER:
                return self._register(command)
            case RequestCode.UNREGISTER_BROKER:
                header = UnRegisterBrokerRequestHeader.decode(command.ext_fields)
                self.unregistered.append(header.broker_addr or "")
                self._group.journal.append(f"104 {header.broker_addr}")
                await self.answers.wait()
                return command.answer(0)
        return not_supported(command)

    def _route(self, command: RemotingCommand, master: str) -> RemotingCommand:
        asked = GetBrokerMemberGroupRequestHeader.decode(command.ext_fields)
        assert (asked.cluster_name, asked.broker_name) == (self._group.cluster, self._group.name)
        self._group.journal.append("901")
        members = BrokerMemberGroup(broker_addrs={0: master} if master else {})
        return command.answer(0, body=BrokerMemberGroupBody(broker_member_group=members).encode())

    def _clusters(self, command: RemotingCommand) -> RemotingCommand:
        cluster, name = self._group.cluster, self._group.name
        addresses = {0 if one.is_master else one.broker_id: one.address for one in self._group.brokers.values()}
        data = BrokerData(cluster=cluster, broker_name=name, broker_addrs=addresses)
        body = ClusterInfoBody(
            broker_addr_table={name: data}, cluster_addr_table={cluster: frozenset({name, *self.others})}
        )
        return command.answer(0, body=body.encode())

    def _register(self, command: RemotingCommand) -> RemotingCommand:
        """Answer a slave with the master's address, as a real NameServer does."""
        header = RegisterBrokerRequestHeader.decode(command.ext_fields)
        self.registered[header.broker_addr or ""] = header
        self.registered_bodies[header.broker_addr or ""] = json.loads(command.body or b"")
        master = next((each for each in self.registered.values() if each.broker_id == 0), None)
        fields = RegisterBrokerResponseHeader()
        if master is not None and header.broker_id != 0:
            fields = RegisterBrokerResponseHeader(ha_server_addr=master.ha_server_addr, master_addr=master.broker_addr)
        return command.answer(0, ext_fields=fields.encode())
