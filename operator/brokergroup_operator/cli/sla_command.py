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
    from controller_core.metric_names import GROUP_WRITABLE, UNAVAILABLE_SECONDS_TOTAL
    from sla_reports.exporting import ExportError, export_range

    metrics = [GROUP_WRITABLE, UNAVAILABLE_SECONDS_TOTAL]

    try:
        count = export_range(server, metrics, end_seconds=time.time(), range_seconds=range_seconds, target=out)
    except ExportError as error:
        typer.echo(f"sla export: {error}", err=True)
        raise typer.Exit(2) from error
    typer.echo(json.dumps({"samples": count, "out": str(out)}))
    if count == 0:
        typer.echo(f"sla export: {server} holds no samples of {', '.join(metrics)} in that range", err=True)
        raise typer.Exit(3)


@app.command("report")
def report(
    exports: Exports,
    incidents: IncidentLogs,
    max_gap_seconds: Annotated[
        float, typer.Option("--max-gap-seconds", help="Longer gaps between samples count as unknown", min=0.1)
    ] = 5.0,
) -> None:
    """Availability and recovery times per group; the last line is the report as JSON."""
    try:
        from sla_reports.report import as_text, make_report
        from sla_reports.samples import ExportFormatError
        from sla_reports.session import start_session
    except ImportError as error:
        typer.echo(f"sla report: {error}; expected an install with the extra [sla] (pyspark, pyarrow)", err=True)
        raise typer.Exit(2) from error
    spark = start_session()
    try:
        made = make_report(spark, exports=exports, incident_logs=incidents, max_gap_seconds=max_gap_seconds)
    except (ExportFormatError, FileNotFoundError) as error:
        typer.echo(f"sla report: {error}", err=True)
        raise typer.Exit(2) from error
    finally:
        spark.stop()
    typer.echo(as_text(made))
    typer.echo(json.dumps(made.as_json()))
