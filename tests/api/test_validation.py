"""The CRDs in an API server: good objects are accepted, bad ones refused with a message that names the field.

The cases are data (validation_cases.yaml); a kube-apiserver 1.35.4 gave the same answers to all of them, and
tests/real/test_kinds.py repeats that.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
import yaml

from brokergroup_operator.api import names
from brokergroup_operator.kube.client import KubernetesApi
from brokergroup_operator.kube.errors import InvalidError
from brokergroup_operator.kube.resources import BROKER_GROUP_OPERATIONS, BROKER_GROUP_STATES, BROKER_GROUPS, Resource
from tests.our_kinds import api_with_our_kinds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

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

    assert (spec["replicas"], spec["brokerClusterName"], spec["terminationGracePeriodSeconds"]) == (
        3,
        "DefaultCluster",
        60,
    )
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
    assert spec["updateStrategy"] == {"type": "Rolling", "masterUpdate": "Switchover"}
    assert spec["network"] == {"addressing": "PodIP", "ipFamilies": [], "listenPort": 10911, "haPort": 10912}
    assert (spec["antiAffinity"]["type"], spec["antiAffinity"]["topologyKey"]) == (
        "Preferred",
        "kubernetes.io/hostname",
    )
    assert spec["imagePullPolicy"] == "IfNotPresent"
    assert spec["maintenance"] == {"paused": False, "hibernated": False}
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

    changed = await api.patch(
        BROKER_GROUPS,
        "case",
        {"spec": {"replicas": 5}, "status": {"replicas": 3}},
        namespace=NAMESPACE,
        subresource="status",
    )
    assert (changed["spec"]["replicas"], changed["status"]["replicas"]) == (3, 3)
