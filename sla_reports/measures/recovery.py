"""How long recovery took, stage by stage and on average, and what was at risk meanwhile. Formulas: docs/tasks/sla.md.

RTO of an incident: from the lost master's last sign of life until a write could be acknowledged again. Its stages follow each
other without a hole, so they add up to it. Quantiles are those of Kaplan and Meier: an incident that is still open has lasted
*at least* so long, and to drop it would flatter. Without open ones that is the plain empirical quantile. None: not reached.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from metric_names import (
    FAILOVER_PHASE_SECONDS,
    FORMER_PHASE_IN_SYNC,
    LABEL_PHASE,
    PHASE_IN_SYNC,
    PHASES,
    SYNC_STATE_SET_SIZE,
    UNCLEAN_ELECTIONS_TOTAL,
    VOTING_REPLICAS,
)
from sla_reports.states.counters import Increase, histogram_quantile
from sla_reports.states.entities import Fleet, GroupKey
from sla_reports.states.incidents import Incident
from sla_reports.states.logged import LoggedIncident
from sla_reports.states.spans import Span, State, Window, at_least, clip, overlay, total_ms, without

STAGES = ("detect", "elect", "roleChange", "index", "route", "firstSuccess")
_STAGE_OF_STEP = {
    "fenced": "elect", "decided": "elect", "committed": "elect", "notified": "roleChange", "roleChanged": "roleChange",
    "indexCaughtUp": "index", "routeVisible": "route", "inSync": "firstSuccess", "firstAck": "firstSuccess",
}  # fmt: skip
QUANTILES = (0.5, 0.95, 0.99)
CONFIDENCE = 0.95
_BUCKET = f"{FAILOVER_PHASE_SECONDS}_bucket"


@dataclass(frozen=True, slots=True)
class Distribution:
    """Milliseconds: of `n` durations `censored` are lower bounds. A quantile is None where too many are open."""

    n: int
    censored: int
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    max_ms: float | None


@dataclass(frozen=True, slots=True)
class Recovery:
    """The RTO and its stages; `dominant` is the stage with the greatest share of all time lost."""

    total: Distribution
    stages: Mapping[str, Distribution]
    shares: Mapping[str, float]
    dominant: str | None


def recovery(incidents: Sequence[Incident], *, until_ms: int, running: bool = False) -> Recovery:
    """Return RTO and stages of the unplanned incidents in the log. What only a gauge saw is too coarse for a quantile.

    If the period is over, an incident counts with its whole length, also beyond the period's end: no other period counts it.
    """
    logged = [one for one in incidents if one.logged is not None and not one.planned]
    total = distribution([one.whole(until_ms, running=running) for one in logged])
    by_stage = [stages_of(one.logged) for one in logged if one.logged is not None]
    spent = {stage: sum(stages.get(stage, 0.0) for stages in by_stage) for stage in STAGES}
    whole = sum(spent.values())
    return Recovery(
        total=total,
        stages={
            stage: distribution([(stages[stage], False) for stages in by_stage if stage in stages]) for stage in STAGES
        },
        shares={stage: spent[stage] / whole if whole else 0.0 for stage in STAGES},
        dominant=max(STAGES, key=lambda stage: spent[stage]) if whole else None,
    )


def stages_of(logged: LoggedIncident | None) -> dict[str, float]:
    """Return how long each stage took that was reached. A step of a newer operator belongs to the stage that follows it."""
    if logged is None:
        return {}
    found = {"detect": logged.detection_ms} if logged.detection_ms is not None else {}
    steps = sorted(((at_ms, step) for step, at_ms in logged.steps_ms.items()), key=lambda one: one[0])
    pending = 0.0
    for (before_ms, _), (at_ms, step) in pairwise([(0.0, "detected"), *steps]):
        pending += max(0.0, at_ms - before_ms)
        stage = _STAGE_OF_STEP.get(step)
        if stage is not None:
            found[stage] = found.get(stage, 0.0) + pending
            pending = 0.0
    return {stage: value for stage, value in found.items() if value is not None}


def distribution(durations: Sequence[tuple[float, bool]]) -> Distribution:
    """Return count and quantiles of durations, each with whether it is only a lower bound."""
    p50, p95, p99 = (kaplan_meier_quantile(durations, q) for q in QUANTILES)
    ended = [duration for duration, is_open in durations if not is_open]
    censored = len(durations) - len(ended)
    longest = max((duration for duration, _ in durations), default=None)
    known = longest is not None and (longest, True) not in durations
    return Distribution(len(durations), censored, p50, p95, p99, longest if known else None)


def kaplan_meier_quantile(durations: Sequence[tuple[float, bool]], quantile: float) -> float | None:
    """Return the smallest time by which the share `quantile` had ended; None if too many are still open."""
    at_risk, surviving = len(durations), 1.0
    # Of equal durations those that ended come first: an open one was still open then.
    for duration, is_open in sorted(durations):
        if not is_open:
            surviving *= (at_risk - 1) / at_risk
            if surviving <= 1.0 - quantile + 1e-12:
                return duration
        at_risk -= 1
    return None


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean of `n` events and its interval in milliseconds; None: no bound on that side, or nothing to take a mean of."""

    n: int
    mean_ms: float | None
    low_ms: float | None
    high_ms: float | None


def mttr(incidents: Sequence[Incident], window: Window, *, running: bool = False) -> Estimate:
    """Mean time to repair of the unplanned failures that began in the window."""
    durations = [one.whole(window.end_ms, running=running) for one in _failures(incidents, window)]
    ended = sum(not is_open for _, is_open in durations)
    return _estimate(sum(length for length, _ in durations), ended, shape_of_low=ended)


def mtbf(incidents: Sequence[Incident], window: Window, *, up_ms: int) -> Estimate:
    """Return the mean time between failures: `up_ms` divided by the number of unplanned failures that began in the window.

    Without a failure the mean and the upper bound of its 95 % interval are None.
    """
    failures = len(_failures(incidents, window))
    # A count over a fixed time: one more event might have been just about to come.
    return _estimate(float(up_ms), failures, shape_of_low=failures + 1)


def poisson_bounds(count: int) -> tuple[float, float]:
    """Return Garwood's confidence interval of a Poisson mean after `count` events."""
    tail = (1 - CONFIDENCE) / 2
    low = gamma_quantile(count, tail) if count else 0.0
    return low, gamma_quantile(count + 1, 1 - tail)


@cache
def gamma_quantile(shape: int, share: float) -> float:
    """Return the value that a gamma variate of a whole shape (scale 1) exceeds with probability 1 - `share`, to 12 digits."""
    low, high = 0.0, shape + 10.0
    while _gamma_share(shape, high) < share:
        high *= 2
    while high - low > 1e-12 * max(1.0, high):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if _gamma_share(shape, middle) < share else (low, middle)
    return (low + high) / 2


def _gamma_share(shape: int, value: float) -> float:
    """The probability of at most `value`: that a Poisson process of rate 1 has had `shape` events by then."""
    if value <= 0:
        return 0.0
    return 1.0 - math.fsum(math.exp(k * math.log(value) - value - math.lgamma(k + 1)) for k in range(shape))


def _estimate(spent_ms: float, count: int, *, shape_of_low: int) -> Estimate:
    tail = (1 - CONFIDENCE) / 2
    low = spent_ms / gamma_quantile(shape_of_low, 1 - tail) if shape_of_low and spent_ms else None
    if not count:
        return Estimate(0, None, low, None)
    return Estimate(count, spent_ms / count, low, spent_ms / gamma_quantile(count, tail))


def _failures(incidents: Sequence[Incident], window: Window) -> list[Incident]:
    return [one for one in incidents if not one.planned and one.began_in(window)]


@dataclass(frozen=True, slots=True)
class PhaseQuantiles:
    """Lower and upper bound of each quantile of `n` incidents. An upper bound of None is beyond the last bucket."""

    n: int
    p50_ms: tuple[float, float | None]
    p95_ms: tuple[float, float | None]
    p99_ms: tuple[float, float | None]


def phase_quantiles(fleet: Fleet, group: GroupKey, window: Window) -> dict[str, PhaseQuantiles]:
    """Return the quantiles of every phase that was observed in the window, in the order of a failover."""
    rises = fleet.increase(_BUCKET, group, window, by=(LABEL_PHASE, "le"))
    by_phase: dict[str, dict[float, float]] = {}
    for (counted_as, bound), one in rises.items():
        phase = PHASE_IN_SYNC if counted_as == FORMER_PHASE_IN_SYNC else counted_as
        buckets = by_phase.setdefault(phase, {})
        buckets[float(bound)] = buckets.get(float(bound), 0.0) + one.rise
    order = [phase for phase in PHASES if phase in by_phase]
    return {phase: told for phase in order if (told := _told(by_phase[phase])) is not None}


def _told(buckets: Mapping[float, float]) -> PhaseQuantiles | None:
    bounds = [histogram_quantile(buckets, quantile) for quantile in (0.5, 0.95, 0.99)]
    p50, p95, p99 = ((_ms(found[0]) or 0.0, _ms(found[1])) if found else None for found in bounds)
    if p50 is None or p95 is None or p99 is None:
        return None
    return PhaseQuantiles(round(buckets[float("inf")]), p50, p95, p99)


def _ms(seconds: float) -> float | None:
    return None if seconds == float("inf") else seconds * 1000


@dataclass(frozen=True, slots=True)
class Exposure:
    """What a group could have lost in a window; `error_ms` is one scrape interval at each edge of each exposed time."""

    below_promise_ms: int
    one_copy_ms: int
    unknown_ms: int
    error_ms: int
    unclean_elections: int
    truncated_bytes: int
    unfenced: int
    most_behind_bytes: int | None = None


def exposure(
    fleet: Fleet, group: GroupKey, window: Window, incidents: Sequence[Incident], *, promised: int,
    most_behind_bytes: int | None = None, counted: Sequence[Span],
) -> Exposure:  # fmt: skip
    """Measure exposure by the gauge of the SyncStateSet's size, the counter of unclean elections and the incident log.

    Of the gauge only time that counts. Unclean elections of the counter count at any time: what was lost in maintenance is lost.
    """
    excluded = _between(counted, window)
    alone = without(fleet.spans(SYNC_STATE_SET_SIZE, group, window, at_least(2)), excluded)
    below = without(_below_promise(fleet, group, window, promised), excluded)
    interval = fleet.interval(SYNC_STATE_SET_SIZE, group)
    rises = fleet.increase(UNCLEAN_ELECTIONS_TOTAL, group, window).values()
    logged = [one.logged for one in incidents if one.logged is not None]
    return Exposure(
        below_promise_ms=total_ms(below, State.DOWN),
        one_copy_ms=total_ms(alone, State.DOWN),
        unknown_ms=total_ms(below, State.UNKNOWN),
        error_ms=sum(2 * interval.at(span.start_ms) for span in below if span.state is State.DOWN),
        unclean_elections=max(round(sum(rises, Increase(0.0, 0)).rise), sum(one.unclean for one in logged)),
        truncated_bytes=sum(one.truncated_bytes for one in logged),
        unfenced=sum(one.unfenced for one in logged),
        most_behind_bytes=most_behind_bytes,
    )


def _between(counted: Sequence[Span], window: Window) -> list[tuple[int, int]]:
    """The time of the window that does not count: excluded, hibernated, or without a group."""
    whole = [Span(window.start_ms, window.end_ms, State.UNKNOWN)]
    return [(one.start_ms, one.end_ms) for one in without(whole, [(one.start_ms, one.end_ms) for one in counted])]


def _below_promise(fleet: Fleet, group: GroupKey, window: Window, promised: int) -> list[Span]:
    line = fleet.spans(SYNC_STATE_SET_SIZE, group, window, at_least(promised))
    voters = fleet.spans(VOTING_REPLICAS, group, window, at_least(2))
    # A group with one voting replica promises the one copy that it has.
    single = [Window(one.start_ms, one.end_ms) for one in voters if one.state is State.DOWN]
    own = fleet.spans(SYNC_STATE_SET_SIZE, group, window, at_least(1)) if single else []
    return overlay(line, [piece for time in single for piece in clip(own, time)])
