"""A block of text, and where its lines and the fields of its lines are: one look at each byte, no text is copied for it.

A sample's line is `series value timestamp`. A label's value may hold spaces, so fields are told from the right: the last two spaces
of a line divide it. All lines are found at once, by numpy; only a line that is wrong becomes a text of its own.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from sla_reports.readers.contract import AnomalyKind
from sla_reports.readers.lines import Flaw
from sla_reports.readers.pieces import pieces
from sla_reports.readers.splits import Block

_LINE_FEED: Final = ord("\n")
_CARRIAGE_RETURN: Final = ord("\r")
_SPACE: Final = ord(" ")
_BEFORE_LINE_FEED: Final = re.compile(rb"\r+\n")
_SHOWN_CHARACTERS: Final = 120


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of `data`, each from its start to before its line feed; columns are as long as there are lines."""

    data: bytes
    is_ascii: bool
    numbers: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    # How many there are, and where the last two are; only of use where there are two.
    spaces: np.ndarray
    second_last: np.ndarray
    last: np.ndarray

    def __len__(self) -> int:
        return len(self.starts)

    def where(self, wanted: np.ndarray) -> "Lines":
        """Some of the lines; `wanted` is a mask."""
        if wanted.all():
            return self
        columns = (self.numbers, self.starts, self.ends, self.spaces, self.second_last, self.last)
        return Lines(self.data, self.is_ascii, *(column[wanted] for column in columns))

    def raw(self, index: int) -> bytes:
        """A line's bytes."""
        return self.data[self.starts[index] : self.ends[index]]

    def text(self, index: int) -> str:
        """A line as a text, for a message."""
        return self.raw(index).decode(errors="replace")

    def firsts(self) -> np.ndarray:
        """Each line's first byte; a line feed where it has none."""
        found: np.ndarray = np.frombuffer(self.data, dtype=np.uint8)[self.starts]
        return found

    def fields(self) -> tuple[pa.StringArray, pa.StringArray, pa.StringArray]:
        """Series, value and timestamp of lines that all have two spaces, as `pieces`."""
        return (
            pieces(self.data, self.starts, self.second_last),
            pieces(self.data, self.second_last + 1, self.last),
            pieces(self.data, self.last + 1, self.ends),
        )


def lines_of(block: Block) -> Lines:
    """The block's lines; the last one may have no line feed of its own (`cut_off`)."""
    return located(block.data if block.data.endswith(b"\n") or not block.data else block.data + b"\n")


def located(data: bytes) -> Lines:
    """The lines of some text, each of which ends with a line feed. Carriage returns before one are not part of a line."""
    content = np.frombuffer(data, dtype=np.uint8)
    # As signed numbers, bytes that are no ASCII are below zero: they are found in the same look.
    marks = np.flatnonzero(content.view(np.int8) <= _SPACE)
    kinds = content[marks]
    known = (kinds == _SPACE) | (kinds == _LINE_FEED)
    is_ascii = bool((kinds <= _SPACE).all())
    if not known.all():
        if (kinds == _CARRIAGE_RETURN).any() and b"\r\n" in data:
            return located(_BEFORE_LINE_FEED.sub(b"\n", data))
        marks, kinds = marks[known], kinds[known]
    feeds = np.flatnonzero(kinds == _LINE_FEED)
    ends = marks[feeds]
    starts = np.zeros_like(ends)
    starts[1:] = ends[:-1] + 1
    spaces = np.diff(feeds, prepend=-1) - 1
    return Lines(
        data, is_ascii, np.arange(len(ends)), starts, ends, spaces, marks[np.maximum(feeds - 2, 0)], marks[feeds - 1]
    )


def made_of(texts: Sequence[str], numbers: np.ndarray) -> Lines:
    """Lines that were put in other words."""
    lines = located("".join(f"{text}\n" for text in texts).encode())
    return Lines(
        lines.data, lines.is_ascii, numbers, lines.starts, lines.ends, lines.spaces, lines.second_last, lines.last
    )


def cut_off(block: Block, lines: Lines) -> tuple[Lines, list[Flaw]]:
    """Without a last line that has no line feed: its number may have lost digits."""
    if not block.data or block.data.endswith(b"\n"):
        return lines, []
    last = len(lines) - 1
    detail = f"the file ends inside of {shown(lines.text(last))}; expected a line feed"
    flaw = Flaw(int(lines.numbers[last]), AnomalyKind.TRUNCATED, detail)
    return lines.where(np.arange(len(lines)) < last), [flaw]


def shown(text: str) -> str:
    """A line as a message can carry it."""
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "...")


def decodable(lines: Lines, passed_over: Callable[[str], bool]) -> tuple[Lines, list[Flaw]]:
    """Without lines that are no UTF-8; each is a flaw, or passed over."""
    if lines.is_ascii or _is_utf8(lines.data):
        return lines, []
    flaws: list[Flaw] = []
    wanted = np.ones(len(lines), dtype=bool)
    for index in range(len(lines)):
        line = lines.raw(index)
        try:
            line.decode()
        except UnicodeDecodeError as error:
            wanted[index] = False
            if passed_over(lines.text(index)):
                continue
            detail = f"{shown(repr(line))}: {error.reason}; expected UTF-8"
            flaws.append(Flaw(int(lines.numbers[index]), AnomalyKind.NOT_UTF8, detail))
    return lines.where(wanted), flaws


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
