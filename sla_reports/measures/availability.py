"""Availability with its bounds, and whether an objective was met.

    availability = up / (up + down)                   null where nothing is known
    worst case   = up / all                           what is unknown or disputed was down
    best case    = (up + unknown + disputed) / all    all = up + down + unknown + disputed
    coverage     = (up + down) / all

Met is what holds in the worst case, breached what fails in the best case; between the two it is undecidable, and says so. The
line of states is made of the incident log, the gauge and the counter of unavailable seconds (`outages/incidents.py`); disputed is
what two of them contradict each other about.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from sla_reports.outages.incidents import Incident, Source, overlapping
from sla_reports.states.spans import Span, State, total_ms


class Verdict(StrEnum):
    """Whether an objective held."""

    MET = "met"
    BREACHED = "breached"
    UNDECIDABLE = "undecidable"


@dataclass(frozen=True, slots=True)
class Availability:
    """Milliseconds in each state; `source` is what down comes from, `error_ms` how far it may be off (with what is disputed)."""

    up_ms: int
    down_ms: int
    unknown_ms: int
    source: Source
    error_ms: int
    disputed_ms: int = 0

    @property
    def total_ms(self) -> int:
        return self.up_ms + self.down_ms + self.unknown_ms + self.disputed_ms

    @property
    def availability(self) -> float | None:
        known = self.up_ms + self.down_ms
        return self.up_ms / known if known else None

    @property
    def worst(self) -> float:
        return self.up_ms / self.total_ms if self.total_ms else 0.0

    @property
    def best(self) -> float:
        return 1 - self.down_ms / self.total_ms if self.total_ms else 1.0

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


def availability(counted: Sequence[Span], incidents: Sequence[Incident]) -> Availability:
    """Of the spans that count; the incidents tell where their down time comes from and how far it may be off."""
    up, down, unknown, disputed = (total_ms(counted, state) for state in State)
    own = overlapping(incidents, counted)
    sources = {one.source for one in own}
    source = next(
        (one for one in (Source.COUNTER, Source.GAUGE) if one in sources), Source.LOG if own else Source.GAUGE
    )
    return Availability(up, down, unknown, source, sum(2 * one.error_ms for one in own) + disputed, disputed)


def sum_of(parts: Sequence[Availability]) -> Availability:
    """Over several groups, by their time: the availability of an average group."""
    sources = {part.source for part in parts}
    return Availability(
        sum(part.up_ms for part in parts),
        sum(part.down_ms for part in parts),
        sum(part.unknown_ms for part in parts),
        max(sources, key=list(Source).index) if sources else Source.GAUGE,
        sum(part.error_ms for part in parts),
        sum(part.disputed_ms for part in parts),
    )
