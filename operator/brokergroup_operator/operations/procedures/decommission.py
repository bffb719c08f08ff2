"""Decommission: a member leaves for good, as in a scale in. The reconcile plane does it; its end is judged here.

Where `spec.replicas` still wants as many members, a new one takes its place; lower it to have one fewer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokergroup_operator.operations.plan import Done, Fail, Figures, GoOn, Reject, Start
from brokergroup_operator.operations.procedures.premises import (
    Procedure,
    at_start,
    first,
    group_is_not_there,
    no_master,
    not_a_member,
    paused,
    seconds_running,
    unsafe,
)

if TYPE_CHECKING:
    from brokergroup_operator.api.brokergroup_operation import DecommissionRequest
    from brokergroup_operator.operations.plan import Beginning, Judgement, Outcome
    from brokergroup_operator.operations.scene import Operation, Scene

DEADLINE_SECONDS = 3600.0


def begin(scene: Scene, operation: Operation) -> Beginning:
    broker_id = _request(operation).broker_id
    if objection := first(
        group_is_not_there(scene),
        paused(scene),
        not_a_member(scene, broker_id),
        f"broker {broker_id} is the only member" if scene.members == [broker_id] else "",
        no_master(scene),
    ):
        return Reject(message=objection)
    if not_now := unsafe(scene, (broker_id,)):
        return not_now
    replaced = len(scene.members) <= scene.replicas
    return Start(
        message=f"removes broker {broker_id}",
        figures=at_start(scene),
        steps=(
            *(
                [f"switch the master over to another member than broker {broker_id}"]
                if broker_id == scene.master
                else []
            ),
            f"take broker {broker_id} out of the SyncStateSet",
            f"delete pod {scene.pod_name(broker_id)}, and its claim if spec.storage.retention.whenScaled says so",
            f"clean broker {broker_id} from the record: its id is never used again",
            *([f"create a new member: spec.replicas is {scene.replicas}"] if replaced else []),
        ),
    )


def judge(scene: Scene, operation: Operation, outcome: Outcome) -> Judgement:  # noqa: ARG001 (asks nothing of the plane)
    broker_id, passed_seconds = _request(operation).broker_id, seconds_running(scene, operation)
    progress = _waits_for(scene, broker_id)
    if not progress:
        return Done(
            message=f"broker {broker_id} has left",
            figures=Figures(
                from_broker_id=operation.result.from_broker_id,
                to_broker_id=scene.master,
                epoch=scene.epoch,
                milliseconds=round(passed_seconds * 1000),
            ),
        )
    if passed_seconds > DEADLINE_SECONDS:
        return Fail(message=f"not within {DEADLINE_SECONDS:.0f} s: {progress}")
    return GoOn(message=first(group_is_not_there(scene), paused(scene)) or progress)


def _waits_for(scene: Scene, broker_id: int) -> str:
    if scene.record is None:
        return "the record cannot be read"
    if broker_id == scene.record.master_broker_id:
        return f"broker {broker_id} is still master"
    if broker_id in scene.record.sync_state_set:
        return f"broker {broker_id} is still in the SyncStateSet"
    if scene.pod(broker_id) is not None:
        return f"pod {scene.pod_name(broker_id)} is still there"
    return f"broker {broker_id} is still in the record" if broker_id in scene.record.replicas else ""


def _request(operation: Operation) -> DecommissionRequest:
    request = operation.asked.spec.decommission
    assert request is not None, "the CRD demands the section of the type"
    return request


PROCEDURE = Procedure(begin=begin, judge=judge)
