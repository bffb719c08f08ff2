"""A typo in a spec is refused, not ignored: at every level, by every write method of kubectl and GitOps tools.

The API server refuses it (as in docs/reference/brokergroup.md): server-side apply always; create, replace and patch if the
client sends `fieldValidation=Strict`, as kubectl does by default. A schema alone cannot refuse it: unknown fields are dropped
before CEL or admission see the object. tests/real/test_kinds.py checks the real API server.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
import pytest_asyncio
import yaml

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup import BrokerGroup
from brokergroup_operator.api.brokergroup_operation import BrokerGroupOperation
from brokergroup_operator.api.definitions.schema import structural_schema
from tests.our_kinds import server_with_our_kinds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from msgspec import Struct

pytestmark = pytest.mark.asyncio(loop_scope="module")

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
storage: {retention: {}, commitLog: {size: 1Gi}, claimTemplate: {metadata: {}}}
bootstrap: {fromBackup: {claim: {name: copies, folder: orders/nightly}}}
resources: {}
jvm: {}
network: {}
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
updateStrategy: {}
disruptionBudget: {}
maintenance: {}
"""
SPECS: dict[str, tuple[type[Struct], dict[str, Any]]] = {
    "BrokerGroup": (BrokerGroup, yaml.safe_load(GROUP)),
    # Excludes the volumes of the one above.
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
    tried = {case.values[1] for case in CASES if SPECS[str(case.values[0])][0] is BrokerGroup}
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
