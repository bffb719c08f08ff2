"""Write the files of a report into a folder. The same input gives the same bytes: they hold neither a time nor a place of making.

    report.html       for people (`html_page.py`)
    summary.json      everything (`summary_document`)
    groups.csv        a row for each group, for a spreadsheet
    incidents.jsonl   a line for each incident
    runs.parquet      the runs everything was made of, each with the scrape interval of its series
    provenance.json   inputs by their hashes, what was asked, versions

Documents: `schemaVersion` rises when a member changes its meaning or goes. Times are milliseconds since 1970 UTC, durations
milliseconds, shares between 0 and 1. What is not known is null, never 0.
"""

import csv
import hashlib
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sla_reports.measures.amendments import Audit
from sla_reports.measures.availability import (
    BY_GROUP,
    BY_LOST_MASTER,
    Availability,
    Budget,
    Share,
    down_by_stage,
    sum_of,
)
from sla_reports.measures.reconciliation import reconcile_totals
from sla_reports.measures.recovery import Recovery
from sla_reports.measures.summary import ClusterFigures, GroupFigures, OwnFigures, Summary
from sla_reports.output.html_page import report_html
from sla_reports.states.incidents import Incident
from sla_reports.states.spans import Run

# What an incident's document has of its line of the log, as it stands.
LOGGED_MEMBERS = (
    "kind", "trigger", "outcome", "unfenced", "unclean", "truncated_bytes", "started_at_ms", "detection_ms",
)  # fmt: skip
_PACKAGES = ("brokergroup-operator", "pyspark", "pyarrow")
_CHUNK_BYTES = 1 << 20
_GROUP_COLUMNS = (
    "namespace", "cluster", "brokerGroup", "objective", "verdict", "write.availability", "write.worst", "write.best",
    "write.coverage", "write.upMs", "write.downMs", "write.unknownMs", "write.disputedMs",
    "write.source", "write.errorMs", "plannedDownMs",
    "incidents", "unattributed", "recovery.rto.p50Ms", "recovery.rto.p95Ms", "recovery.rto.p99Ms",
    "recovery.rto.maxMs", "recovery.dominant", "mttr.meanMs", "mtbf.meanMs", "budget.leftMs", "exposure.belowPromiseMs",
    "exposure.oneCopyMs", "exposure.mostBehindBytes", "exposure.uncleanElections", "exposure.truncatedBytes",
)  # fmt: skip
SCHEMA_VERSION = 2


def write_report(
    folder: Path, summary: Summary, runs: Sequence[Run], intervals_ms: Mapping[str, int], provenance: Mapping[str, Any],
    *, time_zone: str = "UTC",
) -> list[Path]:  # fmt: skip
    """Write all files; the folder is made where it is missing. Returns their paths. `time_zone` is that of the page's times."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = {
        "report.html": report_html(summary, provenance, time_zone=time_zone).encode(),
        "summary.json": _json(summary_document(summary)),
        "groups.csv": groups_csv(summary).encode(),
        "incidents.jsonl": b"".join(_json(incident_document(one), line=True) for one in summary.incidents),
        "runs.parquet": _runs_parquet(runs, intervals_ms),
        "provenance.json": _json(provenance),
    }
    for name, content in contents.items():
        partial = folder / f".{name}.partial"
        partial.write_bytes(content)
        partial.replace(folder / name)
    return [folder / name for name in contents]


def provenance_document(
    inputs: Sequence[Path], question: Mapping[str, Any], quality: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the origin of the figures: input files by name, size and SHA-256, question, quality of the samples, versions."""
    files = sorted(
        {file for path in inputs for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file()}
    )
    return {
        "schemaVersion": SCHEMA_VERSION,
        "inputs": [{"name": file.name, "bytes": file.stat().st_size, "sha256": _sha256(file)} for file in files],
        "question": dict(question),
        "quality": dict(quality),
        "versions": {name: _version(name) for name in _PACKAGES},
    }


def groups_csv(summary: Summary) -> str:
    """Return a CSV row for each group; an unknown value is an empty field."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_GROUP_COLUMNS)
    for figures in summary.groups:
        document = group_document(figures)
        writer.writerow([_member(document, column) for column in _GROUP_COLUMNS])
    return text.getvalue()


def _member(document: Mapping[str, Any], path: str) -> Any:
    value: Any = document
    for name in path.split("."):
        value = value[name]
    # A spreadsheet takes what begins so for a formula.
    return f"'{value}" if isinstance(value, str) and value[:1] in "=+-@" and value else value


def _runs_parquet(runs: Sequence[Run], intervals_ms: Mapping[str, int]) -> bytes:
    table = pa.table(
        {
            "series": pa.array([run.series for run in runs], pa.string()),
            "value": pa.array([run.value for run in runs], pa.float64()),
            **{
                name: pa.array([getattr(run, name) for run in runs], pa.int64()) for name in ("start_ms", "end_ms", "n")
            },
            "interval_ms": pa.array([run.longer_ms or intervals_ms[run.series] for run in runs], pa.int64()),
        }
    )
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _json(document: Mapping[str, Any], *, line: bool = False) -> bytes:
    form: dict[str, Any] = {"separators": (",", ":")} if line else {"indent": 2}
    return json.dumps(document, ensure_ascii=False, allow_nan=False, **form).encode() + b"\n"


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def summary_document(summary: Summary) -> dict[str, Any]:
    """Return the content of summary.json."""
    window, until_ms = summary.agreement.window, summary.until_ms
    totals = reconcile_totals(summary)
    told = {figures.group: figures.availability for figures in summary.groups}
    return {
        "schemaVersion": SCHEMA_VERSION,
        "period": {"startMs": window.start_ms, "endMs": window.end_ms, "dataUntilMs": until_ms},
        "service": summary.service, "owner": summary.owner,
        "objective": summary.agreement.objective, "promisedCopies": summary.agreement.promised_copies,
        "verdict": summary.verdict.value, "reconciliation": {"checks": totals.checks, "faults": list(totals.faults)},
        "incomplete": list(summary.incomplete), "warnings": list(summary.warnings),
        "fleet": _availability(sum_of(list(told.values()))), "downByStage": down_by_stage(summary.outages),
        "groups": [group_document(figures) for figures in summary.groups],
        "clusters": [_cluster(figures) for figures in summary.clusters], "recovery": _recovery(summary.recovery),
        "availabilityBy": {
            name: {value: _availability(one) for value, one in summary.availability_by_group(name_of).items()}
            for name, name_of in BY_GROUP.items()
        }
        | {
            name: {value: _availability(one) for value, one in summary.availability_by_fact(name).items()}
            for name in BY_LOST_MASTER
        },
        "incidentsBy": {
            "cause": [_share(one) for one in summary.shares(lambda one: one.cause)],
            **{name: [_share(one) for one in summary.shares_by_fact(name)] for name in BY_LOST_MASTER},
        },
        "events": [
            {
                "startMs": event.start_ms,
                "groups": [str(group) for group in event.groups],
                "incidents": [one.id for one in event.incidents],
                "common": dict(event.common),
            }
            for event in summary.events
            if len(event.groups) > 1
        ],
    }  # fmt: skip


def group_document(figures: GroupFigures) -> dict[str, Any]:
    """Return a group's member of summary.json."""
    incidents = figures.incidents
    return {
        "namespace": figures.group.namespace, "cluster": figures.group.cluster,
        "brokerGroup": figures.group.broker_group, "objective": figures.objective, "verdict": figures.verdict.value,
        "write": _availability(figures.availability), "counterMs": _rounded(figures.counter_ms),
        "plannedDownMs": sum(one.down_ms for one in figures.outages if one.incident.planned),
        "downByStage": down_by_stage(figures.outages), "incidents": len(incidents),
        "unattributed": sum(one.logged is None for one in incidents),
        "skewedClocks": sum(one.skewed for one in incidents), "recovery": _recovery(figures.recovery),
        "phases": {phase: camel_case(asdict(one)) for phase, one in figures.phases.items()},
        "exposure": camel_case(asdict(figures.exposure)), "mttr": camel_case(asdict(figures.mttr)),
        "mtbf": camel_case(asdict(figures.mtbf)), "budget": _budget(figures.budget),
        **({} if figures.own is None else {"objectiveWindow": _own_window(figures.own)}),
        "existed": [{"startMs": low, "endMs": high} for low, high in figures.existed],
        "existenceKnownBy": list(figures.existence.evidence), "amendments": [_audit(one) for one in figures.audit],
    }  # fmt: skip


def _own_window(own: OwnFigures) -> dict[str, Any]:
    return {
        "name": str(own.over), "startMs": own.window.start_ms, "endMs": own.window.end_ms,
        "verdict": own.verdict.value, "write": _availability(own.availability), "budget": _budget(own.budget),
    }  # fmt: skip


def incident_document(incident: Incident) -> dict[str, Any]:
    """Return one incident; `endMs` is null while it is open. `written.read_report` reads it back."""
    logged = incident.logged
    return {
        "schemaVersion": SCHEMA_VERSION, "id": incident.id, "namespace": incident.group.namespace,
        "cluster": incident.group.cluster, "brokerGroup": incident.group.broker_group, "startMs": incident.start_ms,
        "endMs": incident.end_ms, "source": incident.source.value, "errorMs": incident.error_ms,
        "cause": incident.cause, "loggedCause": logged.cause if logged else None,
        "circumstances": list(incident.circumstances), "planned": incident.planned,
        **{camel(name): getattr(logged, name) if logged else None for name in LOGGED_MEMBERS},
        "stepsMs": dict(sorted(logged.steps_ms.items(), key=lambda one: (one[1], one[0]))) if logged else None,
        "evidence": list(logged.evidence) if logged else [], "seenByGauge": incident.seen_by_gauge,
        "skewedClocks": incident.skewed, "disputedMs": incident.disputed_ms,
        "facts": dict(sorted(incident.facts.items())),
    }  # fmt: skip


def camel_case(document: Mapping[str, Any]) -> dict[str, Any]:
    """Python's names of members as JSON's; numbers that JSON does not have become null."""
    return {camel(name): _rounded(value) for name, value in document.items()}


def camel(name: str) -> str:
    """Return Python's name of a member as JSON's."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _rounded(value: Any) -> Any:
    """Durations to the microsecond: what comes after is noise of adding, and would differ with the order."""
    if isinstance(value, float):
        return round(value, 3) if math.isfinite(value) else None
    return value


def _availability(one: Availability) -> dict[str, Any]:
    return {
        "upMs": one.up_ms, "downMs": one.down_ms, "unknownMs": one.unknown_ms,
        "disputedMs": one.disputed_ms, "availability": one.availability,
        "worst": one.worst, "best": one.best, "coverage": one.coverage, "source": one.source.value,
        "errorMs": one.error_ms,
    }  # fmt: skip


def _cluster(figures: ClusterFigures) -> dict[str, Any]:
    return {
        "namespace": figures.namespace, "cluster": figures.cluster, "groups": figures.groups,
        "write": _availability(figures.write), "writeVerdict": figures.write_verdict.value,
        "orderedWrite": _availability(figures.ordered_write),
        "orderedWriteVerdict": figures.ordered_write_verdict.value,
    }  # fmt: skip


def _recovery(one: Recovery) -> dict[str, Any]:
    return {
        "rto": camel_case(asdict(one.total)),
        "stages": {stage: camel_case(asdict(distribution)) for stage, distribution in one.stages.items()},
        "shares": {stage: round(share, 6) for stage, share in one.shares.items()},
        "dominant": one.dominant,
    }


def _budget(one: Budget) -> dict[str, Any]:
    return {
        "allowedMs": _rounded(one.allowed_ms),
        "spentMs": one.spent_ms,
        "leftMs": _rounded(one.left_ms),
        "burnRates": {name: None if rate is None else round(rate, 6) for name, rate in one.burn_rates.items()},
        "forecast": None if one.forecast is None else camel_case(asdict(one.forecast)),
    }


def _share(one: Share) -> dict[str, Any]:
    return {
        "value": one.value, "incidents": one.incidents, "downMs": one.down_ms, "share": round(one.share, 6),
        "rto": camel_case(asdict(one.rto)),
    }  # fmt: skip


def _audit(one: Audit) -> dict[str, Any]:
    return {
        "groups": one.amendment.groups, "startMs": one.amendment.start_ms, "endMs": one.amendment.end_ms,
        "state": one.amendment.state.value if one.amendment.state else "excluded", "reason": one.amendment.reason,
        "by": one.amendment.by,
        "changed": {
            "upMs": one.up_ms,
            "downMs": one.down_ms,
            "unknownMs": one.unknown_ms,
            "disputedMs": one.disputed_ms,
        },
    }  # fmt: skip
