"""Switchover, Elect, Drill: another member becomes master.

- *Switchover*: planned, in a FailoverSafe group. Its end is read from the record (a later epoch, another master), so an
  operator that takes over finds out what happened, and asks again if nothing did.
- *Elect*: a replica becomes master although it may lack acknowledged messages. Refused while a master serves writes.
- *Drill*: a failover is rehearsed and measured. *Switchover* moves the master away and back; *KillMaster* deletes the master's
  pod without grace, held by the fence's finalizer as proof of the death, and ends when the killed member is in sync again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from brokergroup_operator.api.brokergroup_operation import DrillKind
from brokergroup_operator.operations.plan import (
    Done,
    ElectUnclean,
    Fail,
    Figures,
    GoOn,
    KillPod,
    Reject,
    Start,
    SwitchMaster,
    Wait,
    figures_of,
)
from brokergroup_operator.operations.procedures.premises import (
    Procedure,
    asked,
    at_start,
    born_too_late,
    claim_goes,
    first,
    group_is_not_there,
    master_changes,
    no_master,
    not_a_member,
    not_failover_safe,
    only_learns,
    paused,
    seconds_running,
    unsafe,
)
from brokergroup_operator.operations.scene import created_seconds, is_fenced, too_early_seconds

if TYPE_CHECKING:
    from brokergroup_operator.api.brokergroup_operation import ElectRequest, SwitchoverRequest
    from brokergroup_operator.operations.plan import Beginning, Judgement, Outcome
    from brokergroup_operator.operations.scene import Operation, Scene


ELECT_DEADLINE_SECONDS = 60.0
# A switchover ends by itself; the controller plane may report its end so much later than the deadline.
ANSWER_GRACE_SECONDS = 10.0
# A refused request is repeated for this long.
REFUSAL_PATIENCE_SECONDS = 2.0


def _begin_switchover(scene: Scene, operation: Operation) -> Beginning:
    request = asked(operation.asked.spec.switchover)
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
    if target is None:
        return ""
    if not scene.is_in_sync(target):
        return f"broker {target} is not in the SyncStateSet"
    return "" if scene.is_alive(target) else f"broker {target} is not alive"


def _judge_switchover(scene: Scene, operation: Operation, outcome: Outcome) -> Judgement:
    request, before = asked(operation.asked.spec.switchover), operation.result
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


def _begin_election(scene: Scene, operation: Operation) -> Beginning:
    request = asked(operation.asked.spec.elect)
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


def _judge_election(scene: Scene, operation: Operation, outcome: Outcome) -> Judgement:
    target, before = asked(operation.asked.spec.elect).to_broker_id, operation.result
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
    if seconds_running(scene, operation) > ELECT_DEADLINE_SECONDS:
        return Fail(message=f"not within {ELECT_DEADLINE_SECONDS:.0f} s: {outcome.failed or 'no replica was elected'}")
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


SWITCHOVER = Procedure(begin=_begin_switchover, judge=_judge_switchover)
ELECT = Procedure(begin=_begin_election, judge=_judge_election)


DRILL_DEADLINE_SECONDS = 600.0
DRILL_SWITCHOVER_DEADLINE_SECONDS = 60.0


def _begin_drill(scene: Scene, operation: Operation) -> Beginning:
    kill = asked(operation.asked.spec.drill).kind is DrillKind.KILL_MASTER
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


def _judge_drill(scene: Scene, operation: Operation, outcome: Outcome) -> Judgement:
    if seconds_running(scene, operation) > DRILL_DEADLINE_SECONDS:
        why = outcome.failed or operation.result.message
        return Fail(
            message=f"not within {DRILL_DEADLINE_SECONDS:.0f} s: {why}", figures=Figures.so_far(operation.result)
        )
    if asked(operation.asked.spec.drill).kind is DrillKind.KILL_MASTER:
        return _judge_kill(scene, operation)
    return _judge_there_and_back(scene, operation, outcome)


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
            figures=replace(measured, from_broker_id=victim, epoch=epoch),
        )
    return Done(
        message=f"broker {measured.to_broker_id} took over from broker {victim}{_in(measured)};"
        f" all in sync again after {seconds_running(scene, operation):.0f} s",
        figures=replace(measured, from_broker_id=victim, epoch=scene.epoch),
    )


def _judge_there_and_back(scene: Scene, operation: Operation, outcome: Outcome) -> Judgement:
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
        return _leg(scene, operation, outcome.failed, figures=replace(measured, from_broker_id=home, epoch=epoch))
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
            from_broker_id=scene.master or 0, to_broker_id=to, deadline_seconds=DRILL_SWITCHOVER_DEADLINE_SECONDS
        ),
    )


def _first_measured(operation: Operation, figures: Figures) -> Figures:
    """The figures that an earlier pass wrote down, if it did: a later change of master must not replace them."""
    return figures if operation.result.to_broker_id is None else Figures.so_far(operation.result)


def _in(figures: Figures) -> str:
    return "" if figures.milliseconds is None else f" in {figures.milliseconds} ms"


def _ms(value: int | None) -> str:
    return "not measured" if value is None else f"{value} ms"


DRILL = Procedure(begin=_begin_drill, judge=_judge_drill)
