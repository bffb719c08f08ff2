"""Restart: pods are made anew one by one, the master's after a switchover. The reconcile plane does it; its end is judged here.

The reconcile plane takes every pod that is older than `status.startedAt` for outdated while this operation runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokergroup_operator.operations.plan import Done, Fail, Figures, GoOn, Reject, Start
from brokergroup_operator.operations.procedures.premises import (
    Procedure,
    at_start,
    born_too_late,
    claim_goes,
    first,
    group_is_not_there,
    no_master,
    not_a_member,
    paused,
    seconds_running,
    unsafe,
)
from brokergroup_operator.operations.scene import created_seconds, pod_is_ready

if TYPE_CHECKING:
    from brokergroup_operator.api.brokergroup_operation import RestartRequest
    from brokergroup_operator.operations.plan import Beginning, Judgement, Outcome
    from brokergroup_operator.operations.scene import Operation, Scene

# A member comes back on its own disk: it has to catch up with what it missed, not to copy everything.
DEADLINE_SECONDS_PER_MEMBER = 3600.0


def begin(scene: Scene, operation: Operation) -> Beginning:
    named = _request(operation).broker_ids
    unknown = first(*(not_a_member(scene, broker_id) for broker_id in named))
    if objection := first(group_is_not_there(scene), paused(scene), unknown):
        return Reject(message=objection)
    wanted = _wanted(scene, operation)
    if objection := first(no_master(scene), claim_goes(scene, wanted)):
        return Reject(message=objection)
    if not_now := unsafe(scene, wanted):
        return not_now
    if wait := born_too_late(scene, (scene.pod(broker_id) for broker_id in wanted)):
        return wait
    return Start(
        message=f"restarts {_list(wanted)}",
        figures=at_start(scene),
        steps=tuple(_step(scene, broker_id) for broker_id in wanted),
    )


def _step(scene: Scene, broker_id: int) -> str:
    pod = scene.pod_name(broker_id)
    if broker_id == scene.master:
        return f"switch the master over, then restart pod {pod} (broker {broker_id}) and wait until it is in sync"
    return f"restart pod {pod} (broker {broker_id}) and wait until it is in sync"


def judge(scene: Scene, operation: Operation, outcome: Outcome) -> Judgement:  # noqa: ARG001 (asks nothing of the plane)
    wanted, passed_seconds = _wanted(scene, operation), seconds_running(scene, operation)
    started = operation.started_seconds or 0.0
    waiting = [broker_id for broker_id in wanted if not _is_back(scene, broker_id, started)]
    if wanted and not waiting:
        return Done(
            message=f"restarted {_list(sorted(wanted))} in {passed_seconds:.0f} s",
            figures=Figures(
                from_broker_id=operation.result.from_broker_id,
                to_broker_id=scene.master,
                epoch=scene.epoch,
                milliseconds=round(passed_seconds * 1000),
            ),
        )
    progress = f"{len(wanted) - len(waiting)} of {len(wanted)} restarted and in sync; waits for {_list(waiting)}"
    limit_seconds = DEADLINE_SECONDS_PER_MEMBER * max(1, len(wanted))
    if passed_seconds > limit_seconds:
        return Fail(message=f"not within {limit_seconds:.0f} s: {progress}")
    return GoOn(message=first(group_is_not_there(scene), paused(scene), claim_goes(scene, waiting)) or progress)


def _is_back(scene: Scene, broker_id: int, started_seconds: float) -> bool:
    pod = scene.pod(broker_id)
    return (
        pod is not None and created_seconds(pod) >= started_seconds and pod_is_ready(pod) and scene.is_back(broker_id)
    )


def _wanted(scene: Scene, operation: Operation) -> list[int]:
    """Slaves first, the master last, as it will be done."""
    named = _request(operation).broker_ids or scene.members
    return sorted(named, key=lambda broker_id: (broker_id == scene.master, broker_id))


def _list(broker_ids: list[int]) -> str:
    return ", ".join(f"broker {broker_id}" for broker_id in broker_ids)


def _request(operation: Operation) -> RestartRequest:
    request = operation.asked.spec.restart
    assert request is not None, "the CRD demands the section of the type"
    return request


PROCEDURE = Procedure(begin=begin, judge=judge)
