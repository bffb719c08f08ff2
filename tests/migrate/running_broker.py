"""A broker as a migration meets it: RUNNING under a Java controller, with an id and a role that it does not ask for again.

The two minutes between two looks at `controllerAddr` are `reread_seconds` here.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from rocketmq_remoting.broker_protocol import BrokerRuntimeInfoBody, EpochCacheBody, EpochEntry, HARuntimeInfoBody
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.controller_protocol import (
    GetMetaDataResponseHeader,
    GetReplicaInfoResponseHeader,
    SyncStateSetBody,
)
from rocketmq_remoting.errors import RemotingError
from tests.support.fake_broker import FakeBroker, FakeGroup

if TYPE_CHECKING:
    from rocketmq_remoting.command import RemotingCommand

BEAT_SECONDS = 0.03
LISTED, LOOKS_UP = "controllerAddr", "fetchControllerAddrByDnsLookup"


class RunningBroker(FakeBroker):
    """It heartbeats every controller it lists, polls their leader, and changes role by a Java broker's rules."""

    def __init__(self, group: FakeGroup, broker_id: int, listed: str) -> None:
        super().__init__(group, broker_id=broker_id, max_offset=100, heartbeat_seconds=BEAT_SECONDS)
        self.heartbeat_timeout_ms = 1000
        self.reread_seconds = 0.3
        self.config = {"brokerClusterName": group.cluster, LISTED: listed, LOOKS_UP: "false"}
        self.used = listed.split(";")
        self.looks = 0

    @property
    def listed(self) -> str:
        """Its list of controllers; `used` is what it last read of that."""
        return self.config[LISTED]

    @listed.setter
    def listed(self, addresses: str) -> None:
        self.config[LISTED] = addresses

    @property
    def planes(self) -> list[str]:
        return self.used

    def believe(self, *, master: int, epoch: int, members: set[int], set_epoch: int) -> None:
        """Be in this role, which was taken before the test began."""
        self.master_id, self.is_master = master, master == self.broker_id
        self.epoch = self.epoch_file = epoch
        self.sync_state_set, self.set_epoch = members, set_epoch

    async def start(self) -> None:
        """Listen; `run` begins its life."""
        await self._server.start(self.host, self.port)
        self.group.brokers[self.broker_id] = self

    def run(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        look_again_seconds = clock() + self.reread_seconds
        while True:
            if clock() >= look_again_seconds:
                for gone in set(self.used) - set(self.listed.split(";")):
                    self._client.disconnect(gone)
                self.used = self.listed.split(";")
                self.looks += 1
                look_again_seconds = clock() + self.reread_seconds
            await self.heartbeat()
            with contextlib.suppress(RemotingError):
                await self._poll()
            await asyncio.sleep(self.heartbeat_seconds)

    async def _poll(self) -> None:
        answer = await self.ask(RequestCode.CONTROLLER_GET_REPLICA_INFO)
        if answer.code != 0:
            return
        header = GetReplicaInfoResponseHeader.decode(answer.ext_fields)
        body = SyncStateSetBody.decode(answer.body)
        epoch = header.master_epoch or 0
        if epoch > self.epoch and header.master_broker_id is None:
            await self._elected()
        elif epoch > self.epoch:
            await self.take_role(header.master_broker_id or 0, header.master_address or "", epoch, body)
        elif (
            self.is_master
            and (epoch, header.master_broker_id) == (self.epoch, self.broker_id)
            and body.sync_state_set_epoch > self.set_epoch
        ):
            self.sync_state_set, self.set_epoch = set(body.sync_state_set), body.sync_state_set_epoch

    async def ask(self, code: int, *, body: bytes | None = None, **fields: object) -> RemotingCommand:
        """Ask the leader."""
        return await self.ask_at(await self._leader(), code, body=body, **fields)

    async def _leader(self) -> str:
        """The leader that the first controller with an answer names (1005). RemotingError if none names one."""
        for controller in self.used:
            with contextlib.suppress(RemotingError):
                answer = await self.ask_at(controller, RequestCode.CONTROLLER_GET_METADATA_INFO)
                header = GetMetaDataResponseHeader.decode(answer.ext_fields)
                if header.controller_leader_address:
                    return header.controller_leader_address
        raise RemotingError("no controller names a leader")

    async def _answer(self, command: RemotingCommand) -> RemotingCommand:
        match command.code:
            case RequestCode.GET_BROKER_CONFIG:
                self.config["brokerId"] = "0" if self.is_master else str(self.broker_id)
            case RequestCode.GET_BROKER_RUNTIME_INFO:
                body = BrokerRuntimeInfoBody(table={"brokerVersionDesc": "V5_5_0"})
                return command.answer(0, body=body.encode())
            case RequestCode.GET_BROKER_EPOCH_CACHE:
                entries = (EpochEntry(epoch=self.epoch),)
                epochs = EpochCacheBody(self.group.cluster, self.group.name, epoch_list=entries)
                return command.answer(0, body=epochs.encode())
        return await super()._answer(command)

    def _ha_status(self) -> HARuntimeInfoBody:
        in_sync = len(self.sync_state_set) - 1 if self.is_master else 0
        return HARuntimeInfoBody(master=self.is_master, in_sync_slave_nums=in_sync)
