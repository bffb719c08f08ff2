"""Which operation a pass of the reconcile plane goes by."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.kube import resources
from brokergroup_operator.reconcile.access import ClusterAccess
from brokergroup_operator.reconcile.see.fetch import GroupFetcher
from brokergroup_operator.records.store import GroupKey
from tests.reconcile.world import World, applier_for

if TYPE_CHECKING:
    from brokergroup_operator.kube.client import KubernetesApi
    from kube_sandbox.api_server.server import SandboxApiServer


@pytest.mark.parametrize(("owner", "counts"), [(None, True), ("this", True), ("another", False)])
async def test_a_rebuild_of_an_earlier_group_of_this_name_costs_the_new_one_no_volume(
    sandbox: SandboxApiServer, api: KubernetesApi, owner: str | None, counts: bool
) -> None:
    """Deleted and made again between two passes: what ran stays Running until the garbage collector comes."""
    applier, key = applier_for(ClusterAccess(url=sandbox.url)), GroupKey("default", f"orders-of-{owner}".lower())
    world = World(api, applier, key)
    await world.create_group()
    await applier.close()
    await world.run_operation("Rebuild", rebuild={"brokerId": 1})
    fetcher = GroupFetcher(api, world.view)
    before = await fetcher.fetch(key)
    assert before is not None
    if owner is not None:
        uid = before.group_object["metadata"]["uid"] if owner == "this" else "of-an-earlier-one"
        reference = {"apiVersion": names.API_VERSION, "kind": names.BROKER_GROUP_KIND, "name": key.name, "uid": uid}
        await api.patch(
            resources.BROKER_GROUP_OPERATIONS,
            "rebuild",
            {"metadata": {"ownerReferences": [reference]}},
            namespace=key.namespace,
        )
    after = await fetcher.fetch(key)
    assert after is not None
    assert (after.operation is not None) == counts
