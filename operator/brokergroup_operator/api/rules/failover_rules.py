"""Rules of spec.failover: every time has its place between the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokergroup_operator.api.brokergroup import FailoverSpec
from brokergroup_operator.api.rules.rule import Rule

if TYPE_CHECKING:
    from msgspec import Struct


# On a whole object, by its type.
OBJECT_RULES: Final[dict[type[Struct], tuple[Rule, ...]]] = {
    FailoverSpec: (
        Rule(
            "self.heartbeatTimeoutMilliseconds >= 2 * self.heartbeatIntervalMilliseconds",
            "heartbeatTimeoutMilliseconds must be at least twice heartbeatIntervalMilliseconds:"
            " one lost heartbeat is no lost broker",
            field_path=".heartbeatTimeoutMilliseconds",
        ),
        Rule(
            "!has(self.minimumHeartbeatTimeoutMilliseconds) ||"
            " self.minimumHeartbeatTimeoutMilliseconds <= self.heartbeatTimeoutMilliseconds",
            "minimumHeartbeatTimeoutMilliseconds must not exceed heartbeatTimeoutMilliseconds:"
            " it is the lower bound of the timeout, the other one the upper",
            field_path=".minimumHeartbeatTimeoutMilliseconds",
        ),
        Rule(
            "!has(self.minimumHeartbeatTimeoutMilliseconds) ||"
            " self.minimumHeartbeatTimeoutMilliseconds >= 2 * self.heartbeatIntervalMilliseconds",
            "minimumHeartbeatTimeoutMilliseconds must be at least twice heartbeatIntervalMilliseconds:"
            " one lost heartbeat is no lost broker",
            field_path=".minimumHeartbeatTimeoutMilliseconds",
        ),
        Rule(
            "!self.isolation.enabled || self.isolation.timeoutMilliseconds + 100 <= self.fenceTimeoutMilliseconds +"
            " (has(self.minimumHeartbeatTimeoutMilliseconds)"
            " ? self.minimumHeartbeatTimeoutMilliseconds : self.heartbeatTimeoutMilliseconds)"
            " - self.heartbeatIntervalMilliseconds",
            "isolation.timeoutMilliseconds must be at least 100 below the heartbeat timeout (the minimum one, where it is given)"
            " plus fenceTimeoutMilliseconds, less heartbeatIntervalMilliseconds: an isolated master must be dead before another"
            " is elected, which is counted from its last heartbeat, and its fence looks every 50 ms",
            field_path=".isolation.timeoutMilliseconds",
        ),
        Rule(
            "!has(self.preferredMaster) ||"
            " !self.priorities.exists(entry, entry.brokerId == self.preferredMaster && entry.priority == 0)",
            "preferredMaster has priority 0 in priorities, which bars it from mastership",
            field_path=".preferredMaster",
        ),
    ),
}

# On a single field, by its object's type and its name on the wire.
FIELD_RULES: Final[dict[tuple[str, str], tuple[Rule, ...]]] = {
    ("FailoverSpec", "preferredZones"): (
        # Not as FieldValueDuplicate: of that the API server tells the value only.
        Rule("self.all(zone, self.exists_one(other, other == zone))", "preferredZones names a zone twice"),
    ),
}
