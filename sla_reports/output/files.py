"""Writes the files of a report into a folder.

    report.html       for people (`html/page.py`)
    summary.json      everything (`documents.summary_document`)
    groups.csv        a row for each group, for a spreadsheet
    incidents.jsonl   a line for each incident
    runs.parquet      the runs everything was made of, each with the scrape interval of its series
    provenance.json   inputs by their hashes, what was asked, versions

Each file is written beside its place and moved there when it is whole: a reader never sees half a report.
"""

import csv
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sla_reports.measures.summary import Summary
from sla_reports.output.documents import SCHEMA_VERSION, group_document, incident_document, summary_document
from sla_reports.output.html.page import report_html
from sla_reports.reduction.runs import Run

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


def write_report(
    folder: Path, summary: Summary, runs: Sequence[Run], intervals_ms: Mapping[str, int], provenance: Mapping[str, Any],
    *, time_zone: str = "UTC",
) -> list[Path]:  # fmt: skip
    """Write all files; the folder is made where it is missing. Returns their paths. `time_zone` is that of the page's times."""
    folder.mkdir(parents=True, exist_ok=True)
    incidents = [one for figures in summary.groups for one in figures.incidents]
    contents = {
        "report.html": report_html(summary, provenance, time_zone=time_zone).encode(),
        "summary.json": _json(summary_document(summary)),
        "groups.csv": groups_csv(summary).encode(),
        "incidents.jsonl": b"".join(_line(incident_document(one)) for one in incidents),
        "runs.parquet": _runs_parquet(runs, intervals_ms),
        "provenance.json": _json(provenance),
    }
    return [_replace(folder / name, content) for name, content in contents.items()]


def provenance_document(
    inputs: Sequence[Path], question: Mapping[str, Any], quality: Mapping[str, Any]
) -> dict[str, Any]:
    """Where the figures come from: every input file by name, size and SHA-256, what was asked, what was odd, versions."""
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
    """A row for each group; an empty field is not known."""
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


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _line(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _replace(path: Path, content: bytes) -> Path:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(content)
    partial.replace(path)
    return path


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
