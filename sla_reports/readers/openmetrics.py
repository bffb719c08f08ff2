"""Reads OpenMetrics text with timestamps: the form that promtool's backfill takes, and that many tools write.

One sample a line, `series value timestamp`, the timestamp in seconds (kept to the millisecond, as Prometheus does).
`# EOF` has to be the last line: without it nobody knows that the file is whole. Metadata lines and exemplars are passed over.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from sla_reports.readers.contract import AnomalyKind, Samples
from sla_reports.readers.lines import Flaw, read_lines
from sla_reports.readers.splits import SPLIT_BYTES, Block
from sla_reports.readers.text_samples import TextSamples, cut_off, lines_of, shown
from sla_reports.series import canonical

_EOF: Final = "# EOF"
_EXEMPLAR_MARK: Final = " # {"
_WITH_EXEMPLAR: Final = re.compile(r'([^{ ]+(?:\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})? [^ ]+ [^ ]+) # \{.*')
_SUFFIXES: Final = (".om", ".txt", ".prom", ".openmetrics")


def read(
    spark: SparkSession, paths: Sequence[Path | str], *, skip_broken: bool = False, split_bytes: int = SPLIT_BYTES
) -> Samples:
    """The samples of the files; a folder stands for its `.om`, `.txt`, `.prom` and `.openmetrics` files, also with `.gz`."""
    return read_lines(spark, paths, OpenMetrics, suffixes=_SUFFIXES, skip_broken=skip_broken, split_bytes=split_bytes)


class OpenMetrics:
    """A LineForm."""

    def __init__(self) -> None:
        self._samples = TextSamples(canonical, ts_unit_ms=1000, ts_unit="seconds")

    def parse(self, block: Block) -> tuple[list[pa.RecordBatch], list[Flaw]]:
        """See LineForm."""
        lines, flaws = lines_of(block)
        ends = _end_flaws(block, lines)
        if not (len(lines) and lines[-1].as_py() == _EOF):
            lines, torn = cut_off(block, lines)
            flaws += torn
        flaws += ends
        numbers = np.arange(len(lines))
        wanted = pc.invert(pc.or_(pc.starts_with(lines, "#"), pc.equal(lines, "")))
        lines, numbers = lines.filter(wanted), numbers[wanted.to_numpy(zero_copy_only=False)]
        batches, more = self._samples.parse(_without_exemplars(lines), numbers)
        return batches, flaws + more


def _end_flaws(block: Block, lines: pa.StringArray) -> list[Flaw]:
    ends = np.flatnonzero(pc.equal(lines, _EOF).to_numpy(zero_copy_only=False))
    last = len(lines) - 1
    flaws = [
        Flaw(int(end) + 1, AnomalyKind.AFTER_EOF, f"the file goes on after {_EOF!r}; expected the end")
        for end in ends
        if not (block.is_last_of_file and end == last)
    ]
    if block.is_last_of_file and not (len(ends) and ends[-1] == last):
        ending = shown(lines[last].as_py()) if len(lines) else "nothing"
        flaws.append(Flaw(max(last, 0), AnomalyKind.MISSING_EOF, f"the file ends with {ending}; expected {_EOF!r}"))
    return flaws


def _without_exemplars(lines: pa.StringArray) -> pa.StringArray:
    marked = pc.match_substring(lines, _EXEMPLAR_MARK)
    if not pc.any(marked).as_py():
        return lines
    texts = [_WITH_EXEMPLAR.sub(r"\1", text) if _EXEMPLAR_MARK in text else text for text in lines.to_pylist()]
    return pa.array(texts, pa.string())
