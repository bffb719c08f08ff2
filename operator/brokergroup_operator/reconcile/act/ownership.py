"""The owner of a group: each BrokerGroup carries the name of the one operator that reconciles it (ADR 10).

A Lease keeps the pods of one release from reconciling at once. Two releases have two Leases, and would undo each other's work for
ever: other controller addresses, other images. So the first that comes writes its Lease's name on the group, by compare-and-set,
and any other leaves the group alone and says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.api import names
from brokergroup_operator.kube.client import PatchType
from brokergroup_operator.kube.resources import BROKER_GROUPS
from brokergroup_operator.reconcile.plan import Note

if TYPE_CHECKING:
    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.kube.client import KubernetesApi
    from brokergroup_operator.kube.resources import Resource
    from brokergroup_operator.reconcile.tell.events import EventPoster

log = structlog.get_logger(__name__)


async def take(
    api: KubernetesApi,
    events: EventPoster,
    group_object: JsonObject,
    *,
    operator: str | None,
    resource: Resource = BROKER_GROUPS,
) -> JsonObject | None:
    """Return the group once it is ours, None where it is another's. Raise ``ConflictError`` if another write came first."""
    holder = names.operator_of(group_object)
    if holder == operator:
        return group_object
    metadata = group_object["metadata"]
    if holder is None:
        log.info(
            "reconcile.taken",
            kind=resource.kind,
            group=f"{metadata['namespace']}/{metadata['name']}",
            operator=operator,
        )
        return await api.patch(
            resource,
            str(metadata["name"]),
            {
                "metadata": {
                    "resourceVersion": metadata["resourceVersion"],
                    "annotations": {names.ANNOTATION_OPERATOR: operator},
                }
            },
            namespace=str(metadata["namespace"]),
            content_type=PatchType.MERGE,
            field_manager=names.FIELD_MANAGER_RECONCILE,
        )
    message = refusal(holder, operator)
    if await events.post_once(group_object, Note(reason="ServedByAnotherOperator", message=message, warning=True)):
        log.warning("reconcile.group_of_another", group=f"{metadata['namespace']}/{metadata['name']}", why=message)
    return None


def refusal(holder: str, operator: str | None) -> str:
    """The message for the administrator of a second release: which operator has the group, and how to hand it over."""
    own = f"Operator {operator}" if operator is not None else "An operator without a Lease"
    return (
        f"{own} leaves this object alone: operator {holder} reconciles it, by its annotation {names.ANNOTATION_OPERATOR}."
        " If that one is gone, or should no longer serve this namespace, remove the annotation"
    )
