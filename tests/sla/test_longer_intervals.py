"""A series with a longer scrape interval from some hour on makes runs, not one run for each sample: the figures stay the same.

Measured before: a month of ten groups, a day at 15 s and then 60 s, was 3.5 million runs (118 s of processor time and 2.5 GiB for
a lake's report, out of memory for any other form); at 60 s all the month it is 1,940 runs (23 s).
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metric_names import GROUP_WRITABLE, UNAVAILABLE_SECONDS_TOTAL
from sla_reports.reduction.runs import HOUR_MS, Intervals, day_pieces, runs_in, stitched
from sla_reports.series import series_text
from sla_reports.states.entities import Fleet, GroupKey
from sla_reports.states.existence import Existences
from sla_reports.states.spans import Run, State, Window, at_least, by_series, combine, gap_limit_ms
from tests.sla.histories import START_MS, batches_of, longer_hours, runs_of
from tests.support.draws import examples

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.sla.histories import Sample

DAY_MS = 86_400_000
MIDNIGHT_MS = START_MS // DAY_MS * DAY_MS
GROUP = {"namespace": "n", "cluster": "c", "broker_group": "orders"}
GAUGE = series_text(GROUP_WRITABLE, GROUP)
COUNTER = series_text(UNAVAILABLE_SECONDS_TOTAL, {**GROUP, "cause": "crash"})
# Within an hour at 60 s.
DOWN_MS, UP_MS = MIDNIGHT_MS + 30 * HOUR_MS + 1_200_000, MIDNIGHT_MS + 30 * HOUR_MS + 1_500_000


def two_days() -> list[Sample]:
    """A day at 15 s, then a day at 60 s with a lost scrape, one downtime, and a silence of ten minutes."""
    times = [*range(MIDNIGHT_MS, MIDNIGHT_MS + DAY_MS, 15_000)]
    times += [*range(MIDNIGHT_MS + DAY_MS, MIDNIGHT_MS + 2 * DAY_MS, 60_000)]
    quiet_ms = MIDNIGHT_MS + 40 * HOUR_MS
    times.remove(MIDNIGHT_MS + 35 * HOUR_MS)
    times = [at_ms for at_ms in times if not quiet_ms < at_ms < quiet_ms + 600_000]
    gauge = [(GAUGE, at_ms, 0.0 if DOWN_MS <= at_ms < UP_MS else 1.0) for at_ms in times]
    return gauge + [(COUNTER, at_ms, 300.0 if at_ms >= UP_MS else 0.0) for at_ms in times]


@pytest.mark.real("java")
@pytest.mark.timeout(600)
def test_a_day_at_a_longer_interval_is_a_few_runs_in_rows_and_in_a_lake(spark: SparkSession, tmp_path: Path) -> None:
    from sla_reports.readers import lake
    from sla_reports.report import reduce_for_report, reduce_lake_for_report

    frame = spark.createDataFrame(two_days(), "series string, ts_ms long, value double")
    lake.write(spark, frame, tmp_path / "lake")
    rows = reduce_for_report(frame)
    files = reduce_lake_for_report(spark, tmp_path / "lake")
    assert rows.intervals_ms == files.intervals_ms == {GAUGE: 15_000, COUNTER: 15_000}
    assert sum(run.n for run in rows.runs) == len(two_days())
    assert len(rows.runs) < 20
    assert rows.runs == files.runs


Part = tuple[int, int, int, int]
USUAL_MS = 15_000
GAP_MS = gap_limit_ms(USUAL_MS)
KEY = GroupKey("n", "c", "orders")
LONGER_MS = (40_000, 60_000, 61_000, 120_000, 300_000)
# A part of a history at one interval; it may end within an hour, or at its edge.
REST = (
    st.sampled_from([1, 20, 60, 61, 90, 180, 300]),  # minutes
    st.sampled_from([0, 0, 0, 1, 2, 15]),  # samples lost in the middle
    st.sampled_from([0, 0, 1, 3]),  # down samples in the middle
)


def histories(*steps_ms: int) -> st.SearchStrategy[list[Part]]:
    """Draw parts of a history, each at one of these intervals or at the usual one."""
    return st.lists(st.tuples(st.sampled_from([USUAL_MS, *steps_ms]), *REST), min_size=1, max_size=6)


OFFSETS = st.sampled_from([0, 1, 7_000, 30_000])


def history(parts: Iterable[Part], offset_ms: int) -> list[Sample]:
    """Return a gauge whose interval changes, with lost samples and some downtime."""
    at_ms = MIDNIGHT_MS + offset_ms
    found: list[Sample] = []
    for step_ms, minutes, lost, down in parts:
        count = minutes * 60_000 // step_ms
        for number in range(count):
            middle = number - count // 2
            if not 0 <= middle < lost:
                found.append((GAUGE, at_ms, 0.0 if lost <= middle < lost + down else 1.0))
            at_ms += step_ms
    return found or [(GAUGE, at_ms, 1.0)]


def by_ranges(samples: list[Sample]) -> list[Run]:
    intervals = Intervals({GAUGE: USUAL_MS}, longer=longer_hours(samples, USUAL_MS))
    return runs_in(stitched(pa.Table.from_batches(day_pieces(partial(batches_of, samples), intervals))))


def fleet_of(runs: Iterable[Run]) -> Fleet:
    return Fleet(by_series(runs), gap_ms={GAUGE: GAP_MS})


@pytest.mark.sampled
@settings(max_examples=examples(75, 300))
@given(
    parts=st.sampled_from(LONGER_MS).flatmap(histories),
    offset_ms=OFFSETS,
    edge_ms=st.sampled_from([0, 20_000, 200_000]),
)
def test_hours_at_a_longer_interval_say_what_their_single_samples_say(
    parts: list[Part], offset_ms: int, edge_ms: int
) -> None:
    """Compared are: up, down and unknown time, the interval of each stretch, scraped time, and the group's existence."""
    samples = history(parts, offset_ms)
    single, ranged = runs_of(samples, GAP_MS), by_ranges(samples)
    assert len(ranged) <= len(single)
    assert sum(run.n for run in ranged) == len(samples)
    window = Window(samples[0][1] - edge_ms, samples[-1][1] + edge_ms + 1)
    told = [
        (
            fleet.spans(GROUP_WRITABLE, KEY, window, at_least(1)),
            fleet.interval(GROUP_WRITABLE, KEY),
            fleet.scraped(fleet.series_of(GROUP_WRITABLE, KEY)[0]),
            Existences(fleet, {}).of(KEY, window),
        )
        for fleet in (fleet_of(single), fleet_of(ranged))
    ]
    assert told[0] == told[1]


@pytest.mark.sampled
@settings(max_examples=examples(50, 200))
@given(parts=histories(*LONGER_MS), offset_ms=OFFSETS)
def test_between_two_longer_intervals_no_state_is_another_one(parts: list[Part], offset_ms: int) -> None:
    """There a window of ten samples belongs to both: unknown time may differ by these, known time may not."""
    samples = history(parts, offset_ms)
    window = Window(samples[0][1], samples[-1][1] + 1)
    single, ranged = (
        fleet_of(runs).spans(GROUP_WRITABLE, KEY, window, at_least(1))
        for runs in (runs_of(samples, GAP_MS), by_ranges(samples))
    )
    differ_ms = 0
    for piece in combine([single, ranged], lambda states: State.UP if states[0] is states[1] else State.UNKNOWN):
        differ_ms += piece.length_ms if piece.state is State.UNKNOWN else 0
    both = combine([single, ranged], lambda states: State.DOWN if set(states) == {State.UP, State.DOWN} else State.UP)
    assert {piece.state for piece in both} == {State.UP}
    assert differ_ms <= len(parts) * 20 * max(LONGER_MS)


def test_a_day_at_a_longer_interval_is_one_run_and_its_stretch_is_told() -> None:
    samples = [one for one in two_days() if one[0] == GAUGE]
    found = by_ranges(samples)
    assert [(run.value, run.n, run.longer_ms) for run in found] == [
        (1.0, 5760, 0), (1.0, 380, 60_000), (0.0, 5, 60_000), (1.0, 575, 60_000), (1.0, 470, 60_000),
    ]  # fmt: skip
    [stretch] = fleet_of(found[:-1]).interval(GROUP_WRITABLE, KEY).stretches
    assert (stretch.interval_ms, stretch.end_ms) == (60_000, found[-2].end_ms)
    for before, after in pairwise(found):
        assert before.end_ms < after.start_ms
