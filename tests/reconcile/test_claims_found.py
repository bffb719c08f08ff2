"""A disk is lost when its claim is gone, not when its claim lacks the label by which the claims are listed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.kube.resources import PERSISTENT_VOLUME_CLAIMS
from brokergroup_operator.reconcile.access import ClusterAccess
from brokergroup_operator.reconcile.see.foreign import NameTakenError
from brokergroup_operator.records.store import GroupKey
from tests.reconcile.world import World, applier_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from brokergroup_operator.kube.client import KubernetesApi
    from kube_sandbox.api_server.server import SandboxApiServer

POD = "orders-2"


@pytest.fixture
async def world(sandbox: SandboxApiServer, api: KubernetesApi) -> AsyncIterator[World]:
    applier = applier_for(ClusterAccess(url=sandbox.url))
    made = World(api, applier, GroupKey("default", "orders"))
    # `settle` counts the writes that it sees there.
    sandbox.before_request = made.observe
    made.brokers_run = True
    await made.create_group()
    await made.settle()
    yield made
    await applier.close()


async def ids(world: World) -> list[int]:
    stored = await world.view.store.read(world.key)
    assert stored is not None
    return sorted(stored.record.replicas)


async def claims(world: World) -> dict[str, dict[str, Any]]:
    listed = await world.api.list(PERSISTENT_VOLUME_CLAIMS, namespace=world.key.namespace)
    return {item["metadata"]["name"]: item for item in listed.items}


async def test_a_claim_without_the_label_is_no_lost_disk(world: World) -> None:
    off = {"metadata": {"labels": {names.LABEL_BROKER_GROUP: None}}}
    await world.api.patch(PERSISTENT_VOLUME_CLAIMS, POD, off, namespace=world.key.namespace)
    await world.stop_pod(POD)
    await world.settle()
    assert await ids(world) == [1, 2, 3]
    assert (await claims(world))[POD]["metadata"]["labels"][names.LABEL_BROKER_GROUP] == "orders"


async def test_a_claim_that_a_person_made_again_waits_for_the_person(world: World) -> None:
    """With no label at all it may be anybody's: it is not taken over, and the id is not given up."""
    await world.api.delete(PERSISTENT_VOLUME_CLAIMS, POD, namespace=world.key.namespace)
    bare = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    await world.stop_pod(POD)
    metadata = {"name": POD, "namespace": world.key.namespace}
    await world.api.create(PERSISTENT_VOLUME_CLAIMS, {"metadata": metadata, "spec": bare})
    with pytest.raises(NameTakenError, match=f"PersistentVolumeClaim {POD} is there and is none of this group's"):
        await world.run_pass()
    assert await ids(world) == [1, 2, 3]

    ours = {names.LABEL_BROKER_GROUP: "orders", names.LABEL_APP_MANAGED_BY: names.MANAGED_BY}
    await world.api.patch(PERSISTENT_VOLUME_CLAIMS, POD, {"metadata": {"labels": ours}}, namespace=world.key.namespace)
    await world.settle()
    assert await ids(world) == [1, 2, 3]
    assert POD in {pod["metadata"]["name"] for pod in await world._pods()}


async def test_a_claim_that_is_gone_is_a_lost_disk(world: World) -> None:
    await world.api.delete(PERSISTENT_VOLUME_CLAIMS, POD, namespace=world.key.namespace)
    await world.stop_pod(POD)
    await world.settle()
    assert await ids(world) == [1, 3, 4]
