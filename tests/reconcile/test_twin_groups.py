"""Groups of one broker name that come at one moment, in the whole reconcile plane: one begins, and then, one by one, the others."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from brokergroup_operator.api import names
from brokergroup_operator.kube.resources import BROKER_GROUPS, PERSISTENT_VOLUME_CLAIMS, PODS, SERVICES
from tests.reconcile.world import named, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.reconcile.world import World

GROUPS = ("a", "b", "c", "d")


async def create(world: World, name: str) -> None:
    kind = {"apiVersion": names.API_VERSION, "kind": names.BROKER_GROUP_KIND}
    metadata = {"name": name, "namespace": world.key.namespace}
    spec = {"implementation": "Python", "replicas": 1, "brokerName": "x"}
    await world.api.create(BROKER_GROUPS, {**kind, "metadata": metadata, "spec": spec})


async def with_children(world: World) -> set[str]:
    """The groups of which there is anything."""
    found: set[str] = set()
    for resource in (PODS, PERSISTENT_VOLUME_CLAIMS, SERVICES):
        objects = await named(world, resource)
        found |= {one["metadata"]["labels"][names.LABEL_BROKER_GROUP] for one in objects.values()}
    return found


async def waiting(world: World) -> dict[str, str]:
    """The groups that say that they wait, each with what it says."""
    told: dict[str, str] = {}
    for name, group in (await named(world, BROKER_GROUPS)).items():
        conditions: list[dict[str, Any]] = group.get("status", {}).get("conditions", [])
        reasons = {one["type"]: (one["status"], one["reason"]) for one in conditions}
        if reasons.get("Stalled") == ("True", "BrokerNameTaken") and reasons["Ready"] == ("False", "BrokerNameTaken"):
            told[name] = next(one["message"] for one in conditions if one["type"] == "Stalled")
    return told


async def test_one_begins_and_the_next_when_it_is_gone(world: World, start_plane: Callable[..., Any]) -> None:
    await start_plane(resync_seconds=600.0)
    await asyncio.gather(*(create(world, name) for name in GROUPS))
    left = set(GROUPS)
    while left:

        async def one_has_begun(left: set[str] = left) -> str | None:
            told, begun = await waiting(world), await with_children(world)
            # Claims outlive their group.
            now = begun & left
            if len(now) != 1 or set(told) != left - now:
                return None
            [holder] = now
            return (
                holder if all(f"group {world.key.namespace}/{holder} has" in text for text in told.values()) else None
            )

        holder = await until(f"one of {left} to begin, the others to wait for it", one_has_begun)
        await world.api.delete(BROKER_GROUPS, holder, namespace=world.key.namespace)
        left.remove(holder)
