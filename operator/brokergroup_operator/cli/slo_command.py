"""`brokergroup slo`: what the objectives say beside the report. Needs no Java.

`rules` makes Prometheus's alert rules of them, `compare` says what changed from one written report to the next.
"""

import json
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Objectives: alert rules from them, and what changed from one period to the next.", no_args_is_help=True
)


@app.command("rules")
def rules(
    objectives: Annotated[
        list[Path],
        typer.Option(
            "--objectives", help="OpenSLO files, BrokerGroups by kubectl get -o yaml, or a folder; repeatable"
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="The rule file to write")],
) -> None:
    """Multi-window burn-rate alerts of Prometheus for each objective; the last line is the result as JSON."""
    from sla_reports.measures.objectives import ObjectiveError, read_objectives
    from sla_reports.output.burn_alerts import rules_text

    try:
        found = read_objectives(objectives)
        out.write_text(rules_text(found), encoding="utf-8")
    except ObjectiveError as error:
        raise _failed("rules", str(error)) from error
    except OSError as error:
        raise _failed("rules", f"--out {out}: {error.strerror}; expected a file that can be written") from error
    typer.echo(json.dumps({"objectives": [one.name for one in found], "out": str(out)}))


@app.command("compare")
def compare(
    before: Annotated[Path, typer.Option("--before", help="Folder of the earlier report")],
    after: Annotated[Path, typer.Option("--after", help="Folder of the later report")],
) -> None:
    """What changed from one written report to another, group by group; the last line is the result as JSON."""
    from sla_reports.output.written import WrittenReportError, changes, changes_table, read_report

    try:
        told = changes(read_report(before), read_report(after))
    except WrittenReportError as error:
        raise _failed("compare", str(error)) from error
    typer.echo(changes_table(told))
    typer.echo(json.dumps({"groups": told}))


def _failed(verb: str, message: str) -> typer.Exit:
    typer.echo(f"slo {verb}: {message}", err=True)
    return typer.Exit(1)
