"""Takes a group apart, without the owner garbage collector: pods first, then what they used, then our finalizer.

Claims and the record share one fate, `spec.storage.retention.whenDeleted`: disks without the record have lost their broker
ids and epochs, and a record without its disks hands out ids for nothing (safety rule 4: the high-water mark outlives the
group). Under Retain a later BrokerGroup of the same name finds both and goes on with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokergroup_operator.api import names
from brokergroup_operator.api.fields.storage_fields import RetentionPolicy
from brokergroup_operator.kube.resources import CONFIG_MAPS, PERSISTENT_VOLUME_CLAIMS, PODS, SERVICES
from brokergroup_operator.reconcile import identity
from brokergroup_operator.reconcile.decide.claims import own_claims
from brokergroup_operator.reconcile.kinds import BROKER_GROUP_STATES, BROKER_GROUPS, POD_DISRUPTION_BUDGETS
from brokergroup_operator.reconcile.plan import Action, DeleteObject, SetFinalizers
from brokergroup_operator.reconcile.see import foreign, observed
from brokergroup_operator.reconcile.see.members import membership
from brokergroup_operator.reconcile.see.pod_trouble import is_stuck_terminating

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.kube.resources import Resource
    from brokergroup_operator.reconcile.see.observed import Observed


def evaluate_deletion(seen: Observed) -> list[Action]:
    """The next actions; none while pods are still stopping."""
    if names.FINALIZER_BROKER_GROUP not in observed.finalizers_of(seen.group_object):
        return []
    if seen.pods:
        return list(_delete(PODS, _pods_to_stop(seen)))
    rest: list[Action] = [
        *_delete(SERVICES, _made_here(seen, seen.services)),
        *_delete(POD_DISRUPTION_BUDGETS, _made_here(seen, seen.disruption_budgets)),
        *_delete(CONFIG_MAPS, _made_here(seen, seen.config_maps)),
        *_delete_data(seen),
    ]
    return rest or [_release_group(seen)]


def _pods_to_stop(seen: Observed) -> Mapping[str, JsonObject]:
    """Slaves before the master: nobody need be elected on the way, and the last log to stop is the longest.

    A slave whose node is lost never ends: the master is not kept for it, or it would serve on in a group that was deleted.
    """
    master = seen.record.granted_master_id if seen.record else None
    of_master = next((item.pod for item in membership(seen).members if item.broker_id == master), "")
    slaves = {name: pod for name, pod in seen.pods.items() if name != of_master}
    return slaves if any(not is_stuck_terminating(pod, now=seen.now) for pod in slaves.values()) else seen.pods


def _made_here(seen: Observed, objects: Mapping[str, JsonObject]) -> Mapping[str, JsonObject]:
    """What this operator made for the group. A person's Service may carry the group's label, or every label of one of ours."""
    group = identity.name_of(seen.group)
    shared = {
        names.members_service_name(group),
        names.master_service_name(group),
        names.disruption_budget_name(group),
        names.master_disruption_budget_name(group),
        names.config_map_name(group),
    }
    return {
        name: obj
        for name, obj in objects.items()
        if (name in shared or names.broker_id_of_pod_name(group, name) is not None)
        and foreign.is_ours(obj, seen.group_object)
    }


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
