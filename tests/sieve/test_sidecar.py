"""A process beside a broker, at its pod's address, requests a broker id (1012, 1013) and never registers with it.

The pod was taken for the member with the new id, which never was in sync: the group was never Ready, and a Decommission of the id
found no member and blocked later operations.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from brokergroup_operator.kube.resources import BROKER_GROUP_OPERATIONS, BROKER_GROUP_STATES, PODS
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.controller_protocol import SyncStateSetBody
from tests.sieve.workloads import ask, ready_with, settled
from tests.sieve.world import NAME, NAMESPACE, World, told
from tests.support.fake_broker import FakeBroker

TAKEN = 4
POLL_SECONDS = 5.0


async def take_an_id(world: World, pod: str) -> None:
    """Send 1012 and 1013 as the sidecar does."""
    sidecar = FakeBroker(world.node.group, host=world.node.pods[pod].broker.host)
    answer = await sidecar.ask(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID)
    assert (answer.ext_fields or {})["nextBrokerId"] == str(TAKEN)
    answer = await sidecar.ask(
        RequestCode.CONTROLLER_APPLY_BROKER_ID, appliedBrokerId=TAKEN, registerCheckCode="sidecar;1"
    )
    assert answer.code == 0
    assert TAKEN in await ids(world)


async def poll(world: World) -> None:
    """Act like a Java master every 5 s: query the set (1004), and propose its linked slaves."""
    await asyncio.sleep(POLL_SECONDS)
    master = world.node.group.master()
    answer = await master.ask(RequestCode.CONTROLLER_GET_REPLICA_INFO)
    known = SyncStateSetBody.decode(answer.body)
    master.sync_state_set, master.set_epoch = set(known.sync_state_set), known.sync_state_set_epoch
    await master.propose_set()


async def ids(world: World) -> set[int]:
    state = await world.api.get(BROKER_GROUP_STATES, NAME, namespace=NAMESPACE)
    return {replica["brokerId"] for replica in state["record"]["replicas"]}


async def uids(world: World) -> set[str]:
    listed = await world.api.list(PODS, namespace=NAMESPACE)
    return {pod["metadata"]["uid"] for pod in listed.items}


async def operation(world: World, name: str) -> dict[str, Any]:
    found = await world.api.get(BROKER_GROUP_OPERATIONS, name, namespace=NAMESPACE)
    status: dict[str, Any] = found.get("status") or {}
    return status


@pytest.mark.parametrize("number", [1, 3])
def test_an_id_that_a_sidecar_took_is_forgotten_and_the_group_stays_ready(number: int) -> None:
    async def story(world: World) -> None:
        await settled(world, 3)
        before = await uids(world)
        await take_an_id(world, f"{NAME}-{number}")
        await poll(world)
        await world.settle(ready_with(3))
        assert await ids(world) == {1, 2, 3}
        assert await uids(world) == before, "no pod was made or stopped for it"

    assert told(story).laws_broken == []


def test_a_decommission_of_it_ends_and_what_waits_behind_it_begins() -> None:
    async def story(world: World) -> None:
        await settled(world, 3)
        await take_an_id(world, f"{NAME}-3")
        await ask(world, "away", "Decommission", brokerId=TAKEN)
        await ask(world, "move", "Switchover", toBrokerId=2, deadlineSeconds=60)
        await poll(world)
        await world.settle(lambda group: ready_with(3)(group) and group["status"]["master"]["brokerId"] == 2)
        assert (await operation(world, "away"))["phase"] in {"Succeeded", "Rejected"}
        assert (await operation(world, "move"))["phase"] == "Succeeded"
        assert await ids(world) == {1, 2, 3}

    assert told(story).laws_broken == []
