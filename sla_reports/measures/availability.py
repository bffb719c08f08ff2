"""Availability with its bounds and verdict, by group, cause, stage and place, and its error budget (docs/tasks/sla.md).

    availability = up / (up + down)                   null where nothing is known
    worst case   = up / all                           what is unknown or disputed was down
    best case    = (up + unknown + disputed) / all    all = up + down + unknown + disputed
    coverage     = (up + down) / all

Met is what holds in the worst case, breached what fails in the best case; between the two it is undecidable.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sla_reports.measures.recovery import STAGES, Distribution, distribution, poisson_bounds, stages_of
from sla_reports.states.entities import GroupKey
from sla_reports.states.incidents import Incident, Source, overlapping
from sla_reports.states.spans import Span, State, Window, clip, total_ms, without

BY_GROUP: Mapping[str, Callable[[GroupKey], str]] = {
    "group": str,
    "cluster": lambda group: f"{group.namespace}/{group.cluster}",
    "namespace": lambda group: group.namespace,
}
# Down time of an incident that is in none of its stages, and of one without stages.
NOT_TOLD = "notTold"
BY_LOST_MASTER = ("zone", "rack", "node", "version", "tenant")
_HOUR_MS = 3_600_000
BURN_WINDOWS_MS = {"1h": _HOUR_MS, "6h": 6 * _HOUR_MS, "3d": 72 * _HOUR_MS}


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
        """Judge an objective, as 0.9995. A window without any counted time is undecidable."""
        if not 0.0 < objective < 1.0:
            raise ValueError(f"objective {objective}: expected a share between 0 and 1, as 0.9995")
        if not self.total_ms:
            return Verdict.UNDECIDABLE
        if self.worst >= objective:
            return Verdict.MET
        return Verdict.BREACHED if self.best < objective else Verdict.UNDECIDABLE


def availability(counted: Sequence[Span], incidents: Sequence[Incident]) -> Availability:
    """Sum up the spans that count. The incidents give the source of the down time and how far it may be off."""
    up, down, unknown, disputed = (total_ms(counted, state) for state in State)
    own = overlapping(incidents, counted)
    sources = {one.source for one in own}
    source = next(
        (one for one in (Source.COUNTER, Source.GAUGE) if one in sources), Source.LOG if own else Source.GAUGE
    )
    return Availability(up, down, unknown, source, sum(2 * one.error_ms for one in own) + disputed, disputed)


def sum_of(parts: Sequence[Availability]) -> Availability:
    """Add up several groups' milliseconds: the availability of an average group."""
    sources = {part.source for part in parts}
    return Availability(
        sum(part.up_ms for part in parts), sum(part.down_ms for part in parts),
        sum(part.unknown_ms for part in parts), max(sources, key=list(Source).index) if sources else Source.GAUGE,
        sum(part.error_ms for part in parts), sum(part.disputed_ms for part in parts),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Share:
    """Incidents of one value of a dimension: how many, how long, and which share of all time lost they are."""

    value: str
    incidents: int
    down_ms: int
    share: float
    rto: Distribution


def availability_by(parts: Iterable[tuple[str, Availability]]) -> dict[str, Availability]:
    """Return the sum of the parts of each value (a group's cluster, a zone of its masters), in order of the values."""
    by_value: dict[str, list[Availability]] = {}
    for value, part in parts:
        by_value.setdefault(value, []).append(part)
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
    """Divide the down time that counts among the incidents; if two overlap, the earlier one gets the time."""
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
    told = stages_of(one.logged)
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
    """All their down time by stage, in the order of a failover, and the rest that is in no stage."""
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


@dataclass(frozen=True, slots=True)
class Forecast:
    """What will have been spent when the period ends, and when the budget was or will be gone (None: not in the period)."""

    spent_ms: float
    low_ms: float
    high_ms: float
    gone_at_ms: int | None


@dataclass(frozen=True, slots=True)
class Budget:
    """Milliseconds of down allowed in the period, and what became of them."""

    allowed_ms: float
    spent_ms: int
    burn_rates: Mapping[str, float | None]
    forecast: Forecast | None

    @property
    def left_ms(self) -> float:
        return self.allowed_ms - self.spent_ms


def budget(
    counted: Sequence[Span],
    period: Window,
    *,
    objective: float,
    now_ms: int,
    spent_ms: int,
    failures: int,
    excluded_ms: int = 0,
) -> Budget:
    """Return the error budget of the spans that count in the period. `now_ms` is where the data ends, if the period still runs.

    `spent_ms` is the down of the availability.
    """
    allowed_ms = (1 - objective) * (period.length_ms - excluded_ms)
    until_ms = min(now_ms, period.end_ms)
    return Budget(
        allowed_ms=allowed_ms,
        spent_ms=spent_ms,
        burn_rates={name: _burn(counted, until_ms, ms, objective) for name, ms in BURN_WINDOWS_MS.items()},
        forecast=_forecast(counted, period, until_ms, spent_ms, allowed_ms, failures)
        if until_ms > period.start_ms
        else None,
    )


def _burn(counted: Sequence[Span], until_ms: int, length_ms: int, objective: float) -> float | None:
    """None where nothing is known of those hours."""
    if until_ms <= length_ms:
        return None
    last = Window(until_ms - length_ms, until_ms)
    pieces = [piece for span in counted for piece in clip([span], last)]
    down, up = total_ms(pieces, State.DOWN), total_ms(pieces, State.UP)
    return down / (up + down) / (1 - objective) if up + down else None


def _forecast(
    counted: Sequence[Span], period: Window, until_ms: int, spent_ms: int, allowed_ms: float, failures: int
) -> Forecast:
    """At the rate and the mean length of the failures so far; without any the low and middle are what is spent now."""
    passed_ms, ahead_ms = until_ms - period.start_ms, period.end_ms - until_ms
    each_ms = spent_ms / failures if failures else 0.0
    low, high = (bound * ahead_ms / passed_ms * each_ms for bound in poisson_bounds(failures))
    rate = spent_ms / passed_ms
    gone_at_ms = _spent_at_ms(counted, allowed_ms)
    if gone_at_ms is None and rate > 0:
        at_ms = until_ms + max(0.0, allowed_ms - spent_ms) / rate
        gone_at_ms = round(at_ms) if at_ms <= period.end_ms else None
    return Forecast(spent_ms + rate * ahead_ms, spent_ms + low, spent_ms + high, gone_at_ms)


def _spent_at_ms(counted: Sequence[Span], allowed_ms: float) -> int | None:
    """The moment in which the last of the budget was spent; None while some is left."""
    left_ms = allowed_ms
    for span in counted:
        if span.state is State.DOWN:
            if span.length_ms > left_ms:
                return span.start_ms + round(left_ms)
            left_ms -= span.length_ms
    return None
