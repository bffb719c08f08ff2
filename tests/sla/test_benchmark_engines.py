"""The engines that the benchmark compares find the same runs as a plain loop, or its figures would compare nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks import sla_engines
from benchmarks.sla_samples import STEP_MS, make_lake
from tests.sla.reference import runs_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


# DuckDB and polars come with `make bench-sla` only; it compares all answers itself.
@pytest.mark.real("java")
@pytest.mark.timeout(600)
def test_all_of_spark_finds_the_runs_of_a_generated_month(spark: SparkSession, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    made = make_lake(tmp_path / "lake", samples=300_000)
    days = [pq.read_table(path, partitioning=None) for path in made.files()]
    samples = [
        row
        for day in days
        for row in zip(*(day[name].to_pylist() for name in ("series", "ts_ms", "value")), strict=True)
    ]
    truth = [(run.series, run.value, run.start_ms, run.end_ms, run.n) for run in runs_of(samples, STEP_MS * 5 // 2)]
    expected = sla_engines.answer_of(truth)
    assert (made.samples, made.series, expected["samples"]) == (len(samples), 2, len(samples))
    for engine in (sla_engines.Ours, sla_engines.OursInRows, sla_engines.SparkSql):
        assert sla_engines.answer_of(engine(spark).runs(made.folder)) == expected, engine.__name__
    table = sla_engines.FromTable()
    table.prepare(made.folder, tmp_path)
    for alone in (sla_engines.OneProcess(), table):
        assert sla_engines.answer_of(alone.runs(made.folder)) == expected, type(alone).__name__
    assert sla_engines.answer_of(truth[1:]) != expected
