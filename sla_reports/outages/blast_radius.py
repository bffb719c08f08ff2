"""Groups that went down together: a zone or a node that fails is one event, however many groups it hits.

Incidents whose beginnings follow each other within `together_ms` are one event. What all of them have in common (node, rack,
zone) is told, for that is where to look.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sla_reports.outages.incidents import Incident
from sla_reports.states.entities import GroupKey

TOGETHER_MS = 30_000


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
