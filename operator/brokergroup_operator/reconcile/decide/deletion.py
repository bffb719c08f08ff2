"""Takes a group apart, without the owner garbage collector: pods first, then what they used, then our finalizer.

Claims and the record share one fate, `spec.storage.retention.whenDeleted`: disks without the record have lost their broker
ids and epochs, and a record without its disks hands out ids for nothing (safety rule 4: the high-water mark outlives the
group). Under Retain a later BrokerGroup of the same name finds both and goes on with them. A group that is
deleted with `--cascade=orphan` leaves everything as it runs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from brokergroup_operator.api import names
from brokergroup_operator.api.storage_fields import RetentionPolicy
from brokergroup_operator.kube.resources import CONFIG_MAPS, PERSISTENT_VOLUME_CLAIMS, PODS, SERVICES
from brokergroup_operator.reconcile import identity
from brokergroup_operator.reconcile.decide import adoption
from brokergroup_operator.reconcile.decide.claims import own_claims
from brokergroup_operator.reconcile.kinds import BROKER_GROUP_STATES, BROKER_GROUPS, POD_DISRUPTION_BUDGETS
from brokergroup_operator.reconcile.plan import Action, DeleteObject, Note, SetFinalizers
from brokergroup_operator.reconcile.see import foreign, observed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.kube.resources import Resource
    from brokergroup_operator.reconcile.see.observed import Observed


def evaluate_deletion(seen: Observed, quieting: Iterable[Action]) -> list[Action]:
    """The next actions; none while pods are still stopping.

    Before the first pod stops, the master is asked to acknowledge nothing more (`quieting`): what it acknowledged is then on
    every disk that counts, and no member leaves the SyncStateSet while they stop. A master that cannot be asked stops all the
    same, and all pods stop at once: a Java broker takes 6 to 10 s to end, and no member waits for another.
    """
    if names.FINALIZER_BROKER_GROUP not in observed.finalizers_of(seen.group_object):
        return []
    if adoption.is_orphaned(seen):
        return _let_go(seen)
    if seen.pods:
        return [*quieting, *_delete(PODS, seen.pods)]
    rest: list[Action] = [
        *_delete(SERVICES, foreign.made_here(seen, seen.services)),
        *_delete(POD_DISRUPTION_BUDGETS, foreign.made_here(seen, seen.disruption_budgets)),
        *_delete(CONFIG_MAPS, foreign.made_here(seen, seen.config_maps)),
        *_delete_data(seen),
    ]
    return rest or [_release_group(seen, "all children are gone")]


def _let_go(seen: Observed) -> list[Action]:
    """`--cascade=orphan`: nothing is deleted, whatever whenDeleted says, and nothing that stays names an owner that goes.

    A pod that is being fenced is waited for: once the group is gone, no plane would take its finalizer off.
    """
    if any(names.FINALIZER_FENCE in observed.finalizers_of(pod) for pod in seen.pods.values()):
        return []
    if owned := list(adoption.disowned(seen)):
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
    if seen.group.spec.storage.retention.when_deleted is RetentionPolicy.RETAIN:
        return
    # The record goes last: a broker id must stay on record until its claim is deleted.
    claims = list(_delete(PERSISTENT_VOLUME_CLAIMS, own_claims(seen)))
    yield from claims
    if not claims and seen.state_object is not None:
        yield from _delete(BROKER_GROUP_STATES, {identity.name_of(seen.group): seen.state_object})


def _delete(resource: Resource, objects: Mapping[str, JsonObject]) -> Iterator[Action]:
    for name, obj in sorted(objects.items()):
        if not observed.being_deleted(obj):
            yield DeleteObject(reason="the group is being deleted", resource=resource, name=name, uid=observed.uid(obj))


def _release_group(seen: Observed, reason: str) -> SetFinalizers:
    remaining = [item for item in observed.finalizers_of(seen.group_object) if item != names.FINALIZER_BROKER_GROUP]
    return SetFinalizers(
        reason=reason,
        resource=BROKER_GROUPS,
        name=identity.name_of(seen.group),
        resource_version=str(observed.metadata(seen.group_object).get("resourceVersion", "")),
        finalizers=tuple(remaining),
    )
