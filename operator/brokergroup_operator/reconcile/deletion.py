"""Takes a group apart, without the owner garbage collector: pods first, then what they used, then our finalizer.

Claims and the record share one fate, `spec.storage.retention.whenDeleted`: disks without the record have lost their broker
ids and epochs, and a record without its disks hands out ids for nothing (safety rule 4: the high-water mark outlives the
group). Under Retain a later BrokerGroup of the same name finds both and goes on with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokergroup_operator.api import names
from brokergroup_operator.api.storage_fields import RetentionPolicy
from brokergroup_operator.kube.resources import CONFIG_MAPS, PERSISTENT_VOLUME_CLAIMS, PODS, SERVICES
from brokergroup_operator.reconcile import identity, observed
from brokergroup_operator.reconcile.claims import own_claims
from brokergroup_operator.reconcile.kinds import BROKER_GROUP_STATES, BROKER_GROUPS, POD_DISRUPTION_BUDGETS
from brokergroup_operator.reconcile.members import membership
from brokergroup_operator.reconcile.plan import Action, DeleteObject, SetFinalizers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.kube.resources import Resource
    from brokergroup_operator.reconcile.observed import Observed


def evaluate_deletion(seen: Observed) -> list[Action]:
    """The next actions; none while pods are still stopping."""
    if names.FINALIZER_BROKER_GROUP not in observed.finalizers_of(seen.group_object):
        return []
    if seen.pods:
        return list(_delete(PODS, _pods_to_stop(seen)))
    rest: list[Action] = [
        *_delete(SERVICES, seen.services),
        *_delete(POD_DISRUPTION_BUDGETS, seen.disruption_budgets),
        *_delete(CONFIG_MAPS, seen.config_maps),
        *_delete_data(seen),
    ]
    return rest or [_release_group(seen)]


def _pods_to_stop(seen: Observed) -> Mapping[str, JsonObject]:
    """Slaves before the master: nobody need be elected on the way, and the last log to stop is the longest."""
    master = seen.record.granted_master_id if seen.record else None
    of_master = next((item.pod for item in membership(seen).members if item.broker_id == master), "")
    slaves = {name: pod for name, pod in seen.pods.items() if name != of_master}
    return slaves or seen.pods


def _delete_data(seen: Observed) -> Iterator[Action]:
    if seen.group.spec.storage.retention.when_deleted is RetentionPolicy.RETAIN:
        return
    # The record goes last: until its claim is asked to go, a broker id must be remembered.
    claims = list(_delete(PERSISTENT_VOLUME_CLAIMS, own_claims(seen)))
    yield from claims
    if not claims and seen.state_object is not None:
        yield from _delete(BROKER_GROUP_STATES, {identity.name_of(seen.group): seen.state_object})


def _delete(resource: Resource, objects: Mapping[str, JsonObject]) -> Iterator[Action]:
    for name, obj in sorted(objects.items()):
        if not observed.being_deleted(obj):
            yield DeleteObject(reason="the group is being deleted", resource=resource, name=name, uid=observed.uid(obj))


def _release_group(seen: Observed) -> Action:
    remaining = [item for item in observed.finalizers_of(seen.group_object) if item != names.FINALIZER_BROKER_GROUP]
    return SetFinalizers(
        reason="all children are gone",
        resource=BROKER_GROUPS,
        name=identity.name_of(seen.group),
        resource_version=str(observed.metadata(seen.group_object).get("resourceVersion", "")),
        finalizers=tuple(remaining),
    )
