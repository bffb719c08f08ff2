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

from sla_reports.readers.columns import PACKED_SCHEMA, unpacked
from sla_reports.readers.contract import ANOMALY_SCHEMA, Samples
from sla_reports.readers.lines import anomaly_batch, no_anomalies
from sla_reports.readers.matrix import decode
from sla_reports.readers.splits import content_of, files_of
from sla_reports.tasks import own, tasks_of

_SUFFIXES: Final = (".json",)


def read(spark: SparkSession, paths: Sequence[Path | str], *, skip_broken: bool = False) -> Samples:
    """The samples of the files; a folder stands for its `.json` and `.json.gz` files. Raises ExportFormatError."""
    files = [path.resolve() for path in files_of(paths, _SUFFIXES)]
    tasks = tasks_of(spark, len(files))
    frame = unpacked(tasks.mapInArrow(partial(_samples_of, files, skip_broken), PACKED_SCHEMA))
    anomalies = tasks.mapInArrow(partial(_anomalies_of, files), ANOMALY_SCHEMA) if skip_broken else no_anomalies(spark)
    return Samples(frame, anomalies)


def _samples_of(files: list[Path], skip_broken: bool, tasks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for path in own(files, tasks):
        samples, anomalies = decode(content_of(path), str(path))
        if anomalies and not skip_broken:
            raise anomalies[0].as_error()
        for columns in samples:
            yield columns.packed()


def _anomalies_of(files: list[Path], tasks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for path in own(files, tasks):
        yield anomaly_batch(decode(content_of(path), str(path))[1])
