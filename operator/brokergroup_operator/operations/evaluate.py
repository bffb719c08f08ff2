"""Which operation of a group runs, which waits, which is over and which is old enough to go, with its status and Event: pure.

One runs at a time, the oldest first. One that waits for its time lets younger ones pass, and one whose time is over is rejected,
whatever it waited for. A dry run changes nothing, so it waits for no other operation. An operation that was made for an earlier
group of the same name is left to the garbage collector.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokergroup_operator.api.brokergroup_operation import (
    DryRun,
    OperationConditionType,
    OperationPhase,
    OperationResult,
    OperationStatus,
    OperationType,
)
from brokergroup_operator.api.brokergroup_status import Condition, ConditionStatus
from brokergroup_operator.operations.plan import (
    NO_FIGURES,
    NOTHING_ASKED,
    Adopt,
    DoEffect,
    Done,
    Fail,
    Figures,
    GoOn,
    Note,
    Outcome,
    PassPlan,
    Reject,
    Remove,
    Start,
    Step,
    Wait,
    WriteStatus,
)
from brokergroup_operator.operations.procedures import masters, members
from brokergroup_operator.operations.procedures.premises import GROUP_UNKNOWN_GRACE_SECONDS
from brokergroup_operator.operations.scene import (
    being_deleted,
    created_seconds,
    is_of,
    rfc3339,
    too_early_seconds,
    window_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from brokergroup_operator.operations.plan import OperationSettings, Verdict
    from brokergroup_operator.operations.procedures.premises import Procedure
    from brokergroup_operator.operations.scene import Operation, Scene


PROCEDURES: Mapping[OperationType, Procedure] = {
    OperationType.SWITCHOVER: masters.SWITCHOVER,
    OperationType.RESTART: members.RESTART,
    OperationType.REBUILD: members.REBUILD,
    OperationType.ELECT: masters.ELECT,
    OperationType.DECOMMISSION: members.DECOMMISSION,
    OperationType.DRILL: masters.DRILL,
}


def evaluate(scene: Scene, outcomes: Mapping[str, Outcome], settings: OperationSettings) -> PassPlan:
    """Return the plan of one pass; `outcomes` by uid are those of this process's requests to the controller plane."""
    ours = sorted((item for item in scene.operations if _is_of_this_group(scene, item)), key=lambda item: item.order)
    judge = _Judge(scene, outcomes)
    steps: list[Step] = [step for item in ours for step in _adoption(scene, item)]
    for item in ours:
        if not item.finished:
            steps += judge.judged(item, first_of=_next(scene, ours))
    steps += _old_ones(scene, ours, settings)
    ends_of_life = (_remaining_seconds(scene, item) for item in ours)
    again = [*judge.look_again, *(seconds for seconds in ends_of_life if seconds is not None and seconds > 0)]
    if judge.something_runs:
        again.append(settings.running_poll_seconds)
    if judge.something_ended:
        again.append(0.0)  # the next one's turn
    return PassPlan(steps=tuple(steps), look_again_seconds=min(again, default=None))


class _Judge:
    def __init__(self, scene: Scene, outcomes: Mapping[str, Outcome]) -> None:
        self._scene = scene
        self._outcomes = outcomes
        self.look_again: list[float] = []
        self.something_runs = False
        self.something_ended = False

    def judged(self, item: Operation, *, first_of: Operation | None) -> Iterator[Step]:
        verdict = self._verdict(item, first_of)
        if isinstance(verdict, Wait):
            ends = (verdict.look_again_seconds, window_of(item).left_seconds(self._scene.now_seconds))
            self.look_again += [end for end in ends if end is not None]
        self.something_runs |= isinstance(verdict, Start | GoOn)
        self.something_ended |= isinstance(verdict, Reject | Done | Fail)
        status = next_status(item, verdict, now_seconds=self._scene.now_seconds)
        if status != item.asked.status:
            yield WriteStatus(operation=item, status=status, note=note_of(item, verdict))
        if isinstance(verdict, GoOn) and verdict.effect is not None:
            yield DoEffect(operation=item, effect=verdict.effect)

    def _verdict(self, item: Operation, first_of: Operation | None) -> Verdict:
        scene, procedure = self._scene, PROCEDURES[item.asked.spec.type]
        if scene.group is None:
            return _without_group(scene, item)
        if item.phase is OperationPhase.RUNNING:
            return procedure.judge(scene, item, self._outcomes.get(item.uid, NOTHING_ASKED))
        if why := window_of(item).why_never(scene.now_seconds, waited_for=item.result.message):
            return Reject(message=why)
        beginning = procedure.begin(scene, item)
        is_dry = item.asked.spec.dry_run is DryRun.ALL
        if is_dry and isinstance(beginning, Start):
            return Done(message=f"dry run: {beginning.message}", figures=beginning.figures, plan=beginning.steps)
        is_next = first_of is None or item.uid == first_of.uid or _waits_for_its_time(scene, item)
        if first_of is not None and not is_next and not is_dry:
            return Wait(message=f"waits for {first_of.name}")
        return beginning


def _next(scene: Scene, ours: list[Operation]) -> Operation | None:
    """Return the running operation, or else the oldest whose time has come."""
    unfinished = [item for item in ours if not item.finished and item.asked.spec.dry_run is not DryRun.ALL]
    running = [item for item in unfinished if item.phase is OperationPhase.RUNNING]
    ready = [item for item in unfinished if not _waits_for_its_time(scene, item)]
    return next(iter(running + ready), None)


def _waits_for_its_time(scene: Scene, item: Operation) -> bool:
    return item.phase is OperationPhase.PENDING and too_early_seconds(item, scene.now_seconds) > 0


def _without_group(scene: Scene, item: Operation) -> Verdict:
    what = f"BrokerGroup {scene.key.name} does not exist in namespace {scene.key.namespace}"
    if item.phase is OperationPhase.RUNNING:
        return Fail(message=f"{what} any more")
    grace_seconds = created_seconds(item.raw) + GROUP_UNKNOWN_GRACE_SECONDS - scene.now_seconds
    return Wait(message=what, look_again_seconds=grace_seconds) if grace_seconds > 0 else Reject(message=what)


def _is_of_this_group(scene: Scene, item: Operation) -> bool:
    if being_deleted(item.raw):
        return False
    return scene.group is None or is_of(item.raw, scene.group)


def _adoption(scene: Scene, item: Operation) -> Iterator[Adopt]:
    if scene.group is None or being_deleted(scene.group):
        return
    uid = str(scene.group["metadata"].get("uid", ""))
    if all(owner.get("uid") != uid for owner in item.raw["metadata"].get("ownerReferences") or []):
        yield Adopt(operation=item, group_uid=uid)


def _old_ones(scene: Scene, ours: list[Operation], settings: OperationSettings) -> Iterator[Remove]:
    """Return the finished operations to delete: time to live over, or more than the history keeps."""
    finished = sorted(
        (item for item in ours if item.finished),
        key=lambda item: (item.completed_seconds or 0.0, item.order),
        reverse=True,
    )
    for index, item in enumerate(finished):
        remaining_seconds = _remaining_seconds(scene, item)
        if remaining_seconds is not None and remaining_seconds <= 0:
            yield Remove(operation=item, reason="ttlSecondsAfterFinished is over")
        elif index >= settings.history_limit:
            yield Remove(operation=item, reason=f"only the last {settings.history_limit} are kept")


def _remaining_seconds(scene: Scene, item: Operation) -> float | None:
    ttl_seconds = item.asked.spec.ttl_seconds_after_finished
    if not item.finished or ttl_seconds is None:
        return None
    return (item.completed_seconds or 0.0) + ttl_seconds - scene.now_seconds


PHASES: Final = {
    Wait: OperationPhase.PENDING,
    Start: OperationPhase.RUNNING,
    GoOn: OperationPhase.RUNNING,
    Done: OperationPhase.SUCCEEDED,
    Fail: OperationPhase.FAILED,
    Reject: OperationPhase.REJECTED,
}
MAX_MESSAGE = 4096


def next_status(operation: Operation, verdict: Verdict, *, now_seconds: float) -> OperationStatus:
    """Equal to the present one where nothing has changed, so that nothing is written."""
    before = operation.asked.status
    now = rfc3339(now_seconds)
    over = isinstance(verdict, Done | Fail | Reject)
    started_at = before.started_at if before else None
    return OperationStatus(
        phase=PHASES[type(verdict)],
        observed_generation=int(operation.raw["metadata"].get("generation", 0)),
        started_at=now if isinstance(verdict, Start) else started_at,
        completed_at=now if over else None,
        result=_result(operation, verdict),
        conditions=[_condition(operation, verdict, now=now)] if over else None,
    )


def _result(operation: Operation, verdict: Verdict) -> OperationResult:
    figures = _figures(operation, verdict)
    return OperationResult(
        message=verdict.message[:MAX_MESSAGE],
        from_broker_id=figures.from_broker_id or None,
        to_broker_id=figures.to_broker_id or None,
        epoch=figures.epoch,
        milliseconds=figures.milliseconds,
        phases=dict(figures.phases),
        plan=list(verdict.plan) if isinstance(verdict, Done) else [],
    )


def _figures(operation: Operation, verdict: Verdict) -> Figures:
    if isinstance(verdict, Wait | Reject):
        return NO_FIGURES
    if isinstance(verdict, GoOn) and verdict.figures is None:
        return Figures.so_far(operation.result)
    return verdict.figures or NO_FIGURES


def _condition(operation: Operation, verdict: Verdict, *, now: str) -> Condition:
    complete = isinstance(verdict, Done)
    return Condition(
        type=(OperationConditionType.COMPLETE if complete else OperationConditionType.FAILED).value,
        status=ConditionStatus.TRUE,
        reason=PHASES[type(verdict)].value,
        message=verdict.message[:MAX_MESSAGE],
        last_transition_time=now,
        observed_generation=int(operation.raw["metadata"].get("generation", 0)),
    )


def note_of(operation: Operation, verdict: Verdict) -> Note | None:
    """Return the Event for this verdict. None for a switchover's start and end: the controller plane posts those, with figures."""
    kind = operation.asked.spec.type
    message = f"{operation.name}: {verdict.message}"
    match verdict:
        case Reject():
            return Note(reason=f"{kind.value}Rejected", message=message, warning=True)
        case Fail():
            return Note(reason=f"{kind.value}Failed", message=message, warning=True)
        case Start() if kind is not OperationType.SWITCHOVER:
            return Note(reason=f"{kind.value}Started", message=message)
        case Done() if kind is not OperationType.SWITCHOVER and not verdict.plan:
            return Note(reason=f"{kind.value}Completed", message=message)
    return None
