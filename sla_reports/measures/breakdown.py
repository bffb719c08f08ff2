"""The same figures by what people ask for: group, cluster, namespace; and tenant, zone, rack, node, version of the master.

The first kind is a property of a group: its time is added to its value's. The second changes with the master: time belongs to the
value that held then, and an incident to that of the master that was lost. What has no such property stands under an empty
name, never hidden.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sla_reports.measures.availability import Availability, sum_of
from sla_reports.measures.recovery import STAGES, Distribution, distribution, stages_of
from sla_reports.outages.incidents import Incident
from sla_reports.states.entities import GroupKey
from sla_reports.states.spans import Span, State, Window, clip, without

BY_GROUP: Mapping[str, Callable[[GroupKey], str]] = {
    "group": str,
    "cluster": lambda group: f"{group.namespace}/{group.cluster}",
    "namespace": lambda group: group.namespace,
}
# Down time of an incident that none of its stages tells, and of one without stages.
NOT_TOLD = "notTold"
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


def availability_by_place(places: Sequence[Mapping[str, Availability]]) -> dict[str, Availability]:
    """Of all groups together, each already divided by one fact of its masters."""
    by_value: dict[str, list[Availability]] = {}
    for one in places:
        for value, told in one.items():
            by_value.setdefault(value, []).append(told)
    return {value: sum_of(by_value[value]) for value in sorted(by_value)}


@dataclass(frozen=True, slots=True)
class Outage:
    """An incident and what of the period's down time is its own: every millisecond of down belongs to one outage.

    `began`: it is one of this period's outages; one that began before has time in it only. By stage, the rest as NOT_TOLD.
    """

    incident: Incident
    down_ms: int
    began: bool
    by_stage: Mapping[str, int]


def outages_of(counted: Sequence[Span], incidents: Sequence[Incident], window: Window) -> tuple[Outage, ...]:
    """The down time that counts, divided among the incidents; of two at once the earlier one has it."""
    downs = [span for span in counted if span.state is State.DOWN]
    found, left, at = [], downs, 0
    for one in sorted(incidents, key=lambda incident: (incident.start_ms, incident.id)):
        end_ms = one.start_ms + one.length_ms(window.end_ms)
        # Incidents come in order of time: what ended before this one began is settled.
        while at < len(left) and left[at].end_ms <= one.start_ms:
            at += 1
        near = [span for span in left[at:] if span.start_ms < end_ms]
        own = [piece for span in near for piece in clip([span], Window(one.start_ms, max(end_ms, one.start_ms + 1)))]
        left = [*left[:at], *without(near, [(one.start_ms, end_ms)]), *left[at + len(near) :]]
        found.append(Outage(one, sum(p.length_ms for p in own), one.began_in(window), _by_stage(one, own)))
    return tuple(found)


def _by_stage(one: Incident, own: Sequence[Span]) -> dict[str, int]:
    """The pieces of an incident's down time by the stage that it was in."""
    told = stages_of(one.logged) if one.logged is not None else {}
    found: dict[str, int] = {}
    begin_ms, passed_ms = one.start_ms, 0.0
    for stage in (stage for stage in STAGES if stage in told):
        passed_ms += told[stage]
        end_ms = one.start_ms + round(passed_ms)
        found[stage] = sum(max(0, min(p.end_ms, end_ms) - max(p.start_ms, begin_ms)) for p in own)
        begin_ms = end_ms
    rest_ms = sum(piece.length_ms for piece in own) - sum(found.values())
    return {stage: spent for stage, spent in {**found, NOT_TOLD: rest_ms}.items() if spent}


def down_by_stage(outages: Sequence[Outage]) -> dict[str, int]:
    """All their down time by stage, in the order of a failover, and what no stage tells."""
    return {
        stage: spent for stage in (*STAGES, NOT_TOLD) if (spent := sum(one.by_stage.get(stage, 0) for one in outages))
    }


def incidents_by(
    value_of: Callable[[Incident], str], outages: Sequence[Outage], *, until_ms: int, running: bool = False
) -> list[Share]:
    """Outages by cause, node or anything else, the most time lost first. The shares' down time is that of all outages."""
    whole_ms = sum(one.down_ms for one in outages)
    by_value: dict[str, list[Outage]] = {}
    for outage in outages:
        by_value.setdefault(value_of(outage.incident), []).append(outage)
    shares = []
    for value, own in by_value.items():
        down_ms = sum(one.down_ms for one in own)
        began = [one.incident for one in own if one.began]
        rto = distribution([one.whole(until_ms, running=running) for one in began if one.logged is not None])
        shares.append(Share(value, len(began), down_ms, down_ms / whole_ms if whole_ms else 0.0, rto))
    return sorted(shares, key=lambda share: (-share.down_ms, share.value))
