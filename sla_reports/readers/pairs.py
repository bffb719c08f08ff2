"""The samples of an answer as a server writes them, `[[1790812810.061,"1"],[1790812825.061,"1"],...]`, as columns.

All quotes are found at once; each byte between them must be what the form says, so nothing can be passed over. Whoever gets no
columns has to look at the answer one sample at a time.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa

from sla_reports.readers.columns import Columns
from sla_reports.readers.contract import EARLIEST_TS_MS, LATEST_TS_MS
from sla_reports.readers.pieces import numbers, pieces

_QUOTE: Final = ord('"')
_COMMA: Final = ord(",")
_SPACE: Final = ord(" ")
_OPEN: Final = ord("[")
_CLOSE: Final = ord("]")


def columns_of(names: Sequence[str], arrays: Sequence[msgspec.Raw]) -> Columns | None:
    """The samples of some series; None if a byte of them is not as expected, or a number is none, or a time is implausible."""
    values = [memoryview(array) for array in arrays]
    if any(len(one) < 2 or one[0] != _OPEN or one[-1] != _CLOSE for one in values):
        return None
    there = [(code, one[1:-1]) for code, one in enumerate(values) if len(one) > 2]
    # Servers write none; Python's json writes a space after each comma.
    comma = b", " if there and b", " in bytes(there[0][1][:64]) else b","
    content = comma.join(one for _, one in there)
    found = _numbers(content, len(comma))
    if found is None:
        return None
    opens, ts_ms, read = found
    lengths = np.array([len(one) + len(comma) for _, one in there], dtype=np.int64)
    counts = np.diff(np.searchsorted(opens, np.append(0, np.cumsum(lengths))))
    codes = np.repeat(np.array([code for code, _ in there], dtype=np.int32), counts)
    return Columns(names, codes, ts_ms, read)


def _numbers(content: bytes, gap: int) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Where values begin, the times in ms, the values. `gap`: how long a comma with what is after it is."""
    if not content:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float64)
    data = np.frombuffer(content, dtype=np.uint8)
    quotes = np.flatnonzero(data == _QUOTE)
    if not content.isascii() or len(quotes) % 2 or not len(quotes):
        return None
    opens, closes = quotes[0::2], quotes[1::2]
    begins = np.append(1, closes[:-1] + 3 + gap)
    if not _as_expected(data, begins, opens, closes, gap):
        return None
    try:
        seconds, values = (numbers(pieces(content, *one)) for one in ((begins, opens - gap), (opens + 1, closes)))
    except pa.ArrowInvalid:
        return None
    ts_ms = np.rint(seconds * 1000)
    if not ((ts_ms >= EARLIEST_TS_MS) & (ts_ms < LATEST_TS_MS)).all():
        return None
    return opens, ts_ms.astype(np.int64), values


def _as_expected(data: np.ndarray, begins: np.ndarray, opens: np.ndarray, closes: np.ndarray, gap: int) -> bool:
    """Whether what is between the numbers is `["`, `,"`, `"],[` and `"]`, at every sample."""
    if closes[-1] + 2 != len(data) or (begins >= opens - gap).any():
        return False
    before = [data[begins - 1] == _OPEN, data[closes + 1] == _CLOSE, data[opens - gap] == _COMMA]
    between = [data[closes[:-1] + 2] == _COMMA]
    if gap > 1:
        before.append(data[opens - 1] == _SPACE)
        between.append(data[closes[:-1] + 3] == _SPACE)
    return all(bool(one.all()) for one in (*before, *between))
