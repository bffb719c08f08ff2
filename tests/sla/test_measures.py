"""Each measure against figures computed by hand, against tables, or against its own definition, instant by instant."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metric_names import GROUP_WRITABLE, MEMBER_PLACE, VOTING_REPLICAS
from sla_reports.measures.amendments import AmendmentError, amend, counted_incidents, read_amendments
from sla_reports.measures.availability import (
    BY_GROUP,
    Availability,
    Verdict,
    availability,
    availability_by,
    budget,
    incidents_by,
    outages_of,
)
from sla_reports.measures.periods import PeriodError, days_of, named, window_of
from sla_reports.measures.reconciliation import reconcile_totals
from sla_reports.measures.recovery import (
    STAGES,
    PhaseQuantiles,
    distribution,
    gamma_quantile,
    kaplan_meier_quantile,
    mtbf,
    mttr,
    phase_quantiles,
    poisson_bounds,
    recovery,
    stages_of,
)
from sla_reports.measures.summary import Agreement, Evidence, GroupFigures, Summary, summarise
from sla_reports.output.html_incidents import causes
from sla_reports.output.html_page import report_html
from sla_reports.states.entities import Fleet, GroupKey, divided, facts_at, stays_of
from sla_reports.states.incidents import Incident, Source, told_by_counter
from sla_reports.states.logged import LoggedIncident
from sla_reports.states.spans import Run, Span, State, Window, by_series, overlay
from tests.sla import one_day
from tests.sla.histories import series_of
from tests.sla.planted.draws import violations
from tests.support.draws import examples

if TYPE_CHECKING:
    from pathlib import Path

HOUR_MS = 3_600_000
ORDERS = GroupKey("default", "DefaultCluster", "orders")
DAY = Window(0, 24 * HOUR_MS)
PLACED = GroupKey("default", "c", "orders")
WINDOW = Window(0, 1_000_000)


def _line(*puts: tuple[int, int, State]) -> list[Span]:
    return overlay([Span(DAY.start_ms, DAY.end_ms, State.UP)], [Span(*put) for put in puts])


def _incident(start_ms: int, end_ms: int | None, **changes: Any) -> Incident:
    return replace(Incident(ORDERS, start_ms, end_ms, Source.LOG, 1), **changes)


def _instant(text: str) -> int:
    return round(dt.datetime.fromisoformat(text).timestamp() * 1000)


@pytest.mark.parametrize(
    ("period", "zone", "start", "end"),
    [
        ("2026-10", "Asia/Shanghai", "2026-10-01T00:00+08:00", "2026-11-01T00:00+08:00"),
        ("2026-10", "Europe/Berlin", "2026-10-01T00:00+02:00", "2026-11-01T00:00+01:00"),
        ("2026-Q4", "UTC", "2026-10-01T00:00Z", "2027-01-01T00:00Z"),
        ("2026-W01", "UTC", "2025-12-29T00:00Z", "2026-01-05T00:00Z"),
        ("2026-12-31", "UTC", "2026-12-31T00:00Z", "2027-01-01T00:00Z"),
        ("2026", "UTC", "2026-01-01T00:00Z", "2027-01-01T00:00Z"),
    ],
)
def test_periods(period: str, zone: str, start: str, end: str) -> None:
    assert window_of(period, zone) == Window(_instant(start), _instant(end))


@pytest.mark.parametrize(
    ("period", "zone", "now", "expected"),
    [
        ("previous-month", "UTC", "2026-11-01T01:00Z", "2026-10"),
        ("previous-month", "UTC", "2026-01-31T23:59Z", "2025-12"),
        # In Shanghai November has begun, in London it has not.
        ("previous-month", "Asia/Shanghai", "2026-10-31T16:30Z", "2026-10"),
        ("previous-month", "Europe/London", "2026-10-31T16:30Z", "2026-09"),
        ("previous-quarter", "UTC", "2026-02-14T00:00Z", "2025-Q4"),
        ("previous-quarter", "UTC", "2026-11-14T00:00Z", "2026-Q3"),
        ("previous-year", "UTC", "2026-11-14T00:00Z", "2025"),
        ("previous-day", "UTC", "2026-03-01T00:00Z", "2026-02-28"),
        ("previous-week", "UTC", "2026-01-05T09:00Z", "2026-W01"),
        ("previous-week", "UTC", "2026-01-04T09:00Z", "2025-W52"),
        ("2026-10", "UTC", "2030-01-01T00:00Z", "2026-10"),
    ],
)
def test_the_last_whole_period_before_now(period: str, zone: str, now: str, expected: str) -> None:
    found = named(period, zone, now_ms=_instant(now))
    assert found == expected
    assert window_of(found, zone).end_ms <= _instant(now)


def test_a_period_that_nobody_knows_is_told_with_what_is_known() -> None:
    assert named("previous-fortnight", "UTC", now_ms=0) == "previous-fortnight"
    with pytest.raises(PeriodError, match=r"'previous-fortnight'.*expected .*previous-month"):
        window_of("previous-fortnight", "UTC")
    with pytest.raises(PeriodError, match="'Mars/Olympus'"):
        named("previous-month", "Mars/Olympus", now_ms=0)


@pytest.mark.parametrize(
    "period", ["9999-12-31", "9999-W52", "9999-12", "9999", "0000-01", "2026-13", "2026-W54", "2026-02-30", "0d", "x"]
)
def test_a_period_without_an_end_is_refused_with_words(period: str) -> None:
    with pytest.raises(PeriodError, match=rf"period '{period}': .*expected 2026-10"):
        window_of(period, "UTC")


@pytest.mark.parametrize("zone", ["Europe", "A" * 300, "../etc/passwd", "+08:00", ""])
def test_a_time_zone_that_is_none_is_refused_with_words(zone: str) -> None:
    with pytest.raises(PeriodError, match=r"time zone '.*': unknown; expected a name as Asia/Shanghai or UTC"):
        window_of("2026-10", zone)


def test_a_month_has_the_hours_its_clocks_have() -> None:
    october = window_of("2026-10", "Europe/Berlin")
    assert october.length_ms == 745 * HOUR_MS
    days = days_of(october, "Europe/Berlin")
    assert len(days) == 31
    assert {day.length_ms // HOUR_MS for day in days} == {24, 25}
    zone = ZoneInfo("Europe/Berlin")
    assert all(dt.datetime.fromtimestamp(day.start_ms / 1000, zone).hour == 0 for day in days)
    # A rolling period ends at the given time, else at the last midnight before now.
    assert window_of("2d", "UTC", now_ms=DAY.length_ms * 9 + 5) == Window(7 * DAY.length_ms, 9 * DAY.length_ms)
    assert window_of("2d", "UTC", end_ms=HOUR_MS * 100) == Window(52 * HOUR_MS, 100 * HOUR_MS)


def test_availability_has_bounds_and_a_verdict() -> None:
    counted = _line((0, HOUR_MS, State.DOWN), (HOUR_MS, 3 * HOUR_MS, State.UNKNOWN))
    told = availability(counted, [_incident(0, HOUR_MS)])
    assert told.availability == pytest.approx(21 / 22)
    assert (told.worst, told.best, told.coverage) == pytest.approx((21 / 24, 23 / 24, 22 / 24))
    assert (told.source, told.error_ms) == (Source.LOG, 2)
    assert [told.verdict(objective) for objective in (0.87, 0.9, 0.99)] == [
        Verdict.MET, Verdict.UNDECIDABLE, Verdict.BREACHED,
    ]  # fmt: skip
    assert Availability(0, 0, 0, Source.LOG, 0).verdict(0.9) is Verdict.UNDECIDABLE
    with pytest.raises(ValueError, match=r"objective 99\.95: expected a share"):
        told.verdict(99.95)


def test_what_no_scrape_and_no_line_told_the_counter_tells() -> None:
    """The rise shows at 2 h: its hundred seconds lie before that, in time that is not yet down."""
    rises = [(HOUR_MS, 60_000.0), (2 * HOUR_MS, 100_000.0)]
    held = _line((HOUR_MS - 60_000, HOUR_MS, State.DOWN), (2 * HOUR_MS - 30_000, 2 * HOUR_MS, State.UNKNOWN))
    [late, early] = told_by_counter(ORDERS, held, rises, 40_000, interval_ms=15_000)
    assert [(one.start_ms, one.end_ms, one.source) for one in (early, late)] == [
        (2 * HOUR_MS - 40_000, 2 * HOUR_MS - 30_000, Source.COUNTER), (2 * HOUR_MS - 30_000, 2 * HOUR_MS, Source.COUNTER),
    ]  # fmt: skip


def test_exclusions_and_corrections_leave_a_trail(tmp_path: Path) -> None:
    file = tmp_path / "amendments.yaml"
    file.write_text(
        "exclusions:\n"
        '  - {group: default/*/ord*, start: "1970-01-01T02:00:00Z", end: 1970-01-01T04:00:00+00:00, reason: "move: all", by: li}\n'
        "  - {group: default/*/other, start: 1970-01-01T02:00:00Z, end: 1970-01-01T04:00:00Z, reason: move, by: li}\n"
        "corrections:\n"
        "  - {group: default/*/orders, start: 1970-01-01T03:00:00Z, end: 1970-01-01T05:00:00Z, state: up, reason: r, by: li}\n"
        "  - {group: default/*/orders, start: 1970-01-01T09:00:00Z, end: 1970-01-01T10:00:00Z, state: down, reason: r, by: li}\n"
    )
    held = _line((HOUR_MS, 6 * HOUR_MS, State.DOWN))
    account = amend(ORDERS, held, [one for one in read_amendments(file) if one.is_about(ORDERS)])
    told = availability(account.counted, [])
    # Down 1 to 3 and 5 to 6, of which 2 to 3 is excluded, and 9 to 10 by a correction; two hours do not count.
    assert (told.down_ms, told.total_ms) == (3 * HOUR_MS, 22 * HOUR_MS)
    trail = [(one.amendment.state, one.up_ms, one.down_ms, one.unknown_ms) for one in account.audit]
    assert trail == [
        (State.UP, 0, 2 * HOUR_MS, 0), (State.DOWN, HOUR_MS, 0, 0), (None, HOUR_MS, HOUR_MS, 0),
    ]  # fmt: skip
    incidents = [_incident(HOUR_MS, 6 * HOUR_MS), _incident(2 * HOUR_MS, 3 * HOUR_MS)]
    counted = counted_incidents(ORDERS, account, incidents)
    assert [(one.start_ms // HOUR_MS, one.source) for one in counted] == [(1, Source.LOG), (9, Source.CORRECTION)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("exclusions: [", "not YAML"),
        ("other: []", "expected the lists"),
        ("exclusions: [{group: a}]", r"exclusions\[0\]: expected exactly"),
        (
            "exclusions: [{group: a, start: 2026-10-05T02:00:00, end: 2026-10-06T02:00:00Z, reason: r, by: b}]",
            "no offset",
        ),
        (
            "exclusions: [{group: a, start: 2026-10-05T02:00:00Z, end: 2026-10-05T02:00:00Z, reason: r, by: b}]",
            "not before",
        ),
        (
            "corrections: [{group: a, start: 2026-10-05T02:00:00Z, end: 2026-10-05T03:00:00Z, state: x, reason: r, by: b}]",
            "state",
        ),
    ],
)
def test_amendments_that_can_not_be_used(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "amendments.yaml"
    file.write_text(text)
    with pytest.raises(AmendmentError, match=said):
        read_amendments(file)


def _failover(start_ms: int, detection_ms: float | None, steps: dict[str, float], **changes: Any) -> Incident:
    logged = LoggedIncident(
        f"i{start_ms}", ORDERS, start_ms + round(detection_ms or 0), detection_ms=detection_ms, steps_ms=steps
    )
    return _incident(start_ms, logged.end_ms, logged=logged, **changes)


def test_stages_add_up_and_one_dominates() -> None:
    steps = {"detected": 0.0, "fenced": 400.0, "decided": 401.0, "committed": 410.0, "notified": 415.0, "roleChanged": 500.0,
             "somethingNewer": 700.0, "inSync": 900.0}  # fmt: skip
    incident = _failover(1000, 3000.0, steps)
    assert incident.logged is not None
    stages = stages_of(incident.logged)
    assert stages == {"detect": 3000.0, "elect": 410.0, "roleChange": 90.0, "firstSuccess": 400.0}
    assert sum(stages.values()) == incident.length_ms(DAY.end_ms)
    told = recovery([incident, replace(incident, planned=True)], until_ms=DAY.end_ms)
    assert told.dominant == "detect"
    assert told.total.n == 1
    assert sum(told.shares.values()) == pytest.approx(1.0)
    assert set(told.stages) == set(STAGES)
    assert told.stages["route"].n == 0


def test_open_incidents_are_censored_and_not_dropped() -> None:
    closed = [(float(n), False) for n in range(1, 10)]
    assert distribution(closed).p50_ms == 5.0
    told = distribution([*closed, (100.0, True)])
    assert (told.n, told.censored, told.p50_ms, told.p95_ms, told.max_ms) == (10, 1, 5.0, None, None)
    # Kaplan and Meier by hand: of 4, one open at 2: S = 3/4 at 1, 3/4 * 1/2 at 3, 0 at 4.
    durations = [(1.0, False), (2.0, True), (3.0, False), (4.0, False)]
    assert [kaplan_meier_quantile(durations, q) for q in (0.25, 0.5, 0.6, 0.9)] == [1.0, 3.0, 3.0, 4.0]
    assert distribution([]).p50_ms is None


@given(durations=st.lists(st.integers(1, 50), min_size=1), q=st.sampled_from([0.5, 0.95, 0.99]))
def test_without_open_ones_it_is_the_empirical_quantile(durations: list[int], q: float) -> None:
    told = kaplan_meier_quantile([(float(one), False) for one in durations], q)
    assert told is not None
    assert sum(one <= told for one in durations) >= q * len(durations) - 1e-9
    assert sum(one < told for one in durations) < q * len(durations) + 1e-9


def test_gamma_and_poisson_are_those_of_the_tables() -> None:
    # Garwood's 95 % bounds; Ulm 1990.
    for count, low, high in (
        (0, 0.0, 3.6889),
        (1, 0.0253, 5.5716),
        (3, 0.6187, 8.7673),
        (10, 4.7954, 18.3904),
    ):
        assert poisson_bounds(count) == pytest.approx((low, high), abs=5e-5)
    # Half the 95 % points of chi-squared with 2, 20 and 200 degrees of freedom.
    for shape, value in ((1, 5.9915 / 2), (10, 31.4104 / 2), (100, 233.9943 / 2)):
        assert gamma_quantile(shape, 0.95) == pytest.approx(value, abs=5e-5)


def test_the_histogram_tells_bounds() -> None:
    def run(phase: str, bound: str, *points: tuple[int, float]) -> list[Run]:
        series = series_of("brokergroup_failover_phase_seconds_bucket", phase=phase, le=bound)
        return [Run(series, value, at_ms, at_ms, 1) for at_ms, value in points]

    runs = [
        *run("total", "0.5", (0, 0.0), (1000, 3.0)), *run("total", "5.0", (0, 1.0), (1000, 10.0)),
        *run("total", "+Inf", (0, 1.0), (1000, 11.0)), *run("detected", "+Inf", (0, 7.0), (1000, 7.0)),
    ]  # fmt: skip
    told = phase_quantiles(Fleet(by_series(runs), gap_ms=2000), PLACED, DAY)
    assert told == {"total": PhaseQuantiles(10, (500.0, 5000.0), (5000.0, None), (5000.0, None))}


def test_a_phase_that_got_another_name_is_one() -> None:
    """An earlier operator logged the time until enough members were in sync as `first_ack`."""
    runs = [
        Run(series_of("brokergroup_failover_phase_seconds_bucket", phase=phase, le=bound), value, at_ms, at_ms, 1)
        for phase, rise in (("first_ack", 2.0), ("in_sync", 3.0))
        for bound in ("0.5", "+Inf")
        for at_ms, value in ((0, 0.0), (1000, rise))
    ]
    told = phase_quantiles(Fleet(by_series(runs), gap_ms=2000), PLACED, DAY)
    assert [(phase, one.n) for phase, one in told.items()] == [("in_sync", 5)]


def test_mttr_and_mtbf_have_intervals() -> None:
    incidents = [_incident(n * HOUR_MS, n * HOUR_MS + 60_000) for n in range(3)]
    incidents += [_incident(DAY.end_ms - 30_000, None), _incident(0, 1, planned=True), _incident(DAY.end_ms, None)]
    repair = mttr(incidents, DAY)
    assert (repair.n, repair.mean_ms) == (3, 70_000.0)  # the open one adds 30 s and no end
    assert repair.low_ms is not None
    assert repair.high_ms is not None
    assert repair.low_ms < 70_000 < repair.high_ms
    between = mtbf(incidents, DAY, up_ms=DAY.length_ms)
    low, high = poisson_bounds(4)
    assert (between.n, between.mean_ms) == (4, DAY.length_ms / 4)
    assert (between.low_ms, between.high_ms) == pytest.approx((DAY.length_ms / high, DAY.length_ms / low))
    none = mtbf([], DAY, up_ms=DAY.length_ms)
    assert (none.mean_ms, none.high_ms) == (None, None)
    assert none.low_ms == pytest.approx(DAY.length_ms / 3.6889, rel=1e-4)


def test_the_budget_burns() -> None:
    period = Window(0, 30 * DAY.length_ms)
    now_ms = 10 * DAY.length_ms
    down = (now_ms - 180_000, now_ms)
    counted = overlay([Span(0, now_ms, State.UP)], [Span(*down, State.DOWN)])
    told = budget(counted, period, objective=0.9995, now_ms=now_ms, spent_ms=180_000, failures=1)
    assert told.allowed_ms == pytest.approx(21.6 * 60_000)
    assert told.left_ms == pytest.approx(18.6 * 60_000)
    assert told.burn_rates["1h"] == pytest.approx(180 / 3600 / 0.0005)
    assert told.burn_rates["3d"] == pytest.approx(180 / (72 * 3600) / 0.0005)
    assert told.forecast is not None
    assert told.forecast.spent_ms == pytest.approx(3 * 180_000)
    assert told.forecast.low_ms == pytest.approx(180_000 * (1 + 2 * 0.0253), rel=1e-3)
    assert told.forecast.high_ms == pytest.approx(180_000 * (1 + 2 * 5.5716), rel=1e-3)
    assert told.forecast.gone_at_ms is None
    breached = budget(counted, period, objective=0.9999, now_ms=now_ms, spent_ms=180_000, failures=1)
    assert breached.forecast is not None
    assert breached.forecast.gone_at_ms == round(now_ms + (0.0001 * period.length_ms - 180_000) / (180_000 / now_ms))


def test_breakdowns_add_up() -> None:
    other = GroupKey("default", "B", "payments")
    told = {ORDERS: Availability(90, 10, 0, Source.LOG, 1), other: Availability(50, 0, 50, Source.GAUGE, 2)}
    by = {
        name: availability_by((name_of(group), one) for group, one in told.items())
        for name, name_of in BY_GROUP.items()
    }
    assert by["namespace"] == {"default": Availability(140, 10, 50, Source.GAUGE, 3)}
    assert list(by["cluster"]) == ["default/B", "default/DefaultCluster"]
    incidents = [_incident(0, 30, cause="crash"), _incident(0, 60, cause="oom"), _incident(90, None, cause="crash")]
    line = [Span(0, 60, State.DOWN), Span(60, 90, State.UP), Span(90, 100, State.DOWN)]
    shares = incidents_by(lambda one: one.cause, outages_of(line, incidents, Window(0, 100)), until_ms=100)
    # Both were down at once: that time belongs to the first one, and counts once.
    assert [(share.value, share.incidents, share.down_ms) for share in shares] == [("crash", 2, 40), ("oom", 1, 30)]
    assert sum(share.share for share in shares) == pytest.approx(1.0)


def test_drawn_reports_add_up_and_their_bounds_contain_the_planted_truth() -> None:
    """`make sla-truth` draws 400 of them, `make sla-draws` 10,000."""
    assert [found for seed in range(examples(30)) for found in violations(seed)] == []


def test_what_does_not_add_up_is_told_before_the_verdict() -> None:
    summary = one_day.summary()
    assert reconcile_totals(summary).faults == ()
    assert "do not add up" not in report_html(summary, {})
    first, *others = summary.groups
    wrong = replace(first, availability=replace(first.availability, down_ms=first.availability.down_ms + 1))
    broken = replace(summary, groups=(wrong, *others))
    told = reconcile_totals(broken)
    assert len(told.faults) >= 3
    assert f"{first.group}: spent budget" in " ".join(told.faults)
    page = report_html(broken, {})
    assert page.index("The figures do not add up") < page.index("Breached: at least one group")


def place(broker_id: int, runs: list[tuple[float, int, int]], **facts: str) -> list[Run]:
    series = series_of(MEMBER_PLACE, broker_id=str(broker_id), **facts)
    return [Run(series, value, start, end, (end - start) // 10_000 + 1) for value, start, end in runs]


def writable(*runs: tuple[float, int, int]) -> list[Run]:
    series = series_of(GROUP_WRITABLE)
    return [Run(series, value, start, end, (end - start) // 10_000 + 1) for value, start, end in runs]


# Broker 1 in zone a is master, last seen at 390 s; from 420 s on it is broker 2 in zone b, which from 700 s on
# runs on another node.
RUNS = [
    *place(1, [(1.0, 0, 390_000), (0.0, 420_000, 1_000_000)], zone="a", node="n1", tenant="shop"),
    *place(2, [(0.0, 0, 410_000), (1.0, 420_000, 690_000)], zone="b", node="n2", tenant="shop"),
    *place(2, [(1.0, 700_000, 1_000_000)], zone="b", node="n3", tenant="shop"),
    *writable((1.0, 0, 390_000), (0.0, 400_000, 410_000), (1.0, 420_000, 1_000_000)),
]


FLEET = Fleet(by_series(RUNS), gap_ms=25_000)


def test_a_group_without_a_master_is_where_the_lost_one_was() -> None:
    stays = stays_of(FLEET, PLACED, WINDOW)
    assert [(one.start_ms, one.end_ms, one.facts.get("node")) for one in stays] == [
        (0, 420_000, "n1"), (420_000, 700_000, "n2"), (700_000, 1_000_000, "n3"),
    ]  # fmt: skip
    assert facts_at(stays, 420_000)["node"] == "n1"
    assert facts_at(stays, 420_001) == {"zone": "b", "node": "n2", "tenant": "shop"}
    assert facts_at(stays, 0)["node"] == "n1"


def test_before_the_first_master_was_seen_nobody_knows() -> None:
    late = Fleet(by_series(place(1, [(1.0, 600_000, 1_000_000)], zone="a")), gap_ms=25_000)
    stays = stays_of(late, PLACED, WINDOW)
    assert [(one.start_ms, dict(one.facts)) for one in stays] == [(0, {}), (600_000, {"zone": "a"})]
    assert divided([Span(0, 1_000_000, State.UP)], stays, "zone") == {
        "": [Span(0, 600_000, State.UP)], "a": [Span(600_000, 1_000_000, State.UP)],
    }  # fmt: skip
    [nowhere] = stays_of(Fleet({}, gap_ms=25_000), PLACED, WINDOW)
    assert nowhere.facts == {}


def _figures() -> GroupFigures:
    [figures] = summarise(Agreement(WINDOW, 0.99), Evidence(FLEET, ())).groups
    return figures


def test_the_time_of_a_group_is_divided_and_none_of_it_is_lost() -> None:
    figures = _figures()
    whole = figures.availability
    for fact, told in figures.by_place.items():
        assert sum(one.total_ms for one in told.values()) == whole.total_ms, fact
        assert sum(one.down_ms for one in told.values()) == whole.down_ms, fact
    assert {value: one.down_ms for value, one in figures.by_place["zone"].items()} == {"a": 20_000, "b": 0}
    assert {value: one.up_ms for value, one in figures.by_place["node"].items()} == {
        "n1": 400_000, "n2": 280_000, "n3": 300_000,
    }  # fmt: skip
    assert list(figures.by_place["tenant"]) == ["shop"]
    assert list(figures.by_place["rack"]) == [""]


def test_what_only_the_gauge_saw_happened_to_the_master_of_that_time() -> None:
    [incident] = _figures().incidents
    assert incident.facts == {"zone": "a", "node": "n1", "tenant": "shop"}


def test_groups_are_added() -> None:
    one = _figures().by_place["zone"]
    both = availability_by([*one.items(), *one.items(), ("", one["a"])])
    assert {value: told.down_ms for value, told in both.items()} == {"": 20_000, "a": 40_000, "b": 0}


def test_the_page_tells_what_samples_tell_and_no_more() -> None:
    page = causes(summarise(Agreement(WINDOW, 0.99), Evidence(FLEET, ())))
    assert "zone of the master" in page
    assert "n3" in page
    assert "rack of the master" not in page


def hibernating(*others: GroupKey, voters: bool = True) -> Summary:
    """Orders hibernates from 6:00 to 8:30 and serves again at 9:00; the others serve all day."""
    found = one_day.runs(GROUP_WRITABLE, one_day.ORDERS, (0, 1.0), (6, 0.0), (9, 1.0))
    found += one_day.runs(VOTING_REPLICAS, one_day.ORDERS, (0, 3.0), (6, 0.0), (8.5, 3.0)) if voters else []
    for other in others:
        found += one_day.runs(GROUP_WRITABLE, other, (0, 1.0))
    fleet = Fleet(by_series(found), gap_ms=2 * one_day.SCRAPE_MS)
    return summarise(Agreement(one_day.DAY, 0.99), Evidence(fleet, ()))


def test_hibernation_is_planned_and_counts_as_nothing() -> None:
    """A user hibernated the group; the half hour until it served again counts. Older exports do not say it."""
    [figures] = hibernating().groups
    hour = one_day.HOUR_MS
    assert (figures.availability.up_ms, figures.availability.down_ms) == (21 * hour, hour // 2)
    [audit] = figures.audit
    assert (audit.amendment.start_ms, audit.amendment.end_ms) == (
        one_day.START_MS + 6 * hour,
        one_day.START_MS + 8.5 * hour,
    )
    assert (audit.up_ms, audit.down_ms, audit.unknown_ms) == (0, 2.5 * hour, 0)
    assert "hibernated" in audit.amendment.reason
    [older] = hibernating(voters=False).groups
    assert (older.availability.down_ms, older.audit) == (3 * hour, ())


def test_a_hibernated_group_keeps_no_cluster_down() -> None:
    hour = one_day.HOUR_MS
    [alone] = hibernating().clusters
    assert (alone.write.down_ms, alone.ordered_write.down_ms, alone.write.up_ms) == (hour // 2, hour // 2, 21 * hour)
    [beside] = hibernating(one_day.QUIET).clusters
    assert (beside.write.down_ms, beside.ordered_write.down_ms) == (0, hour // 2)
    assert beside.write.up_ms == 24 * hour
