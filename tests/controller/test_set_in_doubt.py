"""Which member is elected after a silent master: its SyncStateSet is in doubt, so the living members are asked what they hold."""

import asyncio
from typing import Any

import pytest

from brokergroup_operator.controller.peers.broker_calls import BrokerCalls
from brokergroup_operator.controller.settings import PlaneSettings
from brokergroup_operator.observe.timeline import Outcome
from controller_core.liveness import HeartbeatTable
from rocketmq_remoting.broker_protocol import EpochCacheBody, EpochEntry
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.command import RemotingCommand
from rocketmq_remoting.connection import RemotingConnection
from rocketmq_remoting.server import RemotingServer
from tests.controller.conftest import record_of, snapshot_of
from tests.controller.world import KEY, Fencer, World
from tests.support.fake_broker import FakeBroker, eventually
from tests.support.quiet_handler import QuietHandler


@pytest.mark.usefixtures("loop_clock")
@pytest.mark.parametrize("answers", [True, False], ids=["1007", "heartbeats alone"])
@pytest.mark.parametrize("silent", [True, False], ids=["a silent master", "a dead one"])
async def test_after_a_silent_master_the_most_data_wins_also_outside_the_set(
    group: World, monkeypatch: pytest.MonkeyPatch, silent: bool, answers: bool
) -> None:
    """Simulation, seed 1736: cut off from all planes, the master took 3 into its set again, and acknowledged with it alone.

    A master that was heard until it died had said so.
    """
    monkeypatch.setattr(FakeBroker, "answers_end_of_log", answers)
    plane, (first, second, third) = await group.three_under(fencer=Fencer(group))
    first.linked.discard(3)
    await first.propose_set()
    assert record_of(plane).sync_state_set == {1, 2}
    second.max_offset, third.max_offset = 115, 126
    if silent:
        first.freeze()
    else:
        await first.kill()
    await eventually(lambda: second.is_master or third.is_master, what="another master")
    assert group.master() is (third if silent else second)


async def test_what_a_silent_master_acknowledged_until_its_fence_counts(group: World) -> None:
    """The members were heard after the silence began, and copied more before the fence killed the master.

    It is cut off: no connection of it closes here when it dies.
    """
    fencer = Fencer()
    fencer.open.clear()
    plane, (first, second, third) = await group.three_under(fencer=fencer)
    second.max_offset, third.max_offset = 115, 100
    first.freeze()
    await eventually(
        lambda: fencer.fenced and all(snapshot_of(plane).live[one].fresh for one in (2, 3)),
        what="both to be heard anew",
    )
    third.silent, third.max_offset = True, 126
    fencer.open.set()
    await eventually(lambda: second.is_master or third.is_master, what="another master")
    assert group.master() is third


async def test_an_answer_to_a_question_from_before_a_loss_is_not_taken(
    group: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another member is lost while the question is under way: the member is asked again."""
    plane, (first, _, third) = await group.three_under()
    await third.kill()
    await eventually(lambda: set(snapshot_of(plane).live) == {1, 2}, what="one slave to be lost")
    found, report, end_of_log = plane._groups.get(KEY), HeartbeatTable.reported, BrokerCalls.end_of_log
    assert found is not None
    asked, taken = [], []

    async def lost_meanwhile(calls: BrokerCalls, *asked_for: Any) -> object:
        answer = await end_of_log(calls, *asked_for)
        asked.append(asked_for[-1])
        if len(asked) == 1:
            found.table.ask_anew(asyncio.get_running_loop().time())
        return answer

    def reported(table: HeartbeatTable, broker_id: int, *, epoch: int, max_offset: int) -> None:
        taken.append(broker_id)
        report(table, broker_id, epoch=epoch, max_offset=max_offset)

    monkeypatch.setattr(BrokerCalls, "end_of_log", lost_meanwhile)
    monkeypatch.setattr(HeartbeatTable, "reported", reported)
    await first.kill()
    await eventually(lambda: record_of(plane).granted_master_id == 2, what="another master")
    assert (asked, taken) == ([2, 2], [2])


@pytest.mark.parametrize(
    ("cluster_name", "broker_name", "shown_id", "epochs", "found"),
    [
        ("cl", "bn", 2, (1, 3), (3, 70)),
        ("cl", "bn", 0, (1, 3), (3, 70)),
        ("cl", "bn", -1, (), (-1, 70)),
        ("cl", "bn", 3, (3,), None),
        ("cl", "other", 2, (3,), None),
        ("other", "bn", 2, (3,), None),
        ("cl", "bn", 2, (2**40,), None),
    ],
    ids=[
        "itself",
        "as the master that it was",
        "an empty disk without a role",
        "another member",
        "another group",
        "another cluster",
        "no epoch",
    ],
)
async def test_only_the_member_itself_says_what_it_holds(
    client: RemotingClient,
    cluster_name: str,
    broker_name: str,
    shown_id: int,
    epochs: tuple[int, ...],
    found: object,
) -> None:
    """Another broker may listen at its address by now (safety rule 8)."""
    answer = EpochCacheBody(
        cluster_name=cluster_name,
        broker_name=broker_name,
        broker_id=shown_id,
        epoch_list=tuple(EpochEntry(epoch=epoch) for epoch in epochs),
        max_offset=70,
    )

    class Answers(QuietHandler):
        def handle(self, command: RemotingCommand, connection: RemotingConnection) -> RemotingCommand:
            return command.answer(0, body=answer.encode())

    server = RemotingServer(Answers())
    await server.start("127.0.0.1", 0)
    calls = BrokerCalls(client, PlaneSettings())
    assert await calls.end_of_log(server.address, "cl", "bn", 2) == found
    await server.stop()
    assert await calls.end_of_log(server.address, "cl", "bn", 2) is None


class Mute(FakeBroker):
    """A process of the group that registers, and does not answer what it holds."""

    answers_end_of_log = False

    async def register_again_and_again(self) -> None:
        await self._server.start(self.host, 0)
        while True:
            await self.ask_to_register()
            await asyncio.sleep(0.3)


@pytest.mark.usefixtures("loop_clock")
@pytest.mark.parametrize("silent", [True, False], ids=["a silent master", "no master"])
async def test_a_member_that_never_reports_is_waited_for_as_long_as_a_silent_one(group: World, silent: bool) -> None:
    """It registers again and again. An election without a winner would be an incident at every tick."""
    plane, (first, second, third) = await group.three_under(fencer=Fencer(group))
    await third.kill()
    await first.propose_set()
    if not silent:
        await second.kill()
        await first.kill()
        await eventually(lambda: record_of(plane).granted_master_id is None, what="no master")
    mute, epoch, told = Mute(group, broker_id=3), record_of(plane).master_epoch, len(group.notes.closed)
    registering = asyncio.create_task(mute.register_again_and_again())
    await eventually(lambda: 3 in snapshot_of(plane).live, what="the mute one to register")
    if silent:
        first.freeze()
    else:
        await second.restarted()
    await eventually(
        lambda: record_of(plane).granted_master_id not in (None, *([1] if silent else [])), what="a master"
    )
    assert record_of(plane).master_epoch == epoch + 1
    await eventually(lambda: not silent or len(group.notes.closed) > told, what="the incident to be closed")
    assert [one.outcome for one in group.notes.closed[told:]] == ([Outcome.COMPLETED] if silent else [])
    registering.cancel()


@pytest.mark.usefixtures("loop_clock")
async def test_all_brokers_that_start_again_need_only_their_first_heartbeats(group: World) -> None:
    """A starting Java broker heartbeats once, then every 5 s, and opens its port late: nothing else says what it holds."""
    plane, brokers = await group.three_under()
    for broker in reversed(brokers):
        await broker.kill()
    await eventually(lambda: record_of(plane).granted_master_id is None, what="no master")
    await asyncio.sleep(1.0)

    async def start(broker_id: int) -> None:
        starting = Mute(group, broker_id=broker_id, epoch_file=1)
        await starting._server.start(starting.host, 0)
        await starting.ask_to_register()
        await starting.heartbeat()

    for broker in brokers:
        await start(broker.broker_id)
    clock = asyncio.get_running_loop().time
    began_seconds = clock()
    await eventually(lambda: record_of(plane).granted_master_id, what="a master")
    assert clock() - began_seconds < 0.25, "virtual time: one tick, not a second heartbeat"


async def test_a_member_that_lacks_what_the_winner_has_is_not_eligible_after_it(group: World) -> None:
    """Seed 1736, continued: the winner from outside the set dies, the old master comes back blank."""
    plane, (first, second, third) = await group.three_under(fencer=Fencer(group), mark_pause_seconds=0.0)
    group.write(1000)
    await eventually(lambda: record_of(plane).replicas[2].held_offset > 0, what="the members' marks")
    third.ignores_ha_pushes_for_ever = True
    first.linked.discard(3)
    await first.propose_set()
    second.max_offset, third.max_offset = 1015, 1026
    third.role_change_waits = asyncio.Event()  # no slave can come into its set meanwhile
    first.freeze()
    await eventually(lambda: record_of(plane).granted_master_id == 3, what="another master")
    assert record_of(plane).eligible == {1}
