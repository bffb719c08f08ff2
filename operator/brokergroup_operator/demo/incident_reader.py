"""Reads the operator's incident log while it is written, and turns one incident into the demo's timeline.

Times in the result are milliseconds since the fault was made, on this machine's clock: what a user of the group would feel,
not only what the operator knew.
"""

import datetime
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_STEP_NAMES = {
    "detected": "detected",
    "fenced": "fenced",
    "decided": "decided",
    "committed": "committed",
    "notified": "notified",
    "roleChanged": "role_changed",
    "indexCaughtUp": "index_caught_up",
    "routeVisible": "route_visible",
    "inSync": "in_sync",
    "firstAck": "canary_ack",
}


@dataclass(frozen=True)
class DemoFailover:
    """One failover of the demo. `steps_ms` is in order and ends with `first_ack`."""

    fault: str
    trigger: str
    from_broker_id: int
    to_broker_id: int | None
    epoch: int | None
    outcome: str
    unfenced: bool
    steps_ms: dict[str, float] = field(default_factory=dict)

    @property
    def completed(self) -> bool:
        return self.outcome == "completed" and "first_ack" in self.steps_ms

    def as_json(self) -> dict[str, Any]:
        return {
            "fault": self.fault,
            "trigger": self.trigger,
            "from": self.from_broker_id,
            "to": self.to_broker_id,
            "epoch": self.epoch,
            "outcome": self.outcome,
            "unfenced": self.unfenced,
            "steps_ms": self.steps_ms,
        }


def find_incident(log: Path, *, from_broker_id: int, epoch_before: int) -> dict[str, Any] | None:
    """The finished failover of that master at that epoch, or None while there is none."""
    if not log.exists():
        return None
    for line in log.read_text().splitlines():
        try:
            incident: dict[str, Any] = json.loads(line)
        except ValueError:
            continue  # a line that is being written
        if (incident.get("kind"), incident.get("from"), incident.get("epochBefore")) == (
            "failover",
            from_broker_id,
            epoch_before,
        ):
            return incident
    return None


def steps_since(incident: dict[str, Any], fault_at_seconds: float) -> dict[str, float]:
    """The incident's steps in milliseconds after the fault (wall clock, this machine's)."""
    started = datetime.datetime.fromisoformat(incident["startedAt"]).timestamp()
    offset_ms = (started - fault_at_seconds) * 1000
    steps: dict[str, float] = incident["stepsMilliseconds"]
    return {_STEP_NAMES.get(name, name): round(offset_ms + value, 1) for name, value in steps.items()}
