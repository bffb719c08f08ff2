"""The conditions of a group: pure, from what was observed. Each function gives one condition's status, reason and message.

lastTransitionTime moves only when the status of the condition changes, never with the message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokergroup_operator.api.brokergroup_status import Condition, ConditionStatus, ConditionType, Reason
from brokergroup_operator.observe.timeline import Kind
from brokergroup_operator.reconcile import alarms, observed
from brokergroup_operator.reconcile.durability import acknowledgement_rule
from brokergroup_operator.reconcile.verdict import no, yes

if TYPE_CHECKING:
    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.reconcile.members import Membership
    from brokergroup_operator.reconcile.observed import Observed
    from brokergroup_operator.reconcile.verdict import Verdict


def ready(seen: Observed, members: Membership) -> Verdict:
    """Everything is as the spec wants it, and writes are served."""
    pending = [item.pod for item in members.members if not observed.pod_is_ready(seen.pods.get(item.pod))]
    in_set = seen.record.sync_state_set if seen.record else frozenset()
    outside = [item.pod for item in members.members if item.broker_id not in in_set]
    if observed.being_deleted(seen.group_object):
        return no(Reason.DELETING, f"{len(seen.pods)} pods are still there")
    if _failing_over(seen):
        return no(Reason.FAILING_OVER, "The master is lost; another is being elected")
    if members.to_reserve or pending:
        waiting = ", ".join(pending) or f"{len(members.to_reserve)} members without a broker id"
        return no(Reason.MEMBERS_PENDING, f"Waiting for {waiting}")
    writes = available(seen, members)
    if writes.status is not ConditionStatus.TRUE:
        return writes
    if outside:
        return no(Reason.MEMBERS_OUT_OF_SYNC, f"Not in the SyncStateSet: {', '.join(outside)}")
    return yes(Reason.ALL_MEMBERS_IN_SYNC, f"{len(members.members)} members in sync")


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


def progressing(seen: Observed, members: Membership, *, outdated_pods: list[str]) -> Verdict:
    """Work is under way; where it is not although something differs from the spec, the reason says why."""
    missing = [item.pod for item in members.members if item.pod not in seen.pods]
    stopping = sorted(name for name, pod in seen.pods.items() if observed.being_deleted(pod))
    if members.to_reserve or missing:
        what = ", ".join(missing) or f"{len(members.to_reserve)} members"
        return yes(Reason.CREATING_MEMBERS, f"Creating {what}")
    if stopping:
        return yes(Reason.REPAIRING_MEMBERS, f"Waiting for {', '.join(stopping)} to stop")
    if members.surplus:
        return no(
            Reason.SCALE_IN_NOT_SUPPORTED,
            f"{len(members.members)} members run, spec.replicas is {seen.group.spec.replicas}:"
            " this version does not remove members",
        )
    if outdated_pods:
        return no(
            Reason.CHANGES_PENDING_RESTART,
            f"{', '.join(outdated_pods)} run an older configuration; it is used after their next restart",
        )
    return no(Reason.STABLE, "Nothing to do")


def _failing_over(seen: Observed) -> bool:
    running = seen.snapshot.in_progress if seen.snapshot else None
    return running is not None and running.kind is Kind.FAILOVER


def all_conditions(
    seen: Observed, members: Membership, *, outdated_pods: list[str], invalid: str, now: str
) -> list[Condition]:
    verdicts: dict[ConditionType, Verdict | None] = {
        ConditionType.READY: no(Reason.INVALID_SPEC, invalid) if invalid else ready(seen, members),
        ConditionType.AVAILABLE: available(seen, members),
        ConditionType.PROGRESSING: no(Reason.INVALID_SPEC, invalid)
        if invalid
        else progressing(seen, members, outdated_pods=outdated_pods),
        **alarms.all_alarms(seen),
    }
    previous = {item["type"]: item for item in (seen.group_object.get("status") or {}).get("conditions") or []}
    generation = int(observed.metadata(seen.group_object).get("generation", 0))
    return [
        _condition(kind, verdict, previous.get(kind.value), generation=generation, now=now)
        for kind, verdict in verdicts.items()
        if verdict is not None
    ]


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
