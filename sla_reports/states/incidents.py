"""Incidents: the gauge's outages and the operator's log made one; their causes; and which groups went down together.

The log wins on times as far as the gauge may be late: the gauge sees an outage only from scrape to scrape, and most short ones not
at all. What a scrape saw and the log does not explain stays, as *unattributed*. What two sources contradict each other about is
disputed, a state of its own: a scrape says down after the log's end, or before its beginning; scrapes go on saying up between the
loss and the log's end; or two clocks show one outage at two times. What has no end in the window is open (censored).
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from metric_names import CAUSE_CRASH, CAUSE_PARTITION, CAUSE_SWITCHOVER, CAUSES
from sla_reports.states.entities import GroupKey
from sla_reports.states.logged import SWITCHOVER, UNKNOWN_CAUSE, Circumstance, LoggedIncident, whole_outages
from sla_reports.states.spans import Run, ScrapeInterval, Span, State, Window, clip, overlay, without


class Source(StrEnum):
    """Where a figure comes from."""

    LOG = "incident_log"
    GAUGE = "gauge"
    COUNTER = "counter"
    CORRECTION = "correction"


# Wall clock in milliseconds, rounded at both ends.
LOG_ERROR_MS = 1
# The clocks of operator, Kubernetes (which has whole seconds) and Prometheus: what differs by no more is no contradiction.
CLOCKS_MS = 2_000
# Clocks further apart than this do not make one outage of two.
_MOST_SKEW_MS = 3_600_000
# A kill is written before the outage it makes is detected, and a drain's record may end when the pod is gone.
_LEAD_MS = 60_000
# An incident without a proven cause is shown with the circumstances so near to it.
_NEAR_MS = 600_000
_TOGETHER_MS = 30_000
_CRASHES = ("connectionRefused", "containerTerminated", "connectionClosed")
# What the operator names of itself at the moment of the loss; more may be known later.
_AS_FAR_AS_SEEN = (UNKNOWN_CAUSE, CAUSE_CRASH, CAUSE_SWITCHOVER)
UNATTRIBUTED = "unattributed"


@dataclass(frozen=True, slots=True)
class Incident:
    """A time in which a group took no writes. `error_ms` is how far each edge may be off; no `end_ms`: still open."""

    group: GroupKey
    start_ms: int
    end_ms: int | None
    source: Source
    error_ms: int
    cause: str = UNKNOWN_CAUSE
    planned: bool = False
    logged: LoggedIncident | None = None
    seen_by_gauge: bool = False
    skewed: bool = False
    # How much of the gauge's time and of the log's is contradicted by the other of the two.
    disputed_ms: int = 0
    facts: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    # What proves the cause, in words; or, where nothing does, what was near.
    circumstances: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return self.logged.id if self.logged else f"{self.group}@{self.start_ms}"

    def overlaps(self, span: Span) -> bool:
        return self.start_ms < span.end_ms and (self.end_ms is None or self.end_ms > span.start_ms)

    def began_in(self, window: Window) -> bool:
        """Whether it is an outage of the window: each is one of the period in which it began."""
        return window.start_ms <= self.start_ms < window.end_ms

    def whole(self, until_ms: int, *, running: bool) -> tuple[float, bool]:
        """Return how long it lasted, and whether that is a lower bound. If the period is over, time after its end counts too."""
        if self.end_ms is None or (running and self.end_ms > until_ms):
            return float(self.length_ms(until_ms)), True
        return float(self.end_ms - self.start_ms), False

    def is_open(self, until_ms: int) -> bool:
        """Whether it had not ended then: its length is a lower bound."""
        return self.end_ms is None or self.end_ms > until_ms

    def length_ms(self, until_ms: int) -> int:
        """Return how long it lasted, as far as it was seen up to `until_ms`."""
        return max(0, (until_ms if self.end_ms is None else min(self.end_ms, until_ms)) - self.start_ms)


def overlapping(incidents: Iterable[Incident], spans: Sequence[Span]) -> list[Incident]:
    """Return the incidents that overlap one of the spans, which are in order and do not overlap each other.

    Of the spans that begin before an incident's end the last one ends last, so it alone is asked.
    """
    starts = [span.start_ms for span in spans]
    found = []
    for one in incidents:
        before = len(spans) if one.end_ms is None else bisect_left(starts, one.end_ms)
        if before and spans[before - 1].end_ms > one.start_ms:
            found.append(one)
    return found


def reconcile(
    group: GroupKey, gauge: Sequence[Span], log: Iterable[LoggedIncident], *, interval_ms: int | ScrapeInterval,
    sightings: Sequence[Run] | None = None,
) -> tuple[list[Incident], list[Span]]:  # fmt: skip
    """Merge the gauge's outages and the log's into incidents and a line of states; where both have an outage, the log's times hold.

    `sightings` are the gauge's runs that say down: when a scrape really saw it. Without them scrapes are taken to be regular.
    """
    line = _Line(group, gauge, ScrapeInterval.of(interval_ms), sightings)
    logged = [
        one for one in whole_outages([one for one in log if one.group == group]) if one.start_ms < line.window.end_ms
    ]
    found = [
        incident
        for number, one in enumerate(logged)
        if (incident := _from_log(one, logged[number + 1 :], line)) is not None
        and (incident.end_ms is None or incident.end_ms > line.window.start_ms)
    ]
    explained = [(one.start_ms, one.start_ms + one.length_ms(line.window.end_ms)) for one in found]
    alone: list[Span] = []
    disputed: list[tuple[int, Span]] = []
    for down in line.downs:
        for piece in without([down], explained):
            nearest = line.nearest(piece, explained)
            if nearest is None:
                alone.append(piece)
            elif line.contradicts(down, piece, found[nearest]):
                disputed.append((nearest, piece))
    alone, twice = _of_two_clocks(found, alone, line)
    disputed += twice
    skewed = {number for number, _ in twice}
    disputed += [
        (number, piece)
        for number, one in enumerate(found)
        if number not in skewed
        for piece in line.goes_on_saying_up(one)
    ]
    incidents = [
        _with_dispute(one, [piece for owner, piece in disputed if owner == number], by_clocks=number in skewed)
        for number, one in enumerate(found)
    ]
    incidents += [_from_gauge(group, span, line) for span in alone]
    held = _held(line, incidents, [piece for _, piece in disputed])
    return sorted(incidents, key=lambda one: (one.start_ms, one.id)), held


class _Line:
    """The gauge's states over the window, and what its scrapes can and cannot have seen."""

    def __init__(
        self, group: GroupKey, gauge: Sequence[Span], interval: ScrapeInterval, sightings: Sequence[Run] | None
    ) -> None:
        self.group, self.gauge, self.interval = group, gauge, interval
        self.window = Window(gauge[0].start_ms, gauge[-1].end_ms)
        self.downs = [span for span in gauge if span.state is State.DOWN]
        self._sightings = sightings

    def last_seen_ms(self, down: Span) -> int:
        """Return the last scrape that said down."""
        if self._sightings is None:
            return max(down.start_ms, down.end_ms - self.interval.at(down.end_ms))
        seen = [
            min(run.end_ms, down.end_ms)
            for run in self._sightings
            if run.start_ms < down.end_ms and run.end_ms >= down.start_ms
        ]
        return max(seen, default=down.start_ms)

    def nearest(self, piece: Span, explained: Sequence[tuple[int, int]]) -> int | None:
        """Return the number of the logged outage within two scrape intervals of a piece; None if there is none."""
        apart = [
            (max(start_ms - piece.end_ms, piece.start_ms - end_ms, 0), number)
            for number, (start_ms, end_ms) in enumerate(explained)
        ]
        near = [one for one in apart if one[0] <= 2 * self.interval.at(piece.start_ms)]
        return min(near)[1] if near else None

    def contradicts(self, down: Span, piece: Span, logged: Incident) -> bool:
        """Whether a scrape said down in the piece: what follows the last one that did is only how long a sample holds."""
        if piece.start_ms < logged.start_ms:
            return True
        return self.last_seen_ms(down) > max(piece.start_ms, logged.end_ms or piece.start_ms) + CLOCKS_MS

    def goes_on_saying_up(self, one: Incident) -> list[Span]:
        """Return the time between detection and end of a logged outage in which scrapes said up."""
        if one.logged is None or one.end_ms is None:
            return []
        believed = Span(one.logged.started_at_ms, min(one.end_ms, self.window.end_ms), State.UP)
        inside = [piece for span in self.gauge if span.state is State.UP for piece in _common_part(span, believed)]
        return [
            replace(piece, state=State.DISPUTED)
            for piece in inside
            if piece.length_ms >= self.interval.at(piece.start_ms) * 5 // 2
        ]

    def confirms(self, one: Incident, others: Sequence[Incident]) -> bool:
        """Whether scrapes said down for half of a logged outage; what another logged one explains says nothing of this one."""
        until_ms, slack_ms = self.window.end_ms, 2 * self.interval.at(one.start_ms)
        logged = Span(one.start_ms, one.start_ms + one.length_ms(until_ms), State.DOWN)
        elsewhere = [(o.start_ms - slack_ms, o.start_ms + o.length_ms(until_ms) + slack_ms) for o in others]
        seen = [piece for down in without(self.downs, elsewhere) for piece in _common_part(down, logged)]
        return bool(seen) and 2 * sum(piece.length_ms for piece in seen) >= logged.length_ms - slack_ms

    def unseen_beside(self, spans: Sequence[Span]) -> int:
        """Return how long the state is unknown right before and after: an outage may have been longer by that."""
        low_ms, high_ms = spans[0].start_ms, spans[-1].end_ms
        slack_ms = 2 * self.interval.at(low_ms)
        unknown = [span for span in self.gauge if span.state is State.UNKNOWN]
        return sum(
            span.length_ms
            for span in unknown
            if 0 <= low_ms - span.end_ms <= slack_ms or 0 <= span.start_ms - high_ms <= slack_ms
        )


def _common_part(one: Span, other: Span) -> list[Span]:
    low, high = max(one.start_ms, other.start_ms), min(one.end_ms, other.end_ms)
    return [Span(low, high, one.state)] if low < high else []


def _of_two_clocks(
    found: Sequence[Incident], alone: Sequence[Span], line: _Line
) -> tuple[list[Span], list[tuple[int, Span]]]:
    """Outages that the log has and no scrape confirms, each with one of its length that only the gauge knows.

    Also where no scrape was made in the logged time: that it was one outage cannot be proven there, nor that it were two.
    """
    left, pairs = list(alone), []
    for number, one in enumerate(found):
        length_ms = one.length_ms(line.window.end_ms)
        if one.logged is None or one.end_ms is None or length_ms * 2 < line.interval.at(one.start_ms) * 3:
            continue
        if line.confirms(one, [other for other in found if other is not one]):
            continue
        alike = [
            together
            for together in _close_together(left, line.interval)
            if _may_have_lasted(together, length_ms, line) and abs(together[0].start_ms - one.start_ms) <= _MOST_SKEW_MS
        ]
        if alike:
            chosen = min(alike, key=lambda together: abs(together[0].start_ms - one.start_ms))
            left = [span for span in left if span not in chosen]
            pairs += [(number, span) for span in chosen]
    return left, pairs


def _may_have_lasted(seen: Sequence[Span], length_ms: int, line: _Line) -> bool:
    seen_ms, error_ms = seen[-1].end_ms - seen[0].start_ms, 2 * line.interval.at(seen[0].start_ms)
    return -error_ms <= length_ms - seen_ms <= error_ms + line.unseen_beside(seen)


def _close_together(spans: Sequence[Span], interval: ScrapeInterval) -> list[list[Span]]:
    """The spans, those that a single scrape parts as one."""
    found: list[list[Span]] = []
    for span in spans:
        if found and span.start_ms - found[-1][-1].end_ms <= 2 * interval.at(span.start_ms):
            found[-1].append(span)
        else:
            found.append([span])
    return found


def _with_dispute(one: Incident, disputed: Sequence[Span], *, by_clocks: bool) -> Incident:
    if not disputed:
        return one
    # A sample is never earlier than what it shows: if the gauge shows an outage before its beginning, the clocks differ.
    early = one.logged is not None and not one.logged.start_is_late and any(p.start_ms < one.start_ms for p in disputed)
    disputed_ms = sum(piece.length_ms for piece in disputed)
    return replace(
        one, disputed_ms=disputed_ms, skewed=by_clocks or early, seen_by_gauge=one.seen_by_gauge or by_clocks
    )


def _from_log(one: LoggedIncident, later: Sequence[LoggedIncident], line: _Line) -> Incident | None:
    interval_ms = line.interval.at(one.started_at_ms)
    end_ms, error_ms = one.end_ms, LOG_ERROR_MS
    if end_ms is None:
        end_ms, error_ms = _end_by_gauge(one, later, line.gauge, 2 * interval_ms), interval_ms
    slack_ms = 2 * interval_ms
    until_ms = line.window.end_ms if end_ms is None else end_ms
    seen = any(s.start_ms < until_ms + slack_ms and s.end_ms > one.start_ms - slack_ms for s in line.downs)
    return Incident(
        group=one.group, start_ms=one.start_ms, end_ms=end_ms, source=Source.LOG,
        error_ms=max(error_ms, interval_ms if one.start_is_late else 0), cause=one.cause,
        planned=one.kind == SWITCHOVER, logged=one, seen_by_gauge=seen, facts=one.facts,
    )  # fmt: skip


def _end_by_gauge(
    one: LoggedIncident, later: Sequence[LoggedIncident], gauge: Sequence[Span], slack_ms: int
) -> int | None:
    """The log does not say: the gauge's first up after the last thing known, or the group's next incident, whichever is first.

    The sample that still says up may be older than the fault: what is up before a down that follows at once is only stale.
    """
    last_known_ms = one.started_at_ms + round(max(one.steps_ms.values(), default=0.0))
    near = [span for span in gauge if span.state is State.DOWN and span.start_ms <= last_known_ms + slack_ms]
    from_ms = max(last_known_ms, near[-1].end_ms if near else last_known_ms)
    ups = [max(span.start_ms, from_ms) for span in gauge if span.state is State.UP and span.end_ms > from_ms]
    following = [other.start_ms for other in later if other.start_ms > last_known_ms]
    return min([*ups[:1], *following[:1]], default=None)


def _from_gauge(group: GroupKey, span: Span, line: _Line) -> Incident:
    return Incident(
        group=group, start_ms=span.start_ms, end_ms=None if span.end_ms >= line.window.end_ms else span.end_ms,
        source=Source.GAUGE, error_ms=line.interval.at(span.start_ms), cause=UNATTRIBUTED, seen_by_gauge=True,
    )  # fmt: skip


def _held(line: _Line, incidents: Sequence[Incident], disputed: Sequence[Span]) -> list[Span]:
    """The gauge's line with every down taken away, all incidents put in, and what is disputed put over them."""
    bare = overlay(line.gauge, [replace(down, state=State.UP) for down in line.downs])
    until_ms = line.window.end_ms
    found = (Span(one.start_ms, one.start_ms + one.length_ms(until_ms), State.DOWN) for one in incidents)
    down = overlay(bare, (span for span in found if span.length_ms > 0))
    return clip(overlay(down, (replace(one, state=State.DISPUTED) for one in disputed)), line.window)


def told_by_counter(
    group: GroupKey,
    held: Sequence[Span],
    rises: Sequence[tuple[int, float]],
    missed_ms: int,
    *,
    interval_ms: int | ScrapeInterval,
) -> list[Incident]:
    """Return the outages that only the counter of unavailable seconds knows: `missed_ms` in all.

    The operator raises it when an outage ends, so each lies before the sample that shows the rise (`rises`: when, and by how many
    milliseconds), in time that is not accounted for as down yet; the rises of which the line knows least come first.
    """
    spans, found, interval = list(held), [], ScrapeInterval.of(interval_ms)
    unexplained = sorted(
        ((amount_ms - _down_before(held, at_ms, amount_ms, interval.at(at_ms)), at_ms) for at_ms, amount_ms in rises),
        reverse=True,
    )
    for amount_ms, at_ms in unexplained:
        left_ms = min(missed_ms, round(amount_ms))
        for span in reversed([one for one in spans if one.start_ms < at_ms and one.state in {State.UP, State.UNKNOWN}]):
            if left_ms <= 0:
                break
            end_ms = min(span.end_ms, at_ms)
            piece = Span(max(span.start_ms, end_ms - left_ms), end_ms, State.DOWN)
            left_ms -= piece.length_ms
            missed_ms -= piece.length_ms
            spans = overlay(spans, [piece])
            found.append(
                Incident(group, piece.start_ms, piece.end_ms, Source.COUNTER, interval.at(at_ms), cause=UNATTRIBUTED)
            )
    return found


def _down_before(held: Sequence[Span], at_ms: int, amount_ms: float, interval_ms: int) -> int:
    """How much of a rise the line explains: what ended shortly before the sample that shows it."""
    low_ms, high_ms = at_ms - round(amount_ms) - 2 * interval_ms, at_ms + CLOCKS_MS
    near = [one for one in held if one.state in {State.DOWN, State.DISPUTED}]
    return sum(max(0, min(one.end_ms, high_ms) - max(one.start_ms, low_ms)) for one in near)


def attribute(incidents: Sequence[Incident], circumstances: Sequence[Circumstance], *, until_ms: int) -> list[Incident]:
    """Return the incidents with their causes, and with what proves them or was near; open ones last until `until_ms`.

    The cause is, in this order: what the operator itself named in its log; a circumstance (drain, kill for memory, upgrade, disk,
    partition) that touches the incident's beginning; what the trigger proves (`_CRASHES`). Silence alone proves nothing, so the
    cause stays unknown. What only the gauge saw stays unattributed unless a circumstance explains it.
    """
    found = []
    for one in incidents:
        proving = [c for c in circumstances if c.cause != UNKNOWN_CAUSE and _is_about(c, one) and _touches(c, one)]
        cause = _cause(one, proving)
        told = [c for c in proving if c.cause == cause]
        if cause in (UNKNOWN_CAUSE, UNATTRIBUTED):
            low_ms, high_ms = one.start_ms - _NEAR_MS, one.start_ms + one.length_ms(until_ms) + _NEAR_MS
            around = [c for c in circumstances if c.group in (None, one.group)]
            told = [c for c in around if c.start_ms <= high_ms and c.end_ms >= low_ms]
        found.append(replace(one, cause=cause, circumstances=tuple(c.note for c in told if c.note)))
    return found


def _cause(incident: Incident, proving: Sequence[Circumstance]) -> str:
    logged = incident.logged
    # A crash or a planned switchover in the log is as much as the operator could see then: a more particular cause wins.
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
    return circumstance.start_ms <= latest_ms and circumstance.end_ms >= incident.start_ms - _LEAD_MS


@dataclass(frozen=True, slots=True)
class Event:
    """Incidents that began together; `common` holds the facts that are the same for every one of them."""

    start_ms: int
    groups: tuple[GroupKey, ...]
    incidents: tuple[Incident, ...]
    common: tuple[tuple[str, str], ...]


def events(incidents: Sequence[Incident]) -> list[Event]:
    """Group incidents that began together into events, in order of time. Planned switchovers are left out."""
    found: list[list[Incident]] = []
    ordered = sorted((one for one in incidents if not one.planned), key=lambda one: (one.start_ms, one.group, one.id))
    for incident in ordered:
        if found and incident.start_ms - found[-1][-1].start_ms <= _TOGETHER_MS:
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
