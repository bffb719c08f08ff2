"""All figures of one period: what a report is made of. Plain functions; the same input gives the same summary."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from controller_core.metric_names import GROUP_WRITABLE, MEMBER_FACTS, UNAVAILABLE_SECONDS_TOTAL
from sla_reports.measures.amendments import Account, Amendment, Audit, amend, counted_incidents
from sla_reports.measures.availability import Availability, Verdict, availability
from sla_reports.measures.budget import Budget, budget
from sla_reports.measures.exposure import Exposure, exposure
from sla_reports.measures.phase_histogram import PhaseQuantiles, phase_quantiles
from sla_reports.measures.recovery import Recovery, recovery
from sla_reports.measures.reliability import Estimate, mtbf, mttr
from sla_reports.outages.blast_radius import Event, events
from sla_reports.outages.causes import attribute
from sla_reports.outages.incidents import Incident, reconcile
from sla_reports.outages.logged import Circumstance, LoggedIncident, whole_outages
from sla_reports.states.entities import Fleet, GroupKey
from sla_reports.states.places import Stay, divided, facts_at, stays_of
from sla_reports.states.spans import Span, State, Window, all_up, any_up, at_least, clip, combine

_SECOND_MS = 1000


@dataclass(frozen=True, slots=True)
class Agreement:
    """What was promised: the period, the objective as a share, and how many in-sync copies an acknowledged message has."""

    window: Window
    objective: float
    promised_copies: int = 2
    promised_copies_of: Mapping[GroupKey, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known: runs, the log, what else went on, what people add, and where the data ends."""

    fleet: Fleet
    log: Sequence[LoggedIncident]
    circumstances: Sequence[Circumstance] = ()
    amendments: Sequence[Amendment] = ()
    now_ms: int | None = None
    most_behind_bytes: Mapping[GroupKey, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """Of one group. `counter_ms` is what the operator's counter of unavailable seconds rose by, None without one."""

    group: GroupKey
    held: tuple[Span, ...]
    incidents: tuple[Incident, ...]
    availability: Availability
    verdict: Verdict
    counter_ms: float | None
    recovery: Recovery
    phases: Mapping[str, PhaseQuantiles]
    exposure: Exposure
    mttr: Estimate
    mtbf: Estimate
    budget: Budget
    audit: tuple[Audit, ...]
    # By what the master was at the time (`metric_names.MEMBER_FACTS`), and by its value.
    by_place: Mapping[str, Mapping[str, Availability]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClusterFigures:
    """Of all groups of a cluster: write while one takes writes, ordered write while all do."""

    namespace: str
    cluster: str
    groups: int
    write: Availability
    write_verdict: Verdict
    ordered_write: Availability
    ordered_write_verdict: Verdict


@dataclass(frozen=True, slots=True)
class Summary:
    """Everything."""

    agreement: Agreement
    until_ms: int
    groups: tuple[GroupFigures, ...]
    clusters: tuple[ClusterFigures, ...]
    recovery: Recovery
    events: tuple[Event, ...]

    @property
    def verdict(self) -> Verdict:
        """Breached if one group's is; undecidable if one is, or if there is no group at all; else met."""
        verdicts = {one.verdict for one in self.groups}
        if Verdict.BREACHED in verdicts:
            return Verdict.BREACHED
        return Verdict.MET if verdicts == {Verdict.MET} else Verdict.UNDECIDABLE


def summarise(agreement: Agreement, evidence: Evidence) -> Summary:
    """The figures of every group that has a gauge or a line in the log."""
    until_ms = min(agreement.window.end_ms, evidence.now_ms or agreement.window.end_ms)
    window = Window(agreement.window.start_ms, until_ms)
    keys = sorted({*evidence.fleet.groups(GROUP_WRITABLE), *(one.group for one in evidence.log)})
    groups = tuple(_group(key, window, agreement, evidence) for key in keys)
    incidents = [one for figures in groups for one in figures.incidents]
    return Summary(
        agreement=agreement,
        until_ms=until_ms,
        groups=groups,
        clusters=_clusters(groups, agreement, evidence.amendments),
        recovery=recovery(incidents, until_ms=until_ms),
        events=tuple(events(incidents)),
    )


def _group(key: GroupKey, window: Window, agreement: Agreement, evidence: Evidence) -> GroupFigures:
    fleet = evidence.fleet
    interval_ms = fleet.gap_ms(GROUP_WRITABLE, key) * 2 // 5
    gauge = fleet.spans(GROUP_WRITABLE, key, window, at_least(1))
    found, held = reconcile(key, gauge, evidence.log, interval_ms=interval_ms)
    stays = stays_of(fleet, key, window)
    # The log's own facts are exact; of what only the gauge saw, and of older logs, those of the last master seen.
    placed = [one if one.facts else replace(one, facts=facts_at(stays, one.start_ms)) for one in found]
    attributed = attribute(placed, evidence.circumstances, until_ms=window.end_ms)
    account = amend(key, held, [one for one in evidence.amendments if one.is_about(key)])
    incidents = counted_incidents(key, account, attributed)
    counter_ms = _counter_ms(fleet, key, window, evidence.log, interval_ms)
    told = availability(
        account.counted, incidents, interval_ms=interval_ms, counter_ms=None if account.audit else counter_ms
    )
    return GroupFigures(
        group=key,
        held=account.held,
        incidents=tuple(incidents),
        availability=told,
        verdict=told.verdict(agreement.objective),
        counter_ms=counter_ms,
        recovery=recovery(incidents, until_ms=window.end_ms),
        phases=phase_quantiles(fleet, key, window),
        exposure=exposure(
            fleet, key, window, incidents,
            promised=agreement.promised_copies_of.get(key, agreement.promised_copies),
            most_behind_bytes=evidence.most_behind_bytes.get(key),
        ),
        mttr=mttr(incidents, window),
        mtbf=mtbf(incidents, window, up_ms=told.up_ms),
        budget=_budget(account, incidents, told, agreement, window),
        audit=account.audit,
        by_place={fact: _by_place(account.counted, incidents, stays, fact, interval_ms) for fact in MEMBER_FACTS},
    )  # fmt: skip


def _by_place(
    counted: Sequence[Span], incidents: Sequence[Incident], stays: Sequence[Stay], fact: str, interval_ms: int
) -> dict[str, Availability]:
    """Down time is where the lost master was. The counter tells no instants, so what only it knows is in none of them."""
    pieces = divided(counted, stays, fact)
    return {value: availability(spans, incidents, interval_ms=interval_ms) for value, spans in pieces.items()}


def _counter_ms(
    fleet: Fleet, key: GroupKey, window: Window, log: Sequence[LoggedIncident], interval_ms: int
) -> float | None:
    """The counter's rise, less what belongs before the window: an incident is counted when closed, and shown a scrape later."""
    rises = fleet.increase(UNAVAILABLE_SECONDS_TOTAL, key, window)
    if () not in rises:
        return None
    before_ms = sum(
        min(one.end_ms, window.start_ms) - one.start_ms
        for one in whole_outages([one for one in log if one.group == key])
        if one.end_ms is not None and one.end_ms >= window.start_ms - interval_ms and one.start_ms < window.start_ms
    )
    return max(0.0, rises[()].rise * _SECOND_MS - before_ms)


def _budget(
    account: Account, incidents: Sequence[Incident], told: Availability, agreement: Agreement, window: Window
) -> Budget:
    excluded_ms = window.length_ms - account.counted_ms
    return budget(
        account.counted, agreement.window, objective=agreement.objective, now_ms=window.end_ms,
        excluded_ms=excluded_ms, spent_ms=told.down_ms, failures=len(incidents),
    )  # fmt: skip


def _clusters(
    groups: Sequence[GroupFigures], agreement: Agreement, amendments: Sequence[Amendment]
) -> tuple[ClusterFigures, ...]:
    members: dict[tuple[str, str], list[GroupFigures]] = {}
    for figures in groups:
        members.setdefault((figures.group.namespace, figures.group.cluster), []).append(figures)
    return tuple(_cluster(name, members[name], agreement, amendments) for name in sorted(members))


def _cluster(
    name: tuple[str, str], members: Sequence[GroupFigures], agreement: Agreement, amendments: Sequence[Amendment]
) -> ClusterFigures:
    incidents = [one for figures in members for one in figures.incidents]
    # Corrections are in the lines already. An exclusion is one of the cluster's if it is about every group of it.
    about = [one for one in amendments if one.state is None and all(one.is_about(m.group) for m in members)]
    told = []
    for decide in (any_up, all_up):
        account = amend(GroupKey(*name, "*"), combine([figures.held for figures in members], decide), about)
        whole = clip(account.counted, Window(account.held[0].start_ms, account.held[-1].end_ms))
        own = [one for one in incidents if any(s.state is State.DOWN and one.overlaps(s) for s in whole)]
        told.append(availability(whole, own, interval_ms=0))
    write, ordered = told
    return ClusterFigures(
        *name, len(members), write, write.verdict(agreement.objective), ordered, ordered.verdict(agreement.objective)
    )
