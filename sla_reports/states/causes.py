"""Why a group was down, by an interval join of incidents with what was going on; and which groups went down together.

The cause is, in this order: what the operator itself named in its log; a circumstance (drain, kill for memory, upgrade, disk,
partition) that touches the incident's beginning; what the trigger proves (a refused connection or a terminated container is a
crash). Silence alone proves nothing, so it stays unknown. What only the gauge saw stays unattributed unless a circumstance
explains it. A crash and a planned switchover that the log names are as much as the operator could see then: what is more
particular wins.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from metric_names import CAUSE_CRASH, CAUSE_PARTITION, CAUSE_SWITCHOVER, CAUSES
from sla_reports.states.entities import GroupKey
from sla_reports.states.incidents import UNATTRIBUTED, Incident
from sla_reports.states.logged import SWITCHOVER, UNKNOWN_CAUSE, Circumstance

# A kill is written before the outage it makes is believed, and a drain's record may end when the pod is gone.
LEAD_MS = 60_000
# Kubernetes tells whole seconds, of another clock.
CLOCKS_MS = 2_000
# An incident without a proven cause is shown with the circumstances so near to it.
NEAR_MS = 600_000
_CRASHES = ("connectionRefused", "containerTerminated", "connectionClosed")
# What the operator names of itself at the moment of the loss; more may be known later.
_AS_FAR_AS_SEEN = (UNKNOWN_CAUSE, CAUSE_CRASH, CAUSE_SWITCHOVER)
TOGETHER_MS = 30_000


def attribute(incidents: Sequence[Incident], circumstances: Sequence[Circumstance], *, until_ms: int) -> list[Incident]:
    """The incidents with their causes, and with what proves them or was near; open ones last until `until_ms`."""
    return [_attributed(incident, circumstances, until_ms) for incident in incidents]


def _attributed(incident: Incident, circumstances: Sequence[Circumstance], until_ms: int) -> Incident:
    about = [one for one in circumstances if _is_about(one, incident)]
    proving = [one for one in about if one.cause != UNKNOWN_CAUSE and _touches(one, incident)]
    cause = _cause(incident, proving)
    told = [one for one in proving if one.cause == cause]
    if cause in (UNKNOWN_CAUSE, UNATTRIBUTED):
        end_ms = incident.start_ms + incident.length_ms(until_ms)
        around = [one for one in circumstances if one.group in (None, incident.group)]
        told = [one for one in around if one.start_ms <= end_ms + NEAR_MS and one.end_ms >= incident.start_ms - NEAR_MS]
    return replace(incident, cause=cause, circumstances=tuple(one.note for one in told if one.note))


def _cause(incident: Incident, proving: Sequence[Circumstance]) -> str:
    logged = incident.logged
    if logged is not None and logged.cause not in _AS_FAR_AS_SEEN:
        return logged.cause
    named = [one.cause for one in proving]
    if logged is None:
        return min(named, key=CAUSES.index, default=incident.cause)
    if logged.kind == SWITCHOVER:
        # The master lived: neither can be why it was moved.
        named = [CAUSE_SWITCHOVER, *(one for one in named if one not in {CAUSE_CRASH, CAUSE_PARTITION})]
    elif logged.trigger in _CRASHES:
        named.append(CAUSE_CRASH)
    return min([*named, logged.cause], key=CAUSES.index)


def _is_about(circumstance: Circumstance, incident: Incident) -> bool:
    if circumstance.group not in (None, incident.group):
        return False
    if circumstance.node and circumstance.node != incident.facts.get("node"):
        return False
    lost = incident.logged.from_broker_id if incident.logged is not None else None
    return circumstance.broker_id is None or lost in (None, circumstance.broker_id)


def _touches(circumstance: Circumstance, incident: Incident) -> bool:
    believed_ms = incident.start_ms if incident.logged is None else incident.logged.started_at_ms
    latest_ms = believed_ms + max(CLOCKS_MS, incident.error_ms)
    return circumstance.start_ms <= latest_ms and circumstance.end_ms >= incident.start_ms - LEAD_MS


@dataclass(frozen=True, slots=True)
class Event:
    """Incidents that began together; `common` holds the facts that are the same for every one of them."""

    start_ms: int
    groups: tuple[GroupKey, ...]
    incidents: tuple[Incident, ...]
    common: tuple[tuple[str, str], ...]


def events(incidents: Sequence[Incident], *, together_ms: int = TOGETHER_MS) -> list[Event]:
    """All incidents as events, in order of time; most are about one group. Planned switchovers are no events."""
    found: list[list[Incident]] = []
    ordered = sorted((one for one in incidents if not one.planned), key=lambda one: (one.start_ms, one.group, one.id))
    for incident in ordered:
        if found and incident.start_ms - found[-1][-1].start_ms <= together_ms:
            found[-1].append(incident)
        else:
            found.append([incident])
    return [_event(together) for together in found]


def _event(together: Sequence[Incident]) -> Event:
    common = set(together[0].facts.items())
    for incident in together[1:]:
        common &= set(incident.facts.items())
    return Event(
        start_ms=together[0].start_ms,
        groups=tuple(sorted({incident.group for incident in together})),
        incidents=tuple(together),
        common=tuple(sorted(common)),
    )
