"""The operations pass against the embedded API: its effects, and that a kill before any of its writes changes no end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.kube.errors import InvalidError
from brokergroup_operator.kube.resources import BROKER_GROUPS, NAMESPACES, PERSISTENT_VOLUME_CLAIMS, PODS
from brokergroup_operator.observe.group_view import SwitchoverRefusedError
from brokergroup_operator.records.store import GroupKey
from tests.operations.world import GIVEN_UP, World
from tests.support.draws import sample

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from brokergroup_operator.kube.client import KubernetesApi
    from kube_sandbox.api_server.server import SandboxApiServer

    Story = Callable[[World], Awaitable[None]]


@pytest.fixture
async def world(api: KubernetesApi, operator_api: KubernetesApi, sandbox: SandboxApiServer) -> World:
    made = World(api, operator_api, GroupKey("default", "orders"))
    sandbox.before_request = made.observe
    await made.create_group()
    return made


def condition(item: dict[str, Any]) -> dict[str, Any]:
    (only,) = item["status"]["conditions"]
    assert only["status"] == "True"
    return dict(only)


async def test_a_switchover_is_done_and_told(world: World) -> None:
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
    ("refusals", "asked"),
    [([GIVEN_UP, GIVEN_UP], 3), ([SwitchoverRefusedError("a change of master is under way")], 2)],
    ids=["given up", "refused for a moment"],
)
async def test_a_switchover_is_tried_again(world: World, refusals: list[Exception], asked: int) -> None:
    world.view.refusals = list(refusals)
    await world.ask("one", "Switchover", {"toBrokerId": 2})
    assert (await world.until_over("one"))["one"]["status"]["phase"] == "Succeeded"
    assert world.view.asked == [(1, 2)] * asked


async def test_a_switchover_that_is_refused_is_rejected(world: World) -> None:
    world.view.refusals = [SwitchoverRefusedError("broker 2 lacks topic t") for _ in range(20)]
    await world.ask("one", "Switchover", {})
    one = (await world.until_over("one"))["one"]
    assert one["status"]["phase"] == "Rejected"
    assert condition(one)["type"] == "Failed"
    assert one["status"]["result"]["message"] == "broker 2 lacks topic t"
    assert await world.event_reasons() == ["SwitchoverRejected"]


async def test_one_after_the_other(world: World) -> None:
    await world.ask("a", "Switchover", {"toBrokerId": 2})
    await world.ask("b", "Switchover", {"toBrokerId": 3})
    await world.run_pass()
    second = await world.asked("b")
    assert second["status"]["phase"] == "Pending"
    assert second["status"]["result"]["message"] == "waits for a"
    await world.until_over("a", "b")
    assert world.view.asked == [(1, 2), (2, 3)]


async def test_an_unsafe_group_is_left_alone(world: World) -> None:
    await world.set_safe(safe=False)
    await world.ask("one", "Switchover", {})
    one = (await world.until_over("one"))["one"]
    assert one["status"]["phase"] == "Rejected"
    assert "not FailoverSafe: NotEnoughCandidates: as the test says" in one["status"]["result"]["message"]
    assert world.view.asked == []


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
    one = await world.asked("one")
    assert one["status"]["phase"] == "Pending"
    assert "orders is not FailoverSafe now: NotEnoughCandidates" in one["status"]["result"]["message"]
    assert world.view.asked == []
    assert await world.items(PODS) == before

    world.view.silent = set()
    await world.run_pass()
    assert (await world.asked("one"))["status"]["phase"] in {"Running", "Succeeded"}


async def test_an_election_names_the_group(world: World) -> None:
    with pytest.raises(InvalidError, match="acknowledgeDataLoss"):
        await world.ask("typo", "Elect", {"toBrokerId": 2, "acknowledgeDataLoss": "other"})
    await world.ask("serving", "Elect", {"toBrokerId": 2, "acknowledgeDataLoss": "orders"})
    assert (await world.until_over("serving"))["serving"]["status"]["phase"] == "Rejected"


async def test_a_restart_is_judged_by_the_pods(world: World) -> None:
    await world.ask("all", "Restart", {})

    async def reconcile_plane() -> None:
        item = await world.asked("all")
        if (item.get("status") or {}).get("phase") != "Running":
            return
        for pod in await world.items(PODS):
            if pod["metadata"]["creationTimestamp"] < item["status"]["startedAt"]:
                await world.delete_pod(pod["metadata"]["name"])
                return
        for number in (1, 2, 3):
            await world.create_member(number)

    item = (await world.until_over("all", hands=reconcile_plane))["all"]
    assert item["status"]["phase"] == "Succeeded"
    assert item["status"]["result"]["message"].startswith("restarted broker 1, broker 2, broker 3 in")
    assert sorted(await world.event_reasons()) == ["RestartCompleted", "RestartStarted"]


async def test_a_killed_master_comes_back(world: World) -> None:
    before = (await world.get(PODS, "orders-1"))["metadata"]["uid"]
    await world.ask("drill", "Drill", {"kind": "KillMaster"})
    item = (await world.until_over("drill", hands=world.master_comes_back))["drill"]
    assert item["status"]["phase"] == "Succeeded", item["status"]
    assert item["status"]["result"]["toBrokerId"] == 2
    assert (await world.get(PODS, "orders-1"))["metadata"]["uid"] != before
    assert set(world.fenced) == {before}, "its end was observable"


async def test_a_drill_goes_there_and_back(world: World) -> None:
    await world.ask("drill", "Drill", {"kind": "Switchover"})
    item = (await world.until_over("drill"))["drill"]
    assert item["status"]["result"]["message"] == "from broker 1 to 2 (12 ms) and back (12 ms)"
    assert item["status"]["result"]["phases"] == {"committed": 7, "back.committed": 7}
    assert world.view.asked == [(1, None), (2, 1)]


async def test_a_dry_run_changes_nothing(world: World) -> None:
    await world.ask("plan", "Rebuild", {"brokerId": 2}, dryRun="All")
    item = (await world.until_over("plan"))["plan"]
    assert item["status"]["phase"] == "Succeeded"
    assert item["status"]["result"]["plan"][0] == "delete pod orders-2 and claim orders-2 WITH ITS DATA"
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
    await world.ask("one", "Switchover", {"toBrokerId": 9})
    await world.until_over("one")
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


async def switchover(world: World) -> None:
    await world.ask("one", "Switchover", {"toBrokerId": 3})
    await world.until_over("one")


async def drill_there_and_back(world: World) -> None:
    await world.ask("one", "Drill", {"kind": "Switchover"})
    await world.until_over("one")


async def unclean_election(world: World) -> None:
    await world.ask("one", "Elect", {"toBrokerId": 3, "acknowledgeDataLoss": "orders"})
    world.view.writable = False
    await world.until_over("one")


async def killed_master(world: World) -> None:
    await world.ask("one", "Drill", {"kind": "KillMaster"})
    first = (await world.get(PODS, "orders-1"))["metadata"]["uid"]

    await world.until_over("one", hands=world.master_comes_back)
    again = (await world.get(PODS, "orders-1"))["metadata"]["uid"]
    assert first != again


async def restart(world: World) -> None:
    await world.ask("one", "Restart", {"brokerIds": [2, 3]})

    async def others() -> None:
        item = await world.asked("one")
        if (item.get("status") or {}).get("phase") == "Running":
            for pod in await world.items(PODS):
                name, created = pod["metadata"]["name"], pod["metadata"]["creationTimestamp"]
                if name != "orders-1" and created < item["status"]["startedAt"]:
                    await world.delete_pod(name)
                    await world.create_member(int(name[-1]))

    await world.until_over("one", hands=others)


async def backup(world: World) -> None:
    claim = {"metadata": {"name": "copies", "namespace": world.key.namespace}, "spec": CLAIM}
    await world.api.create(PERSISTENT_VOLUME_CLAIMS, claim)
    await world.ask("one", "Backup", {"claim": {"name": "copies"}})

    async def others() -> None:
        """The reconcile plane, and the kubelet of the copying pod."""
        status = (await world.asked("one")).get("status") or {}
        held = (status.get("result") or {}).get("backup")
        if status.get("phase") != "Running" or held is None:
            return
        pods = {one["metadata"]["name"]: one for one in await world.items(PODS)}
        copying = pods.get("orders-backup")
        if "takenAt" in held:
            if copying is None:  # it may still read the claim
                await world.create_member(held["brokerId"])
        elif held["pod"] in pods:
            await world.delete_pod(held["pod"])
        elif copying is not None and copying.get("status", {}).get("phase") != "Succeeded":
            await world.end_copy(copying)

    found = await world.until_over("one", hands=others)
    assert found["one"]["status"]["result"]["backup"]["offset"] == 90
    names = {one["metadata"]["name"] for one in await world.items(PODS)}
    assert names == {"orders-1", "orders-2", "orders-3"}


CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}


async def end_of(world: World) -> dict[str, Any]:
    """Return the end state that must not depend on the moment of the operator's death."""
    stored = await world.view.store.read(world.key)
    assert stored is not None
    status = (await world.asked("one"))["status"]
    return {
        "phase": status["phase"],
        "conditions": [item["type"] for item in status["conditions"]],
        "from": status["result"].get("fromBrokerId"),
        "to": status["result"].get("toBrokerId"),
        "epoch": status["result"].get("epoch"),
        "master": stored.record.master_broker_id,
        "master epoch": stored.record.master_epoch,
    }


# The number of a story's writes before which `make test` kills the operator.
KILLS = 3


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("story", "at_least"),
    [(switchover, 4), (drill_there_and_back, 6), (unclean_election, 4), (killed_master, 4), (restart, 3), (backup, 6)],
)
async def test_a_kill_before_any_write_changes_nothing_in_the_end(
    sandbox: SandboxApiServer, api: KubernetesApi, operator_api: KubernetesApi, story: Story, at_least: int
) -> None:
    async def made(namespace: str) -> World:
        await api.create(NAMESPACES, {"metadata": {"name": namespace}})
        world = World(api, operator_api, GroupKey(namespace, "orders"))
        await world.create_group()
        return world

    async def told(world: World) -> dict[str, Any]:
        sandbox.before_request = world.observe
        await story(world)
        return await end_of(world)

    undisturbed = await made("undisturbed")
    expected, writes = await told(undisturbed), undisturbed.writes
    assert expected["phase"] == "Succeeded"
    assert len(writes) >= at_least, writes
    kills = sample(range(len(writes)), KILLS)
    # In parallel: each waits a second until its pods are old enough.
    worlds = await asyncio.gather(*(made(f"killed-{number}") for number in kills))
    for number, world in zip(kills, worlds, strict=True):
        world.kill_at = number
        assert await told(world) == expected, f"killed before write {number}, {writes[number]}"
        assert world.was_killed, f"the story made fewer than {number} writes"
