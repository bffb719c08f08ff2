"""Questions to reports that are written already, and their objectives; no Spark, no Java.

`brokergroup sla whatif` and `explain` read a report's folder. `brokergroup slo rules` makes Prometheus's alert rules of objectives,
`compare` says what changed from one report to the next.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from brokergroup_operator.cli.sla_command import Failing, Group, known_errors, period_of
from brokergroup_operator.cli.sla_command import app as sla

if TYPE_CHECKING:
    from sla_reports.output.written import WrittenReport

slo = typer.Typer(
    help="Objectives: alert rules from them, and what changed from one period to the next.", no_args_is_help=True
)
ReportFolder = Annotated[Path, typer.Option("--report", help="Folder that `sla report --out` wrote")]


@sla.command("whatif")
def whatif(  # noqa: PLR0913 - one argument a flag
    *,
    folder: ReportFolder,
    replicas: Annotated[
        list[int] | None, typer.Option("--replicas", help="Of every group; repeatable; without it 1, 2, 3 and 5", min=1)
    ] = None,
    zones: Annotated[
        list[int] | None,
        typer.Option("--zones", help="That its members lie in; repeatable; without it as observed", min=1),
    ] = None,
    min_in_sync: Annotated[
        list[int] | None,
        typer.Option("--min-in-sync", help="Members that a write needs; repeatable; without it 1", min=1),
    ] = None,
    durability: Annotated[
        list[str] | None,
        typer.Option("--durability", help="Strict, Available or Fast, instead of --min-in-sync; repeatable"),
    ] = None,
    timeout_seconds: Annotated[
        list[float] | None,
        typer.Option(
            "--silence-timeout-seconds",
            help="After which a silent master is replaced; repeatable; without it as observed",
            min=0.0,
        ),
    ] = None,
    observed_replicas: Annotated[
        int | None,
        typer.Option(
            "--observed-replicas", help="Of every group; without it, each group's greatest SyncStateSet", min=1
        ),
    ] = None,
    observed_zones: Annotated[
        int, typer.Option("--observed-zones", help="Zones that a group's members lie in today", min=1)
    ] = 1,
    observed_min_in_sync: Annotated[
        int, typer.Option("--observed-min-in-sync", help="Members that a write needs today", min=1)
    ] = 1,
    observed_durability: Annotated[
        str | None,
        typer.Option(
            "--observed-durability", help="Strict, Available or Fast today, instead of --observed-min-in-sync"
        ),
    ] = None,
) -> None:
    """The observed failures once more with other setups; the last line is the result as JSON. Needs no Java."""
    fail = Failing("sla whatif")
    with known_errors(fail):
        from sla_reports import what_if
        from sla_reports.output.written import read_fleet, read_report

        told, fleet = read_report(folder), read_fleet(folder)
        seen = what_if.replicas_seen(fleet, told.incidents) if observed_replicas is None else {}
        greatest = observed_replicas or max(seen.values(), default=None)
        if greatest is None:
            raise fail("--observed-replicas: missing; expected a number, for the report saw no SyncStateSet")
        try:
            of_name = [] if observed_durability is None else [observed_durability]
            [(minimum, alone)] = what_if.durabilities_of(of_name, [] if of_name else [observed_min_in_sync])
            own = {group: count for group, count in seen.items() if count != greatest}
            observed = what_if.Setup(greatest, minimum, observed_zones, master_alone=alone, own_replicas=own)
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


@sla.command("explain")
def explain(
    group: Annotated[str, typer.Argument(help="namespace/cluster/brokerGroup, or the last part of it")],
    incident: Annotated[str, typer.Argument(help="Its id, or the last part of it")],
    folder: ReportFolder,
    time_zone: Annotated[str, typer.Option("--time-zone", help="Of the times in the text")] = "UTC",
) -> None:
    """One incident: stages, cause, evidence, and where each of it comes from. Needs no Java."""
    fail = Failing("sla explain")
    with known_errors(fail):
        from sla_reports.measures.periods import zone_of
        from sla_reports.output.written import explain as explained
        from sla_reports.output.written import find_incident, read_report

        zone = zone_of(time_zone)
        told = read_report(folder)
        text = explained(told, find_incident(told, group, incident), zone)
    typer.echo(text)


@slo.command("rules")
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
        raise Failing("slo rules")(str(error)) from error
    except OSError as error:
        raise Failing("slo rules")(f"--out {out}: {error.strerror}; expected a file that can be written") from error
    typer.echo(json.dumps({"objectives": [one.name for one in found], "out": str(out)}))


@slo.command("compare")
def compare(
    before: Annotated[str, typer.Option("--before", help="Folder of the earlier report; with --store its period")],
    after: Annotated[str, typer.Option("--after", help="Folder of the later report; with --store its period")],
    store: Annotated[str | None, typer.Option("--store", help="The daily table to make both reports from")] = None,
    group: Group = "*",
    time_zone: Annotated[str, typer.Option("--time-zone", help="Of the periods")] = "UTC",
) -> None:
    """What changed from one report to another, group by group; the last line is the result as JSON. Needs no Java."""
    fail = Failing("slo compare")
    if store is None and group != "*":
        raise fail(f"--group {group}: expected none without --store: a written report has its groups")
    with known_errors(fail):
        from sla_reports.output.written import changes, changes_table, read_report

        if store is None:
            told = changes(read_report(Path(before)), read_report(Path(after)))
        else:
            told = changes(*(_report_of(store, period, time_zone, group) for period in (before, after)))
    typer.echo(changes_table(told))
    typer.echo(json.dumps({"groups": told}))


def _report_of(store: str, period: str, time_zone: str, group: str) -> "WrittenReport":
    """The report of a period from the table, as if it had been written."""
    from sla_reports.output.written import as_written
    from sla_reports.report import Request, make_report
    from sla_reports.sources import Form, Origin

    _, window, _ = period_of(period, time_zone, None)
    origin = Origin(Form.RUNS, table=store)
    return as_written(make_report(None, Request(origin, (), window, time_zone=time_zone, groups=group)).summary)
