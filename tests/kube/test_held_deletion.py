"""The deletion of a pod whose end must be observable, against the embedded API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from brokergroup_operator.kube import ConflictError, KubernetesApi, NotFoundError
from brokergroup_operator.kube.recipes import delete_held
from brokergroup_operator.kube.resources import PODS
from kube_sandbox.api_server.server import SandboxApiServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from brokergroup_operator.kube import JsonObject

NAMESPACE: Final = "default"
FINALIZER: Final = "example.org/held"


@pytest.fixture
async def api() -> AsyncIterator[KubernetesApi]:
    server = SandboxApiServer()
    await server.start()
    async with KubernetesApi.from_url(server.url) as api:
        yield api
    await server.stop()


async def running_pod(api: KubernetesApi) -> JsonObject:
    """Create a running pod on a node: without a node the API server removes a pod at once, whatever its grace period."""
    spec = {"nodeName": "node-a", "containers": [{"name": "broker", "image": "broker"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": NAMESPACE}, "spec": spec}
    return await api.create(PODS, pod)


async def kill(api: KubernetesApi, pod: JsonObject) -> None:
    await delete_held(api, pod, finalizer=FINALIZER, timeout_seconds=5.0)


async def test_the_object_stays_until_the_finalizer_goes(api: KubernetesApi) -> None:
    await kill(api, await running_pod(api))
    held = await api.get(PODS, "a", namespace=NAMESPACE)
    assert held["metadata"]["finalizers"] == [FINALIZER]
    assert held["metadata"]["deletionGracePeriodSeconds"] == 0
    await kill(api, held)
    assert (await api.get(PODS, "a", namespace=NAMESPACE))["metadata"]["finalizers"] == [FINALIZER]
    await api.patch(PODS, "a", {"metadata": {"finalizers": None}}, namespace=NAMESPACE)
    with pytest.raises(NotFoundError):
        await api.get(PODS, "a", namespace=NAMESPACE)


async def test_a_pod_that_leaves_already_is_hurried_and_left_to_its_kubelet(api: KubernetesApi) -> None:
    await running_pod(api)
    await api.delete(PODS, "a", namespace=NAMESPACE, grace_period_seconds=30)
    await kill(api, await api.get(PODS, "a", namespace=NAMESPACE))
    left = (await api.get(PODS, "a", namespace=NAMESPACE))["metadata"]
    assert left["deletionGracePeriodSeconds"] == 1
    assert "finalizers" not in left


async def test_what_changed_since_it_was_read_is_refused(api: KubernetesApi) -> None:
    pod = await running_pod(api)
    await api.patch(PODS, "a", {"metadata": {"labels": {"written": "since"}}}, namespace=NAMESPACE)
    with pytest.raises(ConflictError):
        await kill(api, pod)
    assert "deletionTimestamp" not in (await api.get(PODS, "a", namespace=NAMESPACE))["metadata"]


async def test_another_pod_of_its_name_is_left_alone(api: KubernetesApi) -> None:
    pod = await running_pod(api)
    await api.delete(PODS, "a", namespace=NAMESPACE, grace_period_seconds=0)
    await running_pod(api)
    with pytest.raises(ConflictError):
        await kill(api, pod)
    assert "deletionTimestamp" not in (await api.get(PODS, "a", namespace=NAMESPACE))["metadata"]
