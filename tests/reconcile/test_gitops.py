"""What Argo CD, Flux, Helm and kapp may take for theirs: labels and owners of our objects, older versions', and a claimTemplate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.kube.client import PatchType
from brokergroup_operator.kube.resources import (
    BROKER_GROUP_STATES,
    BROKER_GROUPS,
    CONFIG_MAPS,
    LEASES,
    PERSISTENT_VOLUME_CLAIMS,
    POD_DISRUPTION_BUDGETS,
    PODS,
    SECRETS,
    SERVICES,
)
from brokergroup_operator.reconcile.clusters import parts
from brokergroup_operator.reconcile.plan import ApplyObject, MakeSecret
from brokergroup_operator.reconcile.render import children
from brokergroup_operator.reconcile.see.foreign import with_revision
from tests.reconcile import builders as b
from tests.reconcile import cases as c
from tests.reconcile.cases import lines_of, run
from tests.reconcile.world import SANDBOX, delete, named, orphan, ready, uids_of, until, until_gone, until_is

if TYPE_CHECKING:
    from brokergroup_operator.kube.resources import Resource
    from tests.reconcile.world import World


KINDS = (
    PODS, SERVICES, CONFIG_MAPS, POD_DISRUPTION_BUDGETS, PERSISTENT_VOLUME_CLAIMS, BROKER_GROUP_STATES, SECRETS, LEASES,
)  # fmt: skip
OWNED = (PODS, SERVICES, CONFIG_MAPS, POD_DISRUPTION_BUDGETS)
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


async def objects(world: World, *kinds: Resource) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the metadata of all objects of these kinds, or of every kind, by kind and name."""
    return {
        (resource.kind, obj["metadata"]["name"]): obj["metadata"]
        for resource in kinds or KINDS
        for obj in await world.items(resource)
    }


async def all_uids(world: World) -> dict[tuple[str, str], str]:
    return {place: metadata["uid"] for place, metadata in (await objects(world)).items()}


async def pruned(world: World, selector: str) -> list[str]:
    """Return what an application prunes: objects with its label and without an owner."""
    key, _, value = selector.partition("=")
    return [
        f"{kind} {name}"
        for (kind, name), metadata in (await objects(world)).items()
        if not metadata.get("ownerReferences")
        and key in (labels := metadata.get("labels") or {})
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
    annotations = TOOLS[tool].get("annotations", {}).keys()
    found = await objects(world)
    assert [place for place, one in found.items() if annotations & (one.get("annotations") or {}).keys()] == []


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
    cluster = b.cluster(proxy={"replicas": 1})
    servers = [*parts.name_servers(cluster, b.SETTINGS), *parts.proxies(cluster, b.SETTINGS)]
    made = [*servers, *parts.broker_groups(cluster, {"spec": {}})]
    assert not [one["kind"] for one in made if INSTANCE in one["metadata"]["labels"]]
    specs = [one["spec"] for one in servers if one["kind"] in {"StatefulSet", "Deployment"}]
    labels = [spec["template"]["metadata"]["labels"] for spec in specs]
    assert labels == [parts.part_pod_labels("shop", "nameserver"), parts.part_pod_labels("shop", "proxy")]
    assert all(one[INSTANCE] == "shop" for one in labels)
    assert all(INSTANCE not in spec["selector"]["matchLabels"] for spec in specs)


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
        found = await objects(world, *OWNED, PERSISTENT_VOLUME_CLAIMS)
        marked = [pod["metadata"]["annotations"].get(names.ANNOTATION_GROUP_UID) for pod in await world.items(PODS)]
        return not any(INSTANCE in one["labels"] for one in found.values()) and None not in marked

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

    async def owned() -> dict[tuple[str, str], tuple[str, list[Any]]]:
        found = await objects(world, *OWNED)
        return {place: (one["uid"], one["ownerReferences"]) for place, one in found.items()}

    before = await owned()
    for resource in OWNED:
        for name in await named(world, resource):
            [owner] = before[resource.kind, name][1]
            former = {"metadata": {"ownerReferences": [owner | {"apiVersion": f"{names.GROUP}/v1alpha1"}]}}
            await world.patch(resource, name, former, content_type=PatchType.STRATEGIC)
    assert await owned() != before
    await world.start_plane()
    await until_is("each owner has the present version", before, owned)


@SANDBOX
async def test_anothers_label_of_that_name_is_left(world: World) -> None:
    """A policy that puts it on every object would put it on again for ever."""
    await ready(world, resync_seconds=0.2)
    labelled = ((PODS, "orders-1"), (PERSISTENT_VOLUME_CLAIMS, "orders-1"), (SERVICES, "orders-master"))
    for resource, name in labelled:
        await world.patch(resource, name, {"metadata": {"labels": {INSTANCE: "policy"}}}, field_manager="kyverno")
    await world.patch(BROKER_GROUPS, "orders", {"spec": {"storage": {"size": "9Gi"}}})

    async def grown() -> bool:
        claims = await named(world, PERSISTENT_VOLUME_CLAIMS)
        return all(one["spec"]["resources"]["requests"]["storage"] == "9Gi" for one in claims.values())

    await until("the claims have grown", grown)
    for resource, name in labelled:
        assert (await named(world, resource))[name]["metadata"]["labels"][INSTANCE] == "policy"


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
    mine = {"labels": {names.LABEL_BROKER_GROUP: "mine"}, "annotations": {names.ANNOTATION_REVISION: "x"}}
    of = b.group(storage={"claimTemplate": {"metadata": mine}})
    claim = with_revision(children.build_claim(of, b.member(1)))
    assert claim["metadata"]["labels"][names.LABEL_BROKER_GROUP] == "orders"
    assert claim["metadata"]["annotations"][names.ANNOTATION_REVISION] != "x"
