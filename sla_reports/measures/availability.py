"""Availability with its bounds, and whether an objective was met.

    availability = up / (up + down)            null where nothing is known
    worst case   = up / (up + down + unknown)  the unknown time was down
    best case    = (up + unknown) / (up + down + unknown)
    coverage     = (up + down) / (up + down + unknown)

Met is what holds in the worst case, breached what fails in the best case; between the two it is undecidable, and says so. The
line of states comes from the incident log and the gauge. Where the counter of unavailable seconds rose by more than the line
has down, scrapes missed outages that no log tells of: the difference is taken from up.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from sla_reports.outages.incidents import Incident, Source
from sla_reports.states.spans import Span, State, total_ms


class Verdict(StrEnum):
    """Whether an objective held."""

    MET = "met"
    BREACHED = "breached"
    UNDECIDABLE = "undecidable"


@dataclass(frozen=True, slots=True)
class Availability:
    """Milliseconds in each state; `source` is what down comes from, `error_ms` how far down may be off."""

    up_ms: int
    down_ms: int
    unknown_ms: int
    source: Source
    error_ms: int

    @property
    def total_ms(self) -> int:
        return self.up_ms + self.down_ms + self.unknown_ms

    @property
    def availability(self) -> float | None:
        known = self.up_ms + self.down_ms
        return self.up_ms / known if known else None

    @property
    def worst(self) -> float:
        return self.up_ms / self.total_ms if self.total_ms else 0.0

    @property
    def best(self) -> float:
        return (self.up_ms + self.unknown_ms) / self.total_ms if self.total_ms else 1.0

    @property
    def coverage(self) -> float:
        return (self.up_ms + self.down_ms) / self.total_ms if self.total_ms else 0.0

    def verdict(self, objective: float) -> Verdict:
        """Of an objective as 0.9995. A window without any counted time is undecidable."""
        if not 0.0 < objective < 1.0:
            raise ValueError(f"objective {objective}: expected a share between 0 and 1, as 0.9995")
        if not self.total_ms:
            return Verdict.UNDECIDABLE
        if self.worst >= objective:
            return Verdict.MET
        return Verdict.BREACHED if self.best < objective else Verdict.UNDECIDABLE


def availability(
    counted: Sequence[Span], incidents: Sequence[Incident], *, interval_ms: int, counter_ms: float | None = None
) -> Availability:
    """Of the spans that count. `counter_ms` is what the counter of unavailable seconds rose by, where nothing was excluded."""
    up, down, unknown = (total_ms(counted, state) for state in State)
    own = [one for one in incidents if any(one.overlaps(span) for span in counted)]
    source = Source.GAUGE if any(one.source is Source.GAUGE for one in own) or not own else Source.LOG
    error_ms = sum(2 * one.error_ms for one in own)
    missed_ms = round(counter_ms or 0.0) - down
    # The counter is raised when an incident is closed: what is within its error of the line is no difference.
    if missed_ms > error_ms:
        taken = min(missed_ms, up)
        return Availability(up - taken, down + taken, unknown, Source.COUNTER, interval_ms)
    return Availability(up, down, unknown, source, error_ms)


def sum_of(parts: Sequence[Availability]) -> Availability:
    """Over several groups, by their time: the availability of an average group."""
    sources = {part.source for part in parts}
    return Availability(
        sum(part.up_ms for part in parts),
        sum(part.down_ms for part in parts),
        sum(part.unknown_ms for part in parts),
        max(sources, key=list(Source).index) if sources else Source.GAUGE,
        sum(part.error_ms for part in parts),
    )
