"""`brokergroup sla`: take samples out of Prometheus, report on them with Spark, and ask a written report.

`whatif` and `explain` read a report's folder and need no Java. What a command line gets wrong is told before Spark is loaded.
"""

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from brokergroup_operator.cli.group_objectives import objectives_of_cluster, read_own_objectives
from brokergroup_operator.cli.sla_connection import reaches_a_server
from sla_reports.connection import Access, ConnectionOptionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sla_reports.sources import Origin
    from sla_reports.states.spans import Window

app = typer.Typer(
    help="Availability and recovery times from Prometheus exports and the incident log.", no_args_is_help=True
)

Form = Annotated[
    str,
    typer.Option(
        "--from", help="http, openmetrics, victoriametrics, tsdb-dump, query-range (as of `export`), lake, runs"
    ),
]
Exports = Annotated[
    list[str] | None,
    typer.Option(
        "--export", "--prometheus-export", help="A file or folder (of a table also s3://) to read; repeatable"
    ),
]
Url = Annotated[
    str | None,
    typer.Option("--url", "--prometheus", help="With --from http: http://host:port of the Prometheus server"),
]
AcceptPartial = Annotated[
    bool,
    typer.Option(
        "--accept-partial-answers",
        help="Take answers that lack something (isPartial, warnings), and mark what is made of them as incomplete",
    ),
]
Interval = Annotated[
    float | None,
    typer.Option("--scrape-interval-seconds", help="Without it, inferred from the samples", min=0.02, max=86_400.0),
]
ReplicaLabels = Annotated[
    list[str] | None,
    typer.Option(
        "--replica-label",
        help="A label by which copies of one series differ, as thanos query --query.replica-label; repeatable;"
        " always: prometheus_replica, __replica__, replica",
    ),
]
Match = Annotated[
    list[str] | None,
    typer.Option("--match", help="Only series with this label, as region=eu; repeatable: all of them hold"),
]
ShowProgress = Annotated[bool, typer.Option(help="Tell how far it is, on the standard error output")]
# Beside 1 (an error), 2 (breached) and 3 (undecidable): the figures of the report contradict each other.
_DOES_NOT_ADD_UP = 4

ReportFolder = Annotated[Path, typer.Option("--report", help="Folder that `sla report --out` wrote")]


@app.command("export")
@reaches_a_server
def export(
    *,
    server: Annotated[
        str, typer.Option("--prometheus", "--url", help="http://host:port of the Prometheus server", show_default=False)
    ],
    out: Annotated[Path, typer.Option("--out", help="The file to write")],
    range_seconds: Annotated[float, typer.Option("--range-seconds", help="How far back from now", min=1.0)] = 3600.0,
    accept_partial: AcceptPartial = False,
    access: Access,
) -> None:
    """Write the operator's samples of the last while to a file, as they were scraped."""
    from sla_reports.readers.http_client import ServerError
    from sla_reports.readers.prometheus_api import AnswerError, OutputError, PartialAnswerError, Server, export_range
    from sla_reports.sources import READ_METRICS

    fail = _Failing("export")
    try:
        asked = Server(server, access=access, accept_partial=accept_partial)
        told = export_range(
            asked, READ_METRICS, end_ms=time.time_ns() // 1_000_000, range_ms=round(range_seconds * 1000), target=out
        )
    except (ConnectionOptionError, OutputError) as error:
        raise fail(f"--{error}") from error
    except PartialAnswerError as error:
        raise fail(f"{error}; or --accept-partial-answers") from error
    except AnswerError as error:
        raise fail(str(error)) from error
    except ServerError as error:
        raise fail(str(error), code=2) from error
    for missing in told.lacks:
        typer.echo(f"sla export: incomplete: {missing}", err=True)
    typer.echo(json.dumps({"samples": told.samples, "out": str(out), "incomplete": list(told.lacks)}))
    if told.samples == 0:
        raise fail(f"{asked.url} holds no samples of {', '.join(READ_METRICS)} in that range", code=3)


@app.command("report")
@reaches_a_server
def report(  # noqa: PLR0913 - an option is an argument
    *,
    incidents: Annotated[list[Path], typer.Option("--incidents", help="An incident log of the operator; repeatable")],
    form: Form = "query-range",
    exports: Exports = None,
    url: Url = None,
    period: Annotated[
        str | None,
        typer.Option(
            "--period", help="2026-10, 2026-Q4, 2026-W43, 2026-10-31, previous-month, 30d; without it all of the export"
        ),
    ] = None,
    time_zone: Annotated[str, typer.Option("--time-zone", help="Of the period")] = "UTC",
    until: Annotated[
        str | None, typer.Option("--until", help="The period still runs; its data goes up to 2026-10-15T00:00:00Z")
    ] = None,
    objective_percent: Annotated[
        float | None,
        typer.Option(
            "--objective",
            help="In percent, as 99.95; exit 2 if breached, 3 if undecidable; 4 whenever figures do not add up",
        ),
    ] = None,
    objectives: Annotated[
        list[Path] | None,
        typer.Option(
            help="Objectives of single groups: OpenSLO files, BrokerGroups by kubectl get -o yaml, a folder; repeatable"
        ),
    ] = None,
    objectives_from_cluster: Annotated[
        bool, typer.Option("--objectives-from-cluster", help="Also the spec.slo of the cluster's BrokerGroups")
    ] = False,
    objectives_namespace: Annotated[
        str | None, typer.Option("--objectives-namespace", help="Of this namespace's BrokerGroups only")
    ] = None,
    kubeconfig: Annotated[
        Path | None, typer.Option("--kubeconfig", help="Of that cluster; absent: the pod's service account")
    ] = None,
    scrape_interval_seconds: Interval = None,
    replica_labels: ReplicaLabels = None,
    match: Match = None,
    amendments: Annotated[
        Path | None, typer.Option("--amendments", help="YAML file of exclusions and corrections")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the report's files; {period} in it is the period's name")
    ] = None,
    accept_partial: AcceptPartial = False,
    progress: ShowProgress = True,
    access: Access,
) -> None:
    """Availability and recovery times per group; the last line is the result as JSON."""
    fail = _Failing("report")
    if objective_percent is not None and not 1 < objective_percent < 100:
        raise fail(f"--objective {objective_percent}: expected a percentage above 1 and below 100, as 99.95")
    with _known_errors(fail):
        period = _named(period, time_zone)
        folder = None if out is None else _made_folder(Path(str(out).replace("{period}", period or "all")), fail)
        until_ms = _instant(until) if until else None
        window = _window(period, time_zone, end_ms=until_ms)
        cluster = objectives_of_cluster(objectives_namespace, kubeconfig, asked=objectives_from_cluster)
        for note in cluster.notes:
            typer.echo(f"sla report: {note}", err=True)
        own, reading = read_own_objectives(objectives, cluster, window, until_ms)
        origin = _origin(form, exports, url, access, reading, accept_partial=accept_partial)
        from sla_reports.sources import labels_matched, replica_labels_named

        copies_by, matched = replica_labels_named(replica_labels or ()), labels_matched(match or ())
        from sla_reports.measures.amendments import read_amendments
        from sla_reports.report import DEFAULT_OBJECTIVE, Request, as_text, make_report, result_line

        request = Request(
            origin=origin,
            incident_logs=incidents,
            window=window,
            objective=DEFAULT_OBJECTIVE if objective_percent is None else objective_percent / 100,
            objectives=own,
            notes=cluster.notes,
            until_ms=until_ms,
            interval_ms=None if scrape_interval_seconds is None else round(scrape_interval_seconds * 1000),
            amendments=read_amendments(amendments) if amendments else (),
            time_zone=time_zone,
            replica_labels=copies_by,
            match=matched,
        )
        # The daily table is read without Spark, and so without Java.
        session = nullcontext() if form == "runs" else _spark("report", progress=progress, short_jobs=period is None)
        with session as spark:
            made = make_report(spark, request)
        if folder is not None:
            made.write(folder)
    typer.echo(as_text(made))
    page = {} if folder is None else {"page": (folder / "report.html").absolute().as_uri()}
    if page:
        typer.echo(f"the report to read and to send: {page['page']}")
    typer.echo(json.dumps({**result_line(made), **page}))
    from sla_reports.measures.reconciliation import reconcile_totals

    if not reconcile_totals(made.summary).holds:
        raise typer.Exit(_DOES_NOT_ADD_UP)
    if objective_percent is not None or own:
        raise typer.Exit({"met": 0, "breached": 2}.get(made.summary.verdict.value, 3))


@app.command("backfill")
@reaches_a_server
def backfill(
    *,
    store: Annotated[
        str, typer.Option("--store", help="The daily table: a folder or s3://bucket/path; made where it is missing")
    ],
    form: Form = "query-range",
    exports: Exports = None,
    url: Url = None,
    period: Annotated[str | None, typer.Option("--period", help="With --from http: whole days UTC, as 2026-10")] = None,
    scrape_interval_seconds: Interval = None,
    progress: ShowProgress = True,
    access: Access,
) -> None:
    """Reduce whole days (UTC) once and keep their runs; a day that is there already is replaced."""
    fail = _Failing("backfill")
    if form == "runs":
        raise fail("--from runs: expected a form that has samples, and not a table that was made of them")
    if period is not None and form != "http":
        raise fail(f"--period {period}: expected none with --from {form}: every day of the files is taken")
    with _known_errors(fail):
        # No margin: a day of the table is whole, or it replaces a whole one.
        origin = _origin(form, exports, url, access, _window(period, "UTC"), margin_ms=0)
        from sla_reports.readers.samples import NOT_COUNTED, readable_errors
        from sla_reports.reduction.daily_table import append_days, append_lake
        from sla_reports.report import no_series_of_ours, wanted
        from sla_reports.sources import REPORT_METRICS, samples_of

        noted = NOT_COUNTED
        interval_ms = None if scrape_interval_seconds is None else round(scrape_interval_seconds * 1000)
        with _spark("backfill", progress=progress) as spark, readable_errors():
            if form == "lake":
                told = append_lake(spark, store, origin.paths[0], metrics=REPORT_METRICS, interval_ms=interval_ms)
            else:
                samples = samples_of(spark, origin, REPORT_METRICS)
                frame = samples.frame if samples.packed is None else samples.packed
                told = append_days(store, wanted(frame), interval_ms=interval_ms)
                noted = samples.noted()
    days, replaced = ([day.isoformat() for day in some] for some in (told.days, told.replaced))
    typer.echo(f"{len(days)} days written, {len(replaced)} of them replaced; {told.quality.samples} samples")
    for one in told.late:
        typer.echo(f"{one.day}: {one.more} samples came late, {one.fewer} are not there any more")
    change = {"late": sum(one.more for one in told.late), "missing": sum(one.fewer for one in told.late)}
    counted = {"samples": told.quality.samples, "foreign_series": noted.foreign_series}
    typer.echo(json.dumps({"days": days, "replaced": replaced, **counted, **change}))
    if not days:
        raise fail(f"no day was written: {no_series_of_ours(origin, noted)}")


@app.command("whatif")
def whatif(  # noqa: PLR0913 - one argument a flag
    *,
    folder: ReportFolder,
    replicas: Annotated[list[int] | None, typer.Option("--replicas", help="Repeatable; 1, 2, 3, 5", min=1)] = None,
    zones: Annotated[list[int] | None, typer.Option("--zones", help="Repeatable; as observed", min=1)] = None,
    min_in_sync: Annotated[list[int] | None, typer.Option("--min-in-sync", help="Repeatable; 1", min=1)] = None,
    durability: Annotated[
        list[str] | None, typer.Option("--durability", help="Strict, Available or Fast instead; repeatable")
    ] = None,
    timeout_seconds: Annotated[
        list[float] | None, typer.Option("--silence-timeout-seconds", help="Repeatable; as observed", min=0.0)
    ] = None,
    observed_replicas: Annotated[
        int | None, typer.Option("--observed-replicas", help="Without it, the greatest SyncStateSet seen", min=1)
    ] = None,
    observed_zones: Annotated[int, typer.Option("--observed-zones", min=1)] = 1,
    observed_min_in_sync: Annotated[int, typer.Option("--observed-min-in-sync", min=1)] = 1,
    observed_durability: Annotated[
        str | None, typer.Option("--observed-durability", help="Strict, Available or Fast, instead of the number")
    ] = None,
) -> None:
    """The observed failures once more with other setups; the last line is the result as JSON. Needs no Java."""
    fail = _Failing("whatif")
    with _known_errors(fail):
        from sla_reports import what_if
        from sla_reports.output.written import read_fleet, read_report

        told, fleet = read_report(folder), read_fleet(folder)
        seen = observed_replicas or what_if.replicas_seen(fleet)
        if seen is None:
            raise fail("--observed-replicas: missing; expected a number, for the report saw no SyncStateSet")
        try:
            of_name = [] if observed_durability is None else [observed_durability]
            [(minimum, alone)] = what_if.durabilities_of(of_name, [] if of_name else [observed_min_in_sync])
            observed = what_if.Setup(seen, minimum, observed_zones, master_alone=alone)
            wanted = what_if.durabilities_of(durability or [], min_in_sync or [])
            timeouts_ms = [round(one * 1000) for one in timeout_seconds or []]
            others = what_if.setups_of(
                replicas or [1, 2, 3, 5], wanted, zones or [observed_zones], timeouts_ms or [None]
            )
        except ValueError as error:
            raise fail(f"--{str(error).replace('min_in_sync', 'min-in-sync')}") from error
        first, rest = what_if.outcomes_of(told, fleet, observed, others)
    measured_ms = what_if.measured_down_ms(told)
    typer.echo(what_if.as_table(first, rest, measured_ms))
    typer.echo(json.dumps(what_if.as_document(first, rest, measured_ms)))


@app.command("explain")
def explain(
    group: Annotated[str, typer.Argument(help="namespace/cluster/brokerGroup, or the last part of it")],
    incident: Annotated[str, typer.Argument(help="Its id, or the last part of it")],
    folder: ReportFolder,
    time_zone: Annotated[str, typer.Option("--time-zone", help="Of the times told")] = "UTC",
) -> None:
    """One incident: stages, cause, evidence, and where each of it comes from. Needs no Java."""
    fail = _Failing("explain")
    with _known_errors(fail):
        from sla_reports.measures.periods import zone_of
        from sla_reports.output.written import explain as explained
        from sla_reports.output.written import find_incident, read_report

        zone = zone_of(time_zone)
        told = read_report(folder)
        text = explained(told, find_incident(told, group, incident), zone)
    typer.echo(text)


class _Failing:
    """Says a line and makes the exit of the command: `raise fail("...")`."""

    def __init__(self, verb: str) -> None:
        self.verb = verb

    def __call__(self, message: str, *, code: int = 1) -> typer.Exit:
        typer.echo(f"sla {self.verb}: {message}", err=True)
        return typer.Exit(code)


def _made_folder(out: Path, fail: _Failing) -> Path:
    """Made, and tried, before an hour of Spark: a report that cannot be written is not worth making."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            return out
    except OSError as error:
        raise fail(f"--out {out}: {error.strerror}; expected a folder that can be written") from error


@contextmanager
def _known_errors(fail: _Failing) -> Iterator[None]:
    """What a person can put right comes out as one line."""
    from sla_reports.measures.periods import PeriodError
    from sla_reports.sources import SourceError

    try:
        try:
            yield
        except (SourceError, ConnectionOptionError) as error:
            raise fail(f"--{error}") from error
        except PeriodError as error:
            # The period's own words are those of the options.
            raise fail(f"--{str(error).replace('time zone', 'time-zone', 1)}") from error
        except ImportError as error:
            raise fail(f"{error}; expected an install with the extra [sla] (pyspark, pyarrow)") from error
    except (typer.Exit, typer.Abort):
        raise
    except _errors_of_reading() as error:
        raise fail(str(error)) from error


def _errors_of_reading() -> tuple[type[Exception], ...]:
    """Loaded only when something failed: they come with Spark."""
    from sla_reports.class_archive import NoJavaError
    from sla_reports.measures.amendments import AmendmentError
    from sla_reports.measures.objectives import ObjectiveError
    from sla_reports.output.written import NoSuchIncidentError, WrittenReportError
    from sla_reports.readers.samples import ExportFormatError
    from sla_reports.sources import TableError

    return (
        AmendmentError, ExportFormatError, NoJavaError, NoSuchIncidentError, ObjectiveError, TableError,
        WrittenReportError,
    )  # fmt: skip


def _named(period: str | None, time_zone: str) -> str | None:
    from sla_reports.measures.periods import named

    return named(period, time_zone, now_ms=time.time_ns() // 1_000_000) if period else None


def _window(period: str | None, time_zone: str, *, end_ms: int | None = None) -> "Window | None":
    from sla_reports.measures.periods import window_of, zone_of

    zone_of(time_zone)
    return window_of(period, time_zone, end_ms=end_ms) if period else None


def _instant(until: str) -> int:
    from sla_reports.measures.periods import PeriodError, instant_of

    try:
        return instant_of(until)
    except PeriodError as error:
        raise PeriodError(f"until {error}") from error


def _origin(
    form: str, exports: Sequence[str] | None, url: str | None, access: Access, window: "Window | None",
    *, margin_ms: int | None = None, accept_partial: bool = False,
) -> "Origin":  # fmt: skip
    from sla_reports.sources import MARGIN_MS, origin_of

    margin_ms = MARGIN_MS if margin_ms is None else margin_ms
    edges = {} if window is None else {"start_ms": window.start_ms - margin_ms, "end_ms": window.end_ms + margin_ms}
    return origin_of(form, exports or (), url, access=access, accept_partial=accept_partial, **edges)


@contextmanager
def _spark(verb: str, *, progress: bool, short_jobs: bool = False) -> "Iterator[SparkSession]":
    """A session that is stopped at the end, after the thread that tells of it. Raises NoJavaError."""
    from sla_reports.class_archive import java_program
    from sla_reports.session import progress as told_progress
    from sla_reports.session import spark_stages, start_session

    java_program()
    spark = start_session(short_jobs=short_jobs)
    tell: Callable[[str], None] = lambda line: typer.echo(f"sla {verb}: {line}", err=True)  # noqa: E731
    try:
        with told_progress(lambda: spark_stages(spark), tell) if progress else nullcontext():
            yield spark
    finally:
        spark.stop()
