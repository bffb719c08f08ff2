"""Asks the API server whether it would take an object, before the one in its place is deleted.

The object is applied as a dry run, under a name of its own: a pod that runs can't be changed, so under its own name the answer
would be about that. A refusal that concerns only dry runs is no answer: the object is then applied in earnest. So is an object
that is refused in the same words as a copy of the present one: by a policy for names, say, or a quota.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokergroup_operator.api import names
from brokergroup_operator.kube.errors import ApiError, ApiUnavailableError, NotFoundError, OutcomeUnknownError

if TYPE_CHECKING:
    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.kube.client import KubernetesApi
    from brokergroup_operator.kube.resources import Resource

# A quota that the present object fills is free again when that is gone; and some webhooks refuse every dry run.
NO_ANSWER: Final = ("exceeded quota", "does not support dry run")
SET_BY_OTHERS: Final = frozenset({"nodeName", "ephemeralContainers"})


async def rehearse(api: KubernetesApi, resource: Resource, obj: JsonObject, *, timeout_seconds: float) -> None:
    """Return if the API would take the object; else raise its `ApiError`."""
    refused = await _tried(api, resource, obj, timeout_seconds=timeout_seconds)
    if refused is None or any(text in str(refused) for text in NO_ANSWER):
        return
    try:
        present = await api.get(
            resource,
            obj["metadata"]["name"],
            namespace=obj["metadata"].get("namespace"),
            timeout_seconds=timeout_seconds,
        )
    except NotFoundError:
        raise refused from None
    same = await _tried(api, resource, _copy_of(present), timeout_seconds=timeout_seconds)
    if same is None or (same.status, str(same)) != (refused.status, str(refused)):
        raise refused


async def _tried(api: KubernetesApi, resource: Resource, obj: JsonObject, *, timeout_seconds: float) -> ApiError | None:
    """Return the API's refusal of the object under the rehearsal's name; raise if the API does not answer."""
    metadata = obj["metadata"] | {"name": f"{obj['metadata']['name']}-rehearsal"}
    try:
        await api.apply(
            resource,
            obj | {"metadata": metadata},
            field_manager=names.FIELD_MANAGER_RECONCILE,
            dry_run=True,
            timeout_seconds=timeout_seconds,
        )
    except (ApiUnavailableError, OutcomeUnknownError):
        raise
    except ApiError as error:
        return error
    return None


def _copy_of(present: JsonObject) -> JsonObject:
    """A copy that could be created again: without what only the server, a scheduler or a debugger writes."""
    kept = ("name", "namespace", "labels", "annotations", "ownerReferences")
    metadata = {field: present["metadata"][field] for field in kept if field in present["metadata"]}
    spec = {field: value for field, value in present["spec"].items() if field not in SET_BY_OTHERS}
    return {"apiVersion": present["apiVersion"], "kind": present["kind"], "metadata": metadata, "spec": spec}
