"""Gauge and log become one list: the log's times win, all of the gauge's outages remain, open ones stay open."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sla_reports.states.entities import GroupKey
from sla_reports.states.incidents import UNATTRIBUTED, Incident, Source, attribute, events, overlapping, reconcile
from sla_reports.states.logged import Circumstance, LoggedIncident, once, whole_outages
from sla_reports.states.spans import Span, State, overlay, total_ms
from tests.support.draws import examples

ORDERS = GroupKey("default", "DefaultCluster", "orders")
INTERVAL_MS = 15_000
END_MS = 3_600_000


def _gauge(*downs: tuple[int, int], unknown: tuple[tuple[int, int], ...] = ()) -> list[Span]:
    line = [Span(0, END_MS, State.UP)]
    line = overlay(line, [Span(start, end, State.DOWN) for start, end in downs])
    return overlay(line, [Span(start, end, State.UNKNOWN) for start, end in unknown])


def _logged(start_ms: int, length_ms: float | None, **changes: Any) -> LoggedIncident:
    steps = {"detected": 0.0} | ({"roleChanged": length_ms - 1000.0} if length_ms is not None else {})
    one = LoggedIncident(
        f"orders/{start_ms}", ORDERS, start_ms + 1000, detection_ms=1000.0, steps_ms=steps,
        outcome="completed" if length_ms is not None else "running",
    )  # fmt: skip
    return replace(one, **changes)


def _reconcile(gauge: list[Span], log: list[LoggedIncident]) -> tuple[list[Incident], list[Span]]:
    return reconcile(ORDERS, gauge, log, interval_ms=INTERVAL_MS)


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
        Incident(ORDERS, start, None if length is None else start + length, Source.LOG, 1) for start, length in times
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
    incidents, held = _reconcile(_gauge(*downs), [_logged(100_000, length_ms)])
    assert [(one.start_ms, one.end_ms, one.source.value, one.error_ms, one.skewed) for one in incidents] == told
    assert (total_ms(held, State.DOWN), total_ms(held, State.DISPUTED)) == (down_ms, disputed_ms)
    assert incidents[0].disputed_ms == disputed_ms
    assert incidents[0].seen_by_gauge == (downs[0][0] < 600_000)
    assert [one.cause for one in incidents[1:]] == [UNATTRIBUTED] * (len(told) - 1)


def test_an_outage_at_the_end_of_the_window_is_open_and_counts_as_far_as_it_was_seen() -> None:
    for log in ([], [_logged(3_500_000, None)]):
        [incident], held = _reconcile(_gauge((3_510_000, END_MS)), log)
        assert incident.end_ms is None
        assert total_ms(held, State.DOWN) == END_MS - incident.start_ms == incident.length_ms(END_MS)


def test_attempts_at_one_loss_are_one_outage() -> None:
    first = _logged(100_000, None, outcome="noEligibleReplica", epoch_before=6, cause="disk")
    second = _logged(200_000, 5000.0, trigger="masterless", epoch_before=6, detection_ms=None, id="again")
    cancelled = _logged(300_000, None, outcome="cancelled")
    other = replace(second, epoch_before=8)
    assert [one.id for one in whole_outages([other, first])] == [first.id, "again"]
    # As the operator writes it: an outcome without a candidate has an epoch too. After any other, the next epoch has a master.
    after = replace(second, epoch_before=7)
    assert len(whole_outages([after, replace(first, outcome="incomplete")])) == 2
    for following in (second, after):
        [whole] = whole_outages([following, cancelled, first])
        assert (whole.start_ms, whole.end_ms, whole.cause, whole.id) == (100_000, 205_000, "disk", first.id)


def test_an_incident_counts_once_and_what_another_pod_closed_is_not_left_open() -> None:
    one = _logged(5000, 250.0)
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
        ({"kind": "switchover"}, [Circumstance("rollingUpgrade", 0, 200_000, ORDERS)], "rollingUpgrade"),
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
        ({"from_broker_id": 1}, [Circumstance("oom", 100_000, 100_000, ORDERS, broker_id=2)], "unknown"),
        ({"from_broker_id": 1}, [Circumstance("oom", 100_000, 100_000, ORDERS, broker_id=1)], "oom"),
        ({"trigger": "silence"}, [Circumstance("oom", 100_000, 100_000, replace(ORDERS, broker_group="b"))], "unknown"),
        ({"trigger": "silence"}, [Circumstance("unknown", 100_000, 100_000)], "unknown"),
        ({"kind": "switchover"}, [Circumstance("crash", 100_000, 100_000)], "plannedSwitchover"),
        ({"kind": "switchover", "cause": "drain"}, [Circumstance("oom", 100_000, 100_000)], "drain"),
    ],
)
def test_causes(changes: dict[str, Any], circumstances: list[Circumstance], cause: str) -> None:
    logged = _logged(100_000, 7000.0, facts={"node": "n1"}, **changes)
    incidents, _ = _reconcile(_gauge(), [logged])
    assert [one.cause for one in attribute(incidents, circumstances, until_ms=END_MS)] == [cause]


def test_what_proves_a_cause_is_told_and_else_what_was_near() -> None:
    killed = Circumstance("oom", 100_000, 100_000, ORDERS, broker_id=1, note="OOMKilled")
    other = Circumstance("crash", 700_000, 700_000, ORDERS, broker_id=2, note="ContainerEnded")
    far = Circumstance("crash", 708_001, 708_001, ORDERS, broker_id=2, note="far away")
    for near, cause, told in (
        ([killed, other], "oom", ("OOMKilled",)),
        ([other, far], "unknown", ("ContainerEnded",)),
    ):
        incidents, _ = _reconcile(_gauge(), [_logged(100_000, 7000.0, trigger="silence", from_broker_id=1)])
        [one] = attribute(incidents, near, until_ms=END_MS)
        assert (one.cause, one.circumstances) == (cause, told)


def test_what_only_the_gauge_saw_is_explained_by_a_circumstance_or_stays_unattributed() -> None:
    incidents, _ = _reconcile(_gauge((105_000, 180_000)), [])
    for at_ms, cause in ((90_000, "disk"), (120_000, "disk"), (120_001, UNATTRIBUTED), (44_999, UNATTRIBUTED)):
        [one] = attribute(incidents, [Circumstance("disk", at_ms, at_ms, ORDERS)], until_ms=END_MS)
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
    gauge = _gauge(
        *((start * scale, (start + length) * scale) for start, length in downs),
        unknown=tuple((start * scale, (start + length) * scale) for start, length in unknowns),
    )
    log = [_logged(start * scale + 777, length * 1000.0 + 1000, id=f"{n}") for n, (start, length) in enumerate(entries)]
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
