"""The tests' scripted brokers on loopback sockets: they follow the controller protocol and have no data.

A broker registers, heartbeats, takes roles by 1008, links itself to the master at the HA address from 906, and as master
moves its linked slaves into the SyncStateSet (1001). All of them write to one journal, where a test reads the order of the
group's requests. Freezing and killing look as from outside: a frozen broker's sockets stay open without answers.

There are two other kinds: `tests/simulate/broker.py` has a log that it copies byte by byte, and `WireBroker` of
`tests/upstream/lab.py` sends only a test's own requests, so that a Java controller can get the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rocketmq_remoting.broker_protocol import (
    EpochCacheBody,
    EpochEntry,
    ExchangeHAInfoRequestHeader,
    HAConnectionRuntimeInfo,
    HARuntimeInfoBody,
)
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import RemotingCommand, request
from rocketmq_remoting.controller_protocol import (
    BrokerHeartbeatRequestHeader,
    ElectMasterResponseBody,
    ElectMasterResponseHeader,
    NotifyBrokerRoleChangedRequestHeader,
    RegisterBrokerToControllerResponseHeader,
    SyncStateSetBody,
)
from rocketmq_remoting.errors import RemotingError
from rocketmq_remoting.handler import not_supported
from rocketmq_remoting.server import RemotingServer
from tests.support.fake_tables import FakeTables
from tests.support.quiet_handler import QuietHandler
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rocketmq_remoting.connection import RemotingConnection

__all__ = ["CLUSTER", "NAME", "FakeBroker", "FakeGroup", "end_of_log", "eventually"]

CLUSTER = "cl"
NAME = "bn"
_hosts = (f"127.64.{number // 250}.{number % 250 + 2}" for number in itertools.count(7 * 250))


class FakeGroup:
    """State that the fake brokers of one group share."""

    def __init__(self, *planes: str, cluster: str = CLUSTER, name: str = NAME) -> None:
        self.planes = list(planes)
        self.cluster, self.name = cluster, name
        self.journal: list[str] = []
        self.brokers: dict[int, FakeBroker] = {}

    async def broker(self, **changes: Any) -> FakeBroker:
        """Start one more broker and let it register."""
        broker = FakeBroker(self, **changes)
        await broker.start()
        return broker

    async def three(self) -> list[FakeBroker]:
        """Start three brokers: the first is master, all are in sync."""
        brokers = [await self.broker() for _ in range(3)]
        await eventually(lambda: brokers[0].sync_state_set == {1, 2, 3}, what="three members in sync")
        return brokers

    def master(self) -> FakeBroker:
        """Return the live broker that acts as master under the highest epoch."""
        return max((b for b in self.brokers.values() if b.is_master and not b.dead), key=lambda b: b.epoch)

    def write(self, offset: int) -> None:
        """Extend the log of all live brokers to this offset."""
        for broker in self.brokers.values():
            if not broker.dead:
                broker.max_offset = offset

    def learners(self) -> set[int]:
        """Return the learners by handshake: no master proposes them."""
        return {broker_id for broker_id, broker in self.brokers.items() if broker.async_learner}

    async def stop(self) -> None:
        for broker in list(self.brokers.values()):
            await broker.kill()


def end_of_log(cluster_name: str, broker_name: str, shown_id: int, epoch: int, max_offset: int) -> EpochCacheBody:
    """What a broker says of its log (1007), as far as a controller reads it; an epoch of -1: it has none."""
    epochs = (EpochEntry(epoch=epoch),) if epoch >= 0 else ()
    return EpochCacheBody(cluster_name, broker_name, broker_id=shown_id, epoch_list=epochs, max_offset=max_offset)


class FakeBroker(FakeTables, QuietHandler):
    """One broker process; ``restarted`` makes the next process on the same disk."""

    # As a Java slave that has copied no data under its new epoch yet.
    keeps_epoch_file = False
    # 1007. Without it, its heartbeats alone say what it holds.
    answers_end_of_log = True
    # Its links' speeds in 907, by broker id.
    link_speeds: Mapping[int, int] = MappingProxyType({})

    def __init__(
        self,
        group: FakeGroup,
        *,
        broker_id: int | None = None,
        epoch_file: int = 0,
        max_offset: int = 0,
        minimum: int = 2,
        heartbeat_seconds: float = 0.05,
        host: str | None = None,
        port: int = 0,
    ) -> None:
        super().__init__(group.name, group.journal, minimum)
        self.port = port
        self.group = group
        self.broker_id = broker_id or 0
        self.epoch_file = epoch_file
        self.max_offset = max_offset
        self.async_learner = False
        # Its ACL: the reason of answers with code 16; empty: no such answer.
        self.refuses: Callable[[RemotingCommand], str] = lambda _: ""
        self.heartbeat_seconds = heartbeat_seconds
        self.heartbeat_timeout_ms = 600
        self.host = host or next(_hosts)
        self.epoch = 0
        self.is_master = False
        self.master_id = 0
        self.master_address = ""
        self.ha_address = ""
        # Slaves that are linked; those of them whose links do not get beyond the handshake, as Java's 907 shows them.
        self.linked, self.only_dialled_by = set[int](), set[int]()
        self.sync_state_set: set[int] = set()
        self.set_epoch = 0
        self.dead = False
        self.thawed = asyncio.Event()
        self.thawed.set()
        self.ignored_ha_pushes = 0
        self.ignores_ha_pushes_for_ever = False
        # Linked to another slave: only a change of role ends that, no 906.
        self.chained = False
        self.silent = False
        # Planes that its heartbeats cannot reach, and whether it answers 907.
        self.unheard_at: set[str] = set()
        self.answers_ha_status = True
        self.links_behind = 0
        self.role_change_waits: asyncio.Event | None = None
        # Requests that came while it was frozen.
        self.waiting = 0
        self.asked: list[int] = []
        self.tried: list[int] = []
        self.beats = 0
        self._server = RemotingServer(self)
        self._client = RemotingClient(local_host=self.host)
        self._task: asyncio.Task[None] | None = None
        self._alter = asyncio.Lock()
        # That of its process, once it has started.
        self._context = contextvars.copy_context()
        self._proposals: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        return f"{self.host}:{self._server.port}"

    @property
    def planes(self) -> list[str]:
        """Return the controllers that get its heartbeats; requests go to the first."""
        return self.group.planes

    async def start(self) -> None:
        self._context = contextvars.copy_context()
        await self._server.start(self.host, self.port)
        tries = itertools.count(1)
        while not self.broker_id:
            # As a Java broker: after any failure it requests an id again, with a new check code.
            answer = await self.ask(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID)
            if answer.code == 0:
                broker_id = int((answer.ext_fields or {})["nextBrokerId"])
                check_code = f"{self.address};{next(tries)}"
                answer = await self.ask(
                    RequestCode.CONTROLLER_APPLY_BROKER_ID, appliedBrokerId=broker_id, registerCheckCode=check_code
                )
                self.broker_id = broker_id if answer.code == 0 else 0
        self.group.brokers[self.broker_id] = self
        await self.register()
        self._task = asyncio.create_task(self._heartbeat_for_ever())

    async def register(self) -> None:
        """Send 1003, then a heartbeat, then 1002 until there is a master: the order of a Java broker's start."""
        while (answer := await self.ask_to_register()).code != 0:
            pass
        header = RegisterBrokerToControllerResponseHeader.decode(answer.ext_fields)
        if header.master_broker_id is None:
            await self.heartbeat()
            await eventually(self._elected, what=f"broker {self.broker_id}: a master")
        else:
            await self.take_role(header.master_broker_id, header.master_address or "", header.master_epoch or 0, None)

    async def ask_to_register(self) -> RemotingCommand:
        """Send one 1003."""
        return await self.ask(
            RequestCode.CONTROLLER_REGISTER_BROKER, brokerId=self.broker_id, brokerAddress=self.address
        )

    async def _elected(self) -> bool:
        with contextlib.suppress(RemotingError):
            answer = await self.ask(
                RequestCode.CONTROLLER_ELECT_MASTER, brokerId=self.broker_id, designateElect="false"
            )
            if answer.code in (0, 2011):
                header = ElectMasterResponseHeader.decode(answer.ext_fields)
                body = ElectMasterResponseBody.decode(answer.body)
                await self.take_role(
                    header.master_broker_id or 0,
                    header.master_address or "",
                    header.master_epoch or 0,
                    SyncStateSetBody(body.sync_state_set, header.sync_state_set_epoch or 0),
                )
                return True
        return False

    async def ask(self, code: int, *, body: bytes | None = None, **fields: object) -> RemotingCommand:
        return await self.ask_at(self.planes[0], code, body=body, **fields)

    async def ask_at(self, plane: str, code: int, *, body: bytes | None = None, **fields: object) -> RemotingCommand:
        self.tried.append(code)
        known = {"clusterName": self.group.cluster, "brokerName": self.group.name}
        ext_fields = known | {name: str(value) for name, value in fields.items()}
        return await self._client.invoke(plane, request(code, ext_fields=ext_fields, body=body), timeout_seconds=3.0)

    async def heartbeat(self) -> None:
        self.beats += 1
        header = BrokerHeartbeatRequestHeader(
            cluster_name=self.group.cluster,
            broker_name=self.group.name,
            broker_addr=self.address,
            broker_id=self.broker_id,
            epoch=self.epoch_file,
            max_offset=self.max_offset,
            confirm_offset=self.max_offset,
            heartbeat_timeout_ms=self.heartbeat_timeout_ms,
        )
        command = request(RequestCode.BROKER_HEARTBEAT, ext_fields=header.encode(), oneway=True)
        for plane in self.planes:
            if plane in self.unheard_at:
                continue
            with contextlib.suppress(RemotingError):
                await self._client.invoke_oneway(plane, command, timeout_seconds=1.0)

    async def _heartbeat_for_ever(self) -> None:
        while True:
            await self.thawed.wait()
            if not self.silent:
                await self.heartbeat()
            if (master := self.group.brokers.get(self.master_id)) is not None and master is not self:
                self.copy_from(master)
            await asyncio.sleep(self.heartbeat_seconds)

    async def take_role(self, master: int, address: str, epoch: int, body: SyncStateSetBody | None) -> None:
        if epoch <= self.epoch:
            return
        same_master = master == self.master_id
        self.epoch, self.master_id = epoch, master
        if not self.keeps_epoch_file:
            self.epoch_file = epoch
        if same_master:
            # As Java: it adopts only a set of a newer epoch, and keeps all links (A.11).
            if self.is_master and body is not None and body.sync_state_set_epoch > self.set_epoch:
                self._adopt(body)
            self._note_role()
            return
        self.chained = False
        self.is_master = master == self.broker_id
        self.master_address = address
        self.ha_address = ""
        self.linked.clear()
        for other in self.group.brokers.values():
            if not self.is_master:
                other.linked.discard(self.broker_id)
        if self.is_master and body is not None:
            self._adopt(body)
        self._note_role()

    def _note_role(self) -> None:
        self.group.journal.append(f"{self.broker_id} {'master' if self.is_master else 'slave'} {self.epoch}")

    def _adopt(self, told: SyncStateSetBody) -> None:
        self.sync_state_set, self.set_epoch = set(told.sync_state_set), told.sync_state_set_epoch

    async def link(self) -> None:
        """Connect the HA client to the broker at this HA address."""
        for other in list(self.group.brokers.values()):
            if other.serves_ha_at(self.ha_address) and not other.dead:
                other.linked.add(self.broker_id)
                other._propose_soon()

    def serves_ha_at(self, ha_address: str) -> bool:
        """Whether slaves link to it at this address."""
        host, _, port = ha_address.rpartition(":")
        return bool(port) and f"{host}:{int(port) - 1}" == self.address

    def _propose_soon(self) -> None:
        """Let a master's own process move what is linked into the set: the slave's may be killed meanwhile."""
        if self.is_master:
            task = asyncio.get_running_loop().create_task(self._propose(), context=self._context.copy())
            self._proposals.add(task)
            task.add_done_callback(self._proposals.discard)

    async def _propose(self) -> None:
        with contextlib.suppress(RemotingError):
            await self.propose_set()

    async def propose_set(self) -> None:
        """Send 1001 with all linked slaves until accepted; after a refusal learn the set by 1004, as in Java."""
        async with self._alter:
            for _ in range(10):
                wanted = (self.linked - self.group.learners()) | {self.broker_id}
                if wanted == self.sync_state_set or not self.is_master or self.dead:
                    return
                body = SyncStateSetBody(frozenset(wanted), self.set_epoch).encode()
                fields = {"masterBrokerId": self.broker_id, "masterEpoch": self.epoch}
                answer = await self.ask(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, body=body, **fields)
                if answer.code != 0:
                    answer = await self.ask(RequestCode.CONTROLLER_GET_REPLICA_INFO)
                if answer.code == 0 and answer.body:
                    known = SyncStateSetBody.decode(answer.body)
                    if known.sync_state_set_epoch >= self.set_epoch:
                        self._adopt(known)

    # ---- as a server

    async def handle(self, command: RemotingCommand, connection: RemotingConnection) -> RemotingCommand:
        self.waiting += 1
        await self.thawed.wait()
        self.waiting -= 1
        self.asked.append(command.code)
        if why := self.refuses(command):
            return command.answer(ResponseCode.NO_PERMISSION, remark=why)
        return await self._answer(command)

    async def _answer(self, command: RemotingCommand) -> RemotingCommand:
        match command.code:
            case RequestCode.NOTIFY_BROKER_ROLE_CHANGED:
                header = NotifyBrokerRoleChangedRequestHeader.decode(command.ext_fields)
                body = SyncStateSetBody.decode(command.body)
                self.group.journal.append(f"1008 to {self.broker_id}")
                if self.role_change_waits is not None:
                    await self.role_change_waits.wait()
                await self.take_role(
                    header.master_broker_id or 0, header.master_address or "", header.master_epoch or 0, body
                )
                return command.answer(0)
            case RequestCode.EXCHANGE_BROKER_HA_INFO:
                return await self._take_ha_address(command)
            case RequestCode.GET_BROKER_HA_STATUS if self.answers_ha_status:
                return command.answer(0, body=self._ha_status().encode())
            case RequestCode.GET_BROKER_EPOCH_CACHE if self.answers_end_of_log:
                shown_id = 0 if self.is_master else self.broker_id or -1
                log = end_of_log(self.group.cluster, self.group.name, shown_id, self.epoch_file, self.max_offset)
                return command.answer(0, body=log.encode())
        return await self.answer_of_tables(command) or not_supported(command)

    async def _take_ha_address(self, command: RemotingCommand) -> RemotingCommand:
        pushed = ExchangeHAInfoRequestHeader.decode(command.ext_fields).master_ha_address or ""
        self.group.journal.append(f"906 to {self.broker_id}")
        if self.ignores_ha_pushes_for_ever or self.chained:
            return command.answer(0)
        if self.ignored_ha_pushes > 0 and pushed.rpartition(":")[2][0] != "0":
            self.ignored_ha_pushes -= 1
            return command.answer(0)
        if not self.is_master:
            self.ha_address = pushed
            await self.link()
        return command.answer(0)

    def _ha_status(self) -> HARuntimeInfoBody:
        links = tuple(
            HAConnectionRuntimeInfo(
                addr=f"{self.group.brokers[broker_id].host}:5000{broker_id}",
                slave_ack_offset=-1 if broker_id in self.only_dialled_by else 0,
                in_sync=broker_id in self.sync_state_set,
                diff=self.links_behind,
                transferred_byte_in_second=self.link_speeds.get(broker_id, 0),
            )
            for broker_id in sorted(self.linked)
        )
        return HARuntimeInfoBody(
            master=self.is_master,
            master_commit_log_max_offset=self.max_offset,
            in_sync_slave_nums=len(self.sync_state_set) - 1,
            ha_connection_info=links,
        )

    # ---- faults

    def freeze(self) -> None:
        """Stop as by SIGSTOP: no requests, no answers, sockets stay open."""
        self.thawed.clear()

    def thaw(self) -> None:
        """Continue as by SIGCONT."""
        self.thawed.set()

    async def close_port(self) -> None:
        """Stop answering and keep sending heartbeats, as a Java broker does in its shutdown hooks."""
        await self._server.stop(grace_seconds=0.0)

    async def kill(self) -> None:
        """End as by SIGKILL: every socket closes at once."""
        if self.dead:
            return
        self.dead = True
        tasks = [*self._proposals, *([] if self._task is None else [self._task])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for other in self.group.brokers.values():
            other.linked.discard(self.broker_id)
        await self._server.stop(grace_seconds=0.0)
        await self._client.close()

    async def asked_again(self, code: int, *, times: int = 1, what: str) -> None:
        """Wait until it got this request so many more times."""
        wanted = self.asked.count(code) + times
        await eventually(lambda: self.asked.count(code) >= wanted, what=what)

    async def drop_connections(self) -> None:
        """Lose every outgoing connection; the next heartbeat reconnects."""
        for plane in self.planes:
            self._client.disconnect(plane)

    async def restarted(self, *, host: str | None = None, port: int = 0, wiped: bool = False) -> FakeBroker:
        """Start the next process on the same disk, at another address; `wiped`: only the identity file is left on the disk."""
        await self.kill()
        return await self.group.broker(
            broker_id=self.broker_id,
            epoch_file=0 if wiped else self.epoch_file,
            max_offset=0 if wiped else self.max_offset,
            minimum=self.minimum,
            host=host,
            port=port,
        )
