"""An operator that is killed before any of an operation's writes changes nothing in its end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.kube.resources import BROKER_GROUPS, NAMESPACES, PODS
from brokergroup_operator.records.store import GroupKey
from tests.operations.stories import backup, backup_by_snapshots, restarted
from tests.operations.world import World
from tests.reconcile.cases import table
from tests.support.draws import sample

if TYPE_CHECKING:
    from aiohttp import web

    from brokergroup_operator.kube.client import KubernetesApi
    from kube_sandbox.api_server.server import SandboxApiServer
    from tests.operations.stories import Story


# The number of a story's writes before which `make test` kills the operator.
KILLS = 3


def asked_for(kind: str, /, **section: Any) -> Story:
    async def story(world: World) -> None:
        await world.ended(kind, section)

    return story


async def unclean_election(world: World) -> None:
    world.view.writable = False
    await world.ended("Elect", {"toBrokerId": 3, "acknowledgeDataLoss": "orders"})


async def killed_master(world: World) -> None:
    first = (await world.get(PODS, "orders-1"))["metadata"]["uid"]
    await world.ended("Drill", {"kind": "KillMaster"}, hands=world.master_comes_back)
    assert first != (await world.get(PODS, "orders-1"))["metadata"]["uid"]


async def restart(world: World) -> None:
    await world.ended("Restart", {"brokerIds": [2, 3]}, hands=lambda: restarted(world, 2, 3))


async def retired(world: World) -> None:
    """The group takes no sends, everything is read, and it is deleted; at the end it is gone, and was deleted once."""
    world.configures = True
    await world.ended("Retire")
    assert await world.items(BROKER_GROUPS) == []
    assert world.given == {number: {"brokerPermission": "4", "minInSyncReplicas": "99"} for number in (1, 2, 3)}
    deletions = [write for write in world.writes if write.startswith("DELETE")]
    assert deletions == [f"DELETE {BROKER_GROUPS.object_path('orders', world.key.namespace)}"]


async def end_of(world: World) -> dict[str, Any]:
    """Return the end state that must not depend on the moment of the operator's death."""
    stored = await world.view.store.read(world.key)
    assert stored is not None
    status = (await world.asked("one"))["status"]
    return {
        "phase": status["phase"],
        "conditions": [item["type"] for item in status["conditions"]],
        **{field: status["result"].get(field) for field in ("fromBrokerId", "toBrokerId", "epoch")},
        "master": (stored.record.master_broker_id, stored.record.master_epoch),
    }


@pytest.mark.sampled
@pytest.mark.usefixtures("quick_looks")
@pytest.mark.parametrize(
    ("story", "at_least"),
    table([
        ("switchover", asked_for("Switchover", toBrokerId=3), 4),
        ("drill there and back", asked_for("Drill", kind="Switchover"), 6),
        ("unclean election", unclean_election, 4),
        ("killed master", killed_master, 4),
        ("restart", restart, 3),
        ("backup", backup, 6),
        ("backup by snapshots", backup_by_snapshots, 9),
        ("retired", retired, 16),
    ]),
)  # fmt: skip
async def test_a_kill_before_any_write_changes_nothing_in_the_end(
    sandbox: SandboxApiServer, api: KubernetesApi, operator_api: KubernetesApi, story: Story, at_least: int
) -> None:
    async def made(namespace: str) -> World:
        await api.create(NAMESPACES, {"metadata": {"name": namespace}})
        world = World(api, operator_api, GroupKey(namespace, "orders"))
        await world.create_group()
        return world

    async def told(world: World) -> dict[str, Any]:
        worlds[world.key.namespace] = world
        await story(world)
        return await end_of(world)

    # Each world sees the requests of its own namespace.
    def observe(request: web.BaseRequest) -> None:
        for place, world in worlds.items():
            if f"/namespaces/{place}/" in request.path:
                world.observe(request)

    worlds: dict[str, World] = {}
    sandbox.before_request = observe
    undisturbed = await made("undisturbed")
    expected, writes = await told(undisturbed), undisturbed.writes
    assert expected["phase"] == "Succeeded"
    assert len(writes) >= at_least, writes
    kills = sample(range(len(writes)), KILLS)
    # Side by side: a story waits most of its time.
    killed = await asyncio.gather(*(made(f"killed-{number}") for number in kills))
    for number, world in zip(kills, killed, strict=True):
        world.kill_at = number
    ends = await asyncio.gather(*(told(world) for world in killed))
    for number, world, end in zip(kills, killed, ends, strict=True):
        assert end == expected, f"killed before write {number}, {writes[number]}"
        assert world.was_killed, f"the story made fewer than {number} writes"
