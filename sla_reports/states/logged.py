"""What the operator wrote down: incidents, and records that tell why something happened. Plain twins of the readers' frames.

The operator's log is exact where scraped gauges are not: monotonic durations, wall-clock start in milliseconds. Three things in
it are not whole outages, and are made so here: what was cancelled never happened and is left out; what found nobody to elect and
was taken up again later, before anybody was master, is one outage; and what the operator did not live to close is open.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from metric_names import CAUSE_UNKNOWN, CAUSES
from sla_reports.states.entities import GroupKey

FAILOVER = "failover"
SWITCHOVER = "switchover"
COMPLETED = "completed"
CANCELLED = "cancelled"
INTERRUPTED = "interrupted"
NO_ELIGIBLE_REPLICA = "noEligibleReplica"
UNKNOWN_CAUSE = CAUSE_UNKNOWN
_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class LoggedIncident:
    """One line of the incident log. `steps_ms` count from `started_at_ms`; the last sign of life was `detection_ms` before."""

    id: str
    group: GroupKey
    started_at_ms: int
    kind: str = FAILOVER
    trigger: str = ""
    cause: str = UNKNOWN_CAUSE
    outcome: str = COMPLETED
    detection_ms: float | None = None
    steps_ms: Mapping[str, float] = field(default_factory=lambda: _NOTHING)
    unfenced: bool = False
    unclean: bool = False
    truncated_bytes: int = 0
    epoch_before: int | None = None
    from_broker_id: int | None = None
    facts: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    evidence: tuple[str, ...] = ()

    @property
    def start_ms(self) -> int:
        """The fault: the lost master's last sign of life; the detection where that was not heard."""
        return self.started_at_ms - round(self.detection_ms or 0.0)

    @property
    def end_ms(self) -> int | None:
        """When a write could be acknowledged again; None while nobody knows that."""
        if self.outcome != COMPLETED or not self.steps_ms:
            return None
        return self.started_at_ms + round(max(self.steps_ms.values()))

    @property
    def start_is_late(self) -> bool:
        """Whether the fault was earlier than we can say."""
        return self.kind == FAILOVER and self.detection_ms is None


@dataclass(frozen=True, slots=True)
class Circumstance:
    """Something that was going on: a drain, a kill for memory, an upgrade. Without a group: about its `node`, or all.

    With a `broker_id` it is about that member alone. The cause `unknown` proves nothing, and is told as what was near.
    """

    cause: str
    start_ms: int
    end_ms: int
    group: GroupKey | None = None
    node: str = ""
    broker_id: int | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if self.cause not in CAUSES:
            raise ValueError(f"circumstance: cause {self.cause!r}; expected one of {', '.join(CAUSES)}")


def circumstances(rows: Iterable[Mapping[str, Any]]) -> list[Circumstance]:
    """The operator's records of what was going on, as the reader hands them out, in order of time."""
    found = [
        Circumstance(
            # A cause of a newer operator is not ours to name.
            cause=row["cause"] if row["cause"] in CAUSES else UNKNOWN_CAUSE,
            start_ms=row["started_at_ms"],
            end_ms=row["ended_at_ms"],
            group=GroupKey(row["namespace"], row.get("cluster") or "", row["broker_group"]),
            # The member says more than its node: what happened to the node is noted for each member on it.
            node="" if row.get("broker_id") is not None else row.get("node") or "",
            broker_id=row.get("broker_id"),
            note=": ".join(text for text in (row.get("what"), row.get("message")) if text),
        )
        for row in rows
    ]
    return sorted(found, key=lambda one: (one.start_ms, one.end_ms, one.cause, one.note))


def logged_incidents(rows: Iterable[Mapping[str, Any]]) -> list[LoggedIncident]:
    """The rows of the readers' frame as objects, in order of time; one incident that was written twice stands once.

    What another operator pod closed wins over what was left open by one that died.
    """
    incidents = [_incident(row) for row in rows]
    closed = {incident.id for incident in incidents if incident.outcome != INTERRUPTED}
    found = {
        (incident.id, incident.started_at_ms): incident
        for incident in incidents
        if incident.outcome != INTERRUPTED or incident.id not in closed
    }
    return sorted(found.values(), key=lambda one: (one.group, one.started_at_ms, one.id))


def whole_outages(incidents: Sequence[LoggedIncident]) -> list[LoggedIncident]:
    """What of the log were outages, each from its first sign to its end: attempts at one loss become one."""
    found: list[LoggedIncident] = []
    for incident in sorted(incidents, key=lambda one: (one.group, one.start_ms, one.id)):
        if incident.outcome == CANCELLED:
            continue
        last = found[-1] if found else None
        if last and _goes_on(last, incident):
            found[-1] = _joined(last, incident)
        else:
            found.append(incident)
    return found


def _goes_on(earlier: LoggedIncident, later: LoggedIncident) -> bool:
    """Whether it is the same loss: no master came between. That nobody can lead may have taken an epoch of its own."""
    if earlier.group != later.group or earlier.end_ms is not None or earlier.epoch_before is None:
        return False
    next_before = (earlier.epoch_before, earlier.epoch_before + (earlier.outcome == NO_ELIGIBLE_REPLICA))
    return later.epoch_before in next_before


def _joined(earlier: LoggedIncident, later: LoggedIncident) -> LoggedIncident:
    """The later attempt's end, counted from the earlier one's beginning; the earlier one knew the cause."""
    shift_ms = later.started_at_ms - earlier.started_at_ms
    steps = {step: at_ms + shift_ms for step, at_ms in later.steps_ms.items()}
    return replace(
        earlier,
        outcome=later.outcome,
        epoch_before=later.epoch_before,
        steps_ms=MappingProxyType({**steps, **earlier.steps_ms}),
        cause=earlier.cause if earlier.cause != UNKNOWN_CAUSE else later.cause,
        unfenced=earlier.unfenced or later.unfenced,
        unclean=earlier.unclean or later.unclean,
        truncated_bytes=earlier.truncated_bytes + later.truncated_bytes,
    )


def _incident(row: Mapping[str, Any]) -> LoggedIncident:
    cause = row.get("cause") or UNKNOWN_CAUSE
    return LoggedIncident(
        id=row["id"],
        group=GroupKey(row["namespace"], row.get("cluster") or "", row["broker_group"]),
        started_at_ms=row["started_at_ms"],
        kind=row["kind"],
        trigger=row.get("trigger") or "",
        # A cause of a newer operator is not ours to name: it is shown as unknown, never as another one.
        cause=cause if cause in CAUSES else UNKNOWN_CAUSE,
        outcome=row.get("outcome") or "running",
        detection_ms=row.get("detection_ms"),
        steps_ms=MappingProxyType(dict(row.get("steps_ms") or {})),
        unfenced=bool(row.get("unfenced")),
        unclean=bool(row.get("unclean")),
        truncated_bytes=row.get("truncated_bytes") or 0,
        epoch_before=row.get("epoch_before"),
        from_broker_id=row.get("from_broker_id"),
        facts=MappingProxyType(dict(row.get("facts") or {})),
        evidence=tuple(row.get("evidence") or ()),
    )
