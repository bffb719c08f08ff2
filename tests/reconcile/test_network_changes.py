"""Changes of `network` to their end, where a node port is given once: every pod is another one, and nothing former stays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.kube.client import PatchType
from brokergroup_operator.kube.resources import BROKER_GROUPS, PODS, SERVICES
from brokergroup_operator.reconcile.access import ClusterAccess
from brokergroup_operator.records.store import GroupKey
from tests.reconcile.test_plane import named
from tests.reconcile.world import World, applier_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kube_sandbox.api_server.server import SandboxApiServer

MEMBERS = ("orders-1", "orders-2", "orders-3")
NAMES = {"NodePort": {"broker", "fast", "fence"}, "ServiceIP": {"broker", "fast", "ha", "fence"}}
# A change of three members takes about a dozen.
MOST_PASSES = 40
# One member is another one then, two wait.
PASSES_BETWEEN = 3


def at(first: int) -> dict[str, Any]:
    return {"addressing": "NodePort", "firstNodePort": first}


def by_cluster_ip(**more: int) -> dict[str, Any]:
    return {"addressing": "ServiceIP", "firstNodePort": None} | more


@pytest.fixture
async def world(sandbox: SandboxApiServer) -> AsyncIterator[World]:
    access = ClusterAccess(url=sandbox.url)
    applier = applier_for(access)
    async with access.own_client() as api:
        yield World(api, applier, GroupKey("default", "orders"))
    applier.close()


async def wish(world: World, network: dict[str, Any]) -> None:
    await world.api.patch(
        BROKER_GROUPS,
        world.key.name,
        {"spec": {"network": network}},
        namespace=world.key.namespace,
        content_type=PatchType.MERGE,
    )


CHANGES: dict[str, tuple[dict[str, Any], ...]] = {
    # The new numbers of one member are the former ones of another.
    "to the third number after": (at(30800), at(30803)),
    "to the second number before": (at(30800), at(30798)),
    "to a cluster IP and back": (at(30800), by_cluster_ip(), at(30800)),
    "to node ports and others at once": (by_cluster_ip(), at(30800), at(30804)),
    "to listen where it was fast": (by_cluster_ip(), by_cluster_ip(listenPort=10909)),
}


async def one_pass(world: World) -> None:
    """Nothing of it may be refused."""
    await world.run_pass()
    await world.run_kubelet()
    await world.run_brokers()


async def is_over(world: World, network: dict[str, Any]) -> bool:
    """Every pod is there and known by what the Service has, and the Service has nothing else."""
    pods, services = await named(world, PODS), await named(world, SERVICES)
    if set(pods) != set(MEMBERS) or not set(MEMBERS) <= set(services):
        return False
    for name in MEMBERS:
        spec = services[name]["spec"]
        ports = {port["name"]: port for port in spec["ports"]}
        host, _, port = pods[name]["metadata"]["annotations"][names.ANNOTATION_ADDRESS].rpartition(":")
        if set(ports) != NAMES[network["addressing"]] or int(port) != ports["broker"]["port"]:
            return False
        if host != (spec["clusterIP"] if spec["type"] == "ClusterIP" else ""):
            return False
    return await is_in_sync(world)


async def is_in_sync(world: World) -> bool:
    stored = await world.view.store.read(world.key)
    return stored is not None and len(stored.record.sync_state_set) == len(MEMBERS)


async def come_to_the_end(world: World, network: dict[str, Any]) -> None:
    for _ in range(MOST_PASSES):
        await one_pass(world)
        if await is_over(world, network):
            return
    services = await named(world, SERVICES)
    pytest.fail(f"{[(name, services[name]['spec']['ports']) for name in MEMBERS]}")


def numbers_of(service: dict[str, Any]) -> set[int]:
    return {port["nodePort"] for port in service["spec"]["ports"] if "nodePort" in port}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_comes_to_its_end(world: World, change: str) -> None:
    """Each further wish comes while the one before it is half done."""
    before, *between, last = CHANGES[change]
    world.brokers_run = True
    given = {field: value for field, value in before.items() if value is not None}
    await world.create_group(implementation="rocketmq", network=given)
    await come_to_the_end(world, before)
    for network in between:
        await wish(world, network)
        for _ in range(PASSES_BETWEEN):
            await one_pass(world)
        assert not await is_over(world, network)
    await wish(world, last)
    await come_to_the_end(world, last)
    if last["addressing"] == "NodePort":
        first, services = last["firstNodePort"], await named(world, SERVICES)
        assert all(first <= number < first + 80 for name in MEMBERS for number in numbers_of(services[name]))
