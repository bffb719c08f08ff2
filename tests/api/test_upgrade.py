"""Objects of before: the steps of docs/tasks/upgrade.md from v1alpha1, and one that today's kinds would refuse is still served."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from typer.testing import CliRunner

from brokergroup_operator.api import names
from brokergroup_operator.api.conversion import OLD_API_VERSION, OLD_VERSION
from brokergroup_operator.cli.main import app
from brokergroup_operator.controller.directory.group_directory import binding_of
from brokergroup_operator.kube.client import KubernetesApi
from brokergroup_operator.kube.errors import InvalidError, NotFoundError
from brokergroup_operator.kube.resources import (
    BROKER_GROUP_OPERATIONS,
    BROKER_GROUP_STATES,
    BROKER_GROUPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    ROCKETMQ_CLUSTERS,
)
from brokergroup_operator.reconcile.see.fetch import UnreadableGroupError, read_group
from brokergroup_operator.records.serialize import record_from_json
from tests.api.test_conversion import EXAMPLES, FORMER, documents, former_definitions
from tests.our_kinds import DEFINE_SECONDS, api_with_our_kinds, our_definitions, server_with_kinds
from tests.support.kube_apiserver import running_kube_apiserver

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from brokergroup_operator.kube.resources import Resource


KINDS = {one.kind: one for one in (BROKER_GROUPS, BROKER_GROUP_STATES, BROKER_GROUP_OPERATIONS, ROCKETMQ_CLUSTERS)}
NAMESPACE = "default"
Json = dict[str, Any]
# A group with every field whose form has changed.
FULL = """
apiVersion: brokergroup.dev/v1alpha1
kind: BrokerGroup
metadata: {name: full, finalizers: [brokergroup.dev/brokergroup], annotations: {brokergroup.dev/operator: a/b}}
spec:
  implementation: rocketmq
  nameServers: ["ns:9876"]
  failover: {heartbeatTimeoutMilliseconds: 6000, heartbeatIntervalMilliseconds: 700}
  security: {signature: "Off", credentialsSecretName: keys, certificateSecretName: certificate}
  scheduling:
    antiAffinity: Required
    topologyKey: topology.kubernetes.io/zone
    nodeSelector: {disk: fast}
    tolerations: [{key: brokers, operator: Exists}]
    affinity: {nodeAffinity: {}}
    topologySpreadConstraints: [{topologyKey: rack}]
    priorityClassName: high
  podTemplate: {spec: {schedulerName: other}}
"""
RECORD = {
    "schemaVersion": 1,
    "clusterName": "DefaultCluster",
    "brokerName": "full",
    "nextBrokerId": 4,
    "replicas": [
        {
            "brokerId": number, "registerCheckCode": f"check-{number}", "address": f"10.0.0.{number}:10911",
            "reservedFor": f"full-{number}", "registered": True, "heldEpoch": 7, "heldOffset": 4096 + number,
        }
        for number in (1, 2, 3)
    ],
    "masterBrokerId": 1, "masterEpoch": 7, "syncStateSet": [1, 2], "syncStateSetEpoch": 12, "masterProcessLost": False,
    "eligible": [3], "lostSeats": [], "uncleanElections": 1, "unfenced": [2], "changeId": 5,
    "change": {"id": 5, "kind": "Failover", "phase": "Telling", "to": 1, "epoch": 7, "from": 2, "cause": "silent"},
}  # fmt: skip


@pytest.fixture
async def api() -> AsyncIterator[KubernetesApi]:
    """An API with the former kinds."""
    async with (
        server_with_kinds(former_definitions().values()) as server,
        KubernetesApi.from_url(server.url) as client,
    ):
        yield client


def former(resource: Resource) -> Resource:
    return replace(resource, version=OLD_VERSION)


async def store_all(api: KubernetesApi) -> None:
    """Store every example, a full group with its record, a pod and a claim, and a finished operation."""
    for name in EXAMPLES:
        for document in documents(FORMER / "examples" / name):
            if document["apiVersion"] == OLD_API_VERSION:
                await api.create(former(KINDS[document["kind"]]), document, namespace=NAMESPACE)
    group = await api.create(former(BROKER_GROUPS), yaml.safe_load(FULL), namespace=NAMESPACE)
    told = {"status": {"phase": "Stalled", "observedGeneration": 1}}
    await api.patch(former(BROKER_GROUPS), "full", told, namespace=NAMESPACE, subresource="status")
    state = {"apiVersion": OLD_API_VERSION, "kind": "BrokerGroupState", "metadata": {"name": "full"}, "record": RECORD}
    await api.create(former(BROKER_GROUP_STATES), state, namespace=NAMESPACE)
    over = {"status": {"phase": "Succeeded"}}
    operation = "quickstart-switchover"
    await api.patch(former(BROKER_GROUP_OPERATIONS), operation, over, namespace=NAMESPACE, subresource="status")
    owner = {"apiVersion": OLD_API_VERSION, "kind": "BrokerGroup", "name": "full", "uid": group["metadata"]["uid"]}
    pod = {
        "metadata": {"name": "full-1", "ownerReferences": [owner]},
        "spec": {"containers": [{"name": "broker", "image": "a"}]},
    }
    await api.create(PODS, {"apiVersion": "v1", "kind": "Pod", **pod}, namespace=NAMESPACE)
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    whole = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "full-1"}, "spec": claim}
    await api.create(PERSISTENT_VOLUME_CLAIMS, whole, namespace=NAMESPACE)


async def stored(api: KubernetesApi) -> list[Json]:
    """Return the output of `kubectl get brokergroups,… -o yaml` while v1alpha1 is served."""
    return [item for kind in KINDS.values() for item in (await api.list(former(kind), namespace=NAMESPACE)).items]


def by_command(items: list[Json]) -> list[Json]:
    """Return the output of `brokergroup convert -` for a list of these."""
    text = yaml.dump({"apiVersion": "v1", "kind": "List", "items": items}, Dumper=yaml.CSafeDumper, sort_keys=False)
    result = CliRunner().invoke(app, ["convert", "-"], input=text)
    assert result.exit_code == 0, result.stderr
    found: list[Json] = yaml.load(result.stdout, Loader=yaml.CSafeLoader)["items"]
    return found


async def define(api: KubernetesApi, definitions: list[Json]) -> None:
    for definition in definitions:
        there = await api.get(CUSTOM_RESOURCE_DEFINITIONS, definition["metadata"]["name"])
        changed = there | {"spec": definition["spec"]}
        await api.replace(CUSTOM_RESOURCE_DEFINITIONS, changed, timeout_seconds=DEFINE_SECONDS)


async def upgrade(api: KubernetesApi) -> list[Json]:
    """Run the page's steps from the saved objects on; return the saved objects."""
    saved = await stored(api)
    definitions = (await api.list(CUSTOM_RESOURCE_DEFINITIONS)).items
    new, both = by_command(saved), by_command(definitions)
    await define(api, both)
    for item in new:
        await api.replace(KINDS[item["kind"]], item)
    await define(api, our_definitions())
    return saved


async def test_every_stored_object_is_there_and_valid_and_the_record_is_what_it_was(api: KubernetesApi) -> None:
    await store_all(api)
    untouched = [await api.get(kind, "full-1", namespace=NAMESPACE) for kind in (PODS, PERSISTENT_VOLUME_CLAIMS)]
    saved = await upgrade(api)
    assert {item["kind"] for item in saved} == set(KINDS)
    for before in saved:
        resource, name = KINDS[before["kind"]], before["metadata"]["name"]
        after = await api.get(resource, name, namespace=NAMESPACE)
        assert after["apiVersion"] == names.API_VERSION
        for key in ("uid", "creationTimestamp", "name", "finalizers", "annotations", "labels"):
            assert after["metadata"].get(key) == before["metadata"].get(key), "it is the same object"
        assert after.get("status") == before.get("status"), "this writer does not own the status"
        # It could also be created anew: it breaks no rule.
        await api.apply(
            resource, after | {"metadata": {"name": name, "namespace": NAMESPACE}}, field_manager="a", dry_run=True
        )
    state = await api.get(BROKER_GROUP_STATES, "full", namespace=NAMESPACE)
    assert state["record"] == next(one["record"] for one in saved if one["kind"] == "BrokerGroupState")
    assert record_from_json(state["record"], source="full").master_epoch == 7
    now = [await api.get(kind, "full-1", namespace=NAMESPACE) for kind in (PODS, PERSISTENT_VOLUME_CLAIMS)]
    assert now == untouched, "pods and claims are unchanged"


async def test_a_stored_group_means_what_it_meant(api: KubernetesApi) -> None:
    await store_all(api)
    await upgrade(api)
    spec = read_group(await api.get(BROKER_GROUPS, "full", namespace=NAMESPACE)).spec
    placed = spec.pod_template.spec
    assert (spec.implementation, spec.security.signature) == ("Java", "Disabled")
    assert (spec.security.credentials_secret_name, spec.security.certificate_secret_name) == ("keys", "certificate")
    assert (spec.anti_affinity.type, spec.anti_affinity.topology_key) == ("Required", "topology.kubernetes.io/zone")
    assert (placed.node_selector, placed.affinity) == ({"disk": "fast"}, {"nodeAffinity": {}})
    assert (placed.tolerations[0].key, placed.topology_spread_constraints[0].topology_key) == ("brokers", "rack")
    assert (placed.priority_class_name, placed.scheduler_name) == ("high", "other")
    assert spec.failover.heartbeat_timeout_milliseconds == 6000


async def test_a_stored_group_promises_what_it_promised(api: KubernetesApi) -> None:
    """The manifest has no durability, and the status from the earlier operator stays."""
    await store_all(api)
    told = {"status": {"durability": "Available"}}
    await api.patch(former(BROKER_GROUPS), "full", told, namespace=NAMESPACE, subresource="status")
    await upgrade(api)
    group = await api.get(BROKER_GROUPS, "full", namespace=NAMESPACE)
    assert ("durability" in group["spec"], read_group(group).spec.durability) == (False, "Available")


async def test_no_epoch_can_fall_on_the_way_or_after_it(api: KubernetesApi) -> None:
    """The record's rules hold across versions, whichever version wrote the stored one."""
    await store_all(api)
    saved = [one for one in await stored(api) if one["kind"] == "BrokerGroupState"]
    [state] = by_command(saved)
    await define(api, by_command((await api.list(CUSTOM_RESOURCE_DEFINITIONS)).items))
    whole = {key: value for key, value in state["record"].items() if key != "change"}
    lower = state | {"record": whole | {"masterEpoch": 6}}
    with pytest.raises(InvalidError, match="masterEpoch never falls"):
        await api.replace(BROKER_GROUP_STATES, lower)
    await api.replace(BROKER_GROUP_STATES, state)
    fresh = await api.get(BROKER_GROUP_STATES, "full", namespace=NAMESPACE)
    with pytest.raises(InvalidError, match="masterEpoch never falls"):
        await api.replace(BROKER_GROUP_STATES, lower | {"metadata": fresh["metadata"]})


async def test_an_operator_leaves_a_group_alone_that_is_not_converted(api: KubernetesApi) -> None:
    """Its Secrets and its scheduling would be unknown: an operator that starts too early would roll the group without them."""
    await store_all(api)
    await define(api, by_command((await api.list(CUSTOM_RESOURCE_DEFINITIONS)).items))
    for name in ("full", "quickstart", "orders", "payments"):
        group = await api.get(BROKER_GROUPS, name, namespace=NAMESPACE)
        with pytest.raises(UnreadableGroupError, match="implementation"):
            read_group(group)


async def test_the_implementation_can_only_be_written_under_its_new_name(api: KubernetesApi) -> None:
    await store_all(api)
    new = {one["metadata"]["name"]: one for one in by_command(await stored(api)) if one["kind"] == "BrokerGroup"}
    await define(api, by_command((await api.list(CUSTOM_RESOURCE_DEFINITIONS)).items))
    other = new["quickstart"] | {"spec": new["quickstart"]["spec"] | {"implementation": "Java"}}
    with pytest.raises(InvalidError, match="implementation is immutable"):
        await api.replace(BROKER_GROUPS, other)
    await api.replace(BROKER_GROUPS, new["quickstart"])


DEFINITION = our_definitions()[0]
KIND = DEFINITION["metadata"]["name"]
NAME = "1st"
# Values that a former definition accepted, by path.
SPEC: dict[str, Any] = {
    "implementation": "Java",
    "nameServers": ["ns:9876"],
    "version": "5.5.0-",
    "storage": {"storageClassName": "Fast SSD"},
    "podTemplate": {
        "spec": {
            "nodeSelector": {"-pool": "a"},
            "tolerations": [{"key": "a b", "operator": "Exists"}],
            "containers": [{"name": "Side_Car", "image": "a"}],
            "serviceAccountName": "a..b",
        }
    },
    "resources": {"requests": {"gpu": "1"}},
    "slo": {"timeZone": "Europe/Berln"},
}
# Refused by today's definitions: the first by its name, the second also by its version.
PROBES: dict[str, dict[str, Any]] = {
    BROKER_GROUPS.kind: {"spec": {}},
    ROCKETMQ_CLUSTERS.kind: {"spec": {"version": "5.1.0", "brokerGroups": {"count": 1}}},
}


@pytest.fixture(params=["sandbox", pytest.param("real", marks=pytest.mark.real("kube-apiserver"))])
async def any_api(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[KubernetesApi]:
    if request.param == "sandbox":
        async with api_with_our_kinds(KubernetesApi) as client:
            yield client
        return
    # Its own API: it redefines a kind.
    with running_kube_apiserver(tmp_path_factory.mktemp("older"), our_kinds=True) as server:
        async with KubernetesApi.from_kubeconfig(server.kubeconfig) as client:
            yield client


def loosened(definition: dict[str, Any]) -> dict[str, Any]:
    """Return the schema without patterns and rules."""
    loose = copy.deepcopy(definition)
    for node in _nodes(loose["spec"]["versions"][0]["schema"]["openAPIV3Schema"]):
        node.pop("pattern", None)
        node.pop("x-kubernetes-validations", None)
    return loose


def _nodes(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    for child in schema.get("properties", {}).values():
        yield from _nodes(child)
    for keyword in ("items", "additionalProperties"):
        if isinstance(schema.get(keyword), dict):
            yield from _nodes(schema[keyword])


async def redefine(any_api: KubernetesApi, definition: dict[str, Any]) -> None:
    there = await any_api.get(CUSTOM_RESOURCE_DEFINITIONS, definition["metadata"]["name"])
    await any_api.replace(CUSTOM_RESOURCE_DEFINITIONS, there | {"spec": definition["spec"]})


async def until_judged(any_api: KubernetesApi, resource: Resource = BROKER_GROUPS, *, is_taken: bool) -> None:
    """Wait until the definition's new rules apply: a real server takes a moment."""
    probe = PROBES[resource.kind] | {"metadata": {"name": "2nd", "namespace": "default"}}
    for _ in range(2000):
        try:
            await any_api.apply(resource, probe, field_manager="probe", dry_run=True)
        except InvalidError:
            if not is_taken:
                return
        else:
            if is_taken:
                return
    raise AssertionError("the definition's rules were never used")


async def test_it_can_be_told_of_changed_and_deleted(any_api: KubernetesApi) -> None:
    await redefine(any_api, loosened(DEFINITION))
    await until_judged(any_api, is_taken=True)
    metadata = {"name": NAME, "namespace": "default", "finalizers": ["brokergroup.dev/brokergroup"]}
    await any_api.create(BROKER_GROUPS, {"metadata": metadata, "spec": SPEC})
    await redefine(any_api, DEFINITION)
    await until_judged(any_api, is_taken=False)

    stored = await any_api.get(BROKER_GROUPS, NAME, namespace="default")
    assert read_group(stored).spec.storage.storage_class_name == "Fast SSD"
    assert binding_of(stored).broker_name == NAME, "its brokers have a controller"
    told = {"status": {"phase": "Stalled", "observedGeneration": 1}}
    await any_api.patch(BROKER_GROUPS, NAME, told, namespace="default", subresource="status")
    noted = {"metadata": {"annotations": {"brokergroup.dev/operator": "a/b"}}}
    await any_api.patch(BROKER_GROUPS, NAME, noted, namespace="default")
    changed = await any_api.patch(BROKER_GROUPS, NAME, {"spec": {"replicas": 5}}, namespace="default")
    assert (changed["spec"]["replicas"], changed["status"]["phase"]) == (5, "Stalled")
    for wrong in ({"serviceAccountName": "c..d"}, {"containers": [{"name": "Other_One", "image": "a"}]}):
        with pytest.raises(InvalidError):
            await any_api.patch(BROKER_GROUPS, NAME, {"spec": {"podTemplate": {"spec": wrong}}}, namespace="default")

    await any_api.delete(BROKER_GROUPS, NAME, namespace="default")
    await any_api.patch(BROKER_GROUPS, NAME, {"metadata": {"finalizers": None}}, namespace="default")
    with pytest.raises(NotFoundError):
        await any_api.get(BROKER_GROUPS, NAME, namespace="default")


async def test_a_version_that_is_refused_since_is_judged_only_where_it_changes(any_api: KubernetesApi) -> None:
    """A group is judged by field. The rule of a cluster is about its whole spec, so its next change must name another version."""
    definitions = {one["spec"]["names"]["kind"]: one for one in our_definitions()}
    specs: tuple[tuple[Resource, dict[str, Any]], ...] = (
        (BROKER_GROUPS, {"implementation": "Java", "nameServers": ["ns:9876"], "version": "5.1.2"}),
        (ROCKETMQ_CLUSTERS, {"version": "5.1.2", "brokerGroups": {"count": 1}}),
    )
    for resource, spec in specs:
        await redefine(any_api, loosened(definitions[resource.kind]))
        await until_judged(any_api, resource, is_taken=True)
        await any_api.create(resource, {"metadata": {"name": "old", "namespace": "default"}, "spec": spec})
        await redefine(any_api, definitions[resource.kind])
        await until_judged(any_api, resource, is_taken=False)
        status = {"status": {"observedGeneration": 1}}
        await any_api.patch(resource, "old", status, namespace="default", subresource="status")

    await any_api.patch(BROKER_GROUPS, "old", {"spec": {"replicas": 5}}, namespace="default")
    more: dict[str, Any] = {"brokerGroups": {"count": 2}}
    with pytest.raises(InvalidError, match=r"not 5\.1\.2"):
        await any_api.patch(ROCKETMQ_CLUSTERS, "old", {"spec": more}, namespace="default")
    await any_api.patch(ROCKETMQ_CLUSTERS, "old", {"spec": more | {"version": "5.1.3"}}, namespace="default")
