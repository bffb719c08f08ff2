"""Restart, Rebuild, Decommission: pods or members are replaced. The reconcile plane does it; the end is judged here.

- *Restart*: every pod that is older than `status.startedAt` is outdated while the operation runs; the master's comes last.
  A member that leaves meanwhile is not waited for.
- *Rebuild*: a member's volume is given up; a new broker id on a new volume copies the master
  (docs/concepts/architecture.md, rule 4).
- *Decommission*: a member leaves as in a scale in. If `spec.replicas` wants as many members, a new one takes its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokergroup_operator.api.storage_fields import RetentionPolicy
from brokergroup_operator.reconcile.operations import plan as plans
from brokergroup_operator.reconcile.operations.procedures.premises import asked, first
from brokergroup_operator.reconcile.see.observed import pod_is_ready

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.operations.procedures.premises import Case

# A member comes back on its own disk: it has to catch up with what it missed, not to copy everything.
RESTART_DEADLINE_SECONDS_PER_MEMBER = 3600.0
# The new member copies the whole log.
REBUILD_DEADLINE_SECONDS = 24 * 3600.0
DECOMMISSION_DEADLINE_SECONDS = 3600.0


def begin_restart(case: Case) -> plans.Beginning:
    wanted = _wanted(case)
    return case.begun(
        case.group_is_not_there(),
        case.paused(),
        *map(case.not_a_member, asked(case.spec.restart).broker_ids),
        case.no_master(),
        case.held_stopped(wanted),
        case.claim_goes(wanted),
        not_now=case.unsafe(wanted) or case.born_too_late(map(case.pod, wanted)),
        message=f"restarts {_list(wanted)}",
        steps=(_restart_step(case, broker_id) for broker_id in wanted),
    )


def _restart_step(case: Case, broker_id: int) -> str:
    restart = f"restart pod {case.pod_name(broker_id)} (broker {broker_id}) and wait until it is in sync"
    return f"switch the master over, then {restart}" if broker_id == case.seen.master else restart


def judge_restart(case: Case) -> plans.Judgement:
    named = _wanted(case)
    left = [broker_id for broker_id in named if case.has_left(broker_id)]
    wanted = [broker_id for broker_id in named if broker_id not in left]
    if left and not wanted:
        return plans.Fail(message=case.not_a_member(left[0]))
    waiting = [broker_id for broker_id in wanted if not _has_restarted(case, broker_id)]
    progress = f"{len(wanted) - len(waiting)} of {len(wanted)} restarted and in sync; waits for {_list(waiting)}"
    gone = f"; {_list(left)} has left" if left else ""
    return _judged(
        case,
        "" if wanted and not waiting else progress,
        deadline_seconds=RESTART_DEADLINE_SECONDS_PER_MEMBER * max(1, len(wanted)),
        done=f"restarted {_list(sorted(wanted))} in {case.running_seconds:.0f} s{gone}",
        to_broker_id=case.seen.master,
        hindrance=case.claim_goes(waiting),
    )


def _has_restarted(case: Case, broker_id: int) -> bool:
    pod = case.pod(broker_id)
    return case.is_new(pod) and pod_is_ready(pod) and case.is_back(broker_id)


def _wanted(case: Case) -> list[int]:
    """Slaves first, the master last, as it will be done."""
    named = asked(case.spec.restart).broker_ids or case.members
    return sorted(named, key=lambda broker_id: (broker_id == case.seen.master, broker_id))


def _list(broker_ids: list[int]) -> str:
    return ", ".join(f"broker {broker_id}" for broker_id in broker_ids)


def begin_rebuild(case: Case) -> plans.Beginning:
    broker_id = asked(case.spec.rebuild).broker_id
    pod = case.pod_name(broker_id)
    return case.begun(
        case.group_is_not_there(),
        case.paused(),
        case.not_a_member(broker_id),
        case.no_master(),
        not_now=case.unsafe((broker_id,)) or case.born_too_late((case.pod(broker_id), case.claim(broker_id))),
        message=f"gives up broker {broker_id} with its volume",
        steps=(
            *_hand_over(case, broker_id),
            f"delete pod {pod} and claim {pod} WITH ITS DATA",
            "create a member with a new broker id on a new volume",
            "wait until it has copied the master's log and is in the SyncStateSet",
        ),
    )


def _hand_over(case: Case, broker_id: int) -> list[str]:
    is_master = broker_id == case.seen.master
    return [f"switch the master over to another member than broker {broker_id}"] if is_master else []


def judge_rebuild(case: Case) -> plans.Judgement:
    broker_id, new = asked(case.spec.rebuild).broker_id, _successor(case)
    done = f"broker {new} took the place of broker {broker_id} in {case.running_seconds:.0f} s"
    if new is None:
        replicas = case.seen.group.spec.replicas
        done = f"broker {broker_id} has left, and spec.replicas is {replicas}: no member takes its place"
    return _judged(
        case,
        _rebuild_waits_for(case, broker_id, new),
        deadline_seconds=REBUILD_DEADLINE_SECONDS,
        done=done,
        to_broker_id=new,
    )


def _rebuild_waits_for(case: Case, broker_id: int, new: int | None) -> str:
    for kind, obj in (("pod", case.pod(broker_id)), ("claim", case.claim(broker_id))):
        if case.is_old(obj):
            return f"{kind} {case.pod_name(broker_id)} is still there"
    if new is None and (case.seen.master is None or _wants_successor(case, broker_id)):
        return "no new member has registered yet"
    if new is not None and not case.is_back(new):
        return f"broker {new} copies the log"
    return f"broker {broker_id} is still in the record" if broker_id in case.seen.replicas else ""


def _wants_successor(case: Case, broker_id: int) -> bool:
    """Whether the group is short of members without it: spec.replicas may have been lowered since the start."""
    return sum(1 for one in case.members if one != broker_id) < case.seen.group.spec.replicas


def _successor(case: Case) -> int | None:
    """The member whose volume, or whose pod in a group without claims, was made since the start.

    Pods are restarted for other reasons too, claims are not.
    """
    volume = case.claim if case.seen.group.spec.storage.ephemeral is None else case.pod
    return next((broker_id for broker_id in case.members if case.is_new(volume(broker_id))), None)


def begin_decommission(case: Case) -> plans.Beginning:
    broker_id, replicas = asked(case.spec.decommission).broker_id, case.seen.group.spec.replicas
    return case.begun(
        case.group_is_not_there(),
        case.paused(),
        case.not_a_member(broker_id),
        f"broker {broker_id} is the only member" if case.members == [broker_id] else "",
        case.no_master(),
        not_now=case.unsafe((broker_id,)),
        message=f"removes broker {broker_id}",
        steps=(
            *_hand_over(case, broker_id),
            f"delete pod {case.pod_name(broker_id)}",
            f"remove broker {broker_id} from the SyncStateSet and the record: its id is never used again",
            *_retention(case, broker_id),
            *([f"create a new member: spec.replicas is {replicas}"] if len(case.members) <= replicas else []),
        ),
    )


def _retention(case: Case, broker_id: int) -> list[str]:
    storage, claim = case.seen.group.spec.storage, case.pod_name(broker_id)
    if storage.ephemeral is not None:
        return []
    verb = "delete" if storage.retention.when_scaled is RetentionPolicy.DELETE else "keep"
    return [f"{verb} claim {claim}: spec.storage.retention.whenScaled is {storage.retention.when_scaled}"]


def judge_decommission(case: Case) -> plans.Judgement:
    broker_id = asked(case.spec.decommission).broker_id
    return _judged(
        case,
        _decommission_waits_for(case, broker_id),
        deadline_seconds=DECOMMISSION_DEADLINE_SECONDS,
        done=f"broker {broker_id} has left",
        to_broker_id=case.seen.master,
    )


def _decommission_waits_for(case: Case, broker_id: int) -> str:
    record = case.seen.record
    if record is None:
        return "the record cannot be read"
    if broker_id == record.master_broker_id:
        return f"broker {broker_id} is still master"
    if broker_id in record.sync_state_set:
        return f"broker {broker_id} is still in the SyncStateSet"
    if case.pod(broker_id) is not None:
        return f"pod {case.pod_name(broker_id)} is still there"
    return f"broker {broker_id} is still in the record" if broker_id in record.replicas else ""


def _judged(
    case: Case, waits_for: str, *, deadline_seconds: float, done: str, to_broker_id: int | None, hindrance: str = ""
) -> plans.Judgement:
    """`done` once nothing is waited for; until the deadline what is waited for, or what keeps it from going on."""
    if not waits_for:
        figures = plans.Figures(
            from_broker_id=case.before.from_broker_id,
            to_broker_id=to_broker_id,
            epoch=case.seen.epoch,
            milliseconds=round(case.running_seconds * 1000),
        )
        return plans.Done(message=done, figures=figures)
    if case.running_seconds > deadline_seconds:
        return plans.Fail(message=f"not within {deadline_seconds:.0f} s: {waits_for}")
    return plans.GoOn(message=first(case.group_is_not_there(), case.paused(), hindrance) or waits_for)
