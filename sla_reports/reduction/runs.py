"""A run: consecutive samples of one series with the same value and no gap between them. And what a longer scrape interval is.

Runs of adjacent chunks merge, and merging is associative, so a month may be reduced by the minute, by the day or at once, in any
order of the parts, and the answer is the same to the millisecond. A run says what was *seen*: it begins at its first sample and
ends at its last. `sla_reports.states` decides what held after the last sample.

Two samples further apart than `gap_ms` do not join. The rule is 2.5 scrape intervals: one lost scrape is not a gap, two are.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np

# The value of an instant for which one series has samples that contradict each other: nobody knows which of them is right.
CONFLICT = -math.inf
RUN_SCHEMA = "series string, value double, start_ms long, end_ms long, n long, longer_ms long"
HOUR_MS: Final = 3_600_000
LEAST_DISTANCES: Final = 10
MOST_UNLIKE: Final = 3
ALIKE_PART: Final = 25
# Fewer are not worth that an export is read once more.
LEAST_HOURS: Final = 12
# Medians of neighbouring hours differ by milliseconds; so their runs join.
ROUNDED_FROM_MS: Final = 10_000
ROUNDED_TO_MS: Final = 1_000
# Of each series the longest: a sample is compared with every range of its series.
MOST_RANGES: Final = 50


@dataclass(frozen=True, slots=True)
class Run:
    """`n` samples of `value` from `start_ms` (the first) to `end_ms` (the last). No value: stale markers.

    `longer_ms`: how far apart they were where that is more than the series' gap limit (`Longer`); else 0.
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


@dataclass(frozen=True, slots=True)
class Longer:
    """From `from_ms` up to `until_ms` the samples of a series were `longer_ms` apart."""

    from_ms: int
    until_ms: int
    longer_ms: int


def even_distance(times_ms: np.ndarray) -> int:
    """The usual distance of these times (in order) where they are even enough; else 0."""
    distances = np.diff(times_ms)
    if len(distances) < LEAST_DISTANCES:
        return 0
    median = int(np.sort(distances)[(len(distances) - 1) // 2])
    unlike = (distances - median) * ALIKE_PART
    return median if (unlike > median).sum() <= MOST_UNLIKE and not (-unlike > median).any() else 0


def is_even(least: np.ndarray, most: np.ndarray) -> np.ndarray:
    """Whether distances from `least` to `most` are all like their median."""
    found: np.ndarray = (most - least) * ALIKE_PART <= least
    return found


def ranges_by_series(rows: Iterable[tuple[str, int, int, int]]) -> Mapping[str, tuple[Longer, ...]]:
    """The rows of `intervals.ranges` for each series, in order of time."""
    found: dict[str, list[Longer]] = {}
    for series, *one in rows:
        found.setdefault(series, []).append(Longer(*one))
    return {series: tuple(sorted(own, key=lambda one: one.from_ms)) for series, own in found.items()}
