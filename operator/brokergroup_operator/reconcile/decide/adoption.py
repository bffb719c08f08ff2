"""Owner references of a group's objects: taken back from an earlier group of its name, removed for an orphaned one. Pure.

`kubectl delete --cascade=orphan` puts the finalizer `orphan` on the group. The cluster's garbage collector takes the owner
references off its dependents, and then that finalizer: mostly before a pass sees it. So a group that is being deleted is orphaned
too where something that it made has no owner. A pass that gives things their owner back may go on beside the collector, so a
group is marked before and unmarked after: one that is deleted in between counts as orphaned, and everything stays.

Here the marks of older versions are mended, too: Argo CD's label goes, and each pod says for which group it was made.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from brokergroup_operator.api import names
from brokergroup_operator.kube.resources import PERSISTENT_VOLUME_CLAIMS, PODS
from brokergroup_operator.reconcile import identity
from brokergroup_operator.reconcile.decide.claims import own_claims
from brokergroup_operator.reconcile.plan import Note, PatchMetadata
from brokergroup_operator.reconcile.see import foreign, observed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.kube.resources import Resource
    from brokergroup_operator.reconcile.see.observed import Observed

ORPHAN_FINALIZER: Final = "orphan"


def is_orphaned(seen: Observed) -> bool:
    """Whether the group, which is being deleted, was asked to leave everything as it is."""
    return (
        ORPHAN_FINALIZER in observed.finalizers_of(seen.group_object) or takes_back(seen) or foreign.has_unowned(seen)
    )


def takes_back(seen: Observed) -> bool:
    """Whether the group has begun to take objects back and may not have finished."""
    return names.ANNOTATION_TAKES_BACK in observed.annotations_of(seen.group_object)


def adopted(seen: Observed) -> Iterator[PatchMetadata]:
    """Take back what an orphaned group of this name has left, or what lost its owner."""
    unowned = [(resource, obj) for resource, obj in foreign.children(seen) if observed.is_unowned(obj)]
    owner = {"ownerReferences": [identity.owner_reference(seen.group)]}
    for resource, obj in unowned:
        patch = _patch(resource, obj, "it has no owner", owner)
        yield patch if obj is not unowned[-1][1] else replace(patch, note=_taken_back(unowned))


def _taken_back(unowned: list[tuple[Resource, JsonObject]]) -> Note:
    listed = ", ".join(f"{resource.kind} {observed.metadata(obj)['name']}" for resource, obj in unowned)
    return Note(reason="TakenBack", message=f"What had no owner is this group's again, as it runs: {listed}")


def disowned(seen: Observed) -> Iterator[PatchMetadata]:
    """Remove the group's owner references: the garbage collector would delete the objects as soon as the group is gone."""
    uid = observed.uid(seen.group_object)
    for resource, obj in foreign.children(seen):
        if any(owner.get("uid") == uid for owner in observed.owners_of(obj)):
            change: JsonObject = {"ownerReferences": [{"uid": uid, "$patch": "delete"}]}
            if resource == PODS:
                change |= _pod_marks(seen, obj)
            yield _patch(resource, obj, "its group is orphaned", change)


def marks_mended(seen: Observed) -> Iterator[PatchMetadata]:
    """Mend the marks of what is not applied again: pods, and claims that no member has any more."""
    for pod in seen.pods.values():
        own = [owner for owner in observed.owners_of(pod) if owner.get("uid") == observed.uid(seen.group_object)]
        change = (_pod_marks(seen, pod) if own else {}) | _without_instance(pod)
        if any(owner.get("apiVersion") != names.API_VERSION for owner in own):
            # A garbage collector looks an owner up by its version, too. What is applied again, has this one from then on.
            change |= {"ownerReferences": [identity.owner_reference(seen.group)]}
        if change:
            yield _patch(PODS, pod, "an older version made it", change)
    yield from claims_mended(own_claims(seen).values())


def claims_mended(claims: Iterable[JsonObject]) -> Iterator[PatchMetadata]:
    """Also of a group that is gone: its claims have no owner, so Argo CD's label would have them pruned."""
    for claim in claims:
        if change := _without_instance(claim):
            yield _patch(PERSISTENT_VOLUME_CLAIMS, claim, "an older version made it", change)


def _pod_marks(seen: Observed, pod: JsonObject) -> JsonObject:
    if names.ANNOTATION_GROUP_UID in observed.annotations_of(pod):
        return {}
    return {"annotations": {names.ANNOTATION_GROUP_UID: observed.uid(seen.group_object)}}


def _without_instance(obj: JsonObject) -> JsonObject:
    """The patch that removes the instance label where the operator set it: another tool may use a label of that name."""
    is_ours = observed.is_held_by(obj, names.FIELD_MANAGER_RECONCILE, "labels", names.LABEL_APP_INSTANCE)
    return {"labels": {names.LABEL_APP_INSTANCE: None}} if is_ours else {}


def _patch(resource: Resource, obj: JsonObject, reason: str, change: JsonObject) -> PatchMetadata:
    return PatchMetadata(
        reason=reason,
        resource=resource,
        name=str(observed.metadata(obj)["name"]),
        uid=observed.uid(obj),
        change=change,
    )
