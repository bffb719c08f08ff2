"""Reads files that hold answers of Prometheus's HTTP API: of a range query, or of an instant query with a range selector.

Also promtool's `-o json`. Each file is read whole by one task and taken apart in Python: Spark's own JSON reader
takes 24 times the processor time on this form. Keep files small (a day each). Samples of a range query are not scrapes: they lie on
the query's grid and may be up to five minutes old, which hides short outages. Prefer `sla export`, or the `prometheus` source.
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
from sla_reports.readers.selection import Notes, Selection
from sla_reports.readers.splits import content_of, files_of
from sla_reports.tasks import own, tasks_of

_SUFFIXES: Final = (".json",)


def read(
    spark: SparkSession, paths: Sequence[Path | str], *, skip_broken: bool = False, selection: Selection | None = None
) -> Samples:
    """The samples of the files; a folder stands for its `.json` and `.json.gz` files. Raises ExportFormatError."""
    wanted, notes = selection or Selection(), Notes(spark.sparkContext)
    files = [path.resolve() for path in files_of(paths, _SUFFIXES)]
    tasks = tasks_of(spark, len(files))
    frame = unpacked(tasks.mapInArrow(partial(_samples_of, files, wanted, notes, skip_broken), PACKED_SCHEMA))
    broken = tasks.mapInArrow(partial(_anomalies_of, files, wanted), ANOMALY_SCHEMA)
    return Samples(frame, broken if skip_broken else no_anomalies(spark), notes.told)


def _samples_of(
    files: list[Path], selection: Selection, notes: Notes, skip_broken: bool, tasks: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for path in own(files, tasks):
        samples, anomalies = decode(content_of(path), str(path), selection)
        if anomalies and not skip_broken:
            raise anomalies[0].as_error()
        for columns in samples:
            yield columns.packed()
    notes.add(selection)


def _anomalies_of(files: list[Path], selection: Selection, tasks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for path in own(files, tasks):
        yield anomaly_batch(decode(content_of(path), str(path), selection)[1])
