"""The table of runs gives what all samples at once give, however they came in; a late day replaces itself and nothing else."""

from __future__ import annotations

import datetime as dt
import json
import random
from typing import TYPE_CHECKING

import pytest

from controller_core.metric_names import GROUP_WRITABLE
from sla_reports.reduction.runs import gap_limit_ms
from sla_reports.series import series_text
from sla_reports.sources import Form, Origin
from sla_reports.states.spans import Window
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


def _writable(group: str) -> str:
    return series_text(GROUP_WRITABLE, {"namespace": "n", "cluster": "c", "broker_group": group})


def test_days_one_by_one_are_all_at_once(spark: SparkSession, tmp_path: Path) -> None:
    from sla_reports.reduction.cells import collect_runs
    from sla_reports.reduction.late import Late
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
        assert (appended.days, appended.replaced, appended.late) == ((day,), (), ())
    appended = append_days(spark, store, _frame(spark, by_day[DAYS[0]]))
    assert (appended.days, appended.replaced) == ((DAYS[0],), (DAYS[0],))
    assert appended.quality.samples == len(by_day[DAYS[0]])
    assert days_in(store) == DAYS
    of_day = len(by_day[DAYS[0]])
    assert appended.late == (Late(DAYS[0].isoformat(), of_day - len(late), 0, of_day),)
    window = {"start_ms": (FIRST_DAY + 1) * DAY_MS, "end_ms": (FIRST_DAY + 2) * DAY_MS}
    runs = collect_runs(read_runs(spark, store, **window))
    assert runs == runs_of(samples, gap_limit_ms(INTERVAL_MS))


def test_what_an_export_lacks_or_brings_late_is_told(spark: SparkSession, tmp_path: Path) -> None:
    from sla_reports.pipeline import reduced_from_store
    from sla_reports.reduction.late import Late, late_days
    from sla_reports.reduction.store import append_days
    from sla_reports.report import Request, as_text, make_report

    start_ms = FIRST_DAY * DAY_MS
    whole = [(_writable("orders"), start_ms + number * INTERVAL_MS, 1.0) for number in range(100)]
    others = [(_writable("payments"), at_ms, 1.0) for _, at_ms, _ in whole]
    store, log = tmp_path / "store", tmp_path / "incidents.jsonl"
    log.write_text("")
    append_days(spark, store, _frame(spark, whole), interval_ms=INTERVAL_MS)
    # The same day once more is no news; then 30 samples are gone and 100 of another series are there.
    assert append_days(spark, store, _frame(spark, whole)).late == ()
    told = Late(DAYS[0].isoformat(), 100, 30, 170)
    assert append_days(spark, store, _frame(spark, whole[30:] + others), interval_ms=INTERVAL_MS).late == (told,)
    assert late_days(store) == [told]
    report = make_report(spark, Request(Origin(Form.RUNS, [store]), [log], Window(start_ms, start_ms + DAY_MS)))
    assert "days written again: 100 samples came late, 30 are not there any more" in as_text(report)
    report.write(tmp_path / "report")
    quality = json.loads((tmp_path / "report" / "provenance.json").read_text())["quality"]
    assert (quality["samples"], quality["late_samples"], quality["missing_samples"]) == (170, 100, 30)
    next_day = reduced_from_store(spark, store, Window(start_ms + DAY_MS, start_ms + 2 * DAY_MS)).quality
    assert (next_day.late_samples, next_day.missing_samples) == (0, 0)


def test_a_folder_that_is_no_table_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    from sla_reports.reduction.store import StoreError, read_runs

    with pytest.raises(StoreError, match=r"expected a folder with a store\.json"):
        read_runs(spark, tmp_path, start_ms=0, end_ms=1)
    (tmp_path / "store.json").write_text('{"layoutVersion": 9}')
    with pytest.raises(StoreError, match="layoutVersion 9; expected 1"):
        read_runs(spark, tmp_path, start_ms=0, end_ms=1)
