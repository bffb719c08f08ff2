"""What is done voluntarily in this pass, out of all that is wanted, and by which actions: pure, and the one place that orders it.

A running member that no controller hears comes first; then the slave that a Backup stops; then a drain, since `kubectl drain` waits
for it; then a member that leaves; then a broker that is to be held stopped; then ids whose disk is gone; then the rolling update.
While the group is paused, none of these. While a change of master is under way or the group is not FailoverSafe, no member that
counts is stopped or removed. Outside the windows of `updateStrategy`, a member that counts is replaced only if a user asks for it,
and mastership moves only off a drained node.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from brokergroup_operator.api.broker_keys import ACCEPTS_SENDS_FROM, MINIMUM, PERMISSION, QUIET_MINIMUM
from brokergroup_operator.api.brokergroup_status import Reason
from brokergroup_operator.api.durability import acknowledgement_rule
from brokergroup_operator.kube.resources import PODS
from brokergroup_operator.observe.timeline import Cause
from brokergroup_operator.reconcile import identity
from brokergroup_operator.reconcile import plan as plans
from brokergroup_operator.reconcile.decide import (
    claims,
    deletion,
    retiring,
    scale_in,
    silent_members,
    stopping,
    tls_order,
    windows,
)
from brokergroup_operator.reconcile.decide import rollout as rollouts
from brokergroup_operator.reconcile.decide.backup_hold import backup_step
from brokergroup_operator.reconcile.decide.configuration_drift import drifted_keys
from brokergroup_operator.reconcile.decide.failover_safe import able_to_follow, failover_safe, mastership_step
from brokergroup_operator.reconcile.other_groups import Turn, turn_of
from brokergroup_operator.reconcile.plan import Step, Verb, Verdict, no
from brokergroup_operator.reconcile.render import broker_config
from brokergroup_operator.reconcile.see import observed
from brokergroup_operator.reconcile.see.members import Standing, membership, standings

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from brokergroup_operator.api.brokergroup import BrokerGroup
    from brokergroup_operator.reconcile.decide.configuration_drift import Drift
    from brokergroup_operator.reconcile.identity import Member
    from brokergroup_operator.reconcile.see.observed import Observed
    from brokergroup_operator.reconcile.settings import ReconcileSettings
    from brokergroup_operator.records.store import GroupKey


LEFT_TO_A_PERSON = frozenset({Reason.WAITING_FOR_PERSON, Reason.CLAIM_BEING_DELETED, Reason.AUTHORITIES_HELD})
# A group whose update waits for these, perhaps for days, lets other groups roll meanwhile.
GIVES_TURN_BACK = LEFT_TO_A_PERSON | {Reason.OUTSIDE_WINDOW}
# Of the groups that roll before this one, so many are named.
NAMED = 3


@dataclass(frozen=True, kw_only=True)
class Course:
    """What was found, and `steps`, which are taken now. The other steps are for the conditions."""

    standings: Mapping[int, Standing]
    safe: Verdict
    drifts: tuple[Drift, ...] = ()
    outdated: tuple[rollouts.Outdated, ...] = ()
    leaver: Standing | None = None
    repairing: Step | None = None
    leaving: Step | None = None
    backing_up: Step | None = None
    moving: Step | None = None
    stopping: Step | None = None
    forgetting: Step | None = None
    rollout: tuple[Step, ...] = ()
    turn: Turn = Turn.NONE
    steps: tuple[Step, ...] = ()
    # When the next window of `updateStrategy` opens; None while one is open, and while the group is paused.
    opens_at: dt.datetime | None = None

    @property
    def outside_window(self) -> Step | None:
        """The first step that waits for a window."""
        return next((step for step in self.wanted if step.reason is Reason.OUTSIDE_WINDOW), None)

    @property
    def is_updating(self) -> bool:
        """Whether outdated pods are replaced as soon as the members allow it: within a window, or begun, or asked for."""
        asked_for = any(item.why in rollouts.ASKED_FOR for item in self.outdated)
        return bool(self.outdated) and (self.opens_at is None or self.turn is Turn.HOLDS or asked_for)

    @property
    def first(self) -> tuple[Step, ...]:
        """The steps that were found and come before the rollout, in the order in which they are taken."""
        found = (self.repairing, self.backing_up, self.moving, self.leaving, self.stopping, self.forgetting)
        return tuple(step for step in found if step is not None)

    @property
    def wanted(self) -> tuple[Step, ...]:
        return (*self.first, *self.rollout)

    def runs(self, broker_id: int) -> bool:
        """Whether the pod of this member is made if it is missing: not while the member leaves, nor while its store is copied."""
        copied = self.backing_up.member if self.backing_up is not None else None
        if copied is not None and copied.broker_id == broker_id:
            return False
        if self.leaver is None or self.leaver.member.broker_id != broker_id or self.leaving is None:
            return True
        return self.leaving.verb in {Verb.REFUSE, Verb.SWITCH}


def set_course(seen: Observed, settings: ReconcileSettings) -> Course:
    known, drifts = standings(seen), drifted_keys(seen, settings)
    safe = failover_safe(seen, drifts)
    if seen.group.spec.maintenance.hibernated:
        steps = tuple(deletion.hibernation_steps(seen))
        return Course(standings=known, safe=safe, steps=() if seen.group.spec.maintenance.paused else steps)
    may_step = _at_rest(seen, safe)
    backing_up = backup_step(seen, known, may_step)
    # A stopped member would be the first to leave, and its claim is read.
    leaver = scale_in.leaving(seen) if backing_up is None else None
    staying = {broker_id: one for broker_id, one in known.items() if one is not leaver}
    leaving = None
    if leaver is not None:
        leaving = scale_in.leaving_step(seen, leaver, staying=len(staying), safe=may_step.holds)
    # One that can't leave is updated like any other: it may be what a broken spec has left the group without writes for.
    refused = leaver if leaving is not None and leaving.verb is Verb.REFUSE else None
    updated = known if refused is not None else staying
    outdated = rollouts.outdated_members(seen, [one.member for one in updated.values()], settings)
    due = rollouts.due_now(outdated, seen.group.spec.update_strategy)
    awaited = rollouts.members_awaited(seen, updated, due, refused)
    course = Course(
        standings=known,
        safe=safe,
        drifts=drifts,
        outdated=tuple(outdated),
        leaver=leaver,
        repairing=tls_order.keeping_pods(seen.group, silent_members.repair_step(seen, staying)),
        leaving=leaving,
        backing_up=tls_order.keeping_pods(seen.group, backing_up),
        moving=_moving(seen, may_step, {one.member.broker_id for one in due} | _going_by_operation(seen, leaving)),
        stopping=tls_order.keeping_pods(seen.group, stopping.stopping_step(seen, staying, may_step)),
        forgetting=scale_in.forgetting_step(seen),
        rollout=tuple(
            rollouts.rollout_steps(seen, updated, outdated, _may_update(seen, updated, due, drifts, may_step), awaited)
        ),
    )
    if seen.group.spec.maintenance.paused or observed.being_deleted(seen.group_object):
        return course
    course = _in_turn(seen, course, awaited)
    return replace(course, steps=_chosen(course), opens_at=windows.opening_now(seen).opens_at)


def _may_update(
    seen: Observed,
    staying: Mapping[int, Standing],
    due: Sequence[rollouts.Outdated],
    drifts: Sequence[Drift],
    may_step: Verdict,
) -> Verdict:
    """FailoverSafe, where brokers count whose pods only their own update makes ready: nothing else could begin that update."""
    serving = [one for one in (item.member.broker_id for item in due) if staying[one].lacks_readiness]
    return _at_rest(seen, failover_safe(seen, drifts, serving=serving)) if serving else may_step


def _going_by_operation(seen: Observed, leaving: Step | None) -> set[int]:
    """The member that an operation makes leave: mastership given to it, as the preferred one say, would be taken away at once.

    A lower number of replicas spares the master instead, whichever it is.
    """
    if leaving is None or leaving.member is None or leaving.verb is Verb.REFUSE:
        return set()
    return {leaving.member.broker_id} & {scale_in.named(seen)}


def _moving(seen: Observed, may_step: Verdict, updating: Collection[int]) -> Step | None:
    """The step that moves mastership. Only off a drained node it waits for no window: `kubectl drain` waits for it."""
    step = mastership_step(seen, at_rest=may_step, updating=updating)
    opening = windows.opening_now(seen)
    if step is None or not step.acts or step.cause is Cause.DRAIN or opening.is_open:
        return step
    command = f"kubectl brokergroup switchover {identity.name_of(seen.group)}"
    return windows.waiting_step(opening, f"Mastership is to move, {step.why}", command)


def _in_turn(seen: Observed, course: Course, awaited: Mapping[int, Standing]) -> Course:
    """A rolling update begins when it is the group's turn, and keeps the turn until every member is back.

    A restart that a user asked for waits for no turn. A step that waits for a person or a window gives the turn back; a group
    whose spec the API refuses asks again first, and stops no member before it has an answer; but no pod waits for a larger claim.
    """
    outdated = {item.member for item in course.outdated}
    all_in_sync = all(
        one.in_sync or one.is_held or (one.lacks_readiness and one.member in outdated) for one in awaited.values()
    )
    stepping = {step.member for step in course.rollout if step.acts}
    holds = turn_of(seen.group_object) is Turn.HOLDS
    if stepping and all_in_sync:
        asked_for = any(item.member in stepping and item.why in rollouts.ASKED_FOR for item in course.outdated)
        if seen.refusal and not (asked_for or seen.claim_refused):
            return replace(course, rollout=tuple(_rehearsed(one) if one.acts else one for one in course.rollout))
        if seen.rolling_before and not holds and not asked_for:
            return replace(course, rollout=(_after_others(seen.rolling_before),), turn=Turn.WAITS)
        return replace(course, turn=Turn.HOLDS)
    gives_back = any(step.reason in GIVES_TURN_BACK for step in course.rollout)
    if holds and not gives_back and (course.outdated or not all_in_sync):
        return replace(course, turn=Turn.HOLDS)
    return course


def _rehearsed(step: Step) -> Step:
    return replace(step, verb=Verb.REHEARSE, why="the API refused what the spec asks for", to_broker_id=None)


def _after_others(others: Sequence[GroupKey]) -> Step:
    named = ", ".join(str(key) for key in others[:NAMED])
    more = f" and {len(others) - NAMED} more" if len(others) > NAMED else ""
    return Step(verb=Verb.WAIT, reason=Reason.WAITING_FOR_OTHER_GROUPS, why=f"Rolls after {named}{more}")


def _at_rest(seen: Observed, safe: Verdict) -> Verdict:
    """FailoverSafe, while no change of master is under way: one voluntary thing at a time."""
    running = seen.snapshot.in_progress if seen.snapshot else None
    if running is not None and (safe.holds or safe.reason is Reason.NOBODY_MAY_FOLLOW):
        return no(Reason.MOVING_MASTER, f"a {running.kind.value} is under way")
    if seen.snapshot is not None and seen.snapshot.is_changing and safe.holds:
        return no(Reason.MOVING_MASTER, "another operator pod changes the master")
    return safe


def _chosen(course: Course) -> tuple[Step, ...]:
    for step in course.first:
        if step.acts or (step in (course.leaving, course.backing_up) and step.verb is Verb.WAIT):
            return (step,) if step.acts else ()
    return tuple(step for step in course.rollout if step.acts)


def actions_of(step: Step, seen: Observed, settings: ReconcileSettings) -> Iterator[plans.Action]:
    """The actions that carry the step out. Each names its object by the uid that was seen."""
    member = step.member
    if member is None:
        return
    match step.verb:
        case Verb.SWITCH:
            yield plans.SwitchMaster(
                reason=step.why, from_broker_id=member.broker_id, to_broker_id=_target(seen, step), cause=step.cause
            )
        case Verb.REPLACE | Verb.STOP:
            note = _note_of_stop(step, member)
            # No running pod is stopped for one that the API refuses: a bad podTemplate, an admission policy.
            successor = rollouts.wanted_pod(seen, member, settings) if step.verb is Verb.REPLACE else None
            if (pod := seen.pods.get(member.pod)) is not None:
                action = plans.DeleteObject.of(PODS, pod, step.why, note)
                yield replace(action, successor=successor, is_update=step.reason is Reason.ROLLING_UPDATE)
        case Verb.REHEARSE:
            yield plans.Rehearse(reason=step.why, resource=PODS, object=rollouts.wanted_pod(seen, member, settings))
        case Verb.DROP_VOLUME:
            told = f"Deleting claim {member.pod}: {step.why}"
            note = plans.Note(reason="VolumeDropped", message=told, warning=True)
            yield from claims.deleted_claims(seen, member.pod, step.why, note)
        case Verb.HOLD:
            yield from stopping.order(seen, member, step.why)
        case Verb.MARK:
            yield from claims.marked_as_leaving(seen, member)
        case Verb.FORGET:
            event = "ScaledIn" if step.reason is Reason.SCALING_IN else "ReplicaRebuilt"
            told = f"Broker id {member.broker_id} is cleaned from the record: {step.why}"
            note = plans.Note(reason=event, message=told)
            yield plans.RemoveMember(reason=step.why, broker_id=member.broker_id, note=note)


def _target(seen: Observed, step: Step) -> int | None:
    """None: the controller plane chooses. Where brokers are to be stopped it might choose one of them."""
    if step.to_broker_id is not None or not seen.group.spec.maintenance.stopped_brokers:
        return step.to_broker_id
    return next(iter(able_to_follow(seen)), None)


def _note_of_stop(step: Step, member: Member) -> plans.Note:
    replaced = "UnheardMemberReplaced" if step.amiss is Reason.MEMBERS_NOT_HEARD else "UnlinkedMemberReplaced"
    reason = replaced if step.amiss is not None else "PodStopping"
    message = f"Stopping pod {member.pod}: {step.why}"
    return plans.Note(reason=reason, message=message, related=member.pod, warning=step.amiss is not None)


def with_minimum_reached(seen: Observed) -> BrokerGroup:
    """Return the group with the `minInSyncReplicas` that its brokers should have now, on its way to the one that the spec wants.

    It goes up with the members in sync, and comes down after the member that leaves has left. At once, a lone master that is to
    become one of three refused every write until a slave had copied the log. A lost member lowers nothing, only another wish does.
    """
    spec, members = seen.group.spec, membership(seen)
    wanted = acknowledgement_rule(spec).minimum_in_sync
    so_far = broker_config.minimum_so_far(seen, members.pod_of(seen.record.granted_master_id) if seen.record else "")
    if so_far is None or so_far == wanted:
        return seen.group
    if wanted > so_far:
        in_sync = len(seen.record.sync_state_set & set(seen.snapshot.live)) if seen.record and seen.snapshot else 0
        reached = min(wanted, max(so_far, in_sync))
    else:
        # No more than stay: after one of two brokers had stopped, the other refused every write until the next pass.
        reached = wanted if scale_in.leaving(seen) is None else max(wanted, min(so_far, spec.replicas))
    replication = msgspec.structs.replace(spec.replication, min_in_sync_replicas=reached)
    return msgspec.structs.replace(seen.group, spec=msgspec.structs.replace(spec, replication=replication))


def hot_config_actions(seen: Observed, course: Course, settings: ReconcileSettings) -> Iterator[plans.Action]:
    """Give each registered broker the hot keys that it has not been given; not to one that restarts anyway.

    A broker that is not heard here may not know this plane yet.
    """
    if seen.snapshot is None or seen.snapshot.moves_master:
        return  # a switchover holds minInSyncReplicas up meanwhile
    if retiring.retirement(seen) is not None and not retiring.is_read_only_in_file(seen):
        return  # first the ConfigMap: by it a later pass knows what to give back, whatever becomes of this one
    wanted = broker_config.hot_values(seen.group, settings)
    quiet, closed = deletion.must_be_quiet(seen), retiring.is_closed(seen)
    restarting = {step.member.pod for step in course.steps if step.member is not None}
    for standing in course.standings.values():
        pod = seen.pods.get(standing.member.pod)
        if pod is None or standing.is_going or not standing.is_ready or not standing.is_registered:
            continue
        if standing is not quiet and (standing.member.pod in restarting or deletion.stops(seen)):
            continue
        values = wanted | (deletion.QUIET if standing is quiet else {})
        values |= retiring.closing_values(seen) if closed else retiring.opening_values(pod)
        if changed := broker_config.hot_changes(pod, values):
            keys = ", ".join(f"{key}={value}" for key, value in sorted(changed.items()))
            told = f"Pod {standing.member.pod} now runs with {keys}"
            note = plans.Note(reason="ConfigReloaded", message=told, related=standing.member.pod)
            yield plans.SetBrokerConfig(
                reason="it takes them while it runs",
                broker_id=standing.member.broker_id,
                pod=standing.member.pod,
                uid=observed.uid(pod),
                values=changed,
                noted=values,
                restarts=observed.broker_restarts(pod),
                # A restarted process gets the values again without an Event: for users nothing has changed. Nor has it where a
                # closed broker only stays closed for longer.
                note=note if broker_config.given_to(pod) and changed.keys() != {ACCEPTS_SENDS_FROM} else None,
            )


def returning_actions(seen: Observed, course: Course, settings: ReconcileSettings) -> Iterator[plans.Action]:
    """Give back what a Retire that is over has taken, and change nothing else: of a paused group, or one with an invalid spec."""
    if retiring.retirement(seen) is not None:
        return
    yield from retiring.marked(seen)
    for action in hot_config_actions(seen, course, settings):
        if not isinstance(action, plans.SetBrokerConfig):
            continue
        given = broker_config.given_to(seen.pods[action.pod])
        was_quiet = given.get(MINIMUM, QUIET_MINIMUM) == QUIET_MINIMUM
        keys = {PERMISSION, ACCEPTS_SENDS_FROM} | ({MINIMUM} if was_quiet else set())
        if values := {key: value for key, value in action.values.items() if key in keys}:
            yield replace(action, values=values, noted={**given, **values})
