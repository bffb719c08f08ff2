"""Asks the API server whether it would take an object, before what stands in its place is given up.

The object is applied as a dry run, under a name of its own: a pod that runs can't be changed, so under its own name the answer
would be about that. What an API server can only say of a dry run is no answer, and the object is tried in earnest then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokergroup_operator.api import names
from brokergroup_operator.kube.errors import ApiError

if TYPE_CHECKING:
    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.kube.client import KubernetesApi
    from brokergroup_operator.kube.resources import Resource

# A quota that the present object fills is free again when that is gone; and some webhooks refuse every dry run.
NO_ANSWER: Final = ("exceeded quota", "does not support dry run")


async def rehearse(api: KubernetesApi, resource: Resource, obj: JsonObject, *, timeout_seconds: float) -> None:
    """Return if the API would take the object; else raise its `ApiError`."""
    metadata = obj["metadata"] | {"name": f"{obj['metadata']['name']}-rehearsal"}
    try:
        await api.apply(
            resource,
            obj | {"metadata": metadata},
            field_manager=names.FIELD_MANAGER_RECONCILE,
            dry_run=True,
            timeout_seconds=timeout_seconds,
        )
    except ApiError as error:
        if not any(text in str(error) for text in NO_ANSWER):
            raise
