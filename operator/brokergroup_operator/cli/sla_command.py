"""`brokergroup sla`: take samples out of Prometheus, reduce them and report on them with Spark.

What is wrong on a command line is found before Spark is loaded. `whatif` and `explain` are in `written_report_command.py`.
"""

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from brokergroup_operator.cli.group_objectives import objectives_of_cluster, read_own_objectives
from brokergroup_operator.option_groups import with_option_groups
from sla_reports.connection import Access, ConnectionOptionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sla_reports.readers.samples import Noted
    from sla_reports.reduction.daily_table import Appended
    from sla_reports.sources import Origin
    from sla_reports.states.logged import LogLine
    from sla_reports.states.spans import Window

app = typer.Typer(
    help="Availability and recovery times from Prometheus exports and the incident log.", no_args_is_help=True
)

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
Group = Annotated[
    str, typer.Option("--group", help="Only groups of such names: namespace/cluster/brokerGroup with * and ?")
]
ShowProgress = Annotated[bool, typer.Option(help="Print the progress on the standard error output")]
# Beside 1 (an error), 2 (breached) and 3 (undecidable): the figures of the report contradict each other.
_DOES_NOT_ADD_UP = 4


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """How a Prometheus server is reached. A secret is a file: every process of the machine can read a command line."""

    headers: Annotated[
        list[str] | None,
        typer.Option("--header", help="Of each request to the server, as 'X-Scope-OrgID: shop'; repeatable"),
    ] = None
    header_file: Annotated[
        Path | None,
        typer.Option("--header-file", help="File of such headers, one a line: for those that hold a secret"),
    ] = None
    user: Annotated[str, typer.Option("--user", help="For basic authentication, with --password-file")] = ""
    password_file: Annotated[Path | None, typer.Option("--password-file", help="File with the password of --user")] = (
        None
    )
    bearer_token_file: Annotated[
        Path | None, typer.Option("--bearer-token-file", help="File with the token the server asks for")
    ] = None
    ca_file: Annotated[
        Path | None, typer.Option("--ca-file", help="Certificates (PEM) that the server's is checked with")
    ] = None
    cert_file: Annotated[
        Path | None, typer.Option("--cert-file", help="Certificate (PEM) that the server asks for")
    ] = None
    key_file: Annotated[
        Path | None, typer.Option("--key-file", help="Its key, where it is not in --cert-file; without a password")
    ] = None
    insecure_skip_verify: Annotated[
        bool, typer.Option("--insecure-skip-verify", help="Take any certificate of the server")
    ] = False

    def access(self) -> Access:
        return Access(**{**vars(self), "headers": tuple(self.headers or ())})


@dataclass(frozen=True, kw_only=True)
class OriginOptions:
    """Where the samples come from."""

    form: Annotated[
        str,
        typer.Option(
            "--from", help="http, openmetrics, victoriametrics, tsdb-dump, query-range (as of `export`), lake, runs"
        ),
    ] = "query-range"
    exports: Annotated[
        list[str] | None,
        typer.Option(
            "--export", "--prometheus-export", help="A file or folder (of a table also s3://) to read; repeatable"
        ),
    ] = None
    url: Annotated[
        str | None,
        typer.Option("--url", "--prometheus", help="With --from http: http://host:port of the Prometheus server"),
    ] = None

    def of(
        self,
        server: ServerOptions,
        window: "Window | None",
        *,
        margin_ms: int | None = None,
        accept_partial: bool = False,
    ) -> "Origin":
        """Return the origin of the window's samples, and of a margin around it. Raise SourceError or ConnectionOptionError."""
        from sla_reports.sources import MARGIN_MS, origin_of

        margin_ms = MARGIN_MS if margin_ms is None else margin_ms
        edges = {} if window is None else {"start_ms": window.start_ms - margin_ms, "end_ms": window.end_ms + margin_ms}
        return origin_of(
            self.form, self.exports or (), self.url, access=server.access(), accept_partial=accept_partial, **edges
        )


class Failing:
    """Prints why the command fails, and returns its exit: `raise fail("...")`."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __call__(self, message: str, *, code: int = 1) -> typer.Exit:
        typer.echo(f"{self.command}: {message}", err=True)
        return typer.Exit(code)


@app.command("export")
@with_option_groups
def export(
    *,
    server: Annotated[
        str, typer.Option("--prometheus", "--url", help="http://host:port of the Prometheus server", show_default=False)
    ],
    out: Annotated[Path, typer.Option("--out", help="The file to write")],
    range_seconds: Annotated[float, typer.Option("--range-seconds", help="How far back from now", min=1.0)] = 3600.0,
    accept_partial: AcceptPartial = False,
    given: ServerOptions,
) -> None:
    """Write the operator's samples of the last while to a file, as they were scraped."""
    from sla_reports.readers.http_client import ServerError
    from sla_reports.readers.prometheus_api import AnswerError, OutputError, PartialAnswerError, Server, export_range
    from sla_reports.sources import READ_METRICS

    fail = Failing("sla export")
    try:
        asked = Server(server, access=given.access(), accept_partial=accept_partial)
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
@with_option_groups
def report(  # noqa: PLR0913 - an option is an argument
    *,
    incidents: Annotated[
        list[Path] | None,
        typer.Option(
            "--incidents", help="An incident log of the operator; repeatable. A table (--from runs) has its own lines"
        ),
    ] = None,
    samples: OriginOptions,
    group: Group = "*",
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
    service: Annotated[
        str,
        typer.Option("--service", help="Name of the service, for page one; without it the objectives' (spec.service)"),
    ] = "",
    owner: Annotated[
        str,
        typer.Option(
            "--owner", help="Its owner, for page one; without it the objectives' (annotation brokergroup.dev/owner)"
        ),
    ] = "",
    accept_partial: AcceptPartial = False,
    progress: ShowProgress = True,
    given: ServerOptions,
) -> None:
    """Availability and recovery times per group; the last line is the result as JSON. Needs Java, but not with --from runs."""
    fail = Failing("sla report")
    if objective_percent is not None and not 1 < objective_percent < 100:
        raise fail(f"--objective {objective_percent}: expected a percentage above 1 and below 100, as 99.95")
    if not incidents and samples.form != "runs":
        raise fail(f"--incidents: missing; expected the operator's incident log with --from {samples.form}", code=2)
    with known_errors(fail):
        period, window, until_ms = period_of(period, time_zone, until)
        folder = None if out is None else _made_folder(Path(str(out).replace("{period}", period or "all")), fail)
        cluster = objectives_of_cluster(objectives_namespace, kubeconfig, asked=objectives_from_cluster)
        for note in cluster.notes:
            typer.echo(f"sla report: {note}", err=True)
        own, reading = read_own_objectives(objectives, cluster, window, until_ms)
        origin = samples.of(given, reading, accept_partial=accept_partial)
        from sla_reports.sources import labels_matched, replica_labels_named

        copies_by, matched = replica_labels_named(replica_labels or ()), labels_matched(match or ())
        from sla_reports.measures.amendments import read_amendments
        from sla_reports.report import DEFAULT_OBJECTIVE, Request, as_text, make_report, result_line

        request = Request(
            origin=origin,
            incident_logs=incidents or (),
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
            groups=group,
            service=service,
            owner=owner,
        )
        # The daily table is read without Spark, and so without Java.
        session = (
            nullcontext() if samples.form == "runs" else _spark("report", progress=progress, short_jobs=period is None)
        )
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
@with_option_groups
def backfill(
    *,
    store: Annotated[
        str, typer.Option("--store", help="The daily table: a folder or s3://bucket/path; made where it is missing")
    ],
    samples: OriginOptions,
    period: Annotated[
        str | None, typer.Option("--period", help="With --from http: whole days UTC, as 2026-10 or previous-day")
    ] = None,
    catch_up_days: Annotated[
        int | None,
        typer.Option(
            "--catch-up-days",
            help="With --from http, for a job that runs daily: of so many last days (UTC) those that the table lacks, and today"
            " up to now",
            min=1,
            max=365,
        ),
    ] = None,
    incidents: Annotated[
        list[Path] | None,
        typer.Option(
            "--incidents", help="An incident log, whose lines the table keeps and its figures are made with; repeatable"
        ),
    ] = None,
    scrape_interval_seconds: Interval = None,
    progress: ShowProgress = True,
    given: ServerOptions,
) -> None:
    """Reduce whole days (UTC) once and keep their runs, outages and figures; a day that is there already is replaced."""
    fail = Failing("sla backfill")
    _check_backfill(samples.form, period, catch_up_days, fail)
    with known_errors(fail):
        from sla_reports.readers.samples import readable_errors
        from sla_reports.report import no_series_of_ours

        log = [line for path in incidents or () for line in _log_lines(path)]
        windows = _backfilled_windows(store, period, catch_up_days)
        # No margin: a day of the table is whole, or it replaces a whole one.
        origins = [samples.of(given, window, margin_ms=0) for window in windows]
        interval_ms = None if scrape_interval_seconds is None else round(scrape_interval_seconds * 1000)
        with _spark("backfill", progress=progress) as spark, readable_errors():
            written = [_backfilled(spark, store, origin, interval_ms, log) for origin in origins]
        days = [day.isoformat() for appended, _ in written for day in appended.days]
        if not days:
            raise fail(f"no day was written: {no_series_of_ours(origins[-1], written[-1][1])}")
    replaced = [day.isoformat() for appended, _ in written for day in appended.replaced]
    late = [one for appended, _ in written for one in appended.late]
    read = sum(appended.quality.samples for appended, _ in written)
    from sla_reports.output.html_elements import counted

    typer.echo(f"{counted(len(days), 'day')} written, {len(replaced)} replaced; {counted(read, 'sample')}")
    for one in late:
        typer.echo(f"{one.day}: {counted(one.more, 'sample')} came late, {one.fewer} not there any more")
    foreign = [noted.foreign_series for _, noted in written if noted.foreign_series is not None]
    told = {
        "days": days,
        "replaced": replaced,
        "logged": sorted({day.isoformat() for appended, _ in written for day in appended.logged}),
        "samples": read,
        "foreign_series": sum(foreign) if foreign else None,
        "late": sum(one.more for one in late),
        "missing": sum(one.fewer for one in late),
    }
    typer.echo(json.dumps(told))


@app.command("days")
def days(
    *,
    store: Annotated[str, typer.Option("--store", help="The daily table: a folder or s3://bucket/path")],
    period: Annotated[
        str, typer.Option("--period", help="Whole days UTC: 2026-10, 2026-Q4, 2026-10-31, previous-month, 30d")
    ],
    group: Group = "*",
    by: Annotated[
        list[str] | None,
        typer.Option("--by", help="day, month, namespace, cluster, group; repeatable; without it all in one"),
    ] = None,
) -> None:
    """Add up the daily table's figures; the last line is the result as JSON. Needs no Java; amendments are not applied."""
    fail = Failing("sla days")
    with known_errors(fail):
        from sla_reports.daily import sums, sums_document, sums_text

        _, window, _ = period_of(period, "UTC", None)
        if window is None:
            raise fail("--period: missing; expected one, as 2026-10")
        found = sums(store, window, groups=group, by=by or ())
        if not found:
            raise fail(f"table {store}: no figures of {group} in {period}; expected days that `sla backfill` wrote")
    typer.echo(sums_text(found))
    typer.echo(json.dumps(sums_document(found)))


def _check_backfill(form: str, period: str | None, catch_up_days: int | None, fail: Failing) -> None:
    if form == "runs":
        raise fail("--from runs: expected a form that has samples, and not a table that was made of them")
    for option, value in (("--period", period), ("--catch-up-days", catch_up_days)):
        if value is not None and form != "http":
            raise fail(f"{option} {value}: expected none with --from {form}: every day of the files is taken")
    if period is not None and catch_up_days is not None:
        raise fail(f"--catch-up-days {catch_up_days}: expected none with --period {period}: each says which days")


def _backfilled_windows(store: str, period: str | None, catch_up_days: int | None) -> "list[Window] | list[None]":
    """The days to reduce; None: all that the files have. Raises PeriodError, TableError."""
    from sla_reports.measures.periods import PeriodError, named, window_of
    from sla_reports.states.spans import Window

    now_ms = time.time_ns() // 1_000_000
    if period is not None:
        window = window_of(named(period, "UTC", now_ms=now_ms), "UTC", now_ms=now_ms)
        if window.start_ms >= now_ms:
            raise PeriodError(f"period {period!r}: it has not begun; expected one whose first day has")
        return [Window(window.start_ms, min(window.end_ms, now_ms))]
    if catch_up_days is None:
        return [None]
    from sla_reports.reduction.daily_table import missing_days, stretches_of

    return stretches_of(missing_days(store, back=catch_up_days, now_ms=now_ms), now_ms=now_ms)


def _log_lines(path: Path) -> "list[LogLine]":
    """Return the lines of a log. Without one the days are kept all the same: Prometheus forgets them, and lines may come late."""
    from sla_reports.states.logged import NoLogError, lines_of_logs

    try:
        return lines_of_logs([path])
    except NoLogError as error:
        typer.echo(f"sla backfill: {error}; a later run adds its lines", err=True)
        return []


def _backfilled(
    spark: "SparkSession", store: str, origin: "Origin", interval_ms: int | None, log: "Sequence[LogLine]"
) -> "tuple[Appended, Noted]":
    """Reduce the days of this origin and write them; what was written, and what was odd about the samples."""
    from sla_reports.daily import append_days, append_lake
    from sla_reports.readers.samples import NOT_COUNTED
    from sla_reports.report import wanted
    from sla_reports.sources import REPORT_METRICS, samples_of

    if origin.form == "lake":
        told = append_lake(spark, store, origin.paths[0], metrics=REPORT_METRICS, interval_ms=interval_ms, log=log)
        return told, NOT_COUNTED
    read = samples_of(spark, origin, REPORT_METRICS)
    frame = read.frame if read.packed is None else read.packed
    told = append_days(store, wanted(frame), interval_ms=interval_ms, until_ms=origin.end_ms or None, log=log)
    return told, read.noted()


def _made_folder(out: Path, fail: Failing) -> Path:
    """Create the folder and write to it, before Spark runs for an hour for a report that cannot be written."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            return out
    except OSError as error:
        raise fail(f"--out {out}: {error.strerror}; expected a folder that can be written") from error


@contextmanager
def known_errors(fail: Failing) -> Iterator[None]:
    """Turn the errors of input that a person can correct into one line and exit code 1."""
    from sla_reports.measures.periods import PeriodError
    from sla_reports.sources import SourceError

    try:
        try:
            yield
        except (SourceError, ConnectionOptionError) as error:
            raise fail(f"--{error}") from error
        except PeriodError as error:
            # The message begins with the option's name.
            raise fail(f"--{str(error).replace('time zone', 'time-zone', 1)}") from error
        except ImportError as error:
            raise fail(f"{error}; expected an install with the extra [sla] (pyspark, pyarrow)") from error
    except (typer.Exit, typer.Abort):
        raise
    except _errors_of_reading() as error:
        raise fail(str(error)) from error


def _errors_of_reading() -> tuple[type[Exception], ...]:
    """Return the errors of reading; imported only after a failure, because they import Spark."""
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


def period_of(period: str | None, time_zone: str, until: str | None) -> "tuple[str | None, Window | None, int | None]":
    """Return the period's name and window, and the instant up to which it has data. Raises PeriodError."""
    from sla_reports.measures.periods import PeriodError, instant_of, named, window_of, zone_of

    name = named(period, time_zone, now_ms=time.time_ns() // 1_000_000) if period else None
    try:
        until_ms = instant_of(until) if until else None
    except PeriodError as error:
        raise PeriodError(f"until {error}") from error
    zone_of(time_zone)
    return name, window_of(name, time_zone, end_ms=until_ms) if name else None, until_ms


@contextmanager
def _spark(verb: str, *, progress: bool, short_jobs: bool = False) -> "Iterator[SparkSession]":
    """A Spark session; it is stopped after the thread that prints its progress. Raises NoJavaError."""
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
