"""An older object that today's kinds would refuse is still served: status and finalizers are writable, and it can be deleted."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.controller.directory.group_directory import binding_of
from brokergroup_operator.kube.client import KubernetesApi
from brokergroup_operator.kube.errors import InvalidError, NotFoundError
from brokergroup_operator.kube.resources import BROKER_GROUPS, CUSTOM_RESOURCE_DEFINITIONS
from brokergroup_operator.reconcile.see.fetch import read_group
from tests.our_kinds import api_with_our_kinds, our_definitions
from tests.support.kube_apiserver import running_kube_apiserver

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

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


@pytest.fixture(params=["sandbox", pytest.param("real", marks=pytest.mark.real("kube-apiserver"))])
async def api(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KubernetesApi]:
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


async def define(api: KubernetesApi, definition: dict[str, Any]) -> None:
    there = await api.get(CUSTOM_RESOURCE_DEFINITIONS, KIND)
    await api.replace(CUSTOM_RESOURCE_DEFINITIONS, there | {"spec": definition["spec"]})


async def until_judged(api: KubernetesApi, *, is_taken: bool) -> None:
    """Wait until the definition's new rules apply: a real server takes a moment."""
    probe = {"metadata": {"name": "2nd", "namespace": "default"}, "spec": {}}
    for _ in range(2000):
        try:
            await api.apply(BROKER_GROUPS, probe, field_manager="probe", dry_run=True)
        except InvalidError:
            if not is_taken:
                return
        else:
            if is_taken:
                return
    raise AssertionError("the definition's rules were never used")


async def test_it_can_be_told_of_changed_and_deleted(api: KubernetesApi) -> None:
    await define(api, loosened(DEFINITION))
    await until_judged(api, is_taken=True)
    metadata = {"name": NAME, "namespace": "default", "finalizers": ["brokergroup.dev/brokergroup"]}
    await api.create(BROKER_GROUPS, {"metadata": metadata, "spec": SPEC})
    await define(api, DEFINITION)
    await until_judged(api, is_taken=False)

    stored = await api.get(BROKER_GROUPS, NAME, namespace="default")
    assert read_group(stored).spec.storage.storage_class_name == "Fast SSD"
    assert binding_of(stored).broker_name == NAME, "its brokers have a controller"
    told = {"status": {"phase": "Stalled", "observedGeneration": 1}}
    await api.patch(BROKER_GROUPS, NAME, told, namespace="default", subresource="status")
    noted = {"metadata": {"annotations": {"brokergroup.dev/operator": "a/b"}}}
    await api.patch(BROKER_GROUPS, NAME, noted, namespace="default")
    changed = await api.patch(BROKER_GROUPS, NAME, {"spec": {"replicas": 5}}, namespace="default")
    assert (changed["spec"]["replicas"], changed["status"]["phase"]) == (5, "Stalled")
    for wrong in ({"serviceAccountName": "c..d"}, {"containers": [{"name": "Other_One", "image": "a"}]}):
        with pytest.raises(InvalidError):
            await api.patch(BROKER_GROUPS, NAME, {"spec": {"podTemplate": {"spec": wrong}}}, namespace="default")

    await api.delete(BROKER_GROUPS, NAME, namespace="default")
    await api.patch(BROKER_GROUPS, NAME, {"metadata": {"finalizers": None}}, namespace="default")
    with pytest.raises(NotFoundError):
        await api.get(BROKER_GROUPS, NAME, namespace="default")
