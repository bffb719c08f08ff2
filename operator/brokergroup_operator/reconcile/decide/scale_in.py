"""How a member leaves for good: scale in, and the operations Decommission and Rebuild. Pure.

Hand over, stop, forget: one member at a time. A member that counts is stopped once those that stay could lose their master too.
Then its id is cleaned from the record, and not used again; its claim goes or stays by `storage.retention.whenScaled`. A Rebuild
gives the volume up before the id. The choice is noted on the member's claim before anything is done, so a later pass, or
another operator, goes on with the same member; if it must stay after all, the next apply of its claim takes the note off.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec

from brokergroup_operator.api.brokergroup_operation import OperationType
from brokergroup_operator.api.brokergroup_status import ConditionStatus, ConditionType, Reason
from brokergroup_operator.reconcile.decide.failover_safe import able_to_follow, judge
from brokergroup_operator.reconcile.identity import Member
from brokergroup_operator.reconcile.plan import Step, Verb
from brokergroup_operator.reconcile.see import observed
from brokergroup_operator.reconcile.see.members import membership, never_masters, standings, taken_in_vain

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.see.members import Standing
    from brokergroup_operator.reconcile.see.observed import Observed


# A group that takes no writes for so long is one without a master that serves: its condition outlives the operator.
MISSED_SECONDS: Final = 30.0


def leaving(seen: Observed) -> Standing | None:
    """Return the member that leaves now: the one that an operation names, or else the next one beyond `spec.replicas`."""
    known = standings(seen)
    if (asked_for := known.get(named(seen) or 0)) is not None or len(known) <= seen.group.spec.replicas:
        return asked_for
    return max((standing for standing in known.values() if not standing.is_master), key=_rank)


# By nothing that only a warm controller plane knows, so that a cold one chooses the same member.
def _rank(standing: Standing) -> tuple[bool, bool, bool, bool, int]:
    stopped = not standing.has_pod or standing.is_going
    return standing.is_marked, stopped, not standing.in_set, not standing.is_ready, standing.member.broker_id


def named(seen: Observed) -> int | None:
    operation = seen.operation
    if operation is None:
        return None
    if operation.spec.type is OperationType.DECOMMISSION and operation.spec.decommission is not None:
        return operation.spec.decommission.broker_id
    return rebuilt(seen)


def rebuilt(seen: Observed) -> int | None:
    """Return the broker id whose volume a running Rebuild gives up."""
    operation = seen.operation
    if operation is None or operation.spec.type is not OperationType.REBUILD or operation.spec.rebuild is None:
        return None
    return operation.spec.rebuild.broker_id


def leaving_step(seen: Observed, leaver: Standing, *, staying: int, safe: bool) -> Step:  # noqa: PLR0911 (one per step)
    """Return the next step for the leaving member; `staying` is how many members stay."""
    member = leaver.member
    reason = Reason.REBUILDING_MEMBER if rebuilt(seen) == member.broker_id else Reason.SCALING_IN
    if leaver.is_going and not leaver.is_stuck:
        return Step(verb=Verb.WAIT, reason=reason, why=f"Waiting for pod {member.pod} to stop", member=member)
    runs = leaver.has_pod and not leaver.is_going
    if runs and leaver.is_master and staying:
        if not safe:
            return _refused(leaver, "no member can take over from it now")
        if complaint := _why_it_would_stay(seen, leaver, staying=staying):
            return _refused(leaver, complaint)
        return Step(verb=Verb.SWITCH, reason=reason, why="the master hands over before it leaves", member=member)
    if nothing_is_known(seen) and not _lacks_writes_for_long(seen):
        return Step(verb=Verb.WAIT, reason=reason, why="Waiting to hear the master", member=member)
    if complaint := why_it_must_stay(seen, leaver, staying=staying):
        return _refused(leaver, complaint)
    if reason is Reason.SCALING_IN and not leaver.is_marked and member.pod in seen.claims:
        return Step(verb=Verb.MARK, reason=reason, why="it is chosen to leave", member=member)
    if runs:
        return Step(verb=Verb.STOP, reason=reason, why="it leaves the group", member=member)
    if reason is Reason.REBUILDING_MEMBER and (step := _volume_step(seen, leaver)) is not None:
        return step
    return Step(verb=Verb.FORGET, reason=reason, why="it has left", member=member)


def _why_it_would_stay(seen: Observed, leaver: Standing, *, staying: int) -> str:
    """Why a master that leaves would be refused once it had handed over; the empty text if it could leave.

    It then keeps the role: a rolling update would move mastership back to it, and so on to and fro.
    """
    successor = next((one for one in able_to_follow(seen) if one != leaver.member.broker_id), None)
    if successor is None or seen.record is None or seen.snapshot is None:
        return ""  # the controller plane finds one, or refuses
    record = replace(seen.record, master_broker_id=successor)
    after = replace(seen, record=record, snapshot=replace(seen.snapshot, record=record))
    complaint = why_it_must_stay(after, leaver, staying=staying)
    return (
        f"it is master, and would not be spared after a hand-over to broker {successor}: {complaint}"
        if complaint
        else ""
    )


def nothing_is_known(seen: Observed) -> bool:
    """The record names a master that the controller plane, just started perhaps, has not heard as such."""
    if seen.record is None or seen.record.granted_master_id is None:
        return False
    return seen.snapshot is None or not seen.snapshot.hears_master


def _lacks_writes_for_long(seen: Observed) -> bool:
    """Whether it is no longer an operator that has just started and hears its brokers in a moment: the member may be missed.

    Then it must stay, and is started again; nor does what it waits for keep broken pods from being replaced. The condition may be
    of an operator of long ago, so this one must have missed the master for as long.
    """
    found, snapshot = observed.condition_in(seen.group_object, ConditionType.AVAILABLE.value), seen.snapshot
    if snapshot is None or found.get("status") != ConditionStatus.FALSE.value:
        return False
    since_seconds = observed.seconds_of(str(found["lastTransitionTime"]))
    if snapshot.masters_silence is not None:
        since_seconds = max(since_seconds, snapshot.masters_silence.since_unix_seconds)
    # A plane that is too new shows no silence, and may have heard the master before the slaves that acknowledge.
    lacking_seconds = min(observed.seconds_of(seen.now) - since_seconds, snapshot.known_for_seconds)
    return lacking_seconds >= MISSED_SECONDS


def _refused(leaver: Standing, why: str) -> Step:
    member = leaver.member
    return Step(verb=Verb.REFUSE, reason=Reason.SCALE_IN_REFUSED, why=f"{member.pod} can't leave: {why}", member=member)


def _volume_step(seen: Observed, leaver: Standing) -> Step | None:
    """Delete the claim and wait until it is gone; where a lost node holds it, do not wait."""
    claim, member = seen.claims.get(leaver.member.pod), leaver.member
    if claim is None or (leaver.is_stuck and observed.being_deleted(claim)):
        return None
    if observed.being_deleted(claim):
        why = f"Waiting for claim {member.pod} to go"
        return Step(verb=Verb.WAIT, reason=Reason.REBUILDING_MEMBER, why=why, member=member)
    why = "its volume is given up"
    return Step(verb=Verb.DROP_VOLUME, reason=Reason.REBUILDING_MEMBER, why=why, member=member)


def why_it_must_stay(seen: Observed, leaver: Standing, *, staying: int) -> str:
    """Why those that stay would be too few; the empty text if they are enough."""
    record = seen.record
    if record is None or seen.snapshot is None:
        return "the record is not known"
    if staying == 0:
        return "it is the only one"
    replica = record.replicas.get(leaver.member.broker_id)
    if replica is None or not replica.registered:
        return ""
    if record.granted_master_id in {None, leaver.member.broker_id} or not seen.snapshot.hears_master:
        return "there is no other master that serves"
    if staying == 1 or not (leaver.contributes or leaver.has_seat):
        return ""
    away = {leaver.member.broker_id, *(one for one in record.sync_state_set if not _is_there(seen, one))}
    away |= never_masters(seen)
    spec = msgspec.structs.replace(seen.group.spec, replicas=staying)
    verdict = judge(spec, record, seen.snapshot, away=away)
    return "" if verdict.holds else verdict.message


def _is_there(seen: Observed, broker_id: int) -> bool:
    """Brokers from elsewhere have no pod of ours; their heartbeats speak for them."""
    replica = seen.record.replicas.get(broker_id) if seen.record else None
    pod = replica.reserved_for if replica is not None else ""
    return replica is not None and (not pod or observed.pod_is_ready(seen.pods.get(pod)))


def dead_ids(seen: Observed) -> list[Member]:
    """Ids that a pod of ours carried and whose disk is gone, lowest first."""
    record = seen.record
    if record is None:
        return []
    superseded = [Member(broker_id=one, pod=record.replicas[one].reserved_for) for one in record.superseded]
    return sorted([*superseded, *membership(seen).volume_lost], key=lambda member: member.broker_id)


def forgetting_step(seen: Observed) -> Step | None:
    """Clean one id whose volume is gone, once enough are in sync: until then its seat says that a copy is missing."""
    if seen.record is None:
        return None
    if (step := _taken_in_vain(seen)) is not None:
        return step
    in_sync = [standing for standing in standings(seen).values() if standing.in_sync]
    replaced = len(in_sync) >= seen.group.spec.replicas and not membership(seen).to_reserve
    for member in dead_ids(seen):
        holds_seat = member.broker_id in seen.record.seats or member.broker_id in seen.record.lost_seats
        # As long as it is unheard, no eligible replica is elected.
        in_the_way = seen.record.granted_master_id is None and not holds_seat and bool(seen.record.seats)
        if (replaced or in_the_way) and member.broker_id != seen.record.master_broker_id:
            why = "its volume is gone for good"
            return Step(verb=Verb.FORGET, reason=Reason.REPAIRING_MEMBERS, why=why, member=member)
    return None


def _taken_in_vain(seen: Observed) -> Step | None:
    """Clean an id that a sidecar took (1013) while the pod's broker lives on under a lower one, once that broker is in sync."""
    asked_for = named(seen)
    for broker_id, holder in taken_in_vain(seen).items():
        standing = standings(seen).get(holder.broker_id)
        # It lost its seat when the id was taken (rule 2), so it was heard since: enough where an operation names the id.
        if standing is not None and (standing.in_sync or (asked_for == broker_id and standing.is_live)):
            why = f"it was taken in vain: the broker of its pod is {holder.broker_id}"
            vain = Member(broker_id=broker_id, pod=holder.pod)
            return Step(verb=Verb.FORGET, reason=Reason.REPAIRING_MEMBERS, why=why, member=vain)
    return None
