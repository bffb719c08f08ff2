"""The table of runs gives what all samples at once give, however they came in; a late day replaces itself and nothing else."""

from __future__ import annotations

import datetime as dt
import random
from typing import TYPE_CHECKING

import pytest

from sla_reports.reduction.runs import gap_limit_ms
from tests.sla.reference import Sample, runs_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.real("java"), pytest.mark.timeout(600)]

DAY_MS = 86_400_000
FIRST_DAY = 20_400
INTERVAL_MS = 60_000
DAYS = [dt.date(1970, 1, 1) + dt.timedelta(days=FIRST_DAY + number) for number in range(3)]


def _planted() -> list[Sample]:
    """Three days: an outage over a midnight, one that ends at it, a silence over it, and single bad scrapes."""
    start_ms = FIRST_DAY * DAY_MS
    rng = random.Random(7)
    samples = []
    for number in range(3 * DAY_MS // INTERVAL_MS):
        at_ms = start_ms + number * INTERVAL_MS
        minute = number - 1440
        samples.append(("a", at_ms, 0.0 if -3 <= minute < 4 else 1.0))
        samples.append(("b", at_ms + 17, 0.0 if -10 <= minute < 0 or rng.random() < 0.001 else 1.0))
        if not -5 <= minute - 1440 < 5:
            samples.append(("c", at_ms, 1.0))
    rng.shuffle(samples)
    return samples


def _frame(spark: SparkSession, samples: list[Sample]) -> DataFrame:
    return spark.createDataFrame(samples, "series string, ts_ms long, value double")


def test_days_one_by_one_are_all_at_once(spark: SparkSession, tmp_path: Path) -> None:
    from sla_reports.reduction.cells import collect_runs
    from sla_reports.reduction.store import append_days, days_in, read_runs

    samples = _planted()
    by_day = {
        day: [sample for sample in samples if sample[1] // DAY_MS == FIRST_DAY + number]
        for number, day in enumerate(DAYS)
    }
    store = tmp_path / "store"
    late = [sample for sample in by_day[DAYS[0]] if sample[0] == "a"]
    # The last day first, then the first day without two of its series; what is late comes at the end, with its whole day.
    for day, given in ((DAYS[2], by_day[DAYS[2]]), (DAYS[0], late), (DAYS[1], by_day[DAYS[1]])):
        appended = append_days(spark, store, _frame(spark, given), interval_ms=INTERVAL_MS)
        assert (appended.days, appended.replaced) == ((day,), ())
    appended = append_days(spark, store, _frame(spark, by_day[DAYS[0]]))
    assert (appended.days, appended.replaced) == ((DAYS[0],), (DAYS[0],))
    assert appended.quality.samples == len(by_day[DAYS[0]])
    assert days_in(store) == DAYS
    window = {"start_ms": (FIRST_DAY + 1) * DAY_MS, "end_ms": (FIRST_DAY + 2) * DAY_MS}
    runs = collect_runs(read_runs(spark, store, **window))
    assert runs == runs_of(samples, gap_limit_ms(INTERVAL_MS))


def test_a_folder_that_is_no_table_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    from sla_reports.reduction.store import StoreError, read_runs

    with pytest.raises(StoreError, match=r"expected a folder with a store\.json"):
        read_runs(spark, tmp_path, start_ms=0, end_ms=1)
    (tmp_path / "store.json").write_text('{"layoutVersion": 9}')
    with pytest.raises(StoreError, match="layoutVersion 9; expected 1"):
        read_runs(spark, tmp_path, start_ms=0, end_ms=1)
