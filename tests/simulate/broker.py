"""A scripted broker: a Java 5.5.0 broker's requests to controllers and NameServers, and its reactions to theirs.

It registers, asks for an election if there is no master, heartbeats to every controller, polls the record every 2 s, takes a
role only under a higher epoch, and answers 1008 after its role has changed. A 1008 erases an earlier 906: a slave starts
without an HA address, and learns one from a NameServer or from 906. Its log and its links are in `replication.py`: the scripted
brokers of `tests/support/fake_broker.py` have no log, and their links carry no bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

from rocketmq_remoting.broker_protocol import (
    EpochCacheBody,
    EpochEntry,
    ExchangeHAInfoRequestHeader,
    HAConnectionRuntimeInfo,
    HARuntimeInfoBody,
)
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.command import RemotingCommand, request
from rocketmq_remoting.controller_protocol import (
    BrokerHeartbeatRequestHeader,
    ElectMasterResponseBody,
    ElectMasterResponseHeader,
    GetMetaDataResponseHeader,
    GetReplicaInfoResponseHeader,
    NotifyBrokerRoleChangedRequestHeader,
    RegisterBrokerToControllerResponseHeader,
    SyncStateSetBody,
)
from rocketmq_remoting.errors import RemotingError
from rocketmq_remoting.handler import not_supported
from rocketmq_remoting.serialization import decode_properties, encode_properties
from rocketmq_remoting.server import RemotingServer
from tests.simulate.lines import LineConnection
from tests.simulate.replication import Follower, Server
from tests.support.quiet_handler import QuietHandler

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

    from rocketmq_remoting.connection import RemotingConnection
    from tests.simulate.log import Disk
    from tests.simulate.world import World

CLUSTER, NAME = "cl", "bn"
PORT, HA_PORT, CLIENT_PORT = 10911, 10912, 10913
HEARTBEAT_SECONDS = 0.5
HEARTBEAT_TIMEOUT_MS = 2000
POLL_SECONDS = 2.0
RESCAN_SECONDS = 5.0
NAME_SERVER_SECONDS = 10.0
ELECT_AGAIN_SECONDS = 1.0
RPC_SECONDS = 3.0
MESSAGE_BYTES = 256
MASTER_STILL_EXISTS = 2011
# It knows no topics, groups or offsets.
TABLES = {
    int(RequestCode.GET_ALL_TOPIC_CONFIG): "topicConfigTable",
    int(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG): "subscriptionGroupTable",
    int(RequestCode.GET_ALL_CONSUMER_OFFSET): "offsetTable",
}


class Broker(QuietHandler):
    """One process."""

    def __init__(self, world: World, node: str, disk: Disk, host: str) -> None:
        self.world, self.node, self.disk, self.host = world, node, disk, host
        self.epoch = 0
        self.master_id: int | None = None
        self.is_master = False
        self._role = asyncio.Lock()
        self.server = Server(self)
        self.follower = Follower(self)
        self._remoting = RemotingServer(self)
        self._client = RemotingClient(local_host=host)
        self._controllers = world.controllers_as_seen_by(node)
        self._controller = self._controllers[0]
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def broker_id(self) -> int:
        return self.disk.broker_id

    @property
    def address(self) -> str:
        return f"{self.host}:{PORT}"

    def note(self, what: str) -> None:
        self.world.story.tell(f"{self.node} {what}")

    async def run(self) -> None:
        """Run the process."""
        await self.server.listen(self.host, HA_PORT)
        await asyncio.get_running_loop().create_server(
            lambda: LineConnection(self._sent, lambda _: None), self.host, CLIENT_PORT
        )
        await self._remoting.start(self.host, PORT)
        await self._find_controller()
        await self._learn_id()
        await self._register()
        for address in self._controllers:
            self._spawn(self._heartbeat_for_ever(address))
        self._spawn(self._rescan_for_ever())
        self._spawn(self._register_at_name_servers_for_ever())
        while True:
            await asyncio.sleep(POLL_SECONDS)
            await self._poll()

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- to controllers

    async def _ask(self, code: int, *, body: bytes | None = None, **fields: object) -> RemotingCommand | None:
        """Send a request; None if no answer came in time."""
        known = {"clusterName": CLUSTER, "brokerName": NAME}
        ext_fields = known | {name: str(value) for name, value in fields.items()}
        command = request(code, ext_fields=ext_fields, body=body)
        try:
            return await self._client.invoke(self._controller, command, timeout_seconds=RPC_SECONDS)
        except RemotingError:
            self._client.disconnect(self._controller)  # as Java after a timeout
            return None

    async def _find_controller(self) -> None:
        """Return the first controller that answers that it leads."""
        for address in self._controllers:
            with contextlib.suppress(RemotingError):
                answer = await self._client.invoke(
                    address, request(RequestCode.CONTROLLER_GET_METADATA_INFO), timeout_seconds=RPC_SECONDS
                )
                leader = GetMetaDataResponseHeader.decode(answer.ext_fields).controller_leader_address
                if answer.code == 0 and leader:
                    self._controller = leader
                    return

    async def _rescan_for_ever(self) -> None:
        while True:
            await asyncio.sleep(RESCAN_SECONDS)
            await self._find_controller()

    async def _learn_id(self) -> None:
        while not self.disk.broker_id:
            answer = await self._ask(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID)
            if answer is not None and answer.code == 0:
                wanted = int((answer.ext_fields or {})["nextBrokerId"])
                code = f"{self.address};{wanted}"
                answer = await self._ask(
                    RequestCode.CONTROLLER_APPLY_BROKER_ID, appliedBrokerId=wanted, registerCheckCode=code
                )
                if answer is not None and answer.code == 0:
                    self.disk.broker_id = wanted
                    return
            await asyncio.sleep(ELECT_AGAIN_SECONDS)
            await self._find_controller()

    async def _register(self) -> None:
        """Send 1003, a heartbeat, and 1002 until there is a master."""
        while True:
            answer = await self._ask(
                RequestCode.CONTROLLER_REGISTER_BROKER, brokerId=self.broker_id, brokerAddress=self.address
            )
            if answer is not None and answer.code == 0:
                break
            await asyncio.sleep(ELECT_AGAIN_SECONDS)
            await self._find_controller()
        header = RegisterBrokerToControllerResponseHeader.decode(answer.ext_fields)
        if header.master_broker_id is not None and header.master_epoch:
            members = SyncStateSetBody.decode(answer.body) if answer.body else SyncStateSetBody(frozenset(), 0)
            await self._take_role(
                header.master_broker_id,
                header.master_epoch,
                members.sync_state_set,
                members.sync_state_set_epoch,
            )
            return
        while self.epoch == 0:  # as Java's `startBasicService`, each try begins with a heartbeat
            for address in self._controllers:
                self._spawn(self._heartbeat(address))
            await self._elect()
            if self.epoch == 0:
                await asyncio.sleep(ELECT_AGAIN_SECONDS)
                await self._find_controller()

    async def _elect(self) -> None:
        answer = await self._ask(RequestCode.CONTROLLER_ELECT_MASTER, brokerId=self.broker_id, designateElect="false")
        if answer is None or answer.code not in (0, MASTER_STILL_EXISTS):
            return
        header = ElectMasterResponseHeader.decode(answer.ext_fields)
        body = ElectMasterResponseBody.decode(answer.body)
        if header.master_broker_id is not None and header.master_epoch is not None:
            await self._take_role(
                header.master_broker_id, header.master_epoch, body.sync_state_set, header.sync_state_set_epoch or 0
            )

    async def _heartbeat_for_ever(self, address: str) -> None:
        while True:
            await self._heartbeat(address)
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def _heartbeat(self, address: str) -> None:
        header = BrokerHeartbeatRequestHeader(
            cluster_name=CLUSTER,
            broker_name=NAME,
            broker_addr=self.address,
            broker_id=self.broker_id,
            epoch=self.disk.last_epoch,
            max_offset=self.disk.end * MESSAGE_BYTES,
            confirm_offset=self.disk.end * MESSAGE_BYTES,
            heartbeat_timeout_ms=HEARTBEAT_TIMEOUT_MS,
        )
        command = request(RequestCode.BROKER_HEARTBEAT, ext_fields=header.encode(), oneway=True)
        with contextlib.suppress(RemotingError):
            await self._client.invoke_oneway(address, command, timeout_seconds=RPC_SECONDS)

    async def _poll(self) -> None:
        """Send 1004, as Java does every `syncBrokerMetadataPeriod`."""
        answer = await self._ask(RequestCode.CONTROLLER_GET_REPLICA_INFO)
        if answer is None or answer.code != 0:
            return
        header = GetReplicaInfoResponseHeader.decode(answer.ext_fields)
        members = SyncStateSetBody.decode(answer.body) if answer.body else SyncStateSetBody(frozenset(), 0)
        epoch = header.master_epoch or 0
        if epoch > self.epoch:
            if header.master_broker_id is None or not header.master_address:
                await self._elect()
            else:
                await self._take_role(
                    header.master_broker_id, epoch, members.sync_state_set, members.sync_state_set_epoch
                )
        elif epoch == self.epoch and self.is_master:
            self.server.apply(set(members.sync_state_set), members.sync_state_set_epoch)

    async def alter_set(self, members: set[int], set_epoch: int) -> tuple[set[int], int] | None:
        """Send 1001; None if no plane granted it. It may be in transit for a while (`slow_proposals`)."""
        epoch = self.epoch
        if self.world.proposals_wait_seconds:
            await asyncio.sleep(self.world.draw(0.0, self.world.proposals_wait_seconds))
        body = SyncStateSetBody(frozenset(members), set_epoch).encode()
        answer = await self._ask(
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
            body=body,
            masterBrokerId=self.broker_id,
            masterEpoch=epoch,
        )
        if answer is None or answer.code != 0 or not answer.body:
            return None
        found = SyncStateSetBody.decode(answer.body)
        self.world.oracle.set_granted(self.node, self.broker_id, epoch, found.sync_state_set_epoch)
        return set(found.sync_state_set), found.sync_state_set_epoch

    # ---- its role

    async def _take_role(self, master: int, epoch: int, members: Iterable[int], set_epoch: int) -> None:
        async with self._role:
            if epoch <= self.epoch:
                return
            self.world.oracle.took_role(self.node, epoch, master)
            same, self.epoch = master == self.master_id, epoch
            self.master_id = master
            if same:
                if self.is_master:
                    self.server.apply(set(members), set_epoch)
                    self.disk.begin_epoch(epoch, self.disk.end)
                    self.server.tell_epoch()
                return
            if master == self.broker_id:
                await self._become_master(set(members), set_epoch)
            else:
                await self._become_slave()
        self._spawn(self._register_at_name_servers())

    async def _become_master(self, members: set[int], set_epoch: int) -> None:
        await self.follower.shut()
        await asyncio.sleep(self.world.draw(0.008, 0.06))
        self.disk.begin_epoch(self.epoch, self.disk.end)
        self.server.begin(members or {self.broker_id}, set_epoch)
        self.is_master = True
        self.note(f"is master of epoch {self.epoch}, set {sorted(self.server.in_sync)}, log {self.disk.end}")

    async def _become_slave(self) -> None:
        was_master, self.is_master = self.is_master, False
        self.server.close_links()
        if was_master:
            await asyncio.sleep(self.world.draw(0.02, 0.19))
        else:
            await self.follower.shut()
            await asyncio.sleep(self.world.draw(0.003, 0.015))
        self.server.close_links()
        self.follower.start()
        self.note(f"follows {self.master_id} in epoch {self.epoch}")

    # ---- NameServers

    async def _register_at_name_servers_for_ever(self) -> None:
        while True:
            await asyncio.sleep(NAME_SERVER_SECONDS)
            await self._register_at_name_servers()

    async def _register_at_name_servers(self) -> None:
        if self.master_id is None:
            return
        shown = "0" if self.is_master else str(self.broker_id)
        fields = {
            "brokerName": NAME,
            "clusterName": CLUSTER,
            "brokerAddr": self.address,
            "brokerId": shown,
            "haServerAddr": f"{self.host}:{HA_PORT}",
            "stateVersion": str(self.epoch),
        }
        for server in self.world.name_server_addresses:
            with contextlib.suppress(RemotingError):
                answer = await self._client.invoke(
                    server, request(RequestCode.REGISTER_BROKER, ext_fields=fields), timeout_seconds=RPC_SECONDS
                )
                found = (answer.ext_fields or {}).get("haServerAddr", "")
                if found and not self.is_master and self.follower.runs:
                    self.follower.point_at(found)

    # ---- as a server

    async def handle(self, command: RemotingCommand, connection: RemotingConnection) -> RemotingCommand:
        sender = self.world.node_at(connection.peer_host)
        what = self._describe(command)
        if what:
            await self.world.effect(int(command.code), what, sender=sender, receiver=self.node)
        epoch = 0
        if command.code == RequestCode.NOTIFY_BROKER_ROLE_CHANGED:
            epoch = NotifyBrokerRoleChangedRequestHeader.decode(command.ext_fields).master_epoch or 0
            self.world.oracle.told(sender, self.node, self.broker_id, epoch)
        answer = await self._do(command)
        if command.code == RequestCode.NOTIFY_BROKER_ROLE_CHANGED:
            self.world.oracle.told_answered(sender, self.broker_id, epoch)
        if what:
            await self.world.effect_done(int(command.code), sender=sender, receiver=self.node)
        return answer

    def _describe(self, command: RemotingCommand) -> str:
        """Return the story's text for a request that changes state."""
        match command.code:
            case RequestCode.NOTIFY_BROKER_ROLE_CHANGED:
                header = NotifyBrokerRoleChangedRequestHeader.decode(command.ext_fields)
                return f"1008 epoch {header.master_epoch} master {header.master_broker_id}"
            case RequestCode.EXCHANGE_BROKER_HA_INFO:
                return f"906 {ExchangeHAInfoRequestHeader.decode(command.ext_fields).master_ha_address}"
            case RequestCode.UPDATE_BROKER_CONFIG:
                return f"25 {decode_properties(command.body)}"
        return ""

    async def _do(self, command: RemotingCommand) -> RemotingCommand:
        match command.code:
            case RequestCode.NOTIFY_BROKER_ROLE_CHANGED:
                header = NotifyBrokerRoleChangedRequestHeader.decode(command.ext_fields)
                body = SyncStateSetBody.decode(command.body)
                if header.master_broker_id is not None:
                    epoch = header.master_epoch or 0
                    await self._take_role(
                        header.master_broker_id, epoch, body.sync_state_set, body.sync_state_set_epoch
                    )
            case RequestCode.EXCHANGE_BROKER_HA_INFO:
                pushed = ExchangeHAInfoRequestHeader.decode(command.ext_fields).master_ha_address or ""
                if not self.is_master and self.follower.runs:
                    self.follower.point_at(pushed)
            case RequestCode.UPDATE_BROKER_CONFIG:
                values = decode_properties(command.body)
                self.disk.minimum = int(values.get("minInSyncReplicas", self.disk.minimum))
            case _:
                return self._say(command)
        return command.answer(0)

    def _say(self, command: RemotingCommand) -> RemotingCommand:
        """Answer a request that changes no state."""
        match command.code:
            case RequestCode.GET_BROKER_HA_STATUS if self.is_master or self.follower.runs:
                return command.answer(0, body=self._ha_status().encode())
            case RequestCode.GET_BROKER_EPOCH_CACHE:
                own_id = 0 if self.is_master else self.broker_id
                epochs = tuple(EpochEntry(epoch=epoch, start_offset=start) for epoch, start in self.disk.epochs)
                end = self.disk.end * MESSAGE_BYTES
                body = EpochCacheBody(CLUSTER, NAME, broker_id=own_id, epoch_list=epochs, max_offset=end)
                return command.answer(0, body=body.encode())
            case RequestCode.GET_BROKER_CONFIG:
                role = "SYNC_MASTER" if self.is_master else "SLAVE"
                known = {"brokerName": NAME, "minInSyncReplicas": str(self.disk.minimum), "brokerRole": role}
                return command.answer(0, body=encode_properties(known))
        table = TABLES.get(command.code)
        return not_supported(command) if table is None else command.answer(0, body=json.dumps({table: {}}).encode())

    def _ha_status(self) -> HARuntimeInfoBody:
        links = tuple(
            HAConnectionRuntimeInfo(
                addr=":".join(map(str, link.connection.peer)),
                in_sync=link.broker_id in self.server.in_sync,
                diff=(self.disk.end - max(link.ack, 0)) * MESSAGE_BYTES,
            )
            for link in self.server.links.values()
        )
        return HARuntimeInfoBody(
            master=self.is_master,
            master_commit_log_max_offset=self.disk.end * MESSAGE_BYTES,
            ha_connection_info=links if self.is_master else (),
        )

    def _sent(self, connection: LineConnection, line: dict[str, Any]) -> None:
        """Answer a client's send."""
        message, epoch = line["send"], self.epoch
        if not self.is_master:
            connection.send(message=message, stored=False)
            return

        def reply(copies: int) -> None:
            if copies:
                self.world.oracle.answered(self.node, self.broker_id, epoch, message, copies)
            connection.send(message=message, stored=copies > 0)

        self.server.append(message, reply)
