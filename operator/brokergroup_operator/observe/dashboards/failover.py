"""Failover: how long does it take, which step, and what did it cost?"""

from brokergroup_operator.observe.dashboards.model import (
    BY_GROUP,
    CHANGES_OF_MASTER,
    FEW_IS_GOOD,
    GREEN,
    RED,
    SELECT,
    YELLOW,
    Dashboard,
    Panel,
)
from brokergroup_operator.observe.dashboards.shapes import ranking
from metric_names import (
    FAILOVER_PHASE_SECONDS,
    FAILOVERS_TOTAL,
    LAST_INCIDENT_STEP_SECONDS,
    PHASE_TOTAL,
    UNAVAILABLE_SECONDS_TOTAL,
    UNCLEAN_ELECTIONS_TOTAL,
    UNFENCED,
)

_SLOW = ((None, GREEN), (5.0, YELLOW), (30.0, RED))
_OF_PHASE = f'{FAILOVER_PHASE_SECONDS}%s{{namespace=~"$namespace", broker_group=~"$broker_group", phase="%s"}}'
_TOTAL = _OF_PHASE % ("_bucket", PHASE_TOTAL)


def _quantile(quantile: float) -> str:
    return f"histogram_quantile({quantile}, sum by (le) ({_TOTAL}))"


_MEAN = " / ".join(f"sum by (phase) ({FAILOVER_PHASE_SECONDS}_{part}{SELECT})" for part in ("sum", "count"))

FAILOVER = Dashboard(
    uid="brokergroup-failover",
    title="Broker groups: failover",
    description="How long does a failover take, which step, and what did it cost?",
    annotations=(CHANGES_OF_MASTER,),
    panels=(
        ranking(
            "How did the last change of master go, step by step?",
            "Time from the detection to each step. The longest gap is where it waited: before fenced it is "
            "the kubelet, before roleChanged the broker.",
            f"sort(max by (broker_group, incident, step) ({LAST_INCIDENT_STEP_SECONDS}{SELECT}))",
            of="{{incident}} {{step}}",
            unit="s",
            width=24,
            thresholds=_SLOW,
        ),
        Panel(
            question="How long is a failover, from the fault to the first acknowledged write?",
            says="Quantiles since the operator began, switchovers included. Above 30 s: BrokerGroupFailoverSlow.",
            kind="stat",
            unit="s",
            thresholds=_SLOW,
            queries=(
                (_quantile(0.5), "half are faster"),
                (_quantile(0.95), "95 of 100"),
                (_quantile(0.99), "99 of 100"),
            ),
        ),
        ranking(
            "Which step takes the time?",
            "Mean time from the fault to each step. detected is the heartbeat timeout for a silent master, "
            "next to nothing for a dead one.",
            _MEAN,
            of="{{phase}}",
            unit="s",
            thresholds=_SLOW,
        ),
        Panel(
            question="How are the times spread?",
            says="Two bands are usual: dead masters in tenths of a second, silent ones in seconds.",
            kind="heatmap",
            unit="s",
            queries=((f"sum by (le) (increase({_TOTAL}[$__range]))", "{{le}}"),),
        ),
        Panel(
            question="How many were there, and how did they end?",
            says="completed is the good one. noEligibleReplica and incomplete: look at the group.",
            kind="timeseries",
            thresholds=((None, GREEN), (10.0, YELLOW)),
            queries=((f"sum by (cause, outcome) ({FAILOVERS_TOTAL}{SELECT})", "{{cause}} {{outcome}}"),),
        ),
        Panel(
            question="How long was nothing writable, and why?",
            says="Seconds since the operator began, by cause.",
            kind="timeseries",
            unit="s",
            thresholds=((None, GREEN), (60.0, RED)),
            queries=(
                (f"sum by (broker_group, cause) ({UNAVAILABLE_SECONDS_TOTAL}{SELECT})", "{{broker_group}} {{cause}}"),
            ),
        ),
        ranking(
            "How often does each group fail over?",
            "In the chosen range. More than three an hour: BrokerGroupFlapping.",
            f"sum by (broker_group) (increase({FAILOVERS_TOTAL}{SELECT}[$__range]))",
            of="{{broker_group}}",
            thresholds=((None, GREEN), (3.0, RED)),
        ),
        Panel(
            question="May messages have been lost?",
            says=(
                "Unclean elections since the group began, and masters replaced without proof of death. Both "
                "should be 0."
            ),
            kind="stat",
            thresholds=FEW_IS_GOOD,
            queries=(
                (f"sum({BY_GROUP} ({UNCLEAN_ELECTIONS_TOTAL}{SELECT}))", "unclean elections"),
                (f"sum({BY_GROUP} ({UNFENCED}{SELECT}))", "unfenced now"),
            ),
        ),
    ),
)
