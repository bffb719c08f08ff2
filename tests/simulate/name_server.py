"""A scripted NameServer: addresses by broker id, returned to each broker that registers; 104 removes an entry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketmq_remoting.broker_protocol import UnRegisterBrokerRequestHeader
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.handler import not_supported
from rocketmq_remoting.server import RemotingServer
from tests.support.quiet_handler import QuietHandler

if TYPE_CHECKING:
    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_remoting.connection import RemotingConnection
    from tests.simulate.world import World


class NameServer(QuietHandler):
    """The entries of one group."""

    def __init__(self, world: World, node: str) -> None:
        self._world, self._node = world, node
        self._server = RemotingServer(self)
        # By id: address, HA address, state version, connection.
        self._table: dict[str, tuple[str, str, int, int]] = {}

    async def run(self, host: str, port: int) -> None:
        await self._server.start(host, port)

    def connection_closed(self, connection: RemotingConnection) -> None:
        self._table = {key: entry for key, entry in self._table.items() if entry[3] != connection.id}

    async def handle(self, command: RemotingCommand, connection: RemotingConnection) -> RemotingCommand:
        fields = command.ext_fields or {}
        if command.code == RequestCode.UNREGISTER_BROKER:
            header = UnRegisterBrokerRequestHeader.decode(command.ext_fields)
            sender = self._world.node_at(connection.peer_host)
            await self._world.effect(104, f"104 {header.broker_addr}", sender=sender, receiver=self._node)
            found = self._table.get(str(header.broker_id))
            if found is not None and found[0] == header.broker_addr:
                del self._table[str(header.broker_id)]
            await self._world.effect_done(104, sender=sender, receiver=self._node)
            return command.answer(0)
        if command.code != RequestCode.REGISTER_BROKER:
            return not_supported(command)
        version, former = int(fields["stateVersion"]), self._table.get(fields["brokerId"])
        if former is None or former[0] == fields["brokerAddr"] or version >= former[2]:
            self._table = {key: entry for key, entry in self._table.items() if entry[0] != fields["brokerAddr"]}
            self._table[fields["brokerId"]] = (fields["brokerAddr"], fields["haServerAddr"], version, connection.id)
        master = self._table.get("0")
        return command.answer(0, ext_fields={"haServerAddr": master[1], "masterAddr": master[0]} if master else {})
