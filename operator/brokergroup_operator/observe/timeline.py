"""A failover or a switchover as data: which step was reached when, why it began, and how it ended.

Each step is stamped with the monotonic clock when it is reached, on the failover path itself, so stamping must cost nothing:
a dict entry. Everything that costs something (the metric, the Event, the line in the incident log) is made of the finished
timeline afterwards. The last four come in any order; what nobody saw is not stamped. The steps (docs/concepts/architecture.md):

=============  ==================================================================================================
step           reached when
=============  ==================================================================================================
detected       the loss of the master was believed (switchover: when it was asked for)
fenced         its process was confirmed dead, or the fence was given up (``unfenced``); not for a dead master
decided        the election policy had chosen (switchover: when the old master had stopped acknowledging)
committed      the record with the new master and epoch was durable
notified       every live slave and the new master had been sent the role change
roleChanged    the new master answered that it is master
indexCaughtUp  the new master was seen to have built the consume queues of all of its log (28, ``dispatchBehindBytes``)
routeVisible   each NameServer that answers was seen to give the new master to clients (901)
inSync         the SyncStateSet holds enough members for a write to be acknowledged again
firstAck       the new master acknowledged the first message of the canary (``spec.monitoring.canary``)
=============  ==================================================================================================
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import metric_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokergroup_operator.records.store import GroupKey


class Step(StrEnum):
    """The steps of a failover, as they are named in status, in the incident log and as metric label."""

    DETECTED = "detected"
    FENCED = "fenced"
    DECIDED = "decided"
    COMMITTED = "committed"
    NOTIFIED = "notified"
    ROLE_CHANGED = "roleChanged"
    INDEX_CAUGHT_UP = "indexCaughtUp"
    ROUTE_VISIBLE = "routeVisible"
    IN_SYNC = "inSync"
    FIRST_ACK = "firstAck"


class Kind(StrEnum):
    """Not planned, or planned."""

    FAILOVER = "failover"
    SWITCHOVER = "switchover"


class Trigger(StrEnum):
    """What made us believe that the master is lost, or why it was changed."""

    CONNECTION_REFUSED = "connectionRefused"
    CONTAINER_TERMINATED = "containerTerminated"
    CONNECTION_CLOSED = "connectionClosed"
    SILENCE = "silence"
    MASTERLESS = "masterless"
    REQUESTED = "requested"
    WOKEN = "woken"


class Cause(StrEnum):
    """Why the master was lost or moved, as far as the operator itself knows when the incident ends."""

    OUT_OF_MEMORY = metric_names.CAUSE_OUT_OF_MEMORY
    DRAIN = metric_names.CAUSE_DRAIN
    ROLLING_UPGRADE = metric_names.CAUSE_ROLLING_UPGRADE
    HIBERNATION = metric_names.CAUSE_HIBERNATION
    PARTITION = metric_names.CAUSE_PARTITION
    CRASH = metric_names.CAUSE_CRASH
    PLANNED_SWITCHOVER = metric_names.CAUSE_SWITCHOVER
    UNKNOWN = metric_names.CAUSE_UNKNOWN


class Outcome(StrEnum):
    """How it ended. ``running`` only while it has not."""

    RUNNING = "running"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    NO_ELIGIBLE_REPLICA = "noEligibleReplica"
    INCOMPLETE = "incomplete"


# As the kubelet calls it, and as it is told in the evidence.
OUT_OF_MEMORY_WORD: Final = "OOMKilled"
# Both together: the network to it was cut. The kernel answers for a frozen process; a dead one has ended before its deletion.
NO_ANSWER_WORDS: Final = "nothing answers at its address"
RAN_ON_WORDS: Final = "ran until it was deleted"
_CRASHES: Final = frozenset({Trigger.CONNECTION_REFUSED, Trigger.CONTAINER_TERMINATED, Trigger.CONNECTION_CLOSED})


@dataclass(slots=True)
class FailoverTimeline:
    """One change of master, from the first suspicion to the first member in sync. Filled in as it happens."""

    group: GroupKey
    cluster_name: str
    broker_name: str
    kind: Kind
    trigger: Trigger
    from_broker_id: int | None
    epoch_before: int
    started_at_unix_seconds: float
    # The id of the change in the group's record, the same at every plane; None until it is in the record.
    change_id: int | None = None
    evidence: list[str] = field(default_factory=list)
    last_sign_of_life_seconds: float | None = None
    to_broker_id: int | None = None
    epoch_after: int | None = None
    unfenced: bool = False
    # Why an unfenced election may be trusted all the same; empty: it may not.
    unconfirmed_trust: str = ""
    unclean: bool = False
    # Why it was asked for; only of a switchover.
    planned_cause: Cause = Cause.PLANNED_SWITCHOVER
    # What is known of the old master: node, zone, rack, version, tenant.
    facts: Mapping[str, str] = field(default_factory=dict)
    outcome: Outcome = Outcome.RUNNING
    steps: dict[Step, float] = field(default_factory=dict)

    def reach(self, step: Step, now_seconds: float) -> None:
        """Stamp a step, once: what was reached first stays."""
        self.steps.setdefault(step, now_seconds)

    def reached(self) -> list[Step]:
        """The steps in the order in which they were reached; of two at one time the first of the table comes first."""
        return sorted((step for step in Step if step in self.steps), key=self.steps.__getitem__)

    def milliseconds(self) -> dict[str, float]:
        """Return each reached step in milliseconds since ``detected``, in the order in which they were reached."""
        origin = self.steps.get(Step.DETECTED)
        if origin is None:
            return {}
        return {step.value: round((self.steps[step] - origin) * 1000, 3) for step in self.reached()}

    @property
    def incident_id(self) -> str:
        """The id by which this change of master is known everywhere: page, status, Event, incident log, `history`, report.

        It ends with the epoch that was elected. One that elected nobody has no epoch of its own, and the epoch before may have
        several of them: there it ends with that epoch and the time. So it may change until ``committed``, and not after.
        """
        if self.epoch_after is not None:
            return f"{self.group}/{self.epoch_after}"
        return f"{self.group}/{self.epoch_before}@{self.started_at}"

    @property
    def started_at(self) -> str:
        """When it was detected: UTC, whole milliseconds, as every view of it tells."""
        started = dt.datetime.fromtimestamp(self.started_at_unix_seconds, tz=dt.UTC).isoformat(timespec="milliseconds")
        return started.replace("+00:00", "Z")

    @property
    def started_at_milliseconds(self) -> int:
        """The same as Unix time: rounded once, so that no two views differ by one."""
        return round(dt.datetime.fromisoformat(self.started_at).timestamp() * 1000)

    @property
    def cause(self) -> Cause:
        """What the operator itself knows. Mere silence may be a partition, a disk or a frozen process: nobody knows here."""
        if self.kind is Kind.SWITCHOVER:
            return self.planned_cause
        if self.trigger is Trigger.WOKEN:
            return Cause.HIBERNATION
        if any(OUT_OF_MEMORY_WORD in text for text in self.evidence):
            return Cause.OUT_OF_MEMORY
        if self.trigger in _CRASHES:
            return Cause.CRASH
        cut_off = all(any(words in text for text in self.evidence) for words in (NO_ANSWER_WORDS, RAN_ON_WORDS))
        return Cause.PARTITION if cut_off else Cause.UNKNOWN

    @property
    def detection_seconds(self) -> float | None:
        """From the master's last sign of life to ``detected``; None where it was never heard, and in a switchover."""
        if self.last_sign_of_life_seconds is None or Step.DETECTED not in self.steps:
            return None
        return max(0.0, self.steps[Step.DETECTED] - self.last_sign_of_life_seconds)

    @property
    def duration_seconds(self) -> float | None:
        """From ``detected`` to ``roleChanged``; None while that is not reached."""
        if Step.DETECTED not in self.steps or Step.ROLE_CHANGED not in self.steps:
            return None
        return self.steps[Step.ROLE_CHANGED] - self.steps[Step.DETECTED]
