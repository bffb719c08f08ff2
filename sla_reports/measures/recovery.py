"""How long recovery took, stage by stage, and which stage to work on.

RTO of an incident: from the lost master's last sign of life until a write could be acknowledged again. Its stages follow each other
without a hole, so they add up to it exactly:

    detect        last sign of life → the loss was believed
    elect         → old master fenced, new one chosen, record durable
    roleChange    → the new master answered that it is master
    index         → its indexes had caught up             (where the log tells it)
    route         → the NameServers route to it           (where the log tells it)
    firstSuccess  → a write can be acknowledged again

Quantiles are those of Kaplan and Meier: an incident that is still open has lasted *at least* so long, and to drop it would
flatter. Without open ones that is the plain empirical quantile (the smallest duration that a share of `q` did not exceed).
None: not reached.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sla_reports.outages.incidents import Incident
from sla_reports.outages.logged import LoggedIncident

STAGES = ("detect", "elect", "roleChange", "index", "route", "firstSuccess")
_STAGE_OF_STEP = {
    "fenced": "elect", "decided": "elect", "committed": "elect", "notified": "roleChange", "roleChanged": "roleChange",
    "indexCaughtUp": "index", "routeVisible": "route", "inSync": "firstSuccess", "firstAck": "firstSuccess",
}  # fmt: skip
QUANTILES = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Milliseconds: of `n` durations `censored` are lower bounds. A quantile is None where too many are open to tell."""

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
    """Of the unplanned incidents that the operator logged; those only a gauge saw have no times worth a quantile.

    An incident of a period that is over lasted as long as the log tells, beyond the period's end too: it is no other one's.
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


def stages_of(logged: LoggedIncident) -> dict[str, float]:
    """How long each stage took, as far as it was reached. A step of a newer operator belongs to the stage that follows it."""
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
    """Of durations and whether each is only a lower bound."""
    p50, p95, p99 = (kaplan_meier_quantile(durations, q) for q in QUANTILES)
    ended = [duration for duration, is_open in durations if not is_open]
    censored = len(durations) - len(ended)
    longest = max((duration for duration, _ in durations), default=None)
    known = longest is not None and (longest, True) not in durations
    return Distribution(len(durations), censored, p50, p95, p99, longest if known else None)


def kaplan_meier_quantile(durations: Sequence[tuple[float, bool]], quantile: float) -> float | None:
    """The smallest time by which the share `quantile` had ended."""
    at_risk, surviving = len(durations), 1.0
    # Of equal durations those that ended come first: an open one was still open then.
    for duration, is_open in sorted(durations):
        if not is_open:
            surviving *= (at_risk - 1) / at_risk
            if surviving <= 1.0 - quantile + 1e-12:
                return duration
        at_risk -= 1
    return None
