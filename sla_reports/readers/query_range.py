"""Reads files that hold answers of Prometheus's HTTP API: of a range query, or of an instant query with a range selector.

Each file is read whole by one task and taken apart in Python: Spark's own JSON reader takes 24 times the processor time on this
form. Keep files small (a day each). Samples of a range query are not scrapes: they lie on the query's grid and may be up to
five minutes old, which hides short outages. Prefer `sla export`, or the `prometheus` source.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

from sla_reports.readers.contract import ANOMALY_SCHEMA, SAMPLE_SCHEMA, Samples
from sla_reports.readers.lines import anomaly_batch, no_anomalies
from sla_reports.readers.matrix import decode
from sla_reports.readers.splits import files_of

_SUFFIXES: Final = (".json",)


def read(spark: SparkSession, paths: Sequence[Path | str], *, skip_broken: bool = False) -> Samples:
    """The samples of the files; a folder stands for its `.json` files. Raises ExportFormatError for a path that is not there."""
    names = [str(path.resolve()) for path in files_of(paths, _SUFFIXES)]
    files = spark.read.format("binaryFile").load(names).select("path", "content")
    frame = files.mapInArrow(partial(_samples_of, skip_broken), SAMPLE_SCHEMA)
    anomalies = files.mapInArrow(_anomalies_of, ANOMALY_SCHEMA) if skip_broken else no_anomalies(spark)
    return Samples(frame, anomalies)


def _samples_of(skip_broken: bool, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for path, content in _files(batches):
        samples, anomalies = decode(content, path)
        if anomalies and not skip_broken:
            raise anomalies[0].as_error()
        yield from pa.Table.from_batches(samples).combine_chunks().to_batches() if samples else []


def _anomalies_of(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for path, content in _files(batches):
        yield anomaly_batch(decode(content, path)[1])


def _files(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, bytes]]:
    for batch in batches:
        for path, content in zip(batch.column("path").to_pylist(), batch.column("content"), strict=True):
            yield path.removeprefix("file:"), content.as_py()
