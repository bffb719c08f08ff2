"""Puts the report together: availability per group beside its recovery times, as text and as one JSON object."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from sla_reports.availability import availability
from sla_reports.incidents import read_incidents
from sla_reports.recovery import recovery
from sla_reports.samples import read_samples

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Report:
    """What is known of each group in the period the exports cover.

    `groups` and `recoveries` are lists of objects with the columns of `availability` and `recovery`; `unreadable_incidents` is the
    number of lines of the incident logs that could not be used.
    """

    groups: list[dict[str, Any]]
    recoveries: list[dict[str, Any]]
    unreadable_incidents: int
    max_gap_seconds: float

    def as_json(self) -> dict[str, Any]:
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}


def make_report(
    spark: SparkSession, *, exports: Sequence[Path], incident_logs: Sequence[Path], max_gap_seconds: float
) -> Report:
    """Read, reduce, collect. Raises ExportFormatError or FileNotFoundError for input that can't be read."""
    groups = availability(read_samples(spark, exports), max_gap_seconds=max_gap_seconds)
    incidents = read_incidents(spark, incident_logs)
    by_name = ("namespace", "broker_group")
    return Report(
        groups=[row.asDict() for row in groups.orderBy(*by_name).collect()],
        recoveries=[row.asDict() for row in recovery(incidents).orderBy("namespace", "name", "trigger").collect()],
        unreadable_incidents=incidents.where("unreadable is not null").count(),
        max_gap_seconds=max_gap_seconds,
    )


def as_text(report: Report) -> str:
    """The report for a person: one line a group, then one a trigger."""
    lines = [f"availability (gaps over {report.max_gap_seconds:.0f} s between samples count as unknown)"]
    lines += [
        f"  {group['namespace']}/{group['broker_group']}: {_percent(group['availability'])}"
        f"  (between {_percent(group['at_least'])} and {_percent(group['at_most'])};"
        f" up {group['up_seconds']:.1f} s, down {group['down_seconds']:.1f} s, unknown {group['unknown_seconds']:.1f} s)"
        for group in report.groups
    ]
    lines.append("recovery (last sign of life to new master)")
    lines += [
        f"  {entry['namespace']}/{entry['name']} {entry['trigger']}: {entry['completed']} of {entry['incidents']} completed,"
        f" p50 {_milliseconds(entry['rto_p50_ms'])}, p95 {_milliseconds(entry['rto_p95_ms'])},"
        f" max {_milliseconds(entry['rto_max_ms'])}, unfenced {entry['unfenced']}"
        for entry in report.recoveries
    ]
    if report.unreadable_incidents:
        lines.append(f"left out: {report.unreadable_incidents} unreadable lines of the incident logs")
    return "\n".join(lines)


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{value * 100:.3f} %"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} ms"
