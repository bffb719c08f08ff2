"""Incidents: the gauge's outages and the operator's log made one.

The log wins on times: the gauge sees an outage only from scrape to scrape, and most short ones not at all. What the gauge saw
and the log does not explain stays, as *unattributed*: it is never dropped, for it may be what the operator did not notice. And what
ends after the window, or has no end anybody knows, is open (censored): it counts as long as it was seen.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from sla_reports.outages.logged import SWITCHOVER, UNKNOWN_CAUSE, LoggedIncident, whole_outages
from sla_reports.states.entities import GroupKey
from sla_reports.states.spans import Span, State, Window, clip, overlay


class Source(StrEnum):
    """Where a figure comes from."""

    LOG = "incident_log"
    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"
    CORRECTION = "correction"


# Wall clock in milliseconds, rounded at both ends.
LOG_ERROR_MS = 1
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
    facts: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    # What proves the cause, in words; or, where nothing does, what was near.
    circumstances: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return self.logged.id if self.logged else f"{self.group}@{self.start_ms}"

    def overlaps(self, span: Span) -> bool:
        return self.start_ms < span.end_ms and (self.end_ms is None or self.end_ms > span.start_ms)

    def is_open(self, until_ms: int) -> bool:
        """Whether it had not ended then: its length is a lower bound."""
        return self.end_ms is None or self.end_ms > until_ms

    def length_ms(self, until_ms: int) -> int:
        """How long it lasted, as far as it was seen up to `until_ms`."""
        return max(0, (until_ms if self.end_ms is None else min(self.end_ms, until_ms)) - self.start_ms)


def reconcile(
    group: GroupKey, gauge: Sequence[Span], log: Iterable[LoggedIncident], *, interval_ms: int
) -> tuple[list[Incident], list[Span]]:
    """The group's incidents in the window of `gauge`, and what held when, with the log's times in place of the gauge's.

    A gauge outage belongs to a logged one if it lies within two scrape intervals of it: one because the gauge tells up to one
    late, one for clocks that differ.
    """
    window = Window(gauge[0].start_ms, gauge[-1].end_ms)
    logged = [one for one in whole_outages([one for one in log if one.group == group]) if one.start_ms < window.end_ms]
    downs = [span for span in gauge if span.state is State.DOWN]
    tolerance_ms = 2 * interval_ms
    incidents = [
        found
        for number, one in enumerate(logged)
        if (found := _from_log(one, logged[number + 1 :], gauge, interval_ms)) is not None
        and (found.end_ms is None or found.end_ms > window.start_ms)
    ]
    explained = [(one.start_ms, one.length_ms(window.end_ms) + one.start_ms) for one in incidents]
    left_over: list[Span] = []
    for down in downs:
        near = [(start - tolerance_ms, end + tolerance_ms) for start, end in explained]
        left_over += [piece for piece in _without(down, explained) if _without(piece, near)]
    incidents += [_from_gauge(group, span, window, interval_ms) for span in left_over]
    held = _held(gauge, downs, incidents, window)
    return sorted(incidents, key=lambda one: (one.start_ms, one.id)), held


def _from_log(
    one: LoggedIncident, later: Sequence[LoggedIncident], gauge: Sequence[Span], interval_ms: int
) -> Incident | None:
    end_ms, error_ms, source = one.end_ms, LOG_ERROR_MS, Source.LOG
    if end_ms is None:
        end_ms, error_ms = _end_by_gauge(one, later, gauge, 2 * interval_ms), interval_ms
    downs = [span for span in gauge if span.state is State.DOWN]
    slack_ms = 2 * interval_ms
    until_ms = gauge[-1].end_ms if end_ms is None else end_ms
    seen = [span for span in downs if span.start_ms < until_ms + slack_ms and span.end_ms > one.start_ms - slack_ms]
    # A sample is never earlier than what it shows: an outage the gauge shows before it began tells of clocks that differ.
    skewed = bool(seen) and not one.start_is_late and seen[0].start_ms < one.start_ms - LOG_ERROR_MS
    return Incident(
        group=one.group,
        start_ms=one.start_ms,
        end_ms=end_ms,
        source=source,
        error_ms=max(error_ms, interval_ms if one.start_is_late else 0),
        cause=one.cause,
        planned=one.kind == SWITCHOVER,
        logged=one,
        seen_by_gauge=bool(seen),
        skewed=skewed,
        facts=one.facts,
    )


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


def _from_gauge(group: GroupKey, span: Span, window: Window, interval_ms: int) -> Incident:
    return Incident(
        group=group,
        start_ms=span.start_ms,
        end_ms=None if span.end_ms >= window.end_ms else span.end_ms,
        source=Source.GAUGE,
        error_ms=interval_ms,
        cause=UNATTRIBUTED,
        seen_by_gauge=True,
    )


def _without(span: Span, taken: Iterable[tuple[int, int]]) -> list[Span]:
    """What of the span lies in none of the intervals."""
    left = [span]
    for start_ms, end_ms in taken:
        left = [
            piece
            for one in left
            for piece in (
                Span(one.start_ms, min(one.end_ms, start_ms), one.state),
                Span(max(one.start_ms, end_ms), one.end_ms, one.state),
            )
            if piece.start_ms < piece.end_ms
        ] if start_ms < end_ms else left  # fmt: skip
    return left


def _held(
    gauge: Sequence[Span],
    downs: Sequence[Span],
    incidents: Sequence[Incident],
    window: Window,
) -> list[Span]:
    """The gauge's line with every down that the log explains taken away, and all incidents put in."""
    line = overlay(gauge, [Span(down.start_ms, down.end_ms, State.UP) for down in downs])
    found = (Span(one.start_ms, one.start_ms + one.length_ms(window.end_ms), State.DOWN) for one in incidents)
    return clip(overlay(line, (span for span in found if span.length_ms > 0)), window)
