"""An operation beside the view of its group: what must hold before it begins, when it may, and how long it has run. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup_status import ConditionStatus, ConditionType
from brokergroup_operator.api.times import MomentError, moment, rfc3339
from brokergroup_operator.observe.member_view import member_view
from brokergroup_operator.reconcile.decide.failover_safe import unsafe_now
from brokergroup_operator.reconcile.operations import plan as plans
from brokergroup_operator.reconcile.see import observed
from brokergroup_operator.reconcile.see.members import held, never_masters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.brokergroup_operation import OperationResult, OperationSpec
    from brokergroup_operator.observe.member_view import MemberView

T = TypeVar("T")

# GitOps may apply an operation a moment before its group.
GROUP_UNKNOWN_GRACE_SECONDS = 5.0
CHANGE_POLL_SECONDS = 0.5
# For so long a group may be unsafe before what is asked of it is refused. A Java slave that has just come copies its master's
# topics within 13 s, and is compared with it again 15 s after it was found to lack one.
SETTLE_SECONDS = 30.0


def asked(section: T | None) -> T:
    assert section is not None, "the CRD demands the section of the type"
    return section


def first(*objections: str) -> str:
    """Return the first objection, or the empty text."""
    return next((text for text in objections if text), "")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One operation, and the view by which it is judged. The objections are empty where there is none."""

    seen: observed.Observed
    operation: observed.Operation
    outcome: plans.Outcome = plans.NOTHING_ASKED

    @property
    def spec(self) -> OperationSpec:
        return self.operation.asked.spec

    @property
    def before(self) -> OperationResult:
        """What an earlier pass wrote down: epoch and fromBrokerId are those of the start."""
        return self.operation.result

    @property
    def group(self) -> str:
        return self.seen.key.name

    @property
    def members(self) -> list[int]:
        """Broker ids that are in use, without those whose disk is known to be gone."""
        gone = self.seen.record.superseded if self.seen.record else ()
        return [broker_id for broker_id, one in self.seen.replicas.items() if one.claimed and broker_id not in gone]

    def view(self, broker_id: int) -> MemberView:
        return member_view(self.seen.record, self.seen.snapshot, broker_id)

    def is_back(self, broker_id: int) -> bool:
        return self.view(broker_id).has_rejoined(is_learner=broker_id in never_masters(self.seen))

    def pod_name(self, broker_id: int) -> str:
        """The pod that carries the id; a pod whose disk was wiped carries a higher id than its name says."""
        replica = self.seen.replicas.get(broker_id)
        return (replica.reserved_for if replica else "") or names.pod_name(self.group, broker_id)

    def pod(self, broker_id: int) -> JsonObject | None:
        return self.seen.pods.get(self.pod_name(broker_id))

    def claim(self, broker_id: int) -> JsonObject | None:
        return self.seen.claims.get(self.pod_name(broker_id))

    @property
    def now_seconds(self) -> float:
        return observed.seconds_of(self.seen.now)

    @property
    def running_seconds(self) -> float:
        started = self.operation.started_seconds
        return max(0.0, self.now_seconds - started) if started else 0.0

    def is_new(self, obj: JsonObject | None) -> bool:
        """Whether the object is there and was made since the start: by its mark, or by a time that is of the API server's clock."""
        if obj is None:
            return False
        is_marked = observed.annotations_of(obj).get(names.ANNOTATION_OPERATION) == self.operation.uid
        return is_marked or observed.created_seconds(obj) >= self.operation.started_seconds

    def is_old(self, obj: JsonObject | None) -> bool:
        """Whether the object is there since before the start."""
        return obj is not None and not self.is_new(obj)

    def begun(
        self, *objections: str, message: str, steps: Iterable[str], not_now: plans.Wait | plans.Reject | None = None
    ) -> plans.Beginning:
        """Start, unless there is an objection. By the state at the start a later process judges whether the effect has come."""
        if objection := first(*objections):
            return plans.Reject(message=objection)
        figures = plans.Figures(from_broker_id=self.seen.master, epoch=self.seen.epoch)
        return not_now or plans.Start(message=message, figures=figures, steps=tuple(steps))

    def as_recorded(self) -> plans.Figures:
        """For a process that did not see the change of master: its timeline if it is known, else the master of now."""
        snapshot = self.seen.snapshot
        timelines = (snapshot.last_switchover, snapshot.last_failover) if snapshot is not None else ()
        for timeline in timelines:
            if timeline is not None and timeline.epoch_after == self.seen.epoch:
                return plans.figures_of(timeline)
        return plans.Figures(
            from_broker_id=self.before.from_broker_id, to_broker_id=self.seen.master, epoch=self.seen.epoch
        )

    def group_is_not_there(self) -> str:
        group = f"BrokerGroup {self.group}"
        if not self.seen.group_object:
            return f"{group} does not exist in namespace {self.seen.key.namespace}"
        if observed.being_deleted(self.seen.group_object):
            return f"{group} is being deleted"
        if self.seen.group.spec.maintenance.hibernated:
            return f"{group} is hibernated: wake it first (spec.maintenance.hibernated)"
        return f"{group} has no member yet" if self.seen.record is None else ""

    def paused(self) -> str:
        """No operation may stop a pod of a paused group; its master may still be moved."""
        why = f"BrokerGroup {self.group} is paused: resume it first (spec.maintenance.paused)"
        return why if self.seen.group.spec.maintenance.paused else ""

    def held_stopped(self, broker_ids: Iterable[int]) -> str:
        """Why a restart would not end: a broker that is held stopped does not come back."""
        stopped = sorted(held(self.seen).intersection(broker_ids))
        named = ", ".join(f"broker {broker_id}" for broker_id in stopped)
        return f"{named} is stopped by spec.maintenance.stoppedBrokers: start it first" if stopped else ""

    def to_be_stopped(self, broker_id: int) -> str:
        """Why a broker does not become master: it is held stopped, or is to be."""
        is_named = broker_id in self.seen.group.spec.maintenance.stopped_brokers
        named = f"broker {broker_id} is in spec.maintenance.stoppedBrokers: take it out of there first"
        return self.held_stopped((broker_id,)) or (named if is_named else "")

    def claim_goes(self, broker_ids: Iterable[int]) -> str:
        """Why a pod must not be stopped: its claim is being deleted, so its data would go with it."""
        for broker_id in broker_ids:
            pod = self.pod_name(broker_id)
            for name in (pod, names.commit_log_claim_name(pod)):
                if name in self.seen.claims and observed.being_deleted(self.seen.claims[name]):
                    return f"claim {name} is being deleted, and goes with its data when pod {pod} stops: rebuild broker {broker_id}"
        return ""

    def not_a_member(self, broker_id: int) -> str:
        if broker_id in self.members:
            return ""
        members = ", ".join(map(str, self.members)) or "none yet"
        return f"broker {broker_id} is not a member of {self.group}; its members: {members}"

    def has_left(self, broker_id: int) -> bool:
        """Whether it is no member any more. A record without a master may have been lost: its members are still to come back."""
        return self.seen.master is not None and broker_id not in self.members

    def not_in_sync(self, broker_id: int) -> str:
        view = self.view(broker_id)
        if not view.in_set:
            return f"broker {broker_id} is not in the SyncStateSet"
        return "" if view.heard else f"broker {broker_id} is not alive"

    def only_learns(self, broker_id: int) -> str:
        """Of a learner by what runs or by the spec: it copies the log."""
        learners = "spec.replication.learners: those with the highest ids"
        why = f"broker {broker_id} is an async learner ({learners}) and is never master"
        return why if broker_id in never_masters(self.seen) else ""

    def no_master(self) -> str:
        why = f"{self.group} has no master now: wait for its failover, or elect one"
        return why if self.seen.master is None else ""

    def master_changes(self) -> plans.Wait | None:
        """A failover, or another plane's switchover, ends by itself in a moment: it is waited for, not a reason to refuse."""
        snapshot, record = self.seen.snapshot, self.seen.record
        if snapshot is None:
            return None
        if (running := snapshot.in_progress) is not None:
            return plans.Wait(
                message=f"waits for the end of a {running.kind.value}", look_again_seconds=CHANGE_POLL_SECONDS
            )
        if record is not None and record.change is not None and snapshot.is_changing:
            # Of another plane, or of this one before its restart: a request now would be refused, one after its end would not.
            message = f"waits for the end of change {record.change.id}"
            return plans.Wait(message=message, look_again_seconds=CHANGE_POLL_SECONDS)
        return None

    @property
    def _failover_safe(self) -> JsonObject:
        """The condition, as the group's last pass left it."""
        return observed.condition_in(self.seen.group_object, ConditionType.FAILOVER_SAFE.value)

    def not_failover_safe(self) -> str:
        """Why the group is not FailoverSafe, by its status and by the state now: the status is as old as the group's last pass."""
        condition = self._failover_safe
        if not condition:
            return f"{self.group} is not known to be FailoverSafe yet"
        if condition.get("status") != ConditionStatus.TRUE.value:
            return f"{self.group} is not FailoverSafe: {condition.get('reason')}: {condition.get('message')}"
        why = self.seen.unreadable or unsafe_now(self.seen)
        return f"{self.group} is not FailoverSafe now: {why}" if why else ""

    def takes_no_messages(self) -> bool:
        """Whether the group is not Available, and has not been for longer than an operator that has just started needs to know."""
        condition = observed.condition_in(self.seen.group_object, ConditionType.AVAILABLE.value)
        snapshot = self.seen.snapshot
        if condition.get("status") != ConditionStatus.FALSE.value or snapshot is None or snapshot.writable:
            return False
        return self.now_seconds - observed.seconds_of(str(condition["lastTransitionTime"])) >= SETTLE_SECONDS

    def unsafe(self, broker_ids: Iterable[int] | None = None) -> plans.Wait | plans.Reject | None:
        """Whether it is safe to begin; with `broker_ids`, with these members: without a seat, nothing acknowledged rests on them.

        A group that has just become unsafe is given time: the operation before this one may have ended a moment ago.
        """
        record = self.seen.record
        seats = {*record.seats, record.master_broker_id} if record else set()
        if broker_ids is not None and seats.isdisjoint(broker_ids):
            return None
        if not (why := self.not_failover_safe()):
            return None
        condition = self._failover_safe
        # A status that says that it is safe will follow in a moment, and say since when; or the group is safe again by then.
        is_new = condition.get("status") == ConditionStatus.TRUE.value
        group = observed.metadata(self.seen.group_object)
        since = condition.get("lastTransitionTime") or group.get("creationTimestamp")
        if is_new or (since is not None and self.now_seconds - observed.seconds_of(str(since)) < SETTLE_SECONDS):
            return plans.Wait(message=f"waits: {why}", look_again_seconds=CHANGE_POLL_SECONDS)
        return plans.Reject(message=why)

    def born_too_late(self, objects: Iterable[JsonObject | None]) -> plans.Wait | None:
        """Wait if an object is as new as the start would be: times are whole seconds, and the API server's clock may be ahead."""
        youngest = max((observed.created_seconds(obj) for obj in objects if obj is not None), default=0.0)
        if youngest < int(self.now_seconds):
            return None
        wait_seconds = youngest + 1.0 - self.now_seconds
        return plans.Wait(message="a pod of the group was created in this very second", look_again_seconds=wait_seconds)

    @property
    def too_early_seconds(self) -> float:
        """How long until the operation may begin; a dry run begins at once."""
        begins_seconds = window_of(self.operation).begins_seconds
        return 0.0 if self.operation.is_dry or begins_seconds is None else begins_seconds - self.now_seconds

    def too_late(self) -> str:
        """Why the operation can't begin any more, with what it waited for last."""
        window = window_of(self.operation)
        if window.wrong or window.ends_seconds is None or self.now_seconds <= window.ends_seconds:
            return window.wrong
        ends = rfc3339(window.ends_seconds)
        told = f"until {ends}" if window.begins_seconds is None else f"{rfc3339(window.begins_seconds)} to {ends}"
        last = f"; last: {self.before.message}" if self.before.message else ""
        return f"not begun in its window, {told}: it is {rfc3339(self.now_seconds)}{last}"


@dataclass(frozen=True, kw_only=True)
class Procedure:
    """A type of operation. `begin` is called when its turn has come (a dry run's at once); `judge` in every pass while it runs."""

    begin: Callable[[Case], plans.Beginning]
    judge: Callable[[Case], plans.Judgement]
    # Of a running one whose group is gone; None: it has failed.
    judge_without_group: Callable[[Case], plans.Judgement] | None = None


@dataclass(frozen=True, kw_only=True)
class Window:
    """When an operation may begin, in seconds since 1970; None: no such end. `wrong` says why it is no window.

    Without an end an operation would begin whenever the operator is back, at noon instead of at night. So its window ends
    deadlineSeconds after notBefore where no notAfter is given, and what was not begun in it never is.
    """

    begins_seconds: float | None = None
    ends_seconds: float | None = None
    wrong: str = ""


def window_of(operation: observed.Operation) -> Window:
    request, found = operation.asked.spec.switchover, []
    if request is None:
        return Window()
    for field, text in (("notBefore", request.not_before), ("notAfter", request.not_after)):
        try:
            found.append(None if text is None else moment(text).timestamp())
        except MomentError as error:
            return Window(wrong=f"spec.switchover.{field} {error}")
    begins, ends = found
    if begins is not None and ends is not None and ends <= begins:
        wrong = f"spec.switchover.notAfter {rfc3339(ends)}: expected a time after notBefore {rfc3339(begins)}"
        return Window(wrong=wrong)
    if begins is not None and ends is None:
        ends = begins + request.deadline_seconds
    return Window(begins_seconds=begins, ends_seconds=ends)
