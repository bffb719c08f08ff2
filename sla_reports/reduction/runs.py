"""A run: consecutive samples of one series with the same value and no gap between them.

Runs of adjacent chunks merge, and merging is associative with the empty tuple as its neutral element (a monoid). That is why a
month may be reduced by the minute, by the day or at once, in any order of the parts, and the answer is the same to the
millisecond. A run says what was *seen*: it begins at its first sample and ends at its last. What held after the last sample
is decided later (`sla_reports.states`), so that a run never changes because of what another chunk holds.

Two samples further apart than `gap_ms` do not join: an exporter that is silent for longer says nothing. The rule is 2.5 scrape
intervals: one lost scrape is not a gap, two are.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

# The value of an instant for which one series has samples that contradict each other: nobody knows which of them is right.
CONFLICT = -math.inf
RUN_SCHEMA = "series string, value double, start_ms long, end_ms long, n long, longer_ms long"


@dataclass(frozen=True, slots=True)
class Run:
    """`n` samples of `value` from `start_ms` (the first) to `end_ms` (the last). No value: stale markers.

    `longer_ms`: how far apart they were where that is more than the series' gap limit (`longer.py`); else 0.
    """

    series: str
    value: float | None
    start_ms: int
    end_ms: int
    n: int
    longer_ms: int = 0


def gap_limit_ms(interval_ms: int) -> int:
    """The longest time between two samples that still says what held between them."""
    return interval_ms * 5 // 2


def merge(earlier: tuple[Run, ...], later: tuple[Run, ...], gap_ms: int) -> tuple[Run, ...]:
    """The runs of one series in both chunks; every sample of `earlier` lies before every sample of `later`.

    Raises ValueError where the chunks overlap: which sample holds then is decided by the reduction, not here.
    """
    if not earlier or not later:
        return earlier or later
    last, first = earlier[-1], later[0]
    if last.series != first.series:
        raise ValueError(f"merge: runs of {last.series} and {first.series}; expected one series")
    if last.end_ms >= first.start_ms:
        raise ValueError(f"merge: {last.series}: chunks overlap at {first.start_ms} ms; expected adjacent ones")
    if (last.value, last.longer_ms) != (first.value, first.longer_ms) or first.start_ms - last.end_ms > gap_ms:
        return earlier + later
    joined = replace(last, end_ms=first.end_ms, n=last.n + first.n)
    return (*earlier[:-1], joined, *later[1:])


def by_series(runs: Iterable[Run]) -> dict[str, tuple[Run, ...]]:
    """The runs of each series, in order of time. Raises ValueError where two of one series overlap."""
    found: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: (run.series, run.start_ms)):
        found.setdefault(run.series, []).append(run)
    for series, ordered in found.items():
        for earlier, later in pairwise(ordered):
            if earlier.end_ms >= later.start_ms:
                raise ValueError(f"runs of {series} overlap at {later.start_ms} ms")
    return {series: tuple(ordered) for series, ordered in found.items()}
