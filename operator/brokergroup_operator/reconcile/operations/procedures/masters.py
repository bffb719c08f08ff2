"""Switchover, Elect, Drill: another member becomes master.

- *Switchover*: planned, in a FailoverSafe group. Its end is read from the record (a later epoch, another master), so an
  operator that takes over finds out what happened, and asks again if nothing did.
- *Elect*: a replica becomes master although it may lack acknowledged messages. Refused while a master serves writes.
- *Drill*: a failover is rehearsed and measured. *Switchover* moves the master away and back; *KillMaster* deletes the master's
  pod without grace, held by the fence's finalizer as proof of the death, and ends when the killed member is in sync again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from brokergroup_operator.api.brokergroup_operation import DrillKind
from brokergroup_operator.reconcile.decide.failover_safe import able_to_follow
from brokergroup_operator.reconcile.operations import plan as plans
from brokergroup_operator.reconcile.operations.procedures.premises import asked, first
from brokergroup_operator.reconcile.see.observed import is_fenced, uid

if TYPE_CHECKING:
    from brokergroup_operator.api.brokergroup_operation import OperationResult, SwitchoverRequest
    from brokergroup_operator.reconcile.operations.procedures.premises import Case


ELECT_DEADLINE_SECONDS = 60.0
# A switchover ends by itself; the controller plane may report its end so much later than the deadline.
ANSWER_GRACE_SECONDS = 10.0
# A refused request is repeated for this long.
REFUSAL_PATIENCE_SECONDS = 2.0


def begin_switchover(case: Case) -> plans.Beginning:
    request, master = asked(case.spec.switchover), case.seen.master
    target = request.to_broker_id
    if (wait_seconds := case.too_early_seconds) > 0:
        return plans.Wait(message=f"not before {request.not_before}", look_again_seconds=wait_seconds)
    if wait := case.master_changes():
        return wait
    if target is not None and target == master and not case.group_is_not_there():
        return plans.Done(message=f"broker {target} is master already", figures=_now(case))
    to = "the best candidate" if target is None else f"broker {target}"
    not_now = case.unsafe()
    return case.begun(
        case.group_is_not_there(),
        case.no_master(),
        "" if target is None else case.not_a_member(target),
        "" if target is None else case.only_learns(target),
        "" if target is None else case.to_be_stopped(target),
        "" if target is None or not_now else case.not_in_sync(target),
        not_now=not_now,
        message=f"from broker {master} to {to}",
        steps=(
            f"broker {master} stops acknowledging until every in-sync slave has all it has",
            f"{to} is elected with master epoch {case.seen.epoch + 1}",
            f"broker {master} becomes slave; every slave follows the new master",
        ),
    )


def judge_switchover(case: Case) -> plans.Judgement:
    request, before, outcome = asked(case.spec.switchover), case.before, case.outcome
    if outcome.refused and _for_good(case):
        return plans.Reject(message=outcome.refused)
    if outcome.figures is not None:
        return _ended(outcome.figures, request.to_broker_id)
    if outcome.running:
        # It ends by itself; it fails at the deadline, should the controller plane not end it.
        if case.running_seconds <= request.deadline_seconds + ANSWER_GRACE_SECONDS:
            return plans.GoOn(message=before.message)
        return _too_late(case, request.deadline_seconds, "the controller plane has not finished")
    if case.seen.epoch > (before.epoch or 0) and case.seen.master not in (None, before.from_broker_id):
        return _ended(case.as_recorded(), request.to_broker_id)
    return _again(case, request)


def _again(case: Case, request: SwitchoverRequest) -> plans.Judgement:
    """Nothing has happened yet, or what was tried was given up: (once more) as long as there is time."""
    outcome = case.outcome
    remaining_seconds = request.deadline_seconds - case.running_seconds
    obstacle = _unsafe_to_move(case)
    if remaining_seconds <= 0:
        return _too_late(case, request.deadline_seconds, outcome.failed or obstacle or "the master did not change")
    if obstacle:
        return plans.GoOn(message=f"waits: {obstacle}")
    effect = _switch(case, request.to_broker_id, deadline_seconds=remaining_seconds)
    return plans.GoOn(message=outcome.failed or outcome.refused or case.before.message, effect=effect)


def _unsafe_to_move(case: Case) -> str:
    return first(case.group_is_not_there(), case.no_master(), case.not_failover_safe())


def _switch(case: Case, to_broker_id: int | None, *, deadline_seconds: float) -> plans.SwitchMaster:
    """None: the controller plane chooses. Where brokers are to be stopped it might choose one of them."""
    if to_broker_id is None and case.seen.group.spec.maintenance.stopped_brokers:
        to_broker_id = next(iter(able_to_follow(case.seen)), None)
    return plans.SwitchMaster(
        from_broker_id=case.seen.master or 0, to_broker_id=to_broker_id, deadline_seconds=deadline_seconds
    )


def _for_good(case: Case) -> bool:
    """Whether a refusal stands: another change of master may have begun in the moment in which this one was asked for."""
    return case.running_seconds >= REFUSAL_PATIENCE_SECONDS and case.master_changes() is None


def _too_late(case: Case, deadline_seconds: int, why: str) -> plans.Fail:
    return plans.Fail(message=f"not within {deadline_seconds} s: {why}", figures=_now(case))


def _ended(figures: OperationResult, wanted: int | None) -> plans.Done | plans.Fail:
    if wanted is not None and figures.to_broker_id != wanted:
        return plans.Fail(
            message=f"broker {figures.to_broker_id} became master, not broker {wanted}: another change came first",
            figures=figures,
        )
    text = f"from broker {figures.from_broker_id} to {figures.to_broker_id}, epoch {figures.epoch}{_in(figures)}"
    return plans.Done(message=text, figures=figures)


def _now(case: Case) -> OperationResult:
    return plans.Figures(from_broker_id=case.seen.master, to_broker_id=case.seen.master, epoch=case.seen.epoch)


def begin_election(case: Case) -> plans.Beginning:
    """Return the start of an unclean election, or its rejection: `toBrokerId` must be a live voter; no master may serve writes.

    Rejected too unless `acknowledgeDataLoss` is the group's name: acknowledged messages that the broker lacks are lost.
    """
    request = asked(case.spec.elect)
    target, named, group = request.to_broker_id, request.acknowledge_data_loss, case.group
    return case.begun(
        case.group_is_not_there(),
        "" if named == group else f"acknowledgeDataLoss is {named!r}, expected the name of the group, {group!r}",
        case.not_a_member(target),
        case.only_learns(target),
        f"broker {case.seen.master} is master and serves writes: an unclean election could only lose data; ask for a Switchover"
        if _serves(case)
        else "",
        "" if case.view(target).heard else f"broker {target} is not alive: only a running broker can be elected",
        message=f"broker {target} is elected, whatever it lacks",
        steps=(
            f"broker {target} is elected with master epoch {case.seen.epoch + 1}, and is the whole SyncStateSet",
            f"the others truncate what broker {target} lacks: acknowledged messages among it are lost for good",
        ),
    )


def judge_election(case: Case) -> plans.Judgement:
    target, before, outcome = asked(case.spec.elect).to_broker_id, case.before, case.outcome
    if outcome.refused:
        return plans.Reject(message=outcome.refused)
    if case.seen.epoch > (before.epoch or 0) and case.seen.master is not None and not outcome.running:
        figures = replace(outcome.figures or case.as_recorded(), from_broker_id=before.from_broker_id)
        if case.seen.master != target:
            return plans.Fail(message=f"broker {case.seen.master} became master, not broker {target}", figures=figures)
        return plans.Done(message=f"broker {target} is master in epoch {case.seen.epoch}", figures=figures)
    if case.running_seconds > ELECT_DEADLINE_SECONDS:
        return plans.Fail(
            message=f"not within {ELECT_DEADLINE_SECONDS:.0f} s: {outcome.failed or 'no replica was elected'}"
        )
    if outcome.running or outcome.figures is not None:
        return plans.GoOn(message=before.message)
    return plans.GoOn(message=outcome.failed or before.message, effect=plans.ElectUnclean(to_broker_id=target))


def _serves(case: Case) -> bool:
    """Whether a write can be acknowledged: the master has confirmed its role, and enough members are in sync."""
    return case.seen.master is not None and case.seen.snapshot is not None and case.seen.snapshot.writable


DRILL_DEADLINE_SECONDS = 600.0
DRILL_SWITCHOVER_DEADLINE_SECONDS = 60.0


def begin_drill(case: Case) -> plans.Beginning:
    if wait := case.master_changes():
        return wait
    master = case.seen.master or 0
    if asked(case.spec.drill).kind is DrillKind.KILL_MASTER:
        return case.begun(
            case.group_is_not_there(),
            case.paused(),
            case.no_master(),
            case.claim_goes((master,)),
            not_now=case.unsafe() or case.born_too_late((case.pod(master),)),
            message=f"kills broker {master}, the master",
            steps=(
                f"delete pod {case.pod_name(master)} (broker {master}, the master) without grace",
                "wait for the failover",
                f"wait until broker {master} is in the SyncStateSet again; the new master stays",
            ),
        )
    return case.begun(
        case.group_is_not_there(),
        case.no_master(),
        not_now=case.unsafe(),
        message=f"moves the master away from broker {master} and back",
        steps=(
            f"switch over from broker {master} to the best candidate",
            "wait until the group is FailoverSafe again",
            f"switch back to broker {master}",
        ),
    )


def judge_drill(case: Case) -> plans.Judgement:
    if case.running_seconds > DRILL_DEADLINE_SECONDS:
        why = case.outcome.failed or case.before.message
        return plans.Fail(message=f"not within {DRILL_DEADLINE_SECONDS:.0f} s: {why}", figures=case.before)
    return _judge_kill(case) if asked(case.spec.drill).kind is DrillKind.KILL_MASTER else _judge_there_and_back(case)


def _judge_kill(case: Case) -> plans.Judgement:
    before = case.before
    victim, epoch = before.from_broker_id or 0, before.epoch or 0
    if case.seen.epoch == epoch:
        pod = case.pod(victim)
        if pod is None or case.is_new(pod) or is_fenced(pod):
            return plans.GoOn(message=f"pod {case.pod_name(victim)} is killed; waits for an election")
        # The start may be minutes old: an operator died before the kill, and a slave since.
        if why := first(case.group_is_not_there(), case.paused(), case.not_failover_safe(), case.claim_goes((victim,))):
            return plans.GoOn(message=f"waits: {why}")
        return plans.GoOn(message=before.message, effect=plans.KillPod(name=case.pod_name(victim), uid=uid(pod)))
    # It may be heard as master before the change has ended, and what is noted before that lacks how long it took, for good.
    if not _serves(case) or case.master_changes():
        return plans.GoOn(message="waits for the new master to serve writes")
    measured = replace(_first_measured(case, case.as_recorded()), from_broker_id=before.from_broker_id)
    took_over = f"broker {measured.to_broker_id} took over"
    if case.not_in_sync(victim):
        return plans.GoOn(
            message=f"{took_over}{_in(measured)}; waits for broker {victim} to be in sync",
            figures=replace(measured, epoch=epoch),
        )
    return plans.Done(
        message=f"{took_over} from broker {victim}{_in(measured)}; all in sync again after {case.running_seconds:.0f} s",
        figures=replace(measured, epoch=case.seen.epoch),
    )


def _judge_there_and_back(case: Case) -> plans.Judgement:
    before, outcome = case.before, case.outcome
    home, epoch = before.from_broker_id or 0, before.epoch or 0
    if outcome.refused:
        # The first leg: nothing was done. On the way back: not now, so again.
        nothing_done = case.seen.epoch == epoch and _for_good(case)
        return plans.Reject(message=outcome.refused) if nothing_done else _leg(case, outcome.refused)
    if outcome.running:
        return plans.GoOn(message=before.message)
    if case.seen.epoch == epoch:
        return _leg(case, outcome.failed)
    if case.seen.master is None:
        return plans.GoOn(message="waits for a master")
    figures = outcome.figures or case.as_recorded()
    if case.seen.master != home:
        measured = _first_measured(case, figures)
        return _leg(case, outcome.failed, figures=replace(measured, from_broker_id=before.from_broker_id, epoch=epoch))
    there, back = before.milliseconds, figures.milliseconds
    return plans.Done(
        message=f"from broker {home} to {before.to_broker_id or 'another'} ({_ms(there)}) and back ({_ms(back)})",
        figures=plans.Figures(
            from_broker_id=before.from_broker_id,
            to_broker_id=before.from_broker_id,
            epoch=case.seen.epoch,
            milliseconds=max((value for value in (there, back) if value is not None), default=None),
            phases={**before.phases, **{f"back.{name}": value for name, value in figures.phases.items()}},
        ),
    )


def _leg(case: Case, failed: str, *, figures: OperationResult | None = None) -> plans.GoOn:
    """Begin one of the two switchovers, as soon as it is safe."""
    home = case.before.from_broker_id or 0
    if why := _unsafe_to_move(case):
        return plans.GoOn(message=f"waits: {why}", figures=figures)
    effect = _switch(
        case, None if case.seen.master == home else home, deadline_seconds=DRILL_SWITCHOVER_DEADLINE_SECONDS
    )
    return plans.GoOn(message=failed or case.before.message, figures=figures, effect=effect)


def _first_measured(case: Case, figures: OperationResult) -> OperationResult:
    """The figures that an earlier pass wrote down, if it did: a later change of master must not replace them."""
    return figures if case.before.to_broker_id is None else case.before


def _in(figures: OperationResult) -> str:
    return "" if figures.milliseconds is None else f" in {figures.milliseconds} ms"


def _ms(value: int | None) -> str:
    return "not measured" if value is None else f"{value} ms"
