"""The status of an operation after a verdict, and the Event for it: pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokergroup_operator.api.brokergroup_operation import (
    OperationConditionType,
    OperationPhase,
    OperationResult,
    OperationStatus,
    OperationType,
)
from brokergroup_operator.api.brokergroup_status import Condition, ConditionStatus
from brokergroup_operator.operations.plan import Note
from brokergroup_operator.operations.scene import rfc3339
from brokergroup_operator.operations.verdicts import NO_FIGURES, Done, Fail, Figures, GoOn, Reject, Start, Wait

if TYPE_CHECKING:
    from brokergroup_operator.operations.scene import Operation
    from brokergroup_operator.operations.verdicts import Verdict

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
        kept = operation.result
        return Figures(
            from_broker_id=kept.from_broker_id,
            to_broker_id=kept.to_broker_id,
            epoch=kept.epoch,
            milliseconds=kept.milliseconds,
            phases=kept.phases,
        )
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
