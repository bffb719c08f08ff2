"""Turns voluntary steps into actions, and hot configuration into requests. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from brokergroup_operator.api import names
from brokergroup_operator.api.broker_keys import MINIMUM
from brokergroup_operator.api.brokergroup_status import Reason
from brokergroup_operator.kube.resources import PERSISTENT_VOLUME_CLAIMS, PODS
from brokergroup_operator.reconcile.decide.claims import marked_as_leaving
from brokergroup_operator.reconcile.decide.hibernation import QUIET, must_be_quiet, stops
from brokergroup_operator.reconcile.decide.outdated import wanted_pod
from brokergroup_operator.reconcile.plan import (
    Action,
    DeleteObject,
    Note,
    Rehearse,
    RemoveMember,
    SetBrokerConfig,
    SwitchMaster,
)
from brokergroup_operator.reconcile.render import hot_config
from brokergroup_operator.reconcile.see import observed
from brokergroup_operator.reconcile.steps import Step, Verb

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.kube.resources import Resource
    from brokergroup_operator.reconcile.decide.course import Course
    from brokergroup_operator.reconcile.identity import Member
    from brokergroup_operator.reconcile.see.observed import Observed
    from brokergroup_operator.reconcile.settings import ReconcileSettings


def actions_of(step: Step, seen: Observed, settings: ReconcileSettings) -> Iterator[Action]:
    """The actions that carry the step out. Each names its object by the uid that was seen."""
    member = step.member
    if member is None:
        return
    match step.verb:
        case Verb.SWITCH:
            yield SwitchMaster(
                reason=step.why, from_broker_id=member.broker_id, to_broker_id=step.to_broker_id, cause=step.cause
            )
        case Verb.REPLACE | Verb.STOP:
            note = _note_of_stop(step, member)
            # No running pod is stopped for one that the API refuses: a bad podTemplate, an admission policy.
            successor = wanted_pod(seen, member, settings) if step.verb is Verb.REPLACE else None
            for action in _delete(PODS, seen.pods, member, step, note):
                yield replace(action, successor=successor, is_update=step.reason is Reason.ROLLING_UPDATE)
        case Verb.REHEARSE:
            yield Rehearse(reason=step.why, resource=PODS, object=wanted_pod(seen, member, settings))
        case Verb.DROP_VOLUME:
            note = Note(reason="VolumeDropped", message=f"Deleting claim {member.pod}: {step.why}", warning=True)
            # The commit log's first: while the other one is there, the next pass comes here again.
            log = seen.claims.get(names.commit_log_claim_name(member.pod))
            if log is not None and not observed.being_deleted(log):
                yield DeleteObject(
                    reason=step.why,
                    resource=PERSISTENT_VOLUME_CLAIMS,
                    name=names.commit_log_claim_name(member.pod),
                    uid=observed.uid(log),
                )
            yield from _delete(PERSISTENT_VOLUME_CLAIMS, seen.claims, member, step, note)
        case Verb.MARK:
            yield from marked_as_leaving(seen, member)
        case Verb.FORGET:
            event = "ScaledIn" if step.reason is Reason.SCALING_IN else "ReplicaRebuilt"
            note = Note(reason=event, message=f"Broker id {member.broker_id} is cleaned from the record: {step.why}")
            yield RemoveMember(reason=step.why, broker_id=member.broker_id, note=note)


def _note_of_stop(step: Step, member: Member) -> Note:
    reason = "PodStopping"
    if step.amiss is Reason.MEMBERS_NOT_HEARD:
        reason = "UnheardMemberReplaced"
    elif step.amiss is Reason.MEMBERS_NOT_LINKED:
        reason = "UnlinkedMemberReplaced"
    message = f"Stopping pod {member.pod}: {step.why}"
    return Note(reason=reason, message=message, related=member.pod, warning=step.amiss is not None)


def _delete(
    resource: Resource, objects: Mapping[str, JsonObject], member: Member, step: Step, note: Note
) -> Iterator[DeleteObject]:
    obj = objects.get(member.pod)
    if obj is not None:
        yield DeleteObject(reason=step.why, resource=resource, name=member.pod, uid=observed.uid(obj), note=note)


def hot_config_actions(seen: Observed, course: Course, settings: ReconcileSettings) -> Iterator[Action]:
    """Give each living broker the hot keys that it has not been given; not to one that restarts anyway.

    Nor during a change of master: a switchover holds minInSyncReplicas up meanwhile.
    """
    if seen.snapshot is None or seen.snapshot.in_progress is not None or seen.snapshot.is_changing:
        return
    wanted = hot_config.wanted(seen, settings)
    quiet = must_be_quiet(seen, course.standings)
    restarting = {step.member.pod for step in course.steps if step.member is not None}
    for standing in course.standings.values():
        pod = seen.pods.get(standing.member.pod)
        if pod is None or standing.is_going or not standing.is_live or not standing.is_ready:
            continue
        if standing is not quiet and (standing.member.pod in restarting or stops(seen)):
            continue
        minimum = hot_config.minimum_reached(seen, pod, wanted[MINIMUM], a_member_leaves=course.leaver is not None)
        values = wanted | (QUIET if standing is quiet else {MINIMUM: minimum})
        if changed := hot_config.changes(pod, values):
            yield SetBrokerConfig(
                reason="it takes them while it runs",
                broker_id=standing.member.broker_id,
                pod=standing.member.pod,
                uid=observed.uid(pod),
                values=changed,
                noted=values,
                restarts=observed.broker_restarts(pod),
                # A restarted process gets the values again without an Event: for users nothing has changed.
                note=_reloaded(standing.member, changed) if hot_config.given_to(pod) else None,
            )


def _reloaded(member: Member, values: Mapping[str, str]) -> Note:
    keys = ", ".join(f"{key}={value}" for key, value in sorted(values.items()))
    return Note(reason="ConfigReloaded", message=f"Pod {member.pod} now runs with {keys}", related=member.pod)
