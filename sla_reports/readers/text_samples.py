"""One sample a line, `series value timestamp`: what OpenMetrics text and `promtool tsdb dump` share.

A block is taken apart by Arrow, column by column, and a line is looked at in Python only where that fails. A series' text is
brought to its canonical form once, not once a sample.
"""

import re
from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sla_reports.readers.contract import EARLIEST_TS_MS, LATEST_TS_MS, AnomalyKind
from sla_reports.readers.lines import Flaw
from sla_reports.readers.splits import Block
from sla_reports.series import SeriesFormatError

_SHOWN_CHARACTERS: Final = 120
_NUMBER: Final = re.compile(
    r"[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|inf|infinity|nan)", re.IGNORECASE
)


class TextSamples:
    """Takes blocks apart; keeps the canonical texts it has made."""

    def __init__(self, canonical: Callable[[str], str], *, ts_unit_ms: int, ts_unit: str) -> None:
        """`ts_unit_ms`: how many milliseconds a unit of the timestamps is (1 or 1000), which `ts_unit` is the name of."""
        self._canonical = canonical
        self._ts_unit_ms = ts_unit_ms
        self._ts_unit = ts_unit
        self._known: dict[str, str | None] = {}

    def parse(self, lines: pa.StringArray, numbers: np.ndarray) -> tuple[list[pa.RecordBatch], list[Flaw]]:
        """The samples of lines that should each be one, and the flaws; `numbers` are the lines' numbers in their block."""
        flaws: list[Flaw] = []
        parts = pc.split_pattern(lines, " ", max_splits=2, reverse=True)
        three = pc.equal(pc.list_value_length(parts), 3)
        if not _all(three):
            flaws += [self._no_sample(lines[i].as_py(), int(numbers[i])) for i in np.flatnonzero(~_np(three))]
            lines, parts, numbers = lines.filter(three), parts.filter(three), numbers[_np(three)]
        series, unreadable = self._series(pc.list_element(parts, 0))
        values, no_values = _numbers(pc.list_element(parts, 1))
        stamps, no_stamps = _numbers(pc.list_element(parts, 2))
        ts_ms = np.rint(stamps * self._ts_unit_ms)
        implausible = ~((ts_ms >= EARLIEST_TS_MS) & (ts_ms < LATEST_TS_MS))
        bad = unreadable | no_values | no_stamps | implausible
        for i in np.flatnonzero(bad):
            text, number = lines[i].as_py(), int(numbers[i])
            if unreadable[i]:
                flaws.append(self._no_sample(text, number))
            elif no_values[i]:
                flaws.append(Flaw(number, AnomalyKind.NOT_A_NUMBER, f"value of {shown(text)}; expected a number"))
            elif no_stamps[i]:
                flaws.append(
                    Flaw(number, AnomalyKind.NOT_A_TIMESTAMP, f"timestamp of {shown(text)}; expected {self._ts_unit}")
                )
            else:
                flaws.append(wrong_time_unit(text, number, self._ts_unit))
        good = pa.array(~bad)
        batch = sample_batch(series, pa.array(np.where(bad, 0, ts_ms).astype(np.int64)), pa.array(values))
        return [batch.filter(good) if bad.any() else batch], flaws

    def _series(self, texts: pa.StringArray) -> tuple[pa.StringArray, np.ndarray]:
        encoded = texts.dictionary_encode()
        names = [self._canonical_of(text) for text in encoded.dictionary.to_pylist()]
        canonical = pa.array(names, pa.string()).take(encoded.indices)
        return canonical, _np(canonical.is_null())

    def _canonical_of(self, text: str) -> str | None:
        if text not in self._known:
            try:
                self._known[text] = self._canonical(text)
            except SeriesFormatError:
                self._known[text] = None
        return self._known[text]

    def _no_sample(self, text: str, number: int) -> Flaw:
        series, _, value = text.rpartition(" ")
        if series and self._canonical_of(series) is not None and _NUMBER.fullmatch(value):
            return Flaw(
                number, AnomalyKind.NO_TIMESTAMP, f"{shown(text)} has no timestamp; expected series value timestamp"
            )
        return Flaw(number, AnomalyKind.NOT_A_SAMPLE, f"{shown(text)}; expected series value timestamp")


def lines_of(block: Block) -> tuple[pa.StringArray, list[Flaw]]:
    """The block's lines without their line feeds; those that are no UTF-8 are empty, and flaws."""
    data = block.data if block.data.endswith(b"\n") or not block.data else block.data + b"\n"
    feeds = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == ord("\n"))
    offsets = np.zeros(len(feeds) + 1, dtype=np.int32)
    offsets[1:] = feeds + 1
    flaws: list[Flaw] = []
    raw = pa.BinaryArray.from_buffers(pa.binary(), len(feeds), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    try:
        lines = raw.cast(pa.string())
    except pa.ArrowInvalid:
        texts, flaws = _decoded(raw)
        lines = pa.array(texts, pa.string())
    return pc.utf8_rtrim(lines, "\r\n"), flaws


def _decoded(raw: pa.BinaryArray) -> tuple[list[str], list[Flaw]]:
    texts: list[str] = []
    flaws: list[Flaw] = []
    for number, line in enumerate(raw.to_pylist()):
        try:
            texts.append(line.decode())
        except UnicodeDecodeError as error:
            texts.append("")
            flaws.append(Flaw(number, AnomalyKind.NOT_UTF8, f"{shown(repr(line))}: {error.reason}; expected UTF-8"))
    return texts, flaws


def cut_off(block: Block, lines: pa.StringArray) -> tuple[pa.StringArray, list[Flaw]]:
    """Without a last line that has no line feed: its number may have lost digits."""
    if not block.data or block.data.endswith(b"\n"):
        return lines, []
    number = len(lines) - 1
    flaw = Flaw(
        number, AnomalyKind.TRUNCATED, f"the file ends inside of {shown(lines[number].as_py())}; expected a line feed"
    )
    return lines.slice(0, number), [flaw]


def wrong_time_unit(text: str, number: int, unit: str) -> Flaw:
    """The flaw of a timestamp that is far from this century."""
    detail = f"timestamp of {shown(text)} is not between 2000 and 2100; expected {unit}"
    return Flaw(number, AnomalyKind.WRONG_TIME_UNIT, detail)


def sample_batch(series: pa.Array, ts_ms: pa.Array, values: pa.Array) -> pa.RecordBatch:
    """Samples as rows of their frame."""
    return pa.RecordBatch.from_arrays([series, ts_ms, values], names=["series", "ts_ms", "value"])


def shown(text: str) -> str:
    """A line as a message can carry it."""
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "...")


def _numbers(texts: pa.StringArray) -> tuple[np.ndarray, np.ndarray]:
    """The numbers, and which texts are none."""
    try:
        return _np(texts.cast(pa.float64())), np.zeros(len(texts), dtype=bool)
    except pa.ArrowInvalid:
        none = np.array([not _NUMBER.fullmatch(text) for text in texts.to_pylist()], dtype=bool)
        return _np(pc.if_else(pa.array(none), "0", texts).cast(pa.float64())), none


def _np(array: pa.Array) -> np.ndarray:
    made: np.ndarray = array.to_numpy(zero_copy_only=False)
    return made


def _all(mask: pa.BooleanArray) -> bool:
    return bool(pc.all(mask).as_py()) if len(mask) else True
