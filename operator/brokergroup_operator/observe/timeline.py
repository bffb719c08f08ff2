"""A failover or a switchover as data: which step was reached when, why it began, and how it ended.

Each step is stamped with the monotonic clock on the failover path itself, so a stamp is only a dict entry; metrics, Events and
the incident log are made of the finished timeline. The last four steps come in any order; one that was not observed has no
stamp. The steps (docs/concepts/architecture.md):

=============  ==================================================================================================
step           reached when
=============  ==================================================================================================
detected       this plane judged the master lost (switchover: it was requested)
fenced         its process was confirmed dead, or the fence timed out (``unfenced``); not for a dead master
decided        the election policy had chosen (switchover: when the old master had stopped acknowledging)
committed      the record with the new master and epoch was durable
notified       the role change was sent to every live slave and the new master
roleChanged    the new master answered that it is master
indexCaughtUp  the new master reported the consume queues of all of its log as built (28, ``dispatchBehindBytes``)
routeVisible   each NameServer that answers gave the new master as the route (901)
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
    """Unplanned or planned."""

    FAILOVER = "failover"
    SWITCHOVER = "switchover"


class Trigger(StrEnum):
    """What showed that the master is lost, or why it was changed."""

    CONNECTION_REFUSED = "connectionRefused"
    CONTAINER_TERMINATED = "containerTerminated"
    CONNECTION_CLOSED = "connectionClosed"
    SILENCE = "silence"
    MASTERLESS = "masterless"
    REQUESTED = "requested"
    WOKEN = "woken"


class Cause(StrEnum):
    """Why the master was lost or moved, as far as the operator knows when the incident ends."""

    OUT_OF_MEMORY = metric_names.CAUSE_OUT_OF_MEMORY
    DRAIN = metric_names.CAUSE_DRAIN
    ROLLING_UPGRADE = metric_names.CAUSE_ROLLING_UPGRADE
    HIBERNATION = metric_names.CAUSE_HIBERNATION
    PARTITION = metric_names.CAUSE_PARTITION
    CRASH = metric_names.CAUSE_CRASH
    PLANNED_SWITCHOVER = metric_names.CAUSE_SWITCHOVER
    UNKNOWN = metric_names.CAUSE_UNKNOWN


class Outcome(StrEnum):
    """How the change ended; ``running`` until then."""

    RUNNING = "running"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    NO_ELIGIBLE_REPLICA = "noEligibleReplica"
    INCOMPLETE = "incomplete"


# The kubelet's word, which the evidence quotes.
OUT_OF_MEMORY_WORD: Final = "OOMKilled"
# Both together: a network partition. The kernel answers for a frozen process; a dead process ended before its pod's deletion.
NO_ANSWER_WORDS: Final = "nothing answers at its address"
RAN_ON_WORDS: Final = "ran until it was deleted"
_CRASHES: Final = frozenset({Trigger.CONNECTION_REFUSED, Trigger.CONTAINER_TERMINATED, Trigger.CONNECTION_CLOSED})


@dataclass(slots=True)
class FailoverTimeline:
    """One change of master, from the first suspicion to the first member in sync; filled in while it runs."""

    group: GroupKey
    cluster_name: str
    broker_name: str
    kind: Kind
    trigger: Trigger
    from_broker_id: int | None
    epoch_before: int
    started_at_unix_seconds: float
    # The change's id in the group's record, the same in every plane; None until it is committed.
    change_id: int | None = None
    evidence: list[str] = field(default_factory=list)
    last_sign_of_life_seconds: float | None = None
    to_broker_id: int | None = None
    epoch_after: int | None = None
    unfenced: bool = False
    # Why an unfenced election is safe all the same; empty if it may not be.
    unconfirmed_trust: str = ""
    unclean: bool = False
    # Why a switchover was requested.
    planned_cause: Cause = Cause.PLANNED_SWITCHOVER
    # The old master's node, zone, rack, version and tenant, as far as known.
    facts: Mapping[str, str] = field(default_factory=dict)
    outcome: Outcome = Outcome.RUNNING
    steps: dict[Step, float] = field(default_factory=dict)

    def reach(self, step: Step, now_seconds: float) -> None:
        """Stamp a step; the first stamp stays."""
        self.steps.setdefault(step, now_seconds)

    def confirmed(self, epoch: int, now_seconds: float) -> None:
        """A master has confirmed its role under this epoch: stamp the step, if that is this change's epoch."""
        if epoch == self.epoch_after:
            self.reach(Step.ROLE_CHANGED, now_seconds)

    @property
    def told_outcome(self) -> Outcome:
        """The outcome of a change whose brokers were told: by whether the new master has confirmed its role."""
        return Outcome.COMPLETED if Step.ROLE_CHANGED in self.steps else Outcome.INCOMPLETE

    def reached(self) -> list[Step]:
        """Return the steps in the order in which they were reached; simultaneous ones in the order of the table."""
        return sorted((step for step in Step if step in self.steps), key=self.steps.__getitem__)

    def milliseconds(self) -> dict[str, float]:
        """Return each reached step in milliseconds since ``detected``, in the order in which they were reached."""
        origin = self.steps.get(Step.DETECTED)
        if origin is None:
            return {}
        return {step.value: round((self.steps[step] - origin) * 1000, 3) for step in self.reached()}

    @property
    def took_milliseconds(self) -> float:
        """From ``detected`` until the new master confirmed its role, whatever came after; until then, to the last step so far."""
        reached = self.milliseconds()
        return reached.get(Step.ROLE_CHANGED, max(reached.values(), default=0.0))

    @property
    def incident_id(self) -> str:
        """The id of this change on the page, in status, Event, incident log, `history` and report.

        It ends with the elected epoch; without an election, with the epoch before and the time. So it is final from ``committed``.
        """
        if self.epoch_after is not None:
            return f"{self.group}/{self.epoch_after}"
        return f"{self.group}/{self.epoch_before}@{self.started_at}"

    @property
    def started_at(self) -> str:
        """When it was detected: UTC in whole milliseconds, the same in every view."""
        started = dt.datetime.fromtimestamp(self.started_at_unix_seconds, tz=dt.UTC).isoformat(timespec="milliseconds")
        return started.replace("+00:00", "Z")

    @property
    def started_at_milliseconds(self) -> int:
        """The same as Unix time; rounded once, so that no two views differ by one."""
        return round(dt.datetime.fromisoformat(self.started_at).timestamp() * 1000)

    @property
    def cause(self) -> Cause:
        """The cause that the operator can prove. Silence alone is UNKNOWN: a partition, a slow disk or a frozen process."""
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
        """From the master's last sign of life to ``detected``; None for a switchover, or a master that was never heard."""
        if self.last_sign_of_life_seconds is None or Step.DETECTED not in self.steps:
            return None
        return max(0.0, self.steps[Step.DETECTED] - self.last_sign_of_life_seconds)

    @property
    def duration_seconds(self) -> float | None:
        """From ``detected`` to ``roleChanged``; None until then."""
        if Step.DETECTED not in self.steps or Step.ROLE_CHANGED not in self.steps:
            return None
        return self.steps[Step.ROLE_CHANGED] - self.steps[Step.DETECTED]
