"""SLA and budget: how available was it, how much may still go wrong, and how fast is it going?"""

from brokergroup_operator.observe.dashboards.model import BY_GROUP, GREEN, RED, SELECT, YELLOW, Dashboard, Panel
from brokergroup_operator.observe.dashboards.shapes import ranking
from metric_names import (
    CAUSE_DRAIN,
    CAUSE_HIBERNATION,
    CAUSE_ROLLING_UPGRADE,
    CAUSE_SWITCHOVER,
    GROUP_WRITABLE,
    UNAVAILABLE_SECONDS_TOTAL,
)

_MONTH_MINUTES = 30 * 24 * 60
_PLANNED = "|".join((CAUSE_SWITCHOVER, CAUSE_DRAIN, CAUSE_ROLLING_UPGRADE, CAUSE_HIBERNATION))
_ANY = '=~".+"'
_ALLOWED = "(1 - $objective / 100)"


def _writable(window: str) -> str:
    """The part of a window in which each group could be written to, as scraped."""
    return f"avg_over_time(({BY_GROUP} ({GROUP_WRITABLE}{SELECT}))[{window}:15s])"


def _burn(window: str) -> str:
    """How many times faster than allowed the budget is being used."""
    return f"(1 - {_writable(window)}) / {_ALLOWED}"


def _lost(matcher: str) -> str:
    selector = f'{{namespace=~"$namespace", broker_group=~"$broker_group", cause{matcher}}}'
    return f"sum by (namespace, broker_group) (increase({UNAVAILABLE_SECONDS_TOTAL}{selector}[30d]))"


SLA = Dashboard(
    uid="brokergroup-sla",
    title="Broker groups: SLA and budget",
    description=(
        "How available was it, how much may still go wrong? Rough, from scrapes: a failover between two of them is not seen here."
        " The exact figures are the report's (docs/tasks/sla.md), from the incident log."
    ),
    since="now-7d",
    panels=(
        ranking(
            "How available was each group in the chosen range?",
            "Scraped moments in which it was writable. Scrapes miss short outages: right on average, not for "
            "one of them.",
            _writable("$__range"),
            unit="percentunit",
            thresholds=((None, RED), (0.999, YELLOW), (0.9995, GREEN)),
        ),
        ranking(
            "How many minutes of the 30-day budget are left?",
            "What the objective allows in 30 days, less what was lost in the last 30, unplanned and planned. "
            "Below 0 it is broken.",
            f"{_MONTH_MINUTES} * {_ALLOWED} - ({_lost(_ANY)}) / 60",
            unit="m",
            thresholds=((None, RED), (5.0, YELLOW), (10.0, GREEN)),
        ),
        Panel(
            question="How fast is the budget going?",
            says="1 is just what is allowed. Above 14.4 for an hour, 6 for six hours: BrokerGroupBudgetBurn.",
            kind="timeseries",
            width=24,
            thresholds=((None, GREEN), (6.0, YELLOW), (14.4, RED)),
            queries=(
                (_burn("5m"), "{{broker_group}} 5 m"),
                (_burn("1h"), "{{broker_group}} 1 h"),
                (_burn("6h"), "{{broker_group}} 6 h"),
            ),
        ),
        Panel(
            question="What was lost to faults, what to planned work?",
            says=(
                "Seconds of the last 30 days. Planned: switchovers, drains, rolling updates. A contract often "
                "counts the first only."
            ),
            kind="bargauge",
            unit="s",
            thresholds=((None, GREEN), (300.0, YELLOW), (1296.0, RED)),
            queries=(
                (_lost(f'!~"{_PLANNED}"'), "{{broker_group}} faults"),
                (_lost(f'=~"{_PLANNED}"'), "{{broker_group}} planned"),
            ),
        ),
        ranking(
            "Which causes cost the most?",
            "Seconds of the last 30 days over all chosen groups.",
            f"sum by (cause) (increase({UNAVAILABLE_SECONDS_TOTAL}{SELECT}[30d]))",
            of="{{cause}}",
            unit="s",
            thresholds=((None, GREEN), (300.0, YELLOW)),
        ),
    ),
)
