"""Unmodified Java brokers 5.5.0 moved from a real Java controller to ours and back, while messages are sent.

To ours: the brokers list Java alone, so the cut waits until each has read its list again (up to two minutes). Then a master dies
under ours. Back: to a Java controller with an empty store, already listed but not running. Then a master dies under Java. Through
both moves: the same master, epoch, ids and set, and no failed send; at the end all acknowledged
messages exist.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.demo.client import DemoProducer, numbered_message, read_keys
from brokergroup_operator.migrate.java import (
    BrokerSaid,
    JavaCalls,
    JavaState,
    MigrationCallError,
    ask_brokers,
    read_state,
)
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import ResponseCode
from rocketmq_remoting.errors import RemotingError
from tests.real.parts import java
from tests.support.fake_broker import eventually
from tests.support.java_rig import JavaRig
from tests.support.places import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from tests.real.parts.java import JavaProgram

pytestmark = [pytest.mark.real("java", "rocketmq"), pytest.mark.timeout(420)]

HOST = "127.0.0.1"
NAME = "broker-a"
TOPIC = "numbered"
QUEUES = 4
REPLICAS = 3
DEADLINE_SECONDS = 90.0
REREAD_DEADLINE_SECONDS = 170.0
AFTER_A_MOVE_SECONDS = 12.0  # brokers look for the leader every 10 s: only then is the new controller really in use


@dataclass
class Sender(DemoProducer):
    """The producer, with the reason of every send that failed."""

    failed: list[str] = field(default_factory=list)

    async def _send_one(self, client: RemotingClient, address: str, queue_id: int) -> None:
        key = f"m{next(self._keys):08d}"
        began = time.time()
        try:
            message = numbered_message(key, broker_name=self.broker_name, topic=self.topic, queue_id=queue_id)
            answer = await client.invoke(address, message, timeout_seconds=self.send_timeout_seconds)
        except RemotingError as error:
            why = f"{type(error).__name__}: {error}"
        else:
            if answer.code == ResponseCode.SUCCESS:
                self.ledger.acknowledge(key, time.time())
                return
            why = f"code {answer.code}: {answer.remark}"
        self.ledger.fail()
        self.failed.append(f"{began:.3f} +{time.time() - began:.3f} s {address} {why}")


@dataclass
class Command:
    """`brokergroup ...` as a process, and the steps it told."""

    process: subprocess.Popen[bytes]
    log: Path

    def steps(self) -> list[dict[str, Any]]:
        lines = self.log.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines if line.startswith('{"at"')]

    def told(self, step: str) -> dict[str, Any] | None:
        if self.process.poll() not in (None, 0):
            pytest.fail(f"ended with {self.process.returncode}:\n{self.log.read_text(encoding='utf-8')[-3000:]}")
        return next((one for one in self.steps() if one["step"] == step), None)

    async def stop(self) -> None:
        self.process.terminate()
        await asyncio.to_thread(self.process.wait, 20.0)


@dataclass
class Lab(JavaRig):
    """Java brokers, controllers, and a producer that follows the NameServer."""

    calls: JavaCalls = field(kw_only=True)
    commands: list[Command] = field(default_factory=list)
    master_address: str | None = None

    def start_member(self, name: str, controllers: str) -> None:
        self.start_broker(
            name,
            controllers=controllers,
            # Java's own period.
            brokerHeartbeatInterval=1000,
            allAckInSyncStateSet="true",
            inSyncReplicas=2,
            minInSyncReplicas=2,
            # A busy machine must look neither like a failed move nor like a dead broker.
            waitTimeMillsInSendQueue=20000,
            controllerHeartBeatTimeoutMills=30000,
            osPageCacheBusyTimeOutMills=20000,
        )

    def brokergroup(self, *arguments: str) -> Command:
        log = self.folder / f"brokergroup-{len(self.commands)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "brokergroup_operator.cli.main", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
        self.commands.append(Command(process, log))
        return self.commands[-1]

    async def state(self, controller: str) -> JavaState | None:
        with contextlib.suppress(MigrationCallError):
            return await read_state(self.calls, controller, NAME)
        return None

    async def settled(self, controller: str, members: int) -> JavaState | None:
        """The state, once so many are in sync and the master knows it."""
        state = await self.state(controller)
        if state is None or state.master_broker_id is None or len(state.sync_state_set) != members:
            return None
        master = (await ask_brokers(self.calls, state.addresses))[state.master_broker_id]
        knows = isinstance(master, BrokerSaid) and master.acts_as_master and master.in_sync_slaves == members - 1
        return state if knows else None

    async def follow_route(self) -> None:
        while True:
            with contextlib.suppress(MigrationCallError):
                info = await self.calls.clusters(self.name_server_address)
                data = info.broker_addr_table.get(NAME)
                self.master_address = data.broker_addrs.get(0) if data is not None else None
            await asyncio.sleep(0.2)


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    client = RemotingClient()
    built = Lab(tmp_path, calls=JavaCalls(client))
    await asyncio.to_thread(built.start_name_server)
    yield built
    for command in built.commands:
        if command.process.poll() is None:
            command.process.kill()
            command.process.wait()
    built.stop()
    await client.close()


def start_controller_at(lab: Lab, name: str, port: int) -> JavaProgram:
    program = java.start_controller(lab.folder / name, host=HOST, controllerDLegerPeers=f"n0-{HOST}:{port}")
    moved = java.JavaProgram(program.process, HOST, port)
    lab.programs[name] = moved
    return moved


def same(before: JavaState, after: JavaState) -> None:
    """Check that all values on which brokers act are unchanged."""
    assert (after.master_broker_id, after.master_epoch) == (before.master_broker_id, before.master_epoch)
    assert after.addresses == before.addresses
    assert after.sync_state_set == before.sync_state_set
    assert after.sync_state_set_epoch >= before.sync_state_set_epoch


@dataclass
class Move:
    """The addresses of one migration, the producer that sends all the while, and what was measured."""

    lab: Lab
    first: JavaProgram
    second_port: int
    ours: str
    producer: Sender
    measured: dict[str, Any] = field(default_factory=dict)

    @property
    def groups(self) -> tuple[str, ...]:
        return ("--name-server", self.lab.name_server_address, "--broker-name", NAME)

    @property
    def home(self) -> tuple[str, ...]:
        return ("--store", f"file:{self.lab.folder / 'records'}", "--listen", self.ours)

    @property
    def list_afterwards(self) -> str:
        return f"{self.ours};{HOST}:{self.second_port}"

    def note(self, name: str, before: JavaState, command: Command, since: str, until: str) -> None:
        steps = {one["step"]: one["at"] for one in command.steps()}
        self.measured[name] = {
            "master": before.master_broker_id,
            "epoch": before.master_epoch,
            "without_controller_seconds": round(steps[until] - steps[since], 1),
            "acknowledged": len(self.producer.ledger.acknowledgements),
            "failed_sends": self.producer.ledger.failures,
        }


async def nothing_is_in_the_way(move: Move) -> JavaState:
    """`migrate plan` finds no doubt that blocks; returns the state it found."""

    async def clear() -> JavaState | None:
        plan = move.lab.brokergroup("migrate", "plan", "--controller", move.first.address, *move.groups, "-o", "json")
        code = await asyncio.to_thread(plan.process.wait, 60.0)
        return await move.lab.settled(move.first.address, REPLICAS) if code == 0 else None

    found = await eventually(clear, what="a plan without a doubt", within_seconds=DEADLINE_SECONDS)
    assert isinstance(found, JavaState)
    return found


async def to_ours(move: Move) -> tuple[Command, JavaState]:
    """The cut: Java is stopped when the command requests it, without any other step."""
    before = await nothing_is_in_the_way(move)
    lab, failures = move.lab, move.producer.ledger.failures
    cut = lab.brokergroup(
        *("migrate", "cut-over", "--controller", move.first.address, *move.groups, *move.home),
        *("--controller-list", move.list_afterwards, "--yes"),
    )
    await eventually(lambda: cut.told("follow"), what="the cut follows Java", within_seconds=DEADLINE_SECONDS)
    await asyncio.to_thread(move.first.process.stop)
    await eventually(lambda: cut.told("leading"), what="ours leads", within_seconds=REREAD_DEADLINE_SECONDS)
    await asyncio.sleep(AFTER_A_MOVE_SECONDS)
    after = await eventually(
        lambda: lab.settled(move.ours, REPLICAS), what="three in sync under ours", within_seconds=DEADLINE_SECONDS
    )
    same(before, after)
    assert move.producer.failed[failures:] == [], "a send failed while the group moved to ours"
    move.note("to ours", before, cut, since="stopped", until="leading")
    return cut, after


async def fail_over_under_ours(move: Move, before: JavaState) -> JavaState:
    """The master dies by SIGKILL, another takes over, and the dead one comes back under its own id."""
    lab = move.lab
    assert before.master_broker_id is not None
    dead = lab.kill_at(before.addresses[before.master_broker_id])
    after = await eventually(
        lambda: lab.settled(move.ours, REPLICAS - 1), what="another master", within_seconds=DEADLINE_SECONDS
    )
    assert after.master_broker_id in before.sync_state_set - {before.master_broker_id}
    assert after.master_epoch == before.master_epoch + 1
    lab.start_member(dead, move.list_afterwards)
    whole: JavaState = await eventually(
        lambda: lab.settled(move.ours, REPLICAS), what="the dead broker back in sync", within_seconds=DEADLINE_SECONDS
    )
    assert set(whole.addresses) == set(before.addresses)
    assert whole.master_epoch == after.master_epoch
    return whole


async def back_to_java(move: Move, cut: Command, before: JavaState) -> tuple[JavaProgram, JavaState]:
    """Ours is stopped, a Java controller with an empty store is started, and the command does the rest."""
    lab, ledger = move.lab, move.producer.ledger
    acknowledged = len(ledger.acknowledgements)
    await eventually(
        lambda: len(ledger.acknowledgements) > acknowledged + 50,
        what="messages sent under ours",
        within_seconds=DEADLINE_SECONDS,
    )
    failures = ledger.failures
    await cut.stop()
    second = start_controller_at(lab, "java-2", move.second_port)
    await asyncio.to_thread(second.wait_until_listening)
    back = lab.brokergroup("migrate", "back", "--controller", second.address, *move.groups, *move.home, "--yes")
    await eventually(lambda: back.told("done"), what="Java leads", within_seconds=REREAD_DEADLINE_SECONDS)
    await asyncio.sleep(AFTER_A_MOVE_SECONDS)
    after = await eventually(
        lambda: lab.settled(second.address, REPLICAS), what="three in sync under Java", within_seconds=DEADLINE_SECONDS
    )
    same(before, after)
    assert move.producer.failed[failures:] == [], "a send failed while the group moved back"
    move.note("back", before, back, since="verified", until="done")
    return second, after


async def fail_over_under_java(move: Move, controller: JavaProgram, before: JavaState) -> BrokerSaid:
    """The master dies, and the Java controller finds another by itself."""
    lab = move.lab
    assert before.master_broker_id is not None
    lab.kill_at(before.addresses[before.master_broker_id])

    async def other_master() -> BrokerSaid | None:
        state = await lab.state(controller.address)
        if state is None or state.master_broker_id in (None, before.master_broker_id):
            return None
        said = (await ask_brokers(lab.calls, state.addresses))[state.master_broker_id]
        return said if isinstance(said, BrokerSaid) and said.acts_as_master else None

    found = await eventually(other_master, what="another master under Java", within_seconds=DEADLINE_SECONDS)
    assert isinstance(found, BrokerSaid)
    return found


async def test_a_group_moves_to_ours_and_back_while_messages_are_sent(
    lab: Lab, record_property: Callable[[str, object], None]
) -> None:
    first = start_controller_at(lab, "java-1", free_port(HOST))
    await asyncio.to_thread(first.wait_until_listening)
    for name in ("one", "two", "three"):
        lab.start_member(name, first.address)
    await eventually(
        lambda: lab.settled(first.address, REPLICAS), what="three in sync under Java", within_seconds=DEADLINE_SECONDS
    )
    producer = Sender(
        route=lambda: lab.master_address, broker_name=NAME, topic=TOPIC, pause_seconds=0.05, send_timeout_seconds=5.0
    )
    stop = asyncio.Event()
    sending = asyncio.create_task(producer.run(stop))
    following = asyncio.create_task(lab.follow_route())
    move = Move(lab, first, free_port(HOST), f"{HOST}:{free_port(HOST)}", producer)
    await eventually(
        lambda: len(producer.ledger.acknowledgements) > 200, what="messages sent", within_seconds=DEADLINE_SECONDS
    )

    cut, under_ours = await to_ours(move)
    whole = await fail_over_under_ours(move, under_ours)
    second, under_java = await back_to_java(move, cut, whole)
    last = await fail_over_under_java(move, second, under_java)

    stop.set()
    await sending
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    record_property("migration", json.dumps(move.measured))
    print(json.dumps({"migration": move.measured}))
    keys = await read_keys(last.address, TOPIC, QUEUES)
    assert producer.ledger.missing_from(keys) == []
