"""Whose an object is: which operator a group has, and which group an object has."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup import BrokerGroup
from brokergroup_operator.api.names import operator_of
from brokergroup_operator.api.pod_fence import FenceKeys
from brokergroup_operator.api.rocketmq_cluster import RocketMQCluster
from brokergroup_operator.kube import ConflictError, KubernetesApi
from brokergroup_operator.kube.resources import (
    BROKER_GROUP_OPERATIONS,
    BROKER_GROUPS,
    CONFIG_MAPS,
    EVENTS,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    SERVICES,
)
from brokergroup_operator.reconcile.act import ownership
from brokergroup_operator.reconcile.clusters import parts
from brokergroup_operator.reconcile.identity import Member
from brokergroup_operator.reconcile.operations.runner import OperationRunner
from brokergroup_operator.reconcile.render import children
from brokergroup_operator.reconcile.render.addressing import build_member_service
from brokergroup_operator.reconcile.render.children import build_disruption_budgets
from brokergroup_operator.reconcile.render.pods import build_pod
from brokergroup_operator.reconcile.see.fetch import GroupFetcher
from brokergroup_operator.reconcile.see.foreign import is_ours
from brokergroup_operator.reconcile.tell.events import EventPoster
from tests.reconcile.builders import SETTINGS
from tests.reconcile.fake_view import FakeGroupView, PatientRecordStore
from tests.reconcile.world import KEY, named, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from brokergroup_operator.kube.resources import Resource
    from kube_sandbox.api_server.server import SandboxApiServer
    from tests.reconcile.world import World


FIRST, SECOND = "first-system/brokergroup-operator", "second-system/brokergroup-operator"


@pytest.fixture
async def api(sandbox: SandboxApiServer) -> AsyncIterator[KubernetesApi]:
    async with KubernetesApi.from_url(sandbox.url) as client:
        group = {"metadata": {"name": "orders", "namespace": "default"}, "spec": {"implementation": "Python"}}
        await client.create(BROKER_GROUPS, group)
        yield client


async def group_of(api: KubernetesApi) -> dict[str, Any]:
    return await api.get(BROKER_GROUPS, "orders", namespace="default")


async def take(api: KubernetesApi, operator: str | None, *, seen: dict[str, Any] | None = None) -> Any:
    events = EventPoster(api, instance="test")
    group = seen if seen is not None else await group_of(api)
    return await ownership.take(api, events, group, operator=operator)


async def test_the_first_takes_it_and_keeps_it(api: KubernetesApi) -> None:
    taken = await take(api, FIRST)
    assert operator_of(taken) == operator_of(await group_of(api)) == FIRST
    assert await take(api, FIRST) == taken, "a second pass writes nothing"


async def test_of_two_that_saw_it_free_one_gets_it(api: KubernetesApi) -> None:
    seen = await group_of(api)
    await take(api, FIRST, seen=seen)
    with pytest.raises(ConflictError):
        await take(api, SECOND, seen=seen)
    assert operator_of(await group_of(api)) == FIRST


@pytest.mark.parametrize("other", [SECOND, None], ids=["another release", "one without a Lease"])
async def test_another_operator_leaves_it_alone_and_says_so(api: KubernetesApi, other: str | None) -> None:
    before = await take(api, FIRST)
    assert await take(api, other) is None
    assert await group_of(api) == before
    [event] = (await api.list(EVENTS, namespace="default")).items
    assert (event["reason"], event["type"]) == ("ServedByAnotherOperator", "Warning")
    assert f"operator {FIRST} reconciles it" in event["message"]


async def test_without_a_lease_nothing_is_taken(api: KubernetesApi) -> None:
    before = await group_of(api)
    assert await take(api, None) == before == await group_of(api)


@pytest.mark.parametrize("holder", [FIRST, None], ids=["another's", "none yet"])
async def test_what_is_asked_of_a_group_is_done_by_its_own_operator(api: KubernetesApi, holder: str | None) -> None:
    if holder is not None:
        merge = {"metadata": {"annotations": {names.ANNOTATION_OPERATOR: holder}}}
        await api.patch(BROKER_GROUPS, "orders", merge, namespace="default")
    spec = {"brokerGroupRef": {"name": "orders"}, "type": "Switchover", "switchover": {}}
    await api.create(BROKER_GROUP_OPERATIONS, {"metadata": {"name": "move", "namespace": "default"}, "spec": spec})
    view = FakeGroupView(PatientRecordStore(api))
    read = GroupFetcher(api, view).fetch_for_operations
    post = EventPoster(api, instance="test").post
    runner = OperationRunner(
        api, view, operator=SECOND, settings=SETTINGS, read=read, post=post, wake=lambda _key: None
    )
    await runner.run_pass(KEY)
    await runner.stop()
    assert "status" not in await api.get(BROKER_GROUP_OPERATIONS, "move", namespace="default")


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
        "all our labels", "without the one we list by", "owned, without labels", "bare", "our label put on by a user",
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
async def test_it_is_left_as_it_is_and_the_group_says_so(world: World, kind: str) -> None:
    resource, name, content, pods = FOREIGN[kind]
    metadata = {"name": name, "namespace": world.key.namespace, "labels": {"app.kubernetes.io/managed-by": "Helm"}}
    before = await world.api.create(resource, {"metadata": metadata, **content})
    await world.start_plane(backoff_maximum_seconds=0.5, backoff_after_event_seconds=0.2)
    await world.create_group()

    async def stalled() -> dict[str, Any] | None:
        found = (await world.conditions()).get("Stalled")
        return found if found and found["status"] == "True" else None

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
    # Its finalizer, if it has one: no controller that protects claims runs here.
    await world.patch(resource, name, {"metadata": {"finalizers": None}})
    await world.delete(resource, name, grace_period_seconds=0)

    async def whole() -> bool:
        made = (await named(world, resource)).get(name)
        return made is not None and len(await named(world, PODS)) == 3 and await stalled() is None

    await until("a whole group", whole)


TAILS = (
    *("", "-1", "-2", "-1-1", "-0", "-master", "-slaves", "-members", "-broker", "-fence"),
    *("-1-commitlog", "-commitlog", "-nameserver", "-proxy"),
)
GROUPS = [f"x{tail}" for tail in TAILS]
KEYS = FenceKeys(b"0" * 32)


def named_group(name: str) -> BrokerGroup:
    spec = {"storage": {"commitLog": {}}, "network": {"addressing": "ServiceIP"}}
    metadata = {"name": name, "namespace": "shop", "uid": f"uid-of-{name}"}
    return msgspec.convert({"metadata": metadata, "spec": spec}, BrokerGroup)


def of_group(name: str) -> list[dict[str, Any]]:
    one = named_group(name)
    made = [
        children.build_config_map(one, SETTINGS),
        *children.build_services(one),
        *build_disruption_budgets(one, open_for_one=True),
        {"kind": "Secret", "metadata": {"name": KEYS.secret_name(name, f"uid-of-{name}")}},
        # Beside it, by its own name: the record and the group's own object.
        {"kind": "BrokerGroupState", "metadata": {"name": name}},
        {"kind": "BrokerGroup", "metadata": {"name": name}},
    ]
    for broker_id in (1, 2, 11):
        member = Member(broker_id=broker_id, pod=f"{name}-{broker_id}")
        made += [
            children.build_claim(one, member),
            children.build_commit_log_claim(one, member),
            build_member_service(one, member, slot=0),
            build_pod(one, member, SETTINGS),
        ]
    return made


def of_cluster(name: str) -> list[dict[str, Any]]:
    obj = {
        "metadata": {"name": name, "namespace": "shop", "uid": f"uid-of-cluster-{name}"},
        "spec": {"proxy": {}, "nameServer": {"replicas": 3}},
    }
    cluster = msgspec.convert(obj, RocketMQCluster)
    pods = [{"kind": "Pod", "metadata": {"name": f"{name}-nameserver-{ordinal}", "labels": {}}} for ordinal in range(3)]
    return [
        *parts.name_servers(cluster, SETTINGS),
        *parts.proxies(cluster, SETTINGS),
        *parts.broker_groups(cluster, obj),
        *pods,
    ]


def meeting(makers: dict[str, list[dict[str, Any]]]) -> dict[tuple[str, str], list[str]]:
    """Kind and name of what several of them make."""
    made: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for maker, objects in makers.items():
        for obj in objects:
            made[obj["kind"], obj["metadata"]["name"]].append(maker)
    return {place: owners for place, owners in made.items() if len(owners) > 1}


def test_no_two_groups_make_one_object() -> None:
    assert meeting({name: of_group(name) for name in GROUPS}) == {}


def test_a_cluster_and_a_group_meet_where_the_group_is_called_like_a_part() -> None:
    """Each leaves what is the other's alone and names it: `NameTaken` of the group, `NotOurs` of the cluster (`see/foreign.py`)."""
    met = meeting({"cluster x": of_cluster("x")} | {name: of_group(name) for name in GROUPS})
    assert met == {
        ("BrokerGroup", "x-0"): ["cluster x", "x-0"],
        ("PodDisruptionBudget", "x-nameserver"): ["cluster x", "x-nameserver"],
        ("Pod", "x-nameserver-1"): ["cluster x", "x-nameserver"],
        ("Pod", "x-nameserver-2"): ["cluster x", "x-nameserver"],
        ("PodDisruptionBudget", "x-proxy"): ["cluster x", "x-proxy"],
    }


@pytest.mark.parametrize(("one", "other"), list(itertools.permutations(("x", "x-1", "x-nameserver", "x-proxy"), 2)))
def test_neither_takes_the_others_for_its_own(one: str, other: str) -> None:
    own = {"metadata": named_group(one).metadata}
    assert not any(is_ours(obj, own) for obj in of_group(other) if "labels" in obj["metadata"])
    taken = [obj for obj in of_cluster("x") if obj["kind"] in {"PodDisruptionBudget", "Pod"} and one != "x"]
    assert not any(is_ours(obj, own) for obj in taken)
