"""Which operation of a group runs, which waits, which is over and which is old enough to go, with its status and Event: pure.

One runs at a time, the oldest first. One that waits for its time lets younger ones pass, and one whose time is over is rejected,
whatever it waited for. A dry run changes nothing, so it waits for no other operation. An operation that was made for an earlier
group of the same name is left to the garbage collector.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import asdict

from brokergroup_operator.api import brokergroup_operation as api
from brokergroup_operator.api.brokergroup_status import Condition, ConditionStatus
from brokergroup_operator.api.times import rfc3339
from brokergroup_operator.reconcile.decide import retiring
from brokergroup_operator.reconcile.operations import plan as plans
from brokergroup_operator.reconcile.operations.procedures import backups, masters, members, premises, retire
from brokergroup_operator.reconcile.plan import Note
from brokergroup_operator.reconcile.see import observed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from brokergroup_operator.reconcile.see.observed import Observed, Operation


PROCEDURES: Mapping[api.OperationType, premises.Procedure] = {
    api.OperationType.SWITCHOVER: premises.Procedure(begin=masters.begin_switchover, judge=masters.judge_switchover),
    api.OperationType.RESTART: premises.Procedure(begin=members.begin_restart, judge=members.judge_restart),
    api.OperationType.REBUILD: premises.Procedure(begin=members.begin_rebuild, judge=members.judge_rebuild),
    api.OperationType.ELECT: premises.Procedure(begin=masters.begin_election, judge=masters.judge_election),
    api.OperationType.DECOMMISSION: premises.Procedure(
        begin=members.begin_decommission, judge=members.judge_decommission
    ),
    api.OperationType.BACKUP: premises.Procedure(begin=backups.begin_backup, judge=backups.judge_backup),
    api.OperationType.DRILL: premises.Procedure(begin=masters.begin_drill, judge=masters.judge_drill),
    api.OperationType.RETIRE: premises.Procedure(
        begin=retire.begin_retire, judge=retire.judge_retire, judge_without_group=retire.judge_without_group
    ),
}


# Finished operations that are kept per group; a time to live of their own may end them sooner.
HISTORY_LIMIT = 20
# While an operation runs, its end is looked for this often, even without an event.
RUNNING_POLL_SECONDS = 1.0
LOOK_POLL_SECONDS = 10.0


def evaluate(seen: Observed, outcomes: Mapping[str, plans.Outcome]) -> plans.PassPlan:
    """Return the plan of one pass; `outcomes` by uid are those of this process's requests to the controller plane."""
    ours = [one for one in seen.operations if not observed.being_deleted(one.raw) and one.is_of(seen.group_object)]
    ours.sort(key=lambda one: one.order)
    cases = [
        premises.Case(seen=seen, operation=one, outcome=outcomes.get(one.uid, plans.NOTHING_ASKED)) for one in ours
    ]
    unfinished = [case for case in cases if not case.operation.finished]
    first = _first(unfinished)
    judged = [(case, _verdict(case, first)) for case in unfinished]
    removals, ends_of_life = [*_old_ones(cases)], [_remaining_seconds(case) for case in cases]
    steps: list[plans.Step] = [step for operation in ours for step in _adoption(seen, operation)]
    for case, verdict in judged:
        steps += _steps(case, verdict)
    look_again = [
        *(seconds for seconds in ends_of_life if seconds is not None and seconds > 0),
        *(seconds for case, verdict in judged for seconds in _look_again(case, verdict)),
    ]
    return plans.PassPlan(steps=(*steps, *removals), look_again_seconds=min(look_again, default=None))


def _steps(case: premises.Case, verdict: plans.Verdict) -> Iterator[plans.Step]:
    operation = case.operation
    status = next_status(case, verdict)
    if status != operation.asked.status:
        yield plans.WriteStatus(operation=operation, status=status, note=_note_of(operation, verdict))
    if isinstance(verdict, plans.GoOn) and verdict.effect is not None:
        yield plans.DoEffect(operation=operation, effect=verdict.effect)


def _look_again(case: premises.Case, verdict: plans.Verdict) -> Iterator[float]:
    if verdict.phase in observed.FINISHED:
        yield 0.0  # the next one's turn
    elif not isinstance(verdict, plans.Wait):
        # The end of a look wakes the group, and a Retire may wait for days.
        looks = case.spec.type is api.OperationType.RETIRE and case.outcome.running
        yield LOOK_POLL_SECONDS if looks else RUNNING_POLL_SECONDS
    else:
        if verdict.look_again_seconds is not None:
            yield verdict.look_again_seconds
        if (ends_seconds := premises.window_of(case.operation).ends_seconds) is not None:
            yield ends_seconds - case.now_seconds


def _verdict(case: premises.Case, first: premises.Case | None) -> plans.Verdict:
    operation, procedure = case.operation, PROCEDURES[case.spec.type]
    if not case.seen.group_object:
        return _without_group(case)
    if operation.phase is api.OperationPhase.RUNNING:
        return procedure.judge(case)
    if why := case.too_late():
        return plans.Reject(message=why)
    beginning = procedure.begin(case)
    if operation.is_dry and isinstance(beginning, plans.Start):
        return plans.Done(message=f"dry run: {beginning.message}", figures=beginning.figures, plan=beginning.steps)
    if first is not None and first is not case and not operation.is_dry and not _waits_for_its_time(case):
        return plans.Wait(message=f"waits for {first.operation.name}")
    return beginning


def _first(unfinished: list[premises.Case]) -> premises.Case | None:
    """Return the running operation, or else the oldest whose time has come."""
    real = [case for case in unfinished if not case.operation.is_dry]
    running = [case for case in real if case.operation.is_running]
    return next(iter([*running, *(case for case in real if not _waits_for_its_time(case))]), None)


def _waits_for_its_time(case: premises.Case) -> bool:
    return case.operation.phase is api.OperationPhase.PENDING and case.too_early_seconds > 0


def _without_group(case: premises.Case) -> plans.Verdict:
    what = case.group_is_not_there()
    if case.operation.phase is api.OperationPhase.RUNNING:
        judge = PROCEDURES[case.spec.type].judge_without_group
        return plans.Fail(message=f"{what} any more") if judge is None else judge(case)
    grace_ends_seconds = observed.created_seconds(case.operation.raw) + premises.GROUP_UNKNOWN_GRACE_SECONDS
    grace_seconds = grace_ends_seconds - case.now_seconds
    return (
        plans.Wait(message=what, look_again_seconds=grace_seconds) if grace_seconds > 0 else plans.Reject(message=what)
    )


def _adoption(seen: Observed, operation: Operation) -> Iterator[plans.Adopt]:
    if operation.asked.spec.type is api.OperationType.RETIRE:
        return  # its end is to be seen after the group is gone
    if not seen.group_object or observed.being_deleted(seen.group_object):
        return
    group_uid = observed.uid(seen.group_object)
    if all(owner.get("uid") != group_uid for owner in observed.owners_of(operation.raw)):
        yield plans.Adopt(operation=operation, group_uid=group_uid)


def _old_ones(cases: list[premises.Case]) -> Iterator[plans.Remove]:
    """Return the finished operations to delete: time to live over, or more than the history keeps."""
    finished = [case for case in cases if case.operation.finished]
    finished.sort(key=lambda case: (case.operation.completed_seconds, case.operation.order), reverse=True)
    for index, case in enumerate(finished):
        remaining_seconds = _remaining_seconds(case)
        if remaining_seconds is not None and remaining_seconds <= 0:
            yield plans.Remove(operation=case.operation, reason="ttlSecondsAfterFinished is over")
        elif index >= HISTORY_LIMIT:
            yield plans.Remove(operation=case.operation, reason=f"only the last {HISTORY_LIMIT} are kept")


def _remaining_seconds(case: premises.Case) -> float | None:
    ttl_seconds = case.spec.ttl_seconds_after_finished
    if not case.operation.finished or ttl_seconds is None:
        return None
    return case.operation.completed_seconds + ttl_seconds - case.now_seconds


def next_status(case: premises.Case, verdict: plans.Verdict) -> api.OperationStatus:
    """Equal to the present one where nothing has changed, so that nothing is written."""
    now, is_over = rfc3339(case.now_seconds), verdict.phase in observed.FINISHED
    generation, message = (
        int(observed.metadata(case.operation.raw).get("generation", 0)),
        verdict.message[: api.MAX_MESSAGE_CHARACTERS],
    )
    kind = api.OperationConditionType.COMPLETE if isinstance(verdict, plans.Done) else api.OperationConditionType.FAILED
    condition = Condition(
        type=kind.value,
        status=ConditionStatus.TRUE,
        reason=verdict.phase.value,
        message=message,
        last_transition_time=now,
        observed_generation=generation,
    )
    ended = [condition] if is_over else []
    retirement = getattr(verdict, "retirement", None) or case.operation.status.retirement
    drained = [] if retirement is None else [_drained(case, retirement, message, now, generation)]
    figures = asdict(case.before if verdict.figures is None else verdict.figures)
    steps = [one[: api.MAX_PLAN_STEP_CHARACTERS] for one in verdict.plan] if isinstance(verdict, plans.Done) else []
    return api.OperationStatus(
        phase=verdict.phase,
        observed_generation=generation,
        group_uid=_group_uid(case),
        started_at=now if isinstance(verdict, plans.Start) else case.operation.status.started_at,
        completed_at=now if is_over else None,
        result=api.OperationResult(**figures | {"message": message, "plan": steps[: api.MAX_PLAN_STEPS]}),
        retirement=retirement,
        conditions=[*ended, *drained] or None,
    )


def _group_uid(case: premises.Case) -> str | None:
    """Of a Retire: the group that it was asked for. It has no owner that says so."""
    if case.spec.type is not api.OperationType.RETIRE:
        return None
    return case.operation.status.group_uid or observed.uid(case.seen.group_object) or None


def _drained(case: premises.Case, retirement: api.Retirement, message: str, now: str, generation: int) -> Condition:
    """Of a Retire: whether everything is read, and what is not."""
    is_drained = retirement.step in retiring.CLOSED_STEPS
    status = ConditionStatus.TRUE if is_drained else ConditionStatus.FALSE
    unread = "UnreadMessages" if retirement.unread_topics else retirement.step.value
    kind = api.OperationConditionType.DRAINED.value
    before = next(
        (one for one in case.operation.status.conditions or () if (one.type, one.status) == (kind, status)), None
    )
    return Condition(
        type=kind,
        status=status,
        reason="EverythingRead" if is_drained else unread,
        message=message,
        last_transition_time=now if before is None else before.last_transition_time,
        observed_generation=generation,
    )


def _note_of(operation: Operation, verdict: plans.Verdict) -> Note | None:
    """Return the Event for this verdict. None for a switchover's start and end: the controller plane posts those, with figures."""
    kind = operation.asked.spec.type
    message = f"{operation.name}: {verdict.message}"
    if isinstance(verdict, plans.Reject | plans.Fail):
        return Note(reason=f"{kind.value}{verdict.phase.value}", message=message, warning=True)
    if kind is api.OperationType.SWITCHOVER:
        return None
    if isinstance(verdict, plans.Start):
        return Note(reason=f"{kind.value}Started", message=message)
    is_done = isinstance(verdict, plans.Done) and not verdict.plan
    return Note(reason=f"{kind.value}Completed", message=message) if is_done else None
