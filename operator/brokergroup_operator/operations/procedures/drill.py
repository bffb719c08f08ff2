"""Drill: a failover is rehearsed and measured.

*Switchover*: the master is moved away and back, both planned. *KillMaster*: the master's pod is deleted without grace, as if its
process had died, and held by the fence's finalizer until it has: a failover without proof of the death would report that messages
may be lost. The new master stays master, and the drill is over when the killed member is in sync again.
A drill's progress is read from the record (the epoch, the master) and from the pod: whether it is older than the start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokergroup_operator.api.brokergroup_operation import DrillKind
from brokergroup_operator.operations.plan import Done, Fail, Figures, GoOn, KillPod, Reject, Start, SwitchMaster
from brokergroup_operator.operations.procedures.premises import (
    Procedure,
    at_start,
    born_too_late,
    claim_goes,
    first,
    group_is_not_there,
    master_changes,
    no_master,
    not_failover_safe,
    paused,
    seconds_running,
    unsafe,
)
from brokergroup_operator.operations.procedures.switchover import for_good, what_the_record_says
from brokergroup_operator.operations.scene import created_seconds, is_fenced

if TYPE_CHECKING:
    from brokergroup_operator.operations.plan import Beginning, Judgement, Outcome
    from brokergroup_operator.operations.scene import Operation, Scene

DEADLINE_SECONDS = 600.0
SWITCHOVER_DEADLINE_SECONDS = 60.0


def begin(scene: Scene, operation: Operation) -> Beginning:
    kill = _kind(operation) is DrillKind.KILL_MASTER
    if wait := master_changes(scene):
        return wait
    if objection := first(
        group_is_not_there(scene),
        paused(scene) if kill else "",
        no_master(scene),
        claim_goes(scene, (scene.master or 0,)) if kill else "",
    ):
        return Reject(message=objection)
    if not_now := unsafe(scene):
        return not_now
    master = scene.master or 0
    if kill and (wait := born_too_late(scene, (scene.pod(master),))):
        return wait
    if kill:
        return Start(
            message=f"kills broker {master}, the master",
            figures=at_start(scene),
            steps=(
                f"delete pod {scene.pod_name(master)} (broker {master}, the master) without grace",
                "wait for the failover",
                f"wait until broker {master} is in the SyncStateSet again; the new master stays",
            ),
        )
    return Start(
        message=f"moves the master away from broker {master} and back",
        figures=at_start(scene),
        steps=(
            f"switch over from broker {master} to the best candidate",
            "wait until the group is FailoverSafe again",
            f"switch back to broker {master}",
        ),
    )


def judge(scene: Scene, operation: Operation, outcome: Outcome) -> Judgement:
    if seconds_running(scene, operation) > DEADLINE_SECONDS:
        why = outcome.failed or operation.result.message
        return Fail(message=f"not within {DEADLINE_SECONDS:.0f} s: {why}", figures=_so_far(operation))
    if _kind(operation) is DrillKind.KILL_MASTER:
        return _judge_kill(scene, operation)
    return _judge_switchover(scene, operation, outcome)


def _judge_kill(scene: Scene, operation: Operation) -> Judgement:
    before = operation.result
    victim, epoch = before.from_broker_id or 0, before.epoch or 0
    if scene.epoch == epoch:
        pod, started_seconds = scene.pod(victim), operation.started_seconds or 0.0
        if pod is not None and created_seconds(pod) < started_seconds and not is_fenced(pod):
            # The start may be minutes old: an operator died before the kill, and a slave since.
            if why := first(
                group_is_not_there(scene), paused(scene), not_failover_safe(scene), claim_goes(scene, (victim,))
            ):
                return GoOn(message=f"waits: {why}")
            kill = KillPod(name=scene.pod_name(victim), uid=str(pod["metadata"].get("uid", "")))
            return GoOn(message=before.message, effect=kill)
        return GoOn(message=f"pod {scene.pod_name(victim)} is killed; waits for an election")
    # It may be heard as master before the change has ended, and what is noted before that lacks how long it took, for good.
    if scene.master is None or not scene.writable or master_changes(scene):
        return GoOn(message="waits for the new master to serve writes")
    measured = _first_measured(operation, what_the_record_says(scene, victim))
    if not (scene.is_in_sync(victim) and scene.is_alive(victim)):
        return GoOn(
            message=f"broker {measured.to_broker_id} took over{_in(measured)}; waits for broker {victim} to be in sync",
            figures=_kept(measured, home=victim, epoch=epoch),
        )
    return Done(
        message=f"broker {measured.to_broker_id} took over from broker {victim}{_in(measured)};"
        f" all in sync again after {seconds_running(scene, operation):.0f} s",
        figures=_kept(measured, home=victim, epoch=scene.epoch),
    )


def _judge_switchover(scene: Scene, operation: Operation, outcome: Outcome) -> Judgement:
    before = operation.result
    home, epoch = before.from_broker_id or 0, before.epoch or 0
    if outcome.refused:
        # The first leg: nothing was done. On the way back: not now, so again.
        nothing_done = scene.epoch == epoch and for_good(scene, operation)
        return Reject(message=outcome.refused) if nothing_done else _leg(scene, operation, outcome.refused)
    if outcome.running:
        return GoOn(message=before.message)
    if scene.epoch == epoch:
        return _leg(scene, operation, outcome.failed)
    if scene.master is None:
        return GoOn(message="waits for a master")
    figures = outcome.figures or what_the_record_says(scene, home)
    if scene.master != home:
        measured = _first_measured(operation, figures)
        return _leg(scene, operation, outcome.failed, figures=_kept(measured, home=home, epoch=epoch))
    there, back = before.milliseconds, figures.milliseconds
    longest = max((value for value in (there, back) if value is not None), default=None)
    return Done(
        message=f"from broker {home} to {before.to_broker_id or 'another'} ({_ms(there)}) and back ({_ms(back)})",
        figures=Figures(
            from_broker_id=home,
            to_broker_id=home,
            epoch=scene.epoch,
            milliseconds=longest,
            phases={
                **before.phases,
                **{f"back.{name}": value for name, value in figures.phases.items()},
            },
        ),
    )


def _leg(scene: Scene, operation: Operation, failed: str, *, figures: Figures | None = None) -> GoOn:
    """Begin one of the two switchovers, as soon as it is safe."""
    home = operation.result.from_broker_id or 0
    if why := first(group_is_not_there(scene), no_master(scene), not_failover_safe(scene)):
        return GoOn(message=f"waits: {why}", figures=figures)
    to = None if scene.master == home else home
    return GoOn(
        message=failed or operation.result.message,
        figures=figures,
        effect=SwitchMaster(
            from_broker_id=scene.master or 0, to_broker_id=to, deadline_seconds=SWITCHOVER_DEADLINE_SECONDS
        ),
    )


def _first_measured(operation: Operation, figures: Figures) -> Figures:
    """The figures that an earlier pass wrote down, if it did: a later change of master must not replace them."""
    if operation.result.to_broker_id is None:
        return figures
    return _so_far(operation)


def _so_far(operation: Operation) -> Figures:
    result = operation.result
    return Figures(
        from_broker_id=result.from_broker_id,
        to_broker_id=result.to_broker_id,
        epoch=result.epoch,
        milliseconds=result.milliseconds,
        phases=result.phases,
    )


def _kept(figures: Figures, *, home: int, epoch: int) -> Figures:
    return Figures(
        from_broker_id=home,
        to_broker_id=figures.to_broker_id,
        epoch=epoch,
        milliseconds=figures.milliseconds,
        phases=figures.phases,
    )


def _in(figures: Figures) -> str:
    return "" if figures.milliseconds is None else f" in {figures.milliseconds} ms"


def _ms(value: int | None) -> str:
    return "not measured" if value is None else f"{value} ms"


def _kind(operation: Operation) -> DrillKind:
    request = operation.asked.spec.drill
    assert request is not None, "the CRD demands the section of the type"
    return request.kind


PROCEDURE = Procedure(begin=begin, judge=judge)
