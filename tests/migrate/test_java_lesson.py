"""Real Java controllers taught every kind of record, with no broker but its heartbeats.

The basis of the way back: epochs are reached exactly, no election while brokers arrive or when the teacher leaves,
and afterwards the controller fails over by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.migrate.java import JavaCalls, JavaState, Metadata, MigrationCallError, record_of, state_of
from brokergroup_operator.migrate.teach import NOTIFY, UNCLEAN, Teacher, make_lesson
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.command import request
from rocketmq_remoting.controller_protocol import BrokerHeartbeatRequestHeader
from rocketmq_remoting.errors import RemotingError
from tests.real.parts import install, java
from tests.support.fake_broker import eventually

if TYPE_CHECKING:
    from pathlib import Path

# Of a parameter alone, the mark `real` comes after the choice of the loop.
pytestmark = [pytest.mark.timeout(180), pytest.mark.real_time]

EPOCHS = [(1, 1), (1, 4), (2, 2), (2, 9), (3, 4), (3, 5), (25, 40)]
SCANS_SECONDS = 11.0  # Java looks for masters that are not heard every 5 s
VERSIONS = [
    pytest.param(install.ROCKETMQ_VERSION, marks=pytest.mark.real("java", "rocketmq")),
    pytest.param(install.OLDER_CONTROLLER_VERSION, marks=pytest.mark.real("java", "older-java-controller")),
]


class Beats:
    """Three brokers of a group as a controller hears them: each on a connection of its own."""

    def __init__(self, controller: str, state: JavaState) -> None:
        self._controller = controller
        self._state = state
        self._tasks = {broker_id: asyncio.create_task(self._beat(broker_id)) for broker_id in state.addresses}

    async def _beat(self, broker_id: int) -> None:
        client = RemotingClient()
        header = BrokerHeartbeatRequestHeader(
            cluster_name="cl",
            broker_name=self._state.broker_name,
            broker_addr=self._state.addresses[broker_id],
            broker_id=broker_id,
            epoch=self._state.master_epoch,
            max_offset=100,
            confirm_offset=100,
        )
        command = request(RequestCode.BROKER_HEARTBEAT, ext_fields=header.encode(), oneway=True)
        try:
            while True:
                with contextlib.suppress(RemotingError):
                    await client.invoke_oneway(self._controller, command, timeout_seconds=2.0)
                await asyncio.sleep(0.5)
        finally:
            await client.close()

    async def die(self, broker_id: int) -> None:
        task = self._tasks[broker_id]
        task.cancel()
        await asyncio.wait([task])

    async def stop(self) -> None:
        for broker_id in self._tasks:
            await self.die(broker_id)


def state_to_teach(epoch: int, set_epoch: int) -> JavaState:
    return JavaState(
        broker_name=f"bn-{epoch}-{set_epoch}",
        addresses={broker_id: f"127.0.0.1:{broker_id + 1}" for broker_id in (1, 2, 3)},
        master_broker_id=2,
        master_epoch=epoch,
        sync_state_set=frozenset({1, 2, 3}),
        sync_state_set_epoch=set_epoch,
    )


async def leader_of(calls: JavaCalls, controller: str) -> Metadata | None:
    with contextlib.suppress(MigrationCallError):
        metadata = await calls.metadata(controller)
        return metadata if metadata.leader is not None else None
    return None


async def state_now(teacher: Teacher, name: str) -> JavaState:
    return state_of(name, await teacher.state(name))


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_java_controller_is_taught_exactly(tmp_path: Path, version: str) -> None:
    controller = java.start_controller(tmp_path / "controller", version=version)
    client = RemotingClient()
    groups: list[Beats] = []
    try:
        await asyncio.to_thread(controller.wait_until_listening)
        calls = JavaCalls(client)
        metadata = await eventually(lambda: leader_of(calls, controller.address), what="a leader", within_seconds=60.0)
        teacher = Teacher(calls, leader=metadata.leader, peers=metadata.peers)
        states = [state_to_teach(*each) for each in EPOCHS]
        lessons = [make_lesson(record_of(state, cluster_name="cl", next_broker_id=4)) for state in states]
        async with teacher.silent():
            for lesson in lessons:
                await teacher.prepare(lesson)
            groups += [Beats(controller.address, state) for state in states]
            await asyncio.sleep(SCANS_SECONDS)
            for lesson in lessons:
                waiting = await state_now(teacher, lesson.broker_name)
                assert waiting.alive >= {1, 2, 3}
                assert (waiting.master_broker_id, waiting.master_epoch) == (None, lesson.epoch_while_waiting)
            for lesson in lessons:
                await teacher.finish(lesson)
        await asyncio.sleep(SCANS_SECONDS)
        for state in states:
            taught = await state_now(teacher, state.broker_name)
            assert (taught.master_broker_id, taught.master_epoch) == (2, state.master_epoch)
            assert (taught.addresses, taught.sync_state_set) == (state.addresses, state.sync_state_set)
            least = 3 if state.master_epoch > 1 else 2  # two elections and the set, or one and the set
            assert taught.sync_state_set_epoch == max(state.sync_state_set_epoch, least)
            assert await calls.next_broker_id(metadata.leader, cluster_name="cl", broker_name=state.broker_name) == 5
        configuration = await calls.controller_configuration(metadata.leader)
        assert (configuration[NOTIFY], configuration[UNCLEAN]) == ("true", "false")
        for group, state in zip(groups, states, strict=True):
            await group.die(2)

            async def failed_over(name: str = state.broker_name) -> JavaState | None:
                now = await state_now(teacher, name)
                return now if now.master_broker_id in (1, 3) else None

            after = await eventually(failed_over, what="another master", within_seconds=30.0)
            assert after.master_epoch == state.master_epoch + 1
    finally:
        for group in groups:
            await group.stop()
        await client.close()
        controller.process.kill()
