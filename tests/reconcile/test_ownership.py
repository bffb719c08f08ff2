"""Whose an object is: which operator a group has, which group an object has, and what another tool may take for its own."""

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
from brokergroup_operator.kube.client import PatchType
from brokergroup_operator.kube.resources import (
    BROKER_GROUP_OPERATIONS,
    BROKER_GROUP_STATES,
    BROKER_GROUPS,
    CONFIG_MAPS,
    EVENTS,
    LEASES,
    PERSISTENT_VOLUME_CLAIMS,
    POD_DISRUPTION_BUDGETS,
    PODS,
    SECRETS,
    SERVICES,
)
from brokergroup_operator.reconcile.act import ownership
from brokergroup_operator.reconcile.clusters import parts
from brokergroup_operator.reconcile.identity import Member
from brokergroup_operator.reconcile.operations.runner import OperationRunner
from brokergroup_operator.reconcile.plan import ApplyObject, MakeSecret
from brokergroup_operator.reconcile.render import children
from brokergroup_operator.reconcile.render.addressing import build_member_service
from brokergroup_operator.reconcile.render.children import build_disruption_budgets
from brokergroup_operator.reconcile.render.pods import build_pod
from brokergroup_operator.reconcile.see.fetch import GroupFetcher
from brokergroup_operator.reconcile.see.foreign import is_ours, with_revision
from brokergroup_operator.reconcile.tell.events import EventPoster
from tests.reconcile import builders as b
from tests.reconcile import cases as c
from tests.reconcile.builders import SETTINGS
from tests.reconcile.cases import lines_of, run
from tests.reconcile.fake_view import FakeGroupView, PatientRecordStore
from tests.reconcile.world import KEY, SANDBOX, delete, named, orphan, ready, uids_of, until, until_gone, until_is

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
    free = {"metadata": {"finalizers": None}}
    await world.patch(resource, name, free)
    await world.delete(resource, name, grace_period_seconds=0)

    async def whole() -> bool:
        made = (await named(world, resource)).get(name)
        return made is not None and len(await named(world, PODS)) == 3 and await stalled() is None

    await until("a whole group", whole)


async def test_what_lost_the_label_that_we_list_by_is_mended(world: World) -> None:
    await world.start_plane(resync_seconds=0.2)
    await world.create_group()

    async def made() -> Any:
        return len(await named(world, PODS)) == 3 and (await named(world, PERSISTENT_VOLUME_CLAIMS)).get("orders-1")

    claim = await until("a claim", made)
    off = {"metadata": {"labels": {names.LABEL_BROKER_GROUP: None}}}
    await world.patch(PERSISTENT_VOLUME_CLAIMS, "orders-1", off)

    async def mended() -> bool:
        again = (await named(world, PERSISTENT_VOLUME_CLAIMS))["orders-1"]
        assert again["metadata"]["uid"] == claim["metadata"]["uid"]
        return bool(again["metadata"]["labels"].get(names.LABEL_BROKER_GROUP) == "orders")

    await until("its label again", mended)


TAILS = (
    "",
    "-1",
    "-2",
    "-1-1",
    "-master",
    "-slaves",
    "-members",
    "-broker",
    "-1-commitlog",
    "-commitlog",
    "-fence",
    "-0",
    "-nameserver",
    "-proxy",
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


KINDS = (
    PODS, SERVICES, CONFIG_MAPS, POD_DISRUPTION_BUDGETS, PERSISTENT_VOLUME_CLAIMS, BROKER_GROUP_STATES, SECRETS, LEASES,
)  # fmt: skip
INSTANCE = "app.kubernetes.io/instance"
# What tools put on a BrokerGroup that they applied.
ARGO = {
    "labels": {INSTANCE: "orders"},
    "annotations": {"argocd.argoproj.io/tracking-id": "orders:brokergroup.dev/BrokerGroup:a/b"},
}
FLUX = {
    "labels": {"kustomize.toolkit.fluxcd.io/name": "orders", "kustomize.toolkit.fluxcd.io/namespace": "flux-system"}
}
HELM = {
    "labels": {"app.kubernetes.io/managed-by": "Helm", "helm.sh/chart": "shop-1.0.0", INSTANCE: "orders"},
    "annotations": {"meta.helm.sh/release-name": "orders", "meta.helm.sh/release-namespace": "shop"},
}
KAPP = {"labels": {"kapp.k14s.io/app": "1", "kapp.k14s.io/association": "v1.a"}}
TOOLS = {"argo": ARGO, "flux": FLUX, "helm": HELM, "kapp": KAPP}


async def all_uids(world: World) -> dict[tuple[str, str], str]:
    return {
        (resource.kind, obj["metadata"]["name"]): obj["metadata"]["uid"]
        for resource in KINDS
        for obj in await world.items(resource)
    }


async def pruned(world: World, selector: str) -> list[str]:
    """Return what an application prunes: objects with its label and without an owner."""
    key, _, value = selector.partition("=")
    return [
        f"{resource.kind} {one['metadata']['name']}"
        for resource in KINDS
        for one in await world.items(resource)
        if not one["metadata"].get("ownerReferences")
        and key in (labels := one["metadata"].get("labels") or {})
        and (not value or labels[key] == value)
    ]


@SANDBOX
@pytest.mark.parametrize("tool", list(TOOLS))
async def test_nothing_of_ours_is_an_applications(world: World, tool: str) -> None:
    """Neither by our labels, nor by the tool's label on the BrokerGroup, nor after the group is orphaned.

    Reports: VictoriaMetrics/operator #90, argo-cd #1250, #3050, #10974.
    """
    await ready(world, fence_keys=b.SIGNED.fence_keys)
    await world.patch(BROKER_GROUPS, "orders", {"metadata": TOOLS[tool], "spec": {"image": "example/other:2"}})

    async def noticed() -> bool:
        group = await world.group()
        return bool(group["status"].get("observedGeneration") == group["metadata"]["generation"])

    await until("the change is seen", noticed)
    selectors = [INSTANCE, *(f"{key}={value}" for key, value in TOOLS[tool]["labels"].items())]
    for selector in selectors:
        assert await pruned(world, selector) == []
    await orphan(world)
    for selector in selectors:
        assert await pruned(world, selector) == []
    annotated = [
        f"{resource.kind} {name}"
        for resource in KINDS
        for name, obj in (await named(world, resource)).items()
        if set(TOOLS[tool].get("annotations", {})) & set(obj["metadata"].get("annotations") or {})
    ]
    assert annotated == []


@pytest.mark.parametrize("implementation", ["Python", "Java"])
@pytest.mark.parametrize("addressing", ["PodIP", "ServiceIP", "NodePort", "LoadBalancer"])
def test_no_object_is_rendered_with_an_applications_label(implementation: str, addressing: str) -> None:
    network = {"addressing": addressing} | ({"firstNodePort": 30100} if addressing == "NodePort" else {})
    spec: dict[str, Any] = {"implementation": implementation, "network": network, "storage": {"commitLog": {}}}
    seen = c.settled(**spec)
    bare = b.changed(seen, pods={}, services={}, config_maps={}, disruption_budgets={}, claims={}, snapshot=None)
    made = [one for one in run(bare).actions if isinstance(one, ApplyObject | MakeSecret)]
    assert len({one.object["kind"] for one in made}) >= 3
    assert not [one.target for one in made if INSTANCE in one.object["metadata"]["labels"]]


def test_no_part_of_a_cluster_bears_one_but_pods_that_always_have_an_owner() -> None:
    """They keep it: without it each NameServer would be restarted by an upgrade of the operator."""
    raw = {"metadata": {"name": "shop", "namespace": "a", "uid": "u"}, "spec": {"proxy": {"replicas": 1}}}
    cluster = msgspec.convert(raw, RocketMQCluster)
    made = [
        *parts.name_servers(cluster, b.SETTINGS),
        *parts.broker_groups(cluster, raw),
        *parts.proxies(cluster, b.SETTINGS),
    ]
    assert not [one["kind"] for one in made if INSTANCE in one["metadata"]["labels"]]
    templates = [one["spec"]["template"]["metadata"]["labels"] for one in made if "template" in one.get("spec", {})]
    assert templates == [parts.part_pod_labels("shop", "nameserver"), parts.part_pod_labels("shop", "proxy")]
    assert all(labels[INSTANCE] == "shop" for labels in templates)
    selectors = [
        one["spec"]["selector"].get("matchLabels") for one in made if one["kind"] in {"StatefulSet", "Deployment"}
    ]
    assert all(INSTANCE not in selector for selector in selectors)


# ---- what older versions made


SPECS_OF_OURS = {
    SERVICES: ("selector", "ports"),
    POD_DISRUPTION_BUDGETS: ("minAvailable", "unhealthyPodEvictionPolicy", "selector"),
    PERSISTENT_VOLUME_CLAIMS: ("accessModes", "resources"),
}


async def as_an_older_version_made_it(world: World) -> None:
    """Applied with the label, under another revision; and pods that do not say for which group they were made."""
    for name in await named(world, PODS):
        metadata = {"labels": {INSTANCE: "orders"}, "annotations": {names.ANNOTATION_GROUP_UID: None}}
        await world.patch(PODS, name, {"metadata": metadata}, field_manager=names.FIELD_MANAGER_RECONCILE)
    for resource in (SERVICES, CONFIG_MAPS, POD_DISRUPTION_BUDGETS, PERSISTENT_VOLUME_CLAIMS):
        for name, obj in (await named(world, resource)).items():
            own = {field: obj[field] for field in ("data",) if field in obj}
            if resource in SPECS_OF_OURS:
                own["spec"] = {field: obj["spec"][field] for field in SPECS_OF_OURS[resource]}
            metadata = {
                "name": name,
                "namespace": world.key.namespace,
                "labels": obj["metadata"]["labels"] | {INSTANCE: "orders"},
                "annotations": {names.ANNOTATION_REVISION: "of-before"},
                **{field: obj["metadata"][field] for field in ("ownerReferences",) if field in obj["metadata"]},
            }
            kind = {"apiVersion": resource.api_version, "kind": resource.kind}
            await world.applier.apply(resource, {**kind, "metadata": metadata, **own})


async def test_what_an_older_version_made_loses_the_label_and_nothing_else(world: World) -> None:
    plane = await ready(world)
    await plane.stop()
    await as_an_older_version_made_it(world)
    before = await all_uids(world)
    assert len(await pruned(world, INSTANCE)) == 3
    await world.start_plane()

    async def mended() -> bool:
        await world.run_kubelet()
        left = [
            name
            for resource in (PODS, SERVICES, CONFIG_MAPS, POD_DISRUPTION_BUDGETS, PERSISTENT_VOLUME_CLAIMS)
            for name, obj in (await named(world, resource)).items()
            if INSTANCE in obj["metadata"]["labels"]
        ]
        marked = [pod["metadata"]["annotations"].get(names.ANNOTATION_GROUP_UID) for pod in await world.items(PODS)]
        return not left and None not in marked

    await until("no label is left", mended)
    assert await all_uids(world) == before


@SANDBOX
async def test_claims_of_a_group_that_is_gone_lose_it_too(world: World) -> None:
    plane = await ready(world)
    await delete(world, "Background")

    await until_gone(world)
    await plane.stop()
    await as_an_older_version_made_it(world)
    assert len(await pruned(world, INSTANCE)) == 3
    await world.start_plane()

    await until_is("no label is left", [], lambda: pruned(world, INSTANCE))
    assert sorted(await named(world, PERSISTENT_VOLUME_CLAIMS)) == ["orders-1", "orders-2", "orders-3"]


@SANDBOX
async def test_what_was_made_under_v1alpha1_has_its_owner_by_the_present_version(world: World) -> None:
    """A cluster's garbage collector finds no owner of a version that is not served. No pod restarts for it."""
    plane = await ready(world)
    await plane.stop()
    owned = (PODS, SERVICES, CONFIG_MAPS, POD_DISRUPTION_BUDGETS)
    before = {}
    for resource in owned:
        for name, one in (await named(world, resource)).items():
            [owner] = one["metadata"]["ownerReferences"]
            former = {"metadata": {"ownerReferences": [owner | {"apiVersion": f"{names.GROUP}/v1alpha1"}]}}
            content_type = PatchType.STRATEGIC
            await world.patch(resource, name, former, content_type=content_type)
            before[resource.kind, name] = (one["metadata"]["uid"], [owner])
    await world.start_plane()

    async def mended() -> bool:
        now = {
            (resource.kind, name): (one["metadata"]["uid"], one["metadata"]["ownerReferences"])
            for resource in owned
            for name, one in (await named(world, resource)).items()
        }
        assert {place: uid for place, (uid, _) in now.items()} == {place: uid for place, (uid, _) in before.items()}
        return now == before

    await until("each owner has the present version", mended)


@SANDBOX
async def test_anothers_label_of_that_name_is_left(world: World) -> None:
    """A policy that puts it on every object would put it on again for ever."""
    await ready(world, resync_seconds=0.2)
    for resource, name in ((PODS, "orders-1"), (PERSISTENT_VOLUME_CLAIMS, "orders-1"), (SERVICES, "orders-master")):
        await world.patch(resource, name, {"metadata": {"labels": {INSTANCE: "policy"}}}, field_manager="kyverno")
    await world.patch(BROKER_GROUPS, "orders", {"spec": {"storage": {"size": "9Gi"}}})

    async def grown() -> bool:
        claims = await named(world, PERSISTENT_VOLUME_CLAIMS)
        return all(one["spec"]["resources"]["requests"]["storage"] == "9Gi" for one in claims.values())

    await until("the claims have grown", grown)
    for resource, name in ((PODS, "orders-1"), (PERSISTENT_VOLUME_CLAIMS, "orders-1"), (SERVICES, "orders-master")):
        assert (await named(world, resource))[name]["metadata"]["labels"][INSTANCE] == "policy"


# ---- storage.claimTemplate


@SANDBOX
async def test_labels_and_annotations_reach_claims_that_are_there(world: World) -> None:
    """Given, changed and taken back, with no restart, and while claims grow."""
    await ready(world)
    pods = await uids_of(world, PODS)
    claims = await uids_of(world, PERSISTENT_VOLUME_CLAIMS)

    async def become(template: Any, size: str, label: str | None, annotation: str | None) -> None:
        await world.patch(BROKER_GROUPS, "orders", {"spec": {"storage": {"claimTemplate": template, "size": size}}})

        async def reached() -> bool:
            return all(
                one["metadata"]["labels"].get("velero.io/backup") == label
                and one["metadata"]["annotations"].get("argocd.argoproj.io/sync-options") == annotation
                and one["spec"]["resources"]["requests"]["storage"] == size
                for one in (await named(world, PERSISTENT_VOLUME_CLAIMS)).values()
            )

        await until(f"the claims have {template}", reached)

    keep = {"argocd.argoproj.io/sync-options": "Prune=false"}
    metadata = {"labels": {"velero.io/backup": "daily"}, "annotations": keep}
    await become({"metadata": metadata}, "8Gi", "daily", "Prune=false")
    await become({"metadata": metadata | {"labels": {"velero.io/backup": "hourly"}}}, "9Gi", "hourly", "Prune=false")
    await become({"metadata": {"labels": {"velero.io/backup": None}, "annotations": keep}}, "9Gi", None, "Prune=false")
    await become(None, "10Gi", None, None)
    assert await uids_of(world, PODS) == pods
    after = await named(world, PERSISTENT_VOLUME_CLAIMS)
    assert {name: one["metadata"]["uid"] for name, one in after.items()} == claims
    assert {one["metadata"]["labels"][names.LABEL_BROKER_GROUP] for one in after.values()} == {"orders"}


def test_a_label_that_is_no_longer_asked_for_leaves_a_mark_in_the_revision() -> None:
    template = {"storage": {"claimTemplate": {"metadata": {"labels": {"team": "a"}}}}}
    seen = c.wishing(c.settled(**template), storage={})
    assert [line for line in lines_of(run(seen)) if "PersistentVolumeClaim" in line] == [
        f"apply PersistentVolumeClaim orders-{number}" for number in (1, 2, 3)
    ]
    assert with_revision(next(iter(seen.claims.values())))["metadata"]["labels"]["team"] == "a"


def test_ours_win_although_the_api_refuses_them_first() -> None:
    template = {
        "metadata": {"labels": {names.LABEL_BROKER_GROUP: "mine"}, "annotations": {names.ANNOTATION_REVISION: "x"}}
    }
    of = b.group(storage={"claimTemplate": template})
    claim = with_revision(children.build_claim(of, b.member(1)))
    assert claim["metadata"]["labels"][names.LABEL_BROKER_GROUP] == "orders"
    assert claim["metadata"]["annotations"][names.ANNOTATION_REVISION] != "x"
