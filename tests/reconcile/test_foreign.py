"""An object of a name of ours that is somebody else's is not touched, and whoever looks at the group reads which it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.kube.resources import (
    BROKER_GROUPS,
    CONFIG_MAPS,
    EVENTS,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    SERVICES,
)
from brokergroup_operator.reconcile.see.foreign import is_ours
from tests.reconcile.world import named, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokergroup_operator.kube.resources import Resource
    from tests.reconcile.world import World

GROUP = {"metadata": {"name": "orders", "uid": "of-this-group"}}
OURS = {names.LABEL_APP_MANAGED_BY: names.MANAGED_BY}


@pytest.mark.parametrize(
    ("metadata", "ours"),
    [
        ({"labels": OURS | {names.LABEL_BROKER_GROUP: "orders"}}, True),
        ({"labels": OURS}, True),
        ({"ownerReferences": [{"uid": "of-this-group"}]}, True),
        ({}, False),
        ({"labels": {names.LABEL_BROKER_GROUP: "orders"}}, False),
        ({"labels": {names.LABEL_APP_MANAGED_BY: "Helm", names.LABEL_APP_INSTANCE: "orders"}}, False),
        # Of an older version, whose label another tool has since taken for its own.
        ({"labels": OURS | {names.LABEL_APP_INSTANCE: "shop-app"}}, True),
        ({"labels": OURS, "ownerReferences": [{"uid": "of-another"}]}, False),
        ({"labels": OURS | {names.LABEL_BROKER_GROUP: "payments"}}, False),
        ({"ownerReferences": [{"uid": "of-another"}]}, False),
    ],
    ids=[
        "all our labels", "without the one we list by", "owned, without labels", "bare", "our label put on by somebody",
        "of a Helm release", "with another tool's instance", "another's by its owner", "of another group", "owned by another",
    ],
)  # fmt: skip
def test_whose_it_is(metadata: dict[str, Any], ours: bool) -> None:
    assert is_ours({"metadata": metadata}, GROUP) is ours


PORTS = {"ports": [{"port": 80, "protocol": "TCP"}], "selector": {"app": "shop"}}
CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
FOREIGN: dict[str, tuple[Resource, str, dict[str, Any], int]] = {
    # What is there already, and how many pods come up beside it.
    "service": (SERVICES, "orders-master", {"spec": PORTS}, 3),
    "configmap": (CONFIG_MAPS, "orders-broker", {"data": {"mine": "1"}}, 0),
    "claim": (PERSISTENT_VOLUME_CLAIMS, "orders-2", {"spec": CLAIM}, 2),
    "pod": (PODS, "orders-2", {"spec": {"containers": [{"name": "app", "image": "shop"}]}}, 2),
}


@pytest.mark.parametrize("kind", list(FOREIGN))
async def test_it_is_left_as_it_is_and_the_group_says_so(
    world: World,
    start_plane: Callable[..., Any],
    kind: str,
) -> None:
    resource, name, content, pods = FOREIGN[kind]
    metadata = {"name": name, "namespace": world.key.namespace, "labels": {"app.kubernetes.io/managed-by": "Helm"}}
    before = await world.api.create(resource, {"metadata": metadata, **content})
    await start_plane(backoff_maximum_seconds=0.5, backoff_after_event_seconds=0.2)
    await world.create_group()

    async def stalled() -> dict[str, Any] | None:
        group = await world.api.get(BROKER_GROUPS, world.key.name, namespace=world.key.namespace)
        conditions = group.get("status", {}).get("conditions", [])
        return next((one for one in conditions if one["type"] == "Stalled" and one["status"] == "True"), None)

    condition = await until("Stalled", stalled)
    assert condition["reason"] == "NameTaken"
    assert f"{resource.kind} {name} is there and is none of this group's (managed by Helm)" in condition["message"]

    async def others_are_made() -> bool:
        own = [each for each in (await named(world, PODS)).values() if each["metadata"].get("ownerReferences")]
        told = [each for each in (await named(world, EVENTS)).values() if each["reason"] == "NameTaken"]
        return len(own) == pods and bool(told)

    await until("everything else", others_are_made)
    after = (await named(world, resource))[name]
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]

    # Once it is gone, the group's own is made.
    # Its finalizer, if it has one: nobody here is the controller that protects claims.
    free = {"metadata": {"finalizers": None}}
    await world.api.patch(resource, name, free, namespace=world.key.namespace)
    await world.api.delete(resource, name, namespace=world.key.namespace, grace_period_seconds=0)

    async def whole() -> bool:
        made = (await named(world, resource)).get(name)
        return made is not None and len(await named(world, PODS)) == 3 and await stalled() is None

    await until("a whole group", whole)


async def test_what_lost_the_label_that_we_list_by_is_mended(
    world: World,
    start_plane: Callable[..., Any],
) -> None:
    await start_plane(resync_seconds=0.2)
    await world.create_group()

    async def made() -> Any:
        return len(await named(world, PODS)) == 3 and (await named(world, PERSISTENT_VOLUME_CLAIMS)).get("orders-1")

    claim = await until("a claim", made)
    off = {"metadata": {"labels": {names.LABEL_BROKER_GROUP: None}}}
    await world.api.patch(PERSISTENT_VOLUME_CLAIMS, "orders-1", off, namespace=world.key.namespace)

    async def mended() -> bool:
        again = (await named(world, PERSISTENT_VOLUME_CLAIMS))["orders-1"]
        assert again["metadata"]["uid"] == claim["metadata"]["uid"]
        return bool(again["metadata"]["labels"].get(names.LABEL_BROKER_GROUP) == "orders")

    await until("its label again", mended)
