"""The Java programs of one test, beside our controller plane in this process: start, look-up by address, one common end."""

from __future__ import annotations

import subprocess
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from brokergroup_operator.controller.directory.group_directory import FixedDirectory
from brokergroup_operator.controller.plane import ControllerPlane
from brokergroup_operator.controller.settings import PlaneSettings
from brokergroup_operator.records.memory import MemoryRecordStore
from brokergroup_operator.records.store import GroupKey
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.command import request
from tests.controller import conftest
from tests.real.parts import java
from tests.support import waiting
from tests.support.one_request import answer_to

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from brokergroup_operator.observe.observer import Observer
    from controller_core.model import BrokerGroupRecord
    from controller_core.settings import ControllerSettings
    from rocketmq_remoting.signature import Credentials
    from tests.real.parts.java import JavaProgram

HOST = "127.0.0.1"
KEY = GroupKey("standalone", "broker-a")
MQADMIN_SECONDS = 120.0
NO_CONTROLLER = "127.0.0.1:1"
# Java's periods suit production; tests use shorter ones.
QUICK_BROKER: dict[str, str | int] = {
    "brokerHeartbeatInterval": 500,
    "checkSyncStateSetPeriod": 1000,
    "syncBrokerMetadataPeriod": 2000,
}
# Several JVMs start at once on two cores.
eventually = partial(waiting.eventually, within_seconds=240.0)


@dataclass
class JavaRig:
    """NameServer and brokers by the name of their folder. `flags` apply to every JVM that starts from now on."""

    folder: Path
    flags: tuple[str, ...] = ()
    name_server: JavaProgram | None = None
    programs: dict[str, JavaProgram] = field(default_factory=dict)

    @property
    def name_server_address(self) -> str:
        """Return the address at which brokers register: a dead one without a NameServer."""
        return self.name_server.address if self.name_server is not None else java.NO_NAME_SERVER

    def start_name_server(self) -> JavaProgram:
        """Start a NameServer for brokers that start from now on; return when it listens."""
        self.name_server = java.start_name_server(self.folder / "namesrv", flags=self.flags)
        self.programs["namesrv"] = self.name_server
        return self.name_server.wait_until_listening()

    def start_broker(self, name: str, *, controllers: str, **extra: Any) -> JavaProgram:
        """Start a broker; a restart under the same name keeps its store and its identity."""
        self.programs[name] = java.start_broker(
            self.folder / name,
            controller_address=controllers,
            name_server_address=self.name_server_address,
            flags=self.flags,
            **(QUICK_BROKER | extra),
        )
        return self.programs[name]

    async def start_static_roles(self, master: str, slave: str, **extra: Any) -> None:
        """Start two brokers without a controller. The slave learns its master from the NameServer, so the master is there first."""
        for broker_id, name in enumerate((master, slave)):
            role = {"brokerId": broker_id, "brokerRole": "SLAVE" if broker_id else "SYNC_MASTER"}
            more = {"enableControllerMode": "false", **role, **extra}
            address = self.start_broker(name, controllers=NO_CONTROLLER, **more).address
            await eventually(partial(self.is_registered, address), f"{name} is registered\n{self.logs()}")

    async def start_pair(self, plane: ControllerPlane, **extra: Any) -> None:
        """Start two brokers under our plane, `one` and `two`; return when both are in sync."""
        for name in ("one", "two"):
            self.start_broker(name, controllers=plane.address, **extra)
        await eventually(lambda: in_sync(plane, 2), f"two brokers in sync\n{self.logs()}")

    async def is_registered(self, address: str) -> bool:
        """Whether the NameServer lists a broker at the address."""
        answer = await answer_to(self.name_server_address, request(RequestCode.GET_BROKER_CLUSTER_INFO))
        return address in (answer.body or b"").decode()

    def name_at(self, address: str) -> str:
        """Return the name of the program that listens there."""
        return next(name for name, program in self.programs.items() if program.address == address)

    def kill_at(self, address: str) -> str:
        """SIGKILL the program that listens there; returns its name."""
        name = self.name_at(address)
        self.programs[name].process.kill()
        return name

    async def kill_master(self, plane: ControllerPlane) -> str:
        """SIGKILL the group's master, and wait until another one is granted; returns the dead program's name."""
        before = record_of(plane).master_broker_id
        assert before is not None
        killed = self.kill_at(address_of(plane, before))
        await eventually(lambda: record_of(plane).granted_master_id not in (None, before), "another master")
        return killed

    def mqadmin(self, *arguments: str, signed_as: Credentials | None = None) -> str:
        """Return mqadmin's whole output, even on failure. Its credentials come from ``conf/tools.yml``."""
        folder = self.folder / f"mqadmin-{signed_as.access_key if signed_as is not None else 'nobody'}"
        (folder / "conf").mkdir(parents=True, exist_ok=True)
        if signed_as is not None:
            text = f"accessKey: {signed_as.access_key}\nsecretKey: {signed_as.secret_key}\n"
            (folder / "conf" / "tools.yml").write_text(text, encoding="utf-8")
        flags = (*self.flags, java.QUIET, f"-Drocketmq.namesrv.addr={self.name_server_address}")
        done = subprocess.run(
            [*java.java_command("mqadmin", folder, flags=flags), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=MQADMIN_SECONDS,
            check=False,
        )
        return done.stdout + done.stderr

    def log_of(self, name: str) -> str:
        """Return the program's output and its log."""
        folder = self.folder / name
        files = sorted({*folder.glob("*.log"), *folder.glob("logs/**/*.log")})
        return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in files)

    def logs(self) -> str:
        """Return the end of every program's output."""
        return "\n".join(f"--- {name}\n{program.process.tail()}" for name, program in self.programs.items())

    def stop(self) -> None:
        """Kill all running programs."""
        for program in self.programs.values():
            program.process.kill()


@asynccontextmanager
async def plane_beside(
    name_server: str,
    rules: ControllerSettings,
    *,
    observer: Observer | None = None,
    plane: dict[str, Any] | None = None,
    **group: Any,
) -> AsyncIterator[ControllerPlane]:
    """Start our controller in this process, for any group: `plane` are its settings, `group` the group's."""
    made = ControllerPlane(
        store=MemoryRecordStore(),
        directory=FixedDirectory(settings=rules, name_servers=(name_server,), **group),
        settings=PlaneSettings(listen_host=HOST, listen_port=0, **(plane or {})),
        observer=observer,
    )
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


def record_of(plane: ControllerPlane) -> BrokerGroupRecord:
    """Return the record of the one group."""
    return conftest.record_of(plane, KEY)


def address_of(plane: ControllerPlane, broker_id: int) -> str:
    """Return a member's address, by the record."""
    address = record_of(plane).address_of(broker_id)
    assert address is not None
    return address


def in_sync(plane: ControllerPlane, members: int) -> bool:
    """Whether a master was notified, and the SyncStateSet has this many members."""
    snapshot = plane.snapshot(KEY)
    if snapshot is None or snapshot.record is None:
        return False
    return snapshot.writable and len(snapshot.record.sync_state_set) == members
