"""From a frame of samples and the incident log to the evidence a summary is made of. After this no Spark is needed.

The two inputs of Spark end here: samples become runs, rows of the log become objects. A source that is expensive to read (a server)
should be a lake or be cached first: the second level of the reduction reads the mixed cells again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from sla_reports.measures.amendments import Amendment
from sla_reports.measures.summary import Evidence
from sla_reports.outages.logged import Circumstance, logged_incidents
from sla_reports.readers import lake
from sla_reports.reduction import intervals
from sla_reports.reduction.cells import Quality, collect_runs, quality, reduce_samples
from sla_reports.reduction.day_pieces import Intervals, runs_in
from sla_reports.reduction.lag import greatest_lag_bytes
from sla_reports.reduction.lake_days import infer_intervals, reduce_lake
from sla_reports.reduction.runs import Run, by_series, gap_limit_ms
from sla_reports.report_metrics import REPORT_METRICS
from sla_reports.series import labels_column, metric_column, parse_series
from sla_reports.states.entities import Fleet, GroupKey
from sla_reports.states.labels import REPLICA_LABELS
from sla_reports.states.spans import Window


@dataclass(frozen=True, slots=True)
class StoredQuality:
    """What a table of runs still knows of its samples; what else was odd was told when its days were written."""

    samples: int
    series: int
    stale_markers: int
    # Of the window's days: samples that came after their day had been reduced, and those that an export of it lacked later on.
    late_samples: int
    missing_samples: int


@dataclass(frozen=True, slots=True)
class Reduced:
    """The runs of all series a report needs, the scrape interval of each, and what was odd about the samples."""

    runs: tuple[Run, ...]
    intervals_ms: Mapping[str, int]
    quality: Quality | StoredQuality
    most_behind_bytes: Mapping[GroupKey, int] = field(default_factory=dict)
    # Whether the interval was given: then it holds for all of the time.
    interval_given: bool = False


def reduce_for_report(
    samples: DataFrame, *, interval_ms: int | None = None, window: Window | None = None, match: Mapping[str, str] | None = None
) -> Reduced:  # fmt: skip
    """Runs of the metrics a report reads, and the lag of slaves in the window (or in all samples), of series that `match`.

    Without `interval_ms` each series' scrape interval is inferred.
    """
    samples = with_labels(samples, match or {})
    own = wanted(samples)
    if interval_ms is None:
        inferred = intervals.infer(own)
        reduction = reduce_samples(own, inferred)
        found = {row["series"]: row["interval_ms"] for row in inferred.usual.collect()}
    else:
        inferred = None
        reduction = reduce_samples(own, intervals.given(interval_ms))
        found = {}
    runs = tuple(collect_runs(reduction.runs))
    told = quality(reduction)
    behind = greatest_lag_bytes(samples, window)
    reduction.unpersist()
    if inferred is not None:
        inferred.unpersist()
    intervals_ms = found or {run.series: interval_ms or 0 for run in runs}
    return Reduced(runs, intervals_ms, told, behind, interval_given=interval_ms is not None)


def reduce_lake_for_report(
    spark: SparkSession, folder: Path, *, interval_ms: int | None = None, window: Window | None = None,
    match: Mapping[str, str] | None = None,
) -> Reduced:  # fmt: skip
    """The same of a lake, whose days are reduced where their files are."""
    known = (
        infer_intervals(spark, folder, metrics=REPORT_METRICS)
        if interval_ms is None
        else Intervals(other_ms=interval_ms)
    )
    reduction = reduce_lake(spark, folder, known, metrics=REPORT_METRICS)
    runs = tuple(runs_in(reduction.runs))
    behind = greatest_lag_bytes(with_labels(lake.read(spark, folder).frame, match or {}), window)
    intervals_ms = known.known_ms or {run.series: interval_ms or 0 for run in runs}
    told = Reduced(runs, intervals_ms, reduction.quality, behind, interval_given=interval_ms is not None)
    return matching(told, match or {})


def reduced_from_table(table: str | Path, window: Window) -> Reduced:
    """What the days of the daily table hold for a window, without Spark. It has no lag: that is no run. Raises TableError."""
    # Delta is loaded for a table only.
    from sla_reports.reduction.daily_table import day_of, late_days, read_runs, stored_intervals  # noqa: PLC0415

    runs = tuple(runs_in(read_runs(table, start_ms=window.start_ms, end_ms=window.end_ms)))
    found = stored_intervals(table, start_ms=window.start_ms, end_ms=window.end_ms)
    late = late_days(table, first=day_of(window.start_ms), last=day_of(window.end_ms - 1))
    told = StoredQuality(
        samples=sum(run.n for run in runs),
        series=len({run.series for run in runs}),
        stale_markers=sum(run.n for run in runs if run.value is None),
        late_samples=sum(one.more for one in late),
        missing_samples=sum(one.fewer for one in late),
    )
    return Reduced(runs, {run.series: found[run.series] for run in runs}, told)


def matching(reduced: Reduced, match: Mapping[str, str]) -> Reduced:
    """Only the runs of series whose labels have these values."""
    if not match:
        return reduced
    chosen = {
        text
        for text in {run.series for run in reduced.runs}
        if match.items() <= dict(parse_series(text).labels).items()
    }
    return replace(
        reduced,
        runs=tuple(run for run in reduced.runs if run.series in chosen),
        intervals_ms={text: one for text, one in reduced.intervals_ms.items() if text in chosen},
    )


def with_labels(samples: DataFrame, match: Mapping[str, str]) -> DataFrame:
    """The samples of series whose labels have these values: of a store of several Kubernetes clusters one."""
    for name, value in match.items():
        samples = samples.where(labels_column(sql.col("series"))[name] == value)
    return samples


def wanted(samples: DataFrame) -> DataFrame:
    """The samples of the metrics that a report reads."""
    return samples.where(metric_column(sql.col("series")).isin(*REPORT_METRICS))


def evidence(
    reduced: Reduced,
    log_rows: Iterable[Mapping[str, Any]],
    *,
    circumstances: Sequence[Circumstance] = (),
    amendments: Sequence[Amendment] = (),
    now_ms: int | None = None,
    replica_labels: Sequence[str] = (),
) -> Evidence:
    """Everything `summarise` asks for. `log_rows` are the incident reader's; `replica_labels` come to the known ones."""
    gaps = {series: gap_limit_ms(interval) for series, interval in reduced.intervals_ms.items()}
    fleet = Fleet(
        by_series(reduced.runs), gap_ms=gaps, replica_labels=(*REPLICA_LABELS, *replica_labels),
        by_stretch=not reduced.interval_given,
    )  # fmt: skip
    behind = reduced.most_behind_bytes
    return Evidence(fleet, logged_incidents(log_rows), circumstances, amendments, now_ms, behind)
