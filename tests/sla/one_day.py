"""One day of three groups with every case of a report, as runs and log, without Spark."""

from __future__ import annotations

from metric_names import GROUP_WRITABLE, SYNC_STATE_SET_SIZE
from sla_reports.measures.amendments import Amendment
from sla_reports.measures.summary import Agreement, Evidence, Summary, summarise
from sla_reports.states.entities import Fleet, GroupKey
from sla_reports.states.logged import LoggedIncident
from sla_reports.states.spans import Run, State, Window, by_series, gap_limit_ms
from tests.sla.histories import series_of

HOUR_MS = 3_600_000
START_MS = 1_761_955_200_000  # 2025-11-01T00:00:00Z
DAY = Window(START_MS, START_MS + 24 * HOUR_MS)
SCRAPE_MS = 15_000
ORDERS = GroupKey("default", "c", "orders")
HOSTILE = GroupKey("default", "c", '<script>alert("1")</script>&]]>\x00')
QUIET = GroupKey("default", "c", "quiet")


def runs(metric: str, group: GroupKey, *points: tuple[float, float | None]) -> list[Run]:
    """Return the runs of a gauge with a value from each hour on; None: not scraped from then on."""
    series, ends = series_of(metric, group.broker_group), [hour for hour, _ in points[1:]] + [24]
    return [
        Run(series, value, START_MS + round(hour * HOUR_MS), START_MS + round(end * HOUR_MS) - SCRAPE_MS, 9)
        for (hour, value), end in zip(points, ends, strict=True)
        if value is not None
    ]


def all_runs() -> list[Run]:
    """Return the gauges of all groups."""
    return [
        *runs(GROUP_WRITABLE, ORDERS, (0, 1.0), (23.75, 0.0)),
        *runs(SYNC_STATE_SET_SIZE, ORDERS, (0, 3.0), (2, 2.0), (3, 3.0)),
        # An outage of a quarter of an hour without a log entry, and two hours without any scrape.
        *runs(GROUP_WRITABLE, HOSTILE, (0, 1.0), (5, 0.0), (5.25, 1.0), (8, None), (10, 1.0)),
        *runs(SYNC_STATE_SET_SIZE, HOSTILE, (0, 3.0), (5, 1.0), (6, 3.0)),
        *runs(GROUP_WRITABLE, QUIET, (0, 1.0)),
    ]


def log() -> list[LoggedIncident]:
    """Return the log: a crash, a silent loss that is still open, a planned switchover."""
    steps = {"detected": 0.0, "committed": 300.0, "roleChanged": 500.0, "inSync": 4_600.0}
    return [
        LoggedIncident("orders/1", ORDERS, START_MS + 2 * HOUR_MS + 3_000, trigger="connectionRefused",
                       detection_ms=3_000.0, steps_ms=steps, facts={"zone": "z1", "node": "<b>n1</b>"},
                       evidence=("connection refused", "<i>container ended</i>")),
        LoggedIncident("orders/2", ORDERS, START_MS + 12 * HOUR_MS, kind="switchover", trigger="requested",
                       steps_ms={"roleChanged": 700.0}),
        LoggedIncident("orders/3", ORDERS, START_MS + 23 * HOUR_MS + HOUR_MS * 3 // 4, trigger="silence",
                       detection_ms=10_000.0, outcome="interrupted", unclean=True, truncated_bytes=4096),
    ]  # fmt: skip


def amendments() -> list[Amendment]:
    """Return maintenance with a hostile reason, and a correction without effect."""
    return [
        Amendment(
            "default/c/quiet", START_MS + HOUR_MS, START_MS + 2 * HOUR_MS, None, "<script>move</script>", "li & wei"
        ),
        Amendment("default/c/quiet", START_MS + 3 * HOUR_MS, START_MS + 4 * HOUR_MS, State.UP, "right already", "li"),
    ]


def evidence(*, until_ms: int | None = None) -> Evidence:
    """Return the whole evidence."""
    fleet = Fleet(by_series(all_runs()), gap_ms=gap_limit_ms(SCRAPE_MS))
    return Evidence(fleet, log(), amendments=amendments(), now_ms=until_ms)


def summary(*, until_ms: int | None = None, objective: float = 0.999) -> Summary:
    """Return the day's figures."""
    return summarise(Agreement(DAY, objective), evidence(until_ms=until_ms))
