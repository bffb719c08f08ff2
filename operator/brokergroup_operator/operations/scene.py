"""What one pass saw: the group, its record, its pods and claims, and everything that was asked of it, and when it may begin.

Without an end an operation would begin whenever the operator is back, at noon instead of at night. So its window ends
deadlineSeconds after notBefore where no notAfter is given, and what was not begun in it never is.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import structlog

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup_operation import BrokerGroupOperation, DryRun, OperationPhase, OperationResult
from brokergroup_operator.api.durability import beyond_voters, runs_as_learner
from brokergroup_operator.api.times import MomentError, moment, told
from brokergroup_operator.observe.member_view import member_view

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.brokergroup_operation import SwitchoverRequest
    from brokergroup_operator.observe.group_view import GroupSnapshot
    from brokergroup_operator.observe.timeline import FailoverTimeline
    from brokergroup_operator.records.store import GroupKey
    from controller_core.model import BrokerGroupRecord


log = structlog.get_logger(__name__)
FINISHED = frozenset({OperationPhase.SUCCEEDED, OperationPhase.FAILED, OperationPhase.REJECTED})


def seconds_of(text: str) -> float:
    """RFC 3339, as the API server writes it, in seconds since 1970."""
    return dt.datetime.fromisoformat(text).timestamp()


def rfc3339(unix_seconds: float) -> str:
    """To the second, as metav1.Time."""
    return told(dt.datetime.fromtimestamp(unix_seconds, tz=dt.UTC))


def created_seconds(obj: JsonObject) -> float:
    return seconds_of(str(obj["metadata"]["creationTimestamp"]))


def being_deleted(obj: JsonObject) -> bool:
    return bool((obj.get("metadata") or {}).get("deletionTimestamp"))


def is_fenced(pod: JsonObject) -> bool:
    """Whether the pod is being killed under the fence's finalizer, until its containers are reported terminated."""
    return being_deleted(pod) and names.FINALIZER_FENCE in pod["metadata"].get("finalizers", [])


def is_of(operation: JsonObject, group: JsonObject) -> bool:
    """Whether the operation is this group's: not one that an earlier group of the same name has adopted."""
    owners = operation["metadata"].get("ownerReferences") or []
    uids = {owner.get("uid") for owner in owners if owner.get("kind") == names.BROKER_GROUP_KIND}
    return not uids or group["metadata"].get("uid") in uids


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One BrokerGroupOperation as read: raw, and typed."""

    raw: JsonObject
    asked: BrokerGroupOperation

    @property
    def name(self) -> str:
        return str(self.raw["metadata"]["name"])

    @property
    def uid(self) -> str:
        return str(self.raw["metadata"].get("uid", ""))

    @property
    def phase(self) -> OperationPhase:
        """Pending while there is no status."""
        status = self.asked.status
        return (status.phase if status else None) or OperationPhase.PENDING

    @property
    def finished(self) -> bool:
        return self.phase in FINISHED

    @property
    def result(self) -> OperationResult:
        """The result in the status so far. While it runs, epoch and fromBrokerId are those of its start."""
        status = self.asked.status
        return (status.result if status else None) or OperationResult(message="")

    @property
    def started_seconds(self) -> float | None:
        status = self.asked.status
        return seconds_of(status.started_at) if status and status.started_at else None

    @property
    def completed_seconds(self) -> float | None:
        status = self.asked.status
        return seconds_of(status.completed_at) if status and status.completed_at else None

    @property
    def order(self) -> tuple[float, str]:
        """The oldest first; of two of the same second, by name."""
        return created_seconds(self.raw), self.name


def operations_of(items: Iterable[JsonObject], key: GroupKey) -> tuple[Operation, ...]:
    """The operations of this group, by their spec and not by a label: YAML written by hand has none."""
    found = []
    for raw in items:
        if ((raw.get("spec") or {}).get("brokerGroupRef") or {}).get("name") != key.name:
            continue
        try:
            found.append(read_operation(raw))
        except msgspec.ValidationError as error:
            log.warning("operation.unreadable", group=str(key), name=raw["metadata"]["name"], error=str(error))
    return tuple(found)


def read_operation(raw: JsonObject) -> Operation:
    """Raises ``msgspec.ValidationError`` for an object that was stored under other rules than ours."""
    return Operation(raw=raw, asked=msgspec.convert(raw, BrokerGroupOperation))


@dataclass(frozen=True, kw_only=True)
class Scene:
    """The input of the pure evaluation, out of the reconcile plane's view of the group."""

    key: GroupKey
    now_seconds: float
    group: JsonObject | None = None
    record: BrokerGroupRecord | None = None
    snapshot: GroupSnapshot | None = None
    pods: Mapping[str, JsonObject] = field(default_factory=dict)
    claims: Mapping[str, JsonObject] = field(default_factory=dict)
    operations: tuple[Operation, ...] = ()
    # Why the group is not FailoverSafe by what this very pass read, whatever its status says; empty if it is.
    unsafe_now: str = ""
    # Read from the API, with nothing done to the group since: only by such a scene is anything begun or ended.
    is_newest: bool = True

    @property
    def spec(self) -> JsonObject:
        value: JsonObject = (self.group or {}).get("spec") or {}
        return value

    @property
    def maintenance(self) -> JsonObject:
        value: JsonObject = self.spec.get("maintenance") or {}
        return value

    @property
    def replicas(self) -> int:
        return int(self.spec.get("replicas") or 0)

    @property
    def master(self) -> int | None:
        return self.record.granted_master_id if self.record else None

    @property
    def epoch(self) -> int:
        return self.record.master_epoch if self.record else 0

    @property
    def writable(self) -> bool:
        """Whether the master has said that it is master in its epoch."""
        return self.snapshot is not None and self.snapshot.writable

    @property
    def members(self) -> list[int]:
        """Broker ids that are in use, without those whose disk is known to be gone."""
        if self.record is None:
            return []
        gone = self.record.superseded
        return [
            broker_id
            for broker_id, replica in self.record.replicas.items()
            if replica.claimed and broker_id not in gone
        ]

    def is_alive(self, broker_id: int) -> bool:
        return member_view(self.record, self.snapshot, broker_id).heard

    def is_in_sync(self, broker_id: int) -> bool:
        return member_view(self.record, self.snapshot, broker_id).in_set

    def is_learner(self, broker_id: int) -> bool:
        """Whether it is a learner, by what runs or by the spec: it copies the log and is never master."""
        learners = int((self.spec.get("replication") or {}).get("learners") or 0)
        wanted = beyond_voters(self.members, replicas=self.replicas, learners=learners)
        return runs_as_learner(self.pod(broker_id)) or broker_id in wanted

    def is_back(self, broker_id: int) -> bool:
        """Whether it has rejoined: a voter is in the SyncStateSet; a learner is linked to the master and outside the set."""
        view = member_view(self.record, self.snapshot, broker_id)
        if view.is_master or not self.is_learner(broker_id):
            return view.counts
        return view.heard and view.linked is not False and not view.in_set

    def holds_seat(self, broker_id: int) -> bool:
        """Whether acknowledged messages may rest on this member's disk."""
        return self.record is not None and (broker_id in self.record.seats or broker_id == self.record.master_broker_id)

    def pod_name(self, broker_id: int) -> str:
        """The pod that carries the id; a pod whose disk was wiped carries a higher id than its name says."""
        replica = self.record.replicas.get(broker_id) if self.record else None
        kept_for = replica.reserved_for if replica else ""
        return kept_for or names.pod_name(self.key.name, broker_id)

    def pod(self, broker_id: int) -> JsonObject | None:
        return self.pods.get(self.pod_name(broker_id))

    def claim(self, broker_id: int) -> JsonObject | None:
        return self.claims.get(self.pod_name(broker_id))

    def volume(self, broker_id: int) -> JsonObject | None:
        """What a member's data lives and dies with: its claim, or its pod where the group has no claims."""
        storage = self.spec.get("storage") or {}
        return self.pod(broker_id) if "ephemeral" in storage else self.claim(broker_id)

    def condition(self, kind: str) -> JsonObject | None:
        conditions: list[JsonObject] = ((self.group or {}).get("status") or {}).get("conditions") or []
        return next((item for item in conditions if item.get("type") == kind), None)

    def timeline_of(self, epoch: int) -> FailoverTimeline | None:
        """The change of master that led to this epoch, if this process saw it."""
        if self.snapshot is None:
            return None
        seen = (self.snapshot.last_switchover, self.snapshot.last_failover)
        return next((item for item in seen if item is not None and item.epoch_after == epoch), None)


def pod_is_ready(pod: JsonObject | None) -> bool:
    if pod is None or being_deleted(pod):
        return False
    conditions: list[JsonObject] = (pod.get("status") or {}).get("conditions") or []
    return any(item.get("type") == "Ready" and item.get("status") == "True" for item in conditions)


@dataclass(frozen=True, kw_only=True)
class Window:
    """In seconds since 1970; None: no such end. `wrong` says why it is no window."""

    begins_seconds: float | None = None
    ends_seconds: float | None = None
    wrong: str = ""

    def left_seconds(self, now_seconds: float) -> float | None:
        """How long it lasts; None where it has no end."""
        return None if self.ends_seconds is None else self.ends_seconds - now_seconds

    def why_never(self, now_seconds: float, *, waited_for: str = "") -> str:
        """Why the operation can't begin any more; empty while it may. `waited_for`: what its status said last."""
        if self.wrong or self.ends_seconds is None or now_seconds <= self.ends_seconds:
            return self.wrong
        until = rfc3339(self.ends_seconds)
        window = f"until {until}" if self.begins_seconds is None else f"{rfc3339(self.begins_seconds)} to {until}"
        why = f"not begun in its window, {window}: it is {rfc3339(now_seconds)}"
        return f"{why}; last: {waited_for}" if waited_for else why


def window_of(operation: Operation) -> Window:
    request = operation.asked.spec.switchover
    return Window() if request is None else _window(request)


def too_early_seconds(operation: Operation, now_seconds: float) -> float:
    """How long until the operation may begin; a dry run begins at once."""
    if operation.asked.spec.dry_run is DryRun.ALL:
        return 0.0
    begins_seconds = window_of(operation).begins_seconds
    return 0.0 if begins_seconds is None else begins_seconds - now_seconds


def _window(request: SwitchoverRequest) -> Window:
    try:
        begins = _seconds("notBefore", request.not_before)
        ends = _seconds("notAfter", request.not_after)
    except MomentError as error:
        return Window(wrong=str(error))
    if begins is not None and ends is not None and ends <= begins:
        wrong = f"spec.switchover.notAfter {rfc3339(ends)}: expected a time after notBefore {rfc3339(begins)}"
        return Window(wrong=wrong)
    if begins is not None and ends is None:
        ends = begins + request.deadline_seconds
    return Window(begins_seconds=begins, ends_seconds=ends)


def _seconds(field: str, text: str | None) -> float | None:
    try:
        return None if text is None else moment(text).timestamp()
    except MomentError as error:
        raise MomentError(f"spec.switchover.{field} {error}") from error
