"""What a type of operation is, and what must hold before anything voluntary is done to a group. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup_status import ConditionStatus, ConditionType
from brokergroup_operator.operations.plan import Figures, Reject, Wait
from brokergroup_operator.operations.scene import being_deleted, created_seconds, seconds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.operations.plan import Beginning, Judgement, Outcome
    from brokergroup_operator.operations.scene import Operation, Scene

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Procedure:
    """`begin` is called when its turn has come (and for a dry run at once); `judge` in every pass while it runs."""

    begin: Callable[[Scene, Operation], Beginning]
    judge: Callable[[Scene, Operation, Outcome], Judgement]


def asked(section: T | None) -> T:
    assert section is not None, "the CRD demands the section of the type"
    return section


def at_start(scene: Scene) -> Figures:
    """The state at the start, as kept in the status: from it a later process judges whether the effect has come."""
    return Figures(from_broker_id=scene.master, epoch=scene.epoch)


def first(*objections: str) -> str:
    """Return the first objection, or the empty text."""
    return next((text for text in objections if text), "")


def seconds_running(scene: Scene, operation: Operation) -> float:
    started = operation.started_seconds
    return 0.0 if started is None else max(0.0, scene.now_seconds - started)


# GitOps may apply an operation a moment before its group.
GROUP_UNKNOWN_GRACE_SECONDS = 5.0
CHANGE_POLL_SECONDS = 0.5
# For so long a group may be unsafe before what is asked of it is refused. A Java slave that has just come copies its master's
# topics within 13 s, and is compared with it again 15 s after it was found to lack one.
SETTLE_SECONDS = 30.0


def group_is_not_there(scene: Scene) -> str:
    if scene.group is None:
        return f"BrokerGroup {scene.key.name} does not exist in namespace {scene.key.namespace}"
    if being_deleted(scene.group):
        return f"BrokerGroup {scene.key.name} is being deleted"
    if scene.maintenance.get("hibernated"):
        return f"BrokerGroup {scene.key.name} is hibernated: wake it first (spec.maintenance.hibernated)"
    if scene.record is None:
        return f"BrokerGroup {scene.key.name} has no member yet"
    return ""


def paused(scene: Scene) -> str:
    """No operation may stop a pod of a paused group; its master may still be moved."""
    if scene.maintenance.get("paused"):
        return f"BrokerGroup {scene.key.name} is paused: resume it first (spec.maintenance.paused)"
    return ""


def claim_goes(scene: Scene, broker_ids: Iterable[int]) -> str:
    """Why a pod must not be stopped: its claim is being deleted, so its data would go with it."""
    for broker_id in broker_ids:
        pod = scene.pod_name(broker_id)
        for name in (pod, names.commit_log_claim_name(pod)):
            if name in scene.claims and being_deleted(scene.claims[name]):
                return f"claim {name} is being deleted, and goes with its data when pod {pod} stops: rebuild broker {broker_id}"
    return ""


def not_a_member(scene: Scene, broker_id: int) -> str:
    if broker_id in scene.members:
        return ""
    members = ", ".join(map(str, scene.members)) or "none yet"
    return f"broker {broker_id} is not a member of {scene.key.name}; its members: {members}"


def only_learns(scene: Scene, broker_id: int) -> str:
    if scene.is_learner(broker_id):
        return f"broker {broker_id} is an async learner (spec.replication.learners: those with the highest ids) and is never master"
    return ""


def no_master(scene: Scene) -> str:
    if scene.master is None:
        return f"{scene.key.name} has no master now: wait for its failover, or elect one"
    return ""


def master_changes(scene: Scene) -> Wait | None:
    """A failover, or another plane's switchover, ends by itself in a moment: it is waited for, not a reason to refuse."""
    if scene.snapshot is None:
        return None
    running, planned = scene.snapshot.in_progress, scene.record.change if scene.record else None
    if running is not None:
        return Wait(message=f"waits for the end of a {running.kind.value}", look_again_seconds=CHANGE_POLL_SECONDS)
    if planned is not None and scene.snapshot.is_changing:
        # Of another plane, or of this one before its restart: a request now would be refused, one after its end would not.
        return Wait(message=f"waits for the end of change {planned.id}", look_again_seconds=CHANGE_POLL_SECONDS)
    return None


def not_failover_safe(scene: Scene) -> str:
    """Why the group is not FailoverSafe, by its status and by the state now: the status is as old as the group's last pass."""
    condition = scene.condition(ConditionType.FAILOVER_SAFE.value)
    if condition is None:
        return f"{scene.key.name} is not known to be FailoverSafe yet"
    if condition.get("status") != ConditionStatus.TRUE.value:
        return f"{scene.key.name} is not FailoverSafe: {condition.get('reason')}: {condition.get('message')}"
    if scene.unsafe_now:
        return f"{scene.key.name} is not FailoverSafe now: {scene.unsafe_now}"
    return ""


def unsafe(scene: Scene, broker_ids: Iterable[int] | None = None) -> Wait | Reject | None:
    """Whether it is safe to begin; with `broker_ids`, with these members alone: without a seat, nothing acknowledged rests on them.

    A group that has just become unsafe is given time: the operation before this one may have ended a moment ago.
    """
    if broker_ids is not None and not any(scene.holds_seat(broker_id) for broker_id in broker_ids):
        return None
    if not (why := not_failover_safe(scene)):
        return None
    condition = scene.condition(ConditionType.FAILOVER_SAFE.value) or {}
    if condition.get("status") == ConditionStatus.TRUE.value:
        # The status will follow in a moment, and say since when; or the group is safe again by then.
        return Wait(message=f"waits: {why}", look_again_seconds=CHANGE_POLL_SECONDS)
    since = condition.get("lastTransitionTime") or ((scene.group or {}).get("metadata") or {}).get("creationTimestamp")
    if since is not None and scene.now_seconds - seconds_of(str(since)) < SETTLE_SECONDS:
        return Wait(message=f"waits: {why}", look_again_seconds=CHANGE_POLL_SECONDS)
    return Reject(message=why)


def born_too_late(scene: Scene, objects: Iterable[JsonObject | None]) -> Wait | None:
    """Wait if an object is as new as the start would be: times are whole seconds, and the API server's clock may be ahead."""
    youngest = max((created_seconds(obj) for obj in objects if obj is not None), default=0.0)
    if youngest < int(scene.now_seconds):
        return None
    wait_seconds = youngest + 1.0 - scene.now_seconds
    return Wait(message="a pod of the group was created in this very second", look_again_seconds=wait_seconds)
