"""The two controllers of a comparison, both over TCP: Java's, and our plane in this process on a real socket."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from brokergroup_operator.controller.detect import record_watch
from brokergroup_operator.controller.directory.group_directory import FixedDirectory
from brokergroup_operator.controller.group.elections import may_have_acting_masters
from brokergroup_operator.controller.plane import ControllerPlane
from brokergroup_operator.controller.settings import PlaneSettings, SecuritySettings
from brokergroup_operator.records.memory import MemoryRecordStore
from brokergroup_operator.records.store import GroupKey
from controller_core.decision import ControllerCode
from controller_core.requests import ElectMaster
from controller_core.step import step as decide
from rocketmq_remoting.command import RemotingCommand, SerializeType, request
from rocketmq_remoting.connection import RemotingConnection
from rocketmq_remoting.limits import ConnectionSettings
from tests.differential.canonical import Shift, shifted_request
from tests.real.parts.java import JavaProgram, start_controller

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from brokergroup_operator.controller.group.group import Group
    from controller_core.model import BrokerGroupRecord
    from tests.differential.language import Step

DEADLINE_SECONDS = 20.0
HEARTBEAT_TIMEOUT_MS = 3_600_000
NAMESPACE = "standalone"

# No timer may fire in a comparison: the heartbeat timeout is an hour, scans are a day apart, other waits are zero. A master whose
# connection closes was heard a moment before. The rescan is negative, so that a group's members count as heard at once.
OUR_SETTINGS = PlaneSettings(
    listen_host="127.0.0.1",
    listen_port=0,
    controller_group="tests",
    tick_seconds=0.02,
    rest_seconds=1.0,
    pause_threshold_seconds=3600.0,
    heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT_MS / 1000,
    broker_rescan_seconds=-HEARTBEAT_TIMEOUT_MS / 1000,
    startup_timeout_seconds=2 * HEARTBEAT_TIMEOUT_MS / 1000,
    no_successor_patience_seconds=0.0,
    first_heartbeat_seconds=0.0,
    # Also on a slow machine longer than the pause between two questions (1007) to one member.
    fresh_report_seconds=record_watch.LONGEST_PAUSE_SECONDS + 0.5,
    set_apart_seconds=3600.0,
    security=SecuritySettings(
        open_admin=True,
        brokers_without_pods=True,
        max_unknown_connections=100_000,
        max_unknown_connections_per_host=100_000,
    ),
    answer_deadline_seconds=15.0,
    record_deadline_seconds=10.0,
)
JAVA_OPTIONS: dict[str, str | int] = {
    "scanNotActiveBrokerInterval": 86_400_000,
    "scanInactiveMasterInterval": 86_400_000,
}

WIRE_NAMES = {
    "1001": {"master": "masterBrokerId", "epoch": "masterEpoch"},
    "1002": {"id": "brokerId", "designate": "designateElect"},
    "1003": {"id": "brokerId", "address": "brokerAddress"},
    "1011": {"ids": "brokerControllerIdsToClean", "living": "isCleanLivingBroker"},
    "1012": {},
    "1013": {"id": "appliedBrokerId", "check": "registerCheckCode"},
    "1004": {},
    "heartbeat": {
        "id": "brokerId",
        "address": "brokerAddr",
        "epoch": "epoch",
        "maxOffset": "maxOffset",
        "priority": "electionPriority",
        "timeout": "heartbeatTimeoutMills",
    },
}
WITHOUT_CLUSTER = frozenset({"1001", "1004"})
WITHOUT_FIELDS = frozenset({"1005", "1006", "1009", "1010"})
RAW_BODIES = {
    "none": None,
    "garbage": b"{not json",
    "null": b"null",
    "empty": b"[]",
    "noset": b'{"syncStateSetEpoch":1}',
}


class Connections:
    """The connections of one sequence to one controller, by purpose."""

    def __init__(self, address: str) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._connections: dict[str, RemotingConnection] = {}

    async def get(self, purpose: str) -> RemotingConnection:
        connection = self._connections.get(purpose)
        if connection is None or not connection.is_open:
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: RemotingConnection(handler=None, settings=ConnectionSettings(idle_timeout_seconds=3600.0)),
                self._host,
                self._port,
            )
            self._connections[purpose] = connection
        return connection

    async def close(self, purpose: str) -> None:
        connection = self._connections.pop(purpose, None)
        if connection is not None:
            connection.close()
            await connection.wait_closed()

    async def close_all(self) -> None:
        for purpose in list(self._connections):
            await self.close(purpose)


def command_of(step: Step, shift: Shift, prefix: str) -> RemotingCommand:
    """Return a resolved step's request, still with canonical addresses."""
    code = 904 if step.verb == "heartbeat" else int(step.verb)
    return request(
        code,
        ext_fields=None
        if step.verb in WITHOUT_FIELDS or step.get("fields") == "none"
        else _fields(step, shift, prefix),
        body=_body(step, shift, prefix),
        oneway=step.get("oneway") == "true",
        serialize_type=SerializeType.ROCKETMQ if step.binary else SerializeType.JSON,
    )


def _fields(step: Step, shift: Shift, prefix: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    if step.name is not None:
        fields["brokerName"] = f"{prefix}{step.name}"
    if step.cluster is not None and step.verb not in WITHOUT_CLUSTER:
        fields["clusterName"] = step.cluster
    for key, wire_name in WIRE_NAMES.get(step.verb, {}).items():
        value = step.get(key)
        if value is not None and value != "null":
            shifts = step.verb == "1001" and key == "epoch"
            fields[wire_name] = shifted_request(value, shift.epoch) if shifts else value
    if step.verb == "heartbeat":
        fields.setdefault("heartbeatTimeoutMills", str(HEARTBEAT_TIMEOUT_MS))
    return fields


def _body(step: Step, shift: Shift, prefix: str) -> bytes | None:
    raw = step.get("body")
    if raw in RAW_BODIES:
        return RAW_BODIES[raw]
    if step.verb == "1006":
        names = [part for part in (step.get("names") or "bn").split(",") if part]
        return json.dumps([f"{prefix}{name}" for name in names]).encode()
    if step.verb == "1001":
        members: list[int] | list[str] = list(step.members())
        if raw == "strings":
            members = [str(one) for one in members]
        set_epoch = int(shifted_request(step.get("setEpoch") or "0", shift.set_epoch))
        return json.dumps({"syncStateSet": members, "syncStateSetEpoch": set_epoch}).encode()
    if step.verb == "1009":
        return (step.get("text") or "").replace(",", "\n").encode() or None
    return None


class JavaSide:
    """A real Java controller."""

    name = "java"

    def __init__(self, program: JavaProgram, version: str) -> None:
        self.program = program
        self.version = version
        self.address = program.address


class OurSide:
    """Our plane in this process."""

    name = "ours"

    def __init__(self, plane: ControllerPlane) -> None:
        self.plane = plane
        self.address = plane.address

    async def idle(self, wire_name: str, answers: Callable[[str], bool]) -> None:
        """Wait until the group is idle: no change of master, and no pending report of its disks.

        Also if the change waits for a member that does not answer 1007, because the record went back in time: here for an hour.
        """
        deadline = asyncio.get_running_loop().time() + DEADLINE_SECONDS
        group = self.plane._groups.get(GroupKey(NAMESPACE, wire_name))
        while group is not None and (
            under_way := [task for task in (group.holdings.report, group.master_change) if task and not task.done()]
        ):
            if under_way == [group.master_change] and _waits_for_the_mute(group, answers):
                return
            if asyncio.get_running_loop().time() > deadline:
                raise AssertionError(f"{wire_name}: {under_way} do not end")
            await asyncio.wait(under_way, timeout=0.1)
            await asyncio.sleep(0)

    async def heard(self, wire_name: str, answers: Callable[[str], bool]) -> None:
        """Wait until a group without a master has heard anew (1007) all living members that answer."""
        deadline = asyncio.get_running_loop().time() + DEADLINE_SECONDS
        group = self.plane._groups.get(GroupKey(NAMESPACE, wire_name))
        while group is not None and group.record is not None and group.record.granted_master_id is None:
            asked = [address for address in record_watch._stale(group).values() if answers(address)]
            if not asked or group.record.is_first_election:
                return
            if asyncio.get_running_loop().time() > deadline:
                raise AssertionError(f"{wire_name}: {asked} are not heard")
            await asyncio.sleep(0.005)

    def will_elect(self, wire_name: str) -> bool:
        """Whether the plane has elected, or will elect in its next pass over the group."""
        group = self.plane._groups.get(GroupKey(NAMESPACE, wire_name))
        if group is None or group.record is None:
            return False
        if group.record.granted_master_id is not None:
            return True
        is_first = group.record.is_first_election and group.record.master_epoch == 0
        if is_first or not self.plane._watch.is_warm(group):
            return False
        decision = decide(group.record, ElectMaster(), group.live(), group.binding.settings)
        return decision.code == ControllerCode.SUCCESS  # else a living member must be heard first

    def record(self, wire_name: str) -> BrokerGroupRecord | None:
        """Return our store's record of a group."""
        snapshot = self.plane.snapshot(GroupKey(NAMESPACE, wire_name))
        return snapshot.record if snapshot is not None else None


def _waits_for_the_mute(group: Group, answers: Callable[[str], bool]) -> bool:
    """Whether only members are unheard that do not answer, in a group whose record went back in time."""
    record, mute = group.record, record_watch._stale(group).values()
    recovers = record is not None and record.granted_master_id is None and may_have_acting_masters(group, record)
    return recovers and bool(mute) and not any(map(answers, mute))


@asynccontextmanager
async def java_side(folder: Path, version: str, **options: str | int) -> AsyncIterator[JavaSide]:
    """Start a Java controller and wait until it leads; stop it afterwards."""
    program = start_controller(folder, version=version, **{**JAVA_OPTIONS, **options})  # type: ignore[arg-type]
    try:
        await asyncio.to_thread(program.wait_until_listening)
        side = JavaSide(program, version)
        connections = Connections(side.address)
        deadline = asyncio.get_running_loop().time() + 60
        while True:
            connection = await connections.get("rpc")
            fields = {"clusterName": "cl", "brokerName": "is-it-leader"}
            answer = await connection.invoke(request(1012, ext_fields=fields), timeout_seconds=DEADLINE_SECONDS)
            if answer.code == 0:
                break
            if asyncio.get_running_loop().time() > deadline:
                raise AssertionError(f"the Java controller does not lead: {answer}")
            await asyncio.sleep(0.05)
        await connections.close_all()
        yield side
    finally:
        await asyncio.to_thread(program.process.stop)


@asynccontextmanager
async def our_side(**changes: Any) -> AsyncIterator[OurSide]:
    """Start a plane of ours with an empty store; `changes` are settings."""
    plane = ControllerPlane(
        store=MemoryRecordStore(),
        directory=FixedDirectory(namespace=NAMESPACE),
        settings=replace(OUR_SETTINGS, **changes),
    )
    await plane.start()
    try:
        yield OurSide(plane)
    finally:
        await plane.stop()
