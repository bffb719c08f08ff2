"""Decides what to do for a group, from what was observed: pure, so that every case is a row of a table test.

The order of a pass: our finalizer, then what pods need (configuration, Services, budget), then each member's claim and pod,
then role labels, then ids for new members, then status. A group that is being deleted goes the other way, in `deletion.py`.
Nothing here grants a role: roles come from the record, and labels and status only show them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokergroup_operator.api import names
from brokergroup_operator.kube.resources import CONFIG_MAPS, PERSISTENT_VOLUME_CLAIMS, PODS, SERVICES
from brokergroup_operator.reconcile import children, identity, observed
from brokergroup_operator.reconcile.deletion import evaluate_deletion
from brokergroup_operator.reconcile.drift import drifted, with_revision
from brokergroup_operator.reconcile.kinds import BROKER_GROUPS, POD_DISRUPTION_BUDGETS
from brokergroup_operator.reconcile.members import Membership, membership
from brokergroup_operator.reconcile.plan import (
    Action,
    ApplyObject,
    DeleteObject,
    Note,
    Plan,
    ReserveBrokerId,
    SetFinalizers,
    SetRole,
)
from brokergroup_operator.reconcile.pods import build_pod
from brokergroup_operator.reconcile.status import status_action
from brokergroup_operator.reconcile.validity import invalid_spec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.kube.resources import Resource
    from brokergroup_operator.reconcile.identity import Member
    from brokergroup_operator.reconcile.observed import Observed
    from brokergroup_operator.reconcile.settings import ReconcileSettings

# While something of the group is not as it should be, look again this soon even if no event arrives.
UNSETTLED_SECONDS = 5.0


def evaluate(seen: Observed, settings: ReconcileSettings, *, now: str) -> Plan:
    """The plan for one pass. `now` is the time that status may show, as RFC 3339."""
    members = membership(seen)
    work: list[Action] = list(_lift_fences(seen))
    if observed.being_deleted(seen.group_object):
        work += evaluate_deletion(seen)
        if any(isinstance(action, SetFinalizers) and action.resource == BROKER_GROUPS for action in work):
            return Plan(actions=tuple(work))
    elif complaint := invalid_spec(seen):
        work += status_action(seen, members, settings, now=now, invalid=complaint)
        return Plan(actions=tuple(work), look_again_seconds=UNSETTLED_SECONDS)
    else:
        work += _hold_group(seen)
        work += _shared_children(seen, settings)
        for member in members.members:
            work += _member(seen, member, settings)
        work += _roles(seen, members)
        # Last: a reservation that is refused ends the pass, and should not keep a pod from coming back.
        work += _reservations(members)
    status = list(status_action(seen, members, settings, now=now))
    # Nothing is watched that would tell of a Secret that comes.
    unsettled = bool(work) or seen.credentials_problem is not None
    return Plan(actions=(*work, *status), look_again_seconds=UNSETTLED_SECONDS if unsettled else None)


def _lift_fences(seen: Observed) -> Iterator[Action]:
    """The controller plane puts a fence on a silent master's pod; it comes off when nothing of the pod can run again."""
    for name, pod in sorted(seen.pods.items()):
        if observed.fence_can_be_lifted(pod):
            remaining = [item for item in observed.finalizers_of(pod) if item != names.FINALIZER_FENCE]
            yield SetFinalizers(
                reason="the fenced pod's containers are terminated",
                resource=PODS,
                name=name,
                resource_version=str(observed.metadata(pod).get("resourceVersion", "")),
                finalizers=tuple(remaining),
            )


def _hold_group(seen: Observed) -> Iterator[Action]:
    held = observed.finalizers_of(seen.group_object)
    if names.FINALIZER_BROKER_GROUP not in held:
        yield SetFinalizers(
            reason="children must be deleted before the group is",
            resource=BROKER_GROUPS,
            name=identity.name_of(seen.group),
            resource_version=str(observed.metadata(seen.group_object).get("resourceVersion", "")),
            finalizers=(*held, names.FINALIZER_BROKER_GROUP),
        )


def _shared_children(seen: Observed, settings: ReconcileSettings) -> Iterator[Action]:
    group = seen.group
    yield from _apply(CONFIG_MAPS, seen.config_maps, children.build_config_map(group, settings))
    yield from _apply(SERVICES, seen.services, children.build_members_service(group))
    yield from _apply(SERVICES, seen.services, children.build_master_service(group))
    yield from _apply(POD_DISRUPTION_BUDGETS, seen.disruption_budgets, children.build_disruption_budget(group))


def _apply(resource: Resource, existing: Mapping[str, JsonObject], wanted: JsonObject) -> Iterator[Action]:
    desired = with_revision(wanted)
    actual = existing.get(str(desired["metadata"]["name"]))
    if actual is not None and observed.being_deleted(actual):
        return
    if why := drifted(actual, desired):
        yield ApplyObject(reason=why, resource=resource, object=desired)


def _reservations(members: Membership) -> Iterator[Action]:
    lost = [
        Note(reason="VolumeLost", message=f"The volume of broker id {member.broker_id} is gone", warning=True)
        for member in members.volume_lost
    ]
    for index, member in enumerate(members.to_reserve):
        note = lost[index] if index < len(lost) else None
        yield ReserveBrokerId(
            reason="fewer members than spec.replicas", pod_name=member.pod, broker_id=member.broker_id, note=note
        )


def _member(seen: Observed, member: Member, settings: ReconcileSettings) -> Iterator[Action]:
    claim = seen.claims.get(member.pod)
    if claim is not None and observed.being_deleted(claim):
        return
    # Only a bound claim may grow; until then it keeps the size it was made with.
    size = None if claim is None or observed.claim_is_bound(claim) else observed.claim_size(claim)
    yield from _apply(PERSISTENT_VOLUME_CLAIMS, seen.claims, children.build_claim(seen.group, member, size=size))
    pod = seen.pods.get(member.pod)
    if pod is None:
        note = Note(
            reason="PodCreating",
            message=f"Creating pod {member.pod} for broker id {member.broker_id}",
            related=member.pod,
        )
        wanted = build_pod(seen.group, member, settings)
        yield ApplyObject(reason="missing", resource=PODS, object=wanted, note=note)
    elif not observed.being_deleted(pod) and observed.pod_phase(pod) in {"Failed", "Succeeded"}:
        yield DeleteObject(
            reason=f"it is {observed.pod_phase(pod)} and will not run again",
            resource=PODS,
            name=member.pod,
            uid=observed.uid(pod),
        )


def _roles(seen: Observed, members: Membership) -> Iterator[Action]:
    master = seen.record.granted_master_id if seen.record else None
    for member in members.members:
        pod = seen.pods.get(member.pod)
        if pod is None or observed.being_deleted(pod):
            continue
        role = names.ROLE_MASTER if member.broker_id == master else names.ROLE_SLAVE
        wanted = {names.LABEL_ROLE: role, names.LABEL_BROKER_ID: str(member.broker_id)}
        if not observed.labels_of(pod).items() >= wanted.items():
            yield SetRole(
                reason="the record says so",
                pod=member.pod,
                uid=observed.uid(pod),
                role=role,
                broker_id=member.broker_id,
            )
