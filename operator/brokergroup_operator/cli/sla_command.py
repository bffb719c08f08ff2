"""`brokergroup sla`: take samples out of Prometheus, and report on them with Spark."""

import json
import time
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Availability and recovery times from Prometheus exports and the incident log.", no_args_is_help=True
)

Exports = Annotated[list[Path], typer.Option("--prometheus-export", help="A file written by `sla export`; repeatable")]
IncidentLogs = Annotated[list[Path], typer.Option("--incidents", help="An incident log of the operator; repeatable")]


@app.command("export")
def export(
    server: Annotated[str, typer.Option("--prometheus", help="http://host:port of the Prometheus server")],
    out: Annotated[Path, typer.Option("--out", help="The file to write")],
    range_seconds: Annotated[float, typer.Option("--range-seconds", help="How far back from now", min=1.0)] = 3600.0,
) -> None:
    """Write the operator's samples of the last while to a file, as they were scraped."""
    from sla_reports.exporting import ExportError, export_range
    from sla_reports.report_metrics import REPORT_METRICS

    try:
        count = export_range(server, REPORT_METRICS, end_seconds=time.time(), range_seconds=range_seconds, target=out)
    except ExportError as error:
        typer.echo(f"sla export: {error}", err=True)
        raise typer.Exit(2) from error
    typer.echo(json.dumps({"samples": count, "out": str(out)}))
    if count == 0:
        typer.echo(f"sla export: {server} holds no samples of {', '.join(REPORT_METRICS)} in that range", err=True)
        raise typer.Exit(3)


@app.command("report")
def report(  # noqa: PLR0913, PLR0917 - an option is an argument
    exports: Exports,
    incidents: IncidentLogs,
    period: Annotated[
        str | None,
        typer.Option("--period", help="2026-10, 2026-Q4, 2026-W43, 2026-10-31; without it all of the export"),
    ] = None,
    time_zone: Annotated[str, typer.Option("--time-zone", help="Of the period")] = "UTC",
    until: Annotated[
        str | None, typer.Option("--until", help="The period still runs; its data goes up to 2026-10-15T00:00:00Z")
    ] = None,
    objective_percent: Annotated[
        float | None, typer.Option("--objective", help="In percent, as 99.95; exit 2 if breached, 3 if undecidable")
    ] = None,
    scrape_interval_seconds: Annotated[
        float | None, typer.Option("--scrape-interval-seconds", help="Without it, inferred from the samples", min=0.02)
    ] = None,
    amendments: Annotated[
        Path | None, typer.Option("--amendments", help="YAML file of exclusions and corrections")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the report's files")] = None,
) -> None:
    """Availability and recovery times per group; the last line is the result as JSON."""
    try:
        from sla_reports.class_archive import NoJavaError
        from sla_reports.measures.amendments import AmendmentError, read_amendments
        from sla_reports.measures.periods import PeriodError, instant_of, window_of
        from sla_reports.readers.contract import ExportFormatError
        from sla_reports.report import DEFAULT_OBJECTIVE, Request, as_text, make_report, result_line
        from sla_reports.session import start_session
    except ImportError as error:
        typer.echo(f"sla report: {error}; expected an install with the extra [sla] (pyspark, pyarrow)", err=True)
        raise typer.Exit(1) from error
    if objective_percent is not None and not 0 < objective_percent < 100:
        typer.echo(f"sla report: --objective {objective_percent}: expected a percentage below 100, as 99.95", err=True)
        raise typer.Exit(1)
    try:
        request = Request(
            exports=exports,
            incident_logs=incidents,
            window=window_of(period, time_zone) if period else None,
            objective=DEFAULT_OBJECTIVE if objective_percent is None else objective_percent / 100,
            until_ms=instant_of(until) if until else None,
            interval_ms=None if scrape_interval_seconds is None else round(scrape_interval_seconds * 1000),
            amendments=read_amendments(amendments) if amendments else (),
        )
        spark = start_session(short_jobs=period is None)
        try:
            made = make_report(spark, request)
        finally:
            spark.stop()
        if out is not None:
            made.write(out)
    except (AmendmentError, ExportFormatError, NoJavaError, PeriodError) as error:
        typer.echo(f"sla report: {error}", err=True)
        raise typer.Exit(1) from error
    typer.echo(as_text(made))
    typer.echo(json.dumps(result_line(made)))
    if objective_percent is not None:
        raise typer.Exit({"met": 0, "breached": 2}.get(made.summary.verdict.value, 3))
