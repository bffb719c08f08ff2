"""The CRDs in an API server: good objects are accepted; bad ones, and a typo at any level, are refused with the field's name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
import pytest_asyncio
import yaml

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup import BrokerGroup
from brokergroup_operator.api.brokergroup_operation import BrokerGroupOperation
from brokergroup_operator.api.definitions.schema import structural_schema
from brokergroup_operator.kube.client import KubernetesApi
from brokergroup_operator.kube.errors import InvalidError
from brokergroup_operator.kube.resources import BROKER_GROUP_OPERATIONS, BROKER_GROUP_STATES, BROKER_GROUPS, Resource
from tests.our_kinds import api_with_our_kinds, server_with_our_kinds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from msgspec import Struct


pytestmark = pytest.mark.asyncio(loop_scope="module")

HERE = Path(__file__).parent
DOCUMENT = yaml.load((HERE / "validation_cases.yaml").read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
RESOURCES = {resource.kind: resource for resource in (BROKER_GROUPS, BROKER_GROUP_OPERATIONS, BROKER_GROUP_STATES)}
NAMESPACE = "default"


def merged(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def case_object(case: dict[str, Any]) -> dict[str, Any]:
    obj: dict[str, Any] = merged(DOCUMENT["base"][case["kind"]], case["object"])
    return obj | {
        "apiVersion": names.API_VERSION,
        "kind": case["kind"],
        "metadata": {"name": "case", "namespace": NAMESPACE} | obj.get("metadata", {}),
    }


async def judged_write(api: KubernetesApi, resource: Resource, case: dict[str, Any]) -> None:
    if "then" in case:
        await api.patch(resource, "case", case["then"], namespace=NAMESPACE)
    else:
        await api.create(resource, case_object(case))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[KubernetesApi]:
    """One server for all cases: its start takes longer than a case."""
    async with api_with_our_kinds(KubernetesApi) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module")
async def api(server: KubernetesApi) -> AsyncIterator[KubernetesApi]:
    """An API without objects of our kinds."""
    yield server
    for resource in RESOURCES.values():
        for one in (await server.list(resource, namespace=NAMESPACE)).items:
            await server.delete(resource, one["metadata"]["name"], namespace=NAMESPACE)
        assert not (await server.list(resource, namespace=NAMESPACE)).items


@pytest.mark.parametrize("case", DOCUMENT["cases"], ids=[case["name"] for case in DOCUMENT["cases"]])
async def test_case(api: KubernetesApi, case: dict[str, Any]) -> None:
    """Patroni #2868, zalando/postgres-operator #1145: a timeout out of bounds was accepted and ignored; here it is refused."""
    resource = RESOURCES[case["kind"]]
    if "then" in case:
        await api.create(resource, case_object(case))
    if "refused" not in case:
        await judged_write(api, resource, case)
        return
    with pytest.raises(InvalidError) as refusal:
        await judged_write(api, resource, case)
    for expected in case["refused"]:
        assert expected in str(refusal.value)


async def test_defaults_are_filled_in(api: KubernetesApi) -> None:
    example = yaml.safe_load((HERE.parents[1] / "examples" / "quickstart.yaml").read_text(encoding="utf-8"))
    example["metadata"]["namespace"] = NAMESPACE
    spec = (await api.create(BROKER_GROUPS, example))["spec"]

    expected = (3, "DefaultCluster", 60)
    assert (spec["replicas"], spec["brokerClusterName"], spec["terminationGracePeriodSeconds"]) == expected
    assert spec["failover"] == {
        "heartbeatTimeoutMilliseconds": 3000,
        "isolation": {"enabled": True},
        "delaySeconds": 0,
        "uncleanElection": "Never",
        "electionPolicy": "most-data",
        "priorities": [],
        "preferredZones": [],
    }
    assert spec["security"] == {"signature": "Accepted"}
    assert spec["storage"] == {"size": "8Gi", "retention": {"whenDeleted": "Retain", "whenScaled": "Retain"}}
    assert spec["updateStrategy"] == {"type": "Rolling", "masterUpdate": "Switchover", "windows": []}
    assert spec["network"] == {"addressing": "PodIP", "ipFamilies": [], "listenPort": 10911, "haPort": 10912}
    assert (spec["antiAffinity"]["type"], spec["antiAffinity"]["topologyKey"]) == (
        "Preferred",
        "kubernetes.io/hostname",
    )
    assert spec["imagePullPolicy"] == "IfNotPresent"
    assert spec["maintenance"] == {"paused": False, "hibernated": False, "stoppedBrokers": []}
    assert "durability" not in spec, "the operator writes it: a schema default cannot depend on the replicas"


async def test_a_partial_object_gets_the_other_defaults(api: KubernetesApi) -> None:
    group = case_object(
        {"kind": "BrokerGroup", "object": {"spec": {"failover": {"heartbeatTimeoutMilliseconds": 9000}}}}
    )
    spec = (await api.create(BROKER_GROUPS, group))["spec"]
    assert spec["failover"]["isolation"] == {"enabled": True}
    assert spec["failover"]["heartbeatTimeoutMilliseconds"] == 9000


async def test_spec_writes_do_not_touch_status_and_the_other_way_round(api: KubernetesApi) -> None:
    await api.create(BROKER_GROUPS, case_object({"kind": "BrokerGroup", "object": {"status": {"replicas": 9}}}))
    stored = await api.get(BROKER_GROUPS, "case", namespace=NAMESPACE)
    assert "replicas" not in stored.get("status", {})
    both = {"spec": {"replicas": 5}, "status": {"replicas": 3}}
    changed = await api.patch(BROKER_GROUPS, "case", both, namespace=NAMESPACE, subresource="status")
    assert (changed["spec"]["replicas"], changed["status"]["replicas"]) == (3, 3)


TYPO = "tpyo"
OPERATION = """
brokerGroupRef: {name: orders}
type: Switchover
switchover: {toBrokerId: 2}
"""
# Every object of a spec that has fields.
GROUP = """
nameServers: ["ns:9876"]
failover: {isolation: {}, priorities: [{brokerId: 1, priority: 1}]}
replication: {}
configFrom: [{configMapRef: {name: site}}]
security: {credentialsSecretRef: {name: keys}, certificateSecretRef: {name: certificate}}
tls: {certificateSecretRef: {name: tls}, trustBundleRef: {name: authorities}}
storage: {retention: {}, commitLog: {size: 1Gi}, claimTemplate: {metadata: {}}}
localProxy: {}
bootstrap: {fromBackup: {claim: {name: copies, folder: orders/nightly}}}
resources: {}
jvm: {}
network:
  policy:
    clientsFrom: &sources
      - podSelector: &selector {matchExpressions: [{key: team, operator: Exists}]}
        namespaceSelector: *selector
      - ipBlock: {cidr: 192.0.2.0/24}
    metricsFrom: *sources
monitoring: {canary: {}}
slo: {}
antiAffinity: {}
podTemplate:
  metadata: {}
  spec:
    tolerations: [{operator: Exists}]
    topologySpreadConstraints: [{topologyKey: zone}]
    volumes: [{name: extra}]
    broker: {readinessProbe: {}, livenessProbe: {}, env: [{name: ZONE}], volumeMounts: [{name: extra, mountPath: /extra}]}
imagePullSecrets: [{name: registry}]
updateStrategy: {windows: [{start: "02:00", durationMinutes: 60}]}
disruptionBudget: {}
maintenance: {}
"""
SPECS: dict[str, tuple[type[Struct], dict[str, Any]]] = {
    "BrokerGroup": (BrokerGroup, yaml.safe_load(GROUP)),
    # Excludes the other source of a backup.
    "BrokerGroup from a snapshot": (
        BrokerGroup,
        {"implementation": "Python", "bootstrap": {"fromBackup": {"snapshot": {"name": "nightly"}}}},
    ),
    # Excludes the volumes of the first one.
    "BrokerGroup without volumes": (BrokerGroup, {"implementation": "Python", "storage": {"ephemeral": {}}}),
    "BrokerGroupOperation": (BrokerGroupOperation, yaml.safe_load(OPERATION)),
}


def collection_of(title: str) -> str:
    return f"/apis/{names.API_VERSION}/namespaces/default/{SPECS[title][0].__name__.lower()}s"


def places(value: Any, schema: dict[str, Any], path: str) -> Iterator[str]:
    """Return every object of the document whose fields the schema knows."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from places(item, schema["items"], f"{path}[{index}]")
    if not isinstance(value, dict) or "properties" not in schema or "x-kubernetes-preserve-unknown-fields" in schema:
        return
    yield path
    for name, item in value.items():
        yield from places(item, schema["properties"][name], f"{path}.{name}")


def objects_with_fields(schema: dict[str, Any]) -> int:
    """Return a schema's number of object kinds; those of an operation's section have their own cases."""
    own = int("properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"))
    below = [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return 0
    return own + sum(objects_with_fields(child) for child in below)


def mistyped(spec: dict[str, Any], path: str) -> dict[str, Any]:
    """Return the document with an additional field at that place."""
    copy: dict[str, Any] = json.loads(json.dumps(spec))
    here: Any = {"spec": copy}
    for step in path.replace("[", ".[").split("."):
        here = here[int(step[1:-1])] if step.startswith("[") else here[step]
    here[TYPO] = 1
    return copy


CASES = [
    pytest.param(kind, path, id=f"{kind} {path}")
    for kind, (model, spec) in SPECS.items()
    for path in places(spec, structural_schema(model)["properties"]["spec"], "spec")
]


def document(title: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": "orders", "namespace": "default"}
    return {"apiVersion": names.API_VERSION, "kind": SPECS[title][0].__name__, "metadata": metadata, "spec": spec}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with server_with_our_kinds() as server, aiohttp.ClientSession(server.url) as session:
        yield session


async def test_every_object_of_a_group_is_tried() -> None:
    of_groups = [str(case.values[1]) for case in CASES if SPECS[str(case.values[0])][0] is BrokerGroup]
    tried = {re.sub(r"\[\d+\]", "[]", path) for path in of_groups}
    assert len(tried) == objects_with_fields(structural_schema(BrokerGroup)["properties"]["spec"])


@pytest.mark.parametrize(("kind", "path"), CASES)
async def test_a_typo_is_refused_by_a_strict_create(http: aiohttp.ClientSession, kind: str, path: str) -> None:
    body = document(kind, mistyped(SPECS[kind][1], path))
    collection = collection_of(kind)
    async with http.post(collection, params={"fieldValidation": "Strict", "dryRun": "All"}, json=body) as answer:
        said = await answer.json()
    assert answer.status == 400
    assert f'unknown field "{path}.{TYPO}"' in said["message"]


@pytest.mark.parametrize(("kind", "path"), CASES)
async def test_a_typo_is_refused_by_any_server_side_apply(http: aiohttp.ClientSession, kind: str, path: str) -> None:
    body = json.dumps(document(kind, mistyped(SPECS[kind][1], path)))
    one = f"{collection_of(kind)}/orders"
    parameters = {"fieldManager": "flux", "dryRun": "All", "fieldValidation": "Ignore"}
    headers = {"Content-Type": "application/apply-patch+yaml"}
    async with http.patch(one, params=parameters, data=body, headers=headers) as answer:
        said = await answer.json()
    assert answer.status == 500  # sic
    assert f"{TYPO}: field not declared in schema" in said["message"]


@pytest.mark.parametrize("kind", SPECS)
async def test_without_the_typo_it_is_taken(http: aiohttp.ClientSession, kind: str) -> None:
    collection = collection_of(kind)
    parameters = {"fieldValidation": "Strict", "dryRun": "All"}
    async with http.post(collection, params=parameters, json=document(kind, SPECS[kind][1])) as answer:
        assert answer.status == 201, await answer.text()
