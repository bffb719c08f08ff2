"""Runs are the same however the samples are cut; the JVM finds the runs that a plain loop finds."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sla_reports.reduction.runs import Run, by_series, gap_limit_ms, merge
from tests.sla.histories import INTERVAL_MS, START_MS, fleets, histories
from tests.sla.reference import Sample, instants, runs_of
from tests.support.draws import examples

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GAP_MS = gap_limit_ms(INTERVAL_MS)


@settings(max_examples=examples(200))
@given(samples=histories("up"), data=st.data())
def test_merging_chunks_in_any_order_is_the_whole(samples: list[Sample], data: st.DataObject) -> None:
    times = sorted({at_ms for _, at_ms, _ in samples})
    cuts = sorted(data.draw(st.sets(st.sampled_from(times), max_size=5)))
    edges = [0, *cuts, times[-1] + 1]
    chunks = [
        tuple(runs_of([sample for sample in samples if low <= sample[1] < high], GAP_MS))
        for low, high in pairwise(edges)
    ]
    while len(chunks) > 1:
        at = data.draw(st.integers(0, len(chunks) - 2))
        chunks[at : at + 2] = [merge(chunks[at], chunks[at + 1], GAP_MS)]
    assert chunks[0] == tuple(runs_of(samples, GAP_MS))


def test_runs_join_up_to_the_gap_limit() -> None:
    first = Run("up", 1.0, 0, 10, 2)
    assert merge((first,), (Run("up", 1.0, 25, 30, 2),), 15) == (Run("up", 1.0, 0, 30, 4),)
    later = Run("up", 1.0, 26, 30, 2)
    assert merge((first,), (later,), 15) == (first, later)
    assert merge((), (later,), 15) == merge((later,), (), 15) == (later,)


def test_chunks_that_overlap_are_refused() -> None:
    first, second = Run("up", 1.0, 0, 10, 2), Run("up", 1.0, 10, 20, 2)
    with pytest.raises(ValueError, match="overlap at 10 ms"):
        merge((first,), (second,), 15)
    with pytest.raises(ValueError, match="overlap at 10 ms"):
        by_series([second, first])
    with pytest.raises(ValueError, match="expected one series"):
        merge((first,), (Run("down", 1.0, 30, 30, 1),), 15)


@pytest.mark.real("java")
@pytest.mark.timeout(600)
# Nothing is shrunk: each try is a Spark job of a second.
@settings(max_examples=examples(4), suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(samples=fleets(25), partitions=st.integers(1, 5))
def test_the_jvm_finds_what_a_plain_loop_finds(spark: SparkSession, samples: list[Sample], partitions: int) -> None:
    from sla_reports.reduction import cells

    frame = spark.createDataFrame(samples, "series string, ts_ms long, value double").repartition(partitions)
    reduction = cells.reduce_samples(frame, cells.given(INTERVAL_MS))
    assert cells.collect_runs(reduction.runs) == runs_of(samples, GAP_MS)
    quality = cells.quality(reduction)
    assert quality.samples == len(samples)
    assert quality.series == 25
    assert quality.stale_markers == sum(value != value for _, _, value in samples)  # noqa: PLR0124 - NaN
    assert quality.duplicates <= len(samples) - len(instants(samples))
    reduction.unpersist()


@pytest.mark.real("java")
@pytest.mark.timeout(600)
def test_calm_cells_are_not_read_again_and_days_end_runs(spark: SparkSession) -> None:
    from sla_reports.reduction import cells

    day_ms = 86_400_000
    midnight = START_MS // day_ms * day_ms
    calm = [("up", midnight - 3_600_000 + second * 1000, 1.0) for second in range(7200)]
    rows = [
        (name, at_ms, 0.0 if name == "b" and at_ms == midnight else value) for name in "ab" for _, at_ms, value in calm
    ]
    frame = spark.createDataFrame(rows, "series string, ts_ms long, value double")
    reduction = cells.reduce_samples(frame, cells.given(1000), by_day=True)
    assert cells.collect_runs(reduction.runs) == [
        Run("a", 1.0, midnight - 3_600_000, midnight - 1000, 3600),
        Run("a", 1.0, midnight, midnight + 3_599_000, 3600),
        Run("b", 1.0, midnight - 3_600_000, midnight - 1000, 3600),
        Run("b", 0.0, midnight, midnight, 1),
        Run("b", 1.0, midnight + 1000, midnight + 3_599_000, 3599),
    ]
    quality = cells.quality(reduction)
    assert (quality.cells, quality.cells_read_again) == (240, 1)


@pytest.mark.real("java")
@pytest.mark.timeout(600)
def test_the_interval_is_inferred_although_read_twice(spark: SparkSession) -> None:
    from sla_reports.reduction import cells

    def scraped(name: str, every_ms: int, count: int) -> list[tuple[Any, ...]]:
        return [(name, START_MS + number * every_ms, 1.0) for number in range(count)]

    rows = scraped("fast", 1000, 300) * 2 + scraped("slow", 30_000, 50) + scraped("once", 1, 1)
    frame = spark.createDataFrame(rows, "series string, ts_ms long, value double")
    inferred = cells.infer(frame, default_ms=7000)
    assert inferred.longer is None
    assert dict(inferred.usual.collect()) == {"fast": 1000, "slow": 30_000, "once": 7000}
    reduction = cells.reduce_samples(frame, inferred)
    assert [run.n for run in cells.collect_runs(reduction.runs)] == [600, 1, 50]
    assert cells.quality(reduction).duplicates == 300


def test_an_interval_nobody_can_have_is_refused() -> None:
    from sla_reports.reduction import cells

    with pytest.raises(cells.IntervalError, match="19 ms: expected 20 ms"):
        cells.given(19)
