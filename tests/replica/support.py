"""A controller, a client and replicas in one event loop, for tests of running replicas."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brokergroup_operator.records.store import GroupKey
from rocketmq_remoting import controller_protocol as cp
from rocketmq_remoting.broker_protocol import HARuntimeInfoBody
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import RemotingCommand, request
from rocketmq_remoting.handler import not_supported
from rocketmq_remoting.message_record import StoredMessage, decode_records
from rocketmq_remoting.server import RemotingServer
from rocketmq_replica.configuration import parse_configuration
from rocketmq_replica.process import ReplicaProcess
from tests.replica.stores import log_of
from tests.support.places import fresh_hosts
from tests.support.quiet_handler import QuietHandler
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokergroup_operator.controller.plane import ControllerPlane
    from controller_core.model import BrokerGroupRecord
    from rocketmq_remoting.connection import RemotingConnection
    from rocketmq_replica.broker import PendingSend
    from rocketmq_replica.master_term import MasterTerm
    from tests.security.certificates import Authority

_addresses = fresh_hosts()
BROKER_NAME = "broker-a"


def fresh_address() -> str:
    """A loopback address that no other test uses."""
    return next(_addresses)


@dataclass
class FakeController(QuietHandler):
    """A controller of one group, whose decisions the test makes."""

    address: str = ""
    next_id: int = 1
    check_codes: dict[int, str] = field(default_factory=dict)
    addresses: dict[int, str] = field(default_factory=dict)
    master_id: int | None = None
    master_epoch: int = 0
    members: frozenset[int] = frozenset()
    set_epoch: int = 0
    heartbeats: dict[int, cp.BrokerHeartbeatRequestHeader] = field(default_factory=dict)
    requests: list[int] = field(default_factory=list)
    silent: set[int] = field(default_factory=set)
    refused: dict[int, int] = field(default_factory=dict)
    granted_but_answered: dict[int, int] = field(default_factory=dict)
    forgotten: bool = False

    @property
    def master_address(self) -> str:
        if self.master_id is None:
            raise KeyError("no master")
        return self.addresses[self.master_id]

    async def start(self) -> None:
        self.server = RemotingServer(self)
        await self.server.start("127.0.0.1", 0)
        self.address = f"127.0.0.1:{self.server.port}"
        self.client = RemotingClient()

    async def stop(self) -> None:
        await self.client.close()
        await self.server.stop(grace_seconds=0.1)

    async def go_away(self) -> None:
        """Reset every connection, and listen no more."""
        await self.server.stop(grace_seconds=0)

    async def come_back(self) -> None:
        """Listen again at the same address, with the same record."""
        self.server = RemotingServer(self)
        host, _, port = self.address.rpartition(":")
        await self.server.start(host, int(port))

    def handle(self, command: RemotingCommand, connection: RemotingConnection) -> RemotingCommand | None:
        self.requests.append(command.code)
        if command.code in self.refused:
            return command.answer(self.refused[command.code], remark="the test says so")
        answer = self._answer(command)
        if command.code in self.granted_but_answered:
            return command.answer(self.granted_but_answered[command.code], remark="done, but the test says so")
        return None if command.code in self.silent else answer

    def _answer(self, command: RemotingCommand) -> RemotingCommand | None:  # noqa: PLR0911
        match command.code:
            case RequestCode.CONTROLLER_GET_METADATA_INFO:
                fields = cp.GetMetaDataResponseHeader(controller_leader_address=self.address, is_leader=True)
                return command.answer(0, ext_fields=fields.encode())
            case RequestCode.CONTROLLER_GET_NEXT_BROKER_ID:
                return command.answer(
                    0, ext_fields=cp.GetNextBrokerIdResponseHeader(next_broker_id=self.next_id).encode()
                )
            case RequestCode.CONTROLLER_APPLY_BROKER_ID:
                return self._apply(command)
            case RequestCode.CONTROLLER_REGISTER_BROKER:
                return self._register(command)
            case RequestCode.CONTROLLER_ELECT_MASTER:
                return self._elect(command)
            case RequestCode.CONTROLLER_GET_REPLICA_INFO:
                return self._info(command)
            case RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET:
                return self._alter(command)
            case RequestCode.CONTROLLER_GET_SYNC_STATE_DATA:
                return self._members(command)
            case RequestCode.BROKER_HEARTBEAT:
                beat = cp.BrokerHeartbeatRequestHeader.decode(command.ext_fields)
                assert beat.broker_id is not None
                self.heartbeats[beat.broker_id] = beat
                return command.answer(0)
            case _:
                return not_supported(command)

    def _apply(self, command: RemotingCommand) -> RemotingCommand:
        header = cp.ApplyBrokerIdRequestHeader.decode(command.ext_fields)
        wanted, code = header.applied_broker_id or 0, header.register_check_code or ""
        if wanted != self.next_id and self.check_codes.get(wanted) != code:
            return command.answer(ResponseCode.CONTROLLER_BROKER_ID_INVALID)
        self.check_codes[wanted] = code
        self.next_id = max(self.next_id, wanted + 1)
        return command.answer(0)

    def _register(self, command: RemotingCommand) -> RemotingCommand:
        header = cp.RegisterBrokerToControllerRequestHeader.decode(command.ext_fields)
        if header.broker_id not in self.check_codes:
            return command.answer(ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED)
        if header.broker_id == self.master_id and not self.forgotten:
            self.master_id = None  # rule 6: a new process of the master gets a new epoch
        self.forgotten = False
        self.addresses[header.broker_id] = header.broker_address or ""
        master = {} if self.master_id is None else self._master()
        fields = cp.RegisterBrokerToControllerResponseHeader(cluster_name=header.cluster_name, **master)
        return command.answer(0, ext_fields=fields.encode(), body=self.set_body())

    def _elect(self, command: RemotingCommand) -> RemotingCommand:
        header = cp.ElectMasterRequestHeader.decode(command.ext_fields)
        code = int(ResponseCode.CONTROLLER_MASTER_STILL_EXIST)
        if self.master_id is None:
            if self.members and header.broker_id not in self.members:
                return command.answer(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED)
            code = 0
            self.decide(header.broker_id or 0)
        fields = cp.ElectMasterResponseHeader(**self._master())
        body = cp.ElectMasterResponseBody(sync_state_set=self.members).encode()
        return command.answer(code, ext_fields=fields.encode(), body=body)

    def _master(self) -> dict[str, Any]:
        """The fields about the master that several answers and the notification have in common."""
        return {
            "master_broker_id": self.master_id,
            "master_address": self.master_address,
            "master_epoch": self.master_epoch,
            "sync_state_set_epoch": self.set_epoch,
        }

    def _info(self, command: RemotingCommand) -> RemotingCommand:
        if self.forgotten:
            return command.answer(ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST)
        fields = cp.GetReplicaInfoResponseHeader(
            master_broker_id=self.master_id,
            master_address=None if self.master_id is None else self.master_address,
            master_epoch=self.master_epoch,
        )
        return command.answer(0, ext_fields=fields.encode(), body=self.set_body())

    def _members(self, command: RemotingCommand) -> RemotingCommand:
        known = [cp.ReplicaIdentity(BROKER_NAME, broker_id, address) for broker_id, address in self.addresses.items()]
        table = {BROKER_NAME: cp.ReplicasInfo(not_in_sync_replicas=tuple(known))}
        return command.answer(0, body=cp.BrokerReplicasInfoBody(table).encode())

    def _alter(self, command: RemotingCommand) -> RemotingCommand:
        header = cp.AlterSyncStateSetRequestHeader.decode(command.ext_fields)
        body = cp.SyncStateSetBody.decode(command.body)
        if body.sync_state_set == self.members:
            return command.answer(ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED)
        if header.master_broker_id != self.master_id:
            return command.answer(ResponseCode.CONTROLLER_INVALID_MASTER)
        if header.master_epoch != self.master_epoch:
            return command.answer(ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH)
        if body.sync_state_set_epoch != self.set_epoch:
            return command.answer(ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH)
        assert self.master_id in body.sync_state_set
        self.members = body.sync_state_set
        self.set_epoch += 1
        return command.answer(0, body=self.set_body())

    def set_body(self) -> bytes:
        return cp.SyncStateSetBody(sync_state_set=self.members, sync_state_set_epoch=self.set_epoch).encode()

    def decide(self, broker_id: int) -> None:
        """Commit an election without a notification."""
        self.master_id = broker_id
        self.master_epoch += 1
        self.members = frozenset({broker_id})
        self.set_epoch += 1

    def lose_master(self) -> None:
        """Commit that there is no master."""
        self.master_id = None
        self.master_epoch += 1

    async def notify(self, broker_id: int) -> RemotingCommand:
        """1008 as an RPC."""
        return await self.client.invoke(self.addresses[broker_id], self.notification(), timeout_seconds=6.0)

    async def elect(self, broker_id: int, *notified: int) -> RemotingCommand:
        """Commit an election and notify these brokers one after the other; the answer of the last one."""
        self.decide(broker_id)
        return [await self.notify(each) for each in notified][-1]

    async def asked_again(self, code: int, times: int = 1) -> None:
        """Wait for so many more requests of this code."""
        expected = self.requests.count(code) + times
        await eventually(lambda: self.requests.count(code) >= expected)

    def notification(self) -> RemotingCommand:
        header = cp.NotifyBrokerRoleChangedRequestHeader(**self._master())
        return request(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, ext_fields=header.encode(), body=self.set_body())


@dataclass
class RunningReplica:
    """One replica in this event loop."""

    process: ReplicaProcess
    stop_event: asyncio.Event
    task: asyncio.Task[None]

    @property
    def address(self) -> str:
        return self.process.configuration.broker_address

    @property
    def broker_id(self) -> int:
        return self.process.broker.broker_id

    @property
    def role(self) -> str:
        return self.process.broker.role.name

    @property
    def term(self) -> MasterTerm[PendingSend]:
        """The term of a master; a slave has none."""
        term = self.process.broker.term
        assert term is not None
        return term

    @property
    def log(self) -> bytes:
        return log_of(self.process.store)

    async def stop(self) -> None:
        self.stop_event.set()
        await self.task


def configuration_text(root: Path, controller: str, address: str, **keys: object) -> str:
    properties: dict[str, object] = {
        "brokerClusterName": "DefaultCluster", "brokerName": BROKER_NAME, "controllerAddr": controller,
        "brokerIP1": address, "brokerIP2": address, "storePathRootDir": root, "mappedFileSizeCommitLog": 65536,
        "allAckInSyncStateSet": "true", "minInSyncReplicas": 1, "brokerHeartbeatInterval": 50,
        "controllerHeartBeatTimeoutMills": 3000, "syncBrokerMetadataPeriod": 60_000, "haSendHeartbeatInterval": 100,
        "slaveTimeout": 2000,
    }  # fmt: skip
    return "\n".join(f"{key}={value}" for key, value in (properties | keys).items())


async def start_replica(root: Path, controller: str, *, address: str | None = None, **keys: Any) -> RunningReplica:
    text = configuration_text(root, controller, address or fresh_address(), **keys)
    process = ReplicaProcess(parse_configuration(text, {}))
    stop_event = asyncio.Event()
    return RunningReplica(process, stop_event, asyncio.create_task(process.run(stop_event)))


def send_fields(topic: str = "Topic", *, properties: str = "", queue_id: int = 0, **more: str) -> dict[str, str]:
    """A send in Java's short names: e is the queue, f the sysFlag, g the time of birth, h the flag, m whether it is a batch."""
    fields = {"a": "PG", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0", "g": "1", "h": "0"}
    return fields | {"i": properties} | more


def numbered(count: int) -> list[bytes]:
    """Bodies of messages: b"0", b"1" and so on."""
    return [b"%d" % number for number in range(count)]


class Client:
    """A producer and consumer; it asks a replica, or whatever listens at an address."""

    def __init__(self) -> None:
        self.remoting = RemotingClient()

    async def ask(
        self, at: RunningReplica | str, code: int, *, timeout_seconds: float = 10.0, **what: Any
    ) -> RemotingCommand:
        """``ext_fields`` and ``body`` as ``request`` takes them."""
        address = at if isinstance(at, str) else at.address
        return await self.remoting.invoke(address, request(code, **what), timeout_seconds=timeout_seconds)

    async def send(
        self, at: RunningReplica | str, body: bytes, *, timeout_seconds: float = 5.0, topic: str = "Topic", **more: Any
    ) -> RemotingCommand:
        """310; `more` as `send_fields` takes it."""
        fields = send_fields(topic, **more)
        return await self.ask(
            at, RequestCode.SEND_MESSAGE_V2, timeout_seconds=timeout_seconds, ext_fields=fields, body=body
        )

    async def store(self, at: RunningReplica | str, *bodies: bytes, **more: Any) -> None:
        """Send each body; AssertionError if one is not acknowledged."""
        for body in bodies:
            answer = await self.send(at, body, **more)
            assert answer.code == ResponseCode.SUCCESS, answer

    async def pull(
        self, at: RunningReplica | str, offset: int, *, topic: str = "Topic", queue_id: int = 0, suspend_ms: int = 0,
        **more: str,
    ) -> RemotingCommand:  # fmt: skip
        fields = {"consumerGroup": "CG", "topic": topic, "queueId": str(queue_id), "queueOffset": str(offset)}
        fields |= {"maxMsgNums": "100", "sysFlag": "6" if suspend_ms else "4", "commitOffset": "0"}
        fields |= {"subscription": "*", "subVersion": "0", "suspendTimeoutMillis": str(suspend_ms)}
        return await self.ask(at, RequestCode.PULL_MESSAGE, ext_fields=fields | more)

    async def pull_all(
        self, at: RunningReplica | str, *, topic: str = "Topic", queue_id: int = 0
    ) -> list[StoredMessage]:
        messages: list[StoredMessage] = []
        while True:
            answer = await self.pull(at, len(messages), topic=topic, queue_id=queue_id)
            if answer.code != ResponseCode.SUCCESS:
                assert answer.code == ResponseCode.PULL_NOT_FOUND, answer
                return messages
            messages += decode_records(answer.body or b"")

    async def bodies(self, at: RunningReplica | str, **which: Any) -> list[bytes]:
        """Of every message of a queue."""
        return [message.body for message in await self.pull_all(at, **which)]

    async def table(self, at: RunningReplica | str, code: int, **ext_fields: str) -> dict[str, Any]:
        """The document of a successful answer."""
        answer = await self.ask(at, code, ext_fields=ext_fields)
        assert answer.code == ResponseCode.SUCCESS, answer
        document: dict[str, Any] = json.loads(answer.body or b"")
        return document

    async def status(self, at: RunningReplica | str) -> HARuntimeInfoBody:
        return HARuntimeInfoBody.decode((await self.ask(at, RequestCode.GET_BROKER_HA_STATUS)).body)

    async def send_back(
        self, at: RunningReplica | str, offset: int, *, level: int | str = 0, **more: str
    ) -> RemotingCommand:
        fields = {"offset": str(offset), "group": "CG", "delayLevel": str(level), "originTopic": "Topic"} | more
        return await self.ask(at, RequestCode.CONSUMER_SEND_MSG_BACK, ext_fields=fields)

    async def commit(self, at: RunningReplica | str, offset: int, **more: str) -> int:
        """The code of the answer to a consumer group's commit."""
        fields = {"consumerGroup": "CG", "topic": "Topic", "queueId": "0", "commitOffset": str(offset)} | more
        return (await self.ask(at, RequestCode.UPDATE_CONSUMER_OFFSET, ext_fields=fields)).code


@dataclass
class Lab:
    """What a story of replicas needs: a controller by which the test decides, a client, and replicas, stopped at the end."""

    controller: FakeController
    client: Client
    folder: Path
    started: list[RunningReplica] = field(default_factory=list)

    async def start(self, name: str, **keys: Any) -> RunningReplica:
        replica = await start_replica(self.folder / name, self.controller.address, **keys)
        self.started.append(replica)
        return replica

    async def master(self, **keys: Any) -> RunningReplica:
        """The first replica of a group, which is elected."""
        replica = await self.start("r1", **keys)
        await eventually(lambda: replica.role == "MASTER")
        return replica

    async def join(self, name: str, **keys: Any) -> RunningReplica:
        """A replica beside another one, as soon as both are in the SyncStateSet."""
        replica = await self.start(name, **keys)
        await eventually(lambda: self.controller.members == {1, 2})
        return replica

    async def rejoin(self, replica: RunningReplica) -> None:
        """Notify one of two replicas of the master, until both are in the SyncStateSet."""
        await self.controller.notify(replica.broker_id)
        await eventually(lambda: self.controller.members == {1, 2})

    async def group(self, count: int = 3, **keys: Any) -> tuple[RunningReplica, ...]:
        """Replicas started one after the other, so that the first is master; all in sync."""
        replicas = []
        for number in range(1, count + 1):
            replica = await self.start(f"r{number}", **keys)
            await eventually(lambda: replica.role != "FENCED")  # noqa: B023 - awaited in this turn of the loop
            replicas.append(replica)
        members = frozenset(range(1, count + 1))
        await eventually(lambda: self.controller.members == members)
        await eventually(lambda: replicas[0].term.sync_state.members == members)
        return tuple(replicas)

    async def pair(self, **keys: Any) -> tuple[RunningReplica, RunningReplica]:
        """A master and its slave in sync."""
        one, two = await self.group(2, **keys)
        return one, two

    async def change_master(self, to: RunningReplica) -> None:
        """Elect a replica, and notify it alone."""
        await self.controller.elect(to.broker_id, to.broker_id)
        await eventually(lambda: to.role == "MASTER")

    async def fail_over(self, old: RunningReplica, to: RunningReplica) -> None:
        """Stop the master, and elect another replica."""
        await old.stop()
        await self.change_master(to)


def record_of(plane: ControllerPlane, name: str = BROKER_NAME) -> BrokerGroupRecord | None:
    snapshot = plane.snapshot(GroupKey("standalone", name))
    return None if snapshot is None else snapshot.record


def is_complete(plane: ControllerPlane, size: int, name: str = BROKER_NAME) -> bool:
    """Whether the group has a master and so many members in sync, and no change of master is open any more.

    The SyncStateSet is often whole before the first election's change ends, and a switchover is refused until then.
    """
    snapshot = plane.snapshot(GroupKey("standalone", name))
    if snapshot is None or snapshot.record is None or snapshot.is_changing or snapshot.in_progress is not None:
        return False
    return snapshot.record.master_broker_id is not None and len(snapshot.record.sync_state_set) == size


def tls_keys(authority: Authority, *, mode: str, client_auth: str = "none") -> dict[str, object]:
    files = authority.issue(BROKER_NAME)
    return {
        "tls.enable": "true", "tls.client.certPath": files.certificate, "tls.client.keyPath": files.key,
        "tls.client.trustCertPath": authority.certificate, "tls.server.mode": mode,
        "tls.server.certPath": files.certificate, "tls.server.keyPath": files.key,
        "tls.server.trustCertPath": authority.certificate, "tls.server.need.client.auth": client_auth,
    }  # fmt: skip


async def start_process(log: Path, *arguments: str) -> asyncio.subprocess.Process:
    """A replica as a process of its own; what it logs is appended to the file."""
    with log.open("ab") as stream:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "rocketmq_replica", *arguments, stderr=stream, cwd=Path.cwd()
        )


async def run_process(config: Path, stop_when: Callable[[], bool] | None = None) -> tuple[int, str]:
    """Exit code and log of a replica's process that ends by itself, or on SIGTERM once ``stop_when`` holds."""
    log = config.with_suffix(".log")
    process = await start_process(log, "--config", str(config))
    if stop_when is not None:
        await eventually(stop_when, within_seconds=30)
        process.send_signal(signal.SIGTERM)
    return await asyncio.wait_for(process.wait(), 30), log.read_text()
