"""The timeout that follows a broker's own rhythm: between bounds, slow to trust, quick to forgive a pause."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller_core.liveness import (
    LEARNING_INTERVALS,
    MEMORY_INTERVALS,
    NO_RHYTHM,
    Heartbeat,
    HeartbeatTable,
    Rhythm,
    adaptive_timeout_seconds,
)

ONE = 1


def _rhythm(*intervals_seconds: float) -> Rhythm:
    rhythm = NO_RHYTHM
    for interval_seconds in intervals_seconds:
        rhythm = rhythm.after(interval_seconds)
    return rhythm


def test_mean_and_variance_are_those_of_the_intervals() -> None:
    rhythm = _rhythm(0.4, 0.6, 0.5, 0.5)
    assert rhythm.mean_seconds == pytest.approx(0.5)
    assert rhythm.variance == pytest.approx(0.005)


def test_a_broker_that_beats_like_a_clock_has_the_least_timeout() -> None:
    rhythm = _rhythm(*[0.5] * LEARNING_INTERVALS)
    assert adaptive_timeout_seconds(rhythm, minimum_seconds=1.0, maximum_seconds=10.0) == pytest.approx(2.5)
    assert adaptive_timeout_seconds(rhythm, minimum_seconds=4.0, maximum_seconds=10.0) == 4.0
    assert adaptive_timeout_seconds(rhythm, minimum_seconds=1.0, maximum_seconds=2.0) == 2.0


def test_the_figures_of_the_reference() -> None:
    """At 0.5 s, a deviation of 0.2 s gives 1.75 s of silence by chance, and one second for the JVM."""
    chance = Random(1)
    rhythm = _rhythm(*[max(chance.gauss(0.5, 0.2), 0.0) for _ in range(2000)])
    timeout_seconds = adaptive_timeout_seconds(rhythm, minimum_seconds=1.0, maximum_seconds=10.0)
    assert timeout_seconds == pytest.approx(2.75, abs=0.3)


def test_without_a_rhythm_or_without_room_it_is_the_longest() -> None:
    learning = _rhythm(*[0.5] * (LEARNING_INTERVALS - 1))
    assert adaptive_timeout_seconds(learning, minimum_seconds=1.0, maximum_seconds=10.0) == 10.0
    known = learning.after(0.5)
    assert adaptive_timeout_seconds(known, minimum_seconds=1.0, maximum_seconds=10.0) < 10.0
    assert adaptive_timeout_seconds(known, minimum_seconds=3.0, maximum_seconds=3.0) == 3.0


def test_one_long_pause_widens_it_and_is_forgotten() -> None:
    calm = _rhythm(*[0.5] * MEMORY_INTERVALS)
    paused = calm.after(4.0)
    assert paused.silence_seconds > 2.5
    assert _rhythm(*[0.5] * MEMORY_INTERVALS, 4.0, *[0.5] * 500).silence_seconds < 0.8


@given(st.lists(st.floats(0.0, 60.0), max_size=60), st.floats(0.1, 5.0), st.floats(0.1, 20.0))
def test_it_stays_within_its_bounds(intervals: list[float], minimum_seconds: float, maximum_seconds: float) -> None:
    rhythm = _rhythm(*intervals)
    assert rhythm.variance >= 0
    found = adaptive_timeout_seconds(rhythm, minimum_seconds=minimum_seconds, maximum_seconds=maximum_seconds)
    assert min(minimum_seconds, maximum_seconds) <= found <= maximum_seconds


def _beating(table: HeartbeatTable, *, minimum_seconds: float | None, beats: int, connection_id: int = 1) -> None:
    for beat in range(beats):
        heartbeat = Heartbeat(broker_id=ONE, heartbeat_timeout_seconds=10.0, minimum_timeout_seconds=minimum_seconds)
        table.heartbeat(beat * 0.5, heartbeat, connection_id)


def test_the_table_uses_it_only_where_a_heartbeat_gives_a_lower_bound() -> None:
    for minimum_seconds, expected_seconds in ((None, 10.0), (10.0, 10.0), (1.0, 2.5)):
        table = HeartbeatTable()
        _beating(table, minimum_seconds=minimum_seconds, beats=LEARNING_INTERVALS + 1)
        entry = table.entry(ONE)
        assert entry is not None
        assert entry.timeout_seconds == pytest.approx(expected_seconds)


def test_our_own_pause_and_a_new_connection_are_not_the_brokers_rhythm() -> None:
    table = HeartbeatTable()
    _beating(table, minimum_seconds=1.0, beats=LEARNING_INTERVALS + 1)
    before = table.entry(ONE)
    table.restart_deadlines(60.0)
    heartbeat = Heartbeat(broker_id=ONE, heartbeat_timeout_seconds=10.0, minimum_timeout_seconds=1.0)
    table.heartbeat(60.5, heartbeat, 1)
    table.heartbeat(90.0, heartbeat, 2)
    after = table.entry(ONE)
    assert before is not None
    assert after is not None
    assert after.rhythm == before.rhythm
    table.registered(91.0, ONE, 2)
    table.heartbeat(91.5, heartbeat, 2)
    restarted = table.entry(ONE)
    assert restarted is not None
    assert restarted.rhythm == NO_RHYTHM, "another process, another rhythm"
