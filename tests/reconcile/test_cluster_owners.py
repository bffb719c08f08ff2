"""Whose a part of a cluster is: orphaned and taken back, another operator's, a person's, or not ours to write."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.kube.errors import ApiError, NotFoundError
from brokergroup_operator.kube.resources import (
    BROKER_GROUPS,
    DEPLOYMENTS,
    ROCKETMQ_CLUSTERS,
    SERVICES,
    STATEFUL_SETS,
)
from brokergroup_operator.reconcile.see.fetch import wanted_by
from brokergroup_operator.reconcile.settings import LeaderElectionSettings
from tests.reconcile.cluster_place import SETTINGS, Place
from tests.reconcile.world import SANDBOX, before_the_first, orphan_at, refuse_network_policies, until_is

if TYPE_CHECKING:
    from brokergroup_operator.kube.resources import Resource
    from kube_sandbox.api_server.server import SandboxApiServer

WHOLE: dict[str, Any] = {"proxy": {"replicas": 1}, "brokerGroups": {"count": 2}}
HELD = {"metadata": {"finalizers": ["example.com/held"]}}


def of_all(metadata: dict[str, dict[str, Any]], field: str) -> dict[str, Any]:
    return {name: one.get(field) for name, one in metadata.items()}


@pytest.mark.parametrize(
    ("resource", "name", "spec"),
    [
        (BROKER_GROUPS, "shop-0", {"replicas": 1, "nameServers": ["ns:9876"]}),
        (SERVICES, "shop-nameserver", {"ports": [{"port": 80}]}),
    ],
    ids=["BrokerGroup", "Service"],
)
async def test_what_was_there_before_has_another_owner(
    place: Place, resource: Resource, name: str, spec: dict[str, Any]
) -> None:
    metadata = {"name": name, "namespace": place.key.namespace}
    before = await place.api.create(resource, {"metadata": metadata, "spec": spec})
    await place.made()
    after = await place.get(resource, name)
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    await place.stalls("NotOurs", f"{resource.kind} {name}")


async def test_a_cluster_of_another_operator_is_left_alone(place: Place) -> None:
    await place.make()
    elections = (LeaderElectionSettings(namespace=namespace, identity="pod-0") for namespace in ("one", "two"))
    first, second = (
        Place(place.api, place.key.namespace, replace(SETTINGS, leader_election=election)) for election in elections
    )
    await first.run()
    before = await place.versions()
    await second.run()
    assert await place.versions() == before
    assert await place.events() == ["ServedByAnotherOperator"]


async def test_a_cluster_that_is_gone_or_going_is_left_to_the_garbage_collector(place: Place) -> None:
    assert await place.run() is None
    await place.make()
    await place.patch(ROCKETMQ_CLUSTERS, "shop", HELD)
    await place.delete(ROCKETMQ_CLUSTERS, "shop")
    assert await place.run() is None
    with pytest.raises(NotFoundError):
        await place.get(STATEFUL_SETS, "shop-nameserver")


@SANDBOX
async def test_an_orphaned_clusters_parts_stay_and_are_taken_back_as_they_are(place: Place) -> None:
    """`kubectl delete --cascade=orphan`: BrokerGroups, NameServers and Proxies stay, and nothing of them is written anew."""
    await place.made(**WHOLE)
    before = await place.metadata()
    await place.orphan()
    assert await place.run() is None
    left = await place.metadata()
    assert left.keys() == before.keys()
    assert not any(one.get("ownerReferences") or "deletionTimestamp" in one for one in left.values())

    await place.made(**WHOLE)
    uid = (await place.get(ROCKETMQ_CLUSTERS, "shop"))["metadata"]["uid"]
    again = await place.metadata()
    for field in ("uid", "generation"):
        assert of_all(again, field) == of_all(before, field)
    assert {owner["uid"] for one in again.values() for owner in one["ownerReferences"]} == {uid}
    assert not await place.is_stalled()


@SANDBOX
async def test_in_the_foreground_the_cluster_goes_last(place: Place) -> None:
    await place.made(**WHOLE)
    await place.patch(BROKER_GROUPS, "shop-1", HELD)
    await place.delete(ROCKETMQ_CLUSTERS, "shop", propagation_policy="Foreground")
    await until_is("the rest is gone", ["BrokerGroup shop-1"], place.names_of_parts)
    assert await place.run() is None
    assert await place.names(ROCKETMQ_CLUSTERS) == ["shop"]
    await place.patch(BROKER_GROUPS, "shop-1", {"metadata": {"finalizers": None}})
    await place.until_gone()
    assert await place.metadata() == {}


@SANDBOX
async def test_what_the_next_cluster_asks_for_no_more_is_its_own_to_delete(place: Place) -> None:
    await place.made(**WHOLE)
    await place.orphan()
    await place.made(brokerGroups={"count": 1})
    assert await place.names(DEPLOYMENTS) == []
    assert await place.names(BROKER_GROUPS) == ["shop-0", "shop-1"]
    assert (await place.condition("Stalled"))[1] == "GroupsBeyondCount"


@SANDBOX
@pytest.mark.parametrize("moment", ["listed", "applied"])
async def test_a_pass_under_way_gives_no_part_an_owner_that_is_going(
    place: Place, sandbox: SandboxApiServer, moment: str
) -> None:
    """An operator that has just started applies every part once; the cluster goes between its look and its write."""
    await place.made(**WHOLE)
    before = await place.metadata()

    def is_due(request: Any) -> bool:
        return request.method == "PATCH" if moment == "applied" else "labelSelector" in request.query

    async with before_the_first(sandbox, is_due, lambda: orphan_at(sandbox, place, "rocketmqclusters")):
        with contextlib.suppress(ApiError):  # its status has no cluster any more
            await Place(place.api, place.key.namespace).run()
    sandbox.store.run_background()
    after = await place.metadata()
    assert of_all(after, "uid") == of_all(before, "uid")
    assert not any(one.get("ownerReferences") for one in after.values())


@SANDBOX
async def test_a_part_whose_status_moves_on_is_applied_all_the_same(place: Place, sandbox: SandboxApiServer) -> None:
    await place.made()
    await place.patch(ROCKETMQ_CLUSTERS, "shop", {"spec": {"nameServer": {"replicas": 3}}})

    def applies_it(request: Any) -> bool:
        return bool(request.method == "PATCH" and request.path.endswith("/statefulsets/shop-nameserver"))

    async with before_the_first(sandbox, applies_it, lambda: place.pods_are_ready(STATEFUL_SETS, "shop-nameserver", 2)):
        await place.run()
    assert (await place.get(STATEFUL_SETS, "shop-nameserver"))["spec"]["replicas"] == 3
    assert not await place.is_stalled()


async def test_a_persons_objects_with_our_label_are_not_taken(place: Place) -> None:
    """A copy of a part under another name, and one of a part's name that this operator has not made."""
    labels = {names.LABEL_ROCKETMQ_CLUSTER: "shop"}
    ours = labels | {names.LABEL_APP_MANAGED_BY: names.MANAGED_BY}
    persons = {"shop-copy": ours, "shop-nameserver": labels}
    for name, labels in persons.items():
        metadata = {"name": name, "namespace": place.key.namespace, "labels": labels}
        await place.api.create(SERVICES, {"metadata": metadata, "spec": {"ports": [{"port": 80}]}})
    await place.made()
    for name in persons:
        assert "ownerReferences" not in (await place.get(SERVICES, name))["metadata"]
    assert (await place.condition("Stalled"))[1] == "NotOurs"


@SANDBOX
async def test_without_the_right_to_network_policies_only_what_asks_for_them_stalls(
    place: Place, sandbox: SandboxApiServer
) -> None:
    """A role of before, where the chart makes none (rbac.create=false)."""
    sandbox.before_request = refuse_network_policies
    await place.made(brokerGroups={"count": 1})
    assert await place.names(BROKER_GROUPS) == ["shop-0"]
    assert not await place.is_stalled()
    await place.changed({"network": {"policy": {}}, "brokerGroups": {"count": 2}})
    assert await place.names(BROKER_GROUPS) == ["shop-0", "shop-1"]
    await place.stalls("Refused", "NetworkPolicy shop-nameserver: ", "networkpolicies")
    sandbox.before_request = None
    await place.run()
    assert not await place.is_stalled()


@pytest.mark.parametrize(
    ("count", "group_name", "wanted"),
    [(2, "shop-1", True), (2, "shop-2", False), (2, "other-1", False), (2, "shop-01", False)],
)
def test_only_a_group_beyond_the_count_is_not_wanted(count: int, group_name: str, wanted: bool) -> None:
    cluster: dict[str, Any] = {"metadata": {"name": "shop"}, "spec": {"brokerGroups": {"count": count}}}
    assert bool(wanted_by(cluster, group_name)) is wanted
    cluster["metadata"]["deletionTimestamp"] = "2026-11-21T00:00:00Z"
    assert wanted_by(cluster, group_name) == ""
