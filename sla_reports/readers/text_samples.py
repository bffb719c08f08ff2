"""One sample a line, `series value timestamp`: what OpenMetrics text and `promtool tsdb dump` share.

A block is taken apart column by column (`text_lines.py`), and a line is looked at in Python only where that fails. A series'
text is brought to its canonical form once, not once a sample.
"""

import re
from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sla_reports.readers.columns import Columns
from sla_reports.readers.contract import EARLIEST_TS_MS, LATEST_TS_MS, AnomalyKind
from sla_reports.readers.lines import Flaw
from sla_reports.readers.pieces import numbers, of_each
from sla_reports.readers.selection import Selection, name_of, parts_of
from sla_reports.readers.text_lines import Lines, shown
from sla_reports.series import SeriesFormatError

_NUMBER: Final = re.compile(
    r"[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|inf|infinity|nan)", re.IGNORECASE
)


_PASSED_OVER: Final = ""


class TextSamples:
    """Takes lines apart; keeps the canonical texts it has made."""

    def __init__(
        self, canonical: Callable[[str], str], unescaped: Callable[[str], str], selection: Selection | None, *,
        ts_unit_ms: int, ts_unit: str,
    ) -> None:  # fmt: skip
        """`ts_unit_ms`: how many milliseconds a unit of the timestamps is (1 or 1000), which `ts_unit` is the name of."""
        self._canonical = canonical
        self._unescaped = unescaped
        self._selection = selection or Selection()
        self._ts_unit_ms = ts_unit_ms
        self._ts_unit = ts_unit
        # Not of what is no series: each sample of a native histogram would be another text.
        self._known: dict[str, str] = {}

    def parse(self, lines: Lines) -> tuple[list[Columns], list[Flaw]]:
        """The samples of lines that should each be one, and the flaws."""
        divided = lines.spaces >= 2
        rest = [int(index) for index in np.flatnonzero(~divided) if not self.passed_over(lines.text(int(index)))]
        flaws = [self._no_sample(lines, index) for index in rest]
        lines = lines.where(divided)
        if not len(lines):
            return [], flaws
        texts, value_texts, stamp_texts = lines.fields()
        encoded = texts.dictionary_encode()
        names = [self._canonical_of(text) for text in encoded.dictionary.to_pylist()]
        codes = of_each(encoded.indices)
        values, no_values = _numbers(value_texts)
        stamps, no_stamps = _numbers(stamp_texts)
        ts_ms = np.rint(stamps * self._ts_unit_ms)
        unreadable = np.array([name is None for name in names])[codes]
        # Of two words that are no numbers the first is hardly a metric: a message in the middle of an export.
        foreign = np.array([name == _PASSED_OVER for name in names])[codes] & ~(no_values & no_stamps)
        good = ~(unreadable | no_values | no_stamps | foreign) & (ts_ms >= EARLIEST_TS_MS) & (ts_ms < LATEST_TS_MS)
        for index in map(int, np.flatnonzero(~good & ~foreign)):
            if self.passed_over(lines.text(index)):
                continue
            if unreadable[index]:
                flaws.append(self._no_sample(lines, index))
            else:
                flaws.append(self._no_number(lines, index, value=no_values[index], stamp=no_stamps[index]))
        found = Columns(names, codes, np.where(good, ts_ms, 0).astype(np.int64), values)
        return [found.where(good)], flaws

    def passed_over(self, text: str) -> bool:
        """Whether a line that can't be read is of a series outside the selection."""
        return self._selection.passes_over_text(text)

    def _canonical_of(self, text: str) -> str | None:
        """Return None if the text is no series, _PASSED_OVER if the series is outside the selection."""
        if text not in self._known:
            name = self._strict_or_quoted(text)
            if name is None:
                return None
            foreign = self._selection.passes_over(name.partition("{")[0], name)
            self._known[text] = _PASSED_OVER if foreign else name
        return self._known[text]

    def _strict_or_quoted(self, text: str) -> str | None:
        """As the form writes a series; with names in quotes as Prometheus 3 writes them in any form."""
        try:
            return self._canonical(text)
        except SeriesFormatError:
            parts = parts_of(text)
        if parts is None or not (parts.has_quoted_name and parts.is_whole and parts.end == len(text)):
            return None
        try:
            labels = {self._unescaped(name): self._unescaped(value) for name, value in parts.labels}
            return name_of({**labels, "__name__": parts.metric})
        except SeriesFormatError:
            return None

    def _no_sample(self, lines: Lines, index: int) -> Flaw:
        text, number = lines.text(index), int(lines.numbers[index])
        series, _, value = text.rpartition(" ")
        if series and self._canonical_of(series) is not None and _NUMBER.fullmatch(value):
            return Flaw(
                number, AnomalyKind.NO_TIMESTAMP, f"{shown(text)} has no timestamp; expected series value timestamp"
            )
        return Flaw(number, AnomalyKind.NOT_A_SAMPLE, f"{shown(text)}; expected series value timestamp")

    def _no_number(self, lines: Lines, index: int, *, value: bool, stamp: bool) -> Flaw:
        text, number = shown(lines.text(index)), int(lines.numbers[index])
        if value:
            return Flaw(number, AnomalyKind.NOT_A_NUMBER, f"value of {text}; expected a number")
        if stamp:
            return Flaw(number, AnomalyKind.NOT_A_TIMESTAMP, f"timestamp of {text}; expected {self._ts_unit}")
        detail = f"timestamp of {text} is not between 2000 and 2100; expected {self._ts_unit}"
        return Flaw(number, AnomalyKind.WRONG_TIME_UNIT, detail)


def _numbers(texts: pa.StringArray) -> tuple[np.ndarray, np.ndarray]:
    """The numbers, and which texts are none; `texts` are pieces."""
    try:
        found = numbers(texts)
        return found, np.zeros(len(found), dtype=bool)
    except pa.ArrowInvalid:
        own = texts[::2]
        none = np.array([not _NUMBER.fullmatch(text) for text in own.to_pylist()], dtype=bool)
        return pc.if_else(pa.array(none), "0", own).cast(pa.float64()).to_numpy(), none
