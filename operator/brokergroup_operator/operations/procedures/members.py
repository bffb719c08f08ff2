"""Restart, Rebuild, Decommission: pods or members are replaced. The reconcile plane does it; the end is judged here.

- *Restart*: every pod that is older than `status.startedAt` is outdated while the operation runs; the master's comes last.
- *Rebuild*: a member's volume is given up; a new broker id on a new volume copies the master
  (docs/concepts/architecture.md, rule 4).
- *Decommission*: a member leaves as in a scale in. If `spec.replicas` wants as many members, a new one takes its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokergroup_operator.operations.plan import Done, Fail, Figures, GoOn, Reject, Start
from brokergroup_operator.operations.procedures.premises import (
    Procedure,
    asked,
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
    from brokergroup_operator.operations.plan import Beginning, Judgement, Outcome
    from brokergroup_operator.operations.scene import Operation, Scene

# A member comes back on its own disk: it has to catch up with what it missed, not to copy everything.
RESTART_DEADLINE_SECONDS_PER_MEMBER = 3600.0
# The new member copies the whole log.
REBUILD_DEADLINE_SECONDS = 24 * 3600.0
DECOMMISSION_DEADLINE_SECONDS = 3600.0


def _begin_restart(scene: Scene, operation: Operation) -> Beginning:
    named = asked(operation.asked.spec.restart).broker_ids
    unknown = first(*(not_a_member(scene, broker_id) for broker_id in named))
    if objection := first(group_is_not_there(scene), paused(scene), unknown):
        return Reject(message=objection)
    wanted = _wanted(scene, operation)
    if objection := first(no_master(scene), claim_goes(scene, wanted)):
        return Reject(message=objection)
    if not_now := unsafe(scene, wanted) or born_too_late(scene, (scene.pod(broker_id) for broker_id in wanted)):
        return not_now
    return Start(
        message=f"restarts {_list(wanted)}",
        figures=at_start(scene),
        steps=tuple(_restart_step(scene, broker_id) for broker_id in wanted),
    )


def _restart_step(scene: Scene, broker_id: int) -> str:
    restart = f"restart pod {scene.pod_name(broker_id)} (broker {broker_id}) and wait until it is in sync"
    return f"switch the master over, then {restart}" if broker_id == scene.master else restart


def _judge_restart(scene: Scene, operation: Operation, outcome: Outcome) -> Judgement:  # noqa: ARG001 (asks nothing of the plane)
    wanted, started = _wanted(scene, operation), operation.started_seconds or 0.0
    waiting = [broker_id for broker_id in wanted if not _has_restarted(scene, broker_id, started)]
    progress = f"{len(wanted) - len(waiting)} of {len(wanted)} restarted and in sync; waits for {_list(waiting)}"
    return _judged(
        scene,
        operation,
        "" if wanted and not waiting else progress,
        deadline_seconds=RESTART_DEADLINE_SECONDS_PER_MEMBER * max(1, len(wanted)),
        done=f"restarted {_list(sorted(wanted))} in {seconds_running(scene, operation):.0f} s",
        to_broker_id=scene.master,
        hindrance=claim_goes(scene, waiting),
    )


def _has_restarted(scene: Scene, broker_id: int, started_seconds: float) -> bool:
    pod = scene.pod(broker_id)
    return (
        pod is not None and created_seconds(pod) >= started_seconds and pod_is_ready(pod) and scene.is_back(broker_id)
    )


def _wanted(scene: Scene, operation: Operation) -> list[int]:
    """Slaves first, the master last, as it will be done."""
    named = asked(operation.asked.spec.restart).broker_ids or scene.members
    return sorted(named, key=lambda broker_id: (broker_id == scene.master, broker_id))


def _list(broker_ids: list[int]) -> str:
    return ", ".join(f"broker {broker_id}" for broker_id in broker_ids)


def _begin_rebuild(scene: Scene, operation: Operation) -> Beginning:
    broker_id = asked(operation.asked.spec.rebuild).broker_id
    if objection := first(group_is_not_there(scene), paused(scene), not_a_member(scene, broker_id), no_master(scene)):
        return Reject(message=objection)
    own = (scene.pod(broker_id), scene.claim(broker_id))
    if not_now := unsafe(scene, (broker_id,)) or born_too_late(scene, own):
        return not_now
    pod = scene.pod_name(broker_id)
    return Start(
        message=f"gives up broker {broker_id} with its volume",
        figures=at_start(scene),
        steps=(
            *_hand_over(scene, broker_id),
            f"delete pod {pod} and claim {pod} WITH ITS DATA",
            "create a member with a new broker id on a new volume",
            "wait until it has copied the master's log and is in the SyncStateSet",
        ),
    )


def _hand_over(scene: Scene, broker_id: int) -> list[str]:
    is_master = broker_id == scene.master
    return [f"switch the master over to another member than broker {broker_id}"] if is_master else []


def _judge_rebuild(scene: Scene, operation: Operation, outcome: Outcome) -> Judgement:  # noqa: ARG001 (asks nothing of the plane)
    broker_id, new = asked(operation.asked.spec.rebuild).broker_id, _successor(scene, operation)
    took = f"{seconds_running(scene, operation):.0f} s"
    return _judged(
        scene,
        operation,
        _rebuild_waits_for(scene, operation, broker_id, new),
        deadline_seconds=REBUILD_DEADLINE_SECONDS,
        done=f"broker {new} took the place of broker {broker_id} in {took}",
        to_broker_id=new,
    )


def _rebuild_waits_for(scene: Scene, operation: Operation, broker_id: int, new: int | None) -> str:
    started_seconds = operation.started_seconds or 0.0
    pod = scene.pod_name(broker_id)
    for kind, obj in (("pod", scene.pods.get(pod)), ("claim", scene.claims.get(pod))):
        if obj is not None and created_seconds(obj) < started_seconds:
            return f"{kind} {pod} is still there"
    if new is None:
        return "no new member has registered yet"
    if not scene.is_back(new):
        return f"broker {new} copies the log"
    known = scene.record is not None and broker_id in scene.record.replicas
    return f"broker {broker_id} is still in the record" if known else ""


def _successor(scene: Scene, operation: Operation) -> int | None:
    """The member whose volume was made since the start: pods are restarted for other reasons too, claims are not."""
    started_seconds = operation.started_seconds or 0.0
    for broker_id in scene.members:
        volume = scene.volume(broker_id)
        if volume is not None and created_seconds(volume) >= started_seconds:
            return broker_id
    return None


def _begin_decommission(scene: Scene, operation: Operation) -> Beginning:
    broker_id = asked(operation.asked.spec.decommission).broker_id
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
            *_hand_over(scene, broker_id),
            f"take broker {broker_id} out of the SyncStateSet",
            f"delete pod {scene.pod_name(broker_id)}, and its claim if spec.storage.retention.whenScaled says so",
            f"clean broker {broker_id} from the record: its id is never used again",
            *([f"create a new member: spec.replicas is {scene.replicas}"] if replaced else []),
        ),
    )


def _judge_decommission(scene: Scene, operation: Operation, outcome: Outcome) -> Judgement:  # noqa: ARG001 (asks nothing of the plane)
    broker_id = asked(operation.asked.spec.decommission).broker_id
    return _judged(
        scene,
        operation,
        _decommission_waits_for(scene, broker_id),
        deadline_seconds=DECOMMISSION_DEADLINE_SECONDS,
        done=f"broker {broker_id} has left",
        to_broker_id=scene.master,
    )


def _decommission_waits_for(scene: Scene, broker_id: int) -> str:
    if scene.record is None:
        return "the record cannot be read"
    if broker_id == scene.record.master_broker_id:
        return f"broker {broker_id} is still master"
    if broker_id in scene.record.sync_state_set:
        return f"broker {broker_id} is still in the SyncStateSet"
    if scene.pod(broker_id) is not None:
        return f"pod {scene.pod_name(broker_id)} is still there"
    return f"broker {broker_id} is still in the record" if broker_id in scene.record.replicas else ""


def _judged(
    scene: Scene,
    operation: Operation,
    waits_for: str,
    *,
    deadline_seconds: float,
    done: str,
    to_broker_id: int | None,
    hindrance: str = "",
) -> Judgement:
    """`done` once nothing is waited for; until the deadline what is waited for, or what keeps it from going on."""
    passed_seconds = seconds_running(scene, operation)
    if not waits_for:
        figures = Figures(
            from_broker_id=operation.result.from_broker_id,
            to_broker_id=to_broker_id,
            epoch=scene.epoch,
            milliseconds=round(passed_seconds * 1000),
        )
        return Done(message=done, figures=figures)
    if passed_seconds > deadline_seconds:
        return Fail(message=f"not within {deadline_seconds:.0f} s: {waits_for}")
    return GoOn(message=first(group_is_not_there(scene), paused(scene), hindrance) or waits_for)


RESTART = Procedure(begin=_begin_restart, judge=_judge_restart)
REBUILD = Procedure(begin=_begin_rebuild, judge=_judge_rebuild)
DECOMMISSION = Procedure(begin=_begin_decommission, judge=_judge_decommission)
