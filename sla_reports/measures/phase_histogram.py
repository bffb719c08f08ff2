"""RTO once more, out of the operator's histogram: the second source, for when the log is gone, and to hold the log against.

`brokergroup_failover_phase_seconds` counts the time from the fault to each phase. A quantile out of buckets is known only to lie
between two bounds, and that is what is told: the smaller one is a lower, the greater one an upper limit of the true quantile.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from metric_names import FAILOVER_PHASE_SECONDS, LABEL_PHASE, PHASES
from sla_reports.states.counters import histogram_quantile
from sla_reports.states.entities import Fleet, GroupKey
from sla_reports.states.spans import Window

_BUCKET = f"{FAILOVER_PHASE_SECONDS}_bucket"


@dataclass(frozen=True, slots=True)
class PhaseQuantiles:
    """Of `n` incidents: between which milliseconds each quantile lies. An upper bound of None is beyond the last bucket."""

    n: int
    p50_ms: tuple[float, float | None]
    p95_ms: tuple[float, float | None]
    p99_ms: tuple[float, float | None]


def phase_quantiles(fleet: Fleet, group: GroupKey, window: Window) -> dict[str, PhaseQuantiles]:
    """Of every phase that was observed in the window, in the order of a failover."""
    rises = fleet.increase(_BUCKET, group, window, by=(LABEL_PHASE, "le"))
    by_phase: dict[str, dict[float, float]] = {}
    for (phase, bound), one in rises.items():
        by_phase.setdefault(phase, {})[float(bound)] = one.rise
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
