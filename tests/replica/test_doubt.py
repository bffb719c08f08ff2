"""What a master does not know counts against it: a change that may have been granted, an answer that may be old."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from rocketmq_remoting.codes import RequestCode, ResponseCode
from tests.replica.support import Client, FakeController, Starter, eventually

if TYPE_CHECKING:
    from rocketmq_replica.role_change import GroupInfo


@pytest.mark.parametrize(
    "code", [ResponseCode.SYSTEM_ERROR, ResponseCode.CONTROLLER_JRAFT_INTERNAL_ERROR, ResponseCode.SUCCESS]
)
async def test_an_error_that_does_not_say_that_1001_was_refused_leaves_its_outcome_open(
    start: Starter, controller: FakeController, client: Client, code: ResponseCode
) -> None:
    """A controller that says "not decided in time" may commit a moment later: the larger set may be the one that counts."""
    one = await start("r1", slaveTimeout=400, syncBrokerMetadataPeriod=60_000)
    await eventually(lambda: one.role == "MASTER")
    controller.granted_but_answered[RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET] = code
    controller.silent = {RequestCode.CONTROLLER_GET_REPLICA_INFO}
    two = await start("r2", slaveTimeout=400)
    await eventually(lambda: controller.members == {1, 2})
    two.process.ha_client.leave()
    await eventually(lambda: not one.process.ha_server.connections)
    assert one.term.sync_state.members == {1}
    assert (await client.send(one.address, b"one copy")).code == ResponseCode.FLUSH_SLAVE_TIMEOUT


async def test_an_answer_to_a_question_from_before_the_pause_confirms_nothing(
    start: Starter, controller: FakeController, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited in the socket's buffer while somebody else may have been elected."""
    one = await start("r1", slaveTimeout=10_000)
    await eventually(lambda: one.role == "MASTER")
    await start("r2", slaveTimeout=10_000)
    await eventually(lambda: one.term.sync_state.members == {1, 2})
    manager, term = one.process.manager, one.term
    answered = asyncio.Event()
    polls: list[int] = []
    ask = manager._controller.replica_info

    async def ask_and_stand_still() -> GroupInfo:
        info = await ask()
        if not answered.is_set():
            answered.set()
            polls.append(controller.requests.count(RequestCode.CONTROLLER_GET_REPLICA_INFO))
            controller.silent = {RequestCode.CONTROLLER_GET_REPLICA_INFO}
            term._last_look_seconds -= 100.0
            one.process.broker.settle()  # an acknowledgement that was in a buffer as well
        return info

    monkeypatch.setattr(manager._controller, "replica_info", ask_and_stand_still)
    manager.poll_soon()
    await answered.wait()
    await eventually(lambda: controller.requests.count(RequestCode.CONTROLLER_GET_REPLICA_INFO) > polls[0])
    assert not term.trusted
    controller.silent.clear()
    await eventually(lambda: term.trusted)
    assert (await client.send(one.address, b"after the thaw")).code == ResponseCode.SUCCESS


async def test_a_poisoned_epoch_makes_nobody_deaf(start: Starter, controller: FakeController, client: Client) -> None:
    """1008 is not authenticated: with epoch 2^31-1 everything the controller says later would be old news."""
    one = await start("r1")
    await eventually(lambda: one.role == "MASTER")
    fields = {
        "masterBrokerId": "9",
        "masterEpoch": str(2**31 - 1),
        "masterAddress": "127.0.0.1:1",
        "syncStateSetEpoch": "9",
    }
    code = RequestCode.NOTIFY_BROKER_ROLE_CHANGED
    answer = await client.ask(one.address, code, ext_fields=fields, body=controller.set_body())
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "masterEpoch=2147483647: expected at most" in (answer.remark or "")
    assert (await client.send(one.address, b"still master")).code == ResponseCode.SUCCESS


async def test_an_epoch_from_nowhere_is_obeyed_only_when_a_controller_has_it(
    start: Starter, controller: FakeController, client: Client
) -> None:
    """A stranger's epoch + 9,000 would make this replica deaf to its controllers, which know nothing of it."""
    one = await start("r1", syncBrokerMetadataPeriod=60_000)
    await eventually(lambda: one.role == "MASTER")
    epoch, asked = controller.master_epoch, controller.requests.count(RequestCode.CONTROLLER_GET_REPLICA_INFO)
    fields = {
        "masterBrokerId": "9",
        "masterEpoch": str(epoch + 9000),
        "masterAddress": "127.0.0.1:1",
        "syncStateSetEpoch": "9",
    }
    code = RequestCode.NOTIFY_BROKER_ROLE_CHANGED
    answer = await client.ask(one.address, code, ext_fields=fields, body=controller.set_body())
    assert answer.code == ResponseCode.SYSTEM_ERROR
    await eventually(lambda: controller.requests.count(RequestCode.CONTROLLER_GET_REPLICA_INFO) > asked)
    assert (one.role, one.process.broker.master.master_epoch) == ("MASTER", epoch)
    controller.master_epoch += 9000
    await controller.notify(1)
    await eventually(lambda: one.process.broker.master.master_epoch == epoch + 9000)
