"""Gauge, counter and log become one list, also where they disagree, are late, or lie at an edge: no time counts twice or is lost.

Every case of the first half once printed a wrong number.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metric_names import GROUP_WRITABLE, UNAVAILABLE_SECONDS_TOTAL
from sla_reports.measures.availability import Verdict, incidents_by
from sla_reports.measures.summary import Agreement, Evidence, Summary, summarise
from sla_reports.series import series_text
from sla_reports.states.entities import GroupKey
from sla_reports.states.incidents import UNATTRIBUTED, Incident, Source, attribute, events, overlapping, reconcile
from sla_reports.states.logged import Circumstance, LoggedIncident, once, whole_outages
from sla_reports.states.spans import Span, State, Window, overlay, total_ms
from tests.sla.histories import Sample, fleet_of, series_of
from tests.support.draws import examples

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sla_reports.measures.summary import GroupFigures

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
ORDERS = GroupKey("default", "c", "orders")


def _gauge(
    downs: Iterable[tuple[int, int]], *, step_ms: int = 15_000, until_ms: int = DAY_MS, from_ms: int = 0, **more: str
) -> list[Sample]:
    """Return scrapes that are down within `downs`."""
    name, closed = series_of(GROUP_WRITABLE, **more), list(downs)
    return [
        (name, at_ms, 0.0 if any(low <= at_ms < high for low, high in closed) else 1.0)
        for at_ms in range(from_ms, until_ms, step_ms)
    ]


def _counter(rises: dict[int, float], *, step_ms: int = 15_000) -> list[Sample]:
    name = series_of(UNAVAILABLE_SECONDS_TOTAL)
    return [
        (name, at_ms, sum(more for at, more in rises.items() if at <= at_ms)) for at_ms in range(0, DAY_MS, step_ms)
    ]


def _logged(start_ms: int, length_ms: float, **changes: Any) -> LoggedIncident:
    values: dict[str, Any] = {"detection_ms": 500.0, "steps_ms": {"detected": 0.0, "inSync": length_ms - 500.0}}
    return LoggedIncident(f"o/{start_ms}", ORDERS, start_ms + 500, **{**values, **changes})


def _summary(
    samples: Sequence[Sample], log: Sequence[LoggedIncident] = (), *, step_ms: int = 15_000,
    window: Window | None = None, objective: float = 0.999,
) -> Summary:  # fmt: skip
    return summarise(Agreement(window or Window(0, DAY_MS), objective), Evidence(fleet_of(samples, step_ms), log))


def _orders(summary: Summary) -> GroupFigures:
    [figures] = summary.groups
    return figures


@pytest.mark.parametrize("step_ms", [60_000, 15_000])
def test_what_the_gauge_saw_longer_than_the_log_tells_does_not_vanish(step_ms: int) -> None:
    """Twenty outages: two scrapes of each are down, the log has 2.5 s."""
    starts = [HOUR_MS // 2 * n + HOUR_MS for n in range(20)]
    samples = _gauge([(start, start + 2 * step_ms) for start in starts], step_ms=step_ms)
    told = _orders(_summary(samples, [_logged(start - 100, 2500.0) for start in starts], step_ms=step_ms))
    one = told.availability
    assert (one.down_ms, one.disputed_ms) == (50_000, 20 * (2 * step_ms - 2400))
    assert one.worst == pytest.approx(1 - (20 * (2 * step_ms + 100)) / DAY_MS)
    assert one.best == pytest.approx(1 - 50_000 / DAY_MS)
    assert len(told.incidents) == 20
    assert {incident.disputed_ms for incident in told.incidents} == {2 * step_ms - 2400}


def test_one_scrape_that_says_down_is_all_that_a_short_outage_can_leave() -> None:
    told = _orders(_summary(_gauge([(HOUR_MS, HOUR_MS + 15_000)]), [_logged(HOUR_MS - 100, 2500.0)]))
    assert (told.availability.down_ms, told.availability.disputed_ms) == (2500, 0)


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_two_operator_pods_that_disagree_are_told_whatever_they_are_called(names: tuple[str, str]) -> None:
    samples = _gauge([(2 * HOUR_MS, 4 * HOUR_MS)], instance=names[0]) + _gauge([], instance=names[1])
    told = _orders(_summary(samples)).availability
    assert (told.down_ms, told.disputed_ms, told.unknown_ms) == (0, 2 * HOUR_MS, 0)
    assert told.worst == pytest.approx(22 / 24)
    assert told.best == 1.0
    assert told.verdict(0.999) is Verdict.UNDECIDABLE


def test_copies_that_are_scraped_at_other_times_do_not_disagree() -> None:
    """Two Prometheus servers, 7 s apart: the second shows a change at its next scrape."""
    down = (2 * HOUR_MS, 2 * HOUR_MS + 60_000)
    samples = _gauge([down], prometheus_replica="a") + _gauge([down], from_ms=7_000, prometheus_replica="b")
    told = _orders(_summary(samples)).availability
    assert (told.down_ms, told.disputed_ms) == (60_000, 0)
    # A single down scrape of one server still counts.
    blip = (2 * HOUR_MS, 2 * HOUR_MS + 5_000)
    samples = _gauge([blip], prometheus_replica="a") + _gauge([blip], from_ms=7_000, prometheus_replica="b")
    assert _orders(_summary(samples)).availability.down_ms == 15_000


def test_samples_that_contradict_each_other_at_one_time_are_disputed() -> None:
    name = series_of(GROUP_WRITABLE)
    samples = [*_gauge([]), *((name, at_ms, 0.0) for at_ms in range(HOUR_MS, 2 * HOUR_MS, 15_000))]
    told = _orders(_summary(samples)).availability
    assert (told.down_ms, told.disputed_ms) == (0, HOUR_MS)


def test_what_only_the_counter_knows_is_down_everywhere() -> None:
    """Forty outages of 10 s between scrapes count in the group, the cluster, the budget's last hours and the causes."""
    rises = {DAY_MS - 60_000 * n: 10.0 for n in range(1, 41)}
    summary = _summary(_gauge([]) + _counter(rises))
    told = _orders(summary)
    [cluster] = summary.clusters
    assert (told.availability.down_ms, told.availability.source.value) == (400_000, "counter")
    assert (cluster.write.down_ms, cluster.ordered_write.down_ms) == (400_000, 400_000)
    assert cluster.write_verdict is told.verdict is Verdict.BREACHED
    assert told.budget.burn_rates["1h"] == pytest.approx(400_000 / HOUR_MS / 0.001)
    shares = incidents_by(lambda one: one.cause, summary.outages, until_ms=DAY_MS)
    assert [(one.value, one.down_ms) for one in shares] == [("unattributed", 400_000)]


@pytest.mark.parametrize("seen", [[(0, 120_000)], [(0, 60_000), (75_000, 135_000)]], ids=["whole", "a scrape is up"])
def test_clocks_that_are_twelve_minutes_apart_do_not_make_two_outages_of_one(seen: list[tuple[int, int]]) -> None:
    early, began, lasted = 12 * 60_000, 4 * HOUR_MS, seen[-1][1]
    gauge = _gauge([(began + low, began + high) for low, high in seen])
    told = _orders(_summary(gauge, [_logged(began - early, float(lasted))]))
    [incident] = told.incidents
    assert incident.skewed
    assert told.availability.down_ms == lasted
    # There is no proof that it was one outage: the gauge's time is disputed, so the worst case has it.
    assert told.availability.disputed_ms == 120_000


def test_clocks_that_are_apart_are_seen_also_where_another_outage_lies_in_the_shifted_time() -> None:
    """One outage of 280 s, logged 12 minutes late; by then the group was down again, for one scrape."""
    late, seen, other = 12 * 60_000, (4 * HOUR_MS, 4 * HOUR_MS + 285_000), 4 * HOUR_MS + 13 * 60_000
    samples = _gauge([seen, (other, other + 15_000)])
    told = _orders(_summary(samples, [_logged(seen[0] + late, 280_000.0), _logged(other - 100, 2500.0)]))
    assert [one.skewed for one in told.incidents] == [True, False]
    assert (told.availability.down_ms, told.availability.disputed_ms) == (280_000, 285_000)


def test_a_log_by_another_clock_and_a_silence_do_not_make_two_outages_of_one_for_certain() -> None:
    """The gauge saw an outage, the log has one of its length 12 minutes later, in a silence: one outage, or two."""
    late, seen = 12 * 60_000, (4 * HOUR_MS, 4 * HOUR_MS + 120_000)
    quiet = [one for one in _gauge([seen]) if not seen[0] + late - 60_000 <= one[1] < seen[1] + late + 120_000]
    told = _orders(_summary(quiet, [_logged(seen[0] + late, 120_000.0)])).availability
    assert (told.down_ms, told.disputed_ms) == (120_000, 120_000)


def test_an_outage_that_ends_where_the_shifted_one_begins_does_not_confirm_it() -> None:
    """The gauge saw two outages; the log has the second one 12 minutes too early, right after the first one."""
    early, first, second = (
        12 * 60_000,
        (4 * HOUR_MS, 4 * HOUR_MS + 60_000),
        (4 * HOUR_MS + 13 * 60_000, 4 * HOUR_MS + 17 * 60_000),
    )
    told = _orders(_summary(_gauge([first, second]), [_logged(second[0] - early - 1000, 241_000.0)]))
    [incident] = told.incidents
    assert incident.skewed
    # The first one was taken for the beginning of the logged one: disputed, as is the whole second one.
    assert (told.availability.down_ms, told.availability.disputed_ms) == (241_000, 240_000 + 59_000)


def test_an_outage_that_began_in_a_silence_has_a_twin_as_long_as_it_may_have_been() -> None:
    """The gauge saw the last 135 s of an outage after a silence of 5 min; the log has 195 s, 12 minutes later."""
    late, seen = 12 * 60_000, (4 * HOUR_MS, 4 * HOUR_MS + 135_000)
    quiet = [one for one in _gauge([seen]) if not seen[0] - 300_000 <= one[1] < seen[0]]
    told = _orders(_summary(quiet, [_logged(seen[0] - 60_000 + late, 195_000.0)])).availability
    assert (told.down_ms, told.disputed_ms) == (195_000, 135_000)


def test_an_outage_over_the_edge_of_a_period_is_one_outage_of_the_period_in_which_it_began() -> None:
    edge = 12 * HOUR_MS
    outage = _logged(edge - 300_000, 420_000.0, cause="disk")
    samples = _gauge([(edge - 300_000, edge + 120_000)])
    before, after = (_summary(samples, [outage], window=window) for window in (Window(0, edge), Window(edge, DAY_MS)))
    assert [one.availability.down_ms for one in (_orders(before), _orders(after))] == [300_000, 120_000]
    causes = [incidents_by(lambda one: one.cause, one.outages, until_ms=one.until_ms) for one in (before, after)]
    assert [[(c.value, c.incidents, c.down_ms) for c in some] for some in causes] == [
        [("disk", 1, 300_000)], [("disk", 0, 120_000)],
    ]  # fmt: skip
    assert [one.recovery.total.n for one in (before, after)] == [1, 0]
    assert before.recovery.total.max_ms == 420_000
    assert [len(one.events) for one in (before, after)] == [1, 0]


def test_an_outage_over_the_edge_that_only_the_gauge_shows_is_one_of_the_period_in_which_it_began() -> None:
    edge = 12 * HOUR_MS
    samples = _gauge([(edge - 300_000, edge + 120_000)])
    before, after = (_summary(samples, window=window) for window in (Window(0, edge), Window(edge, DAY_MS)))
    assert [one.availability.down_ms for one in (_orders(before), _orders(after))] == [300_000, 120_000]
    assert [len(one.incidents) for one in (before, after)] == [1, 0]
    assert [[(one.incident.start_ms, one.began) for one in told.outages] for told in (before, after)] == [
        [(edge - 300_000, True)], [(edge - 300_000, False)],
    ]  # fmt: skip


def test_a_budget_that_is_spent_was_gone_at_the_moment_in_which_it_was_spent() -> None:
    # 0.1 % of a day is 86.4 s: spent 86.4 s after the beginning of the first outage.
    told = _orders(_summary(_gauge([(HOUR_MS, HOUR_MS + 600_000), (9 * HOUR_MS, 9 * HOUR_MS + 600_000)])))
    assert told.budget.forecast is not None
    assert told.budget.forecast.gone_at_ms == HOUR_MS + 86_400


def test_labels_that_prometheus_renamed_make_no_second_group() -> None:
    renamed = {"namespace": "monitoring", "exported_namespace": "default", "cluster": "c", "broker_group": "orders"}
    other = series_text(UNAVAILABLE_SECONDS_TOTAL, renamed)
    samples = _gauge([]) + [(other, at_ms, 0.0) for _, at_ms, _ in _gauge([])]
    samples += [(series_text(GROUP_WRITABLE, renamed), at_ms, 1.0) for _, at_ms, _ in _gauge([])]
    told = _orders(_summary(samples))
    assert told.group == ORDERS
    assert told.availability.availability == pytest.approx(1.0)


def test_a_log_that_tells_of_an_outage_while_the_gauge_goes_on_saying_up_is_disputed() -> None:
    told = _orders(_summary(_gauge([]), [_logged(HOUR_MS, 400_000.0)])).availability
    # Before the detection only the log can know; after it the gauge contradicts.
    assert (told.down_ms, told.disputed_ms) == (500, 399_500)


def test_each_test_that_the_list_names_is_there() -> None:
    text = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"`([a-z_/]+\.py)::(test_\w+)`", text)
    assert len(named) > 20
    for file, name in named:
        assert re.search(
            rf"^(async )?def {name}\(", (Path(__file__).parents[2] / file).read_text(encoding="utf-8"), re.MULTILINE
        ), name


DEFAULT_ORDERS = GroupKey("default", "DefaultCluster", "orders")
INTERVAL_MS = 15_000
END_MS = 3_600_000


def _spans(*downs: tuple[int, int], unknown: tuple[tuple[int, int], ...] = ()) -> list[Span]:
    line = [Span(0, END_MS, State.UP)]
    line = overlay(line, [Span(start, end, State.DOWN) for start, end in downs])
    return overlay(line, [Span(start, end, State.UNKNOWN) for start, end in unknown])


def _entry(start_ms: int, length_ms: float | None, **changes: Any) -> LoggedIncident:
    steps = {"detected": 0.0} | ({"roleChanged": length_ms - 1000.0} if length_ms is not None else {})
    one = LoggedIncident(
        f"orders/{start_ms}", DEFAULT_ORDERS, start_ms + 1000, detection_ms=1000.0, steps_ms=steps,
        outcome="completed" if length_ms is not None else "running",
    )  # fmt: skip
    return replace(one, **changes)


def _reconcile(gauge: list[Span], log: list[LoggedIncident]) -> tuple[list[Incident], list[Span]]:
    return reconcile(DEFAULT_ORDERS, gauge, log, interval_ms=INTERVAL_MS)


@settings(max_examples=examples(200))
@given(
    edges=st.lists(st.integers(0, 60), max_size=12, unique=True),
    times=st.lists(st.tuples(st.integers(0, 60), st.none() | st.integers(0, 20)), max_size=8),
)
def test_incidents_that_overlap_spans_are_those_of_a_look_at_each(
    edges: list[int], times: list[tuple[int, int | None]]
) -> None:
    ordered = sorted(edges)
    spans = [Span(*pair, State.DOWN) for pair in zip(ordered[::2], ordered[1::2], strict=False)]
    incidents = [
        Incident(DEFAULT_ORDERS, start, None if length is None else start + length, Source.LOG, 1)
        for start, length in times
    ]
    assert overlapping(incidents, spans) == [one for one in incidents if any(one.overlaps(span) for span in spans)]


LOG, GAUGE = "incident_log", "gauge"


@pytest.mark.parametrize(
    ("downs", "length_ms", "told", "down_ms", "disputed_ms"),
    [
        # The log's times win; a down scrape before the log's beginning comes from another clock.
        ([(105_000, 120_000)], 7000.0, [(100_000, 107_000, LOG, 1, False)], 7000, 0),
        ([(90_000, 105_000)], 7000.0, [(100_000, 107_000, LOG, 1, True)], 7000, 10_000),
        # Outages without a scrape and outages without a log entry both count.
        ([(600_000, 660_000)], 7000.0,
         [(100_000, 107_000, LOG, 1, False), (600_000, 660_000, GAUGE, INTERVAL_MS, False)], 67_000, 0),
        # A long outage that a short entry explains in part; downtime within two scrapes of an entry is not a separate incident.
        ([(105_000, 705_000)], 7000.0, [(100_000, 107_000, LOG, 1, False)], 7000, 598_000),
        ([(90_000, 705_000)], 7000.0, [(100_000, 107_000, LOG, 1, True)], 7000, 10_000 + 598_000),
        # An open entry ends with the gauge's outage, and does not last until a much later one.
        ([(900_000, 915_000)], None,
         [(100_000, 101_000, LOG, INTERVAL_MS, False), (900_000, 915_000, GAUGE, INTERVAL_MS, False)], 16_000, 0),
        ([(105_000, 180_000), (900_000, 915_000)], None,
         [(100_000, 180_000, LOG, INTERVAL_MS, False), (900_000, 915_000, GAUGE, INTERVAL_MS, False)], 95_000, 0),
    ],
)  # fmt: skip
def test_the_gauge_and_an_entry_become_one_list(
    downs: list[tuple[int, int]], length_ms: float | None, told: list[Any], down_ms: int, disputed_ms: int
) -> None:
    incidents, held = _reconcile(_spans(*downs), [_entry(100_000, length_ms)])
    assert [(one.start_ms, one.end_ms, one.source.value, one.error_ms, one.skewed) for one in incidents] == told
    assert (total_ms(held, State.DOWN), total_ms(held, State.DISPUTED)) == (down_ms, disputed_ms)
    assert incidents[0].disputed_ms == disputed_ms
    assert incidents[0].seen_by_gauge == (downs[0][0] < 600_000)
    assert [one.cause for one in incidents[1:]] == [UNATTRIBUTED] * (len(told) - 1)


def test_an_outage_at_the_end_of_the_window_is_open_and_counts_as_far_as_it_was_seen() -> None:
    for log in ([], [_entry(3_500_000, None)]):
        [incident], held = _reconcile(_spans((3_510_000, END_MS)), log)
        assert incident.end_ms is None
        assert total_ms(held, State.DOWN) == END_MS - incident.start_ms == incident.length_ms(END_MS)


def test_attempts_at_one_loss_are_one_outage() -> None:
    first = _entry(100_000, None, outcome="noEligibleReplica", epoch_before=6, cause="disk")
    second = _entry(200_000, 5000.0, trigger="masterless", epoch_before=6, detection_ms=None, id="again")
    cancelled = _entry(300_000, None, outcome="cancelled")
    other = replace(second, epoch_before=8)
    assert [one.id for one in whole_outages([other, first])] == [first.id, "again"]
    # As the operator writes it: an outcome without a candidate has an epoch too. After any other, the next epoch has a master.
    after = replace(second, epoch_before=7)
    assert len(whole_outages([after, replace(first, outcome="incomplete")])) == 2
    for following in (second, after):
        [whole] = whole_outages([following, cancelled, first])
        assert (whole.start_ms, whole.end_ms, whole.cause, whole.id) == (100_000, 205_000, "disk", first.id)


def test_an_incident_counts_once_and_what_another_pod_closed_is_not_left_open() -> None:
    one = _entry(5000, 250.0)
    left_open = replace(one, outcome="interrupted", steps_ms={"detected": 0.0}, started_at_ms=4000)
    assert once([one, replace(one), left_open]) == [one]
    assert once([left_open]) == [left_open]
    note = replace(one, id="of its beginning", outcome="running")
    assert once([note, one]) == [one]
    assert once([note]) == [note]


@pytest.mark.parametrize(
    ("changes", "circumstances", "cause"),
    [
        ({"trigger": "connectionRefused"}, [], "crash"),
        ({"trigger": "silence"}, [], "unknown"),
        ({"kind": "switchover"}, [], "plannedSwitchover"),
        ({"kind": "switchover"}, [Circumstance("rollingUpgrade", 0, 200_000, DEFAULT_ORDERS)], "rollingUpgrade"),
        ({"trigger": "silence"}, [Circumstance("partition", 90_000, 95_000)], "partition"),
        ({"trigger": "silence"}, [Circumstance("partition", 10_000, 39_999)], "unknown"),
        ({"trigger": "silence"}, [Circumstance("drain", 0, 200_000), Circumstance("oom", 99_000, 99_000)], "oom"),
        ({"trigger": "silence"}, [Circumstance("drain", 0, 200_000, node="other")], "unknown"),
        ({"trigger": "silence"}, [Circumstance("drain", 0, 200_000, node="n1")], "drain"),
        ({"cause": "disk"}, [Circumstance("oom", 99_000, 99_000)], "disk"),
        # The refused connection showed at once, the OOM kill behind it a moment later.
        ({"cause": "crash", "trigger": "connectionRefused"}, [Circumstance("oom", 100_000, 100_000)], "oom"),
        # An effect of the incident does not explain it: the loss was detected at 101 s.
        ({"trigger": "silence"}, [Circumstance("crash", 103_001, 103_001)], "unknown"),
        ({"trigger": "silence"}, [Circumstance("crash", 103_000, 103_000)], "crash"),
        # Another member's end is not this master's.
        ({"from_broker_id": 1}, [Circumstance("oom", 100_000, 100_000, DEFAULT_ORDERS, broker_id=2)], "unknown"),
        ({"from_broker_id": 1}, [Circumstance("oom", 100_000, 100_000, DEFAULT_ORDERS, broker_id=1)], "oom"),
        ({"trigger": "silence"}, [Circumstance("oom", 100_000, 100_000, replace(DEFAULT_ORDERS, broker_group="b"))],
         "unknown"),
        ({"trigger": "silence"}, [Circumstance("unknown", 100_000, 100_000)], "unknown"),
        ({"kind": "switchover"}, [Circumstance("crash", 100_000, 100_000)], "plannedSwitchover"),
        ({"kind": "switchover", "cause": "drain"}, [Circumstance("oom", 100_000, 100_000)], "drain"),
    ],
)  # fmt: skip
def test_causes(changes: dict[str, Any], circumstances: list[Circumstance], cause: str) -> None:
    logged = _entry(100_000, 7000.0, facts={"node": "n1"}, **changes)
    incidents, _ = _reconcile(_spans(), [logged])
    assert [one.cause for one in attribute(incidents, circumstances, until_ms=END_MS)] == [cause]


def test_what_proves_a_cause_is_told_and_else_what_was_near() -> None:
    killed = Circumstance("oom", 100_000, 100_000, DEFAULT_ORDERS, broker_id=1, note="OOMKilled")
    other = Circumstance("crash", 700_000, 700_000, DEFAULT_ORDERS, broker_id=2, note="ContainerEnded")
    far = Circumstance("crash", 708_001, 708_001, DEFAULT_ORDERS, broker_id=2, note="far away")
    for near, cause, told in (
        ([killed, other], "oom", ("OOMKilled",)),
        ([other, far], "unknown", ("ContainerEnded",)),
    ):
        incidents, _ = _reconcile(_spans(), [_entry(100_000, 7000.0, trigger="silence", from_broker_id=1)])
        [one] = attribute(incidents, near, until_ms=END_MS)
        assert (one.cause, one.circumstances) == (cause, told)


def test_what_only_the_gauge_saw_is_explained_by_a_circumstance_or_stays_unattributed() -> None:
    incidents, _ = _reconcile(_spans((105_000, 180_000)), [])
    for at_ms, cause in ((90_000, "disk"), (120_000, "disk"), (120_001, UNATTRIBUTED), (44_999, UNATTRIBUTED)):
        [one] = attribute(incidents, [Circumstance("disk", at_ms, at_ms, DEFAULT_ORDERS)], until_ms=END_MS)
        assert one.cause == cause


def test_groups_that_went_down_together_are_one_event() -> None:
    def incident(group: str, start_ms: int, **facts: str) -> Incident:
        return Incident(GroupKey("default", "c", group), start_ms, start_ms + 5000, Source.LOG, 1, facts=facts)

    found = events(
        [
            incident("a", 0, zone="z1", node="n1"), incident("b", 20_000, zone="z1", node="n2"),
            incident("c", 45_000, zone="z1"), incident("a", 90_000, zone="z2"),
            replace(incident("d", 91_000), planned=True),
        ]
    )  # fmt: skip
    assert [len(event.groups) for event in found] == [3, 1]
    assert found[0].common == (("zone", "z1"),)


_TIMES = st.lists(st.tuples(st.integers(0, 200), st.integers(1, 40)), max_size=6)


@given(downs=_TIMES, unknowns=_TIMES, entries=_TIMES)
def test_nothing_known_to_be_down_is_ever_lost(downs: Any, unknowns: Any, entries: Any) -> None:
    """Every instant has a state; each logged outage is down or disputed; a gauge's downtime far from any entry stays."""
    scale = 15_000
    gauge = _spans(
        *((start * scale, (start + length) * scale) for start, length in downs),
        unknown=tuple((start * scale, (start + length) * scale) for start, length in unknowns),
    )
    log = [_entry(start * scale + 777, length * 1000.0 + 1000, id=f"{n}") for n, (start, length) in enumerate(entries)]
    incidents, held = _reconcile(gauge, log)
    assert (held[0].start_ms, held[-1].end_ms) == (0, END_MS)
    assert sum(span.length_ms for span in held) == END_MS
    want_down = [(one.start_ms, one.end_ms) for one in log if one.start_ms < END_MS]
    for at_ms in range(0, END_MS, 7_500):
        state = next(span.state for span in held if span.start_ms <= at_ms < span.end_ms)
        seen = next(span.state for span in gauge if span.start_ms <= at_ms < span.end_ms)
        if any(start <= at_ms < (end or END_MS) for start, end in want_down):
            assert state in {State.DOWN, State.DISPUTED}
        elif seen is State.DOWN:
            # Only time after the last down scrape, and nearer to an entry's end than a scrape interval, is up.
            near = any(start - 30_000 <= at_ms <= (end or END_MS) + INTERVAL_MS for start, end in want_down)
            assert state in {State.DOWN, State.DISPUTED} or near
        else:
            assert state is seen
        inside = any(one.start_ms <= at_ms < one.start_ms + one.length_ms(END_MS) for one in incidents)
        assert inside or state is not State.DOWN
