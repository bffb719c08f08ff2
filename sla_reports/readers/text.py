"""The text forms, one sample a line, `series value timestamp`: OpenMetrics, and the output of `promtool tsdb dump`.

A label's value may hold spaces, so the last two spaces of a line divide it. All lines of a block are found and read at once, as
columns: one look at each byte, and no text is copied. Python looks at a line only if that fails. A series' text is brought to
its canonical form once, not once a sample.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from sla_reports.readers.lines import SPLIT_BYTES, Block, Flaw, FlawError, Parsed, read_lines, shown
from sla_reports.readers.samples import (
    EARLIEST_TS_MS,
    LATEST_TS_MS,
    AnomalyKind,
    Columns,
    Samples,
    Selection,
    name_of,
    numbers,
    of_each,
    parts_of,
    pieces,
)
from sla_reports.series import SeriesFormatError, canonical, series_text, unescaped

_LINE_FEED, _RETURN, _SPACE, _COMMENT = b"\n\r #"
_BEFORE_LINE_FEED: Final = re.compile(rb"\r+\n")
_NUMBER: Final = re.compile(
    r"[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|inf|infinity|nan)", re.IGNORECASE
)
_PASSED_OVER: Final = ""
_EOF: Final = b"# EOF"
_EXEMPLAR_MARK: Final = b" # {"
_WITH_EXEMPLAR: Final = re.compile(r'([^{ ]*(?:\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})? [^ ]+ [^ ]+) # \{.*')
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_GO_ESCAPE: Final = re.compile(r"\\(?:([abfnrtv\\\"'])|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))")
_GO_ESCAPED: Final = dict(zip("abfnrtv\\\"'", "\a\b\f\n\r\t\v\\\"'", strict=True))


def read_openmetrics(
    spark: SparkSession, paths: Sequence[Path | str], *, split_bytes: int = SPLIT_BYTES, selection: Selection | None = None
) -> Samples:  # fmt: skip
    """Return the samples of the files; a folder stands for its `.om`, `.txt`, `.prom` and `.openmetrics` files, also with `.gz`."""
    suffixes = (".om", ".txt", ".prom", ".openmetrics")
    return read_lines(spark, paths, OpenMetrics, suffixes, split_bytes=split_bytes, selection=selection)


def read_tsdb_dump(
    spark: SparkSession, paths: Sequence[Path | str], *, split_bytes: int = SPLIT_BYTES, selection: Selection | None = None
) -> Samples:  # fmt: skip
    """Return the samples of the files; a folder stands for its `.dump` and `.txt` files, also with `.gz`."""
    return read_lines(spark, paths, TsdbDump, (".dump", ".txt"), split_bytes=split_bytes, selection=selection)


class _Lines:
    """The lines of some text, each of which ends with a line feed, as columns."""

    def __init__(self, data: bytes) -> None:
        content = np.frombuffer(data, dtype=np.uint8)
        # As signed numbers, bytes that are no ASCII are below zero: they are found in the same look.
        marks = np.flatnonzero(content.view(np.int8) <= _SPACE)
        kinds = content[marks]
        self.data = data
        self.is_utf8 = bool((kinds <= _SPACE).all()) or _is_utf8(data)
        self.has_returns = bool((kinds == _RETURN).any()) and b"\r\n" in data
        known = (kinds == _SPACE) | (kinds == _LINE_FEED)
        marks, kinds = marks[known], kinds[known]
        feeds = np.flatnonzero(kinds == _LINE_FEED)
        self.ends = marks[feeds]
        self.starts = np.append(0, self.ends[:-1] + 1)[: len(feeds)]
        self.firsts = content[self.starts]
        self.spaces = np.diff(feeds, prepend=-1) - 1
        # Where the last two spaces are; only of use where there are two.
        self.second_last, self.last = marks[np.maximum(feeds - 2, 0)], marks[feeds - 1]

    def __len__(self) -> int:
        return len(self.ends)

    def raw(self, index: int) -> bytes:
        return self.data[self.starts[index] : self.ends[index]]


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


class _TextForm:
    """A LineForm; the subclasses say how the form writes a series."""

    ts_unit_ms: ClassVar[int] = 1
    ts_unit: ClassVar[str] = "milliseconds"
    has_comments: ClassVar[bool] = False

    def __init__(self, selection: Selection | None = None) -> None:
        self._selection = selection or Selection()
        # The canonical text of each series, or _PASSED_OVER if it is outside the selection. Texts that are no series are not kept:
        # each sample of a native histogram would be another one.
        self._known: dict[str, str] = {}

    def _canonical(self, text: str) -> str:
        """Raises SeriesFormatError if the text is no series as the form writes it."""
        raise NotImplementedError

    def _unescaped(self, value: str) -> str:
        raise NotImplementedError

    def parse(self, block: Block) -> Parsed:
        """See LineForm."""
        is_torn = bool(block.data) and not block.data.endswith(b"\n")
        data = block.data + b"\n" if is_torn else block.data
        lines = _Lines(data)
        if lines.has_returns:
            lines = _Lines(_BEFORE_LINE_FEED.sub(b"\n", data))
        plain = self._looks_plain(lines)
        plain[len(lines) - is_torn :] = False
        try:
            columns, rest = self._at_once(lines, np.flatnonzero(plain))
        except pa.ArrowInvalid:  # a number is none: each line by itself
            columns, rest = None, np.flatnonzero(plain)
        samples: list[tuple[str, int, float]] = []
        torn: list[Flaw] = []
        flaws = _end_flaws(block, lines) if self.has_comments else []
        for index in np.sort(np.concatenate([np.flatnonzero(~plain), rest])).tolist():
            raw = lines.raw(index)
            if is_torn and index == len(lines) - 1 and not (self.has_comments and raw == _EOF):
                # Its number may have lost digits.
                detail = f"the file ends inside of {shown(raw.decode(errors='replace'))}; expected a line feed"
                torn.append(Flaw(index, AnomalyKind.TRUNCATED, detail))
                continue
            try:
                if (one := self._one(raw)) is not None:
                    samples.append(one)
            except FlawError as error:
                flaws.append(error.at(index))
        found = [one for one in (columns, _columns_of(samples)) if one is not None]
        return Parsed([one.packed() for one in found], torn + flaws, len(lines))

    def _looks_plain(self, lines: _Lines) -> np.ndarray:
        """Which lines can be read at once; the others are empty, comments, exemplars, too short, or no UTF-8."""
        plain = lines.spaces >= 2
        if not lines.is_utf8:
            plain[:] = False
        if self.has_comments:
            plain &= lines.firsts != _COMMENT
            more = np.flatnonzero(plain & (lines.spaces > 2))
            if len(more) and _EXEMPLAR_MARK in lines.data:
                plain[more] = [_EXEMPLAR_MARK not in lines.raw(index) for index in more.tolist()]
        return plain

    def _at_once(self, lines: _Lines, at: np.ndarray) -> tuple[Columns, np.ndarray]:
        """Return the samples of these lines, and the numbers of the lines in which something is wrong. Raises ArrowInvalid."""
        starts, second, last, ends = (one[at] for one in (lines.starts, lines.second_last, lines.last, lines.ends))
        encoded = pieces(lines.data, starts, second).dictionary_encode()
        names = [self._canonical_of(text) for text in encoded.dictionary.to_pylist()]
        codes = of_each(encoded.indices)
        values = numbers(pieces(lines.data, second + 1, last))
        ts_ms = np.rint(numbers(pieces(lines.data, last + 1, ends)) * self.ts_unit_ms)
        foreign = np.array([name == _PASSED_OVER for name in names], dtype=bool)[codes]
        good = np.array([bool(name) for name in names], dtype=bool)[codes]
        good &= (ts_ms >= EARLIEST_TS_MS) & (ts_ms < LATEST_TS_MS)
        found = Columns(names, codes, np.where(good, ts_ms, 0).astype(np.int64), values)
        return found.where(good), at[~good & ~foreign]

    def _one(self, raw: bytes) -> tuple[str, int, float] | None:
        """Return the sample of a line; None for a line without one, and for a series outside the selection. Raises FlawError."""
        text = raw.decode(errors="replace")
        if self.has_comments:
            text = _WITH_EXEMPLAR.sub(r"\1", text)
        try:
            raw.decode()
            return self._sample_of(text)
        except UnicodeDecodeError as error:
            flaw = FlawError(AnomalyKind.NOT_UTF8, f"{shown(repr(raw))}: {error.reason}; expected UTF-8")
        except FlawError as error:
            flaw = error
        if self._selection.passes_over_text(text):
            return None
        raise flaw

    def _sample_of(self, text: str) -> tuple[str, int, float] | None:
        if not text or (self.has_comments and text.startswith("#")):
            return None
        words = text.rsplit(" ", 2)
        name = self._canonical_of(words[0]) if len(words) == 3 else None
        if name is None:
            raise self._no_sample(text)
        no_value, no_stamp = (not _NUMBER.fullmatch(word) for word in words[1:])
        # Of two words that are no numbers the first is hardly a metric: a message in the middle of an export.
        if name == _PASSED_OVER and not (no_value and no_stamp):
            return None
        if no_value:
            raise FlawError(AnomalyKind.NOT_A_NUMBER, f"value of {shown(text)}; expected a number")
        stamp = f"timestamp of {shown(text)}"
        if no_stamp:
            raise FlawError(AnomalyKind.NOT_A_TIMESTAMP, f"{stamp}; expected {self.ts_unit}")
        ts_ms = float(np.rint(float(words[2]) * self.ts_unit_ms))
        if not EARLIEST_TS_MS <= ts_ms < LATEST_TS_MS:
            detail = f"{stamp} is not between 2000 and 2100; expected {self.ts_unit}"
            raise FlawError(AnomalyKind.WRONG_TIME_UNIT, detail)
        return name, int(ts_ms), float(words[1])

    def _no_sample(self, text: str) -> FlawError:
        series, _, value = text.rpartition(" ")
        expected = "expected series value timestamp"
        if series and self._canonical_of(series) is not None and _NUMBER.fullmatch(value):
            return FlawError(AnomalyKind.NO_TIMESTAMP, f"{shown(text)} has no timestamp; {expected}")
        return FlawError(AnomalyKind.NOT_A_SAMPLE, f"{shown(text)}; {expected}")

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
        """Read a series as the form writes it, or with names in quotes as Prometheus 3 writes them in any form."""
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


def _columns_of(samples: Sequence[tuple[str, int, float]]) -> Columns | None:
    if not samples:
        return None
    names, ts_ms, values = zip(*samples, strict=True)
    codes = {name: code for code, name in enumerate(dict.fromkeys(names))}
    numbered = np.array([codes[name] for name in names], dtype=np.int32)
    return Columns(list(codes), numbered, np.array(ts_ms, dtype=np.int64), np.array(values, dtype=np.float64))


class OpenMetrics(_TextForm):
    """The form that promtool's backfill takes, with timestamps in seconds (kept to the millisecond, as Prometheus does).

    Metadata lines and exemplars are passed over. `# EOF` has to be the last line: without it nothing says that the file is whole.
    """

    ts_unit_ms = 1000
    ts_unit = "seconds"
    has_comments = True

    def _canonical(self, text: str) -> str:
        return canonical(text)

    def _unescaped(self, value: str) -> str:
        return unescaped(value)


def _end_flaws(block: Block, lines: _Lines) -> list[Flaw]:
    """What is wrong with the end marks of OpenMetrics: text after one, or none at the end of the file."""
    last = len(lines) - 1
    maybe = np.flatnonzero((lines.firsts == _COMMENT) & (lines.ends - lines.starts == len(_EOF)))
    ends = [index for index in maybe.tolist() if lines.raw(index) == _EOF]
    flaws = [
        Flaw(end + 1, AnomalyKind.AFTER_EOF, "the file goes on after '# EOF'; expected the end")
        for end in ends
        if not (block.is_last_of_file and end == last)
    ]
    if block.is_last_of_file and last not in ends:
        ending = shown(lines.raw(last).decode(errors="replace")) if len(lines) else "nothing"
        flaws.append(Flaw(max(last, 0), AnomalyKind.MISSING_EOF, f"the file ends with {ending}; expected '# EOF'"))
    return flaws


class TsdbDump(_TextForm):
    """Lines `{__name__="...", label="value"} value timestamp` with labels quoted as Go does it and timestamps in milliseconds.

    The form has no end mark: a dump that was cut between two lines looks like a whole one.
    """

    def _canonical(self, text: str) -> str:
        if not (text.startswith("{") and text.endswith("}")):
            raise SeriesFormatError(f'series {text!r}: expected {{__name__="metric", label="value"}}')
        labels: dict[str, str] = {}
        at, end = 1, len(text) - 1
        while at < end:
            found = _LABEL.match(text, at)
            if found is None:
                raise SeriesFormatError(f'series {text!r}: expected label="value" at {text[at : at + 30]!r}')
            labels[found[1]] = self._unescaped(found[2])
            at = found.end()
            if text.startswith(", ", at):
                at += 2
            elif at != end:
                raise SeriesFormatError(f"series {text!r}: expected ', ' at {text[at : at + 30]!r}")
        return series_text(labels.pop("__name__", ""), labels)

    def _unescaped(self, value: str) -> str:
        """Undo Go's quoting. Bytes written as \\x belong to one UTF-8 text."""
        raw = _GO_ESCAPE.sub(_go_character, value)
        return raw.encode("utf-8", "surrogateescape").decode("utf-8", "replace") if "\\x" in value else raw


def _go_character(found: re.Match[str]) -> str:
    if found[1] is not None:
        return _GO_ESCAPED[found[1]]
    number = int(found[2] or found[3] or found[4], 16)
    return chr(0xDC00 + number) if found[2] is not None and number >= 0x80 else chr(number)
