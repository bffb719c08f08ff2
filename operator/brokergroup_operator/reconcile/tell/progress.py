"""What is being done (Reconciling), and why it does not get on (Stalled): the two abnormal conditions of kstatus. Pure."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Final

from brokergroup_operator.api.brokergroup_status import ConditionStatus, Reason
from brokergroup_operator.reconcile.decide.failover_safe import is_barred
from brokergroup_operator.reconcile.decide.outdated import moment
from brokergroup_operator.reconcile.host_ports import NO_FREE_PORTS
from brokergroup_operator.reconcile.render.addressing import place_of
from brokergroup_operator.reconcile.see import observed
from brokergroup_operator.reconcile.see.going_claims import pods_on_going_claims, why_not_stopped
from brokergroup_operator.reconcile.see.pod_trouble import pod_trouble
from brokergroup_operator.reconcile.steps import Step, Verb
from brokergroup_operator.reconcile.verdict import no, yes

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.decide.course import Course
    from brokergroup_operator.reconcile.see.members import Membership
    from brokergroup_operator.reconcile.see.observed import Observed
    from brokergroup_operator.reconcile.verdict import Verdict

# A member that has not come back for so long holds an update up. A full copy may take longer: it is reported, but is no error.
PATIENCE_SECONDS: Final = 600.0
# How `Stalled` begins where the API server's own words follow; the next plane reads them there (`act/refusals.py`).
SAID_BY_THE_SERVER: Final = "The API server refuses what the spec asks for: "


def reconciling(seen: Observed, members: Membership, course: Course, hindrance: Verdict) -> Verdict:
    """Work is under way; not while `hindrance`, the stall, is True: of two that are True kstatus takes one, InProgress for ever."""
    if hindrance.status is ConditionStatus.TRUE:
        return no(hindrance.reason, hindrance.message)
    return _under_way(seen, members, course)


def _under_way(seen: Observed, members: Membership, course: Course) -> Verdict:  # noqa: PLR0911 (one return per reason)
    if observed.being_deleted(seen.group_object):
        return yes(Reason.DELETING, f"{len(seen.pods)} pods are still there")
    if seen.group.spec.maintenance.hibernated:
        if seen.pods:
            return yes(Reason.HIBERNATING, f"Stopping {', '.join(sorted(seen.pods))}, the master first")
        return no(Reason.STABLE, "Nothing to do")
    if seen.group.spec.maintenance.paused:
        return no(Reason.STABLE, "Paused: nothing but the status is changed")
    missing = [item.pod for item in members.members if item.pod not in seen.pods and course.runs(item.broker_id)]
    waiting = [place_of(seen.group, item, seen.services) for item in members.members if item.pod in missing]
    if without := [place.missing for place in waiting if place is not None and place.missing]:
        return yes(Reason.WAITING_FOR_ADDRESS, f"{without[0]}; its pod is made then")
    if members.to_reserve or missing:
        what = ", ".join(missing) or f"{len(members.to_reserve)} members"
        return yes(Reason.CREATING_MEMBERS, f"Creating {what}")
    for step in (course.repairing, course.moving, course.leaving, course.forgetting, *course.rollout):
        if step is not None and (
            step.acts or (step.verb is Verb.WAIT and step.reason is not Reason.WAITING_FOR_PERSON)
        ):
            return yes(step.reason, _told(step))
    stopping = sorted(name for name, pod in seen.pods.items() if observed.being_deleted(pod))
    if stopping:
        return yes(Reason.REPAIRING_MEMBERS, f"Waiting for {', '.join(stopping)} to stop")
    return no(Reason.STABLE, "Nothing to do")


def _told(step: Step) -> str:
    if step.member is None or step.verb is Verb.WAIT:
        return step.why
    return f"{step.verb.value} {step.member.pod}: {step.why}"


def stalled(seen: Observed, course: Course) -> Verdict:  # noqa: PLR0911 (one return per reason)
    """The group makes no progress by itself: a person should look."""
    if (refused := _refused(seen)) is not None:
        return refused
    replaced = {step.member.pod for step in course.steps if step.member is not None and step.verb is Verb.REPLACE}
    for name, pod in sorted(seen.pods.items()):
        # A bad image that was taken back is being repaired.
        if name not in replaced and (trouble := pod_trouble(pod, now=seen.now)) is not None:
            sharers = (
                f". {seen.host_ports_shared}" if seen.host_ports_shared and NO_FREE_PORTS in trouble.message else ""
            )
            return yes(trouble.reason, f"{trouble.message}{sharers}{_held_up(course, name)}")
    if seen.group.spec.maintenance.hibernated and (held := pods_on_going_claims(seen)):
        return yes(Reason.CLAIM_BEING_DELETED, f"Not hibernated: {why_not_stopped(list(held))}")
    if seen.group.spec.maintenance.hibernated or observed.being_deleted(seen.group_object):
        return no(Reason.NOTHING_STALLED, "Nothing is stalled")
    if complaint := _all_barred(seen, course) or _no_eligible_alive(seen, course):
        return yes(Reason.NO_ELIGIBLE_REPLICA, complaint)
    for step in (course.repairing, course.leaving, course.moving, *course.rollout):
        if step is not None and step.verb is Verb.REFUSE:
            return yes(step.reason, step.why)
    if course.outdated and (slow := _slow(seen, course)):
        return yes(Reason.ROLLOUT_STUCK, f"The rolling update waits for {slow}, for more than {PATIENCE_SECONDS:.0f} s")
    return no(Reason.NOTHING_STALLED, "Nothing is stalled")


def _refused(seen: Observed) -> Verdict | None:
    """What the API refused to the last pass, or what no pass can do."""
    if seen.node_port_taken:
        return yes(Reason.NODE_PORT_TAKEN, seen.refusal)
    if seen.refusal:
        return yes(Reason.INVALID_SPEC, f"{SAID_BY_THE_SERVER}{seen.refusal}")
    if seen.certificate_problem:
        return yes(Reason.INVALID_SPEC, seen.certificate_problem)
    if seen.name_taken:
        return yes(Reason.NAME_TAKEN, seen.name_taken)
    return yes(Reason.BROKER_NAME_TAKEN, seen.broker_name_taken) if seen.broker_name_taken else None


def _held_up(course: Course, pod: str) -> str:
    """What a broken pod means for a rolling update: no second one is touched."""
    rest = [item.member.pod for item in course.outdated if item.member.pod != pod]
    if not rest:
        return ""
    return f". The rolling update has stopped here; {', '.join(rest)} run on as they were. Correct the spec or take it back"


def _slow(seen: Observed, course: Course) -> str:
    """Members that were started long ago and are not in sync."""
    names = [
        standing.member.pod
        for standing in course.standings.values()
        if standing.has_pod and not standing.in_sync and _age_seconds(seen, standing.member.pod) > PATIENCE_SECONDS
    ]
    return ", ".join(names)


def _age_seconds(seen: Observed, pod: str) -> float:
    created = observed.metadata(seen.pods[pod]).get("creationTimestamp")
    return (moment(seen.now) - moment(str(created))) / dt.timedelta(seconds=1) if created else 0.0


def _all_barred(seen: Observed, course: Course) -> str:
    """No member may be elected: a group without a master stays without, and one with a master can't replace it."""
    ids = sorted(course.standings)
    spec, snapshot = seen.group.spec, seen.snapshot
    if len(ids) < spec.replicas:
        return ""
    ids = [one for one in ids if not (course.standings[one].is_learner or course.standings[one].will_learn)]
    if snapshot is None or not all(is_barred(spec, snapshot, one) for one in ids):
        return ""
    master = seen.record.granted_master_id if seen.record else None
    consequence = "no replica is elected" if master is None else f"no slave can follow master {master}"
    named = ", ".join(str(broker_id) for broker_id in ids)
    return (
        f"Every member (broker {named}) has election priority 0, which bars it from mastership: {consequence}."
        " Give one of them another priority in spec.failover.priorities"
    )


def _no_eligible_alive(seen: Observed, course: Course) -> str:
    """No master, and although members hold seats, none of these is alive."""
    record = seen.record
    if record is None or record.granted_master_id is not None or record.is_first_election or not record.seats:
        return ""
    live = [standing for standing in course.standings.values() if standing.is_live]
    if not live or any(standing.has_seat for standing in live):
        return ""
    holders = ", ".join(str(broker_id) for broker_id in sorted(record.seats))
    return f"No master: of those that have every acknowledged message (broker {holders}) none is alive"
