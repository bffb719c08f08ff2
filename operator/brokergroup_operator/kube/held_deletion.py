"""Deleting a pod without grace so that its end can be seen.

A pod that is deleted without grace vanishes from the API at once, while its containers may still run: its absence proves nothing.
A finalizer keeps the object until the kubelet has reported its containers terminated; whoever put it there, or the reconcile
plane after them, takes it away then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokergroup_operator.kube.client import PatchType
from brokergroup_operator.kube.resources import PODS

if TYPE_CHECKING:
    from brokergroup_operator.kube.client import JsonObject, KubernetesApi


async def delete_held(api: KubernetesApi, pod: JsonObject, *, finalizer: str, timeout_seconds: float) -> None:
    """Kill this pod, and no other of its name.

    Raises ConflictError where it is not as it was read, NotFoundError where it is gone.
    """
    metadata = pod["metadata"]
    finalizers = metadata.get("finalizers", [])
    is_leaving = "deletionTimestamp" in metadata
    if finalizer not in finalizers and not is_leaving:
        held = {"resourceVersion": metadata["resourceVersion"], "finalizers": [*finalizers, finalizer]}
        await api.patch(
            PODS,
            metadata["name"],
            {"metadata": held},
            namespace=metadata["namespace"],
            content_type=PatchType.MERGE,
            timeout_seconds=timeout_seconds,
        )
    # A pod that is being deleted already takes no new finalizer. With one second of grace it is the kubelet that removes the
    # object, after the containers have ended; with none the API would remove it at once.
    await api.delete(
        PODS,
        metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        grace_period_seconds=0 if finalizer in finalizers or not is_leaving else 1,
        timeout_seconds=timeout_seconds,
    )
