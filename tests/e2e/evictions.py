"""Evictions as `kubectl drain` requests them, and a stand-in for the disruption controller that keeps the budgets' status.

No kube-controller-manager runs in either house. For a budget with `minAvailable` it only counts the ready
pods of the selector. The API server does the rest: it refuses an eviction that the status does not allow (429), and
subtracts each granted one from the status before it deletes the pod: until the deletion is visible, the evicted pod
does not count although it looks ready.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from brokergroup_operator.kube.client import PatchType
from brokergroup_operator.kube.errors import ApiError, NotFoundError
from brokergroup_operator.kube.resources import POD_DISRUPTION_BUDGETS, PODS, Resource
from brokergroup_operator.reconcile.see.observed import pod_is_ready
from tests.e2e.house import NAMESPACE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from brokergroup_operator.kube import KubernetesApi

LOOK_SECONDS = 0.1
TOO_MANY_REQUESTS = 429


@asynccontextmanager
async def budgets_are_kept(api: KubernetesApi) -> AsyncIterator[None]:
    """Keep the budgets' status for the length of a block."""
    keeping = asyncio.create_task(_keep(api))
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


async def _keep(api: KubernetesApi) -> None:
    while True:
        pods = (await api.list(PODS, namespace=NAMESPACE)).items
        for budget in (await api.list(POD_DISRUPTION_BUDGETS, namespace=NAMESPACE)).items:
            await _write(api, budget, status_of(budget, pods))
        await asyncio.sleep(LOOK_SECONDS)


def status_of(budget: dict[str, Any], pods: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the status that the disruption controller would write."""
    wanted = budget["spec"]["selector"]["matchLabels"].items()
    matching = [pod for pod in pods if wanted <= (pod["metadata"].get("labels") or {}).items()]
    granted: dict[str, str] = (budget.get("status") or {}).get("disruptedPods") or {}
    going = {pod["metadata"]["name"] for pod in matching if _is_about_to_go(pod, granted)}
    healthy = sum(pod_is_ready(pod) and pod["metadata"]["name"] not in going for pod in matching)
    needed = int(budget["spec"]["minAvailable"])
    return {
        "observedGeneration": budget["metadata"].get("generation", 0),
        "expectedPods": len(matching),
        "currentHealthy": healthy,
        "desiredHealthy": needed,
        "disruptionsAllowed": max(0, healthy - needed),
        # A merge patch: None removes an entry.
        **({"disruptedPods": {name: granted[name] if name in going else None for name in granted}} if granted else {}),
    }


def _is_about_to_go(pod: dict[str, Any], granted: dict[str, str]) -> bool:
    """Whether this pod's eviction was granted, not that of an earlier pod of the same name."""
    metadata = pod["metadata"]
    return "deletionTimestamp" not in metadata and metadata["creationTimestamp"] < granted.get(metadata["name"], "")


async def _write(api: KubernetesApi, budget: dict[str, Any], status: dict[str, Any]) -> None:
    if status.items() <= (budget.get("status") or {}).items():
        return
    metadata = budget["metadata"]
    # With the version that was read: the API server decrements the same field.
    patch = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "status": status}
    try:
        await api.patch(
            POD_DISRUPTION_BUDGETS,
            metadata["name"],
            patch,
            namespace=NAMESPACE,
            subresource="status",
            content_type=PatchType.MERGE,
        )
    except ApiError as error:
        if error.status not in {404, 409}:
            raise


async def is_evicted(api: KubernetesApi, pod: str) -> bool:
    """Request one eviction, as `kubectl drain` does every few seconds. False: the budget does not allow it now."""
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": NAMESPACE}}
    verb = Resource("", "v1", f"pods/{pod}/eviction", "Eviction")
    try:
        await api.create(verb, eviction)
    except NotFoundError:
        return True
    except ApiError as error:
        if error.status != TOO_MANY_REQUESTS:
            raise
        return False
    return True
