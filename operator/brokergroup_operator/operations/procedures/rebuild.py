"""Rebuild: give up a member's volume with its data; a new broker id on a new volume copies the master.

The reconcile plane does it (after a switchover, if the member is master); its end is judged here. The id is never used
again: a broker on another disk is another broker (docs/concepts/architecture.md, rule 4).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokergroup_operator.operations.plan import Done, Fail, Figures, GoOn, Reject, Start
from brokergroup_operator.operations.procedures.premises import (
    Procedure,
    at_start,
    born_too_late,
    first,
    group_is_not_there,
    no_master,
    not_a_member,
    paused,
    seconds_running,
    unsafe,
)
from brokergroup_operator.operations.scene import created_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.brokergroup_operation import RebuildRequest
    from brokergroup_operator.operations.plan import Beginning, Judgement, Outcome
    from brokergroup_operator.operations.scene import Operation, Scene

# The new member copies the whole log.
DEADLINE_SECONDS = 24 * 3600.0


def begin(scene: Scene, operation: Operation) -> Beginning:
    broker_id = _request(operation).broker_id
    if objection := first(
        group_is_not_there(scene),
        paused(scene),
        not_a_member(scene, broker_id),
        no_master(scene),
    ):
        return Reject(message=objection)
    if not_now := unsafe(scene, (broker_id,)):
        return not_now
    if wait := born_too_late(scene, (scene.pod(broker_id), scene.claim(broker_id))):
        return wait
    pod = scene.pod_name(broker_id)
    steps = [f"switch the master over to another member than broker {broker_id}"] if broker_id == scene.master else []
    return Start(
        message=f"gives up broker {broker_id} with its volume",
        figures=at_start(scene),
        steps=(
            *steps,
            f"delete pod {pod} and claim {pod} WITH ITS DATA",
            "create a member with a new broker id on a new volume",
            "wait until it has copied the master's log and is in the SyncStateSet",
        ),
    )


def judge(scene: Scene, operation: Operation, outcome: Outcome) -> Judgement:  # noqa: ARG001 (asks nothing of the plane)
    broker_id, passed_seconds = _request(operation).broker_id, seconds_running(scene, operation)
    progress = _waits_for(scene, operation, broker_id)
    if not progress:
        new = _successor(scene, operation)
        return Done(
            message=f"broker {new} took the place of broker {broker_id} in {passed_seconds:.0f} s",
            figures=Figures(
                from_broker_id=operation.result.from_broker_id,
                to_broker_id=new,
                epoch=scene.epoch,
                milliseconds=round(passed_seconds * 1000),
            ),
        )
    if passed_seconds > DEADLINE_SECONDS:
        return Fail(message=f"not within {DEADLINE_SECONDS:.0f} s: {progress}")
    return GoOn(message=first(group_is_not_there(scene), paused(scene)) or progress)


def _waits_for(scene: Scene, operation: Operation, broker_id: int) -> str:
    """Return what is still missing, or the empty text."""
    started_seconds = operation.started_seconds or 0.0
    pod = scene.pod_name(broker_id)
    for kind, objects in (("pod", scene.pods), ("claim", scene.claims)):
        if _older(objects, pod, started_seconds):
            return f"{kind} {pod} is still there"
    new = _successor(scene, operation)
    if new is None:
        return "no new member has registered yet"
    if not scene.is_back(new):
        return f"broker {new} copies the log"
    known = scene.record is not None and broker_id in scene.record.replicas
    return f"broker {broker_id} is still in the record" if known else ""


def _older(objects: Mapping[str, JsonObject], name: str, started_seconds: float) -> bool:
    obj = objects.get(name)
    return obj is not None and created_seconds(obj) < started_seconds


def _successor(scene: Scene, operation: Operation) -> int | None:
    """The member whose volume was made since the start: pods are restarted for other reasons too, claims are not."""
    started_seconds = operation.started_seconds or 0.0
    for broker_id in scene.members:
        volume = scene.volume(broker_id)
        if volume is not None and created_seconds(volume) >= started_seconds:
            return broker_id
    return None


def _request(operation: Operation) -> RebuildRequest:
    request = operation.asked.spec.rebuild
    assert request is not None, "the CRD demands the section of the type"
    return request


PROCEDURE = Procedure(begin=begin, judge=judge)
