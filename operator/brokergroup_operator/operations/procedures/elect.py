"""Elect: make a replica master although it may lack acknowledged messages. For when no other replica will come back.

The only operation that can lose data, so it is refused while a master serves writes, and wants the group's name typed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from brokergroup_operator.operations.plan import Done, ElectUnclean, Fail, GoOn, Reject, Start
from brokergroup_operator.operations.procedures.premises import (
    Procedure,
    at_start,
    first,
    group_is_not_there,
    not_a_member,
    only_learns,
    seconds_running,
)
from brokergroup_operator.operations.procedures.switchover import what_the_record_says

if TYPE_CHECKING:
    from brokergroup_operator.api.brokergroup_operation import ElectRequest
    from brokergroup_operator.operations.plan import Beginning, Judgement, Outcome
    from brokergroup_operator.operations.scene import Operation, Scene

DEADLINE_SECONDS = 60.0


def begin(scene: Scene, operation: Operation) -> Beginning:
    request = _request(operation)
    target = request.to_broker_id
    if objection := first(
        group_is_not_there(scene),
        _not_acknowledged(scene, request),
        not_a_member(scene, target),
        only_learns(scene, target),
        _master_serves(scene),
        "" if scene.is_alive(target) else f"broker {target} is not alive: only a running broker can be elected",
    ):
        return Reject(message=objection)
    return Start(
        message=f"broker {target} is elected, whatever it lacks",
        figures=at_start(scene),
        steps=(
            f"broker {target} is elected with master epoch {scene.epoch + 1}, and is the whole SyncStateSet",
            f"the others truncate what broker {target} lacks: acknowledged messages among it are lost for good",
        ),
    )


def judge(scene: Scene, operation: Operation, outcome: Outcome) -> Judgement:
    target, before = _request(operation).to_broker_id, operation.result
    if outcome.refused:
        return Reject(message=outcome.refused)
    if scene.epoch > (before.epoch or 0) and scene.master is not None and not outcome.running:
        figures = replace(
            outcome.figures or what_the_record_says(scene, before.from_broker_id),
            from_broker_id=before.from_broker_id,
        )
        if scene.master != target:
            return Fail(message=f"broker {scene.master} became master, not broker {target}", figures=figures)
        return Done(message=f"broker {target} is master in epoch {scene.epoch}", figures=figures)
    if seconds_running(scene, operation) > DEADLINE_SECONDS:
        return Fail(message=f"not within {DEADLINE_SECONDS:.0f} s: {outcome.failed or 'no replica was elected'}")
    if outcome.running or outcome.figures is not None:
        return GoOn(message=before.message)
    return GoOn(message=outcome.failed or before.message, effect=ElectUnclean(to_broker_id=target))


def _not_acknowledged(scene: Scene, request: ElectRequest) -> str:
    if request.acknowledge_data_loss != scene.key.name:
        return f"acknowledgeDataLoss is {request.acknowledge_data_loss!r}, expected the name of the group, {scene.key.name!r}"
    return ""


def _master_serves(scene: Scene) -> str:
    if scene.master is not None and scene.writable:
        return f"broker {scene.master} is master and serves writes: an unclean election could only lose data; ask for a Switchover"
    return ""


def _request(operation: Operation) -> ElectRequest:
    request = operation.asked.spec.elect
    assert request is not None, "the CRD demands the section of the type"
    return request


PROCEDURE = Procedure(begin=begin, judge=judge)
