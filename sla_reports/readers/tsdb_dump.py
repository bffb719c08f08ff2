"""Reads the output of `promtool tsdb dump`: one sample a line, `{__name__="...", label="value"} value timestamp`.

The timestamp is in milliseconds. Label values are quoted as Go does it. The form has no end mark: a dump that was cut between
two lines can't be told from a whole one. Stale markers are written as NaN like any other.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from sla_reports.readers.contract import Samples
from sla_reports.readers.lines import Parsed, read_lines
from sla_reports.readers.selection import Selection
from sla_reports.readers.splits import SPLIT_BYTES, Block
from sla_reports.readers.text_lines import cut_off, decodable, lines_of
from sla_reports.readers.text_samples import TextSamples
from sla_reports.series import SeriesFormatError, series_text

_NAME_LABEL: Final = "__name__"
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPE: Final = re.compile(r"\\(?:([abfnrtv\\\"'])|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))")
_PLAIN: Final = dict(zip("abfnrtv\\\"'", "\a\b\f\n\r\t\v\\\"'", strict=True))
_SUFFIXES: Final = (".dump", ".txt")


def read(
    spark: SparkSession, paths: Sequence[Path | str], *, skip_broken: bool = False, split_bytes: int = SPLIT_BYTES,
    selection: Selection | None = None,
) -> Samples:  # fmt: skip
    """The samples of the files; a folder stands for its `.dump` and `.txt` files, also with `.gz`."""
    return read_lines(
        spark,
        paths,
        TsdbDump,
        suffixes=_SUFFIXES,
        skip_broken=skip_broken,
        split_bytes=split_bytes,
        selection=selection,
    )


class TsdbDump:
    """A LineForm."""

    def __init__(self, selection: Selection | None = None) -> None:
        self._samples = TextSamples(_series_of, _unquoted, selection, ts_unit_ms=1, ts_unit="milliseconds")

    def parse(self, block: Block) -> Parsed:
        """See LineForm."""
        every = lines_of(block)
        lines, torn = cut_off(block, every)
        lines, unreadable = decodable(lines, self._samples.passed_over)
        found, flaws = self._samples.parse(lines.where(lines.ends > lines.starts))
        return Parsed([columns.packed() for columns in found], torn + unreadable + flaws, len(every))


def _series_of(text: str) -> str:
    if not (text.startswith("{") and text.endswith("}")):
        raise SeriesFormatError(f'series {text!r}: expected {{__name__="metric", label="value"}}')
    labels: dict[str, str] = {}
    at, end = 1, len(text) - 1
    while at < end:
        found = _LABEL.match(text, at)
        if found is None:
            raise SeriesFormatError(f'series {text!r}: expected label="value" at {text[at : at + 30]!r}')
        labels[found[1]] = _unquoted(found[2])
        at = found.end()
        if text.startswith(", ", at):
            at += 2
        elif at != end:
            raise SeriesFormatError(f"series {text!r}: expected ', ' at {text[at : at + 30]!r}")
    return series_text(labels.pop(_NAME_LABEL, ""), labels)


def _unquoted(value: str) -> str:
    """Go's quoting undone. Bytes written as \\x belong to one UTF-8 text."""
    if "\\x" not in value:
        return _ESCAPE.sub(_one, value)
    raw = _ESCAPE.sub(lambda found: _one(found) if found[2] is None else _byte(int(found[2], 16)), value)
    return raw.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _byte(number: int) -> str:
    return chr(number) if number < 0x80 else chr(0xDC00 + number)


def _one(found: re.Match[str]) -> str:
    if found[1] is not None:
        return _PLAIN[found[1]]
    return chr(int(found[2] or found[3] or found[4], 16))
