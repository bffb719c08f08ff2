"""How a whole group stops: it is deleted, orphaned, or hibernated. Pure. No garbage collector of owners is needed.

Claims and the record share one fate, `spec.storage.retention.whenDeleted`: disks without the record have lost their broker
ids and epochs, and a record without its disks hands out ids for nothing (safety rule 4: the high-water mark outlives the
group). Under Retain a later BrokerGroup of the same name finds both and goes on with them. A group that is
deleted with `--cascade=orphan` leaves everything as it runs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from brokergroup_operator.api import names
from brokergroup_operator.api.broker_keys import MINIMUM, QUIET_MINIMUM
from brokergroup_operator.api.brokergroup_status import Reason
from brokergroup_operator.api.storage_fields import RetentionPolicy
from brokergroup_operator.kube import resources
from brokergroup_operator.reconcile import identity
from brokergroup_operator.reconcile.decide.claims import held_by_adopt, own_claims
from brokergroup_operator.reconcile.plan import Action, DeleteObject, Note, PatchMetadata, SetFinalizers, Step, Verb
from brokergroup_operator.reconcile.render import broker_config
from brokergroup_operator.reconcile.see import foreign, observed
from brokergroup_operator.reconcile.see.members import standings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.reconcile.see.members import Standing
    from brokergroup_operator.reconcile.see.observed import Observed


def evaluate_deletion(seen: Observed, quieting: Iterable[Action]) -> list[Action]:
    """The next actions; none while pods are still stopping. `quieting` asks the master to acknowledge nothing more."""
    if names.FINALIZER_BROKER_GROUP not in observed.finalizers_of(seen.group_object):
        return []
    if is_orphaned(seen):
        return _let_go(seen)
    if seen.pods:
        # What the master acknowledged is then on every disk that counts. One that cannot be asked stops all the same.
        return [*quieting, *_delete(resources.PODS, seen.pods)]
    made = (resources.SERVICES, resources.POD_DISRUPTION_BUDGETS, resources.CONFIG_MAPS, resources.NETWORK_POLICIES)
    rest = [action for resource in made for action in _delete(resource, foreign.made_here(seen, resource))]
    return [*rest, *_delete_data(seen)] or [_release_group(seen, "all children are gone")]


def _let_go(seen: Observed) -> list[Action]:
    """`--cascade=orphan`: delete nothing, whatever whenDeleted says, and leave no object with an owner that goes."""
    held = {names.FINALIZER_FENCE, names.FINALIZER_BACKUP}
    if any(held & {*observed.finalizers_of(pod)} for pod in seen.pods.values()):
        return []
    if owned := list(disowned(seen)):
        return list(owned)
    master = seen.record.granted_master_id if seen.record else None
    leads = "no broker is master" if master is None else f"broker {master} stays master"
    note = Note(
        reason="Orphaned",
        message=f"Deleted with --cascade=orphan: everything stays as it is (pods: {', '.join(sorted(seen.pods)) or 'none'};"
        f" {leads}), without failover, until a BrokerGroup of this name is created: it takes all of it back without a restart",
        warning=True,
    )
    return [replace(_release_group(seen, "it was orphaned"), note=note)]


def _delete_data(seen: Observed) -> Iterator[Action]:
    # Claims that `brokergroup adopt` has are another deployment's, or on their way here: also for a group that was made again.
    if seen.group.spec.storage.retention.when_deleted is RetentionPolicy.RETAIN or held_by_adopt(seen):
        return
    # The record goes last: a broker id must stay on record until its claim is deleted.
    claims = list(_delete(resources.PERSISTENT_VOLUME_CLAIMS, own_claims(seen)))
    yield from claims
    if not claims and seen.state_object is not None:
        yield from _delete(resources.BROKER_GROUP_STATES, {identity.name_of(seen.group): seen.state_object})


def _delete(resource: resources.Resource, objects: Mapping[str, JsonObject]) -> Iterator[Action]:
    for _, obj in sorted(objects.items()):
        if not observed.being_deleted(obj):
            yield DeleteObject.of(resource, obj, "the group is being deleted")


def _release_group(seen: Observed, reason: str) -> SetFinalizers:
    return SetFinalizers.without(resources.BROKER_GROUPS, seen.group_object, names.FINALIZER_BROKER_GROUP, reason)


# `kubectl delete --cascade=orphan` puts it on the group. The cluster's garbage collector takes the owner references off the
# group's dependents, and then this finalizer: mostly before a pass sees it. So a group that is being deleted is orphaned too where
# something that it made has no owner. A pass that gives things their owner back may go on beside the collector, so a group is
# marked before and unmarked after: one that is deleted in between counts as orphaned, and everything stays.
ORPHAN_FINALIZER: Final = "orphan"


def is_orphaned(seen: Observed) -> bool:
    """Whether the group, which is being deleted, was asked to leave everything as it is."""
    asked = ORPHAN_FINALIZER in observed.finalizers_of(seen.group_object)
    return asked or takes_back(seen) or foreign.has_unowned(seen)


def takes_back(seen: Observed) -> bool:
    """Whether the group has begun to take objects back and may not have finished."""
    return names.ANNOTATION_TAKES_BACK in observed.annotations_of(seen.group_object)


def adopted(seen: Observed) -> Iterator[PatchMetadata]:
    """Take back what an orphaned group of this name has left, or what lost its owner."""
    unowned = [(resource, obj) for resource, obj in foreign.children(seen) if observed.is_unowned(obj)]
    listed = ", ".join(f"{resource.kind} {observed.metadata(obj)['name']}" for resource, obj in unowned)
    note = Note(reason="TakenBack", message=f"What had no owner is this group's again, as it runs: {listed}")
    owner = {"ownerReferences": [identity.owner_reference(seen.group)]}
    for resource, obj in unowned:
        patch = _patch(resource, obj, "it has no owner", owner)
        yield patch if obj is not unowned[-1][1] else replace(patch, note=note)


def disowned(seen: Observed) -> Iterator[PatchMetadata]:
    """Remove the group's owner references: the garbage collector would delete the objects as soon as the group is gone."""
    uid = observed.uid(seen.group_object)
    for resource, obj in foreign.children(seen):
        if any(owner.get("uid") == uid for owner in observed.owners_of(obj)):
            change: JsonObject = {"ownerReferences": [{"uid": uid, "$patch": "delete"}]}
            if resource == resources.PODS:
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
            yield _patch(resources.PODS, pod, "an older version made it", change)
    yield from claims_mended(own_claims(seen).values())


def claims_mended(claims: Iterable[JsonObject]) -> Iterator[PatchMetadata]:
    """Also of a group that is gone: its claims have no owner, so Argo CD's label would have them pruned."""
    for claim in claims:
        if change := _without_instance(claim):
            yield _patch(resources.PERSISTENT_VOLUME_CLAIMS, claim, "an older version made it", change)


def _pod_marks(seen: Observed, pod: JsonObject) -> JsonObject:
    if names.ANNOTATION_GROUP_UID in observed.annotations_of(pod):
        return {}
    return {"annotations": {names.ANNOTATION_GROUP_UID: observed.uid(seen.group_object)}}


def _without_instance(obj: JsonObject) -> JsonObject:
    """The patch that removes the instance label where the operator set it: another tool may use a label of that name."""
    is_ours = observed.is_held_by(obj, names.FIELD_MANAGER_RECONCILE, "labels", names.LABEL_APP_INSTANCE)
    return {"labels": {names.LABEL_APP_INSTANCE: None}} if is_ours else {}


def _patch(resource: resources.Resource, obj: JsonObject, reason: str, change: JsonObject) -> PatchMetadata:
    name, uid = str(observed.metadata(obj)["name"]), observed.uid(obj)
    return PatchMetadata(reason=reason, resource=resource, name=name, uid=uid, change=change)


# More than any group has, so that nothing is acknowledged: the same value as a switchover uses.
QUIET: Final = {MINIMUM: QUIET_MINIMUM}


def must_be_quiet(seen: Observed) -> Standing | None:
    """The master that must stop acknowledging before its pod is stopped: the whole group is hibernated or deleted."""
    master = next((standing for standing in standings(seen).values() if standing.is_master), None)
    if master is None or not master.is_live or not master.is_ready or not stops(seen):
        return None
    if observed.pods_on_going_claims(seen) and not observed.being_deleted(seen.group_object):
        return None
    pod = seen.pods[master.member.pod]
    return master if broker_config.hot_changes(pod, QUIET) else None


def stops(seen: Observed) -> bool:
    return seen.group.spec.maintenance.hibernated or observed.being_deleted(seen.group_object)


def hibernation_steps(seen: Observed) -> list[Step]:
    """Return the pods to stop now: once the master is quiet (`QUIET`), its own; when that has ended, the slaves' all at once."""
    if observed.pods_on_going_claims(seen) or must_be_quiet(seen) is not None:
        return []  # to sleep would be to lose those disks, or what the master still acknowledges
    # What is in flight is replicated first. No master is left to shrink the SyncStateSet, so every member keeps its seat.
    there = [standing for standing in standings(seen).values() if standing.has_pod]
    masters = [standing for standing in there if standing.is_master]
    going = [standing.member for standing in masters or there if not standing.is_going]
    why = "the group is hibernated"
    return [Step(verb=Verb.STOP, reason=Reason.HIBERNATING, why=why, member=member) for member in going]
