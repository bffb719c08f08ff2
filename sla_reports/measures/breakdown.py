"""The same figures by what people ask for: group, cluster, namespace; and tenant, zone, rack, node, version of the master.

The first kind is a property of a group: its time is added to its value's. The second changes with the master: time belongs to the
value that held then, and an incident to that of the master that was lost. What has no such property stands under an empty
name, never hidden.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sla_reports.measures.availability import Availability, sum_of
from sla_reports.measures.recovery import Distribution, distribution
from sla_reports.outages.incidents import Incident
from sla_reports.states.entities import GroupKey

BY_GROUP: Mapping[str, Callable[[GroupKey], str]] = {
    "group": str,
    "cluster": lambda group: f"{group.namespace}/{group.cluster}",
    "namespace": lambda group: group.namespace,
}
BY_LOST_MASTER = ("zone", "rack", "node", "version", "tenant")


@dataclass(frozen=True, slots=True)
class Share:
    """Incidents of one value of a dimension: how many, how long, and which share of all time lost they are."""

    value: str
    incidents: int
    down_ms: int
    share: float
    rto: Distribution


def availability_by(
    name_of: Callable[[GroupKey], str], groups: Mapping[GroupKey, Availability]
) -> dict[str, Availability]:
    """The availability of an average group of each value, in order of the values."""
    by_value: dict[str, list[Availability]] = {}
    for group in sorted(groups):
        by_value.setdefault(name_of(group), []).append(groups[group])
    return {value: sum_of(by_value[value]) for value in sorted(by_value)}


def availability_by_place(
    places: Sequence[Mapping[str, Availability]],
) -> dict[str, Availability]:
    """Of all groups together, each already divided by one fact of its masters."""
    by_value: dict[str, list[Availability]] = {}
    for one in places:
        for value, told in one.items():
            by_value.setdefault(value, []).append(told)
    return {value: sum_of(by_value[value]) for value in sorted(by_value)}


def incidents_by(value_of: Callable[[Incident], str], incidents: Sequence[Incident], *, until_ms: int) -> list[Share]:
    """Incidents by cause, node or anything else, the most time lost first."""
    whole_ms = sum(one.length_ms(until_ms) for one in incidents)
    by_value: dict[str, list[Incident]] = {}
    for incident in incidents:
        by_value.setdefault(value_of(incident), []).append(incident)
    shares = [_share(value, own, whole_ms, until_ms) for value, own in by_value.items()]
    return sorted(shares, key=lambda share: (-share.down_ms, share.value))


def _share(value: str, own: Sequence[Incident], whole_ms: int, until_ms: int) -> Share:
    down_ms = sum(one.length_ms(until_ms) for one in own)
    durations = [(float(one.length_ms(until_ms)), one.is_open(until_ms)) for one in own if one.logged is not None]
    return Share(value, len(own), down_ms, down_ms / whole_ms if whole_ms else 0.0, distribution(durations))
