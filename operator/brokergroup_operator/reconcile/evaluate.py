"""Decides what to do for a group, from what was observed: pure, so that every case is a row of a table test.

The order of a pass: our finalizer, then what pods need (configuration, Services, budgets), then each member's claim and
pod, then role labels and hot configuration, then ids for new members, then status; and last, once the status shows why, what is
voluntary (`course.py`). A group that is being deleted goes the other way, in `deletion.py`. Nothing here grants a role: roles
come from the record, and labels and status only show them.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, repeat
from typing import TYPE_CHECKING

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup_status import Reason
from brokergroup_operator.kube.resources import (
    BROKER_GROUPS,
    CONFIG_MAPS,
    NETWORK_POLICIES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    SERVICES,
)
from brokergroup_operator.reconcile import identity
from brokergroup_operator.reconcile import plan as plans
from brokergroup_operator.reconcile.decide import course as courses
from brokergroup_operator.reconcile.decide import deletion, retiring, stopping, tls_order, versions
from brokergroup_operator.reconcile.decide.bootstrap import (
    finished_copies,
    noted_beginning,
    restore_actions,
    retried_restore,
    why_not_restored,
)
from brokergroup_operator.reconcile.decide.claims import claim_actions, discarded_claims, why_held_by_adopt
from brokergroup_operator.reconcile.decide.configuration_drift import put_back_actions
from brokergroup_operator.reconcile.decide.rollout import wanted_pod
from brokergroup_operator.reconcile.render import broker_config, certificate, children, network_policies, proxy_config
from brokergroup_operator.reconcile.render.addressing import place_of, service_actions
from brokergroup_operator.reconcile.see import bundles, copies, foreign, observed
from brokergroup_operator.reconcile.see.members import Membership, held, is_broken, learning, membership
from brokergroup_operator.reconcile.tell.status import status_action

if TYPE_CHECKING:
    from collections.abc import Iterator

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.brokergroup import BrokerGroup
    from brokergroup_operator.reconcile.decide.course import Course
    from brokergroup_operator.reconcile.identity import Member
    from brokergroup_operator.reconcile.see.observed import Observed
    from brokergroup_operator.reconcile.settings import ReconcileSettings


# A pod that its kubelet refused is made again so long after it was made.
MADE_AGAIN_AFTER_SECONDS = 10.0
# While something of the group is not as it should be, look again this soon even if no event arrives.
UNSETTLED_SECONDS = 5.0
# The pod that copies a backup is not watched.
COPY_POLL_SECONDS = 1.0
_EPHEMERAL = plans.Note(
    reason="EphemeralStorage",
    message="Brokers write on the disks of their nodes: a pod that goes takes its data with it, all pods take all messages",
    warning=True,
)


def evaluate(seen: Observed, settings: ReconcileSettings, *, now: str) -> plans.Plan:
    """The plan for one pass. `now` is the time that status may show, as RFC 3339."""
    seen = replace(seen, now=now, certificate_problem=certificate.problem(seen.group, settings))
    seen = versions.judged(seen, settings)
    seen = replace(seen, wanted_tls=seen.group.spec.tls)
    if (group := tls_order.with_next_tls(seen, settings)) is not seen.group:
        seen = replace(seen, group=group)
    if (group := courses.with_minimum_reached(seen)) is not seen.group:
        seen = replace(seen, group=group)
    if (group := retiring.with_permission(seen)) is not seen.group:
        seen = replace(seen, group=group)
    course = courses.set_course(seen, settings)
    work: list[plans.Action] = list(_lift_fences(seen))
    voluntary: list[plans.Action] = []
    if observed.being_deleted(seen.group_object):
        work += finished_copies(seen)
        work += deletion.evaluate_deletion(seen, courses.hot_config_actions(seen, course, settings))
        if any(isinstance(action, plans.SetFinalizers) and action.resource == BROKER_GROUPS for action in work):
            return plans.Plan(actions=tuple(work))
    elif complaint := invalid_spec(seen, settings):
        if seen.config_problem and complaint.reason is Reason.INVALID_SPEC:
            work += _repairs_as_configured(seen, course, settings)
        if complaint.reason in {Reason.VERSION_REFUSED, Reason.NAME_TAKEN}:
            # Pods of an image of their own may run, or of a group that was woken; the Services follow their master.
            work += _roles(seen)
        work += retried_restore(seen)
        work += courses.returning_actions(seen, course, settings)
        work += status_action(seen, course, settings, invalid=complaint)
        return plans.Plan(actions=tuple(work), look_again_seconds=UNSETTLED_SECONDS)
    elif seen.group.spec.maintenance.paused:
        # What a failover needs goes on: it is no maintenance.
        work += _roles(seen)
        work += courses.returning_actions(seen, course, settings)
    else:
        work += _repairs(seen, course, settings)
        voluntary = [action for step in course.steps for action in courses.actions_of(step, seen, settings)]
    status = list(status_action(seen, course, settings))
    # Secrets are not watched, so one that comes causes no event.
    refused = any(_was_refused_just_now(seen, pod) for pod in seen.pods.values())
    unsettled = work or voluntary or refused or seen.credentials_problem or seen.refusal or _waits(course)
    unsettled = unsettled or seen.trust.why_held  # a server's certificate is no event
    unsettled = unsettled or retiring.is_closed(seen)  # the time until which a Java broker refuses sends is prolonged
    return plans.Plan(
        actions=(*work, *status, *voluntary),
        look_again_seconds=_look_again_seconds(seen, course, unsettled=bool(unsettled)),
        turn=course.turn,
    )


def _look_again_seconds(seen: Observed, course: Course, *, unsettled: bool) -> float | None:
    """Soon while something is not as it should be, or a backup is copied; and when the window opens that a step waits for."""
    looks = [UNSETTLED_SECONDS] if unsettled else []
    if copies.awaits_restore(seen) or copies.restore_pod(seen) is not None:
        looks = [COPY_POLL_SECONDS]
    if course.outside_window is not None and course.opens_at is not None:
        looks.append((course.opens_at - observed.moment(seen.now)).total_seconds())
    return min(looks, default=None)


def _waits(course: Course) -> bool:
    """Whether a step waits that the next pass may find possible. A person's change wakes one itself, a window has its time."""
    waiting = (step for step in course.wanted if step.verb in {plans.Verb.WAIT, plans.Verb.REFUSE})
    return any(step.reason not in {Reason.WAITING_FOR_PERSON, Reason.OUTSIDE_WINDOW} for step in waiting)


def _repairs(seen: Observed, course: Course, settings: ReconcileSettings) -> Iterator[plans.Action]:
    # First: a group that could go meanwhile must own nothing, or the collector deletes that as soon as it is gone.
    yield from _hold_group(seen)
    yield from retiring.marked(seen)
    yield from _durability(seen)
    yield from deletion.adopted(seen)
    yield from deletion.marks_mended(seen)
    yield from _config_map(seen, settings)
    yield from _services(seen)
    yield from _network_policy(seen, settings)
    yield from _disruption_budgets(seen, course)
    if any(course.runs(one.broker_id) and one.pod not in seen.pods for one in membership(seen).with_pods):
        yield from certificate.make_key(seen.group, settings)
    if copies.awaits_restore(seen):
        yield from restore_actions(seen, settings)
        return
    yield from finished_copies(seen)
    yield from noted_beginning(seen)
    if copies.restore_pod(seen) is None:  # it may still hold the claim
        yield from _members(seen, course, settings)
    yield from stopping.taken_back(seen)
    yield from versions.noted(seen, settings)
    yield from _roles(seen)
    yield from courses.hot_config_actions(seen, course, settings)
    closed_keys = retiring.HELD_KEYS if retiring.retirement(seen) is not None else frozenset[str]()
    yield from put_back_actions(course.drifts, closed_keys)
    yield from discarded_claims(seen)
    # Last: a reservation that is refused ends the pass, and should not keep a pod from coming back.
    if not seen.group.spec.maintenance.hibernated:
        yield from _reservations(membership(seen))


def _config_map(seen: Observed, settings: ReconcileSettings) -> Iterator[plans.Action]:
    pods = seen.pods.values()
    kept = proxy_config.still_read(seen.config_map, pods) | bundles.still_read(seen.config_map, pods, seen.trust)
    wanted = children.build_config_map(seen.group, settings, kept=kept)
    yield from foreign.apply_if_drifted(CONFIG_MAPS, seen.config_maps, wanted)


def _repairs_as_configured(seen: Observed, course: Course, settings: ReconcileSettings) -> Iterator[plans.Action]:
    """While a ConfigMap that the spec names is missing or bad: roles, lost Services and pods, with the broker.conf of before."""
    yield from _roles(seen)
    kept = seen.config_map
    if kept is None:
        return
    yield from _services(seen)
    yield from _network_policy(seen, settings)
    for action in _members(seen, course, settings):
        if isinstance(action, plans.ApplyObject) and action.resource == PODS:
            yield _reading(seen.group, kept, action)
        else:
            yield action


def _reading(group: BrokerGroup, config_map: JsonObject, action: plans.ApplyObject) -> plans.ApplyObject:
    """The same pod with the hash of the stored ConfigMap, since the one of the spec can't be rendered now."""
    metadata = action.object["metadata"]
    notes = metadata["annotations"] | {names.ANNOTATION_CONFIG_HASH: broker_config.cold_hash_of(group, config_map)}
    return replace(action, object=action.object | {"metadata": metadata | {"annotations": notes}})


def _members(seen: Observed, course: Course, settings: ReconcileSettings) -> Iterator[plans.Action]:
    """Claims and pods, the former master's first: a group that wakes can elect it soonest, since its disk has everything."""
    master = seen.record.master_broker_id if seen.record else None
    for member in sorted(membership(seen).members, key=lambda member: member.broker_id != master):
        if course.runs(member.broker_id):
            yield from claim_actions(seen, member)
            yield from _pod(seen, member, settings)
    for member in membership(seen).returning:
        yield from _pod(seen, member, settings)


def _lift_fences(seen: Observed) -> Iterator[plans.Action]:
    """The controller plane puts a fence on a silent master's pod; it comes off when nothing of the pod can run again.

    A Backup holds the pod that it stops likewise.
    """
    for _, pod in sorted(seen.pods.items()):
        if observed.fence_can_be_lifted(pod):
            why = "the fenced pod's containers are terminated"
            yield plans.SetFinalizers.without(PODS, pod, names.FINALIZER_FENCE, why)
        elif copies.may_let_go(seen, pod):
            yield plans.SetFinalizers.without(PODS, pod, names.FINALIZER_BACKUP, "no Backup waits for the pod's end")


def _hold_group(seen: Observed) -> Iterator[plans.Action]:
    """Our finalizer, and the mark of a group that takes things back; written to the very version that was read."""
    held = observed.finalizers_of(seen.group_object)
    is_held = names.FINALIZER_BROKER_GROUP in held
    begins, is_marked = foreign.has_unowned(seen), deletion.takes_back(seen)
    if is_held and begins == is_marked:
        return
    is_new_ephemeral = not is_held and seen.group.spec.storage.ephemeral is not None
    yield plans.SetFinalizers(
        reason="something has no owner" if begins else "children must be deleted before the group is",
        resource=BROKER_GROUPS,
        name=identity.name_of(seen.group),
        resource_version=str(observed.metadata(seen.group_object).get("resourceVersion", "")),
        finalizers=tuple(held) if is_held else (*held, names.FINALIZER_BROKER_GROUP),
        annotations={names.ANNOTATION_TAKES_BACK: "true" if begins else None} if begins != is_marked else {},
        note=_EPHEMERAL if is_new_ephemeral else None,
    )


def _durability(seen: Observed) -> Iterator[plans.Action]:
    """Write it into a spec that lacks it: by default it would follow each change of replicas (ADR 17)."""
    durability = seen.group.spec.durability
    if durability is None or seen.group_object["spec"].get("durability") is not None:
        return
    told = f"spec.durability is {durability}, also when replicas change, until a manifest says another one"
    yield plans.WriteDurability(
        reason="the spec does not say it",
        name=identity.name_of(seen.group),
        uid=observed.uid(seen.group_object),
        durability=durability.value,
        note=plans.Note(reason="DurabilityWritten", message=told),
    )


def _services(seen: Observed) -> Iterator[plans.Action]:
    for wanted in children.build_services(seen.group):
        yield from foreign.apply_if_drifted(SERVICES, seen.services, wanted)
    yield from service_actions(seen)


def _network_policy(seen: Observed, settings: ReconcileSettings) -> Iterator[plans.Action]:
    if (wanted := network_policies.of_group(seen.group, settings)) is not None:
        yield from foreign.apply_if_drifted(NETWORK_POLICIES, seen.network_policies, wanted)
        return
    for _, policy in sorted(foreign.made_here(seen, NETWORK_POLICIES).items()):
        yield plans.DeleteObject.of(NETWORK_POLICIES, policy, "spec.network.policy is absent")


def _disruption_budgets(seen: Observed, course: Course) -> Iterator[plans.Action]:
    group = seen.group
    if not group.spec.disruption_budget.enabled:
        # Not a budget that a user made instead, with our labels on it.
        for _, budget in sorted(foreign.made_here(seen, POD_DISRUPTION_BUDGETS).items()):
            yield plans.DeleteObject.of(POD_DISRUPTION_BUDGETS, budget, "spec.disruptionBudget.enabled is false")
        return
    is_safe, apart = course.safe.holds, learning(seen) | held(seen) - {seen.master}
    for wanted in children.build_disruption_budgets(group, open_for_one=is_safe, apart=len(apart)):
        yield from foreign.apply_if_drifted(POD_DISRUPTION_BUDGETS, seen.disruption_budgets, wanted)


def _reservations(members: Membership) -> Iterator[plans.Action]:
    lost = [
        plans.Note(reason="VolumeLost", message=f"The volume of broker id {member.broker_id} is gone", warning=True)
        for member in members.volume_lost
    ]
    grown = plans.Note(
        reason="ScaledOut", message=f"Growing to {len(members.members) + len(members.to_reserve)} members"
    )
    notes = lost or ([grown] if members.members else [])
    for member, note in zip(members.to_reserve, chain(notes, repeat(None)), strict=False):
        broker_id, told = member.broker_id, f"Broker id {member.broker_id} is kept for pod {member.pod}"
        assigned = plans.Note(reason="BrokerIdAssigned", message=told, related=member.pod)
        yield plans.ReserveBrokerId(
            reason="fewer members than spec.replicas", pod_name=member.pod, broker_id=broker_id, note=note or assigned
        )


def _pod(seen: Observed, member: Member, settings: ReconcileSettings) -> Iterator[plans.Action]:
    pod = seen.pods.get(member.pod)
    claims = (seen.claims.get(name) for name in identity.claim_names(seen.group, member.pod))
    if any(claim is not None and observed.being_deleted(claim) for claim in claims):
        return
    if pod is None and not seen.group.spec.maintenance.hibernated:
        if tls_order.lost_file(seen.group.spec.tls):
            return
        if (place := place_of(seen.group, member, seen.services)) is not None and place.missing:
            return
        note = plans.Note(
            reason="PodCreating",
            message=f"Creating pod {member.pod} for broker id {member.broker_id}",
            related=member.pod,
        )
        wanted = wanted_pod(seen, member, settings)
        yield plans.ApplyObject(reason="missing", resource=PODS, object=wanted, note=note)
        return
    if pod is None or observed.being_deleted(pod) or _was_refused_just_now(seen, pod):
        return
    if why := _why_it_never_runs(seen, member, pod):
        yield plans.DeleteObject.of(PODS, pod, why)


def _why_it_never_runs(seen: Observed, member: Member, pod: JsonObject) -> str:
    phase = observed.pod_phase(pod)
    if phase in {"Failed", "Succeeded"}:
        return f"it is {phase} and will not run again"
    return "it waits for a volume that is gone" if phase == "Pending" and is_broken(seen, member) else ""


def _was_refused_just_now(seen: Observed, pod: JsonObject) -> bool:
    """Whether the kubelet has just rejected the pod (UnexpectedAdmissionError, NodeAffinity ...), as it would the next one."""
    status, created = observed.pod_status(pod), observed.metadata(pod).get("creationTimestamp")
    if status.get("containerStatuses") or not created or not seen.now:
        return False
    return (observed.moment(seen.now) - observed.moment(str(created))).total_seconds() < MADE_AGAIN_AFTER_SECONDS


def _roles(seen: Observed) -> Iterator[plans.Action]:
    master, learners = seen.master, learning(seen)
    for member in membership(seen).members:
        pod = seen.pods.get(member.pod)
        if pod is None or observed.being_deleted(pod):
            continue
        role = names.ROLE_LEARNER if member.broker_id in learners else names.ROLE_SLAVE
        role = names.ROLE_MASTER if member.broker_id == master else role
        wanted = {names.LABEL_ROLE: role, names.LABEL_BROKER_ID: str(member.broker_id)}
        if not observed.labels_of(pod).items() >= wanted.items():
            yield plans.SetRole(
                reason="the record says so",
                pod=member.pod,
                uid=observed.uid(pod),
                role=role,
                broker_id=member.broker_id,
            )


def invalid_spec(seen: Observed, settings: ReconcileSettings) -> plans.Verdict | None:
    """Why the group can't be as its spec says, naming field, value and what was expected; None where it can."""
    # Where the group's brokers have registered, messages are on its disks, and it runs on (`api/broker_names.py`).
    has_begun = names.FINALIZER_BROKER_GROUP in observed.finalizers_of(seen.group_object)
    lives = has_begun and seen.record is not None and seen.record.has_registered
    if seen.broker_name_taken and not lives:
        # No object is made for it, and none that an older operator made is deleted.
        return plans.no(Reason.BROKER_NAME_TAKEN, seen.broker_name_taken)
    if complaint := why_held_by_adopt(seen):
        return plans.no(Reason.NAME_TAKEN, complaint)
    if complaint := seen.config_problem or _not_as_recorded(seen) or why_not_restored(seen, settings):
        return plans.no(Reason.INVALID_SPEC, complaint)
    if seen.version_refused and not versions.running(seen):
        return plans.no(Reason.VERSION_REFUSED, seen.version_refused)
    return None


def _not_as_recorded(seen: Observed) -> str:
    record = seen.record
    if record is None:
        return ""
    broker_name = broker_config.broker_name(identity.name_of(seen.group), seen.group.spec)
    for field, value, kept in (
        ("spec.brokerClusterName", seen.group.spec.broker_cluster_name, record.cluster_name),
        ("spec.brokerName", broker_name, record.broker_name),
    ):
        if value != kept:
            return (
                f"{field} is {value!r}, but the record kept from an earlier group of this name says {kept!r}."
                f" Use {kept!r}, another metadata.name, or delete the BrokerGroupState together with the claims."
            )
    return ""
