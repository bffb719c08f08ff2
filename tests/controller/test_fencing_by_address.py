"""The fence finds the process by its address: a pod whose disk was lost carries a new broker id under its old name."""

import asyncio

import pytest

from brokergroup_operator.controller.fencing import KubernetesFencer
from brokergroup_operator.kube.client import KubernetesApi
from brokergroup_operator.kube.errors import NotFoundError
from brokergroup_operator.kube.resources import PODS
from tests.controller.fake_broker import eventually
from tests.controller.test_kubernetes_parts import ADDRESS, BINDING, TERMINATED, api, create_pod, set_status

__all__ = ["api"]


async def _is_dying(api: KubernetesApi, name: str) -> bool:
    pod = await api.get(PODS, name, namespace="default")
    return "deletionTimestamp" in pod["metadata"]


async def test_the_pod_at_the_address_is_killed_whatever_its_name_says(api: KubernetesApi) -> None:
    """Broker 4 is the pod `orders-1` since its volume was lost; there is no pod `orders-4`."""
    await create_pod(api, "orders-1")
    fencing = asyncio.create_task(KubernetesFencer(api).fence(BINDING, 4, ADDRESS, deadline_seconds=20.0))
    await eventually(lambda: _is_dying(api, "orders-1"), what="the pod to be deleted")
    await set_status(api, "orders-1", address="127.64.1.1", state=TERMINATED)
    outcome = await fencing
    assert outcome.confirmed
    assert "orders-1" in outcome.how


async def test_a_pod_of_the_right_name_at_another_address_is_left_alone(api: KubernetesApi) -> None:
    """`orders-4` exists too, and is somebody else's process (safety rule 8)."""
    await create_pod(api, "orders-4", address="127.64.1.4")
    await create_pod(api, "orders-1")
    fencing = asyncio.create_task(KubernetesFencer(api).fence(BINDING, 4, ADDRESS, deadline_seconds=20.0))
    await eventually(lambda: _is_dying(api, "orders-1"), what="the pod to be deleted")
    await set_status(api, "orders-1", address="127.64.1.1", state=TERMINATED)
    assert (await fencing).confirmed
    assert not await _is_dying(api, "orders-4")


async def test_nobody_at_the_address_confirms_nothing(api: KubernetesApi) -> None:
    await create_pod(api, "orders-4", address="127.64.1.4")
    outcome = await KubernetesFencer(api).fence(BINDING, 4, ADDRESS, deadline_seconds=5.0)
    assert not outcome.confirmed
    assert not await _is_dying(api, "orders-4")
    with pytest.raises(NotFoundError):
        await api.get(PODS, "orders-1", namespace="default")
