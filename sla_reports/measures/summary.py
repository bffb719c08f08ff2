"""All figures of one period: what a report is made of. Plain functions; the same input gives the same summary."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from metric_names import GROUP_WRITABLE, MEMBER_FACTS, UNAVAILABLE_SECONDS_TOTAL, VOTING_REPLICAS
from sla_reports.measures.amendments import Account, Amendment, Audit, amend, counted_incidents
from sla_reports.measures.availability import (
    Availability,
    Budget,
    Outage,
    Share,
    Verdict,
    availability,
    availability_by,
    budget,
    incidents_by,
    outages_of,
)
from sla_reports.measures.objectives import BudgetWindow, Objective, objective_of
from sla_reports.measures.recovery import (
    Estimate,
    Exposure,
    PhaseQuantiles,
    Recovery,
    exposure,
    mtbf,
    mttr,
    phase_quantiles,
    recovery,
)
from sla_reports.states.entities import Fleet, GroupKey, Stay, divided, facts_at, stays_of
from sla_reports.states.existence import Existence, Existences, existence_notes
from sla_reports.states.identity import identity_of
from sla_reports.states.incidents import (
    Event,
    Incident,
    Source,
    attribute,
    events,
    overlapping,
    reconcile,
    told_by_counter,
)
from sla_reports.states.logged import Circumstance, LoggedIncident, whole_outages
from sla_reports.states.spans import (
    Span,
    State,
    Window,
    all_up,
    any_up,
    at_least,
    clip,
    combine_present,
    overlay,
    without,
)

_SECOND_MS = 1000


_HIBERNATED = "hibernated by spec.maintenance.hibernated: planned"


@dataclass(frozen=True, slots=True)
class Agreement:
    """The promise: period, objective as a share, and how many in-sync copies an acknowledged message has."""

    window: Window
    objective: float
    promised_copies: int = 2
    promised_copies_of: Mapping[GroupKey, int] = field(default_factory=dict)
    # What was promised to single groups; `objective` is that of all others.
    objectives: Sequence[Objective] = ()
    # Whether those are judged over their own windows, as of the period's end; without, over the period as all others.
    own_windows: bool = True
    # Of page one; empty: those of the objectives.
    service: str = ""
    owner: str = ""

    def share_of(self, group: GroupKey) -> float:
        """Return the objective of a group. Raises ObjectiveError if two contradict each other."""
        own = objective_of(group, self.objectives)
        return self.objective if own is None else own.share


@dataclass(frozen=True, slots=True)
class Evidence:
    """The inputs of all figures: runs, incident log, circumstances, amendments, and where the data ends."""

    fleet: Fleet
    log: Sequence[LoggedIncident]
    circumstances: Sequence[Circumstance] = ()
    amendments: Sequence[Amendment] = ()
    now_ms: int | None = None
    most_behind_bytes: Mapping[GroupKey, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OwnFigures:
    """A group over the window of its own objective: the last days as of the period's end, or a calendar's unit."""

    over: BudgetWindow
    window: Window
    availability: Availability
    verdict: Verdict
    budget: Budget


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """The figures of one group. `counter_ms` is the rise of the operator's counter of unavailable seconds; None without one.

    `incidents` began in the period; `outages` are also those that began before it, each with its share of the down time.
    `verdict` is over `own` where the group has an objective of its own, else over the period, as all other figures.
    """

    group: GroupKey
    held: tuple[Span, ...]
    counted_ms: int
    incidents: tuple[Incident, ...]
    outages: tuple[Outage, ...]
    availability: Availability
    objective: float
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
    own: OwnFigures | None = None
    # For which part of the period there was such a group: the rest counts in no figure.
    existence: Existence = field(default_factory=Existence)
    # When the spec had it hibernated: planned, and counted in no figure.
    hibernated: tuple[tuple[int, int], ...] = ()

    @property
    def existed(self) -> list[tuple[int, int]]:
        """The parts of the period in which the group existed."""
        return self.existence.existed(self.window)

    @property
    def window(self) -> Window:
        """The period, up to where the data goes."""
        return Window(self.held[0].start_ms, self.held[-1].end_ms)

    @property
    def judged(self) -> "OwnFigures | GroupFigures":
        """The figures behind the verdict: those of the objective's own window, else those of the period."""
        return self.own or self

    @property
    def judged_over(self) -> str:
        """The window of the objective in words, shown beside its share."""
        return "the report's period" if self.own is None else str(self.own.over)


@dataclass(frozen=True, slots=True)
class ClusterFigures:
    """The figures of a cluster: write is up while one group takes writes, ordered write while all do."""

    namespace: str
    cluster: str
    groups: int
    write: Availability
    write_verdict: Verdict
    ordered_write: Availability
    ordered_write_verdict: Verdict


@dataclass(frozen=True, slots=True)
class Summary:
    """Everything. `warnings` are what a reader must know of the inputs before believing a figure, each in a sentence.

    `incomplete` is what the samples are known to lack (`as_incomplete`), in the server's words.
    """

    agreement: Agreement
    until_ms: int
    groups: tuple[GroupFigures, ...]
    clusters: tuple[ClusterFigures, ...]
    recovery: Recovery
    events: tuple[Event, ...]
    warnings: tuple[str, ...] = ()
    incomplete: tuple[str, ...] = ()

    @property
    def service(self) -> str:
        """The service as it was given, else those of the groups' objectives."""
        return self.agreement.service or self._of_objectives(lambda one: one.service)

    @property
    def owner(self) -> str:
        """The owner as it was given, else those of the groups' objectives."""
        return self.agreement.owner or self._of_objectives(lambda one: one.owner)

    def _of_objectives(self, value_of: Callable[[Objective], str]) -> str:
        own = (objective_of(figures.group, self.agreement.objectives) for figures in self.groups)
        return ", ".join(sorted({value for one in own if one is not None and (value := value_of(one))}))

    @property
    def running(self) -> bool:
        """Whether the period had not ended where the data ends."""
        return self.until_ms < self.agreement.window.end_ms

    @property
    def outages(self) -> tuple[Outage, ...]:
        """The outages of all groups."""
        return tuple(one for figures in self.groups for one in figures.outages)

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """The incidents of all groups that began in the period."""
        return tuple(one for figures in self.groups for one in figures.incidents)

    def shares(self, value_of: Callable[[Incident], str], *, planned: bool = True) -> list[Share]:
        """All outages by cause or anything else; without the planned ones if `planned` is false."""
        outages = [one for one in self.outages if planned or not one.incident.planned]
        return incidents_by(value_of, outages, until_ms=self.until_ms, running=self.running)

    def shares_by_fact(self, name: str) -> list[Share]:
        """All outages by a fact of the lost master."""
        return self.shares(lambda one: one.facts.get(name, ""))

    def availability_by_group(self, name_of: Callable[[GroupKey], str]) -> dict[str, Availability]:
        """Availability by a part of the groups' names: cluster, namespace."""
        return availability_by((name_of(figures.group), figures.availability) for figures in self.groups)

    def availability_by_fact(self, name: str) -> dict[str, Availability]:
        """Availability by a fact of the masters, over all groups."""
        return availability_by(part for figures in self.groups for part in figures.by_place.get(name, {}).items())

    @property
    def verdict(self) -> Verdict:
        """Breached if one group's is; undecidable if one is, or if there is no group at all; else met."""
        verdicts = {one.verdict for one in self.groups}
        if Verdict.BREACHED in verdicts:
            return Verdict.BREACHED
        return Verdict.MET if verdicts == {Verdict.MET} else Verdict.UNDECIDABLE


def summarise(agreement: Agreement, evidence: Evidence) -> Summary:
    """Compute the figures of every group that has a gauge or a line in the log."""
    until_ms = min(agreement.window.end_ms, evidence.now_ms or agreement.window.end_ms)
    window = Window(agreement.window.start_ms, until_ms)
    log: dict[GroupKey, list[LoggedIncident]] = {}
    for one in evidence.log:
        log.setdefault(one.group, []).append(one)
    keys = sorted({*evidence.fleet.groups(GROUP_WRITABLE), *log})
    existences = Existences(
        evidence.fleet,
        {key: [(one.start_ms, one.end_ms or one.started_at_ms) for one in own] for key, own in log.items()},
    )
    of = {key: existences.of(key, window) for key in keys}
    there = [key for key in keys if of[key].existed(window)]
    groups = tuple(_group(key, window, agreement, replace(evidence, log=log.get(key, ())), existences) for key in there)
    incidents = [one for figures in groups for one in figures.incidents]
    return Summary(
        agreement=agreement, until_ms=until_ms, groups=groups, clusters=_clusters(groups, evidence.amendments),
        recovery=recovery(incidents, until_ms=until_ms, running=until_ms < agreement.window.end_ms),
        events=tuple(events(incidents)),
        warnings=(
            *identity_of(evidence.fleet).notes,
            *existence_notes(of, window),
            *_changed_intervals(keys, evidence.fleet),
            *(
                f"{'exclusion' if one.state is None else 'correction'} of {one.groups} ({one.reason}): no group has such a"
                " name, nothing was amended"
                for one in evidence.amendments
                if not any(one.is_about(key) for key in keys)
            ),
            *(
                f"objective {one.name} of {one.groups}: no group has such a name"
                for one in agreement.objectives
                if not any(one.is_about(key) for key in keys)
            ),
        ),
    )  # fmt: skip


def _changed_intervals(keys: Sequence[GroupKey], fleet: Fleet) -> Iterator[str]:
    for key in keys:
        entry = next((one for one in fleet.series_of(GROUP_WRITABLE, key) if fleet.stretches(one)), None)
        if entry is None:
            continue
        lengths: dict[int, int] = {}
        for one in fleet.stretches(entry):
            rounded_ms = round(one.interval_ms, -3) or one.interval_ms
            lengths[rounded_ms] = lengths.get(rounded_ms, 0) + one.length_ms
        for interval_ms, length_ms in sorted(lengths.items()):
            hours, minutes = divmod(length_ms // 60_000, 60)
            yield (
                f"{key}: scraped every {interval_ms / 1000:g} s instead of every {fleet.usual_ms(entry) / 1000:g} s"
                f" for {hours} h {minutes} min"
            )


def _group(
    key: GroupKey, window: Window, agreement: Agreement, evidence: Evidence, existences: Existences
) -> GroupFigures:
    fleet, running = evidence.fleet, window.end_ms < agreement.window.end_ms
    one = _judge(key, window, agreement, evidence, existences)
    own = _own(key, window.end_ms, agreement, evidence, existences)
    objective, counted = agreement.share_of(key), one.account.counted
    return GroupFigures(
        group=key, held=one.account.held, counted_ms=one.account.counted_ms, incidents=tuple(one.began),
        outages=outages_of(counted, one.incidents, window), availability=one.availability, objective=objective,
        verdict=one.availability.verdict(objective) if own is None else own.verdict, counter_ms=one.counter_ms,
        recovery=recovery(one.began, until_ms=window.end_ms, running=running), phases=phase_quantiles(fleet, key, window),
        exposure=exposure(
            fleet, key, window, one.began, promised=agreement.promised_copies_of.get(key, agreement.promised_copies),
            most_behind_bytes=evidence.most_behind_bytes.get(key), counted=counted,
        ),
        mttr=mttr(one.began, window, running=running), mtbf=mtbf(one.began, window, up_ms=one.availability.up_ms),
        budget=one.budget, audit=one.account.audit,
        by_place={
            # Down time is where the lost master was.
            fact: {value: availability(spans, one.incidents) for value, spans in divided(counted, one.stays, fact).items()}
            for fact in MEMBER_FACTS
        },
        own=own, existence=one.existence, hibernated=one.hibernated,
    )  # fmt: skip


def _own(
    key: GroupKey, until_ms: int, agreement: Agreement, evidence: Evidence, existences: Existences
) -> OwnFigures | None:
    """The group's own objective over its own window; what no sample shows is unknown there, as anywhere."""
    own = objective_of(key, agreement.objectives) if agreement.own_windows else None
    if own is None:
        return None
    whole = own.window.ending(until_ms)
    known = Window(whole.start_ms, min(until_ms, whole.end_ms))
    if not existences.of(key, known).existed(known):
        return None
    one = _judge(key, known, replace(agreement, window=whole), evidence, existences)
    return OwnFigures(own.window, whole, one.availability, one.availability.verdict(own.share), one.budget)


@dataclass(frozen=True, slots=True)
class _Judged:
    """A group in one window: its line as it counts, the incidents that count in it, and those of them that began in it."""

    account: Account
    incidents: list[Incident]
    began: list[Incident]
    availability: Availability
    budget: Budget
    existence: Existence
    stays: Sequence[Stay]
    counter_ms: float | None
    hibernated: tuple[tuple[int, int], ...]


def _judge(key: GroupKey, window: Window, agreement: Agreement, evidence: Evidence, existences: Existences) -> _Judged:
    """`agreement` has the period that the budget is for; `window` ends where the data does."""
    stays, counter_ms = stays_of(evidence.fleet, key, window), _counter_ms(key, window, evidence)
    existence = existences.of(key, window)
    found, held = _incidents(key, window, evidence, counter_ms)
    # The log's own facts are exact; of what only the gauge saw, and of older logs, those of the last master seen.
    placed = [one if one.facts else replace(one, facts=facts_at(stays, one.start_ms)) for one in found]
    placed = [_from_its_begin(one, window, evidence.fleet) for one in placed]
    attributed = attribute(placed, evidence.circumstances, until_ms=window.end_ms)
    hibernated = _hibernated(key, window, evidence.fleet)
    planned = [Amendment(str(key), *time, None, _HIBERNATED, VOTING_REPLICAS) for time in hibernated]
    account = amend(key, held, [*planned, *(one for one in evidence.amendments if one.is_about(key))])
    account = replace(account, counted=tuple(without(account.counted, existence.absent)))
    incidents = list(counted_incidents(key, account, attributed))
    began, told = [one for one in incidents if one.began_in(window)], availability(account.counted, incidents)
    spent = budget(
        account.counted, agreement.window, objective=agreement.share_of(key), now_ms=window.end_ms,
        excluded_ms=window.length_ms - account.counted_ms, spent_ms=told.down_ms, failures=len(began),
    )  # fmt: skip
    return _Judged(account, incidents, began, told, spent, existence, stays, counter_ms, hibernated)


def _hibernated(key: GroupKey, window: Window, fleet: Fleet) -> tuple[tuple[int, int], ...]:
    """Return when the group's spec had it hibernated: no member votes then. Where no sample says it, the time counts."""
    line = fleet.spans(VOTING_REPLICAS, key, window, at_least(1))
    return tuple((one.start_ms, one.end_ms) for one in line if one.state is State.DOWN)


def _incidents(
    key: GroupKey, window: Window, evidence: Evidence, counter_ms: float | None
) -> tuple[list[Incident], list[Span]]:
    """Return the incidents of gauge, log and counter, and the line of states with them."""
    fleet, writable = evidence.fleet, at_least(1)
    interval = fleet.interval(GROUP_WRITABLE, key)
    found, held = reconcile(
        key, fleet.spans(GROUP_WRITABLE, key, window, writable), evidence.log, interval_ms=interval,
        sightings=fleet.sightings(GROUP_WRITABLE, key, writable),
    )  # fmt: skip
    known = availability(held, found)
    missed_ms = round(counter_ms or 0.0) - known.down_ms - known.disputed_ms
    # The counter is raised when an incident is closed: what is within the line's error is no difference.
    if missed_ms <= known.error_ms - known.disputed_ms:
        return found, held
    rises = [(at_ms, rise * _SECOND_MS) for at_ms, rise in fleet.rises(UNAVAILABLE_SECONDS_TOTAL, key, window)]
    more = told_by_counter(key, held, rises, missed_ms, interval_ms=interval)
    line = overlay(held, [Span(one.start_ms, one.start_ms + one.length_ms(window.end_ms), State.DOWN) for one in more])
    return sorted([*found, *more], key=lambda one: (one.start_ms, one.id)), line


def _from_its_begin(one: Incident, window: Window, fleet: Fleet) -> Incident:
    """An outage that only the gauge shows, from before the window: one of the period in which it began, as those in the log are."""
    if one.source is not Source.GAUGE or one.start_ms != window.start_ms:
        return one
    first_ms = min(entry.runs[0].start_ms for entry in fleet.series_of(GROUP_WRITABLE, one.group))
    if first_ms >= window.start_ms:
        return one
    last = fleet.spans(GROUP_WRITABLE, one.group, Window(first_ms, window.start_ms), at_least(1))[-1]
    return replace(one, start_ms=last.start_ms) if last.state is State.DOWN else one


def _counter_ms(key: GroupKey, window: Window, evidence: Evidence) -> float | None:
    """The counter's rise, less what belongs before the window: an incident is counted when closed, and shown a scrape later."""
    fleet, log = evidence.fleet, evidence.log
    interval_ms = fleet.interval(GROUP_WRITABLE, key).at(window.start_ms)
    rises = fleet.increase(UNAVAILABLE_SECONDS_TOTAL, key, window)
    if () not in rises:
        return None
    before_ms = sum(
        min(one.end_ms, window.start_ms) - one.start_ms
        for one in whole_outages([one for one in log if one.group == key])
        if one.end_ms is not None and one.end_ms >= window.start_ms - interval_ms and one.start_ms < window.start_ms
    )
    return max(0.0, rises[()].rise * _SECOND_MS - before_ms)


def _clusters(groups: Sequence[GroupFigures], amendments: Sequence[Amendment]) -> tuple[ClusterFigures, ...]:
    members: dict[tuple[str, str], list[GroupFigures]] = {}
    for figures in groups:
        members.setdefault((figures.group.namespace, figures.group.cluster), []).append(figures)
    return tuple(_cluster(name, members[name], amendments) for name in sorted(members))


def _cluster(name: tuple[str, str], members: Sequence[GroupFigures], amendments: Sequence[Amendment]) -> ClusterFigures:
    incidents = [one.incident for figures in members for one in figures.outages]
    # Corrections are in the lines already. An exclusion is one of the cluster's if it is about every group of it.
    about = [one for one in amendments if one.state is None and all(one.is_about(m.group) for m in members)]
    window = members[0].window
    # While no group existed, or all were hibernated, there was no cluster.
    awake = {
        one.group: without([Span(*time, State.UP) for time in one.existence.existed(window)], one.hibernated)
        for one in members
    }
    no_group = without(
        [Span(window.start_ms, window.end_ms, State.UNKNOWN)],
        [(one.start_ms, one.end_ms) for spans in awake.values() for one in spans],
    )
    told = []
    # A group that does not exist, or hibernates, keeps no other one from being up, nor from being down.
    for decide, neutral in ((any_up, State.DOWN), (all_up, State.UP)):
        lines = [
            overlay(one.held, [Span(*time, neutral) for time in sorted((*one.existence.absent, *one.hibernated))])
            for one in members
        ]
        account = amend(GroupKey(*name, "*"), combine_present(lines, decide), about)
        counted = without(account.counted, [(one.start_ms, one.end_ms) for one in no_group])
        whole = clip(counted, window)
        told.append(availability(whole, overlapping(incidents, [one for one in whole if one.state is State.DOWN])))
    write, ordered = told
    # What was promised to any of its groups.
    objective = max(figures.objective for figures in members)
    return ClusterFigures(*name, len(members), write, write.verdict(objective), ordered, ordered.verdict(objective))


def as_incomplete(summary: Summary, lacks: Sequence[str]) -> Summary:
    """Mark the summary with what is missing: a met objective becomes undecidable. Without `lacks` it stays as it is."""
    if not lacks:
        return summary
    clusters = tuple(
        replace(
            one, write_verdict=_doubted(one.write_verdict), ordered_write_verdict=_doubted(one.ordered_write_verdict)
        )
        for one in summary.clusters
    )
    return replace(
        summary, groups=tuple(map(_doubted_group, summary.groups)), clusters=clusters, incomplete=tuple(lacks)
    )


def _doubted_group(figures: GroupFigures) -> GroupFigures:
    own = None if figures.own is None else replace(figures.own, verdict=_doubted(figures.own.verdict))
    return replace(figures, verdict=_doubted(figures.verdict), own=own)


def _doubted(verdict: Verdict) -> Verdict:
    return Verdict.UNDECIDABLE if verdict is Verdict.MET else verdict
