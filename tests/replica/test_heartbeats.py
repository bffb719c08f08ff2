"""Heartbeats to several controllers: one that cannot be reached delays none to the others, and the replica says which and why."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_replica.controller.heartbeats import HeartbeatHealth
from rocketmq_replica.process import PartEndedError
from tests.replica.support import Client, FakeController, RunningReplica, Starter, eventually, start_replica

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rocketmq_remoting.command import RemotingCommand

DEAD = "127.0.0.1:1"


async def table(client: Client, replica: RunningReplica) -> dict[str, Any]:
    answer = await client.ask(replica.address, RequestCode.GET_BROKER_RUNTIME_INFO)
    shown: dict[str, Any] = json.loads(answer.body or b"")["table"]
    return shown


async def until_shown(
    client: Client, replica: RunningReplica, holds: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    await replica.process.listening.wait()
    async with asyncio.timeout(15):
        while not holds(shown := await table(client, replica)):  # noqa: ASYNC110 - it shows by asking only
            await asyncio.sleep(0.05)
        return shown


def test_each_controller_has_its_own_fact() -> None:
    health = HeartbeatHealth(("a:1", "b:1"), now_seconds=10.0)
    health.sent("a:1", now_seconds=11.0)
    health.failed("b:1", "refused")
    one, two = health.facts(now_seconds=12.5)
    assert (one.seconds, one.ever_sent, one.problem) == (1.5, True, "")
    assert str(two) == "no heartbeat to controller b:1 for 2.5 s, none was ever sent: refused"
    health.due(("b:1", "c:1"), now_seconds=13.0)
    health.sent("a:1", now_seconds=13.0)
    assert [fact.address for fact in health.facts(now_seconds=13.0)] == ["b:1", "c:1"], "a:1 is no controller any more"


async def test_one_that_cannot_be_reached_is_named_and_delays_nothing(
    controller: FakeController, client: Client, tmp_path: Path
) -> None:
    replica = await start_replica(tmp_path / "r1", f"{DEAD};{controller.address}")
    await eventually(lambda: 1 in controller.heartbeats)
    shown = await until_shown(client, replica, lambda each: each["controllersWithoutHeartbeat"] == DEAD)
    assert shown["controllerRegistered"] == "true"
    assert f"no heartbeat to controller {DEAD} for" in shown[f"controllerHeartbeatProblem.{DEAD}"]
    assert "none was ever sent" in shown[f"controllerHeartbeatProblem.{DEAD}"]
    assert f"controllerHeartbeatProblem.{controller.address}" not in shown
    before = controller.requests.count(RequestCode.BROKER_HEARTBEAT)
    await eventually(lambda: controller.requests.count(RequestCode.BROKER_HEARTBEAT) > before + 2)
    await replica.stop()


async def test_a_replica_that_is_not_registered_says_why_none_is_sent(
    start: Starter, controller: FakeController, client: Client
) -> None:
    controller.refused[RequestCode.CONTROLLER_REGISTER_BROKER] = ResponseCode.SYSTEM_ERROR
    replica = await start("r1")
    key = f"controllerHeartbeatProblem.{controller.address}"
    shown = await until_shown(client, replica, lambda each: key in each)
    assert "not registered: CONTROLLER_REGISTER_BROKER: code 1, the test says so" in shown[key]
    assert (shown["controllerRegistered"], controller.heartbeats) == ("false", {})
    controller.refused.clear()
    await eventually(lambda: 1 in controller.heartbeats)
    assert (await table(client, replica))["controllerRegistered"] == "true"


async def test_a_mastership_from_before_the_registration_is_refused(start: Starter, controller: FakeController) -> None:
    """Rule 6: it was granted to an earlier process, and what that one reported may not be on this disk."""
    controller.refused[RequestCode.CONTROLLER_REGISTER_BROKER] = ResponseCode.SYSTEM_ERROR
    replica = await start("r1")
    await eventually(lambda: RequestCode.CONTROLLER_REGISTER_BROKER in controller.requests)
    controller.addresses[1] = replica.address
    controller.decide(1)
    answer = await controller.notify(1)
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "masterEpoch=1: expected one granted to this process" in (answer.remark or "")
    assert replica.role == "FENCED"
    controller.refused.clear()
    await eventually(lambda: replica.role == "MASTER")
    assert (replica.process.broker.master.master_epoch, 1 in controller.heartbeats) == (2, True)


async def test_a_slave_asks_for_an_election_when_nobody_is_master(start: Starter, controller: FakeController) -> None:
    await start("r1")
    await eventually(lambda: controller.master_id == 1)
    two = await start("r2")
    await eventually(lambda: two.role == "SLAVE")
    asked = controller.requests.count(RequestCode.CONTROLLER_ELECT_MASTER)
    controller.lose_master()
    controller.refused[RequestCode.CONTROLLER_ELECT_MASTER] = ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
    two.process.manager.poll_soon()
    await eventually(lambda: controller.requests.count(RequestCode.CONTROLLER_ELECT_MASTER) > asked)


@pytest.mark.parametrize("how", ["cancelled", "raised"])
async def test_a_heartbeat_task_that_dies_ends_the_process(
    how: str, controller: FakeController, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = await start_replica(tmp_path / "r1", controller.address)
    await eventually(lambda: 1 in controller.heartbeats)

    def die(*_args: object, **_kwargs: object) -> RemotingCommand:
        if how == "raised":
            raise ZeroDivisionError
        raise asyncio.CancelledError

    monkeypatch.setattr(replica.process.controller, "heartbeat", die)
    with pytest.raises(ExceptionGroup) as caught:
        await replica.task
    assert caught.group_contains(ZeroDivisionError if how == "raised" else PartEndedError)
