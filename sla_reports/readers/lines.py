"""From splits of text files to frames: what all line-based forms share.

A form says how a block of whole lines becomes samples and flaws (`LineForm`). This module runs it over the splits in Spark's Python
workers, turns a flaw into an anomaly with file and line, and is strict or tolerant as it was asked to be.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from sla_reports.readers.columns import PACKED_SCHEMA, unpacked
from sla_reports.readers.contract import ANOMALY_SCHEMA, Anomaly, AnomalyKind, Samples
from sla_reports.readers.selection import Notes, Selection
from sla_reports.readers.splits import Block, Split, TruncatedFileError, blocks_of, files_of, line_number_at, plan
from sla_reports.tasks import own, tasks_of


@dataclass(frozen=True, slots=True)
class Flaw:
    """Something in a block that is no sample; `line` counts from 0 in the block."""

    line: int
    kind: AnomalyKind
    detail: str


@dataclass(frozen=True, slots=True)
class Parsed:
    """A block's samples, as batches of PACKED_SCHEMA, what is none, and how many lines the block has."""

    batches: list[pa.RecordBatch]
    flaws: list[Flaw]
    lines: int


class LineForm(Protocol):
    """A form of export that has one thing a line. Lives in a worker for one split, so it may keep what it has seen."""

    def parse(self, block: Block) -> Parsed:
        """The samples of a block, and what is none."""


class LineFormType(Protocol):
    """Makes a form that hands out the selected series; must be picklable by name."""

    def __call__(self, selection: Selection) -> LineForm: ...


def read_lines(
    spark: SparkSession,
    paths: Sequence[Path | str],
    form: LineFormType,
    *,
    suffixes: tuple[str, ...],
    skip_broken: bool,
    split_bytes: int,
    selection: Selection | None = None,
) -> Samples:
    """The samples of the files in this form. Raises ExportFormatError for a path that is not there."""
    wanted, notes = selection or Selection(), Notes(spark.sparkContext)
    splits = plan(files_of(paths, suffixes), split_bytes=split_bytes)
    tasks = tasks_of(spark, len(splits))
    frame = tasks.mapInArrow(partial(_samples_of, splits, form, wanted, notes, skip_broken), PACKED_SCHEMA)
    anomalies = _anomalies(tasks, splits, form, wanted) if skip_broken else no_anomalies(spark)
    return Samples(unpacked(frame), anomalies, notes.told)


def no_anomalies(spark: SparkSession) -> DataFrame:
    """An empty frame of anomalies, for a strict reader."""
    return spark.createDataFrame([], ANOMALY_SCHEMA)


def _anomalies(tasks: DataFrame, splits: list[Split], form: LineFormType, selection: Selection) -> DataFrame:
    return tasks.mapInArrow(partial(_anomalies_of, splits, form, selection), ANOMALY_SCHEMA)


def _samples_of(
    splits: list[Split], form: LineFormType, selection: Selection, notes: Notes, skip_broken: bool,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    for split in own(splits, batches):
        for found in parsed(split, form(selection)):
            if isinstance(found, pa.RecordBatch):
                yield found
            elif not skip_broken:
                raise found.as_error()
    notes.add(selection)


def _anomalies_of(
    splits: list[Split], form: LineFormType, selection: Selection, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for split in own(splits, batches):
        yield anomaly_batch([item for item in parsed(split, form(selection)) if isinstance(item, Anomaly)])


def anomaly_batch(anomalies: Sequence[Anomaly]) -> pa.RecordBatch:
    """Anomalies as rows of their frame."""
    return pa.record_batch(
        {
            "file": pa.array([a.file for a in anomalies], pa.string()),
            "line": pa.array([a.line for a in anomalies], pa.int64()),
            "kind": pa.array([a.kind.value for a in anomalies], pa.string()),
            "detail": pa.array([a.detail for a in anomalies], pa.string()),
        }
    )


def parsed(split: Split, form: LineForm) -> Iterator[pa.RecordBatch | Anomaly]:
    """The samples and anomalies of one split, in the order of the file within a block."""
    first_line: int | None = None
    lines_before = 0
    try:
        for block in blocks_of(split):
            found = form.parse(block)
            if found.flaws and first_line is None:
                first_line = line_number_at(split)
            for flaw in sorted(found.flaws, key=lambda flaw: flaw.line):
                yield Anomaly(split.path, (first_line or 1) + lines_before + flaw.line, flaw.kind, flaw.detail)
            yield from found.batches
            lines_before += found.lines
    except TruncatedFileError as error:
        where = (first_line or line_number_at(split)) + lines_before
        yield Anomaly(split.path, where, AnomalyKind.TRUNCATED, f"the file ends too early: {error}")
