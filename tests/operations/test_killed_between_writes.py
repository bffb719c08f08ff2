"""The operator dies before its n-th write, for every n, and restarts: the operation ends the same way, carried out once.

A story runs once undisturbed, which gives the number of writes and the end; then once for each write, with a kill
before it (`make test`: for a sample of the writes). The writes of a switchover in parallel to the passes count too.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.kube.resources import NAMESPACES, PERSISTENT_VOLUME_CLAIMS, PODS
from brokergroup_operator.records.store import GroupKey
from tests.operations.world import World
from tests.support.draws import sample

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from brokergroup_operator.kube.client import KubernetesApi
    from kube_sandbox.api_server.server import SandboxApiServer

    Story = Callable[[World], Awaitable[None]]


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
    first = (await world.api.get(PODS, "orders-1", namespace=world.key.namespace))["metadata"]["uid"]

    await world.until_over("one", hands=world.master_comes_back)
    again = (await world.api.get(PODS, "orders-1", namespace=world.key.namespace))["metadata"]["uid"]
    assert first != again


async def restart(world: World) -> None:
    await world.ask("one", "Restart", {"brokerIds": [2, 3]})

    async def others() -> None:
        item = await world.get("one")
        if (item.get("status") or {}).get("phase") == "Running":
            for pod in (await world.api.list(PODS, namespace=world.key.namespace)).items:
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
        status = (await world.get("one")).get("status") or {}
        held = (status.get("result") or {}).get("backup")
        if status.get("phase") != "Running" or held is None:
            return
        pods = {
            one["metadata"]["name"]: one for one in (await world.api.list(PODS, namespace=world.key.namespace)).items
        }
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
    names = {one["metadata"]["name"] for one in (await world.api.list(PODS, namespace=world.key.namespace)).items}
    assert names == {"orders-1", "orders-2", "orders-3"}


CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}


async def end_of(world: World) -> dict[str, Any]:
    """Return the end state that must not depend on the moment of the operator's death."""
    stored = await world.view.store.read(world.key)
    assert stored is not None
    status = (await world.get("one"))["status"]
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
