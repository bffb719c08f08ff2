"""The operations pass against the embedded API: what each operation changes, in which order, and what is left of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.kube.resources import BROKER_GROUPS, PODS
from brokergroup_operator.observe.group_view import SwitchoverRefusedError
from tests.operations.stories import restarted
from tests.operations.world import GIVEN_UP, World

if TYPE_CHECKING:
    from brokergroup_operator.kube.client import KubernetesApi


def condition(item: dict[str, Any]) -> dict[str, Any]:
    (only,) = item["status"]["conditions"]
    assert only["status"] == "True"
    return dict(only)


async def test_a_switchover_is_done_and_reported(world: World) -> None:
    await world.ask("one", "Switchover", {"toBrokerId": 3})
    one = (await world.until_over("one"))["one"]
    result = one["status"]["result"]
    assert one["status"]["phase"] == "Succeeded"
    assert (result["fromBrokerId"], result["toBrokerId"], result["epoch"], result["milliseconds"]) == (1, 3, 2, 12)
    assert result["phases"] == {"committed": 7}
    assert condition(one)["type"] == "Complete"
    assert one["status"]["startedAt"] <= one["status"]["completedAt"]
    assert world.view.asked == [(1, 3)]
    group = await world.get(BROKER_GROUPS, "orders")
    (owner,) = one["metadata"]["ownerReferences"]
    assert owner["uid"] == group["metadata"]["uid"]
    assert one["metadata"]["labels"] == {"brokergroup.dev/broker-group": "orders"}


@pytest.mark.parametrize(
    ("section", "refusals", "asked"),
    [
        ({}, [GIVEN_UP, GIVEN_UP], [(1, None)] * 3),
        ({"toBrokerId": 2}, [GIVEN_UP, GIVEN_UP], [(1, 2)] * 3),
        ({"toBrokerId": 2}, [SwitchoverRefusedError("a change of master is under way")], [(1, 2)] * 2),
    ],
    ids=["given up, to any", "given up", "refused for a moment"],
)
async def test_a_switchover_is_tried_again(
    world: World, section: dict[str, Any], refusals: list[Exception], asked: list[tuple[int, int | None]]
) -> None:
    world.view.refusals = list(refusals)
    assert (await world.ended("Switchover", section))[0] == "Succeeded"
    assert world.view.asked == asked


async def test_a_switchover_that_is_refused_is_rejected(world: World) -> None:
    world.view.refusals = [SwitchoverRefusedError("broker 2 lacks topic t") for _ in range(20)]
    phase, result = await world.ended("Switchover")
    assert (phase, result["message"]) == ("Rejected", "broker 2 lacks topic t")
    assert condition(await world.asked("one"))["type"] == "Failed"
    assert await world.event_reasons() == ["SwitchoverRejected"]


async def test_one_after_the_other(world: World) -> None:
    await world.ask("a", "Switchover", {"toBrokerId": 2})
    await world.ask("b", "Switchover", {"toBrokerId": 3})
    await world.run_pass()
    waits = (await world.asked("b"))["status"]
    assert (waits["phase"], waits["result"]["message"]) == ("Pending", "waits for a")
    await world.until_over("a", "b")
    assert world.view.asked == [(1, 2), (2, 3)]


@pytest.mark.parametrize(
    ("kind", "section"),
    [
        ("Drill", {"kind": "KillMaster"}),
        ("Switchover", {}),
        ("Restart", {}),
        ("Rebuild", {"brokerId": 3}),
        ("Decommission", {"brokerId": 3}),
    ],
)
async def test_a_status_from_before_the_slaves_died_lets_nothing_begin(
    world: World, kind: str, section: dict[str, Any]
) -> None:
    """The status still shows FailoverSafe from the last pass, but no member could replace the master now."""
    world.view.silent = {2, 3}
    before = await world.items(PODS)
    await world.ask("one", kind, section)
    for _ in range(3):
        await world.run_pass()
    status = await world.status_of_one()
    assert status["phase"] == "Pending"
    assert "orders is not FailoverSafe now: NotEnoughCandidates" in status["result"]["message"]
    assert world.view.asked == []
    assert await world.items(PODS) == before

    world.view.silent = set()
    await world.run_pass()
    assert (await world.status_of_one())["phase"] in {"Running", "Succeeded"}


async def test_a_restart_is_judged_by_the_pods(world: World) -> None:
    phase, result = await world.ended("Restart", hands=lambda: restarted(world, 1, 2, 3))
    assert phase == "Succeeded"
    assert result["message"].startswith("restarted broker 1, broker 2, broker 3 in")
    assert sorted(await world.event_reasons()) == ["RestartCompleted", "RestartStarted"]


async def test_a_killed_master_comes_back(world: World) -> None:
    before = (await world.get(PODS, "orders-1"))["metadata"]["uid"]
    phase, result = await world.ended("Drill", {"kind": "KillMaster"}, hands=world.master_comes_back)
    assert (phase, result["toBrokerId"]) == ("Succeeded", 2)
    assert (await world.get(PODS, "orders-1"))["metadata"]["uid"] != before
    assert set(world.fenced) == {before}, "its end was observable"


async def test_a_dry_run_changes_nothing(world: World) -> None:
    phase, result = await world.ended("Rebuild", {"brokerId": 2}, dryRun="All")
    assert (phase, result["plan"][0]) == ("Succeeded", "delete pod orders-2 and claim orders-2 WITH ITS DATA")
    assert not [line for line in world.writes if "brokergroupoperations" not in line]


async def test_finished_ones_go_after_their_time_and_by_number(world: World) -> None:
    await world.ask("gone", "Switchover", {"toBrokerId": 9}, ttlSecondsAfterFinished=0)
    for number in range(22):
        await world.ask(f"kept-{number}", "Switchover", {"toBrokerId": 9})

    async def twenty_are_left() -> bool:
        await world.run_pass()
        return len(await world.names()) == 20

    await world.until(twenty_are_left)
    assert "gone" not in await world.names()


async def test_the_group_takes_its_operations_with_it(world: World) -> None:
    await world.ended("Switchover", {"toBrokerId": 9})
    await world.delete(BROKER_GROUPS, "orders")

    async def it_is_gone() -> bool:
        return not await world.names()

    await world.until(it_is_gone)
    assert await world.run_pass() is None


async def test_two_operators_start_it_once(world: World, operator_api: KubernetesApi) -> None:
    await world.ask("one", "Switchover", {"toBrokerId": 2})
    other = World(world.api, operator_api, world.key)
    other.view = world.view
    other.runner = other._new_runner()
    await asyncio.gather(world.run_pass(), other.run_pass())
    started = [line for line in world.writes if line.endswith("one/status")]
    assert started, "one of the two wrote that it runs"
    await world.until_over("one")
    assert world.view.asked == [(1, 2)]
