"""A Retire against the embedded API: what comes in, or changes, around the last look at a group keeps it from being deleted."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.kube.resources import BROKER_GROUP_OPERATIONS, BROKER_GROUPS, ROCKETMQ_CLUSTERS
from brokergroup_operator.reconcile.operations import runner
from brokergroup_operator.reconcile.operations.plan import Figures
from brokergroup_operator.records.store import GroupKey
from tests.operations.record_view import everything_read
from tests.operations.world import World

if TYPE_CHECKING:
    from brokergroup_operator.kube.client import KubernetesApi
    from kube_sandbox.api_server.server import SandboxApiServer


pytestmark = pytest.mark.usefixtures("quick_looks")


async def clustered(world: World, *, count: int) -> None:
    """Create a RocketMQCluster that has made the group, with so many groups."""
    metadata = {"name": "shop", "namespace": world.key.namespace}
    spec = {"version": "5.5.0", "brokerGroups": {"count": count, "template": {}}}
    kind = {"apiVersion": ROCKETMQ_CLUSTERS.api_version, "kind": ROCKETMQ_CLUSTERS.kind}
    made = await world.api.create(ROCKETMQ_CLUSTERS, kind | {"metadata": metadata, "spec": spec})
    owner = kind | {"name": "shop", "uid": made["metadata"]["uid"]}
    await world.patch(BROKER_GROUPS, world.key.name, {"metadata": {"ownerReferences": [owner]}})


@pytest.fixture
async def second(api: KubernetesApi, operator_api: KubernetesApi, sandbox: SandboxApiServer) -> World:
    """The second group of a cluster of two, with all its brokers told what a Retire wants of them."""
    made = World(api, operator_api, GroupKey("default", "shop-1"))
    sandbox.before_request = made.observe
    await made.create_group()
    await clustered(made, count=2)
    made.configures = True
    return made


async def count(world: World, wanted: int) -> None:
    await world.patch(ROCKETMQ_CLUSTERS, "shop", {"spec": {"brokerGroups": {"count": wanted}}})


async def stays(world: World) -> bool:
    """Whether the group of the Retire is not being deleted."""
    return "deletionTimestamp" not in (await world.get(BROKER_GROUPS, world.key.name))["metadata"]


@pytest.fixture
async def unwanted(second: World) -> World:
    """The cluster has no use for its second group any more."""
    await count(second, 1)
    return second


async def step_of(world: World) -> str:
    return str((await world.status_of_one())["retirement"].get("step", ""))


async def test_a_group_that_its_cluster_wants_is_not_retired(second: World) -> None:
    phase, result = await second.ended("Retire")
    wanted = "RocketMQCluster shop wants it: spec.brokerGroups.count is 2, so shop-1 is its last group"
    assert (phase, result["message"]) == ("Rejected", wanted)
    assert second.view.looks == 0


async def test_a_cluster_that_wants_its_group_again_gets_it_back(unwanted: World) -> None:
    await unwanted.ask("one", "Retire", {})

    async def closing() -> bool:
        await unwanted.run_pass()
        return await step_of(unwanted) == "Closing"

    await unwanted.until(closing)
    await count(unwanted, 2)
    phase, result = await unwanted.end_of_one()
    assert phase == "Failed"
    assert result["message"].startswith("given up: RocketMQCluster shop wants it")
    assert await stays(unwanted)


async def test_what_comes_in_behind_the_last_look_but_one_keeps_the_group(unwanted: World) -> None:
    """Another log end right before the deletion: the group stays, and everything is looked at again."""
    steps: list[str] = []

    async def note() -> None:
        if steps[-1:] != [step := await step_of(unwanted)]:
            steps.append(step)

    unwanted.view.before_answer = note
    # The look of the deletion comes behind its status, so the end moves between the two.
    unwanted.view.group_offsets = lambda: replace(everything_read(), log_end=1001 if "Deleting" in steps else 1000)
    assert (await unwanted.ended("Retire"))[0] == "Succeeded"
    assert steps == ["Draining", "Closing", "Deleting", "Closing", "Deleting"]
    assert sorted(await unwanted.event_reasons()) == ["RetireCompleted", "RetireStarted"]


async def test_a_group_that_is_changed_behind_the_last_read_is_not_deleted(
    unwanted: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pause comes between the last read of the API and the deletion, which names the version that was read."""
    await unwanted.ask("one", "Retire", {})
    note = unwanted.runner._note_deletion
    pauses: list[str] = []

    async def paused_meanwhile(*args: Any) -> None:
        await note(*args)
        if not pauses:
            await unwanted.patch(BROKER_GROUPS, "shop-1", {"spec": {"maintenance": {"paused": True}}})
            pauses.append("paused")

    monkeypatch.setattr(unwanted.runner, "_note_deletion", paused_meanwhile)

    async def waits_for_it() -> bool:
        await unwanted.run_pass()
        return "is paused" in (await unwanted.status_of_one())["result"].get("message", "")

    await unwanted.until(waits_for_it)
    assert pauses
    assert await stays(unwanted)


async def test_a_group_that_another_client_deletes_was_not_deleted_by_the_operation(unwanted: World) -> None:
    """While the look right before the deletion is under way: the status says Deleting already."""

    async def deleted_by_another() -> None:
        if await step_of(unwanted) == "Deleting":
            await unwanted.delete(BROKER_GROUPS, "shop-1")

    unwanted.view.before_answer = deleted_by_another
    phase, result = await unwanted.ended("Retire")
    told = "BrokerGroup shop-1 was deleted, and not by this operation"
    assert (phase, result["message"]) == ("Failed", told)


async def test_an_operation_that_is_deleted_deletes_no_group(unwanted: World) -> None:
    """It goes while the look right before the deletion is under way."""
    await unwanted.ask("one", "Retire", {})
    gone = asyncio.Event()

    async def abort() -> None:
        if await step_of(unwanted) == "Deleting":
            await unwanted.delete(BROKER_GROUP_OPERATIONS, "one")
            gone.set()

    unwanted.view.before_answer = abort

    async def is_gone() -> bool:
        if not gone.is_set():
            await unwanted.run_pass()
        return gone.is_set()

    await unwanted.until(is_gone)
    await asyncio.gather(*(task for _, task in unwanted.runner._attempts._attempts.values()))
    assert await stays(unwanted)
    assert not [write for write in unwanted.writes if write.startswith("DELETE")]


async def test_an_operation_that_is_deleted_behind_the_last_read_deletes_no_group(
    unwanted: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also at the second try: the note was written at the first one, whose DELETE named an older version of the group."""
    await unwanted.ask("one", "Retire", {})
    note = unwanted.runner._note_deletion
    tries: list[str] = []

    async def meanwhile(*args: Any) -> None:
        tries.append("try")
        if len(tries) == 1:
            await note(*args)
            await unwanted.patch(BROKER_GROUPS, "shop-1", {"metadata": {"labels": {"touched": "yes"}}})
            return
        await unwanted.delete(BROKER_GROUP_OPERATIONS, "one")
        await note(*args)

    monkeypatch.setattr(unwanted.runner, "_note_deletion", meanwhile)

    async def tried_twice() -> bool:
        if len(tries) < 2:
            await unwanted.run_pass()
        return len(tries) == 2

    await unwanted.until(tried_twice)
    tasks = [task for _, task in unwanted.runner._attempts._attempts.values()]
    await asyncio.gather(*tasks, return_exceptions=True)
    assert await stays(unwanted)


async def test_since_when_a_process_asks_is_known_for_as_long_as_the_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process has another clock: what it wrote proves nothing of how long this one has looked."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(runner, "time", SimpleNamespace(time=lambda: clock.now))
    attempts, key = runner.Attempts(lambda _: None), GroupKey("default", "orders")

    async def answer() -> Figures:
        return Figures()

    async def begun_and_ended() -> None:
        attempts.begin(key, "one", answer())
        await asyncio.gather(*(task for _, task in attempts._attempts.values()))

    for clock.now in (100.0, 107.0):
        await begun_and_ended()
        assert attempts.outcomes(key)["one"].asks_since_unix_seconds == 100.0
    attempts.forget_all_but(key, ())
    await begun_and_ended()
    assert attempts.outcomes(key)["one"].asks_since_unix_seconds == 107.0
