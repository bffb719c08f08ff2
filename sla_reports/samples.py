"""Reads Prometheus exports into a table of samples.

Each file is read whole by one task and parsed in Python: Spark's own JSON reader takes 24 times the CPU on this nested form
(sla-and-dashboards.md §2).
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

# One row a sample. `at_seconds` is the scrape's own wall-clock timestamp; `cause` is empty where a metric has no such label.
# `instance` is Prometheus's name of the scraped operator pod: a counter means nothing without it.
SAMPLE_SCHEMA = ", ".join(
    ("metric string", "instance string", "namespace string", "broker_group string", "cause string",
     "at_seconds double", "value double")
)  # fmt: skip
_LABELS = ("instance", "namespace", "broker_group", "cause")


class ExportFormatError(Exception):
    """A file is not a Prometheus matrix answer; names the file and what was expected."""


def read_samples(spark: SparkSession, exports: Sequence[Path]) -> DataFrame:
    """The samples of all exports; columns as SAMPLE_SCHEMA.

    Raises ExportFormatError when a file is missing or is not a Prometheus answer of type matrix.
    """
    for export in exports:
        _check(export)
    files = spark.read.format("binaryFile").load([str(export) for export in exports]).select("content")
    return files.mapInArrow(_parse_batches, SAMPLE_SCHEMA)


def _check(export: Path) -> None:
    try:
        answer = json.loads(export.read_bytes())
    except OSError as error:
        raise ExportFormatError(f"export {export}: cannot be read: {error}") from error
    except ValueError as error:
        raise ExportFormatError(f"export {export}: not JSON ({error}); expected a Prometheus query answer") from error
    kind = answer.get("data", {}).get("resultType") if isinstance(answer, dict) else None
    if kind != "matrix":
        raise ExportFormatError(f"export {export}: data.resultType is {kind!r}; expected 'matrix' (a range of samples)")


def _parse_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for content in batch.column("content").to_pylist():
            yield _parse(content)


def _parse(content: bytes) -> pa.RecordBatch:
    rows: dict[str, list[str | float]] = {name: [] for name in ("metric", *_LABELS, "at_seconds", "value")}
    for series in json.loads(content)["data"]["result"]:
        labels = series["metric"]
        for at_seconds, value in series["values"]:
            rows["metric"].append(labels.get("__name__", ""))
            for label in _LABELS:
                rows[label].append(labels.get(label, ""))
            rows["at_seconds"].append(float(at_seconds))
            rows["value"].append(float(value))
    return pa.RecordBatch.from_pydict(rows)
