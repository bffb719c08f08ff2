"""Switchover: another member becomes master, planned, without losing what was acknowledged.

Begun only in a FailoverSafe group. Its end is read from the record: a master epoch above the one of the start, and another
master. So an operator that died in between finds out what happened, and asks again only if nothing did.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokergroup_operator.operations.plan import (
    Done,
    Fail,
    Figures,
    GoOn,
    Reject,
    Start,
    SwitchMaster,
    Wait,
    figures_of,
)
from brokergroup_operator.operations.procedures.premises import (
    Procedure,
    at_start,
    first,
    group_is_not_there,
    master_changes,
    no_master,
    not_a_member,
    not_failover_safe,
    only_learns,
    seconds_running,
    unsafe,
)
from brokergroup_operator.operations.scene import too_early_seconds

if TYPE_CHECKING:
    from brokergroup_operator.api.brokergroup_operation import SwitchoverRequest
    from brokergroup_operator.operations.plan import Beginning, Judgement, Outcome
    from brokergroup_operator.operations.scene import Operation, Scene

# A switchover ends by itself; the controller plane may report its end so much later than the deadline.
ANSWER_GRACE_SECONDS = 10.0
# A refused request is repeated for this long.
REFUSAL_PATIENCE_SECONDS = 2.0


def begin(scene: Scene, operation: Operation) -> Beginning:
    request = _request(operation)
    if (wait_seconds := too_early_seconds(operation, scene.now_seconds)) > 0:
        return Wait(message=f"not before {request.not_before}", look_again_seconds=wait_seconds)
    if obstacle := _obstacle(scene, request.to_broker_id):
        return obstacle
    target = request.to_broker_id
    to = "the best candidate" if target is None else f"broker {target}"
    return Start(
        message=f"from broker {scene.master} to {to}",
        figures=at_start(scene),
        steps=(
            f"broker {scene.master} stops acknowledging until every in-sync slave has all it has",
            f"{to} is elected with master epoch {scene.epoch + 1}",
            f"broker {scene.master} becomes slave; every slave follows the new master",
        ),
    )


def _obstacle(scene: Scene, target: int | None) -> Wait | Reject | Done | None:
    """Return why the switchover can't begin, or not now."""
    if wait := master_changes(scene):
        return wait
    if objection := first(group_is_not_there(scene), no_master(scene)):
        return Reject(message=objection)
    if target is not None:
        if target == scene.master:
            return Done(message=f"broker {target} is master already", figures=_now(scene))
        if objection := first(not_a_member(scene, target), only_learns(scene, target)):
            return Reject(message=objection)
    if not_now := unsafe(scene):
        return not_now
    objection = cannot_take_over(scene, target)
    return Reject(message=objection) if objection else None


def cannot_take_over(scene: Scene, target: int | None) -> str:
    """Return why the requested broker can't be the next master."""
    if target is None:
        return ""
    if not scene.is_in_sync(target):
        return f"broker {target} is not in the SyncStateSet"
    return "" if scene.is_alive(target) else f"broker {target} is not alive"


def judge(scene: Scene, operation: Operation, outcome: Outcome) -> Judgement:
    request, before = _request(operation), operation.result
    if outcome.refused and for_good(scene, operation):
        return Reject(message=outcome.refused)
    if outcome.figures is not None:
        return ended(outcome.figures, request.to_broker_id)
    if outcome.running:
        return _patiently(scene, operation, request)
    if scene.epoch > (before.epoch or 0) and scene.master not in (None, before.from_broker_id):
        return ended(what_the_record_says(scene, before.from_broker_id), request.to_broker_id)
    return _again(scene, operation, request, outcome)


def _again(scene: Scene, operation: Operation, request: SwitchoverRequest, outcome: Outcome) -> Judgement:
    """Nothing has happened yet, or what was tried was given up: (once more) as long as there is time."""
    remaining_seconds = request.deadline_seconds - seconds_running(scene, operation)
    obstacle = first(group_is_not_there(scene), no_master(scene), not_failover_safe(scene))
    if remaining_seconds <= 0:
        why = outcome.failed or obstacle or "the master did not change"
        return Fail(message=f"not within {request.deadline_seconds} s: {why}", figures=_now(scene))
    if obstacle:
        return GoOn(message=f"waits: {obstacle}")
    effect = SwitchMaster(
        from_broker_id=scene.master or 0, to_broker_id=request.to_broker_id, deadline_seconds=remaining_seconds
    )
    return GoOn(message=outcome.failed or outcome.refused or operation.result.message, effect=effect)


def for_good(scene: Scene, operation: Operation) -> bool:
    """Whether a refusal stands: another change of master may have begun in the moment in which this one was asked for."""
    return seconds_running(scene, operation) >= REFUSAL_PATIENCE_SECONDS and master_changes(scene) is None


def _patiently(scene: Scene, operation: Operation, request: SwitchoverRequest) -> Judgement:
    """Go on while it is under way, and fail at the deadline, should the controller plane not end it."""
    if seconds_running(scene, operation) > request.deadline_seconds + ANSWER_GRACE_SECONDS:
        why = "the controller plane has not finished"
        return Fail(message=f"not within {request.deadline_seconds} s: {why}", figures=_now(scene))
    return GoOn(message=operation.result.message)


def ended(figures: Figures, wanted: int | None) -> Done | Fail:
    if wanted is not None and figures.to_broker_id != wanted:
        return Fail(
            message=f"broker {figures.to_broker_id} became master, not broker {wanted}: another change came first",
            figures=figures,
        )
    took = "" if figures.milliseconds is None else f" in {figures.milliseconds} ms"
    text = f"from broker {figures.from_broker_id} to {figures.to_broker_id}, epoch {figures.epoch}{took}"
    return Done(message=text, figures=figures)


def what_the_record_says(scene: Scene, from_broker_id: int | None) -> Figures:
    """For a process that did not see it happen: the timeline if it is known, else the master of now."""
    timeline = scene.timeline_of(scene.epoch)
    if timeline is not None:
        return figures_of(timeline)
    return Figures(from_broker_id=from_broker_id, to_broker_id=scene.master, epoch=scene.epoch)


def _now(scene: Scene) -> Figures:
    return Figures(from_broker_id=scene.master, to_broker_id=scene.master, epoch=scene.epoch)


def _request(operation: Operation) -> SwitchoverRequest:
    request = operation.asked.spec.switchover
    assert request is not None, "the CRD demands the section of the type"
    return request


PROCEDURE = Procedure(begin=begin, judge=judge)
