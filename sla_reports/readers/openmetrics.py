"""Reads OpenMetrics text with timestamps: the form that promtool's backfill takes, and that many tools write.

One sample a line, `series value timestamp`, the timestamp in seconds (kept to the millisecond, as Prometheus does).
`# EOF` has to be the last line: without it nobody knows that the file is whole. Metadata lines and exemplars are passed over.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from pyspark.sql import SparkSession

from sla_reports.readers.columns import Columns
from sla_reports.readers.contract import AnomalyKind, Samples
from sla_reports.readers.lines import Flaw, Parsed, read_lines
from sla_reports.readers.selection import Selection
from sla_reports.readers.splits import SPLIT_BYTES, Block
from sla_reports.readers.text_lines import Lines, cut_off, decodable, lines_of, made_of, shown
from sla_reports.readers.text_samples import TextSamples
from sla_reports.series import canonical, unescaped

_EOF: Final = "# EOF"
_EXEMPLAR_MARK: Final = b" # {"
_COMMENT: Final = ord("#")
_LINE_FEED: Final = ord("\n")
_WITH_EXEMPLAR: Final = re.compile(r'([^{ ]*(?:\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})? [^ ]+ [^ ]+) # \{.*')
_SUFFIXES: Final = (".om", ".txt", ".prom", ".openmetrics")


def read(
    spark: SparkSession, paths: Sequence[Path | str], *, skip_broken: bool = False, split_bytes: int = SPLIT_BYTES,
    selection: Selection | None = None,
) -> Samples:  # fmt: skip
    """The samples of the files; a folder stands for its `.om`, `.txt`, `.prom` and `.openmetrics` files, also with `.gz`."""
    return read_lines(
        spark,
        paths,
        OpenMetrics,
        suffixes=_SUFFIXES,
        skip_broken=skip_broken,
        split_bytes=split_bytes,
        selection=selection,
    )


class OpenMetrics:
    """A LineForm."""

    def __init__(self, selection: Selection | None = None) -> None:
        self._samples = TextSamples(canonical, unescaped, selection, ts_unit_ms=1000, ts_unit="seconds")

    def parse(self, block: Block) -> Parsed:
        """See LineForm."""
        lines = lines_of(block)
        count, firsts = len(lines), lines.firsts()
        ends = _ends(lines, firsts)
        flaws = _end_flaws(block, lines, ends)
        if not (len(ends) and ends[-1] == count - 1):
            lines, torn = cut_off(block, lines)
            flaws = torn + flaws
        lines, unreadable = decodable(lines, self._samples.passed_over)
        firsts = firsts[lines.numbers]
        found, more = self._parse(lines.where((firsts != _COMMENT) & (firsts != _LINE_FEED)))
        return Parsed([columns.packed() for columns in found], flaws + unreadable + more, count)

    def _parse(self, lines: Lines) -> tuple[list[Columns], list[Flaw]]:
        marked = _with_exemplars(lines)
        if not marked.any():
            return self._samples.parse(lines)
        texts = [_WITH_EXEMPLAR.sub(r"\1", lines.text(index)) for index in map(int, np.flatnonzero(marked))]
        plain, flaws = self._samples.parse(lines.where(~marked))
        found, more = self._samples.parse(made_of(texts, lines.numbers[marked]))
        return plain + found, flaws + more


def _ends(lines: Lines, firsts: np.ndarray) -> np.ndarray:
    """Which lines are the end mark."""
    maybe = np.flatnonzero((firsts == _COMMENT) & (lines.ends - lines.starts == len(_EOF)))
    return np.array([index for index in map(int, maybe) if lines.text(index) == _EOF], dtype=np.int64)


def _end_flaws(block: Block, lines: Lines, ends: np.ndarray) -> list[Flaw]:
    last = len(lines) - 1
    flaws = [
        Flaw(int(end) + 1, AnomalyKind.AFTER_EOF, f"the file goes on after {_EOF!r}; expected the end")
        for end in ends
        if not (block.is_last_of_file and end == last)
    ]
    if block.is_last_of_file and not (len(ends) and ends[-1] == last):
        ending = shown(lines.text(last)) if len(lines) else "nothing"
        flaws.append(Flaw(max(last, 0), AnomalyKind.MISSING_EOF, f"the file ends with {ending}; expected {_EOF!r}"))
    return flaws


def _with_exemplars(lines: Lines) -> np.ndarray:
    marked = lines.spaces > 2
    if marked.any() and _EXEMPLAR_MARK in lines.data:
        for index in map(int, np.flatnonzero(marked)):
            marked[index] = _EXEMPLAR_MARK in lines.raw(index)
        return marked
    return np.zeros(len(lines), dtype=bool)
