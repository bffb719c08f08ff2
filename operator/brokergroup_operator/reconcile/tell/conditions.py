"""The conditions of a group: pure, from what was observed. Each function gives one condition's status, reason and message.

Here are those that say how the group is; `progress.py` says what is being done about it, `alarms.py` what waits for a
person, and `states.py` what is there only while it is so. lastTransitionTime moves only when the status of the condition
changes, never with the message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokergroup_operator.api.brokergroup_status import Condition, ConditionStatus, ConditionType, MemberState, Reason
from brokergroup_operator.api.durability import acknowledgement_rule
from brokergroup_operator.observe.timeline import Kind
from brokergroup_operator.reconcile.decide.configuration_drift import told
from brokergroup_operator.reconcile.decide.course import LEFT_TO_A_PERSON
from brokergroup_operator.reconcile.see import observed
from brokergroup_operator.reconcile.steps import Verb
from brokergroup_operator.reconcile.tell import alarms, progress, states
from brokergroup_operator.reconcile.turns import Turn
from brokergroup_operator.reconcile.verdict import no, yes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.reconcile.decide.course import Course
    from brokergroup_operator.reconcile.see.members import Membership
    from brokergroup_operator.reconcile.see.observed import Observed
    from brokergroup_operator.reconcile.see.standing import Standing
    from brokergroup_operator.reconcile.verdict import Verdict


# What is amiss, by the state of the first member with which it is.
_REASONS: Final = {
    MemberState.UNHEARD: Reason.MEMBERS_NOT_HEARD,
    MemberState.UNLINKED: Reason.MEMBERS_NOT_LINKED,
}


def ready(seen: Observed, members: Membership, course: Course) -> Verdict:
    """Everything is as the spec wants it, and writes are served."""
    if observed.being_deleted(seen.group_object):
        return no(Reason.DELETING, f"{len(seen.pods)} pods are still there")
    if seen.group.spec.maintenance.hibernated:
        return no(Reason.HIBERNATING, "The group is hibernated: spec.maintenance.hibernated false wakes it")
    if _failing_over(seen):
        return no(Reason.FAILING_OVER, "The master is lost; another is being elected")
    pending = [one for one in course.standings.values() if not one.is_ready]
    if members.to_reserve or pending:
        waiting = ", ".join(one.member.pod for one in pending)
        waiting = waiting or f"{len(members.to_reserve)} members without a broker id"
        return no(Reason.MEMBERS_PENDING, "; ".join([f"Waiting for {waiting}", *_facts(pending)]))
    writes = available(seen, members)
    if writes.status is not ConditionStatus.TRUE:
        return writes
    return _members_in_sync(course)


def _members_in_sync(course: Course) -> Verdict:
    """Each is in the SyncStateSet, linked and heard; a learner linked, heard, and outside the set."""
    if amiss := [one for one in course.standings.values() if not one.in_sync]:
        return no(_REASONS.get(amiss[0].state, Reason.MEMBERS_OUT_OF_SYNC), "; ".join(_facts(amiss)))
    learners = sum(1 for one in course.standings.values() if one.state is MemberState.LEARNING)
    count = len(course.standings) - learners
    told = f"{count} member{'' if count == 1 else 's'} in sync"
    return yes(Reason.ALL_MEMBERS_IN_SYNC, f"{told}, {learners} learning" if learners else told)


def _facts(standings: Iterable[Standing]) -> list[str]:
    return [one.told for one in standings]


def available(seen: Observed, members: Membership) -> Verdict:
    """A master serves writes."""
    master = seen.record.granted_master_id if seen.record else None
    if seen.record is None or master is None:
        reason = Reason.FAILING_OVER if _failing_over(seen) else Reason.NO_MASTER
        return no(reason, "No broker is master")
    pod = next((item.pod for item in members.members if item.broker_id == master), "")
    if seen.snapshot is None or not seen.snapshot.writable:
        return no(Reason.MASTER_NOT_READY, f"Broker {master} has not confirmed that it is master in its epoch")
    if pod and not observed.pod_is_ready(seen.pods.get(pod)):
        return no(Reason.MASTER_NOT_READY, f"Pod {pod} of the master is not ready")
    needed = acknowledgement_rule(seen.group.spec).minimum_in_sync
    if len(seen.record.sync_state_set) < needed:
        return no(
            Reason.NOT_ENOUGH_IN_SYNC_REPLICAS,
            f"{len(seen.record.sync_state_set)} replicas in sync, a write needs {needed}",
        )
    return yes(Reason.MASTER_SERVES_WRITES, f"Broker {master} is master in epoch {seen.record.master_epoch}")


def replication_healthy(seen: Observed, course: Course) -> Verdict:
    """Every member has a link to the master and is in the set. A link that is up counts also where heartbeats are missing."""
    master = seen.record.granted_master_id if seen.record else None
    if master is None:
        return no(Reason.NO_MASTER, "No broker is master")
    amiss = [one for one in course.standings.values() if not one.replicates]
    if any(one.is_master for one in amiss):
        return no(Reason.MASTER_NOT_READY, "; ".join(_facts(amiss)))
    if amiss:
        linked = all(one.view.linked for one in amiss)
        reason = Reason.MEMBERS_OUT_OF_SYNC if linked else Reason.MEMBERS_NOT_LINKED
        return no(reason, "; ".join(_facts(amiss)))
    unheard = (one for one in course.standings.values() if not one.is_live)
    return yes(Reason.ALL_LINKED, "; ".join([f"All members replicate from master {master}", *_facts(unheard)]))


def up_to_date(seen: Observed, course: Course) -> Verdict:
    """Every pod runs what the spec says."""
    if not course.outdated and course.turn is not Turn.HOLDS:
        if course.drifts:
            return no(Reason.CONFIGURATION_DRIFTED, f"Every pod was made from the spec, but {told(course.drifts)}")
        return yes(Reason.ALL_UP_TO_DATE, "Every pod runs what the spec says")
    if not course.outdated:
        coming = ", ".join(one.member.pod for one in course.standings.values() if not one.in_sync)
        return no(Reason.ROLLING_UPDATE, f"Waiting for {coming} to be in sync")
    pods = ", ".join(f"{item.member.pod} ({item.why.value})" for item in course.outdated)
    waiting = next((step for step in course.rollout if step.reason in LEFT_TO_A_PERSON), None)
    if waiting is not None:
        return no(waiting.reason, waiting.why)
    if seen.group.spec.maintenance.paused:
        return no(Reason.WAITING_FOR_PERSON, f"Paused with outdated pods: {pods}")
    blocked = next((step.why for step in course.rollout if step.verb in {Verb.REFUSE, Verb.WAIT}), "")
    reason = {
        Turn.HOLDS: Reason.ROLLING_UPDATE,
        Turn.WAITS: Reason.WAITING_FOR_OTHER_GROUPS,
        Turn.NONE: Reason.WAITING_FOR_MEMBERS,
    }[course.turn]
    return no(reason, f"Outdated: {pods}" + (f". {blocked}" if blocked else ""))


def _failing_over(seen: Observed) -> bool:
    running = seen.snapshot.in_progress if seen.snapshot else None
    return running is not None and running.kind is Kind.FAILOVER


def all_conditions(seen: Observed, members: Membership, course: Course, *, invalid: Verdict | None) -> list[Condition]:
    """Those that are always there, and of the others those that are true."""
    stalled = yes(invalid.reason, invalid.message) if invalid else progress.stalled(seen, course)
    verdicts: dict[ConditionType, Verdict | None] = {
        ConditionType.READY: invalid or _not_while(stalled, ready(seen, members, course)),
        ConditionType.AVAILABLE: _because(invalid, available(seen, members)),
        ConditionType.FAILOVER_SAFE: course.safe,
        ConditionType.REPLICATION_HEALTHY: replication_healthy(seen, course),
        ConditionType.UP_TO_DATE: invalid or up_to_date(seen, course),
        ConditionType.RECONCILING: invalid or progress.reconciling(seen, members, course, stalled),
        ConditionType.STALLED: stalled,
        **states.all_states(seen, course),
        **alarms.all_alarms(seen),
    }
    previous = {item["type"]: item for item in (seen.group_object.get("status") or {}).get("conditions") or []}
    generation = int(observed.metadata(seen.group_object).get("generation", 0))
    return [
        _condition(kind, verdict, previous.get(kind.value), generation=generation, now=seen.now)
        for kind, verdict in verdicts.items()
        if verdict is not None
    ]


def _not_while(stalled: Verdict, is_ready: Verdict) -> Verdict:
    """A stalled group is not ready: of two conditions that are True kstatus takes one, and `kubectl wait` the other."""
    if stalled.status is ConditionStatus.TRUE and is_ready.status is ConditionStatus.TRUE:
        return no(stalled.reason, stalled.message)
    return is_ready


def _because(invalid: Verdict | None, is_available: Verdict) -> Verdict:
    """A group without a master that waits for its name gets that as the reason; a group with a master keeps its own."""
    waits = invalid is not None and invalid.reason is Reason.BROKER_NAME_TAKEN
    return invalid if waits and invalid and is_available.status is not ConditionStatus.TRUE else is_available


def _condition(
    kind: ConditionType, verdict: Verdict, previous: JsonObject | None, *, generation: int, now: str
) -> Condition:
    unchanged = previous is not None and previous.get("status") == verdict.status.value
    return Condition(
        type=kind.value,
        status=verdict.status,
        reason=verdict.reason.value,
        message=verdict.message,
        last_transition_time=str(previous["lastTransitionTime"]) if unchanged and previous else now,
        observed_generation=generation,
    )
