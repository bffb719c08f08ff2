"""How an object leaves: preconditions, the grace period of pods, finalizers.

As in k8s.io/apiserver/pkg/registry/rest/delete.go (BeforeDelete) and the pod strategy's CheckGracefulDelete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kube_sandbox.api_server.errors import GroupResource, conflict
from kube_sandbox.api_server.json_values import JsonObject, shallow
from kube_sandbox.api_server.store.metadata import timestamp

if TYPE_CHECKING:
    from kube_sandbox.api_server.requests import Deletion
    from kube_sandbox.api_server.resource_types import ResourceType

FOREGROUND_FINALIZER = "foregroundDeletion"
ORPHAN_FINALIZER = "orphan"


def check_preconditions(resource: ResourceType, name: str, metadata: JsonObject, options: Deletion) -> None:
    """409 unless the object is the one the caller means."""
    what = GroupResource(resource.group, resource.kind)
    if options.uid is not None and metadata["uid"] != options.uid:
        why = (
            f"the UID in the precondition ({options.uid}) does not match the UID in record ({metadata['uid']})."
            " The object might have been deleted and then recreated"
        )
        raise conflict(what, name, why)
    version = metadata["resourceVersion"]
    if options.resource_version is not None and version != options.resource_version:
        why = (
            f"the ResourceVersion in the precondition ({options.resource_version}) does not match the ResourceVersion"
            f" in record ({version}). The object might have been modified"
        )
        raise conflict(what, name, why)


def is_complete(resource: ResourceType, obj: JsonObject) -> bool:
    """Whether an object marked for deletion has nothing left to wait for."""
    metadata = obj["metadata"]
    return (
        "deletionTimestamp" in metadata
        and not metadata.get("finalizers")
        and not metadata.get("deletionGracePeriodSeconds", 0)
        and not resource.behaviour.is_held(obj)
    )


def begin(resource: ResourceType, obj: JsonObject, options: Deletion, now_seconds: float) -> JsonObject | None:
    """The object marked for deletion; None when it is marked already and this request asks for nothing sooner."""
    grace = resource.behaviour.grace_period_seconds(obj, options.grace_period_seconds)
    marked = shallow(obj)
    meta = marked["metadata"]
    _set_propagation(meta, options)
    if "deletionTimestamp" in meta:
        current = meta.get("deletionGracePeriodSeconds", 0)
        if current == 0 or (grace >= current and options.grace_period_seconds is None) or grace >= current:
            return None if meta == obj["metadata"] else marked
    meta["deletionTimestamp"] = timestamp(now_seconds + grace)
    meta["deletionGracePeriodSeconds"] = grace
    if meta.get("generation", 0) > 0 and "deletionTimestamp" not in obj["metadata"]:
        meta["generation"] += 1
    return resource.behaviour.mark_deleted(marked)


def _set_propagation(metadata: JsonObject, options: Deletion) -> None:
    """The garbage collector's finalizers follow the caller's wish, or are left as they are."""
    if not options.propagation:
        return
    wanted = {"Foreground": FOREGROUND_FINALIZER, "Orphan": ORPHAN_FINALIZER}.get(options.propagation)
    kept = [name for name in metadata.get("finalizers") or () if name not in (FOREGROUND_FINALIZER, ORPHAN_FINALIZER)]
    finalizers = kept + ([wanted] if wanted else [])
    if finalizers:
        metadata["finalizers"] = finalizers
    else:
        metadata.pop("finalizers", None)
