"""How a member leaves for good: scale in, and the operations Decommission and Rebuild. Pure.

Hand over, stop, forget. One member at a time: the master hands over first; a member that counts is stopped only while those
that stay could lose their master too; then its id is cleaned from the record (it is never used again), and its claim goes
or stays by `storage.retention.whenScaled`. A Rebuild gives its volume up before its id: a new id on a new volume then
copies the master.

A scale in removes a member outside the SyncStateSet, else the highest id; the master stays. The choice is noted on the member's
claim before anything is done, so an operator that was killed, or has heard no broker yet, goes on with the same one. If it
must stay after all, the note comes off with the next apply of its claim.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from brokergroup_operator.api.brokergroup_operation import OperationType
from brokergroup_operator.api.brokergroup_status import ConditionStatus, Reason
from brokergroup_operator.reconcile.decide.failover_safe import judge
from brokergroup_operator.reconcile.see import observed
from brokergroup_operator.reconcile.see.learners import never_masters
from brokergroup_operator.reconcile.steps import Step, Verb

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokergroup_operator.reconcile.see.observed import Observed
    from brokergroup_operator.reconcile.see.standing import Standing


def leaving(seen: Observed, standings: Mapping[int, Standing]) -> Standing | None:
    """Return the member that leaves now: the one that an operation names, or else the one that the scale in has chosen."""
    asked_for = standings.get(named(seen) or 0)
    return asked_for or scaled_in(seen.group.spec.replicas, standings)


def scaled_in(replicas: int, standings: Mapping[int, Standing]) -> Standing | None:
    """The next member beyond `replicas`. Uses nothing that only a warm controller knows, so that a cold one chooses the same."""
    if len(standings) <= replicas:
        return None
    others = [standing for standing in standings.values() if not standing.is_master]
    return max(others, key=_rank)


def _rank(standing: Standing) -> tuple[bool, bool, bool, bool, int]:
    stopped = not standing.has_pod or standing.is_going
    return standing.is_marked, stopped, not standing.in_set, not standing.is_ready, standing.member.broker_id


def named(seen: Observed) -> int | None:
    """The broker id that a running operation removes."""
    operation = seen.operation
    if operation is None:
        return None
    if operation.spec.type is OperationType.DECOMMISSION and operation.spec.decommission is not None:
        return operation.spec.decommission.broker_id
    return rebuilt(seen)


def rebuilt(seen: Observed) -> int | None:
    """Return the broker id whose volume a running Rebuild gives up; once that is gone, no member has the id."""
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
        if safe:
            return Step(verb=Verb.SWITCH, reason=reason, why="the master hands over before it leaves", member=member)
        return _refused(leaver, "no member can take over from it now")
    if _nothing_is_known(seen):
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


def _nothing_is_known(seen: Observed) -> bool:
    """The record names a master that the controller plane, just started perhaps, has not heard as such."""
    if seen.record is None or seen.record.granted_master_id is None:
        return False
    return seen.snapshot is None or not seen.snapshot.writable


def _refused(leaver: Standing, why: str) -> Step:
    member = leaver.member
    return Step(verb=Verb.REFUSE, reason=Reason.SCALE_IN_REFUSED, why=f"{member.pod} can't leave: {why}", member=member)


def _volume_step(seen: Observed, leaver: Standing) -> Step | None:
    """Delete the claim and wait until it is gone; where a lost node holds it, do not wait."""
    claim, member = seen.claims.get(leaver.member.pod), leaver.member
    if claim is None or leaver.is_stuck:
        return _drop(leaver) if claim is not None and not observed.being_deleted(claim) else None
    if observed.being_deleted(claim):
        why = f"Waiting for claim {member.pod} to go"
        return Step(verb=Verb.WAIT, reason=Reason.REBUILDING_MEMBER, why=why, member=member)
    return _drop(leaver)


def _drop(leaver: Standing) -> Step:
    return Step(
        verb=Verb.DROP_VOLUME, reason=Reason.REBUILDING_MEMBER, why="its volume is given up", member=leaver.member
    )


def why_it_must_stay(seen: Observed, leaver: Standing, *, staying: int) -> str:
    """The complaint if those that stay would be too few; the empty text if they are enough."""
    record = seen.record
    if record is None or seen.snapshot is None:
        return "the record is not known"
    if staying == 0:
        return "it is the only one"
    replica = record.replicas.get(leaver.member.broker_id)
    if replica is None or not replica.registered:
        return ""
    if record.granted_master_id in {None, leaver.member.broker_id} or not seen.snapshot.writable:
        return "there is no other master that serves"
    if staying == 1 or not (leaver.contributes or leaver.has_seat):
        return ""
    away = {leaver.member.broker_id, *(one for one in record.sync_state_set if not _is_there(seen, one))}
    away |= never_masters(seen)
    spec = msgspec.structs.replace(seen.group.spec, replicas=staying)
    verdict = judge(spec, record, seen.snapshot, away=away)
    return "" if verdict.status is ConditionStatus.TRUE else verdict.message


def _is_there(seen: Observed, broker_id: int) -> bool:
    """Brokers from elsewhere have no pod of ours; their heartbeats speak for them."""
    replica = seen.record.replicas.get(broker_id) if seen.record else None
    return replica is not None and (
        not replica.reserved_for or observed.pod_is_ready(seen.pods.get(replica.reserved_for))
    )
