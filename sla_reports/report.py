"""A report from exports and incident logs: samples become runs (the last step of Spark), runs figures, figures files and texts."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from metric_names import GROUP_WRITABLE
from sla_reports.measures.amendments import Amendment
from sla_reports.measures.objectives import Objective, reading_window
from sla_reports.measures.periods import PeriodError
from sla_reports.measures.reconciliation import reconcile_totals
from sla_reports.measures.summary import Agreement, Evidence, GroupFigures, Summary, as_incomplete, summarise
from sla_reports.output.files import provenance_document, write_report
from sla_reports.output.html_elements import counted, percent
from sla_reports.readers import lake
from sla_reports.readers.samples import NOT_COUNTED, ExportFormatError, Noted, readable_errors
from sla_reports.reduction.jobs import Reduction, greatest_lag_bytes, infer_intervals, reduce_lake, reduce_samples
from sla_reports.reduction.runs import Intervals, Quality, runs_in
from sla_reports.series import Series, labels_column, metric_column, parse_series
from sla_reports.sources import READ_METRICS, REPORT_METRICS, Form, Origin, samples_of
from sla_reports.states.entities import REPLICA_LABELS, Fleet, GroupKey
from sla_reports.states.existence import existed_words
from sla_reports.states.identity import Copies, identity_of
from sla_reports.states.logged import Circumstance, IncidentLogs, LoggedIncident, files_of, read_logs
from sla_reports.states.spans import Run, Stretch, Window, by_series, gap_limit_ms

DEFAULT_OBJECTIVE = 0.9995


@dataclass(frozen=True, slots=True)
class Request:
    """What to report on. Without a window: from the first sample to the last; without an interval: as inferred.

    `groups`: only groups of such names, as namespace/cluster/brokerGroup with `*` and `?`. The daily table has lines of the
    logs, so from it there may be no file of them.

    `until_ms` says that the window is still running and up to where the data goes. Without it what is missing at the end is
    unknown, as it is anywhere else.
    """

    origin: Origin
    incident_logs: Sequence[Path]
    window: Window | None = None
    objective: float = DEFAULT_OBJECTIVE
    # Of single groups; `objective` is that of all others.
    objectives: Sequence[Objective] = ()
    # What the reader has to know of how this was asked, each in a sentence: it stands with the report's own warnings.
    notes: Sequence[str] = ()
    until_ms: int | None = None
    interval_ms: int | None = None
    amendments: Sequence[Amendment] = ()
    time_zone: str = "UTC"
    # Labels by which copies of one series differ, beside the known ones.
    replica_labels: Sequence[str] = ()
    # Only series with these labels: of a store that holds several Kubernetes clusters one.
    match: Mapping[str, str] = field(default_factory=dict)
    groups: str = "*"
    # Of page one; empty: those of the objectives.
    service: str = ""
    owner: str = ""

    @property
    def reading(self) -> Window | None:
        """The time to read: the window, and as far back as the objectives' own windows reach."""
        if self.window is None:
            return None
        return reading_window(self.window, self.objectives, until_ms=self.until_ms)


@dataclass(frozen=True, slots=True)
class StoredQuality:
    """What a table of runs still knows of its samples; what else was odd was reported when its days were written."""

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


@dataclass(frozen=True, slots=True)
class Report:
    """The figures, what they were made of, and how many lines of the incident logs could not be used."""

    request: Request
    summary: Summary
    reduced: Reduced
    unreadable_incidents: int
    noted: Noted = NOT_COUNTED
    # Series that were taken for copies, and where another scrape interval held than the usual one.
    copies: Sequence[Copies] = ()
    stretches: Mapping[GroupKey, Sequence[Stretch]] = field(default_factory=dict)

    def write(self, folder: Path) -> list[Path]:
        """Write the report's files; return their paths."""
        request, agreement = self.request, self.summary.agreement
        question = {
            "startMs": agreement.window.start_ms, "endMs": agreement.window.end_ms, "untilMs": self.request.until_ms,
            "objective": request.objective,
            "objectives": [
                {"name": one.name, "groups": one.groups, "share": one.share, "window": str(one.window)}
                for one in request.objectives
            ],
            "scrapeIntervalsMs": sorted(set(self.reduced.intervals_ms.values())),
            "amendments": len(request.amendments), "timeZone": request.time_zone, "from": request.origin.form.value,
            "replicaLabels": [*REPLICA_LABELS, *request.replica_labels], "match": dict(request.match),
            "groups": request.groups,
            "server": request.origin.shown_url if request.origin.url else None,
        }  # fmt: skip
        quality = {
            **asdict(self.reduced.quality),
            "foreign_series": self.noted.foreign_series,
            "unreadable_incidents": self.unreadable_incidents,
            "incomplete": list(self.summary.incomplete),
            "copies": [_copies(one) for one in self.copies],
            "scrape_stretches": [
                {"group": str(group), "startMs": one.start_ms, "endMs": one.end_ms, "intervalMs": one.interval_ms}
                for group, own in self.stretches.items()
                for one in own
            ],
        }
        inputs = [*request.origin.paths, *files_of(request.incident_logs)]
        document, reduced = provenance_document(inputs, question, quality), self.reduced
        zone = request.time_zone
        return write_report(folder, self.summary, reduced.runs, reduced.intervals_ms, document, time_zone=zone)


def make_report(spark: SparkSession | None, request: Request) -> Report:
    """Read, reduce, summarise; of the daily table without Spark.

    Raises ExportFormatError for input that can't be read or holds nothing of ours, TableError, PeriodError.
    """
    if request.window and request.until_ms is not None and request.until_ms <= request.window.start_ms:
        raise PeriodError("until: lies before the period; expected an instant within it")
    logs = _logs(request)
    reduced, noted = _reduced(spark, request)
    reduced = of_groups(reduced, request.groups)
    if not reduced.runs:
        raise ExportFormatError(no_series_of_ours(request.origin, noted, request.match, request.groups))
    # A window has at least a millisecond, also around a single scrape.
    edges = min(run.start_ms for run in reduced.runs), max(run.end_ms for run in reduced.runs) + 1
    window = request.window or Window(*edges)
    known = evidence(
        reduced, logs.incidents, circumstances=logs.circumstances, amendments=request.amendments,
        now_ms=request.until_ms, replica_labels=request.replica_labels,
    )  # fmt: skip
    objectives = request.objectives
    if request.groups != "*":
        # What is about other groups is not about this report, and none of it is a mistake.
        here = {*known.fleet.groups(GROUP_WRITABLE), *(one.group for one in known.log)}
        objectives = [one for one in objectives if any(map(one.is_about, here))]
        known = replace(known, amendments=[one for one in known.amendments if any(map(one.is_about, here))])
    identity = identity_of(known.fleet)
    if identity.faults:
        raise ExportFormatError("; ".join(identity.faults))
    # Without a period all of the export is: what lies before it would be unknown, and no objective could be judged.
    own_windows = request.window is not None
    agreement = Agreement(
        window, request.objective, objectives=objectives, own_windows=own_windows,
        service=request.service, owner=request.owner,
    )  # fmt: skip
    summary = summarise(agreement, known)
    summary = as_incomplete(replace(summary, warnings=(*request.notes, *summary.warnings)), noted.lacks)
    found = {key: known.fleet.interval(GROUP_WRITABLE, key).stretches for key in known.fleet.groups(GROUP_WRITABLE)}
    return Report(request, summary, reduced, len(logs.unreadable), noted, identity.copies, found)


def no_series_of_ours(origin: Origin, noted: Noted, match: Mapping[str, str] | None = None, groups: str = "*") -> str:
    """Return the error message for an export that holds no metric of a report."""
    labels = " and ".join(f'{name}="{value}"' for name, value in (match or {}).items())
    wanted = f" with {labels} (--match)" if labels else ""
    wanted += "" if groups == "*" else f" of a group {groups} (--group)"
    others = f", but {noted.foreign_series} series of others" if noted.foreign_series else ""
    missing = f"; the answer lacks: {'; '.join(noted.lacks)}" if noted.lacks else ""
    return (
        f"no series of ours in {origin.shown_name}: holds no sample of the operator's metrics{wanted}{others};"
        f" expected {', '.join(REPORT_METRICS)}{missing}"
    )


def _logs(request: Request) -> IncidentLogs:
    """The logs' files and the lines that the table has of them, of the groups that are asked for."""
    stored: list[str] = []
    if request.origin.form is Form.RUNS and (time := request.reading) is not None:
        from sla_reports.reduction.daily_table import read_lines  # noqa: PLC0415 - Delta is loaded for a table only

        stored = read_lines(request.origin.table, time, request.groups)
    logs = read_logs(request.incident_logs, stored)
    return replace(logs, incidents=tuple(one for one in logs.incidents if one.group.matches(request.groups)))


def _reduced(spark: SparkSession | None, request: Request) -> tuple[Reduced, Noted]:
    """The runs, and what was passed over on the way."""
    if request.origin.form is Form.RUNS and request.reading is not None:
        reduced = reduced_from_table(request.origin.table, request.reading, request.groups)
        return matching(reduced, request.match), NOT_COUNTED
    if spark is None:
        raise ValueError("spark: None; expected a session for every form but runs")
    with readable_errors():
        if request.origin.form is Form.LAKE:
            folder = request.origin.paths[0]
            reduced = reduce_lake_for_report(
                spark, folder, interval_ms=request.interval_ms, window=request.reading, match=request.match
            )
            return reduced, NOT_COUNTED
    samples = samples_of(spark, request.origin, READ_METRICS)
    with readable_errors():
        frame = samples.frame if samples.packed is None else samples.packed
        reduced = reduce_for_report(frame, interval_ms=request.interval_ms, window=request.reading, match=request.match)
        return reduced, samples.noted()


def reduce_for_report(
    samples: DataFrame, *, interval_ms: int | None = None, window: Window | None = None, match: Mapping[str, str] | None = None
) -> Reduced:  # fmt: skip
    """Return the runs of the metrics a report reads, and the lag of slaves in the window (or in all samples).

    Only of series that `match`. Without `interval_ms` each series' scrape interval is inferred. The frame has rows or packed rows.
    """
    samples = with_labels(samples, match or {})
    return _reduced_from(reduce_samples(wanted(samples), interval_ms), samples, window, interval_ms)


def reduce_lake_for_report(
    spark: SparkSession, folder: Path, *, interval_ms: int | None = None, window: Window | None = None,
    match: Mapping[str, str] | None = None,
) -> Reduced:  # fmt: skip
    """As `reduce_for_report`, for a lake, whose days are reduced where their files are."""
    known = Intervals(other_ms=interval_ms or 0)
    if interval_ms is None:
        known = infer_intervals(spark, folder, metrics=REPORT_METRICS)
    reduction = reduce_lake(spark, folder, known, metrics=REPORT_METRICS)
    samples = with_labels(lake.read(spark, folder).frame, match or {})
    return matching(_reduced_from(reduction, samples, window, interval_ms), match or {})


def _reduced_from(reduction: Reduction, samples: DataFrame, window: Window | None, interval_ms: int | None) -> Reduced:
    behind, runs = greatest_lag_bytes(samples, window), tuple(runs_in(reduction.runs))
    return Reduced(runs, reduction.intervals_ms, reduction.quality, behind, interval_given=interval_ms is not None)


def reduced_from_table(table: str | Path, window: Window, groups: str = "*") -> Reduced:
    """Read the runs of a window from the daily table, without Spark. The table has no lag of slaves. Raises TableError."""
    # Delta is loaded for a table only.
    from sla_reports.reduction.daily_table import day_of, late_days, read_runs  # noqa: PLC0415

    near = read_runs(table, window, groups)
    late = late_days(table, first=day_of(window.start_ms), last=day_of(window.end_ms - 1))
    n = near.runs["n"]
    told = StoredQuality(
        samples=pc.sum(n).as_py() or 0,
        series=len(near.intervals_ms),
        stale_markers=pc.sum(n.filter(pc.is_null(near.runs["value"]))).as_py() or 0,
        late_samples=sum(one.more for one in late),
        missing_samples=sum(one.fewer for one in late),
    )
    return Reduced(tuple(runs_in(near.runs)), near.intervals_ms, told)


def of_groups(reduced: Reduced, pattern: str) -> Reduced:
    """Return only the runs of groups of such names."""
    return reduced if pattern == "*" else _chosen(reduced, lambda series: GroupKey.of_series(series).matches(pattern))


def matching(reduced: Reduced, match: Mapping[str, str]) -> Reduced:
    """Return only the runs of series whose labels have these values."""
    return _chosen(reduced, lambda series: match.items() <= dict(series.labels).items()) if match else reduced


def _chosen(reduced: Reduced, is_wanted: Callable[[Series], bool]) -> Reduced:
    chosen = {text for text in {run.series for run in reduced.runs} if is_wanted(parse_series(text))}
    return replace(
        reduced,
        runs=tuple(run for run in reduced.runs if run.series in chosen),
        intervals_ms={text: one for text, one in reduced.intervals_ms.items() if text in chosen},
    )


def with_labels(samples: DataFrame, match: Mapping[str, str]) -> DataFrame:
    """Return the samples of series whose labels have these values, for a store that holds several Kubernetes clusters."""
    for name, value in match.items():
        samples = samples.where(labels_column(sql.col("series"))[name] == value)
    return samples


def wanted(samples: DataFrame) -> DataFrame:
    """Return the samples of the metrics that a report reads."""
    return samples.where(metric_column(sql.col("series")).isin(*REPORT_METRICS))


def evidence(
    reduced: Reduced, log: Sequence[LoggedIncident], *, circumstances: Sequence[Circumstance] = (),
    amendments: Sequence[Amendment] = (), now_ms: int | None = None, replica_labels: Sequence[str] = (),
) -> Evidence:  # fmt: skip
    """Return everything `summarise` asks for. `replica_labels` come to the known ones."""
    gaps = {series: gap_limit_ms(interval) for series, interval in reduced.intervals_ms.items()}
    labels, by_stretch = (*REPLICA_LABELS, *replica_labels), not reduced.interval_given
    fleet = Fleet(by_series(reduced.runs), gap_ms=gaps, replica_labels=labels, by_stretch=by_stretch)
    return Evidence(fleet, log, circumstances, amendments, now_ms, reduced.most_behind_bytes)


def as_text(report: Report) -> str:
    """Return the report as text: a line for each group and cluster, then recovery and what was left out."""
    summary = report.summary
    gaps = ", ".join(f"{interval / 400:.1f} s" for interval in sorted(set(report.reduced.intervals_ms.values())))
    totals = reconcile_totals(summary)
    lines = [f"incomplete: {one}" for one in summary.incomplete]
    lines += [] if totals.holds else ["the figures do not add up, do not use this report:"]
    lines += [f"  {fault}" for fault in totals.faults]
    lines += [f"note: {warning}" for warning in summary.warnings]
    shares = sorted({figures.objective for figures in summary.groups}) or [summary.agreement.objective]
    objective = " to ".join(percent(one) for one in (shares[0], shares[-1])[: len(shares)])
    lines += [f"availability, objective {objective} (gaps over {gaps} count as unknown)"]
    lines += [_group_line(figures) for figures in summary.groups]
    for cluster in summary.clusters:
        write, ordered = cluster.write.availability, cluster.ordered_write.availability
        lines.append(
            f"  cluster {cluster.namespace}/{cluster.cluster}: any group writable {percent(write)}, all {percent(ordered)}"
        )
    rto = summary.recovery.total
    lines.append(
        f"recovery: {counted(rto.n, 'failover')} ({rto.censored} open), p50 {_milliseconds(rto.p50_ms)},"
        f" p95 {_milliseconds(rto.p95_ms)}, max {_milliseconds(rto.max_ms)};"
        f" most time in {summary.recovery.dominant or '-'}"
    )
    if report.noted.foreign_series:
        lines.append(f"passed over: {report.noted.foreign_series} series of others")
    if report.unreadable_incidents:
        lines.append(f"left out: {counted(report.unreadable_incidents, 'unreadable line')} of the incident logs")
    told = report.reduced.quality
    if isinstance(told, StoredQuality) and (told.late_samples or told.missing_samples):
        lines.append(
            f"days written again: {counted(told.late_samples, 'sample')} came late, {told.missing_samples} not there any more"
        )
    return "\n".join(lines)


def _group_line(figures: GroupFigures) -> str:
    told = figures.availability
    causes = Counter(one.cause for one in figures.incidents)
    disputed = f", disputed {told.disputed_ms / 1000:.1f} s" if told.disputed_ms else ""
    named = ", ".join(f"{count} {cause}" for cause, count in sorted(causes.items())) or "none"
    existed = f", {existed_words(figures.existence, figures.window)}" if figures.existence.absent else ""
    own = figures.own
    over = f" over {own.over} ({percent(own.availability.availability)})" if own is not None else ""
    return (
        f"  {figures.group}: {figures.verdict.value}{over}, {percent(told.availability)}"
        f" (between {percent(told.worst)} and {percent(told.best)}; down {told.down_ms / 1000:.3f} s by"
        f" {told.source.value}, unknown {told.unknown_ms / 1000:.1f} s{disputed}){existed}, incidents: {named}"
    )


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} ms"


def result_line(report: Report) -> dict[str, Any]:
    """Return the last line of the command, for a program: the essence of summary.json."""
    summary = report.summary
    states = ("availability", "up_ms", "down_ms", "unknown_ms", "disputed_ms")
    groups = [
        {
            **asdict(one.group), "objective": one.objective, "verdict": one.verdict.value,
            **{name: getattr(one.availability, name) for name in states},
            "existed": [{"from_ms": low, "until_ms": high} for low, high in one.existed],
        }
        for one in summary.groups
    ]  # fmt: skip
    incidents = [
        {
            "group": str(one.group), **{name: getattr(one.logged, name, None) for name in ("trigger", "outcome")},
            "cause": one.cause, "start_ms": one.start_ms, "length_ms": one.length_ms(summary.until_ms),
        }
        for one in summary.incidents
    ]  # fmt: skip
    return {
        "verdict": summary.verdict.value, "reconciled": reconcile_totals(summary).holds,
        "warnings": list(summary.warnings), "groups": groups, "incidents": incidents,
        "rto_p95_ms": summary.recovery.total.p95_ms, "incomplete": list(summary.incomplete),
        "copies": [_copies(one) for one in report.copies], "samples": report.reduced.quality.samples,
        "foreign_series": report.noted.foreign_series, "unreadable_incidents": report.unreadable_incidents,
    }  # fmt: skip


def _copies(one: Copies) -> dict[str, Any]:
    return {"labels": dict(one.labels), "groups": [str(group) for group in one.groups]}
