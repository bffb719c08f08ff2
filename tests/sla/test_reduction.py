"""The reduction in any order, parts and form equals a plain loop, also of a series whose scrape interval becomes longer."""

from __future__ import annotations

import datetime as dt
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from metric_names import GROUP_WRITABLE, UNAVAILABLE_SECONDS_TOTAL
from sla_reports.daily import append_lake
from sla_reports.readers import lake
from sla_reports.readers.samples import ExportFormatError
from sla_reports.reduction.daily_table import Late, read_runs
from sla_reports.reduction.jobs import IntervalError, infer_intervals, reduce_lake, reduce_samples
from sla_reports.reduction.runs import HOUR_MS, Intervals, day_pieces, hour_counts, runs_in, stitched
from sla_reports.report import reduce_for_report, reduce_lake_for_report
from sla_reports.series import series_text
from sla_reports.states.entities import Fleet, GroupKey
from sla_reports.states.existence import Existences
from sla_reports.states.spans import CONFLICT, Run, State, Window, at_least, by_series, combine, gap_limit_ms
from tests.sla.histories import (
    INTERVAL_MS,
    START_MS,
    Sample,
    batches_of,
    fleets,
    histories,
    instants,
    longer_hours,
    runs_of,
)
from tests.support.draws import examples

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import SparkSession

GAP_MS = gap_limit_ms(INTERVAL_MS)
GIVEN = Intervals(other_ms=INTERVAL_MS)
DAY_MS = 86_400_000


def _reduced(samples: list[Sample], rows: int, intervals: Intervals = GIVEN) -> tuple[list[Run], pa.Table]:
    table = pa.Table.from_batches(day_pieces(partial(batches_of, samples, rows), intervals))
    return runs_in(stitched(table)), table


@settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))
@given(samples=fleets(4), rows=st.integers(1, 2000), in_order=st.booleans())
def test_a_day_is_what_a_plain_loop_finds(samples: list[Sample], rows: int, in_order: bool) -> None:
    if in_order:
        samples = sorted(samples, key=lambda sample: sample[:2])
    runs, pieces = _reduced(samples, rows)
    assert runs == runs_of(samples, GAP_MS)
    assert sum(pieces["duplicates"].to_pylist()) == len(samples) - len(instants(samples))


@pytest.mark.sampled
@settings(max_examples=examples(60, 200))
@given(samples=histories("up"), data=st.data())
def test_parts_in_any_order_are_the_whole(samples: list[Sample], data: st.DataObject) -> None:
    times = sorted({at_ms for _, at_ms, _ in samples})
    cuts = sorted(data.draw(st.sets(st.sampled_from(times), max_size=5)))
    edges = [0, *cuts, times[-1] + 1]
    parts = [[one for one in samples if low <= one[1] < high] for low, high in pairwise(edges)]
    tables = [_reduced(part, 100)[1] for part in data.draw(st.permutations(parts)) if part]
    assert runs_in(stitched(pa.concat_tables(tables))) == runs_of(samples, GAP_MS)


def test_runs_join_up_to_the_gap_limit() -> None:
    first = [("up", 0, 1.0), ("up", 10, 1.0)]
    six = Intervals(other_ms=6)
    for second_ms, runs in (
        (25, [Run("up", 1.0, 0, 25, 3)]),
        (26, [Run("up", 1.0, 0, 10, 2), Run("up", 1.0, 26, 26, 1)]),
    ):
        for parts in ([first, [("up", second_ms, 1.0)]], [[*first, ("up", second_ms, 1.0)]]):
            tables = [_reduced(part, 100, six)[1] for part in parts]
            assert runs_in(stitched(pa.concat_tables(tables))) == runs


def test_runs_that_overlap_are_refused() -> None:
    first, second = Run("up", 1.0, 0, 10, 2), Run("up", 1.0, 10, 20, 2)
    with pytest.raises(ValueError, match="overlap at 10 ms"):
        by_series([second, first])


@pytest.mark.real("java")
@pytest.mark.timeout(600)
# No shrinking: each attempt is a Spark job of a second.
@settings(max_examples=examples(4), suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(samples=fleets(25), partitions=st.integers(1, 5))
def test_of_a_frame_spark_finds_what_a_plain_loop_finds(
    spark: SparkSession, samples: list[Sample], partitions: int
) -> None:
    frame = spark.createDataFrame(samples, "series string, ts_ms long, value double").repartition(partitions)
    reduction = reduce_samples(frame, INTERVAL_MS)
    assert runs_in(reduction.runs) == runs_of(samples, GAP_MS)
    quality = reduction.quality
    assert quality.samples == len(samples)
    assert quality.series == 25
    assert quality.stale_markers == sum(run.n for run in runs_of(samples, GAP_MS) if run.value is None)
    assert quality.duplicates == len(samples) - len(instants(samples))
    assert quality.conflicting_duplicates == sum(value == CONFLICT for _, _, value, _ in instants(samples))


@pytest.mark.real("java")
@pytest.mark.timeout(600)
def test_of_a_frame_days_end_runs_where_asked(spark: SparkSession) -> None:
    midnight = START_MS // DAY_MS * DAY_MS
    calm = [midnight - 3_600_000 + second * 1000 for second in range(7200)]
    rows = [(name, at_ms, 0.0 if name == "b" and at_ms == midnight else 1.0) for name in "ab" for at_ms in calm]
    frame = spark.createDataFrame(rows, "series string, ts_ms long, value double")
    assert runs_in(reduce_samples(frame, 1000, by_day=True).runs) == [
        Run("a", 1.0, midnight - 3_600_000, midnight - 1000, 3600),
        Run("a", 1.0, midnight, midnight + 3_599_000, 3600),
        Run("b", 1.0, midnight - 3_600_000, midnight - 1000, 3600),
        Run("b", 0.0, midnight, midnight, 1),
        Run("b", 1.0, midnight + 1000, midnight + 3_599_000, 3599),
    ]


@pytest.mark.real("java")
@pytest.mark.timeout(600)
def test_the_interval_is_inferred_although_read_twice(spark: SparkSession) -> None:
    def scraped(name: str, every_ms: int, count: int) -> list[tuple[Any, ...]]:
        return [(name, START_MS + number * every_ms, 1.0) for number in range(count)]

    rows = scraped("fast", 1000, 300) * 2 + scraped("slow", 30_000, 50) + scraped("once", 1, 1)
    frame = spark.createDataFrame(rows, "series string, ts_ms long, value double")
    reduction = reduce_samples(frame, default_ms=7000)
    assert reduction.intervals_ms == {"fast": 1000, "slow": 30_000, "once": 7000}
    assert [(run.n, run.longer_ms) for run in runs_in(reduction.runs)] == [(600, 0), (1, 0), (50, 0)]
    assert reduction.quality.duplicates == 300


def test_an_interval_nobody_can_have_is_refused() -> None:
    with pytest.raises(IntervalError, match="19 ms: expected 20 ms"):
        reduce_samples(None, 19)  # type: ignore[arg-type]


def test_conflicts_are_counted_and_are_no_value() -> None:
    nan = float("nan")
    samples = [("a", 5, 1.0), ("a", 5, 0.0), ("a", 6, nan), ("a", 6, 1.0), ("a", 7, nan), ("a", 7, nan)]
    runs, pieces = _reduced(samples, 100)
    assert runs == [Run("a", CONFLICT, 5, 5, 2), Run("a", 1.0, 6, 6, 2), Run("a", None, 7, 7, 2)]
    assert (sum(pieces["conflicts"].to_pylist()), sum(pieces["duplicates"].to_pylist())) == (1, 3)


def test_each_series_has_its_own_gap_limit_and_one_without_is_left_out() -> None:
    samples = [(name, at_ms, 1.0) for name in ("fast", "other", "slow") for at_ms in (0, 2500, 5001)]
    runs, _ = _reduced(samples, 100, Intervals({"fast": 1000, "slow": 2000}))
    assert runs == [Run("fast", 1.0, 0, 2500, 2), Run("fast", 1.0, 5001, 5001, 1), Run("slow", 1.0, 0, 5001, 3)]


def test_runs_are_cut_at_midnight_where_asked() -> None:
    samples = [("a", DAY_MS - 1000, 1.0), ("a", DAY_MS, 1.0)]
    pieces = pa.Table.from_batches(day_pieces(partial(batches_of, samples, 1), GIVEN))
    assert len(stitched(pieces)) == 1
    cut = [Run("a", 1.0, DAY_MS - 1000, DAY_MS - 1000, 1), Run("a", 1.0, DAY_MS, DAY_MS, 1)]
    assert runs_in(stitched(pieces, by_day=True)) == cut


def test_an_hour_tells_how_far_apart_its_samples_are_where_they_are_even() -> None:
    minute, second = 60_000, 1_000
    hour = {
        "even": range(0, 60 * minute, minute), "jitter": [at * minute + at % 3 * second // 2 for at in range(60)],
        "one lost": [at * minute for at in range(60) if at != 30], "silence": range(0, 20 * minute, minute),
        "lost by chance": [at * minute for at in range(60) if at % 7 and at % 5], "short": range(0, 10 * minute, minute),
        "two intervals": [*range(0, 30 * minute, minute), *range(30 * minute, 60 * minute, 15 * second)],
    }  # fmt: skip
    samples = [(name, at_ms, 1.0) for name, times in sorted(hour.items()) for at_ms in times]
    [batch] = hour_counts(batches_of(samples, len(samples)))
    told = {row["series"]: (row["n"], round(row["even_ms"], -3)) for row in batch.to_pylist()}
    assert told == {
        "even": (60, minute), "jitter": (60, minute), "one lost": (59, minute), "silence": (20, minute),
        "lost by chance": (41, 0), "short": (10, 0), "two intervals": (150, 0),
    }  # fmt: skip


def test_hours_are_counted_in_parts_that_add_up() -> None:
    samples = [(name, at_ms, 1.0) for name in "ab" for at_ms in (3_599_999, 3_600_000, 3_600_001)]
    found: dict[tuple[str, int], int] = {}
    for batch in hour_counts(batches_of(samples, 2)):
        for row in batch.to_pylist():
            found[row["series"], row["hour"]] = found.get((row["series"], row["hour"]), 0) + row["n"]
    assert found == {("a", 0): 1, ("a", 1): 2, ("b", 0): 1, ("b", 1): 2}


def _lake(spark: SparkSession, samples: Iterable[Sample], folder: Path) -> Path:
    lake.write(spark, spark.createDataFrame(list(samples), "series string, ts_ms long, value double"), folder)
    return folder


@pytest.mark.real("java")
@pytest.mark.timeout(600)
@settings(max_examples=examples(1), suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(samples=fleets(25))
def test_a_written_lake_is_what_a_plain_loop_finds(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, samples: list[Sample]
) -> None:
    # Each sample once, as a lake keeps those that agree.
    once = {(series, at_ms): value for series, at_ms, value in samples}
    kept = [(*key, value) for key, value in once.items()]
    folder = _lake(spark, kept, tmp_path_factory.mktemp("lake"))
    reduction = reduce_lake(spark, folder, GIVEN)
    assert runs_in(reduction.runs) == runs_of(kept, GAP_MS)
    assert (reduction.quality.samples, reduction.quality.series) == (len(kept), 25)
    assert reduction.quality.stale_markers == sum(value != value for _, _, value in kept)  # noqa: PLR0124
    told = reduce_samples(lake.read(spark, folder).frame)
    assert infer_intervals(spark, folder) == Intervals(told.intervals_ms)
    assert told.quality == reduction.quality


@pytest.mark.real("java")
@pytest.mark.timeout(600)
def test_days_of_a_lake_become_days_of_the_table(spark: SparkSession, tmp_path: Path) -> None:
    first_ms = START_MS // DAY_MS * DAY_MS
    samples = [
        (name, first_ms + minute * 60_000, 0.0 if name == "up" and 1435 <= minute < 1445 else 1.0)
        for name in ("up", 'up{n="2"}', "left_out")
        for minute in range(2 * 1440)
    ]
    lake = _lake(spark, samples, tmp_path / "lake")
    days = [dt.datetime.fromtimestamp(first_ms / 1000, dt.UTC).date() + dt.timedelta(days=more) for more in (0, 1)]
    table = tmp_path / "runs"
    appended = append_lake(spark, table, lake, days=[str(days[1])], metrics=["up"], interval_ms=60_000)
    assert (appended.days, appended.replaced, appended.quality.samples) == ((days[1],), (), 2 * 1440)
    appended = append_lake(spark, table, lake, metrics=["up"])
    assert (list(appended.days), appended.replaced, appended.late) == (days, (days[1],), ())
    appended = append_lake(spark, table, lake, days=[str(days[0])], metrics=["up", "left_out"])
    assert appended.late == (Late(str(days[0]), 1440, 0, 3 * 1440),)
    appended = append_lake(spark, table, lake, days=[str(days[0])], metrics=["up"])
    assert appended.late == (Late(str(days[0]), 0, 1440, 2 * 1440),)
    found = read_runs(table, Window(first_ms, first_ms + 2 * DAY_MS))
    assert runs_in(found.runs) == runs_of((one for one in samples if one[0] != "left_out"), gap_limit_ms(60_000))
    assert found.intervals_ms == {"up": 60_000, 'up{n="2"}': 60_000}


@pytest.mark.real("java")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("interval_ms", [None, 30_000])
def test_a_report_of_a_lake_is_made_of_what_its_samples_say(
    spark: SparkSession, tmp_path: Path, interval_ms: int | None
) -> None:
    group = 'broker_group="orders",cluster="c",namespace="n"'
    samples = [
        (series, START_MS + number * 30_000, value if number % 50 else 0.0)
        for series, value in (
            (f"brokergroup_group_writable{{{group}}}", 1.0),
            (f'brokergroup_replica_lag_bytes{{broker_id="1",{group}}}', 0.0),
            (f'brokergroup_replica_lag_bytes{{broker_id="2",{group}}}', 77.0),
            ("up", 1.0),
        )
        for number in range(120)
    ]
    folder = _lake(spark, samples, tmp_path / "lake")
    told = reduce_lake_for_report(spark, folder, interval_ms=interval_ms)
    rows = reduce_for_report(lake.read(spark, folder).frame, interval_ms=interval_ms)
    assert (told.runs, told.intervals_ms) == (rows.runs, rows.intervals_ms)
    assert told.most_behind_bytes == rows.most_behind_bytes
    assert list(told.most_behind_bytes.values()) == [77]
    assert (told.quality.samples, told.quality.series) == (rows.quality.samples, rows.quality.series) == (120, 1)


@pytest.mark.real("java")
@pytest.mark.timeout(600)
def test_what_is_no_day_of_samples_is_told_in_one_line(spark: SparkSession, tmp_path: Path) -> None:
    lake = _lake(spark, [("up", START_MS, 1.0)], tmp_path / "lake")
    day = next(lake.glob("day=*"))
    day.rename(lake / "day=2001-01-01")
    with pytest.raises(ExportFormatError, match=r"part-.*: samples from \d+ to \d+ ms; expected those of the day"):
        reduce_lake(spark, lake, GIVEN)
    next((lake / "day=2001-01-01").glob("*.parquet")).write_bytes(b"no Parquet at all")
    with pytest.raises(ExportFormatError, match="expected Parquet with series, ts_ms, value"):
        reduce_lake(spark, lake, GIVEN)
    with pytest.raises(ExportFormatError, match="no such folder"):
        reduce_lake(spark, tmp_path / "nowhere", GIVEN)


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
USUAL_GAP_MS = gap_limit_ms(USUAL_MS)
KEY = GroupKey("n", "c", "orders")
LONGER_MS = (40_000, 60_000, 61_000, 120_000, 300_000)
# A part of a history at one interval; it may end within an hour, or at its edge.
REST = (
    st.sampled_from([1, 20, 60, 61, 90, 180, 300]),  # minutes
    st.sampled_from([0, 0, 0, 1, 2, 15]),  # samples lost in the middle
    st.sampled_from([0, 0, 1, 3]),  # down samples in the middle
)


def changing_histories(*steps_ms: int) -> st.SearchStrategy[list[Part]]:
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
    return Fleet(by_series(runs), gap_ms={GAUGE: USUAL_GAP_MS})


@pytest.mark.sampled
@settings(max_examples=examples(75, 300))
@given(
    parts=st.sampled_from(LONGER_MS).flatmap(changing_histories),
    offset_ms=OFFSETS,
    edge_ms=st.sampled_from([0, 20_000, 200_000]),
)
def test_hours_at_a_longer_interval_say_what_their_single_samples_say(
    parts: list[Part], offset_ms: int, edge_ms: int
) -> None:
    """Compared are: up, down and unknown time, the interval of each stretch, scraped time, and the group's existence."""
    samples = history(parts, offset_ms)
    single, ranged = runs_of(samples, USUAL_GAP_MS), by_ranges(samples)
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
@given(parts=changing_histories(*LONGER_MS), offset_ms=OFFSETS)
def test_between_two_longer_intervals_no_state_is_another_one(parts: list[Part], offset_ms: int) -> None:
    """There a window of ten samples belongs to both: unknown time may differ by these, known time may not."""
    samples = history(parts, offset_ms)
    window = Window(samples[0][1], samples[-1][1] + 1)
    single, ranged = (
        fleet_of(runs).spans(GROUP_WRITABLE, KEY, window, at_least(1))
        for runs in (runs_of(samples, USUAL_GAP_MS), by_ranges(samples))
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
