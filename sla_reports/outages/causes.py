"""Why a group was down: an interval join of incidents with what was going on.

In this order: what the operator itself named in its log; a circumstance (drain, kill for memory, upgrade, disk, partition) that
overlaps the incident or ended shortly before it; what the trigger proves (a refused connection or a terminated container is a
crash). Silence proves nothing: freeze, partition and a dead node look alike, so it stays unknown. What only the gauge saw stays
unattributed unless a circumstance explains it. Nothing is spread over the known causes.
"""

from collections.abc import Sequence
from dataclasses import replace

from controller_core.metric_names import CAUSES
from sla_reports.outages.incidents import Incident
from sla_reports.outages.logged import SWITCHOVER, UNKNOWN_CAUSE, Circumstance

# A kill is written before the outage it makes is believed, and a drain's record may end when the pod is gone.
LEAD_MS = 60_000
_CRASHES = ("connectionRefused", "containerTerminated", "connectionClosed")


def attribute(incidents: Sequence[Incident], circumstances: Sequence[Circumstance], *, until_ms: int) -> list[Incident]:
    """The incidents with their causes; open ones last until `until_ms`."""
    return [replace(incident, cause=_cause(incident, circumstances, until_ms)) for incident in incidents]


def _cause(incident: Incident, circumstances: Sequence[Circumstance], until_ms: int) -> str:
    logged = incident.logged
    if logged is not None and logged.cause != UNKNOWN_CAUSE:
        return logged.cause
    going_on = [one.cause for one in circumstances if _touches(one, incident, until_ms)]
    if going_on:
        return min(going_on, key=CAUSES.index)
    if logged is None:
        return incident.cause
    if logged.kind == SWITCHOVER:
        return "plannedSwitchover"
    return "crash" if logged.trigger in _CRASHES else UNKNOWN_CAUSE


def _touches(circumstance: Circumstance, incident: Incident, until_ms: int) -> bool:
    if circumstance.group is not None and circumstance.group != incident.group:
        return False
    if circumstance.node and circumstance.node != incident.facts.get("node"):
        return False
    end_ms = incident.start_ms + incident.length_ms(until_ms)
    return circumstance.start_ms <= end_ms and circumstance.end_ms >= incident.start_ms - LEAD_MS
