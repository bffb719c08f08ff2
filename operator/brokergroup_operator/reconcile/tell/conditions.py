"""The conditions of a group: pure, from what was observed. Each function gives one condition's status, reason and message.

Here are those that are always there: how the group is, what is being done about it (Reconciling), and why it does not get on
(Stalled: these two are the abnormal conditions of kstatus). `alarms.py` has those that are there only while they are true.
lastTransitionTime moves only when the status of the condition changes, never with the message.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from brokergroup_operator.api import versions
from brokergroup_operator.api.brokergroup_status import (
    MAX_CONDITION_MESSAGE,
    Condition,
    ConditionType,
    MemberState,
    Reason,
)
from brokergroup_operator.observe.timeline import Kind
from brokergroup_operator.reconcile.decide import retiring, tls_order
from brokergroup_operator.reconcile.decide.configuration_drift import told
from brokergroup_operator.reconcile.decide.course import GIVES_TURN_BACK
from brokergroup_operator.reconcile.decide.failover_safe import is_barred, why_not_writable
from brokergroup_operator.reconcile.decide.rollout import PATIENCE_SECONDS
from brokergroup_operator.reconcile.decide.versions import running
from brokergroup_operator.reconcile.other_groups import NO_FREE_PORTS, Turn
from brokergroup_operator.reconcile.plan import Step, Verb, no, yes
from brokergroup_operator.reconcile.render.addressing import place_of
from brokergroup_operator.reconcile.render.broker_config import minimum_in_force
from brokergroup_operator.reconcile.see import copies, observed
from brokergroup_operator.reconcile.see.members import membership
from brokergroup_operator.reconcile.see.pod_trouble import pod_trouble
from brokergroup_operator.reconcile.tell import alarms

if TYPE_CHECKING:
    from collections.abc import Iterable
    from enum import StrEnum

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.reconcile.decide.course import Course
    from brokergroup_operator.reconcile.plan import Verdict
    from brokergroup_operator.reconcile.see.members import Standing
    from brokergroup_operator.reconcile.see.observed import Observed


# What is amiss, by the state of the first member with which it is.
_REASONS: Final = {MemberState.UNHEARD: Reason.MEMBERS_NOT_HEARD, MemberState.UNLINKED: Reason.MEMBERS_NOT_LINKED}
_OUTDATED: Final = {
    Turn.HOLDS: Reason.ROLLING_UPDATE,
    Turn.WAITS: Reason.WAITING_FOR_OTHER_GROUPS,
    Turn.NONE: Reason.WAITING_FOR_MEMBERS,
}


def ready(seen: Observed, course: Course) -> Verdict:
    """Everything is as the spec wants it, and writes are served."""
    if observed.being_deleted(seen.group_object):
        return no(Reason.DELETING, f"{len(seen.pods)} pods are still there")
    if seen.group.spec.maintenance.hibernated:
        return no(Reason.HIBERNATING, "The group is hibernated: spec.maintenance.hibernated false wakes it")
    if _failing_over(seen):
        return no(Reason.FAILING_OVER, "The master is lost; another is being elected")
    pending = [one for one in course.standings.values() if not one.is_ready and not one.is_held]
    to_come = membership(seen)
    if to_come.to_reserve or to_come.returning or pending:
        named = [one.member.pod for one in pending] or [one.pod for one in to_come.returning]
        waiting = ", ".join(named) or f"{len(to_come.to_reserve)} members without a broker id"
        return no(Reason.MEMBERS_PENDING, _facts(pending, f"Waiting for {waiting}"))
    writes = available(seen)
    return _members_in_sync(course) if writes.holds else writes


def _members_in_sync(course: Course) -> Verdict:
    """Each is in the SyncStateSet, linked and heard, here or by another plane; a learner the same, outside the set."""
    elsewhere = [one for one in course.standings.values() if one.is_in_sync_elsewhere]
    held = [one for one in course.standings.values() if one.is_held]
    not_in_sync = (one for one in course.standings.values() if not one.in_sync and not one.is_held)
    if amiss := [one for one in not_in_sync if one not in elsewhere]:
        return no(_REASONS.get(amiss[0].state, Reason.MEMBERS_OUT_OF_SYNC), _facts(amiss))
    if held:
        return no(Reason.MEMBERS_STOPPED, _facts(held))
    learners = sum(1 for one in course.standings.values() if one.is_learner and not one.in_set)
    count = len(course.standings) - learners
    told = f"{count} member{'' if count == 1 else 's'} in sync"
    told = f"{told}, {learners} learning" if learners else told
    return yes(Reason.ALL_MEMBERS_IN_SYNC, _facts(elsewhere, told))


def _facts(standings: Iterable[Standing], before: str = "") -> str:
    return "; ".join([*([before] if before else []), *(one.told for one in standings)])


def available(seen: Observed) -> Verdict:  # noqa: PLR0911 (one return per reason)
    master = seen.record.granted_master_id if seen.record else None
    if seen.record is None or master is None:
        reason = Reason.FAILING_OVER if _failing_over(seen) else Reason.NO_MASTER
        return no(reason, "No broker is master")
    pod = membership(seen).pod_of(master)
    if seen.snapshot is None:
        return no(Reason.MASTER_NOT_READY, "The controller plane does not know the group yet")
    if not seen.snapshot.writable:
        return why_not_writable(seen.group.spec, seen.record, seen.snapshot)
    if pod and not observed.pod_is_ready(seen.pods.get(pod)):
        return no(Reason.MASTER_NOT_READY, f"Pod {pod} of the master is not ready")
    if (retired := _retired(seen)) is not None:
        return no(Reason.RETIRING, f"Takes no sends: {retired}")
    if seen.snapshot.closed:
        return no(Reason.RETIRING, "Takes no sends until its brokers have their configuration back")
    in_sync, needed = len(seen.record.sync_state_set), minimum_in_force(seen, seen.pods.get(pod))
    if in_sync < needed:
        return no(Reason.NOT_ENOUGH_IN_SYNC_REPLICAS, f"{in_sync} replicas in sync, a write needs {needed}")
    return yes(Reason.MASTER_SERVES_WRITES, f"Broker {master} is master in epoch {seen.record.master_epoch}")


def _retired(seen: Observed) -> str | None:
    """What the running Retire of the group does; None without one."""
    found, operation = retiring.retirement(seen), seen.operation
    if found is None or operation is None:
        return None
    return f"BrokerGroupOperation {operation.metadata['name']} retires the group ({found.step.value})"


def replication_healthy(seen: Observed, course: Course) -> Verdict:
    """Every member has a link to the master and is in the set. A link that is up counts also where heartbeats are missing."""
    master = seen.record.granted_master_id if seen.record else None
    if master is None:
        return no(Reason.NO_MASTER, "No broker is master")
    held = [one for one in course.standings.values() if one.is_held]
    amiss = [one for one in course.standings.values() if not one.replicates and not one.is_held]
    if any(one.is_master for one in amiss):
        return no(Reason.MASTER_NOT_READY, _facts(amiss))
    if amiss:
        linked = all(one.view.linked for one in amiss)
        return no(Reason.MEMBERS_OUT_OF_SYNC if linked else Reason.MEMBERS_NOT_LINKED, _facts(amiss))
    if held:
        return no(Reason.MEMBERS_STOPPED, _facts(held))
    unheard = (one for one in course.standings.values() if not one.is_live)
    return yes(Reason.ALL_LINKED, _facts(unheard, f"All members replicate from master {master}"))


def up_to_date(seen: Observed, course: Course) -> Verdict:  # noqa: PLR0911 (one return per reason)
    """Every pod runs what the spec says."""
    if seen.version_refused:
        return no(Reason.VERSION_REFUSED, seen.version_refused)
    if not course.outdated and course.turn is not Turn.HOLDS:
        if course.drifts:
            return no(Reason.CONFIGURATION_DRIFTED, f"Every pod was made from the spec, but {told(course.drifts)}")
        return yes(Reason.ALL_UP_TO_DATE, f"Every pod runs what the spec says{_untested(seen)}")
    if not course.outdated:
        coming = ", ".join(one.member.pod for one in course.standings.values() if not (one.in_sync or one.is_held))
        return no(Reason.ROLLING_UPDATE, f"Waiting for {coming} to be in sync")
    pods = ", ".join(f"{item.member.pod} ({item.why.value})" for item in course.outdated)
    waiting = next((step for step in course.rollout if step.reason in GIVES_TURN_BACK), None)
    paused = seen.group.spec.maintenance.paused
    # The window's command does wait for the end of the pause.
    if waiting is not None and not (paused and waiting.reason is Reason.OUTSIDE_WINDOW):
        return no(waiting.reason, waiting.why)
    if paused:
        return no(Reason.WAITING_FOR_PERSON, f"Paused with outdated pods: {pods}")
    blocked = next((f". {step.why}" for step in course.rollout if step.verb in {Verb.REFUSE, Verb.WAIT}), "")
    return no(_OUTDATED[course.turn], f"Outdated: {pods}{blocked}")


def _untested(seen: Observed) -> str:
    version = running(seen)
    if not version or not versions.is_untested(version):
        return ""
    newest = ".".join(map(str, versions.NEWEST_TESTED))
    return f"; {version} is newer than {newest}, the newest version that this operator was tested with"


def _failing_over(seen: Observed) -> bool:
    running = seen.snapshot.in_progress if seen.snapshot else None
    return running is not None and running.kind is Kind.FAILOVER


def all_conditions(seen: Observed, course: Course, *, invalid: Verdict | None) -> list[Condition]:
    """Those that are always there, and of the others those that are true."""
    stall = yes(invalid.reason, invalid.message) if invalid else stalled(seen, course)
    is_ready, is_available = ready(seen, course), available(seen)
    if stall.holds and is_ready.holds:
        # Of two conditions that are True kstatus takes one, and `kubectl wait` the other.
        is_ready = no(stall.reason, stall.message)
    if invalid is not None and invalid.reason is Reason.BROKER_NAME_TAKEN and not is_available.holds:
        is_available = invalid  # a group with a master keeps the master's reason
    verdicts: dict[ConditionType, Verdict | None] = {
        ConditionType.READY: invalid or is_ready,
        ConditionType.AVAILABLE: is_available,
        ConditionType.FAILOVER_SAFE: course.safe,
        ConditionType.REPLICATION_HEALTHY: replication_healthy(seen, course),
        ConditionType.UP_TO_DATE: invalid or up_to_date(seen, course),
        # Nor is it Reconciling: kstatus would say InProgress for ever.
        ConditionType.RECONCILING: no(stall.reason, stall.message) if stall.holds else reconciling(seen, course),
        ConditionType.STALLED: stall,
        **alarms.all_alarms(seen, course),
    }
    return conditions_of(seen.group_object, verdicts.items(), now=seen.now)


def conditions_of(obj: JsonObject, verdicts: Iterable[tuple[StrEnum, Verdict | None]], *, now: str) -> list[Condition]:
    """The conditions of this object, with their times, which move with the status of a condition alone.

    A message is cut to what the API server takes: it may be a webhook's or a registry's, and no status would be written with it.
    """
    since = {
        (one["type"], one["status"]): str(one["lastTransitionTime"])
        for one in (obj.get("status") or {}).get("conditions") or []
    }
    return [
        Condition(
            type=kind.value,
            status=verdict.status,
            reason=verdict.reason.value,
            message=verdict.message[:MAX_CONDITION_MESSAGE],
            last_transition_time=since.get((kind.value, verdict.status.value), now),
            observed_generation=int(obj["metadata"].get("generation", 0)),
        )
        for kind, verdict in verdicts
        if verdict is not None
    ]


# What waits for these may wait for days: kstatus would say InProgress meanwhile.
_NOT_UNDER_WAY: Final = frozenset({Reason.WAITING_FOR_PERSON, Reason.OUTSIDE_WINDOW})
# How `Stalled` begins where the API server's own words follow; the next plane reads them there (`act/refusals.py`).
SAID_BY_THE_SERVER: Final = "The API server refuses what the spec asks for: "


def reconciling(seen: Observed, course: Course) -> Verdict:  # noqa: C901, PLR0911 (one return per reason)
    """Whether work is under way; asked of a group that is not stalled."""
    if observed.being_deleted(seen.group_object):
        return yes(Reason.DELETING, f"{len(seen.pods)} pods are still there")
    if seen.group.spec.maintenance.hibernated:
        if seen.pods:
            return yes(Reason.HIBERNATING, f"Stopping {', '.join(sorted(seen.pods))}, the master first")
        return no(Reason.STABLE, "Nothing to do")
    if seen.group.spec.maintenance.paused:
        return no(Reason.STABLE, "Paused: nothing but the status is changed")
    if (source := copies.source_of(seen)) is not None and copies.awaits_restore(seen):
        told = f"Copying {copies.told_of(source)} to claim {copies.first_pod(seen)}"
        return yes(Reason.RESTORING, told)
    if (retired := _retired(seen)) is not None:
        return yes(Reason.RETIRING, retired)
    members = membership(seen)
    missing = [item for item in members.members if item.pod not in seen.pods and course.runs(item.broker_id)]
    missing += [item for item in members.returning if item.pod not in seen.pods]
    waiting = [place_of(seen.group, item, seen.services) for item in missing]
    if without := [place.missing for place in waiting if place is not None and place.missing]:
        return yes(Reason.WAITING_FOR_ADDRESS, f"{without[0]}; its pod is made then")
    if members.to_reserve or missing:
        what = ", ".join(item.pod for item in missing) or f"{len(members.to_reserve)} members"
        return yes(Reason.CREATING_MEMBERS, f"Creating {what}")
    for step in course.wanted:
        if step.acts or (step.verb is Verb.WAIT and step.reason not in _NOT_UNDER_WAY):
            return yes(step.reason, _told(step))
    stopping = sorted(name for name, pod in seen.pods.items() if observed.being_deleted(pod))
    if stopping:
        return yes(Reason.REPAIRING_MEMBERS, f"Waiting for {', '.join(stopping)} to stop")
    if (outside := course.outside_window) is not None:
        return no(outside.reason, outside.why)
    return no(Reason.STABLE, "Nothing to do")


def _told(step: Step) -> str:
    if step.member is None or step.verb is Verb.WAIT:
        return step.why
    return f"{step.verb.value} {step.member.pod}: {step.why}"


def stalled(seen: Observed, course: Course) -> Verdict:
    """The group makes no progress by itself: a person should look. A claim that may not grow comes last, since it may stay so."""
    if not seen.claim_refused:
        return _stalled(seen, course)
    found = _stalled(replace(seen, refusal=""), course)
    return found if found.holds else yes(Reason.INVALID_SPEC, f"{SAID_BY_THE_SERVER}{seen.refusal}")


def _stalled(seen: Observed, course: Course) -> Verdict:  # noqa: PLR0911 (one return per reason)
    if (refused := _refused(seen)) is not None:
        return refused
    if (trouble := _pod_trouble(seen, course) or _copy_trouble(seen)) is not None:
        return trouble
    if seen.group.spec.maintenance.hibernated and (held := observed.pods_on_going_claims(seen)):
        return yes(Reason.CLAIM_BEING_DELETED, f"Not hibernated: {observed.why_not_stopped(list(held))}")
    if seen.group.spec.maintenance.hibernated or observed.being_deleted(seen.group_object):
        return no(Reason.NOTHING_STALLED, "Nothing is stalled")
    if (why := tls_order.why_none_is_made(seen.group)) and (missing := _missing(seen, course)):
        return yes(Reason.AUTHORITIES_HELD, f"{', '.join(missing)} is not made{why}")
    if complaint := _too_many_disks(seen) or _all_barred(seen, course) or _no_eligible_alive(seen, course):
        return yes(Reason.NO_ELIGIBLE_REPLICA, complaint)
    for step in (course.repairing, course.leaving, course.backing_up, course.moving, course.stopping, *course.rollout):
        if step is not None and step.verb is Verb.REFUSE:
            return yes(step.reason, step.why)
    if course.is_updating and (slow := _slow(seen, course)):
        return yes(Reason.ROLLOUT_STUCK, f"The rolling update waits for {slow}, for more than {PATIENCE_SECONDS:.0f} s")
    return no(Reason.NOTHING_STALLED, "Nothing is stalled")


def _missing(seen: Observed, course: Course) -> list[str]:
    return [one.pod for one in membership(seen).members if one.pod not in seen.pods and course.runs(one.broker_id)]


def _too_many_disks(seen: Observed) -> str:
    """The record was lost, and more claims are there than members: one of the old ones could be elected without the newest."""
    members = membership(seen)
    if not members.surplus:
        return ""
    found = len(members.surplus)
    return (
        f"No record says whose disks count: {', '.join(one.pod for one in members.surplus)} are {found} claims, expected at most"
        f" {members.missing}, as many as members are missing. No pod is made on any, since the newest might be left out. Set"
        f" spec.replicas to {seen.group.spec.replicas + found - members.missing}; or delete claims that are not needed, and keep"
        " the newest"
    )


def _pod_trouble(seen: Observed, course: Course) -> Verdict | None:
    replaced = {step.member.pod for step in course.steps if step.member is not None and step.verb is Verb.REPLACE}
    held = {one.member.pod for one in course.standings.values() if one.is_held}
    for name, pod in sorted(seen.pods.items()):
        trouble = pod_trouble(pod, now=seen.now)
        # A bad image that was taken back is being repaired.
        if trouble is None or name in replaced:
            continue
        if name in held and trouble.reason is Reason.MEMBER_CRASHES:
            continue  # the operator ended its broker itself
        shared = seen.host_ports_shared and NO_FREE_PORTS in trouble.message
        sharers = f". {seen.host_ports_shared}" if shared else ""
        return yes(trouble.reason, f"{trouble.message}{sharers}{_held_up(course, name)}")
    return None


def _copy_trouble(seen: Observed) -> Verdict | None:
    """Why the pod does not run that copies the backup with which the group begins."""
    pod = copies.restore_pod(seen) if copies.awaits_restore(seen) else None
    trouble = copies.trouble_of(pod, now=seen.now) if pod is not None else None
    return None if trouble is None else yes(trouble.reason, trouble.message)


def _refused(seen: Observed) -> Verdict | None:
    """What the API refused to the last pass, or what no pass can do."""
    if seen.node_port_taken:
        return yes(Reason.NODE_PORT_TAKEN, seen.refusal)
    said = f"{SAID_BY_THE_SERVER}{seen.refusal}" if seen.refusal else seen.certificate_problem
    others = ((Reason.NAME_TAKEN, seen.name_taken), (Reason.BROKER_NAME_TAKEN, seen.broker_name_taken))
    refused = (Reason.VERSION_REFUSED, seen.version_refused)
    return next((yes(reason, why) for reason, why in ((Reason.INVALID_SPEC, said), *others, refused) if why), None)


def _held_up(course: Course, pod: str) -> str:
    """What a broken pod means for a rolling update: no second one is touched."""
    rest = ", ".join(item.member.pod for item in course.outdated if item.member.pod != pod)
    told = f". The rolling update has stopped here; {rest} run on as they were. Correct the spec or take it back"
    return told if rest else ""


def _slow(seen: Observed, course: Course) -> str:
    """Members that were started long ago and are not in sync."""
    slow = (one.member.pod for one in course.standings.values() if one.has_pod and not (one.in_sync or one.is_held))
    return ", ".join(pod for pod in slow if _age_seconds(seen, pod) > PATIENCE_SECONDS)


def _age_seconds(seen: Observed, pod: str) -> float:
    created = observed.metadata(seen.pods[pod]).get("creationTimestamp")
    return (observed.moment(seen.now) - observed.moment(str(created))) / dt.timedelta(seconds=1) if created else 0.0


def _all_barred(seen: Observed, course: Course) -> str:
    """No member may be elected: a group without a master stays without, and one with a master can't replace it."""
    spec, snapshot, known = seen.group.spec, seen.snapshot, course.standings
    ids = [one for one in sorted(known) if not (known[one].is_learner or known[one].will_learn)]
    if len(known) < spec.replicas or snapshot is None or not all(is_barred(spec, snapshot, one) for one in ids):
        return ""
    master = seen.record.granted_master_id if seen.record else None
    consequence = "no replica is elected" if master is None else f"no slave can follow master {master}"
    named = ", ".join(map(str, ids))
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
    stopped = [standing for standing in course.standings.values() if standing.is_held and standing.has_seat]
    if not (live or stopped) or any(standing.has_seat for standing in live):
        return ""
    holders = ", ".join(str(broker_id) for broker_id in sorted(record.seats))
    why = f"No master: of those that have every acknowledged message (broker {holders}) none is alive"
    return f"{why}. To start the one that is held stopped: {alarms.start_command(seen, stopped[0])}" if stopped else why
