"""One broker group of Java brokers and Python replicas: a real NameServer, our `brokergroup controller`, members that are killed
with SIGKILL and restart, and queries of the controller and the brokers.

Each part is a process on 127.0.0.1. The master is read from the controller (1006); a switchover is requested
as by an administrator (1002 with designateElect).
"""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from rocketmq_remoting.broker_protocol import EpochCacheBody
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.command import RemotingCommand, request
from rocketmq_remoting.controller_protocol import BrokerReplicasInfoBody, ReplicasInfo, encode_broker_names
from rocketmq_remoting.errors import RemotingError
from rocketmq_remoting.serialization import load_json
from tests.real.parts.java import JavaProgram, broker_properties, start_broker, start_name_server, write_properties
from tests.real.parts.process import RealProcess, start
from tests.support.places import free_port

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

Found = TypeVar("Found")
GROUP = "broker-a"
CLUSTER = "DefaultCluster"
PYTHON = "python"
TIMEOUT_SECONDS = 5.0
DEADLINE_SECONDS = 240.0
LOG_FILE_BYTES = 4 << 20
SETTINGS: dict[str, Any] = {
    "mappedFileSizeCommitLog": LOG_FILE_BYTES,
    "allAckInSyncStateSet": "true",
    "haSendHeartbeatInterval": 100,
    "brokerHeartbeatInterval": 500,
    "controllerHeartBeatTimeoutMills": 5000,
    "syncBrokerMetadataPeriod": 1000,
    "checkSyncStateSetPeriod": 1000,
}


class LabError(Exception):
    """A wait reached its deadline; the message has the condition and the state."""


@dataclass
class Member:
    """One broker: a Java version, or `python`; its store survives it."""

    name: str
    kind: str
    folder: Path
    process: RealProcess | None = None
    address: str = ""

    @property
    def commit_log(self) -> Path:
        return self.folder / "store" / "commitlog"

    @property
    def epoch_file(self) -> Path:
        return self.folder / "store" / "epochFileCheckpoint"

    @property
    def is_java(self) -> bool:
        return self.kind != PYTHON


@dataclass
class Lab:
    """The processes of one group."""

    folder: Path
    java_version: str
    members: dict[str, Member] = field(default_factory=dict)
    failovers: int = 0
    controller: RealProcess | None = None
    controller_address: str = ""
    name_server: JavaProgram | None = None
    client: RemotingClient = field(default_factory=RemotingClient)

    def start(self, kinds: dict[str, str]) -> None:
        """NameServer and controller; the members begin one by one."""
        self.name_server = start_name_server(self.folder / "namesrv", version=self.java_version)
        self.controller_address = f"127.0.0.1:{free_port()}"
        command = [sys.executable, "-m", "brokergroup_operator.cli.main", "controller", "--open-admin"]
        where = ["--listen", self.controller_address, "--name-server", self.name_server.address]
        self.controller = start("controller", [*command, *where], log=self.folder / "controller.log")
        self.members = {name: Member(name, kind, self.folder / name) for name, kind in kinds.items()}
        self.name_server.wait_until_listening(DEADLINE_SECONDS)

    def start_member(self, name: str) -> None:
        """Start a member, for the first time or again: then with its store and at another port, as a pod comes back."""
        member = self.members[name]
        assert self.name_server is not None
        if member.is_java:
            broker = start_broker(
                member.folder,
                controller_address=self.controller_address,
                name_server_address=self.name_server.address,
                version=member.kind,
                **SETTINGS,
            )
            member.process, member.address = broker.process, broker.address
            return
        properties = broker_properties(
            member.folder, controllers=self.controller_address, name_server=self.name_server.address
        )
        port = free_port(neighbours=2)
        properties |= {**SETTINGS, "listenPort": port, "haListenPort": free_port()}
        config = write_properties(member.folder / "broker.conf", properties)
        command = [sys.executable, "-m", "rocketmq_replica", "--config", str(config)]
        member.process = start(name, command, log=member.folder / "broker.log")
        member.address = f"127.0.0.1:{port}"

    async def stop(self) -> None:
        """Kill all running processes."""
        await self.client.close()
        for process in (*(member.process for member in self.members.values()), self.controller):
            if process is not None:
                process.kill()
        if self.name_server is not None:
            self.name_server.process.kill()

    async def ask(
        self, address: str, code: int, *, ext_fields: dict[str, str] | None = None, body: bytes | None = None
    ) -> RemotingCommand:
        return await self.client.invoke(
            address, request(code, ext_fields=ext_fields, body=body), timeout_seconds=TIMEOUT_SECONDS
        )

    async def replicas(self) -> ReplicasInfo | None:
        """The group as the controller has it; None while it has none, or does not answer."""
        try:
            answer = await self.ask(
                self.controller_address, RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=encode_broker_names([GROUP])
            )
        except RemotingError:
            return None
        return BrokerReplicasInfoBody.decode(answer.body).replicas_info_table.get(GROUP) if answer.body else None

    async def registered(self) -> dict[str, str]:
        """The group's addresses as the NameServer shows them, by broker id; 0 is the master."""
        assert self.name_server is not None
        answer = await self.ask(self.name_server.address, RequestCode.GET_BROKER_CLUSTER_INFO)
        shown = load_json(answer.body or b"{}")
        assert isinstance(shown, dict)
        addresses: dict[str, str] = shown["brokerAddrTable"][GROUP]["brokerAddrs"]
        return addresses

    def member_at(self, address: str | None) -> Member | None:
        return next((member for member in self.members.values() if member.address == address), None)

    async def master(self) -> Member | None:
        """Return the master by the controller's answer."""
        info = await self.replicas()
        return self.member_at(info.master_address) if info is not None else None

    async def until_whole(self) -> Member:
        """Wait until all members are in the SyncStateSet under a known master; return the master."""
        everybody = {member.address for member in self.members.values() if member.process is not None}

        async def whole() -> Member | None:
            info = await self.replicas()
            if info is None or {one.broker_address for one in info.in_sync_replicas} != everybody:
                return None
            return self.member_at(info.master_address)

        return await self.eventually(whole, f"all of {everybody} in sync")

    async def until_master_is_other_than(self, old: Member) -> Member:
        async def another() -> Member | None:
            master = await self.master()
            return master if master is not None and master.name != old.name else None

        return await self.eventually(another, f"another master than {old.name}")

    async def fail_over(self) -> Member:
        """SIGKILL the master, wait for the next one, and start the dead one again."""
        old = await self.until_whole()
        assert old.process is not None
        old.process.kill()
        new = await self.until_master_is_other_than(old)
        self.failovers += 1
        self.start_member(old.name)
        await self.until_whole()
        return new

    async def switch_over(self, to: str) -> Member:
        """Have the controller make this member master, as an administrator asks, unless it is."""
        member = self.members[to]
        if await self.until_whole() is member:
            return member

        async def done() -> Member | None:
            info = await self.replicas()
            if info is not None and info.master_address == member.address:
                return member
            known = {one.broker_address: one.broker_id for one in info.in_sync_replicas} if info is not None else {}
            if member.address not in known:
                return None
            fields = {
                "clusterName": CLUSTER,
                "brokerName": GROUP,
                "brokerId": str(known[member.address]),
                "designateElect": "true",
                "invokeTime": str(int(time.time() * 1000)),
            }
            await self.ask(self.controller_address, RequestCode.CONTROLLER_ELECT_MASTER, ext_fields=fields)
            return None

        found = await self.eventually(done, f"{to} master")
        self.failovers += 1
        await self.until_whole()
        return found

    async def end_offset(self) -> int:
        """Return the logs' end once it is the same for all members."""

        async def same() -> int | None:
            ends = set()
            for member in self.members.values():
                answer = await self.ask(member.address, RequestCode.GET_BROKER_EPOCH_CACHE)
                ends.add(EpochCacheBody.decode(answer.body).max_offset)
            return ends.pop() if len(ends) == 1 else None

        return await self.eventually(same, "the same end of every log")

    async def eventually(
        self, look: Callable[[], Awaitable[Found | None]], what: str, deadline_seconds: float = DEADLINE_SECONDS
    ) -> Found:
        """Return `look`'s first result other than None; a member that ended by itself ends the wait."""
        deadline = time.monotonic() + deadline_seconds
        while (found := await look()) is None:
            self.check_processes()
            if time.monotonic() > deadline:
                raise LabError(f"not within {deadline_seconds} s: {what}; {await self.replicas()}\n{self.tails()}")
            await asyncio.sleep(0.05)
        return found

    def check_processes(self) -> None:
        for process in (*(member.process for member in self.members.values()), self.controller):
            # One that we killed is waited for, so its code is -9.
            if process is not None and process.process.poll() not in (None, -9):
                raise LabError(f"{process.name} ended with {process.process.returncode}:\n{process.tail()}")

    def tails(self) -> str:
        processes = [*(member.process for member in self.members.values()), self.controller]
        return "\n".join(f"--- {process.name}\n{process.tail()}" for process in processes if process is not None)
