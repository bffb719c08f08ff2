"""Failovers and switchovers as the page shows them: those that this process carried out, and those in the status.

Any operator pod may replace a master. The pod that serves the page knows its own timelines to the microsecond; of the others it
knows what ``status.failovers`` has, in whole milliseconds. One incident has one id in both (``FailoverTimeline.incident_id``).
"""

from __future__ import annotations

import datetime as dt
import statistics
from typing import TYPE_CHECKING, Any, Final

from brokergroup_operator.observe.timeline import Step

if TYPE_CHECKING:
    from collections.abc import Iterable

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.observe.timeline import FailoverTimeline
    from brokergroup_operator.records.store import GroupKey

MOST_KEPT: Final = 20
_STEPS: Final = frozenset(step.value for step in Step)


def incident_document(timeline: FailoverTimeline) -> JsonObject:
    """One change of master, running or over; times in Unix milliseconds, steps in milliseconds since ``detected``."""
    return {
        "id": timeline.incident_id,
        "kind": timeline.kind.value,
        "trigger": timeline.trigger.value,
        "cause": timeline.cause.value,
        "evidence": list(timeline.evidence),
        "from": timeline.from_broker_id,
        "to": timeline.to_broker_id,
        "epoch": timeline.epoch_after,
        "startedAt": timeline.started_at_milliseconds,
        "detectionMilliseconds": _milliseconds(timeline.detection_seconds),
        "durationMilliseconds": _milliseconds(timeline.duration_seconds),
        "outcome": timeline.outcome.value,
        "unfenced": timeline.unfenced,
        "unclean": timeline.unclean,
        "steps": timeline.milliseconds(),
    }


def told_by_status(key: GroupKey, failover: JsonObject) -> JsonObject:
    """The same from an entry of ``status.failovers``."""
    started = _unix_milliseconds(str(failover["startedAt"]))
    steps = {name: value for name, value in (failover.get("phases") or {}).items() if name in _STEPS}
    to = failover.get("to") or None
    return {
        "id": failover.get("id") or f"{key}/{failover.get('epoch')}",
        "kind": "failover",
        "trigger": failover.get("trigger", ""),
        "cause": failover.get("cause", ""),
        "evidence": [],
        "from": failover.get("from") or None,
        "to": to,
        "epoch": failover.get("epoch"),
        "startedAt": started,
        "detectionMilliseconds": None,
        "durationMilliseconds": failover.get("durationMilliseconds"),
        "outcome": "completed" if to else "noEligibleReplica",
        "unfenced": False,
        "unclean": False,
        "steps": dict(sorted(steps.items(), key=lambda step: step[1])),
    }


def merged(own: Iterable[JsonObject], told: Iterable[JsonObject]) -> list[JsonObject]:
    """The latest first; where both know one, what this process knows itself."""
    found = {one["id"]: one for one in told}
    found.update({one["id"]: one for one in own})
    return sorted(found.values(), key=lambda one: -float(one["startedAt"]))[:MOST_KEPT]


def medians(incidents: Iterable[JsonObject], kind: str) -> dict[str, Any]:
    """The median of each step over the completed ones of this kind, and over how many."""
    completed = [one for one in incidents if one["kind"] == kind and one["outcome"] == "completed"]
    steps = {
        step.value: round(statistics.median(values), 3)
        for step in Step
        if (values := [one["steps"][step.value] for one in completed if step.value in one["steps"]])
    }
    return {"count": len(completed), "steps": steps}


def _unix_milliseconds(text: str) -> int:
    return round(dt.datetime.fromisoformat(text).timestamp() * 1000)


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
